/* Soft rows: they give way where the set is empty, and the hard ones never.

   The level t is the least by which all soft rows must be relaxed, in the user's units, so that they meet within the
   hard ones: least violation (infeasible.c) with a unit of 0 for every hard row. A conflict that has no soft row in it
   is one of the hard rows among themselves. The answer is the projection of g on the rows relaxed by t.

   The derivative. A conflict mu with sum mu_i a_i = 0 determines t, so its rows stand beside those of the face: together
   they are independent as rows (a_i, -side_i unit_i) of (y, t), and the answer is the closed form on them in R^(n+1),
   where the flat leaves t no choice. With q = (A+)' v as if t were fixed and mu scaled to sum mu_i side_i unit_i = 1,

     dt = sum mu_i (da_i y - db_i),   v dy/dt = tau = sum q_i side_i unit_i,   so   q becomes q - tau mu.

   `active` marks all of these rows; in R^n one of them depends on the others, the closing row, and that gives mu back.
   Where t is half of what the bounds of one row miss each other by, it is t = (low - high) / 2 unit of that row. */
#include "internal.h"

enum { ALL_ROWS, SOFT_ROWS, HARD_ROWS };

/* One of the user's units in the scaled row i. */
FN double users_unit(const Work *work, Index i) {
    Index exponent = work->rows.exponent[i] + work->rows.shift;
    if (is_soft(work, i) && exponent < -1000) exponent = -1000; /* a unit of 0 is that of a hard row */
    return ldexp(1.0, exponent > 1000 ? 1000 : exponent);
}

/* Choose the rows that give way. Where the hard ones do, the soft ones have no say. */
FN void choose_yielding(Work *work, int which) {
    for (Index i = 0; i < work->rows.m; i++) {
        int soft = is_soft(work, i), yields = which == ALL_ROWS || soft == (which == SOFT_ROWS);
        work->unit[i] = yields ? users_unit(work, i) : 0.0;
        work->give[i] = yields || !soft ? 0.0 : HUGE_VAL;
        work->conflict[i] = work->fine[i] = 0.0;
    }
}

/* Whether a hard row alone excludes every point. */
FN int has_impossible_hard_row(const Work *work) {
    for (Index i = 0; i < work->rows.m; i++)
        if (!is_soft(work, i) && (excludes_all(work, i) || work->low[i] > work->high[i])) return 1;
    return 0;
}

/* What a proven conflict means: RELAXED if a row that can give way is part of it. */
FN int meaning_of_conflict(const Work *work) {
    for (Index i = 0; i < work->rows.m; i++)
        if (work->conflict[i] != 0.0 && is_soft(work, i)) return CAFFNET_RELAXED;
    return CAFFNET_INFEASIBLE;
}

/* Put the rows of the conflict beside those of the face: what is independent joins it, the closing row is only marked. */
FN void close_face(Work *work) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    int closed = 0;
    for (Index i = 0; i < s->m; i++) {
        if (work->conflict[i] == 0.0 || face->held[i] != 0) continue;
        Index side = work->conflict[i] > 0.0 ? 1 : -1;
        if (!is_finite(side > 0 ? work->high[i] : work->low[i])) continue; /* no point is nearer to it than another */
        add(s, face, i, side, work->t.rank);
        if (face->held[i] == 0 && !closed) {
            face->held[i] = (int8_t)side;
            closed = 1;
        }
    }
    work->ready = 0; /* the marks of the face are not those of its factors */
}

/* What the level adds to a gradient. */
typedef struct {
    Index closing, crossed; /* rows, or -1 */
    double q, share;        /* of the closing row; of the lower bound of the crossed one, and minus that of the upper */
} Level;

/* Change q, the coefficients of v on the rows of the face, from those at a fixed level to those of (y, t). */
FN Level share_level(Work *work, const int8_t *active, double *q) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    Level level = {-1, -1, 0.0, 0.0};
    double tau = 0.0, worst = 0.0;
    for (Index j = 0; j < face->k; j++)
        if (is_soft(work, face->rows[j])) tau += q[j] * (double)face->sides[j] * users_unit(work, face->rows[j]);
    for (Index i = 0; i < s->m; i++) {
        if (active[i] == 0 || face->held[i] != 0) continue;
        (void)remainder_of(s, i, face);
        in_rows(face, 0, face->d, face->r, s->n);
        double rate = is_soft(work, i) ? (double)active[i] * users_unit(work, i) : 0.0, size = fabs(rate);
        for (Index j = 0; j < face->k; j++) {
            if (!is_soft(work, face->rows[j])) continue;
            double unit = users_unit(work, face->rows[j]);
            rate -= face->r[j] * (double)face->sides[j] * unit;
            size += fabs(face->r[j]) * unit;
        }
        if (!(fabs(rate) > work->t.fine_rank * size)) continue; /* it says what the others say, at every level */
        for (Index j = 0; j < face->k; j++) q[j] += tau / rate * face->r[j];
        level.closing = i;
        level.q = -tau / rate;
        return level;
    }
    for (Index i = 0; i < s->m; i++) {
        if (active[i] == 0 || !is_soft(work, i)) continue;
        double unit = users_unit(work, i), miss = (s->low[i] - s->high[i]) / unit;
        if (!(miss > worst)) continue;
        worst = miss;
        level.crossed = i;
        level.share = tau / (2.0 * unit);
    }
    return level;
}

/* Soft rows are not equalities while they give way. */
FN void release_soft_rows(Work *work) {
    for (Index i = 0; i < work->rows.m; i++)
        if (is_soft(work, i)) work->rows.equal[i] = 0;
}
