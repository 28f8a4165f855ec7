/* The point on one face: computed, refined, rounded to the user's type, and checked row by row. */
#include "internal.h"

/* The point in the user's numbers: what will be returned. Beyond the largest of them it stays as it is. */
FN void round_point(const Work *work, double *y) {
    Index shift = work->rows.shift;
    for (Index j = 0; j < outputs_of(&work->rows) && (work->single || shift != 0); j++) {
        double number = rounded(times_power(y[j], -shift), work->single);
        if (is_finite(number)) y[j] = times_power(number, shift);
    }
}

/* The same within the bounds of single outputs. */
FN void round_within_bounds(const Work *work, double *y) {
    clamp(&work->rows, y);
    round_point(work, y);
}

/* a_i y - b_i for the bound at one side, with twice the digits. */
FN Pair fine_gap(const Rows *s, Index i, int upper, const double *y) {
    const double *a = s->A + (size_t)i * (size_t)outputs_of(s);
    Pair sum = {-bound_of(s, i, upper), 0.0};
    for (Index c = 0; c < outputs_of(s); c++)
        if (a[c] != 0.0) sum = pair_add_product(sum, a[c], y[c]);
    return sum;
}

/* Move y onto the rows of the face with residuals of twice the digits, which a nearly dependent face needs. */
FN void slide_finely(const Rows *s, const Face *face, double *y) {
    Index n = outputs_of(s);
    if (is_direct(s)) {
        direct_slide(s, face->held, y);
        return;
    }
    for (Index j = 0; j < face->k; j++) {
        Pair gap = fine_gap(s, face->rows[j], face->sides[j] > 0, y);
        move(face, j, (gap.high + gap.low) * face->inverse[j], y, n);
    }
}

/* Check work->y, the closed form on the face, against every row, and refine it until it passes: INSIDE, WITHIN_TOL or
   REJECTED. The allowance grows with |y| and with `size`, that of the numbers which y was computed from. With size 0 the
   projection of an answer is the answer itself. */
FN int verify_point(Work *work, const double *g, double size) {
    Rows *s = &work->rows;
    Face *face = &work->face;
    Index n = outputs_of(s);
    double *y = work->y, *trial = work->spare;
    for (int again = 0; again < 40; again++) {
        /* If the answer is the origin, y holds noise of size eps |g|, which no allowance relative to |y| accepts. */
        int noise = largest(y, n) <= (again > 0 ? work->t.feasibility : work->t.search) * largest(g, n);
        for (Index j = 0; j < face->k && noise; j++) /* if the rows of the face go through the origin */
            noise = fabs(bound_of(s, face->rows[j], face->sides[j] > 0)) <= work->t.underflow;
        for (int zero = noise; zero >= 0; zero--) {
            for (Index j = 0; j < n; j++) trial[j] = zero && y[j] != g[j] ? 0.0 : y[j];
            for (Index j = 0; j < face->k; j++) { /* a bound of one output is met exactly: 0, not 1e-33 */
                Index i = face->rows[j];
                if (s->plain[i] >= 0) trial[s->plain[i]] = s->sign[i] * bound_of(s, i, face->sides[j] > 0) + 0.0;
            }
            round_within_bounds(work, trial);
            int state = check(s, trial, larger(size, largest(trial, n)), face->held, 1);
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

FN void restore_bounds(Work *work) {
    copy(work->rows.low, work->low, rows_of(&work->rows));
    copy(work->rows.high, work->high, rows_of(&work->rows));
    work->rows.loose = NULL;
    mark_equal(&work->rows);
}

/* Keep the point and its rows, while another one is looked for. */
FN void keep_answer(Work *work) {
    copy(work->ordinary, work->y, outputs_of(&work->rows));
    for (Index i = 0; i < rows_of(&work->rows); i++) work->stood[i] = work->face.held[i];
}

/* Use the answer as the point to project. */
FN void start_from_answer(Work *work) {
    copy(work->f, work->y, outputs_of(&work->rows));
    copy(work->g, work->y, outputs_of(&work->rows));
}

FN void restore_answer(Work *work) {
    copy(work->y, work->ordinary, outputs_of(&work->rows));
    mark_rows(work, work->stood);
}
