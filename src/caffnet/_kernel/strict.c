/* `strict`: move the answer inside until every inequality holds in exact arithmetic. */
#include "internal.h"

/* Whether a set that no point found so far satisfies exactly is empty in exact arithmetic. */
FN int exactly_empty(Work *work, CaffnetProof *proof) {
    restart(work);
    if (dual(work, work->g, work->spare, work->stood, 0.0, -1.0) != CONFLICT) return 0;
    collect_conflict(work);
    return proven_empty(work, proof);
}

/* Whether work->y is no farther from the ordinary answer than the largest number of that answer or of g (or than the smallest
   numbers, by which rows are drawn in). Nearly parallel rows, drawn in, may meet anywhere. */
FN int stays_near(const Work *work) {
    Index n = outputs_of(&work->rows);
    double far = 0.0;
    for (Index j = 0; j < n; j++) far = larger(far, fabs(work->y[j] - work->ordinary[j]));
    return far <= larger(larger(largest(work->ordinary, n), largest(work->g, n)), 128.0 * work->t.underflow);
}

/* Whether the point in work->y, as it will be returned, satisfies the rows of the sample: up to rounding, and every
   inequality exactly. */
FN int strictly_inside(const CaffnetBatch *batch, int64_t b, Work *work, double size) {
    if (!is_representable(work)) return 0;
    write_value(batch, b, work);
    if (!holds_exactly(batch, b, batch->value, b * batch->n, 0)) return 0;
    restore_bounds(work);
    return check(&work->rows, work->y, size, work->face.held, 1) != REJECTED;
}

/* How far row i is drawn in, in units of a step: what rounding may be in it at the ordinary answer, whose numbers are up to
   `size`. 0 for rows without an inside, or without rounding. With `wide`, the size counts whatever the numbers of the row:
   where rows of small numbers give no room for those beside them. */
FN double margin_of(const Work *work, Index i, double size, int wide) {
    const Rows *s = &work->rows;
    double bound = bound_at(s, i, value_of(s, i, work->ordinary));
    if (s->equal[i] || s->squared[i] == 0.0 || s->plain[i] >= 0 || !is_finite(bound)) return 0.0;
    double counts = wide ? size : 0.5 * size_at(s, i, work->ordinary, 2.0 * size);
    return work->t.margin * (counts + bound) + work->t.underflow;
}

/* Aim inside by a few units in the last place until every inequality holds exactly: first on the face of the answer,
   then with a search on the rows drawn in, as far as they have a common point. 0 where that does not succeed: then
   work->y and face.held are those of the ordinary answer again. */
FN int step_inside(const CaffnetBatch *batch, int64_t b, Work *work, int search) {
    Rows *s = &work->rows;
    double size = largest(work->y, outputs_of(s)), start = largest(work->f, outputs_of(s));
    keep_answer(work);
    for (int wide = 0; wide < (s->boxed ? 0 : 2); wide++) {
        int gave_more = 0;
        for (Index i = 0; i < rows_of(s); i++) {
            double margin = margin_of(work, i, size, wide);
            gave_more = gave_more || margin != work->unit[i];
            work->unit[i] = margin;
            work->give[i] = 0.0;
        }
        for (int factor = 1; factor <= 64 && (wide == 0 || gave_more); factor *= 4) {
            double relax = -(double)factor;
            if (factor > 1 || wide) {
                restore_bounds(work);
                rebuild_face(work, work->stood);
            }
            relax_rows(work, relax);
            if (settle_point(work, work->g, size) != REJECTED && stays_near(work) && strictly_inside(batch, b, work, start)) return 1;
            if (climb(work, work->g, &relax, work->stood) < 0 || relax > 0.0) break;
            int state = project(work, search, work->stood);
            if (state >= 0 && stays_near(work) && strictly_inside(batch, b, work, start)) return 1;
        }
        restore_bounds(work);
    }
    restore_answer(work);
    return 0;
}

/* Move a RELAXED answer by a few units in the last place until every hard inequality holds exactly: these are drawn in,
   and the soft rows give way by what that takes. Where that does not succeed, the answer stays. */
FN void keep_hard_rows(const CaffnetBatch *batch, int64_t b, Work *work) {
    Rows *s = &work->rows;
    double size = larger(largest(work->y, outputs_of(s)), largest(work->g, outputs_of(s)));
    write_value(batch, b, work);
    if (holds_exactly(batch, b, batch->value, b * batch->n, 1)) return;
    keep_answer(work);
    for (int step = 0; step < 8; step++) { /* from step 4 on without the soft rows: then the answer itself is moved */
        int factor = 1 << 2 * (step % 4), alone = step >= 4;
        double relax = 0.0;
        const double *goal = alone ? work->ordinary : work->g;
        restore_bounds(work);
        for (Index i = 0; i < rows_of(s); i++) {
            int soft = is_soft(work, i);
            double inside = -factor * margin_of(work, i, size, 0);
            work->unit[i] = soft && !alone ? users_unit(work, i) : 0.0;
            work->give[i] = !soft ? inside : alone ? HUGE_VAL : work->level[i];
        }
        if (climb(work, goal, &relax, work->stood) < 0) continue;
        int state = settle_point(work, goal, size);
        if (state == REJECTED || !is_representable(work)) continue;
        write_value(batch, b, work);
        if (!holds_exactly(batch, b, batch->value, b * batch->n, 1)) continue;
        if (!alone) close_face(work);
        restore_bounds(work);
        return;
    }
    restore_bounds(work);
    restore_answer(work);
}

/* Whether the answer in work->y holds exactly (equalities up to rounding), or can be moved inside so that it does. */
FN int holds_strictly(const CaffnetBatch *batch, int64_t b, Work *work, int search) {
    double size = larger(largest(work->y, outputs_of(&work->rows)), largest(work->f, outputs_of(&work->rows)));
    return strictly_inside(batch, b, work, size) || step_inside(batch, b, work, search);
}

/* Write an answer whose soft rows have given way; WITHIN_TOL where the hard ones ask for numbers beyond the largest, or a
   row of zeros does not hold by less than counts at the scale of the sample. */
FN int write_relaxed(const CaffnetBatch *batch, int64_t b, Work *work) {
    int state = relax_into_range(work) ? CAFFNET_RELAXED : CAFFNET_WITHIN_TOL;
    for (Index i = 0; i < rows_of(&work->rows); i++)
        if (!is_soft(work, i) && work->rows.squared[i] == 0.0 && (work->low[i] > 0.0 || work->high[i] < 0.0))
            state = CAFFNET_WITHIN_TOL;
    if (batch->strict) keep_hard_rows(batch, b, work);
    return write_answer(batch, b, work, state);
}

/* Write a point whose hard rows hold exactly, if the one in work->y can be moved there by rounding: the soft rows take
   what is left of it. WITHIN_TOL, or RELAXED if that is more than their tolerance. */
FN int write_on_hard_rows(const CaffnetBatch *batch, int64_t b, Work *work) {
    const Rows *s = &work->rows;
    copy(work->g, work->y, outputs_of(s));
    choose_yielding(work, SOFT_ROWS);
    keep_hard_rows(batch, b, work);
    return write_answer(batch, b, work, !rows_hold(work) && hard_rows_hold(work) ? CAFFNET_RELAXED : CAFFNET_WITHIN_TOL);
}

/* Write the answer under `strict`: moved inside, or the ordinary one. Where no point was found that holds exactly, the
   answer itself is projected once more, as a second call would do it. */
FN int write_strictly(const CaffnetBatch *batch, int64_t b, Work *work, int search, CaffnetProof *proof) {
    const Rows *s = &work->rows;
    if (holds_strictly(batch, b, work, search)) return write_answer(batch, b, work, CAFFNET_PROJECTED);
    (void)write_answer(batch, b, work, CAFFNET_WITHIN_TOL); /* step_inside has restored it */
    if (exactly_empty(work, proof)) {
        if (meaning_of_conflict(work) == CAFFNET_RELAXED) {
            restore_answer(work);
            forget_levels(work);
            return write_relaxed(batch, b, work);
        }
        if (!batch->nearest) return write_nothing(batch, b, CAFFNET_INFEASIBLE);
        batch->status[b] = CAFFNET_INFEASIBLE;
        return CAFFNET_INFEASIBLE;
    }
    start_from_answer(work);
    int state = project(work, CAFFNET_ACTIVE, NULL);
    if (state < 0) state = approach(work, 1, proof);
    if (state == CAFFNET_RELAXED) return write_relaxed(batch, b, work);
    if (state != CAFFNET_INFEASIBLE && holds_strictly(batch, b, work, CAFFNET_ACTIVE))
        return write_answer(batch, b, work, CAFFNET_PROJECTED);
    copy(work->y, work->f, outputs_of(s));
    write_value(batch, b, work);
    return work->soft ? write_on_hard_rows(batch, b, work) : CAFFNET_WITHIN_TOL;
}
