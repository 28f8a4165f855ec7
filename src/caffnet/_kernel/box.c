/* Sets made of bounds on single outputs: every output is computed separately, so nothing is factorised.

   With w = 0 the answer is a clamp. With w, the candidates of an output are its bounds and, where g_j is within them,
   g_j itself. A p-norm grows with each |y_j - f_j|, so FULL takes the candidate nearest to f_j for each output. ACTIVE
   takes the clamp of g, or bounds where f leaves the box and g elsewhere, whichever is nearer to f.

   A large box, whose rows are the identity, is answered in one pass over its numbers: clip_sample and its gradient.
   Unusual samples (w, NaN, bounds that exclude each other) are left to the rest of the kernel. */
#include "internal.h"

/* Whether a sparse matrix is the identity. */
FN int is_identity(const CaffnetBatch *batch) {
    const int32_t *start = batch->row_start, *columns = batch->columns;
    int64_t n = batch->n;
    int same = start && batch->m == n && start[n] == n;
    for (int64_t j = 0; same && j < n; j += 1024) {
        int64_t end = j + 1024 < n ? j + 1024 : n;
        int wrong = 0;
        for (int64_t i = j; i < end; i++) wrong |= (start[i] != i) | (columns[i] != i);
        if (batch->single)
            for (int64_t i = j; i < end; i++) wrong |= ((const float *)batch->A)[i] != 1.0f;
        else
            for (int64_t i = j; i < end; i++) wrong |= ((const double *)batch->A)[i] != 1.0;
        same = !wrong;
    }
    return same;
}

/* One pass over a sample, in the user's numbers; 1 if the sample is an ordinary one. `outside` is set if f is outside. */
#define CLIP(Number)                                                                                                 \
    {                                                                                                                \
        const Number *RESTRICT f = (const Number *)batch->f + b * batch->f_step;                                     \
        const Number *RESTRICT low = (const Number *)batch->lower + b * batch->lower_step;                           \
        const Number *RESTRICT high = (const Number *)batch->upper + b * batch->upper_step;                          \
        Number *RESTRICT y = (Number *)batch->value + b * batch->n;                                                  \
        int8_t *RESTRICT active = batch->active + b * batch->m;                                                      \
        Number odd = 0, out = 0; /* counts, and loops over one type each: for vector instructions */                 \
        for (int64_t first = 0; first < batch->n; first += 512) {                                                    \
            int count = (int)(batch->n - first < 512 ? batch->n - first : 512);                                      \
            Number wrong = 0, moved = 0, equal = 0;                                                                  \
            for (int e = 0; e < count; e++) {                                                                        \
                Number x = f[first + e], l = low[first + e], h = high[first + e], c = x < l ? l : x;                 \
                c = c > h ? h : c;                                                                                   \
                wrong += (l <= h ? (Number)0 : (Number)1) + (c - c) + (x - x);                                       \
                moved += c != x ? (Number)1 : (Number)0;                                                             \
                equal += l == h ? (Number)1 : (Number)0;                                                             \
                y[first + e] = c;                                                                                    \
            }                                                                                                        \
            for (int e = 0; e < count; e++)                                                                          \
                active[first + e] = (int8_t)((f[first + e] > y[first + e]) - (f[first + e] < y[first + e]));         \
            for (int e = 0; e < count && equal > 0; e++)                                                             \
                if (low[first + e] == high[first + e]) active[first + e] = 1;                                        \
            odd += wrong;                                                                                            \
            out += moved;                                                                                            \
        }                                                                                                            \
        *outside = out > 0;                                                                                          \
        return odd == 0;                                                                                             \
    }
FN int clip_double(const CaffnetBatch *batch, int64_t b, int *outside) CLIP(double)
FN int clip_single(const CaffnetBatch *batch, int64_t b, int *outside) CLIP(float)

/* Answer sample b of an identity; its status, or REJECTED for a sample that is not ordinary. */
FN int clip_sample(const CaffnetBatch *batch, int64_t b) {
    int outside = 0;
    if (batch->w || !(batch->single ? clip_single(batch, b, &outside) : clip_double(batch, b, &outside))) return REJECTED;
    if (!outside && batch->m > 0) memset(batch->active + b * batch->m, 0, (size_t)batch->m);
    batch->status[b] = outside ? CAFFNET_PROJECTED : CAFFNET_INSIDE;
    return batch->status[b];
}

/* The gradient of f, without the part that goes to the bounds. */
#define PASS(Number)                                                                                                 \
    {                                                                                                                \
        const Number *RESTRICT v = (const Number *)to->v + b * to->v_step;                                           \
        const int8_t *RESTRICT active = batch->active + b * batch->m;                                                \
        Number *RESTRICT f = (Number *)to->f + b * batch->n;                                                         \
        for (int64_t j = 0; j < batch->n; j++) f[j] = active[j] ? (Number)0 : v[j];                                  \
    }
FN void pass_double(const CaffnetBatch *batch, const CaffnetGradients *to, int64_t b) PASS(double)
FN void pass_single(const CaffnetBatch *batch, const CaffnetGradients *to, int64_t b) PASS(float)

/* The gradients of sample b of an identity, from its rows: for an output at a bound f gets 0, and the bound the gradient.
   With `tangent` f keeps a gradient that leads inside, at every bound that y touches. */
FN void clip_gradient(const CaffnetBatch *batch, const CaffnetGradients *to, int64_t b) {
    const int8_t *active = batch->active + b * batch->m;
    int single = (int)batch->single, held = 0, passes = batch->status[b] <= CAFFNET_WITHIN_TOL;
    double top = 0.0, share = batch->t.feasibility, fine = SHARE_OF_ALL * batch->t.search;
    if (passes && !batch->tangent && !to->lower && !to->upper && to->f) {
        if (single) pass_single(batch, to, b);
        else pass_double(batch, to, b);
        return;
    }
    for (int64_t j = 0; j < batch->n; j++) {
        held |= active[j];
        if (batch->tangent) top = larger(top, fabs(load(batch->value, b * batch->n + j, single)));
    }
    for (int64_t j = 0; j < batch->n; j++) {
        double v = load(to->v, b * to->v_step + j, single), p = active[j] ? 0.0 : v, inward = p;
        if (!held && !passes) p = inward = 0.0;
        if (held && batch->tangent) {
            double low = lower_of(batch, b, j), high = upper_of(batch, b, j), y = load(batch->value, b * batch->n + j, single);
            double size = 2.0 * (share > fine ? larger(fabs(y), fine / share * top) : top); /* as size_at has it */
            int equal = low == high && (passes || active[j] != 0); /* a broken one binds nothing */
            inward = v;
            if (equal || active[j] > 0 || lies_on(y, high, size, &batch->t)) inward = larger(inward, 0.0);
            if (equal || active[j] < 0 || lies_on(y, low, size, &batch->t)) inward = smaller(inward, 0.0);
            if (v != v) inward = v;
        }
        if (to->f) store(to->f, b * batch->n + j, inward, single);
        if (active[j] > 0 && to->upper) to->upper[b * to->upper_step + j] += v;
        if (active[j] < 0 && to->lower) to->lower[b * to->lower_step + j] += v;
    }
}

/* Hold each output at its side, by the first row that does it, equalities before all others. `side` is used up. */
FN void mark_box(const Rows *s, Face *face, int8_t *side, const double *low, const double *high) {
    for (int equalities = 1; equalities >= 0; equalities--)
        for (Index i = 0; i < rows_of(s); i++) {
            Index j = s->plain[i];
            if (s->equal[i] != equalities || j < 0 || side[j] == 0) continue;
            int above = side[j] > 0;
            if (!puts_bound(s, i, above, above ? high[j] : low[j])) continue;
            face->held[i] = s->equal[i] || above == (s->sign[i] > 0.0) ? 1 : -1;
            side[j] = 0;
        }
}

/* One output of FULL: its side, and where it lies. */
FN int8_t box_choice(double f, double g, double low, double high, double *y) {
    if (low == high || f < low || f > high) {
        *y = f > low ? high : low;
        return f > low ? 1 : -1;
    }
    double below = f - low, above = high - f;
    if (low <= g && g <= high && fabs(g - f) <= below && fabs(g - f) <= above) {
        *y = g;
        return 0;
    }
    *y = below <= above ? low : high;
    return below <= above ? -1 : 1;
}

/* The answer in a box, in work->y, with its rows in face.held; 0 if the bounds exclude each other. */
FN int box_point(Work *work, int search) {
    const Rows *s = &work->rows;
    Index n = outputs_of(s);
    double *low = work->spare, *high = work->other, *y = work->y, *clamped = work->face.z;
    const double *f = work->f, *g = work->g;
    int8_t *side = work->seed;
    if (limits_of_outputs(s, low, high) >= 0) return 0;
    clear_face(s, &work->face);
    if (search != CAFFNET_ACTIVE) {
        for (Index j = 0; j < n; j++) side[j] = box_choice(f[j], g[j], low[j], high[j], &y[j]);
        mark_box(s, &work->face, side, low, high);
        return 1;
    }
    int feasible = 1, any = 0;
    Index nearest = 0;
    double room = HUGE_VAL;
    for (Index j = 0; j < n; j++) {
        int fixed = low[j] == high[j] || f[j] < low[j] || f[j] > high[j];
        y[j] = fixed ? (f[j] > low[j] ? high[j] : low[j]) : g[j];
        feasible = feasible && low[j] <= y[j] && y[j] <= high[j];
        clamped[j] = smaller(larger(g[j], low[j]), high[j]);
        any = any || clamped[j] != g[j] || low[j] == high[j];
        double here = smaller(g[j] - low[j], high[j] - g[j]);
        if (here < room) {
            room = here;
            nearest = j;
        }
    }
    any = any || !(room < HUGE_VAL); /* no output has a bound: there is no face */
    if (!any) /* g is inside: the nearest bound of all */
        clamped[nearest] = g[nearest] - low[nearest] < high[nearest] - g[nearest] ? low[nearest] : high[nearest];
    int own = feasible && distance(y, f, n, work->norm) <= distance(clamped, f, n, work->norm);
    for (Index j = 0; j < n; j++) {
        int fixed = low[j] == high[j] || (own ? f[j] < low[j] || f[j] > high[j] : clamped[j] != g[j] || (!any && j == nearest));
        if (!own) y[j] = clamped[j];
        side[j] = !fixed ? 0 : y[j] == high[j] && (low[j] < high[j] || f[j] > low[j]) ? 1 : -1;
    }
    mark_box(s, &work->face, side, low, high);
    return 1;
}

/* Mark in direct.side the outputs that held bounds fix, with their values in y if that is given. */
FN void fix_outputs(const Rows *s, const int8_t *held, double *y) {
    const Direct *d = &s->direct;
    for (Index j = 0; j < outputs_of(s); j++) d->side[j] = 0;
    for (Index i = 0; i < rows_of(s); i++) {
        if (held[i] == 0 || s->plain[i] < 0) continue;
        d->side[s->plain[i]] = 1;
        if (y) y[s->plain[i]] = s->sign[i] * bound_of(s, i, held[i] > 0);
    }
}

/* List the rows marked in face.held. */
FN Index list_held(const Rows *s, Face *face) {
    face->base = 0;
    Index k = 0;
    for (Index i = 0; i < rows_of(s) && k <= outputs_of(s); i++) { /* without a branch, which processors could not predict */
        face->rows[k] = i;
        face->sides[k] = face->held[i];
        k += face->held[i] != 0;
    }
    return face->k = k;
}
