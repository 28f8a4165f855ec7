/* Sets without a point: the answer of least violation. Soft rows give way first; hard rows only if they exclude each other.

     y <= 0 and y >= 1                     both rows give way by 1/2, and their multipliers prove it: give_way
     y <= 0 and y >= 1, soft               y <= 0 holds, the other gives way by 1: give_way, then project_on_hard_rows
     y + 0.3 z = 0.1, 3 y = 0.3, 0.9 z = 0 in float32
                                           the numbers miss each other by rounding, so each row gives way by its own:
                                           give_way_by_rounding
     y = 0.3, 3 y = 0.9, y >= 1 soft, in float32
                                           the hard rows exclude each other, but by rounding only: they are relaxed by it,
                                           and the soft row gives way beside them: least_violation */
#include "internal.h"

/* The largest number of f, f + w and y. */
FN double size_of_point(const Work *work) {
    Index n = outputs_of(&work->rows);
    return larger(larger(largest(work->f, n), largest(work->g, n)), largest(work->y, n));
}

/* Whether every row holds at work->y up to rounding, soft ones too. */
FN int rows_hold(const Work *work) {
    return accepts(&work->rows, work->y, largest(work->y, outputs_of(&work->rows)));
}

/* The same, and bounds of single outputs exactly. */
FN int holds_firmly(const Work *work) {
    return check(&work->rows, work->y, largest(work->y, outputs_of(&work->rows)), work->face.held, 1) != REJECTED;
}

/* Prove with the conflict in work->conflict that no point of a reasonable size satisfies the rows. */
FN int proven_empty(const Work *work, CaffnetProof *proof) {
    *proof = prove(work);
    return proof->gap < 0.0 && proof->radius * work->t.empty > size_of_point(work);
}

/* How far the worst hard row is exceeded at y; 0 if none is. */
FN double hard_excess(const Work *work, const double *y) {
    double worst = 0.0;
    for (Index i = 0; i < rows_of(&work->rows); i++)
        if (!is_soft(work, i)) worst = larger(worst, excess_of(&work->rows, i, value_of(&work->rows, i, y)));
    return worst;
}

/* Reduce what work->y exceeds of its hard rows to rounding. One row of each conflict, the closing row (soft.c), is not in the
   factors of the face, so y may be slightly off it. A step is kept only if the relaxed soft rows still hold. */
FN void refine_on_hard_rows(Work *work) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    Index n = outputs_of(s);
    double *trial = work->spare, worst = hard_excess(work, work->y), size = larger(largest(work->g, n), largest(work->y, n));
    if (worst == 0.0) return;
    for (Index i = 0; i < rows_of(s); i++) {
        work->kept[i] = face->held[i];
        work->seed[i] = is_soft(work, i) ? 0 : face->held[i];
    }
    rebuild_face(work, work->seed);
    copy(trial, work->y, n);
    for (int again = 0; again < 3 && worst > 0.0; again++) {
        slide_finely(s, face, trial);
        round_within_bounds(work, trial);
        double now = hard_excess(work, trial);
        if (!(now < worst) || !accepts(s, trial, size)) break;
        copy(work->y, trial, n);
        worst = now;
    }
    mark_rows(work, work->kept);
}

/* Whether the hard rows accept work->y. */
FN int hard_rows_hold(Work *work) {
    for (Index i = 0; i < rows_of(&work->rows); i++) work->give[i] = 0.0;
    relax_soft_rows(work, 1);
    int hold = rows_hold(work);
    restore_bounds(work);
    return hold;
}

/* Project work->y on the hard rows alone, if they do not accept it; whether they do then. */
FN int project_on_hard_rows(Work *work) {
    Index n = outputs_of(&work->rows);
    double *goal = work->other;
    relax_soft_rows(work, 1);
    for (int again = 0; again < 40; again++) { /* a far goal leaves an error of eps |goal| */
        if (holds_firmly(work)) return 1;
        copy(goal, work->y, n);
        restart(work);
        if (dual(work, goal, work->y, NULL, work->t.search, work->t.feasibility) < 0 ||
            settle_point(work, goal, largest(goal, n)) == REJECTED) break;
    }
    round_within_bounds(work, work->y);
    return rows_hold(work); /* where bounds cross by rounding */
}

/* All rows were relaxed by the amount that one of them needed. Look for a point that exceeds rows by their own rounding only,
   and no bound of an output: the point within these bounds, or the one on the same rows, not relaxed. REJECTED: y stays. */
FN int return_to_bounds(Work *work) {
    Index n = outputs_of(&work->rows), m = rows_of(&work->rows);
    double *point = work->other; /* not `ordinary`, which has the answer that this one is compared with */
    copy(point, work->y, n);
    for (Index i = 0; i < m; i++) work->kept[i] = work->face.held[i];
    round_within_bounds(work, work->y);
    if (holds_firmly(work)) return CAFFNET_WITHIN_TOL;
    rebuild_face(work, work->kept);
    int state = settle_point(work, work->g, 0.0);
    if (state != REJECTED) return state;
    copy(work->y, point, n);
    mark_rows(work, work->kept);
    return state;
}

/* Find the point of least violation of the rows that choose_yielding has chosen, into work->y, its rows into face.held.
   Returns INFEASIBLE, with multipliers in work->conflict; WITHIN_TOL if rounding explains the violation or the proof does
   not hold; for SOFT_ROWS also CONFLICT, if the hard rows exclude each other. */
FN int give_way(Work *work, int which, int strict, CaffnetProof *proof) {
    Rows *s = &work->rows;
    Face *face = &work->face;
    Index n = outputs_of(s), row = impossible_row(work);
    int never = row >= 0 && excludes_all(work, row);
    double relax = 0.0, miss = 0.0;
    if (row >= 0) {
        double low = work->low[row], high = work->high[row];
        miss = low > high ? high - low : low > 0.0 ? -low : high;
    }
    for (Index i = 0; i < rows_of(s); i++) {
        if (which != ALL_ROWS && work->unit[i] == 0.0) continue;
        if (work->low[i] == HUGE_VAL || work->high[i] == -HUGE_VAL || (which == SOFT_ROWS && excludes_all(work, i))) {
            work->low[i] = -HUGE_VAL; /* no point is nearer to this row than another */
            work->high[i] = HUGE_VAL;
            work->hopeless = work->hopeless || is_soft(work, i);
        } else if (work->low[i] > work->high[i])
            relax = larger(relax, (work->low[i] - work->high[i]) / (2.0 * work->unit[i]));
    }
    double least = relax;
    Index k = climb(work, work->g, &relax, NULL);
    if (k == CONFLICT && which == SOFT_ROWS) {
        restore_bounds(work);
        return CONFLICT;
    }
    int proves = row < 0 || relax > least, empty = proves && proven_empty(work, proof);
    if (proves && !empty && work->reach > 0.0) {
        exchange_conflicts(work);
        empty = proven_empty(work, proof);
        if (which == SOFT_ROWS) exchange_conflicts(work); /* the last conflict settles the levels */
    }
    if (which == SOFT_ROWS && k >= 0) k = settle_levels(work, relax, k);
    int found = k >= 0 && settle_point(work, work->g, largest(work->g, n)) != REJECTED;
    if (!found && which == SOFT_ROWS) (void)project_on_hard_rows(work);
    else if (!found) round_within_bounds(work, work->y);
    else if (which == SOFT_ROWS) { /* accepted up to the rounding of g: a last step by that of y, on the same face */
        close_face(work);
        refine_on_hard_rows(work);
        for (Index i = 0; i < rows_of(s); i++) work->kept[i] = face->held[i];
        (void)project_on_hard_rows(work);
        mark_rows(work, work->kept);
    }
    work->relax = relax;
    relax_rows(work, 0.0);
    int state = never ? REJECTED : check(s, work->y, largest(work->y, n), face->held, 0);
    restore_bounds(work);
    if (!never && which == ALL_ROWS && (state == REJECTED || !holds_firmly(work))) {
        int nearer = return_to_bounds(work);
        state = nearer != REJECTED ? nearer : state;
    }
    if (!never) {
        if (state != REJECTED && !strict) return CAFFNET_WITHIN_TOL;
        if (empty) return CAFFNET_INFEASIBLE;
        if (row < 0) return CAFFNET_WITHIN_TOL;
    }
    proof->gap = miss;
    proof->radius = HUGE_VAL;
    for (Index i = 0; i < rows_of(s); i++) work->conflict[i] = 0.0; /* that row alone */
    work->conflict[row] = 1.0;
    return CAFFNET_INFEASIBLE;
}

/* How far row i may be exceeded at y, `all` the size of all numbers: by the rounding of its own, or of all. */
FN double room_in_row(const Work *work, Index i, double all, int own) {
    const Rows *s = &work->rows;
    double bound = bound_at(s, i, value_of(s, i, work->y));
    return work->t.feasibility * ((own ? size_at(s, i, work->y, all) : all) + bound) + work->t.underflow;
}

/* float32: whether work->y exceeds every row by no more than the rounding of the largest output. */
FN int misses_by_rounding(const Work *work) {
    const Rows *s = &work->rows;
    double all = 2.0 * largest(work->y, outputs_of(s));
    int small = work->single;
    for (Index i = 0; i < rows_of(s) && small; i++) {
        double excess = excess_of(s, i, value_of(s, i, work->y));
        small = excess <= 0.0 || (is_finite(excess) && excess <= room_in_row(work, i, all, 0));
    }
    return small;
}

/* The least violation is shared by all rows, also by those whose own numbers are too small to be rounded by as much. Look for a
   point where every row gives way in proportion to its own rounding, and bounds of one output do not; 0 if there is none. */
FN int give_way_by_rounding(Work *work) {
    Rows *s = &work->rows;
    Index n = outputs_of(s);
    double all = 2.0 * largest(work->y, n), relax = 0.0;
    for (Index i = 0; i < rows_of(s); i++) work->unit[i] = s->plain[i] >= 0 ? 0.0 : room_in_row(work, i, all, 1);
    if (climb(work, work->g, &relax, NULL) >= 0) (void)settle_point(work, work->g, largest(work->g, n));
    restore_bounds(work);
    round_within_bounds(work, work->y);
    return holds_firmly(work);
}

/* give_way, but where that is only rounding, the point whose rows are exceeded by their own rounding, WITHIN_TOL. */
FN int give_way_or_round(Work *work, int which, int strict, CaffnetProof *proof) {
    int state = give_way(work, which, strict, proof);
    if (strict || state == CONFLICT || !misses_by_rounding(work) || holds_firmly(work)) return state;
    if (give_way_by_rounding(work)) return CAFFNET_WITHIN_TOL;
    choose_yielding(work, which);
    return give_way(work, which, strict, proof); /* again, for its point and proof */
}

/* Put the point of least violation into work->y, its rows into face.held. RELAXED if soft rows give way. INFEASIBLE, with
   multipliers in work->conflict, if the hard rows exclude each other: then they give way, and the soft ones have no say.
   WITHIN_TOL where rounding explains the violation, or the proof does not hold. */
FN int least_violation(Work *work, int strict, CaffnetProof *proof) {
    int state = CONFLICT, never = work->hopeless;
    proof->gap = proof->radius = 0.0;
    choose_yielding(work, work->soft ? SOFT_ROWS : ALL_ROWS);
    if (!work->soft) return give_way_or_round(work, ALL_ROWS, strict, proof);
    for (Index i = 0; i < rows_of(&work->rows); i++) never = never || (is_soft(work, i) && excludes_all(work, i));
    if (!has_impossible_hard_row(work)) state = give_way_or_round(work, SOFT_ROWS, strict, proof);
    if (state == CONFLICT) {
        choose_yielding(work, HARD_ROWS);
        if (give_way(work, HARD_ROWS, strict, proof) == CAFFNET_INFEASIBLE) return CAFFNET_INFEASIBLE;
        /* Hard rows exclude each other by rounding only: relax them by it. */
        double relax = work->relax, size = largest(work->g, outputs_of(&work->rows)) + largest(work->y, outputs_of(&work->rows));
        choose_yielding(work, SOFT_ROWS);
        for (Index i = 0; i < rows_of(&work->rows); i++)
            if (!is_soft(work, i))
                work->give[i] = 2.0 * relax * users_unit(work, i) + work->t.search * size + work->t.underflow;
        state = give_way(work, SOFT_ROWS, strict, proof);
        if (state == CONFLICT) state = CAFFNET_WITHIN_TOL;
        if (never) state = CAFFNET_INFEASIBLE; /* whatever the point */
        choose_yielding(work, SOFT_ROWS);
        if (!project_on_hard_rows(work)) state = CAFFNET_WITHIN_TOL; /* the conflict was more than rounding */
        restore_bounds(work);
    }
    return state == CAFFNET_INFEASIBLE ? CAFFNET_RELAXED : state;
}
