/* Quadratic programs: the minimum of y' M y / 2 + q' y on the set, with its multipliers; and linear systems on a face.

   With M = L L' and z = L' y, the minimum is the projection of -L^-1 q on the white rows (metric.c). M^-1 q, which is far
   away where M is nearly singular, is never formed. On its face

     [M A'; A 0] [y; lambda] = [-q; b].

   White rows are a' = L^-1 a = sum R q, with the factors of the face. So for right sides (v, u) the system has the solution

     c = R^-T u,   p = L^-T (v' - Q' (Q v' - c)),   s = R^-1 (Q v' - c),   v' = L^-1 v.

   y and lambda are refined by it: v and u are what they miss, summed in pairs. Then they are judged: rows as ever, lambda by
   its signs and by -q - M y - A' lambda, which may be no more than rounding of its terms. What passes is the minimum. */
#include "internal.h"

/* The face of the rows in `active`: none where f itself is the answer, though it has equalities. `known`: it is there. */
FN void build_face(Work *work, const int8_t *active, int known) {
    int held = 0;
    for (Index i = 0; i < rows_of(&work->rows) && !held; i++) held = active[i] != 0;
    if (!held) clear_face(&work->rows, &work->face);
    else if (!known) {
        work->rows.direct.family = ANY; /* factors are needed */
        rebuild_face(work, active);
    }
}

/* Solve on the white face of k rows: v, (n,), becomes L' p; u, (k,) of scaled rows, is used up; s gets their part. */
FN void solve_white(Face *face, double *v, double *u, double *s, Index n) {
    along_all(face, v, face->d, n);
    solve_transposed(face, u, n);
    for (Index j = 0; j < face->k; j++) face->d[j] -= u[j];
    move_all(face, face->d, v, n);
    in_rows(face, 0, face->d, s, n);
}

/* high + low += x a, entry by entry, with the error of every operation; size += the sizes. */
FN void add_finely(double *RESTRICT high, double *RESTRICT low, double *RESTRICT size, double x, const double *RESTRICT a, Index n) {
    for (Index j = 0; j < n; j++) {
        double term = x * a[j], rest = fma(x, a[j], -term), sum = high[j] + term, part = sum - high[j];
        low[j] += ((high[j] - (sum - part)) + (term - part)) + rest;
        high[j] = sum;
        size[j] += fabs(term);
    }
}

/* b - a y in pairs, eight side by side. */
FN double fine_rest(double b, const double *RESTRICT a, const double *RESTRICT y, Index n) {
    double high[8] = {0.0}, low[8] = {0.0}, size[8] = {0.0};
    Pair total = {b, 0.0};
    Index j = 0;
    for (; j + 8 <= n; j += 8)
        for (int c = 0; c < 8; c++) add_finely(high + c, low + c, size + c, -y[j + c], a + j + c, 1);
    for (int c = 0; c < 8; c++) total = pair_add(pair_add(total, high[c]), low[c]);
    for (; j < n; j++) total = pair_add_product(total, -a[j], y[j]);
    return total.high + total.low;
}

/* What a minimum is refined with: its multipliers, (m,), of scaled rows and the scaled metric; what stationarity misses,
   (n,), and the sum of the sizes of its terms. `origin`: the projection is 0, and what a step adds to it is rounding, which no
   allowance relative to the point itself accepts. */
typedef struct {
    double *lambda, *miss, *low, *size;
    int origin;
} Balance;

/* balance.miss = -q - M y - A' lambda; M = 0 without a metric. */
FN void stationarity(const CaffnetBatch *batch, int64_t b, const Work *work, const Metric *metric, Balance *balance) {
    const Rows *s = &work->rows;
    Index n = outputs_of(s), exponent = metric ? metric->exponent : 0;
    for (Index j = 0; j < n; j++) {
        balance->miss[j] = -times_power(load(batch->f, b * batch->f_step + j, work->single), exponent);
        balance->low[j] = 0.0;
        balance->size[j] = fabs(balance->miss[j]);
    }
    for (Index j = 0; metric && j < n; j++) {
        if (metric->diagonal) add_finely(balance->miss + j, balance->low + j, balance->size + j, -work->y[j], metric->M + j, 1);
        else add_finely(balance->miss, balance->low, balance->size, -work->y[j], metric->M + (size_t)j * (size_t)n, n);
    }
    for (Index i = 0; i < rows_of(s); i++)
        if (balance->lambda[i] != 0.0)
            add_finely(balance->miss, balance->low, balance->size, -balance->lambda[i], s->A + (size_t)i * (size_t)n, n);
    for (Index j = 0; j < n; j++) balance->miss[j] += balance->low[j];
}

/* Whether the residual is at most a `share` of its terms; a multiplier that should vanish is rounding of the others. */
FN int is_stationary(const Work *work, const Balance *balance, double share) {
    Index n = outputs_of(&work->rows);
    double least = (work->single ? 0x1p-23 : 0x1p-52) * largest(balance->size, n) + work->t.underflow;
    for (Index j = 0; j < n; j++)
        if (!(fabs(balance->miss[j]) <= share * balance->size[j] + least)) return 0;
    return 1;
}

/* What work->y misses of the rows of the white face, into its face.r; whether that is rounding. */
FN int meets_rows(Work *work, Metric *metric) {
    const Rows *own = &work->rows, *white = &metric->work.rows;
    Face *face = &metric->work.face;
    Index n = outputs_of(own);
    double size = largest(work->y, n);
    int met = 1;
    for (Index j = 0; j < face->k; j++) {
        Index i = face->rows[j];
        double bound = bound_of(own, i, face->sides[j] > 0);
        double missed = fine_rest(bound, own->A + (size_t)i * (size_t)n, work->y, n);
        double counts = size_at(own, i, work->y, size) + fabs(bound);
        met = met && fabs(missed) <= work->t.feasibility * counts + work->t.underflow;
        face->r[j] = times_power(missed, white->exponent[i] - own->exponent[i]);
    }
    return met;
}

/* Move work->y and the multipliers by the solution of the system with what they miss. */
FN void refine_minimum(Work *work, Metric *metric, Balance *balance) {
    const Rows *own = &work->rows, *white = &metric->work.rows;
    Face *face = &metric->work.face;
    Index n = outputs_of(own);
    double *u = face->r, *s = metric->work.other, *v = balance->miss;
    solve_lower(metric, v, n);
    solve_white(face, v, u, s, n);
    from_white(metric, v, n);
    for (Index j = 0; j < n && !balance->origin; j++) work->y[j] += v[j];
    for (Index j = 0; j < face->k; j++) {
        Index i = face->rows[j];
        balance->lambda[i] += times_power(s[j], white->exponent[i] - own->exponent[i]);
    }
}

/* Refine work->y and its multipliers on the white face until what they miss is rounding. */
FN void refine_fully(const CaffnetBatch *batch, int64_t b, Work *work, Metric *metric, Balance *balance) {
    for (int again = 0; again < 6; again++) {
        int met = meets_rows(work, metric);
        stationarity(batch, b, work, metric, balance);
        /* The first step finds the multipliers, the second corrects the effect of their rounding on y. */
        if (again > 1 && met && is_stationary(work, balance, 0x1p-52)) return;
        refine_minimum(work, metric, balance);
    }
}

/* Drop rows whose multiplier is 0 up to rounding and has the wrong sign. Whether there were any. */
FN int release(Work *work, Metric *metric, Balance *balance) {
    Face *face = &metric->work.face;
    int any = 0;
    for (Index j = face->k - 1; j >= face->base; j--) {
        Index i = face->rows[j];
        if (balance->lambda[i] * face->sides[j] >= 0.0) continue;
        drop(face, j, outputs_of(&work->rows));
        balance->lambda[i] = 0.0;
        metric->active[i] = work->face.held[i] = 0;
        any = 1;
    }
    return any;
}

/* Refine the minimum in work->y, and put it on the user's rows; the state of `check`. `proven`: it is the minimum. */
FN int polish(const CaffnetBatch *batch, int64_t b, Work *work, Metric *metric, Balance *balance, int *proven) {
    const Rows *s = &work->rows;
    for (Index i = 0; i < rows_of(s); i++) balance->lambda[i] = 0.0;
    balance->origin = largest(metric->z, outputs_of(s)) == 0.0;
    refine_fully(batch, b, work, metric, balance);
    if (release(work, metric, balance)) {
        refine_fully(batch, b, work, metric, balance);
        (void)release(work, metric, balance);
    }
    int state = settle_in_metric(work, metric);
    if (state == REJECTED) return REJECTED;
    stationarity(batch, b, work, metric, balance);
    *proven = meets_rows(work, metric) && is_stationary(work, balance, work->t.feasibility);
    return *proven ? CAFFNET_PROJECTED : CAFFNET_WITHIN_TOL;
}

/* Half of the rows are about this near to the origin, in scaled units: the mean of the exponents of their bounds. */
FN Index room_of(const Work *work) {
    const Rows *s = &work->rows;
    Index sum = 0, count = 0;
    for (Index i = 0; i < rows_of(s); i++) {
        double near = smaller(fabs(s->low[i]), fabs(s->high[i]));
        if (near == 0.0 || !is_finite(near)) continue;
        sum += exponent_of(near);
        count++;
    }
    return count > 0 ? sum / count : 0;
}

/* Add to the multipliers what the rows of the face can take of balance.miss, within their signs. */
FN void add_multipliers(Work *work, Balance *balance) {
    const Rows *s = &work->rows;
    Face *face = &work->face;
    double *u = face->r, *part = work->spare;
    if (!s->boxed) {
        if (!work->ready) { /* its marks are not those of its factors */
            for (Index i = 0; i < rows_of(s); i++) work->stood[i] = face->held[i];
            rebuild_face(work, work->stood);
        }
        for (Index j = 0; j < face->k; j++) u[j] = 0.0;
        solve_white(face, balance->miss, u, part, outputs_of(s));
        for (Index j = 0; j < face->k; j++) balance->lambda[face->rows[j]] += part[j];
    }
    for (Index i = 0; i < rows_of(s); i++) {
        Index j = s->plain[i];
        if (face->held[i] == 0) continue;
        if (s->boxed) balance->lambda[i] += s->sign[i] * balance->miss[j];
        if (!s->equal[i] && balance->lambda[i] * (double)face->held[i] < 0.0) balance->lambda[i] = 0.0;
    }
}

/* Minimise q' y over sample b by one far step, the projection of -t q: its end if the multipliers prove it. */
FN int minimise_linear(const CaffnetBatch *batch, void *multiplier, int64_t b, int sound, Work *work, CaffnetProof *proof) {
    Rows *s = &work->rows;
    Index n = outputs_of(s), m = rows_of(s);
    int single = (int)batch->single, state = sound ? load_sample(batch, b, work) : CAFFNET_INVALID;
    for (Index i = 0; i < m; i++) store(multiplier, b * batch->m + i, NAN, single);
    if (state == CAFFNET_INVALID) return write_nothing(batch, b, state);
    double top = largest(work->f, n);
    Index far = top > 0.0 && s->shift == 0 ? room_of(work) - exponent_of(top) + 16 : -2000;
    for (Index j = 0; j < n; j++) work->g[j] = work->f[j] = far > -900 && far < 900 ? -times_power(work->f[j], far) : 0.0;
    if (state != CONFLICT) state = project(work, CAFFNET_ACTIVE, batch->start ? batch->start + b * m : NULL);
    if (state < 0) return write_outcome(batch, b, work, approach(work, 0, proof));
    Balance balance = {work->unit, work->ordinary, work->other, work->walk.g, 0};
    int proven = 0;
    for (Index i = 0; i < m; i++) balance.lambda[i] = 0.0;
    for (int again = 0; again < 3 && !proven && s->shift == 0; again++) {
        stationarity(batch, b, work, NULL, &balance);
        add_multipliers(work, &balance);
        stationarity(batch, b, work, NULL, &balance);
        proven = is_stationary(work, &balance, work->t.feasibility);
    }
    for (Index i = 0; i < m && proven; i++)
        store(multiplier, b * batch->m + i, times_power(balance.lambda[i], s->exponent[i]), single);
    return write_answer(batch, b, work, proven ? CAFFNET_PROJECTED : CAFFNET_WITHIN_TOL);
}

/* Minimise over sample b; its status. */
FN int minimise(const CaffnetBatch *batch, void *multiplier, int64_t b, int sound, Work *work, Metric *metric,
                CaffnetProof *proof) {
    Rows *s = &work->rows;
    Index n = outputs_of(s), m = rows_of(s);
    int single = (int)batch->single, state = CAFFNET_INVALID;
    for (Index i = 0; i < m; i++) store(multiplier, b * batch->m + i, NAN, single);
    if (sound && load_sample(batch, b, work) != CAFFNET_INVALID && whiten(batch, b, metric, NULL)) {
        copy(work->f, metric->f, n);
        from_white(metric, work->f, n);
        for (Index j = 0; j < n; j++) work->g[j] = work->f[j] = times_power(work->f[j], s->shift);
        state = decide(&metric->batch, 0, &metric->work, proof);
    }
    if (state == CAFFNET_INVALID) return write_nothing(batch, b, state);
    if (state == CAFFNET_INFEASIBLE) return write_outcome(batch, b, work, approach(work, 0, proof));
    build_face(&metric->work, metric->active, metric->work.ready && !metric->work.rows.boxed);
    return_from_white(work, metric);
    Balance balance = {work->unit, work->ordinary, work->other, work->walk.g, 0};
    int inside = state == CAFFNET_INSIDE, proven = 0;
    state = s->shift == 0 ? polish(batch, b, work, metric, &balance, &proven) : REJECTED;
    if (state == REJECTED) state = project_near_miss(work, 0, proof); /* start again from here */
    else {
        if (inside && state == CAFFNET_PROJECTED) state = CAFFNET_INSIDE;
        for (Index i = 0; i < m && proven; i++)
            store(multiplier, b * batch->m + i, times_power(balance.lambda[i], s->exponent[i] - metric->exponent), single);
    }
    return write_outcome(batch, b, work, state);
}

/* Solve the system of sample b. */
FN void solve_system(const CaffnetBatch *batch, const CaffnetSystem *system, int64_t b, int sound, Work *work, Metric *metric) {
    Work *white = metric ? &metric->work : work;
    const CaffnetBatch *rows = metric ? &metric->batch : batch;
    Rows *s = &white->rows;
    Face *face = &white->face;
    Index n = outputs_of(s), m = rows_of(s);
    int single = (int)batch->single;
    int64_t first = b * batch->n, line = b * batch->m;
    const int8_t *active = batch->active + line;
    double *v = work->ordinary, *u = work->walk.g, *q = work->other;
    sound = sound && (!metric || whiten(batch, b, metric, active)) && load_sample(rows, metric ? 0 : b, white) != CAFFNET_INVALID;
    for (Index i = 0; i < m; i++) store(system->s, line + i, sound ? 0.0 : NAN, single);
    for (Index j = 0; j < n; j++) {
        v[j] = sound ? load(system->v, b * system->v_step + j, single) : NAN;
        if (metric) v[j] = times_power(v[j], metric->exponent);
    }
    if (sound && s->boxed && !metric) { /* rows +-y_j: no factors are needed, nor their memory */
        for (Index i = 0; i < m; i++) {
            if (active[i] == 0) continue;
            Index j = s->plain[i];
            double sign = s->sign[i];
            double right = system->u ? times_power(load(system->u, b * system->u_step + i, single), s->exponent[i]) : 0.0;
            store(system->s, line + i, times_power(sign * v[j] - right, s->exponent[i]), single);
            v[j] = sign * right;
        }
    } else if (sound) {
        build_face(white, active, 0);
        for (Index j = 0; j < face->k; j++) {
            Index i = face->rows[j];
            u[j] = system->u ? times_power(load(system->u, b * system->u_step + i, single), s->exponent[i]) : 0.0;
        }
        if (metric) solve_lower(metric, v, n);
        solve_white(face, v, u, q, n);
        for (Index j = 0; j < face->k; j++) {
            Index i = face->rows[j];
            store(system->s, line + i, times_power(q[j], s->exponent[i] - (metric ? metric->exponent : 0)), single);
        }
        if (metric) from_white(metric, v, n);
    }
    for (Index j = 0; j < n; j++) store(system->p, first + j, v[j], single);
}
