/* Sets without a point: the least violation, and the proof that no point exists.

   Rows relaxed by an amount `relax`, in units of work->unit for each row, have a common point exactly when no conflict
   is left, and a conflict with multipliers mu ends at relax = -sum mu_i b_i / sum |mu_i| unit_i. So relax climbs from
   conflict to conflict (Newton's method on a convex piecewise linear function: it ends after finitely many) until the
   relaxed rows meet. With one user's unit for every row that is the least violation; a row whose unit is 0 does not give
   way. With a negative start the same climb finds how far inside all rows a point can be: that is what `strict` needs.
   work->give has the amount by which each row is relaxed in any case. */
#include "internal.h"

FN void relax_rows(Work *work, double relax) {
    Rows *s = &work->rows;
    s->loose = NULL;
    for (Index i = 0; i < rows_of(s); i++) {
        double amount = work->give[i] + relax * work->unit[i];
        if (amount > 0.0 && amount < HUGE_VAL && is_soft(work, i)) s->loose = work->soft;
        s->low[i] = amount < HUGE_VAL ? work->low[i] - amount : -HUGE_VAL;
        s->high[i] = amount < HUGE_VAL ? work->high[i] + amount : HUGE_VAL;
        if (s->low[i] > s->high[i] && work->low[i] <= work->high[i]) /* drawn in beyond the middle */
            s->low[i] = s->high[i] = work->low[i] + 0.5 * (work->high[i] - work->low[i]);
        s->equal[i] = s->low[i] == s->high[i];
    }
}

/* Correct the multipliers in work->conflict and work->fine towards sum mu_i a_i = 0: each time doubles the digits. */
FN void refine_conflict(Work *work) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    Index n = outputs_of(s);
    double *mu = work->conflict, *fine = work->fine;
    for (int again = 0; again < 2; again++) {
        for (Index c = 0; c < n; c++) {
            Pair sum = {0.0, 0.0};
            for (Index i = 0; i < rows_of(s); i++) {
                double a = s->A[(size_t)i * (size_t)n + (size_t)c];
                if (mu[i] != 0.0 && a != 0.0) {
                    sum = pair_add_product(sum, mu[i], a);
                    sum = pair_add_product(sum, fine[i], a);
                }
            }
            face->z[c] = sum.high + sum.low;
        }
        along_all(face, face->z, face->d, n);
        in_rows(face, 0, face->d, face->r, n);
        for (Index j = 0; j < face->k; j++) {
            Index i = face->rows[j];
            if (mu[i] == 0.0) continue;
            Pair sum = two_sum(mu[i], fine[i] - face->r[j]);
            mu[i] = sum.high;
            fine[i] = sum.low;
        }
    }
}

/* Write the multipliers of a conflict into work->conflict, as the dual method left it, with lower halves in work->fine. */
FN void collect_conflict(Work *work) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    Index n = outputs_of(s);
    if (is_direct(s)) return; /* the search has written them */
    double *mu = work->conflict, *fine = work->fine, sign = (double)face->side, top = 1.0;
    for (Index i = 0; i < rows_of(s); i++) mu[i] = fine[i] = 0.0;
    (void)remainder_of(s, face->entering, face);
    in_rows(face, 0, face->d, face->r, n);
    for (Index j = 0; j < face->k; j++) top = larger(top, fabs(face->r[j]));
    mu[face->entering] = sign;
    for (Index j = 0; j < face->k; j++)
        /* Noise has no part in the conflict; nor has a row that would pull the wrong way. */
        if (fabs(face->r[j]) > work->t.fine_rank * top) {
            double m = -sign * face->r[j];
            if (j < work->face.base || m * face->sides[j] > 0.0) mu[face->rows[j]] = m;
        }
    refine_conflict(work);
    int dropped = 0;
    for (Index j = 0; j < face->k; j++) { /* with all digits, a row of a nearly dependent face may turn out to be noise */
        Index i = face->rows[j];
        if (mu[i] == 0.0 || (fabs(mu[i]) > LOST_BY_PAIRS * top && (j < face->base || mu[i] * face->sides[j] > 0.0))) continue;
        mu[i] = fine[i] = 0.0;
        dropped = 1;
    }
    if (dropped) refine_conflict(work);
}

/* The relaxation that ends the conflict in work->conflict, for the bounds of the sample, and what rounding at numbers
   of this size can hide; infinite if the rows that can give way have no part in it. */
FN double needed_relaxation(const Work *work, double size, double *noise) {
    Pair gap = {0.0, 0.0};
    double weight = 0.0, terms = 0.0;
    for (Index i = 0; i < rows_of(&work->rows); i++) {
        double mu = work->conflict[i];
        if (mu == 0.0) continue;
        double bound = mu > 0.0 ? work->high[i] + work->give[i] : work->low[i] - work->give[i];
        if (!is_finite(bound)) continue;
        gap = pair_add_product(pair_add_product(gap, mu, bound), work->fine[i], bound);
        weight += fabs(mu) * work->unit[i];
        terms += fabs(mu) * (fabs(bound) + size);
    }
    *noise = work->t.search * terms / weight;
    return weight > 0.0 ? -(gap.high + gap.low) / weight : HUGE_VAL;
}

/* Check the multipliers in work->conflict against the bounds of the sample: what sum mu_i a_i can be at most, and
   what sum mu_i b_i is at least, including the rounding of these sums themselves. */
FN CaffnetProof prove(const Work *work) {
    const Rows *s = &work->rows;
    CaffnetProof proof = {0.0, 0.0};
    Pair gap = {0.0, 0.0};
    double residual = s->narrow ? 0x1p-900 : 0.0, size = 0.0;
    Index n = outputs_of(s), m = rows_of(s);
    double *high = s->direct.sums, *low = high + n, *column = low + n;
    for (Index c = 0; c < n; c++) high[c] = low[c] = column[c] = 0.0;
    for (Index i = 0; i < m; i++) {
        double mu = work->conflict[i];
        if (mu == 0.0) continue;
        double bound = mu > 0.0 ? work->high[i] : work->low[i];
        if (!is_finite(bound)) { /* a bound at the wrong infinity excludes every point on its own */
            proof.gap = -HUGE_VAL;
            proof.radius = (mu > 0.0) == (bound < 0.0) ? HUGE_VAL : 0.0;
            return proof;
        }
        gap = pair_add_product(pair_add_product(gap, mu, bound), work->fine[i], bound);
        size += fabs(mu * bound);
    }
    for (Index i = 0; i < m; i++)
        for (Index e = 0; work->conflict[i] != 0.0 && e < s->entries[i]; e++) {
            double a = entry_of(s, i, e);
            Index c = column_of(s, i, e);
            if (a == 0.0) continue;
            Pair sum = {high[c], low[c]};
            sum = pair_add_product(pair_add_product(sum, work->conflict[i], a), work->fine[i], a);
            high[c] = sum.high;
            low[c] = sum.low;
            column[c] += fabs(work->conflict[i] * a);
        }
    for (Index c = 0; c < n; c++) /* a sum of two equal terms of one sign each is exact */
        residual += fabs(high[c] + low[c]) + (high[c] == 0.0 && low[c] == 0.0 ? 0.0 : LOST_BY_PAIRS * column[c]);
    proof.gap = gap.high + gap.low + LOST_BY_PAIRS * size;
    proof.radius = proof.gap < 0.0 ? (residual > 0.0 ? -proof.gap / residual : HUGE_VAL) : 0.0;
    return proof;
}

/* Put the conflict aside if its proof reaches farther than those before. The last conflict of a climb settles the least
   violation; an earlier one may have multipliers with fewer digits, and thus the better proof. */
FN void keep_farthest(Work *work) {
    CaffnetProof proof = prove(work);
    if (!(proof.gap < 0.0 && proof.radius > work->reach)) return;
    work->reach = proof.radius;
    copy(work->farthest, work->conflict, rows_of(&work->rows));
    copy(work->farthest_fine, work->fine, rows_of(&work->rows));
}

FN void exchange(double **one, double **other) {
    double *kept = *one;
    *one = *other;
    *other = kept;
}

/* Exchange the conflict and the one put aside. */
FN void exchange_conflicts(Work *work) {
    exchange(&work->conflict, &work->farthest);
    exchange(&work->fine, &work->farthest_fine);
}

/* Whether row i excludes every point: 0 y within bounds that exclude 0, or a bound at the wrong infinity. */
FN int excludes_all(const Work *work, Index i) {
    double low = work->low[i], high = work->high[i], zero = work->t.underflow;
    return low == HUGE_VAL || high == -HUGE_VAL || (work->rows.squared[i] == 0.0 && (low > zero || high < -zero));
}

/* A row that excludes every point, or else one whose bounds exclude each other; -1 if there is none. */
FN Index impossible_row(const Work *work) {
    Index row = -1;
    for (Index i = rows_of(&work->rows) - 1; i >= 0; i--) {
        if (work->give[i] == HUGE_VAL) continue; /* it is ignored */
        if (excludes_all(work, i) || (work->low[i] > work->high[i] && (row < 0 || !excludes_all(work, row)))) row = i;
    }
    return row;
}

/* Find the least relaxation from `relax` on at which the rows meet, and the projection of g on them: the number of rows
   of its face, the point in work->y, the bounds in work->rows relaxed. CONFLICT if relaxing does not help, because rows that
   do not give way exclude each other. `start` marks rows to begin with, or is NULL. */
FN Index climb(Work *work, const double *g, double *relax, const int8_t *start) {
    Rows *s = &work->rows;
    double growth = 1.0;
    work->reach = 0.0;
    for (int round = 0; round < 200; round++) {
        relax_rows(work, *relax);
        restart(work);
        Index k = dual(work, g, work->y, start, work->t.search, -1.0);
        if (k >= 0 || work->lost || (work->cancel && *work->cancel)) return k;
        for (Index i = 0; i < rows_of(s); i++) work->seed[i] = work->face.held[i];
        const int8_t *before = start;
        start = work->seed;
        if (k == CONFLICT) collect_conflict(work);
        else /* no end within the cap: every row as it stands */
            for (Index i = 0; i < rows_of(s); i++) {
                work->conflict[i] = is_finite(s->high[i]) ? 1.0 : is_finite(s->low[i]) ? -1.0 : 0.0;
                work->fine[i] = 0.0;
            }
        /* The size of g, not of y, which rows that differ only by rounding have moved far away. */
        double noise = 0.0, needed = needed_relaxation(work, largest(g, outputs_of(s)), &noise);
        if (needed == HUGE_VAL) return CONFLICT;
        if (k == CONFLICT && needed > 0.0) keep_farthest(work);
        if (k == CONFLICT && needed > *relax + noise) *relax = needed;
        else if (before) start = NULL; /* the rows that it began with may be the cause */
        else { /* no progress beyond rounding: a little further each time */
            *relax += growth * noise;
            growth *= 4.0;
        }
    }
    return NOT_FOUND;
}
