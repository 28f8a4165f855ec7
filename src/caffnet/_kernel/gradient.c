/* The derivative, from the point and its rows.

   On its face, y and the multipliers lambda solve [I A'; A 0] [y; lambda] = [g; b]. So an incoming gradient v gives

     p = N v for f and w,   q = (A+)' v for b,   -(lambda p' + q y') for A.

   With `tangent`, f gets -d instead, with d the projection of -v on the tangent cone at y: the directions in which the
   rows that y touches allow a small step. It is the same search, on these rows with all bounds 0.

   Where soft rows have given way, soft.c adds the terms of the level. */
#include "internal.h"

/* Add the gradients of row i, held at `side` with coefficients lambda and q, for a point y and a reduced gradient p. */
FN void row_gradient(const Rows *s, Index i, double side, double lambda, double q, const double *p, const double *y,
                     double power, const CaffnetGradients *to, int64_t b) {
    Index exponent = s->exponent[i];
    double *bound = side > 0 ? to->upper : to->lower;
    int64_t step = side > 0 ? to->upper_step : to->lower_step;
    if (bound) bound[b * step + i] += power * times_power(q, exponent);
    if (to->A) {
        double *A = to->A + (is_sparse(s) ? s->start[i] : b * to->A_step + (int64_t)i * outputs_of(s));
        double first = power * times_power(lambda, exponent - s->shift), second = power * times_power(q, exponent - s->shift);
        for (Index e = 0; is_sparse(s) && e < s->entries[i]; e++) {
            Index c = s->places[s->start[i] + e];
            A[e] -= first * p[c] + second * y[c];
        }
        for (Index c = 0; !is_sparse(s) && c < outputs_of(s); c++) A[c] -= first * p[c] + second * y[c];
    }
}

/* Whether y touches row i from below (side +1) or above (side -1), up to rounding. */
FN int touches(const Work *work, Index i, int side, double value, double size, const int8_t *active) {
    const Rows *s = &work->rows;
    if (s->equal[i] || active[i] == side) return 1; /* whatever the distance: `strict` stops short of its rows */
    return lies_on(value, bound_of(s, i, side > 0), size, &work->t);
}

/* p = -(the projection of -v on the tangent cone at y), which replaces p = N v; N v stays where rounding is in the way. */
FN void tangent(Work *work, const int8_t *active, const double *y, const double *v, double *p) {
    Rows *s = &work->rows;
    Index n = outputs_of(s);
    double all = 2.0 * largest(y, n), *d = work->other, *back = work->spare;
    if (s->boxed) copy(p, v, n);
    for (Index i = 0; i < rows_of(s); i++) {
        double value = value_of(s, i, y), size = size_at(s, i, y, all);
        int below = touches(work, i, -1, value, size, active), above = touches(work, i, 1, value, size, active);
        if (s->boxed) {
            Index j = s->plain[i];
            int up = s->sign[i] > 0.0;
            if (up ? above : below) p[j] = larger(p[j], 0.0);
            if (up ? below : above) p[j] = smaller(p[j], 0.0);
            continue;
        }
        work->low[i] = below ? 0.0 : -HUGE_VAL;
        work->high[i] = above ? 0.0 : HUGE_VAL;
    }
    if (s->boxed) return;
    restore_bounds(work);
    s->direct.family = family_of(s);
    for (Index j = 0; j < n; j++) d[j] = -v[j];
    restart(work);
    if (dual(work, d, back, NULL, work->t.search, work->t.feasibility) < 0) return;
    flat_point(s, &work->face, d, back);
    if (!accepts(s, back, largest(v, n))) {
        slide_finely(s, &work->face, back);
        if (!accepts(s, back, largest(v, n))) return;
    }
    for (Index j = 0; j < n; j++) p[j] = -back[j];
}

/* `reduce` by a direct method. */
FN Index direct_reduce(Work *work, const int8_t *active, const double *y, const double *v, double *p, double *q) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    double *r = face->left, *away = work->spare;
    forget_factors(work); /* the factors are those of another sample, not of the rows listed here */
    /* As in a factorised face, equalities belong to the face even if they did not hold. */
    for (Index i = 0; i < rows_of(s); i++) face->held[i] = s->equal[i] ? 1 : active[i];
    direct_independent(s, face->held);
    Index k = list_held(s, face);
    active = face->held;
    direct_flat(s, active, v, p, 1);
    for (int pass = 0; q && pass < 2; pass++) {
        for (Index j = 0; j < outputs_of(s); j++) away[j] = pass ? work->g[j] - y[j] : v[j] - p[j];
        direct_coefficients(s, active, away, r);
        for (Index j = 0; j < k; j++) (pass ? face->r : q)[j] = r[face->rows[j]];
    }
    return k;
}

/* Equalities that the point of least violation does not lie on are not in its face. */
FN void release_broken_rows(Rows *s, const int8_t *active) {
    for (Index i = 0; i < rows_of(s); i++)
        if (active[i] == 0) s->equal[i] = 0;
}

/* Write p = N v for the face of the rows marked in `active`; its size. With q, also the coefficients of v (q) and of
   g - y (face.r) on its rows, and what the level adds, where the answer is RELAXED. */
FN Index reduce(Work *work, const int8_t *active, const double *y, const double *v, double *p, double *q, int relaxed,
                Level *level) {
    Face *face = &work->face;
    Index n = outputs_of(&work->rows);
    double *away = work->spare;
    if (is_direct(&work->rows)) return direct_reduce(work, active, y, v, p, q);
    copy(p, v, n);
    if (relaxed) release_soft_rows(work);
    rebuild_face(work, active);
    along_all(face, p, face->d, n);
    move_all(face, face->d, p, n);
    if (!q) return face->k;
    in_rows(face, 0, face->d, q, n);
    if (relaxed) *level = share_levels(work, active, y, q);
    for (Index j = 0; j < n; j++) away[j] = work->g[j] - y[j];
    along_all(face, away, face->d, n);
    in_rows(face, 0, face->d, face->r, n);
    return face->k;
}

/* Add the gradients of the rows that determine the levels, which are not in the face. */
FN void level_gradient(const Rows *s, const Level *level, const int8_t *active, const double *p, const double *y,
                       double power, const CaffnetGradients *to, int64_t b) {
    for (Index c = 0; c < level->count; c++)
        row_gradient(s, level->closing[c], active[level->closing[c]], 0.0, -level->s[c], p, y, power, to, b);
    for (int l = 0; l < LEVELS; l++) {
        Index i = level->crossed[l];
        if (i < 0 || level->share[l] == 0.0) continue;
        double share = power * times_power(level->share[l], s->exponent[i]);
        if (to->lower) to->lower[b * to->lower_step + i] += share;
        if (to->upper) to->upper[b * to->upper_step + i] -= share;
    }
}

/* Write p = N v, and add what the rows of the face get. */
FN void face_gradient(Work *work, const int8_t *active, const double *y, const double *v, double *p, double power,
                      int relaxed, const CaffnetGradients *to, int64_t b) {
    Rows *s = &work->rows;
    Face *face = &work->face;
    Index n = outputs_of(s);
    double *q = to->A || to->lower || to->upper ? work->other : NULL;
    Level level = {0};
    if (s->boxed && !relaxed) {
        copy(p, v, n);
        for (Index i = 0; i < rows_of(s); i++)
            if (active[i] != 0) p[s->plain[i]] = 0.0;
        for (Index i = 0; i < rows_of(s); i++) {
            if (active[i] == 0) continue;
            Index j = s->plain[i];
            double sign = s->sign[i];
            row_gradient(s, i, active[i], sign * (work->g[j] - y[j]), sign * v[j], p, y, power, to, b);
        }
        return;
    }
    Index k = reduce(work, active, y, v, p, q, relaxed, &level);
    for (Index j = 0; q && j < k; j++)
        row_gradient(s, face->rows[j], face->sides[j], face->r[j], q[j], p, y, power, to, b);
    level_gradient(s, &level, active, p, y, power, to, b);
}

/* The gradients of one sample whose rows are scaled. */
FN void differentiate(const CaffnetBatch *batch, const CaffnetGradients *to, int64_t b, Work *work) {
    Rows *s = &work->rows;
    Index n = outputs_of(s);
    int single = work->single, held = 0, numbers = 1, exponent = 0, relaxed = batch->status[b] == CAFFNET_RELAXED;
    const int8_t *active = batch->active + b * batch->m;
    const int32_t *choice = batch->choice ? batch->choice + b * n : NULL;
    double *v = work->walk.g, *p = work->ordinary, *y = work->y, power = 1.0;
    for (int64_t i = 0; i < batch->m && !held; i++) held = active[i] != 0;
    int compromise = choice && n > 0 && choice[0] != 0;
    if (!held && !compromise) { /* f itself, or f + w where no point is nearer to the broken rows, or no answer at all */
        int broken = relaxed || (batch->nearest && batch->status[b] == CAFFNET_INFEASIBLE);
        int passes = broken || !CAFFNET_HAS_NO_ANSWER(batch->status[b]);
        for (Index j = 0; j < n; j++) {
            double here = load(to->v, b * to->v_step + j, single);
            if (to->f) store(to->f, b * n + j, passes ? here : 0.0, single);
            if (to->w) store(to->w, b * n + j, broken ? here : 0.0, single);
        }
        return;
    }
    (void)load_sample(batch, b, work);
    if (batch->status[b] == CAFFNET_INFEASIBLE) release_broken_rows(s, active);
    s->direct.family = relaxed ? ANY : gradient_family(s);
    for (Index j = 0; j < n; j++) {
        v[j] = load(to->v, b * to->v_step + j, single);
        numbers = numbers && is_finite(v[j]);
        y[j] = times_power(load(batch->value, b * n + j, single), s->shift);
    }
    double top = largest(v, n);
    if (numbers && top > 0.0 && (top > LARGEST || top < SMALLEST)) { /* linear in v: scale it into the range that can be squared */
        (void)frexp(top, &exponent);
        exponent = exponent > 1000 ? 1000 : exponent; /* 2^24 can be squared too */
        for (Index j = 0; j < n; j++) v[j] = ldexp(v[j], -exponent);
        power = ldexp(1.0, exponent);
    }
    if (compromise) compromise_gradient(work, choice, y, v, p, power, to, b);
    else face_gradient(work, active, y, v, p, power, relaxed, to, b);
    for (Index j = 0; to->w && j < n; j++) store(to->w, b * n + j, power * p[j], single);
    if (!to->f) return;
    if (batch->tangent && !compromise) {
        if (numbers) tangent(work, active, y, v, p);
        else copy(p, v, n); /* NaN passes as it is */
    }
    for (Index j = 0; j < n; j++) store(to->f, b * n + j, power * p[j], single);
}
