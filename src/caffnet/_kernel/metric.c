/* Another metric than the Euclidean one: the nearest point in |y - f|_M for a positive definite M = L L'.

   With z = L' y, |y - f|_M = |z - L' f|_2 and A y = (A L^-T) z. In z the metric is Euclidean: the rest of the kernel solves
   the white (whitened) sample, with rows a' = L^-1 a, f' = L' f and w' = L' w. There the closed form of a face is

     y = g - M^-1 A' (A M^-1 A')^-1 (A g - b),   g = f + w,

   the point of the flat nearest to g in M. The way back, y = L^-T z, costs digits where M is ill-conditioned. So y is
   refined on its face with residuals of the user's own rows, and they alone judge it; a proof that the set is empty, and
   `strict`, are theirs too.

   The derivative. On its face [M A'; A 0] [y; lambda] = [M g; b]. The same system with (v, 0) gives (p, q), and

     M p for f and w,   q for b,   -(lambda p' + q y') for A,   (p d' + d p') / 2 for M, with d = g - y.

   White, p = L^-T p' and M p = L p' with p' = N L^-1 v. A factor of M changes nothing: M is scaled by a power of two. */
#include "internal.h"

/* x = L' x, L^-1 x and L^-T x, in place */
FN void to_white(const Metric *metric, double *x, Index n) {
    const double *L = metric->L;
    for (Index j = 0; j < n; j++) {
        double here = x[j];
        if (metric->diagonal) x[j] *= L[j];
        else {
            x[j] = 0.0;
            subtract(x, -here, L + (size_t)j * (size_t)n, j + 1);
        }
    }
}

FN void solve_lower(const Metric *metric, double *x, Index n) {
    const double *L = metric->L;
    for (Index j = 0; j < n; j++)
        x[j] = metric->diagonal ? x[j] / L[j]
                                : (x[j] - dot(L + (size_t)j * (size_t)n, x, j)) / L[(size_t)j * (size_t)n + (size_t)j];
}

FN void from_white(const Metric *metric, double *x, Index n) {
    const double *L = metric->L;
    for (Index j = n - 1; j >= 0; j--) {
        x[j] /= metric->diagonal ? L[j] : L[(size_t)j * (size_t)n + (size_t)j];
        if (!metric->diagonal) subtract(x, x[j], L + (size_t)j * (size_t)n, j);
    }
}

/* L x: what a white gradient is in the user's outputs. x is overwritten from the end. */
FN void times_lower(const Metric *metric, double *x, Index n) {
    const double *L = metric->L;
    for (Index j = n - 1; j >= 0; j--)
        x[j] = metric->diagonal ? L[j] * x[j] : dot(L + (size_t)j * (size_t)n, x, j + 1);
}

/* Factorise the metric of sample b, its symmetric part; 0 if it is not positive definite up to rounding. */
FN int factorise(const CaffnetBatch *batch, int64_t b, Metric *metric) {
    Index n = (Index)batch->n;
    double *L = metric->L, top = 0.0;
    int64_t place = b * batch->metric_step, wide = metric->diagonal ? 0 : n;
    for (Index j = 0; j < n; j++) top = larger(top, load(batch->metric, place + j * wide + j, (int)batch->single));
    if (!(top > 0.0) || !is_finite(top)) return 0;
    metric->exponent = -((exponent_of(top) - 1) & ~1); /* an even exponent: its root is a power of two as well */
    for (Index i = 0; i < n; i++) {
        if (metric->diagonal) {
            double entry = times_power(load(batch->metric, place + i, (int)batch->single), metric->exponent);
            if (!(entry > 0.0)) return 0;
            L[i] = sqrt(entry);
            if (metric->linear) metric->M[i] = entry;
            continue;
        }
        double *line = L + (size_t)i * (size_t)n, diagonal = 0.0;
        for (Index j = 0; j <= i; j++) {
            double entry = 0.5 * load(batch->metric, place + i * wide + j, (int)batch->single) +
                           0.5 * load(batch->metric, place + j * wide + i, (int)batch->single);
            entry = times_power(entry, metric->exponent);
            if (metric->linear) metric->M[(size_t)i * (size_t)n + (size_t)j] = metric->M[(size_t)j * (size_t)n + (size_t)i] = entry;
            if (j == i) diagonal = entry;
            else line[j] = (entry - dot(line, L + (size_t)j * (size_t)n, j)) / L[(size_t)j * (size_t)n + (size_t)j];
        }
        double pivot = diagonal - dot(line, line, i);
        if (!(pivot > batch->t.fine_rank * diagonal)) return 0;
        line[i] = sqrt(pivot);
        for (Index j = i + 1; j < n; j++) line[j] = 0.0;
    }
    return 1;
}

/* Write sample b white into metric.batch; 0 if its metric is not positive definite. What all samples share is done once.
   Rows that are not in `only`, if it is given, may be zero instead: they are not looked at. */
FN int whiten(const CaffnetBatch *batch, int64_t b, Metric *metric, const int8_t *only) {
    Index n = (Index)batch->n, m = (Index)batch->m;
    int single = (int)batch->single, shared = metric->ready && batch->metric_step == 0;
    if (!shared && !factorise(batch, b, metric)) return metric->ready = 0;
    for (Index j = 0; j < n; j++) {
        metric->f[j] = load(batch->f, b * batch->f_step + j, single);
        if (batch->w) metric->w[j] = load(batch->w, b * batch->w_step + j, single);
    }
    if (metric->linear) { /* the minimum without rows, -M^-1 q, white */
        for (Index j = 0; j < n; j++) metric->f[j] = times_power(-metric->f[j], metric->exponent);
        solve_lower(metric, metric->f, n);
    } else to_white(metric, metric->f, n);
    if (batch->w) to_white(metric, metric->w, n);
    for (Index i = 0; i < m; i++) {
        metric->low[i] = lower_of(batch, b, i);
        metric->high[i] = upper_of(batch, b, i);
    }
    metric->batch.start = batch->start ? batch->start + b * batch->m : NULL;
    if (shared && batch->A_step == 0) return 1;
    for (Index i = 0; i < m; i++) {
        double *a = metric->A + (size_t)i * (size_t)n;
        int asked = !only || only[i] != 0 || (batch->metric_step == 0 && batch->A_step == 0);
        for (Index j = 0; j < n; j++) a[j] = asked ? load(batch->A, b * batch->A_step + (int64_t)i * n + j, single) : 0.0;
        if (asked) solve_lower(metric, a, n);
    }
    forget_factors(&metric->work);
    return metric->ready = read_matrix(&metric->batch, 0, &metric->work.rows);
}

/* Move work->y onto the rows `held`, nearest in M: residuals of the user's rows in pairs, the step in white. */
FN void refine_in_metric(Work *work, Metric *metric) {
    const Rows *own = &work->rows, *white = &metric->work.rows;
    Face *face = &metric->work.face;
    Index n = outputs_of(own);
    double *step = metric->f, *r = face->r;
    for (Index j = 0; j < face->k; j++) {
        Index i = face->rows[j];
        Pair gap = fine_gap(own, i, face->sides[j] > 0, work->y);
        r[j] = times_power(gap.high + gap.low, white->exponent[i] - own->exponent[i]);
    }
    for (Index j = 0; j < n; j++) step[j] = 0.0;
    solve_transposed(face, r, n);
    move_all(face, r, step, n);
    from_white(metric, step, n);
    for (Index j = 0; j < n; j++) work->y[j] += step[j];
}

/* Put the user's numbers of work->y into work->spare, within plain bounds; the state of `check`. */
FN int check_rounded(Work *work) {
    const Rows *s = &work->rows;
    copy(work->spare, work->y, outputs_of(s));
    round_within_bounds(work, work->spare);
    return check(s, work->spare, largest(work->spare, outputs_of(s)), work->face.held, 1);
}

/* Bring the white answer z to the user's outputs, in work->y with its rows in face.held. */
FN void return_from_white(Work *work, Metric *metric) {
    Index n = outputs_of(&work->rows);
    mark_rows(work, metric->active);
    copy(work->y, metric->z, n);
    from_white(metric, work->y, n);
    for (Index j = 0; j < n; j++) work->y[j] = times_power(work->y[j], work->rows.shift);
}

/* Refine the point in work->y until the user's rows accept it; the state of `check`. */
FN int settle_in_metric(Work *work, Metric *metric) {
    int state = check_rounded(work);
    for (int again = 0; again < 6 && state == REJECTED; again++) {
        if (again == 0) {
            metric->work.rows.direct.family = ANY; /* factors are needed */
            rebuild_face(&metric->work, metric->active);
        }
        refine_in_metric(work, metric);
        state = check_rounded(work);
    }
    copy(work->y, work->spare, outputs_of(&work->rows));
    return state == CAFFNET_INSIDE ? CAFFNET_PROJECTED : state;
}

/* Put the point nearest in M of those whose soft rows give way to their levels into work->y, where it stands at the point
   nearest in the Euclidean metric, which stays if rounding is in the way. */
FN void relax_in_metric(Work *work, Metric *metric) {
    Index n = outputs_of(&work->rows);
    double *goal = work->other;
    keep_answer(work);
    return_from_white(work, metric);
    relax_soft_rows(work, 0);
    int state = settle_in_metric(work, metric);
    if (state == REJECTED) { /* a near miss: the nearest point to it, in any metric */
        copy(goal, work->y, n);
        restart(work);
        if (dual(work, goal, work->y, NULL, work->t.search, work->t.feasibility) >= 0) state = settle_point(work, goal, 0.0);
        mark_rows(work, metric->active);
    }
    restore_bounds(work);
    if (state == REJECTED) restore_answer(work);
}

/* Whether a marked row has a column that no other row has, as one with a slack does. Then it does not depend on the others,
   however small that entry is: the digits of float32 are those of the data, not of a slack. */
FN int has_slack(const Rows *s, const int8_t *marks) {
    for (Index c = 0; c < outputs_of(s); c++) {
        Index row = -1, count = 0;
        for (Index i = 0; i < rows_of(s); i++)
            if (s->A[(size_t)i * (size_t)outputs_of(s) + (size_t)c] != 0.0) {
                count++;
                row = i;
            }
        if (count == 1 && marks[row] != 0) return 1;
    }
    return 0;
}

/* Answer the white sample. A row with a slack excludes no other: where it seems to, in the digits of float32, the sample is
   searched again with those of float64, and its answer has a large slack. */
FN int decide_white(Metric *metric, CaffnetProof *proof) {
    Work *white = &metric->work;
    double rank = white->t.rank;
    int state = decide(&metric->batch, 0, white, proof);
    if (state != CAFFNET_INFEASIBLE || !(rank > white->t.fine_rank)) return state;
    for (Index i = 0; i < rows_of(&white->rows); i++) white->seed[i] = white->conflict[i] != 0.0;
    if (!has_slack(&white->rows, white->seed)) return state;
    set_rank(white, white->t.fine_rank);
    state = decide(&metric->batch, 0, white, proof);
    set_rank(white, rank);
    return state;
}

/* Whether the metric of sample b is the Euclidean one. */
FN int is_euclidean(const CaffnetBatch *batch, int64_t b) {
    int64_t n = batch->n, first = b * batch->metric_step, count = batch->diagonal ? n : n * n;
    for (int64_t e = 0; e < count; e++)
        if (load(batch->metric, first + e, (int)batch->single) != (batch->diagonal || e % (n + 1) == 0 ? 1.0 : 0.0)) return 0;
    return 1;
}

/* Answer sample b in its metric. */
FN int decide_in_metric(const CaffnetBatch *batch, int64_t b, Work *work, Metric *metric, CaffnetProof *proof) {
    Rows *s = &work->rows;
    Index n = outputs_of(s);
    if (is_euclidean(batch, b)) return decide(batch, b, work, proof);
    int loaded = load_sample(batch, b, work);
    s->direct.family = ANY;
    if (loaded == CAFFNET_INVALID || !whiten(batch, b, metric, NULL)) return write_nothing(batch, b, CAFFNET_INVALID);
    /* A feasible f is returned in any metric; `strict` moves it by rounding only. */
    if (check(s, work->f, largest(work->f, n), NULL, 1) != REJECTED) return decide(batch, b, work, proof);
    double size = size_of_sample(work);
    int white = decide_white(metric, proof), state = REJECTED;
    if (white == CAFFNET_INVALID) return write_nothing(batch, b, CAFFNET_INVALID); /* beyond the range of numbers */
    if (white != CAFFNET_INFEASIBLE && white != CAFFNET_RELAXED) {
        return_from_white(work, metric);
        state = settle_in_metric(work, metric);
        /* A white row that is exceeded by rounding, where more rows than needed meet, says nothing about the user's rows. */
        if (state == CAFFNET_PROJECTED && metric->work.unproven) state = CAFFNET_WITHIN_TOL;
        if (state == REJECTED) state = project_near_miss(work, (int)batch->strict, proof);
    } else state = approach(work, (int)batch->strict, proof);
    state = exclude_far_point(batch, b, work, state, size, proof);
    state = rescale_to_hard_rows(batch, b, work, state, proof);
    if (state == CAFFNET_INFEASIBLE && white == CAFFNET_INFEASIBLE) { /* between its rows, nearest in M */
        return_from_white(work, metric);
        round_point(work, work->y);
    } else if (state == CAFFNET_RELAXED && white == CAFFNET_RELAXED && s->shift == 0) relax_in_metric(work, metric);
    if (state != CAFFNET_INFEASIBLE && state != CAFFNET_RELAXED && !is_representable(work)) state = into_range(work, proof);
    if (state == CAFFNET_RELAXED) {
        copy(work->g, work->y, n);
        return write_relaxed(batch, b, work);
    }
    if (batch->strict && state != CAFFNET_INFEASIBLE) {
        start_from_answer(work);
        rebuild_face(work, metric->active);
        return write_strictly(batch, b, work, CAFFNET_ACTIVE, proof);
    }
    return write_outcome(batch, b, work, state);
}

/* The gradients of one sample in its metric. */
FN void differentiate_in_metric(const CaffnetBatch *batch, const CaffnetGradients *to, int64_t b, Work *work,
                                Metric *metric) {
    Work *white = &metric->work;
    Face *face = &white->face;
    Index n = outputs_of(&work->rows);
    const int8_t *active = batch->active + b * batch->m;
    int single = work->single, held = 0, numbers = 1, relaxed = batch->status[b] == CAFFNET_RELAXED;
    Level level = {0};
    for (int64_t i = 0; i < batch->m && !held; i++) held = active[i] != 0;
    if (!held || !whiten(batch, b, metric, batch->tangent ? NULL : active)) {
        differentiate(batch, to, b, work);
        return;
    }
    double *v = metric->z, *p = work->ordinary, *y = work->y, *apart = work->other, *q = white->other;
    (void)load_sample(&metric->batch, 0, white);
    if (batch->status[b] == CAFFNET_INFEASIBLE) release_broken_rows(&white->rows, active);
    white->rows.direct.family = relaxed ? ANY : gradient_family(&white->rows);
    for (Index j = 0; j < n; j++) {
        double f = load(batch->f, b * batch->f_step + j, single);
        v[j] = load(to->v, b * to->v_step + j, single);
        numbers = numbers && is_finite(v[j]);
        y[j] = load(batch->value, b * n + j, single);
        apart[j] = (batch->w ? rounded(f + load(batch->w, b * batch->w_step + j, single), single) : f) - y[j];
    }
    double *z = white->y;
    copy(z, y, n);
    to_white(metric, z, n);
    for (Index j = 0; j < n; j++) z[j] = times_power(z[j], white->rows.shift);
    solve_lower(metric, v, n);
    if (single && has_slack(&white->rows, active)) set_rank(white, white->t.fine_rank);
    Index k = reduce(white, active, z, v, p, q, relaxed, &level);
    if (single) set_rank(white, work->t.rank);
    double *user = work->spare; /* p in the user's outputs */
    copy(user, p, n);
    from_white(metric, user, n);
    for (Index j = 0; j < k; j++)
        row_gradient(&white->rows, face->rows[j], face->sides[j], times_power(face->r[j], -white->rows.shift), q[j], user, y, 1.0, to, b);
    level_gradient(&white->rows, &level, active, user, y, 1.0, to, b);
    if (to->metric)
        for (Index i = 0; i < n; i++) {
            double *line = to->metric + b * to->metric_step + (metric->diagonal ? 0 : (int64_t)i * n);
            if (metric->diagonal) line[i] += times_power(user[i] * apart[i], metric->exponent);
            for (Index j = 0; j < n && !metric->diagonal; j++)
                line[j] += times_power(0.5 * (user[i] * apart[j] + user[j] * apart[i]), metric->exponent);
        }
    double *out = metric->f;
    copy(out, p, n);
    times_lower(metric, out, n);
    for (Index j = 0; to->w && j < n; j++) store(to->w, b * n + j, out[j], single);
    if (!to->f) return;
    if (batch->tangent && numbers) {
        tangent(white, active, z, v, p);
        copy(out, p, n);
        times_lower(metric, out, n);
    }
    for (Index j = 0; j < n; j++)
        store(to->f, b * n + j, batch->tangent && !numbers ? load(to->v, b * to->v_step + j, single) : out[j], single);
}
