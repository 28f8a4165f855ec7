/* One sample: find the face, compute its point, repeat where rounding carried the point over another row. */
#include "internal.h"

/* Whether the answer has to be checked. Its multipliers have few digits where rows of the face are nearly dependent; its
   rounding, divided by what is left of such a row, may count beside a short distance (a tenth that is left costs one digit: the
   rounding of the point itself is no less); and a search that exchanged rows for others that depend on them in the digits of
   float32 only may have ended at the wrong rows. */
FN int is_delicate(const Work *work) {
    const Rows *s = &work->rows;
    const Face *face = &work->face;
    Index n = outputs_of(s);
    if (is_direct(s)) return 0;
    if (work->exchanged) return 1;
    double rounding = work->t.search * (largest(work->y, n) + largest(work->g, n));
    double allowed = work->t.optimal * distance(work->y, work->g, n, 2.0), share = rounding < allowed ? rounding / allowed : 1.0;
    double rank = larger(work->t.delicate, smaller(share * share, CANCELLATION_OF_DROP));
    for (Index j = 0; j < face->k; j++) {
        double left = face->R[(size_t)j * (size_t)n + (size_t)j];
        if (left * left < rank * s->squared[face->rows[j]]) return 1;
    }
    return 0;
}

/* Prove that y is the projection of work->g, up to t.optimal: for multipliers of the right sign the dual function
   lambda (A g - b) - |A' lambda|^2 / 2 is at most half the squared distance of g to the set. They are those of the closed
   form: y may be rounded to float32. */
FN int is_nearest(Work *work, const double *y) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    const double *g = work->g;
    Index n = outputs_of(s), k = face->k;
    double *lambda = face->multiplier, bound = 0.0;
    flat_point(s, face, g, work->spare);
    multipliers(s, face, 0, g, work->spare);
    for (Index j = 0; j < k; j++) lambda[j] = (j < face->base ? lambda[j] : larger(lambda[j], 0.0)) * face->sides[j];
    for (Index c = 0; c < n; c++) {
        Pair sum = {0.0, 0.0};
        for (Index j = 0; j < k; j++)
            sum = pair_add_product(sum, lambda[j], s->A[(size_t)face->rows[j] * (size_t)n + (size_t)c]);
        bound -= 0.5 * (sum.high + sum.low) * (sum.high + sum.low);
    }
    Pair sum = {0.0, 0.0};
    for (Index j = 0; j < k; j++) {
        Pair gap = fine_gap(s, face->rows[j], face->sides[j] > 0, g);
        sum = pair_add_product(pair_add_product(sum, lambda[j], gap.high), lambda[j], gap.low);
    }
    bound = sqrt(larger(2.0 * (bound + sum.high + sum.low), 0.0));
    double slack = work->t.feasibility * (largest(y, n) + largest(g, n));
    return distance(y, g, n, 2.0) <= bound * (1.0 + work->t.optimal) + slack;
}

/* Find the sub-constraint of the answer; the number of its rows, CONFLICT or NOT_FOUND. */
FN Index find_face(Work *work, int search, const int8_t *start) {
    Index n = outputs_of(&work->rows), k = NOT_FOUND;
    int moved = 0;
    for (Index j = 0; j < n; j++) moved = moved || work->f[j] != work->g[j];
    k = nearest_face(work, work->g, start);
    if (k < 0) return k; /* no point at all */
    if (!moved && (search == CAFFNET_ACTIVE || (search != CAFFNET_LITE && work->norm == 2.0))) return k;
    if (search == CAFFNET_ACTIVE) return nearer_face(work);
    for (Index i = 0; i < rows_of(&work->rows); i++) work->seed[i] = work->face.held[i];
    k = enumerate(work, k, search == CAFFNET_LITE);
    work->flat = 0;
    if (k >= 0) return k;
    rebuild_face(work, work->seed); /* no candidate passes the test of the walk, but the projection does */
    return work->face.k;
}

/* Check that the answer is the projection of work->g; where it is not, move it onto the rows of its face with twice the digits. 0 if
   that does not help: then it stays. */
FN int prove_nearest(Work *work) {
    const Rows *s = &work->rows;
    Index n = outputs_of(s);
    double *finer = work->other;
    if (is_nearest(work, work->y)) return 1;
    copy(finer, work->y, n);
    slide_finely(s, &work->face, finer);
    round_within_bounds(work, finer);
    if (check(s, finer, largest(finer, n), work->face.held, 1) != CAFFNET_INSIDE || !is_nearest(work, finer)) return 0;
    copy(work->y, finer, n);
    return 1;
}

/* Search and settle; PROJECTED, WITHIN_TOL, REJECTED, or CONFLICT. */
FN int project(Work *work, int search, const int8_t *start) {
    Rows *s = &work->rows;
    Index n = outputs_of(s);
    int state = REJECTED;
    work->exchanged = 0;
    if (s->boxed && search != CAFFNET_LITE && work->norm < 1e300) {
        if (!box_point(work, search)) return CONFLICT;
        round_point(work, work->y);
        state = check(s, work->y, largest(work->y, n), work->face.held, 1);
        forget_factors(work);
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
        if (nearest_face(work, goal, NULL) < 0) {
            copy(work->y, goal, n);
            break;
        }
        state = settle_point(work, goal, 0.0);
    }
    int euclidean = work->norm == 2.0 && search != CAFFNET_LITE;
    for (Index j = 0; j < n && euclidean; j++) euclidean = work->f[j] == work->g[j];
    work->unproven = euclidean && state != REJECTED && is_delicate(work) && !prove_nearest(work);
    if (work->unproven) return CAFFNET_WITHIN_TOL;
    return state == CAFFNET_INSIDE ? CAFFNET_PROJECTED : state;
}
