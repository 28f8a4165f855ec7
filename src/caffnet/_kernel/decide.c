/* One sample, from its data to a verified answer.

   accept      f itself, if it satisfies the rows up to rounding: returned bit for bit
   search      the sub-constraint of every other sample
   settle      the closed form on it, refined, within plain bounds, in the user's type, and verified row by row
   retry       a near miss is projected again; rows that exclude each other by rounding are taken as they are meant
   strict      aim inside until every inequality holds in exact arithmetic
   infeasible  least violation; INFEASIBLE and RELAXED only with a proof that holds in exact arithmetic */
#include "internal.h"

/* The point in the user's numbers: what will be returned. Beyond the largest of them it stays as it is. */
FN void round_point(const Work *work, double *y) {
    Index shift = work->rows.shift;
    for (Index j = 0; j < work->rows.n && (work->single || shift != 0); j++) {
        double number = rounded(times_power(y[j], -shift), work->single);
        if (is_finite(number)) y[j] = times_power(number, shift);
    }
}

/* Move y onto the rows of the face with residuals of twice the digits, which a nearly dependent face needs. */
FN void slide_finely(const Rows *s, const Face *face, double *y) {
    Index n = s->n;
    if (s->direct.family != ANY) {
        direct_slide(s, face->held, y);
        return;
    }
    for (Index j = 0; j < face->k; j++) {
        Index i = face->rows[j];
        const double *a = s->A + (size_t)i * (size_t)n;
        Pair sum = {face->sides[j] > 0 ? -s->high[i] : -s->low[i], 0.0};
        for (Index c = 0; c < n; c++)
            if (a[c] != 0.0) sum = pair_add_product(sum, a[c], y[c]);
        move(face, j, (sum.high + sum.low) * face->inverse[j], y, n);
    }
}

/* Verify the closed form on the face, which is in work->y, and refine it where that is needed; its worth, or REJECTED.
   `size` counts as the size of the numbers that it was computed from; 0 for that of the point itself, which makes an
   answer its own projection. */
FN int verify_point(Work *work, const double *g, double size) {
    Rows *s = &work->rows;
    Face *face = &work->face;
    Index n = s->n;
    double *y = work->y, *trial = work->spare;
    for (int again = 0; again < 40; again++) {
        /* A vertex at the origin comes out as rounding noise, which no relative tolerance accepts. */
        int noise = largest(y, n) <= (again > 0 ? work->t.feasibility : work->t.search) * largest(g, n);
        for (Index j = 0; j < face->k && noise; j++) { /* if the rows of the face go through the origin */
            Index i = face->rows[j];
            noise = fabs(face->sides[j] > 0 ? s->high[i] : s->low[i]) <= work->t.underflow;
        }
        for (int zero = noise; zero >= 0; zero--) {
            for (Index j = 0; j < n; j++) trial[j] = zero && y[j] != g[j] ? 0.0 : y[j];
            clamp(s, trial);
            round_point(work, trial);
            int state = check(s, trial, larger(size, largest(trial, n)), face->held, 1, &work->t);
            if (state == REJECTED) continue;
            copy(y, trial, n);
            return state;
        }
        slide_finely(s, face, y);
    }
    return REJECTED;
}

/* The same for a face whose closed form is not known yet. */
FN int settle_point(Work *work, const double *g, double size) {
    flat_point(&work->rows, &work->face, g, work->y);
    return verify_point(work, g, size);
}

/* Whether the face has rows that are nearly dependent: multipliers have few digits then. */
FN int is_delicate(const Rows *s, const Face *face, double rank) {
    if (s->direct.family != ANY) return 0;
    for (Index j = 0; j < face->k; j++) {
        double left = face->R[(size_t)j * (size_t)s->n + (size_t)j];
        if (left * left < rank * s->squared[face->rows[j]]) return 1;
    }
    return 0;
}

/* Prove that y is the projection of g, up to t.optimal: for multipliers of the right sign the dual function
   lambda (A g - b) - |A' lambda|^2 / 2 is at most half the squared distance of g to the set. */
FN int is_nearest(Work *work, const double *g) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    Index n = s->n, k = face->k;
    double *lambda = face->multiplier, *y = work->y, bound = 0.0;
    multipliers(s, face, 0, g, y);
    for (Index j = 0; j < k; j++) lambda[j] = (j < face->base ? lambda[j] : larger(lambda[j], 0.0)) * face->sides[j];
    for (Index c = 0; c < n; c++) {
        Pair sum = {0.0, 0.0};
        for (Index j = 0; j < k; j++)
            sum = pair_add_product(sum, lambda[j], s->A[(size_t)face->rows[j] * (size_t)n + (size_t)c]);
        bound -= 0.5 * (sum.high + sum.low) * (sum.high + sum.low);
    }
    Pair sum = {0.0, 0.0};
    for (Index j = 0; j < k; j++) {
        Index i = face->rows[j];
        Pair value = {face->sides[j] > 0 ? -s->high[i] : -s->low[i], 0.0};
        for (Index c = 0; c < n; c++) value = pair_add_product(value, s->A[(size_t)i * (size_t)n + (size_t)c], g[c]);
        sum = pair_add_product(pair_add_product(sum, lambda[j], value.high), lambda[j], value.low);
    }
    bound = sqrt(larger(2.0 * (bound + sum.high + sum.low), 0.0));
    double slack = work->t.feasibility * (largest(y, n) + largest(g, n));
    return distance(y, g, n, 2.0) <= bound * (1.0 + work->t.optimal) + slack;
}

/* Find the sub-constraint of the answer; the number of its rows, CONFLICT or NOT_FOUND. */
FN Index find_face(Work *work, int search, const int8_t *start) {
    Index n = work->rows.n, k = NOT_FOUND;
    int moved = 0;
    for (Index j = 0; j < n; j++) moved = moved || work->f[j] != work->g[j];
    k = nearest_face(work, work->g, work->y, start);
    if (k < 0) return k; /* no point at all */
    if (!moved && (search == CAFFNET_ACTIVE || (search != CAFFNET_LITE && work->norm == 2.0))) return k;
    if (search == CAFFNET_ACTIVE) k = nearer_face(work);
    else {
        for (Index i = 0; i < work->rows.m; i++) work->seed[i] = work->face.held[i];
        k = enumerate(work, k, search == CAFFNET_LITE);
        if (k < 0) { /* no candidate passes the test of the walk: the projection does */
            rebuild_face(work, work->seed);
            k = work->face.k;
        }
    }
    work->flat = 0;
    return k;
}

/* Search and settle; PROJECTED, WITHIN_TOL, REJECTED, or CONFLICT. */
FN int project(Work *work, int search, const int8_t *start) {
    Rows *s = &work->rows;
    Index n = s->n;
    int state = REJECTED;
    if (s->boxed && search != CAFFNET_LITE && work->norm < 1e300) {
        if (!box_point(work, search)) return CONFLICT;
        round_point(work, work->y);
        state = check(s, work->y, largest(work->y, n), work->face.held, 1, &work->t);
        work->ready = 0; /* the marks of the face are not those of its factors */
        return state == CAFFNET_INSIDE ? CAFFNET_PROJECTED : state;
    }
    Index k = find_face(work, search, start);
    if (k == CONFLICT) return CONFLICT;
    if (k < 0) return REJECTED;
    state = work->flat ? verify_point(work, work->g, 0.0) : settle_point(work, work->g, 0.0);
    for (int again = 0; again < 20 && state == REJECTED; again++) {
        /* A far g leaves an error of eps |g| along the flat, which may carry y over another row: project the near miss. */
        double *goal = work->other;
        copy(goal, work->y, n);
        if (nearest_face(work, goal, work->y, NULL) < 0) {
            copy(work->y, goal, n);
            break;
        }
        state = settle_point(work, goal, 0.0);
    }
    int euclidean = work->norm == 2.0 && search != CAFFNET_LITE;
    for (Index j = 0; j < n && euclidean; j++) euclidean = work->f[j] == work->g[j];
    if (euclidean && state != REJECTED && is_delicate(s, &work->face, work->t.delicate) && !is_nearest(work, work->g))
        state = CAFFNET_WITHIN_TOL;
    return state == CAFFNET_INSIDE ? CAFFNET_PROJECTED : state;
}

FN void restore_bounds(Work *work) {
    copy(work->rows.low, work->low, work->rows.m);
    copy(work->rows.high, work->high, work->rows.m);
    mark_equal(&work->rows);
}

/* Keep the point and its rows, while another one is looked for. */
FN void keep_answer(Work *work) {
    copy(work->ordinary, work->y, work->rows.n);
    for (Index i = 0; i < work->rows.m; i++) work->stood[i] = work->face.held[i];
}

FN void restore_answer(Work *work) {
    copy(work->y, work->ordinary, work->rows.n);
    for (Index i = 0; i < work->rows.m; i++) work->face.held[i] = work->stood[i];
    work->ready = 0; /* the marks of the face are not those of its factors */
}

/* Prove with the conflict in work->conflict that no point of a reasonable size satisfies the rows. */
FN int proven_empty(const Work *work, CaffnetProof *proof) {
    Index n = work->rows.n;
    double size = larger(larger(largest(work->f, n), largest(work->g, n)), largest(work->y, n));
    *proof = prove(work);
    return proof->gap < 0.0 && proof->radius * work->t.empty > size;
}

/* How far the worst hard row is exceeded at y; 0 if none is. */
FN double hard_excess(const Work *work, const double *y) {
    double worst = 0.0;
    for (Index i = 0; i < work->rows.m; i++)
        if (!is_soft(work, i)) worst = larger(worst, excess_of(&work->rows, i, value_of(&work->rows, i, y)));
    return worst;
}

/* Move work->y onto all hard rows that it stands on, as near as rounding lets it: the closing row of the level (soft.c) is
   not in the factors of the face. Soft rows must accept it at that level. */
FN void lean_on_hard_rows(Work *work) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    Index n = s->n;
    double *trial = work->spare, worst = hard_excess(work, work->y), size = larger(largest(work->g, n), largest(work->y, n));
    if (worst == 0.0) return;
    for (Index i = 0; i < s->m; i++) {
        work->kept[i] = face->held[i];
        work->seed[i] = is_soft(work, i) ? 0 : face->held[i];
    }
    rebuild_face(work, work->seed);
    copy(trial, work->y, n);
    for (int again = 0; again < 3 && worst > 0.0; again++) {
        slide_finely(s, face, trial);
        clamp(s, trial);
        round_point(work, trial);
        double now = hard_excess(work, trial);
        if (!(now < worst) || check(s, trial, size, NULL, 0, &work->t) == REJECTED) break;
        copy(work->y, trial, n);
        worst = now;
    }
    for (Index i = 0; i < s->m; i++) face->held[i] = work->kept[i];
    work->ready = 0; /* the marks of the face are not those of its factors */
}

/* Leave only the hard rows, until restore_bounds. */
FN void free_soft_rows(Work *work) {
    for (Index i = 0; i < work->rows.m; i++)
        if (is_soft(work, i)) work->give[i] = HUGE_VAL;
    relax_rows(work, 0.0);
    for (Index i = 0; i < work->rows.m; i++)
        if (is_soft(work, i)) work->give[i] = 0.0;
}

/* Whether the hard rows accept work->y. */
FN int hard_rows_hold(Work *work) {
    for (Index i = 0; i < work->rows.m; i++) work->give[i] = 0.0;
    free_soft_rows(work);
    int state = check(&work->rows, work->y, largest(work->y, work->rows.n), NULL, 0, &work->t);
    restore_bounds(work);
    return state != REJECTED;
}

/* Project work->y on the hard rows alone, if they do not accept it; whether they do then. */
FN int stay_on_hard_rows(Work *work) {
    Index n = work->rows.n;
    double *goal = work->other;
    free_soft_rows(work);
    for (int again = 0; again < 40; again++) { /* a far goal leaves an error of eps |goal| */
        if (check(&work->rows, work->y, largest(work->y, n), work->face.held, 1, &work->t) != REJECTED) return 1;
        copy(goal, work->y, n);
        restart(work);
        if (dual(work, goal, work->y, NULL, work->t.search, work->t.feasibility) < 0 ||
            settle_point(work, goal, largest(goal, n)) == REJECTED) break;
    }
    clamp(&work->rows, work->y);
    round_point(work, work->y);
    return check(&work->rows, work->y, largest(work->y, n), NULL, 0, &work->t) != REJECTED; /* bounds that cross by rounding */
}

/* Put the point of least violation of the rows that give way, as choose_yielding has set them, into work->y, its rows
   into face.held. INFEASIBLE, with multipliers in work->conflict; WITHIN_TOL where rounding explains the violation, or
   the proof does not hold; of SOFT_ROWS also CONFLICT, where the hard rows exclude each other. */
FN int give_way(Work *work, int which, int strict, CaffnetProof *proof) {
    Rows *s = &work->rows;
    Face *face = &work->face;
    Index n = s->n, row = impossible_row(work);
    int never = row >= 0 && excludes_all(work, row);
    double relax = 0.0, miss = 0.0;
    if (row >= 0) {
        double low = work->low[row], high = work->high[row];
        miss = low > high ? high - low : low > 0.0 ? -low : high;
    }
    for (Index i = 0; i < s->m; i++) {
        if (which != ALL_ROWS && work->unit[i] == 0.0) continue;
        if (work->low[i] == HUGE_VAL || work->high[i] == -HUGE_VAL || (which == SOFT_ROWS && excludes_all(work, i))) {
            work->low[i] = -HUGE_VAL; /* no point is nearer to this row than another */
            work->high[i] = HUGE_VAL;
        } else if (work->low[i] > work->high[i])
            relax = larger(relax, (work->low[i] - work->high[i]) / (2.0 * work->unit[i]));
    }
    double least = relax;
    Index k = climb(work, work->g, work->y, &relax, NULL);
    if (k == CONFLICT && which == SOFT_ROWS) {
        restore_bounds(work);
        return CONFLICT;
    }
    int empty = (row < 0 || relax > least) && proven_empty(work, proof);
    if (which == SOFT_ROWS && k >= 0) k = settle_levels(work, relax, k);
    int found = k >= 0 && settle_point(work, work->g, largest(work->g, n)) != REJECTED;
    if (!found && which == SOFT_ROWS) (void)stay_on_hard_rows(work);
    else if (!found) {
        clamp(s, work->y);
        round_point(work, work->y);
    } else if (which == SOFT_ROWS) { /* accepted up to the rounding of g: a last step by that of y, on the same face */
        close_face(work);
        lean_on_hard_rows(work);
        for (Index i = 0; i < s->m; i++) work->kept[i] = face->held[i];
        (void)stay_on_hard_rows(work);
        for (Index i = 0; i < s->m; i++) face->held[i] = work->kept[i];
        work->ready = 0;
    }
    work->relax = relax;
    relax_rows(work, 0.0);
    int state = never ? REJECTED : check(s, work->y, largest(work->y, n), face->held, 0, &work->t);
    restore_bounds(work);
    if (!never) {
        if (state != REJECTED && !strict) return CAFFNET_WITHIN_TOL;
        if (empty) return CAFFNET_INFEASIBLE;
        if (row < 0) return CAFFNET_WITHIN_TOL;
    }
    proof->gap = miss;
    proof->radius = HUGE_VAL;
    for (Index i = 0; i < s->m; i++) work->conflict[i] = 0.0; /* that row alone */
    work->conflict[row] = 1.0;
    return CAFFNET_INFEASIBLE;
}

/* Put the point of least violation into work->y, its rows into face.held. RELAXED if soft rows give way. INFEASIBLE, with
   multipliers in work->conflict, if the hard rows exclude each other: then they give way, and the soft ones have no say.
   WITHIN_TOL where rounding explains the violation, or the proof does not hold. */
FN int least_violation(Work *work, int strict, CaffnetProof *proof) {
    int state = CONFLICT, never = 0;
    choose_yielding(work, work->soft ? SOFT_ROWS : ALL_ROWS);
    if (!work->soft) return give_way(work, ALL_ROWS, strict, proof);
    for (Index i = 0; i < work->rows.m; i++) never = never || (is_soft(work, i) && excludes_all(work, i));
    if (!has_impossible_hard_row(work)) state = give_way(work, SOFT_ROWS, strict, proof);
    if (state == CONFLICT) {
        choose_yielding(work, HARD_ROWS);
        if (give_way(work, HARD_ROWS, strict, proof) == CAFFNET_INFEASIBLE) return CAFFNET_INFEASIBLE;
        /* Hard rows exclude each other by rounding only: give them that much. */
        double relax = work->relax, size = largest(work->g, work->rows.n) + largest(work->y, work->rows.n);
        choose_yielding(work, SOFT_ROWS);
        for (Index i = 0; i < work->rows.m; i++)
            if (!is_soft(work, i))
                work->give[i] = 2.0 * relax * users_unit(work, i) + work->t.search * size + work->t.underflow;
        state = give_way(work, SOFT_ROWS, strict, proof);
        if (state == CONFLICT) state = CAFFNET_WITHIN_TOL;
        if (never) state = CAFFNET_INFEASIBLE; /* whatever the point */
        choose_yielding(work, SOFT_ROWS);
        if (!stay_on_hard_rows(work)) state = CAFFNET_WITHIN_TOL; /* it was more than rounding */
        restore_bounds(work);
    }
    return state == CAFFNET_INFEASIBLE ? CAFFNET_RELAXED : state;
}

/* Whether a set that no point found so far satisfies exactly is empty in exact arithmetic. */
FN int exactly_empty(Work *work, CaffnetProof *proof) {
    restart(work);
    if (dual(work, work->g, work->spare, work->stood, 0.0, -1.0) != CONFLICT) return 0;
    collect_conflict(work);
    return proven_empty(work, proof);
}

/* An entry of y in the user's units. */
FN double users_number(const Work *work, Index j) {
    return work->rows.shift ? ldexp(work->y[j], -work->rows.shift) : work->y[j];
}

FN double largest_number(const Work *work) { return work->single ? 0x1.fffffep+127 : 1.7976931348623157e308; }

/* Whether the point can be written in the user's number type. */
FN int is_representable(const Work *work) {
    for (Index j = 0; j < work->rows.n; j++)
        if (!(fabs(users_number(work, j)) <= largest_number(work))) return 0;
    return 1;
}

/* Answer a sample that no search could answer: INFEASIBLE or RELAXED with a proof, else the point of least violation.
   Where that is not yet its own projection, it is projected again, until it is. */
FN int approach(Work *work, int strict, CaffnetProof *proof) {
    const Rows *s = &work->rows;
    int state = least_violation(work, strict, proof);
    if (state == CAFFNET_WITHIN_TOL && work->t.rank > work->t.fine_rank &&
        check(s, work->y, largest(work->y, s->n), NULL, 0, &work->t) == REJECTED) {
        /* Rows that seem parallel in the digits of float32 meet far away, or exclude each other there. */
        double rank = work->t.rank;
        keep_answer(work);
        work->t.rank = work->t.fine_rank;
        work->ready = 0;
        state = project(work, CAFFNET_ACTIVE, NULL);
        int far = state != CONFLICT && state != REJECTED;
        state = far ? CAFFNET_WITHIN_TOL : least_violation(work, strict, proof);
        if (!far && state == CAFFNET_WITHIN_TOL && proven_empty(work, proof)) state = meaning_of_conflict(work);
        work->t.rank = rank;
        work->ready = 0;
        if (!far && state != CAFFNET_RELAXED) restore_answer(work);
        if (far || state != CAFFNET_WITHIN_TOL) return state;
    }
    for (int again = 0; again < 8 && state == CAFFNET_WITHIN_TOL; again++) {
        if (check(s, work->y, largest(work->y, s->n), NULL, 0, &work->t) != REJECTED) break;
        copy(work->f, work->y, s->n);
        copy(work->g, work->y, s->n);
        state = project(work, CAFFNET_ACTIVE, NULL);
        if (state == CONFLICT || state == REJECTED) state = least_violation(work, strict, proof);
    }
    return state == CAFFNET_PROJECTED ? CAFFNET_WITHIN_TOL : state;
}

/* Bring a RELAXED answer that is beyond the largest number to the hard rows within the range of numbers; 0 if not found. */
FN int relax_into_range(Work *work) {
    int hold = 1;
    double limit = times_power(largest_number(work), work->rows.shift);
    for (int again = 0; again < 200 && !is_representable(work); again++) {
        for (Index j = 0; j < work->rows.n; j++) work->y[j] = larger(smaller(work->y[j], limit), -limit);
        choose_yielding(work, SOFT_ROWS);
        hold = stay_on_hard_rows(work);
        restore_bounds(work);
    }
    return hold && is_representable(work);
}

/* Answer a sample whose nearest point is beyond the largest number: alternate between the numbers and the set. That
   ends at a point of both, or at two points that separate them: with the multipliers of y, every point y' of the set
   satisfies (g - y) y' <= (g - y) y, and INFEASIBLE is proven once no number is large enough for that. */
FN int into_range(Work *work, CaffnetProof *proof) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    double limit = largest_number(work), scaled = times_power(limit, s->shift);
    for (int again = 0; again < 200 && !is_representable(work); again++) {
        for (Index i = 0; i < s->m; i++) work->conflict[i] = work->fine[i] = 0.0;
        for (Index i = 0; s->boxed && i < s->m; i++) {
            Index j = s->plain[i];
            if (face->held[i] != 0) work->conflict[i] = plain_sign(s, i) * (work->g[j] - work->y[j]);
        }
        if (!s->boxed) multipliers(s, face, 0, work->g, work->y);
        for (Index j = 0; !s->boxed && j < face->k; j++)
            work->conflict[face->rows[j]] = face->multiplier[j] * face->sides[j];
        *proof = prove(work);
        if (proof->gap < 0.0 && times_power(proof->radius, -s->shift) > limit) return meaning_of_conflict(work);
        for (Index j = 0; j < s->n; j++) work->f[j] = work->g[j] = larger(smaller(work->y[j], scaled), -scaled);
        int state = project(work, CAFFNET_ACTIVE, NULL);
        if (state == CONFLICT || state == REJECTED) state = approach(work, 0, proof);
        if (state == CAFFNET_INFEASIBLE || state == CAFFNET_RELAXED) return state;
    }
    return CAFFNET_WITHIN_TOL;
}

FN void write_value(const CaffnetBatch *batch, int64_t b, const Work *work) {
    double limit = largest_number(work);
    for (Index j = 0; j < work->rows.n; j++)
        store(batch->value, b * batch->n + j, larger(smaller(users_number(work, j), limit), -limit), work->single);
}

/* Whether the point in work->y, as it will be returned, satisfies the rows of the sample: up to rounding, and every
   inequality exactly. */
FN int strictly_inside(const CaffnetBatch *batch, int64_t b, Work *work, double size) {
    if (!is_representable(work)) return 0;
    write_value(batch, b, work);
    if (!holds_exactly(batch, b, batch->value, b * batch->n, 0)) return 0;
    restore_bounds(work);
    return check(&work->rows, work->y, size, work->face.held, 1, &work->t) != REJECTED;
}

/* Aim inside by a few units in the last place until every inequality holds exactly: first on the face of the answer,
   then with a search on the rows drawn in, as far as they have a common point. 0 where that does not succeed: then
   work->y and face.held are those of the ordinary answer again. */
FN int step_inside(const CaffnetBatch *batch, int64_t b, Work *work, int search) {
    Rows *s = &work->rows;
    double size = largest(work->y, s->n), reach = larger(size, largest(work->f, s->n));
    keep_answer(work);
    for (Index i = 0; i < s->m; i++) {
        double bound = bound_at(s, i, value_of(s, i, work->y));
        int exact = s->equal[i] || s->squared[i] == 0.0 || s->plain[i] >= 0; /* no inside, or no rounding */
        work->unit[i] = exact || !is_finite(bound) ? 0.0 : work->t.margin * (size + bound) + work->t.underflow;
        work->give[i] = 0.0;
    }
    for (int factor = 1; factor <= 64 && !s->boxed; factor *= 4) {
        double relax = -(double)factor;
        if (factor > 1) {
            restore_bounds(work);
            rebuild_face(work, work->stood);
        }
        relax_rows(work, relax);
        if (settle_point(work, work->g, size) != REJECTED && strictly_inside(batch, b, work, reach)) return 1;
        if (climb(work, work->g, work->y, &relax, work->stood) < 0 || relax > 0.0) break;
        int state = project(work, search, work->stood);
        if (state != REJECTED && state != CONFLICT && strictly_inside(batch, b, work, reach)) return 1;
    }
    restore_bounds(work);
    restore_answer(work);
    return 0;
}

/* Move a RELAXED answer by a few units in the last place until every hard inequality holds exactly: these are drawn in,
   and the soft rows give way by what that takes. Where that does not succeed, the answer stays. */
FN void keep_hard_rows(const CaffnetBatch *batch, int64_t b, Work *work) {
    Rows *s = &work->rows;
    double size = larger(largest(work->y, s->n), largest(work->g, s->n));
    write_value(batch, b, work);
    if (holds_exactly(batch, b, batch->value, b * batch->n, 1)) return;
    keep_answer(work);
    for (int step = 0; step < 8; step++) { /* from step 4 on without the soft rows: then the answer itself is moved */
        int factor = 1 << 2 * (step % 4), alone = step >= 4;
        double relax = 0.0;
        const double *goal = alone ? work->ordinary : work->g;
        restore_bounds(work);
        for (Index i = 0; i < s->m; i++) {
            double bound = bound_at(s, i, value_of(s, i, work->ordinary));
            int exact = s->equal[i] || s->squared[i] == 0.0 || s->plain[i] >= 0, soft = is_soft(work, i);
            double inside = exact || !is_finite(bound) ? 0.0 : -factor * (work->t.margin * (size + bound) + work->t.underflow);
            work->unit[i] = soft && !alone ? users_unit(work, i) : 0.0;
            work->give[i] = !soft ? inside : alone ? HUGE_VAL : work->level[i];
        }
        if (climb(work, goal, work->y, &relax, work->stood) < 0) continue;
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

FN void write_answer(const CaffnetBatch *batch, int64_t b, const Work *work, int status) {
    memcpy(batch->active + b * batch->m, work->face.held, (size_t)batch->m);
    batch->status[b] = (int8_t)status;
    write_value(batch, b, work);
}

/* The answer f, bit for bit. */
FN int write_itself(const CaffnetBatch *batch, int64_t b, int status) {
    int single = (int)batch->single;
    for (int64_t i = 0; i < batch->m; i++) batch->active[b * batch->m + i] = 0;
    for (int64_t j = 0; j < batch->n; j++)
        store(batch->value, b * batch->n + j, load(batch->f, b * batch->f_step + j, single), single);
    batch->status[b] = (int8_t)status;
    return status;
}

FN void write_nothing(const CaffnetBatch *batch, int64_t b, int status) {
    for (int64_t i = 0; i < batch->m; i++) batch->active[b * batch->m + i] = 0;
    for (int64_t j = 0; j < batch->n; j++) store(batch->value, b * batch->n + j, NAN, (int)batch->single);
    batch->status[b] = (int8_t)status;
}

/* Answer a compromise of dependent rows where it is nearer; 0 where there is none. */
FN int try_compromise(const CaffnetBatch *batch, int64_t b, Work *work) {
    Rows *s = &work->rows;
    Index n = s->n;
    int32_t *choice = batch->choice + b * n;
    if (!nearer_compromise(work, choice)) {
        for (Index j = 0; j < n; j++) choice[j] = 0;
        return 0;
    }
    double *ordinary = work->walk.g, *y = work->y;
    copy(ordinary, y, n);
    start_paper(work);
    (void)rebuild(work, choice, y);
    round_point(work, y);
    clamp(s, y);
    for (Index i = 0; i < s->m; i++) work->kept[i] = 0;
    for (Index j = 0; j < n && choice[j] != 0; j++) work->kept[choice_row(choice[j] - 1)] = 1;
    int state = check(s, y, largest(y, n), NULL, 1, &work->t);
    if (state == CAFFNET_WITHIN_TOL) { /* exceeded at a row of the choice: that is where it lies */
        state = CAFFNET_PROJECTED;
        for (Index i = 0; i < s->m; i++)
            if (!work->kept[i] && excess_of(s, i, value_of(s, i, y)) > 0.0) state = CAFFNET_WITHIN_TOL;
    } else if (state == CAFFNET_INSIDE) state = CAFFNET_PROJECTED;
    if (state != REJECTED) {
        write_value(batch, b, work);
        if (batch->strict && !holds_exactly(batch, b, batch->value, b * batch->n, 0)) state = REJECTED;
    }
    if (state == REJECTED) {
        for (Index j = 0; j < n; j++) choice[j] = 0;
        copy(y, ordinary, n);
        return 0;
    }
    for (Index i = 0; i < s->m; i++) batch->active[b * batch->m + i] = 0;
    batch->status[b] = (int8_t)state;
    return 1;
}

/* Whether the answer in work->y holds exactly (equalities up to rounding), or can be moved inside so that it does. */
FN int holds_strictly(const CaffnetBatch *batch, int64_t b, Work *work, int search) {
    double size = larger(largest(work->y, work->rows.n), largest(work->f, work->rows.n));
    return strictly_inside(batch, b, work, size) || step_inside(batch, b, work, search);
}

/* Write an answer whose soft rows have given way; WITHIN_TOL where the hard ones ask for numbers beyond the largest, or a
   row of zeros does not hold by less than counts at the scale of the sample. */
FN int write_relaxed(const CaffnetBatch *batch, int64_t b, Work *work) {
    int state = relax_into_range(work) ? CAFFNET_RELAXED : CAFFNET_WITHIN_TOL;
    for (Index i = 0; i < work->rows.m; i++)
        if (!is_soft(work, i) && work->rows.squared[i] == 0.0 && (work->low[i] > 0.0 || work->high[i] < 0.0))
            state = CAFFNET_WITHIN_TOL;
    if (batch->strict) keep_hard_rows(batch, b, work);
    write_answer(batch, b, work, state);
    return state;
}

/* Write a point whose hard rows hold exactly, if the one in work->y can be moved there by rounding: the soft rows take
   what is left of it. WITHIN_TOL, or RELAXED if that is more than their tolerance. */
FN int lean_on_soft_rows(const CaffnetBatch *batch, int64_t b, Work *work) {
    const Rows *s = &work->rows;
    copy(work->g, work->y, s->n);
    choose_yielding(work, SOFT_ROWS);
    keep_hard_rows(batch, b, work);
    int more = check(s, work->y, largest(work->y, s->n), NULL, 0, &work->t) == REJECTED;
    int state = more && hard_rows_hold(work) ? CAFFNET_RELAXED : CAFFNET_WITHIN_TOL;
    write_answer(batch, b, work, state);
    return state;
}

/* Write the answer under `strict`: moved inside, or the ordinary one. Where no point was found that holds exactly, the
   answer itself is projected once more, as a second call would do it. */
FN int write_strictly(const CaffnetBatch *batch, int64_t b, Work *work, int search, CaffnetProof *proof) {
    const Rows *s = &work->rows;
    if (holds_strictly(batch, b, work, search)) {
        write_answer(batch, b, work, CAFFNET_PROJECTED);
        return CAFFNET_PROJECTED;
    }
    write_answer(batch, b, work, CAFFNET_WITHIN_TOL); /* step_inside has put it back */
    if (exactly_empty(work, proof)) {
        if (meaning_of_conflict(work) == CAFFNET_RELAXED) {
            restore_answer(work);
            forget_levels(work);
            return write_relaxed(batch, b, work);
        }
        if (!batch->nearest) write_nothing(batch, b, CAFFNET_INFEASIBLE);
        batch->status[b] = CAFFNET_INFEASIBLE;
        return CAFFNET_INFEASIBLE;
    }
    copy(work->f, work->y, s->n);
    copy(work->g, work->y, s->n);
    int state = project(work, CAFFNET_ACTIVE, NULL);
    if (state == CONFLICT || state == REJECTED) state = approach(work, 1, proof);
    if (state == CAFFNET_RELAXED) return write_relaxed(batch, b, work);
    if (state != CAFFNET_INFEASIBLE && holds_strictly(batch, b, work, CAFFNET_ACTIVE)) {
        write_answer(batch, b, work, CAFFNET_PROJECTED);
        return CAFFNET_PROJECTED;
    }
    copy(work->y, work->f, s->n);
    write_value(batch, b, work);
    return work->soft ? lean_on_soft_rows(batch, b, work) : CAFFNET_WITHIN_TOL;
}

/* Answer a RELAXED sample anew at the scale of its hard rows: beside a soft row that asks for numbers of another order,
   theirs have lost their digits. Where they do not hold even so, the level cannot tell their points apart: the nearest
   one to g then, or INFEASIBLE if there is none. */
FN int rescale_to_hard_rows(const CaffnetBatch *batch, int64_t b, Work *work, CaffnetProof *proof) {
    work->modest = 1;
    (void)load_sample(batch, b, work);
    int state = approach(work, (int)batch->strict, proof);
    if (state == CAFFNET_WITHIN_TOL) choose_yielding(work, SOFT_ROWS);
    int hold = state == CAFFNET_INFEASIBLE || stay_on_hard_rows(work);
    if (!hold) {
        (void)load_sample(batch, b, work);
        copy(work->y, work->g, work->rows.n);
        hold = stay_on_hard_rows(work);
    }
    if (!hold) {
        restore_bounds(work);
        choose_yielding(work, HARD_ROWS);
        state = give_way(work, HARD_ROWS, (int)batch->strict, proof);
    }
    work->modest = 0;
    restore_bounds(work);
    return state == CAFFNET_INFEASIBLE ? state : hold ? CAFFNET_RELAXED : CAFFNET_WITHIN_TOL;
}

/* Answer a sample whose rows meet only far away, because rows that depend on each other do so up to rounding: taken as
   dependent, they exclude each other, and that is proven as far as a proof must reach. Else `state`, and work->y stays. */
FN int exclude_far_point(const CaffnetBatch *batch, int64_t b, Work *work, int state, CaffnetProof *proof) {
    double rank = work->t.rank;
    if (!(rank * rank < work->t.delicate)) return state;
    keep_answer(work);
    (void)load_sample(batch, b, work); /* approach has moved f and g */
    work->t.rank = sqrt(work->t.delicate);
    work->ready = 0;
    int empty = least_violation(work, (int)batch->strict, proof);
    work->t.rank = rank;
    work->ready = 0;
    if (empty == CAFFNET_INFEASIBLE || empty == CAFFNET_RELAXED) return empty;
    (void)load_sample(batch, b, work);
    restore_answer(work);
    return state;
}

/* Answer one sample whose rows are scaled; its status. `proof` is filled for an INFEASIBLE one. */
FN int decide(const CaffnetBatch *batch, int64_t b, Work *work, CaffnetProof *proof) {
    Rows *s = &work->rows;
    Index n = s->n;
    int search = (int)batch->search, loaded = load_sample(batch, b, work), state = CONFLICT;
    int plain = !batch->w && search != CAFFNET_LITE && (search == CAFFNET_ACTIVE || work->norm == 2.0);
    work->lost = 0;
    s->direct.family = plain || s->start ? family_of(s) : ANY;
    const int8_t *start = batch->start ? batch->start + b * batch->m : NULL;
    if (search == CAFFNET_PAPER)
        for (Index j = 0; j < n; j++) batch->choice[b * n + j] = 0;
    if (loaded == CAFFNET_INVALID) {
        write_nothing(batch, b, CAFFNET_INVALID);
        return CAFFNET_INVALID;
    }
    int inside = check(s, work->f, largest(work->f, n), NULL, 1, &work->t);
    if (inside != REJECTED) {
        if (!batch->strict) return write_itself(batch, b, inside);
        if (holds_exactly(batch, b, batch->f, b * batch->f_step, 0)) return write_itself(batch, b, CAFFNET_INSIDE);
        copy(work->g, work->f, n); /* feasible up to rounding: to be moved by rounding only, not by w */
        search = CAFFNET_ACTIVE;
    }
    double size = larger(work->top, larger(largest(work->f, n), largest(work->g, n))); /* the largest number of the sample */
    if (loaded != CONFLICT) state = project(work, search, start);
    int found = state != CONFLICT && state != REJECTED;
    if (!found && !work->lost) state = approach(work, (int)batch->strict, proof);
    int gave_up = work->lost || state == CAFFNET_INFEASIBLE || state == CAFFNET_RELAXED;
    if (!gave_up && s->direct.family == ANY && largest(work->y, n) * work->t.empty > size)
        state = exclude_far_point(batch, b, work, state, proof);
    found = found && state != CAFFNET_INFEASIBLE && state != CAFFNET_RELAXED;
    if (work->lost) {
        write_nothing(batch, b, CAFFNET_UNDECIDED);
        return CAFFNET_UNDECIDED;
    }
    if (found && search == CAFFNET_PAPER && (batch->w || work->norm != 2.0) && try_compromise(batch, b, work))
        return batch->status[b];
    if (state != CAFFNET_INFEASIBLE && state != CAFFNET_RELAXED && !is_representable(work)) state = into_range(work, proof);
    if (state == CAFFNET_RELAXED && (s->shift != 0 || !hard_rows_hold(work)))
        state = rescale_to_hard_rows(batch, b, work, proof);
    if (state == CAFFNET_RELAXED) return write_relaxed(batch, b, work);
    if (batch->strict && state != CAFFNET_INFEASIBLE) {
        state = write_strictly(batch, b, work, search == CAFFNET_PAPER ? CAFFNET_FULL : search, proof);
        /* Where no point holds exactly, one that holds up to rounding stays where it is. */
        int stays = state == CAFFNET_WITHIN_TOL && inside != REJECTED;
        if (stays && work->soft) stays = holds_exactly(batch, b, batch->f, b * batch->f_step, 1);
        return stays ? write_itself(batch, b, state) : state;
    }
    if (state == CAFFNET_INFEASIBLE && !batch->nearest) write_nothing(batch, b, state);
    else write_answer(batch, b, work, state);
    return state;
}
