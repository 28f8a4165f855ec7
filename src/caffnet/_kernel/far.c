/* Difficult samples: rows that meet far away, points beyond the largest number. */
#include "internal.h"

/* An entry of y in the user's units. */
FN double users_number(const Work *work, Index j) {
    return work->rows.shift ? ldexp(work->y[j], -work->rows.shift) : work->y[j];
}

FN double largest_number(const Work *work) { return work->single ? 0x1.fffffep+127 : 1.7976931348623157e308; }

/* Whether the point can be written in the user's number type. */
FN int is_representable(const Work *work) {
    for (Index j = 0; j < outputs_of(&work->rows); j++)
        if (!(fabs(users_number(work, j)) <= largest_number(work))) return 0;
    return 1;
}

/* How far the worst row in conflict is exceeded at work->y, and the largest that rounding may hide in such a row, in `room`. */
FN double missed_in_conflict(const Work *work, double *room) {
    const Rows *s = &work->rows;
    double all = 2.0 * largest(work->y, outputs_of(s)), worst = *room = 0.0;
    for (Index i = 0; i < rows_of(s); i++) {
        if (work->conflict[i] == 0.0) continue;
        double value = value_of(s, i, work->y);
        worst = larger(worst, excess_of(s, i, value));
        double size = size_at(s, i, work->y, all) + bound_at(s, i, value);
        *room = larger(*room, work->t.feasibility * size);
    }
    return worst;
}

/* Answer a sample in float32 whose rows seem to exclude each other, because some are parallel in the digits of float32. In
   those of float64 they meet far away, or exclude each other there too. WITHIN_TOL if neither is found. */
FN int retry_finely(Work *work, int strict, CaffnetProof *proof) {
    int state = CAFFNET_WITHIN_TOL;
    double rank = work->t.rank, room = 0.0, missed = missed_in_conflict(work, &room), size = size_of_point(work);
    int reaches = proof->gap < 0.0 && proof->radius * sqrt(work->t.empty) > size;
    keep_answer(work);
    set_rank(work, work->t.fine_rank);
    int far = project(work, CAFFNET_ACTIVE, NULL) >= 0;
    if (far) (void)missed_in_conflict(work, &room);
    if (far && reaches && room > missed) { /* they meet there only because of the rounding of the data */
        set_rank(work, rank);
        restore_answer(work);
        return meaning_of_conflict(work);
    }
    if (!far) {
        state = least_violation(work, strict, proof);
        if (state == CAFFNET_WITHIN_TOL && rows_hold(work) && largest(work->y, outputs_of(&work->rows)) <= size) {
            set_rank(work, rank); /* a point that rounding explains, and no farther out than the data */
            return state;
        }
        if (state == CAFFNET_WITHIN_TOL && proven_empty(work, proof)) state = meaning_of_conflict(work);
    }
    set_rank(work, rank);
    if (!far && state != CAFFNET_RELAXED) restore_answer(work);
    return state;
}

/* Bring a point whose rows hold, but some bound of one output by rounding only, to that bound: by projecting it once more. It
   stays where that does not help. */
FN void meet_bounds(Work *work, int strict, CaffnetProof *proof) {
    keep_answer(work);
    start_from_answer(work);
    int state = project(work, CAFFNET_ACTIVE, NULL);
    if (state < 0) state = least_violation(work, strict, proof);
    if (state == CAFFNET_INFEASIBLE || !holds_firmly(work)) restore_answer(work);
}

/* Answer a sample that no search could answer: INFEASIBLE or RELAXED with a proof, else the point of least violation, WITHIN_TOL.
   A point that its own rows reject is projected again, up to eight times. */
FN int approach(Work *work, int strict, CaffnetProof *proof) {
    int state = least_violation(work, strict, proof);
    if (state == CAFFNET_WITHIN_TOL && work->t.rank > work->t.fine_rank && !rows_hold(work))
        state = retry_finely(work, strict, proof);
    for (int again = 0; again < 8 && state == CAFFNET_WITHIN_TOL; again++) {
        if (rows_hold(work)) break;
        start_from_answer(work);
        state = project(work, CAFFNET_ACTIVE, NULL);
        if (state < 0) state = least_violation(work, strict, proof);
    }
    if (state == CAFFNET_WITHIN_TOL && !work->soft && rows_hold(work) && !holds_firmly(work)) meet_bounds(work, strict, proof);
    if (work->hopeless && (state == CAFFNET_PROJECTED || state == CAFFNET_WITHIN_TOL)) {
        choose_yielding(work, SOFT_ROWS);
        return CAFFNET_RELAXED;
    }
    return state == CAFFNET_PROJECTED ? CAFFNET_WITHIN_TOL : state;
}

/* Project a near miss: the nearest point to it stands for the answer, in any metric. */
FN int project_near_miss(Work *work, int strict, CaffnetProof *proof) {
    start_from_answer(work);
    return project(work, CAFFNET_ACTIVE, NULL) < 0 ? approach(work, strict, proof) : CAFFNET_WITHIN_TOL;
}

/* Bring a RELAXED answer that is beyond the largest number to the hard rows within the range of numbers; 0 if not found. */
FN int relax_into_range(Work *work) {
    int hold = 1;
    double limit = times_power(largest_number(work), work->rows.shift);
    for (int again = 0; again < 200 && !is_representable(work); again++) {
        for (Index j = 0; j < outputs_of(&work->rows); j++) work->y[j] = larger(smaller(work->y[j], limit), -limit);
        choose_yielding(work, SOFT_ROWS);
        hold = project_on_hard_rows(work);
        restore_bounds(work);
    }
    return hold && is_representable(work);
}

/* Answer a sample whose nearest point y is beyond the largest number: project in turn on the set and on the box of numbers
   that can be written. This ends at a point of both, or with a proof that there is none: every point y' of the set
   satisfies (g - y) y' <= (g - y) y, which no number is large enough for. */
FN int into_range(Work *work, CaffnetProof *proof) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    double limit = largest_number(work), scaled = times_power(limit, s->shift);
    for (int again = 0; again < 200 && !is_representable(work); again++) {
        for (Index i = 0; i < rows_of(s); i++) work->conflict[i] = work->fine[i] = 0.0;
        for (Index i = 0; s->boxed && i < rows_of(s); i++) {
            Index j = s->plain[i];
            if (face->held[i] != 0) work->conflict[i] = s->sign[i] * (work->g[j] - work->y[j]);
        }
        if (!s->boxed) multipliers(s, face, 0, work->g, work->y);
        for (Index j = 0; !s->boxed && j < face->k; j++)
            work->conflict[face->rows[j]] = face->multiplier[j] * face->sides[j];
        *proof = prove(work);
        if (proof->gap < 0.0 && times_power(proof->radius, -s->shift) > limit) return meaning_of_conflict(work);
        for (Index j = 0; j < outputs_of(s); j++) work->f[j] = work->g[j] = larger(smaller(work->y[j], scaled), -scaled);
        int state = project(work, CAFFNET_ACTIVE, NULL);
        if (state < 0) state = approach(work, 0, proof);
        if (state == CAFFNET_INFEASIBLE || state == CAFFNET_RELAXED) return state;
    }
    return CAFFNET_WITHIN_TOL;
}

/* Decide a sample, with numbers up to `size`, whose rows meet only far away: they are parallel but for rounding, which alone
   makes them meet. With a coarser test of the rank they count as parallel. If they then provably exclude each other:
   INFEASIBLE or RELAXED. Else `state`, and work->y stays. */
FN int exclude_far_point(const CaffnetBatch *batch, int64_t b, Work *work, int state, double size, CaffnetProof *proof) {
    double rank = work->t.rank;
    if (state == CAFFNET_INFEASIBLE || state == CAFFNET_RELAXED || is_direct(&work->rows) || work->white) return state;
    if (!(largest(work->y, outputs_of(&work->rows)) * work->t.empty > size) || !(rank * rank < work->t.delicate)) return state;
    keep_answer(work);
    (void)load_sample(batch, b, work); /* approach has moved f and g */
    set_rank(work, sqrt(work->t.delicate));
    int empty = least_violation(work, (int)batch->strict, proof);
    set_rank(work, rank);
    if (empty == CAFFNET_INFEASIBLE || empty == CAFFNET_RELAXED) return empty;
    (void)load_sample(batch, b, work);
    restore_answer(work);
    return state;
}

/* Answer the sample without its soft rows: RELAXED, or INFEASIBLE; WITHIN_TOL if the hard rows do not hold and there is no
   proof of a conflict. */
FN int ignore_soft_rows(const CaffnetBatch *batch, int64_t b, Work *work, CaffnetProof *proof) {
    const char *soft = work->soft;
    int state = CONFLICT;
    work->soft_rows = ARE_IGNORED;
    (void)load_sample(batch, b, work);
    double size = size_of_sample(work);
    forget_factors(work);
    if (!has_impossible_hard_row(work)) state = project(work, CAFFNET_ACTIVE, NULL);
    work->soft = NULL; /* there are only hard rows */
    if (state < 0) state = approach(work, (int)batch->strict, proof);
    work->soft = soft;
    state = exclude_far_point(batch, b, work, state, size, proof);
    if (state != CAFFNET_INFEASIBLE && !is_representable(work)) state = into_range(work, proof);
    if (state == CAFFNET_INFEASIBLE) return state;
    choose_yielding(work, SOFT_ROWS);
    return hard_rows_hold(work) ? CAFFNET_RELAXED : CAFFNET_WITHIN_TOL;
}

/* Answer a sample again if its hard rows do not hold, scaled by them: a soft row with a huge bound may have cost them their
   digits. If that does not help, the soft rows are ignored. Else `state`, and work->y stays. */
FN int rescale_to_hard_rows(const CaffnetBatch *batch, int64_t b, Work *work, int state, CaffnetProof *proof) {
    int doubtful = state == CAFFNET_RELAXED ? work->rows.shift != 0 || !hard_rows_hold(work)
                                            : state == CAFFNET_WITHIN_TOL && work->soft && !rows_hold(work);
    if (!doubtful) return state;
    work->soft_rows = DO_NOT_SCALE;
    (void)load_sample(batch, b, work);
    state = approach(work, (int)batch->strict, proof);
    int settled = state == CAFFNET_INFEASIBLE || (state == CAFFNET_RELAXED && project_on_hard_rows(work));
    restore_bounds(work);
    if (!settled) state = ignore_soft_rows(batch, b, work, proof);
    work->soft_rows = COUNT;
    return state;
}
