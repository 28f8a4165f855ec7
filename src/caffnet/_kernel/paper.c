/* The rest of the paper's sub-constraints: choices of dependent rows.

   The pseudo-inverse of such a choice gives the point of least squares between its rows, the one nearest to g. Where
   the rows agree it lies on the flat of fewer rows, which the walk has seen. Where they contradict each other it is a
   compromise: 0 for y <= 0.5 and y >= -0.5. The paper's layer answers with it if it is feasible and nearer to f.

   Rows are added one at a time. With N = I - A+ A, a new row a leaves r = N a. If r does not vanish,

     c = r / (a r),   A+ <- [A+ - c (a A+), c],   N <- N - r r' / |r|^2.

   A dependent row a = e A, e = a A+, leaves N as it is and has c = A+ e' / (1 + |e|^2), Greville's update: A+ b then is
   the point of least squares. Rows are scaled, so least squares in the user's units have weights 4^-exponent.

   The derivative: with residuals rho = b - A y and weights W the normal equations A' W rho = 0, differentiated along
   matrices of the same rank (across, the pseudo-inverse jumps), add one term to that of a point on its rows:

     dA = -(lambda p' + q y') + W rho (A+ W^-1 q)',   p = N v,  q = (A+)' v,  lambda = (A+)' (g - y). */
#include "internal.h"

/* Whether row a has a remainder at this depth: r = N a, or N N a if that is small. */
FN int leaves_remainder(Work *work, const double *a, Index depth) {
    Index n = outputs_of(&work->rows);
    const double *null = work->walk.null + (size_t)depth * (size_t)n * (size_t)n;
    double *r = work->face.z, *once = work->face.d, squared = 0.0, size = dot(a, a, n);
    for (Index i = 0; i < n; i++) {
        r[i] = dot(null + (size_t)i * (size_t)n, a, n);
        squared += r[i] * r[i];
    }
    if (squared > 0.5 * size) return 1;
    copy(once, r, n);
    squared = 0.0;
    for (Index i = 0; i < n; i++) {
        r[i] = dot(null + (size_t)i * (size_t)n, once, n);
        squared += r[i] * r[i];
    }
    return squared > work->t.rank * work->t.rank * size;
}

/* The new column c of A+ in work->spare, with e = a A+ in face.r. */
FN void new_column(Work *work, const double *a, Index exponent, Index depth, int adds) {
    Index n = outputs_of(&work->rows);
    const double *pinv = work->walk.pinv + (size_t)depth * (size_t)n * (size_t)n;
    double *c = work->spare, *e = work->face.r, *r = work->face.z, *weight = work->walk.weight;
    double heaviest = (double)exponent, length;
    for (Index i = 0; i < n; i++) c[i] = 0.0;
    for (Index j = 0; j < depth; j++) {
        e[j] = 0.0;
        for (Index i = 0; i < n; i++) e[j] += a[i] * pinv[(size_t)i * (size_t)n + (size_t)j];
        if (e[j] != 0.0) heaviest = larger(heaviest, weight[j]);
    }
    if (adds) {
        double along_r = dot(a, r, n);
        for (Index i = 0; i < n; i++) c[i] = r[i] / along_r;
        return;
    }
    /* Weights relative to the heaviest row of the choice, as squares of sizes leave the range of numbers. */
    length = ldexp(1.0, (int)(2.0 * ((double)exponent - heaviest)));
    for (Index j = 0; j < depth; j++) {
        double shared = e[j] * ldexp(1.0, (int)smaller(2.0 * (weight[j] - heaviest), 0.0));
        length += e[j] * shared;
        for (Index i = 0; i < n; i++) c[i] += pinv[(size_t)i * (size_t)n + (size_t)j] * shared;
    }
    for (Index i = 0; i < n; i++) c[i] /= length;
}

/* Fill the next depth. */
FN void deepen(Work *work, Index exponent, Index depth, int adds) {
    Index n = outputs_of(&work->rows);
    size_t block = (size_t)n * (size_t)n;
    const double *pinv = work->walk.pinv + (size_t)depth * block, *null = work->walk.null + (size_t)depth * block;
    double *next_pinv = work->walk.pinv + (size_t)(depth + 1) * block, *c = work->spare, *e = work->face.r;
    double *next_null = work->walk.null + (size_t)(depth + 1) * block, *r = work->face.z, squared = dot(r, r, n);
    for (Index i = 0; i < n; i++) {
        size_t line = (size_t)i * (size_t)n;
        for (Index j = 0; j < depth; j++) next_pinv[line + (size_t)j] = pinv[line + (size_t)j] - c[i] * e[j];
        next_pinv[line + (size_t)depth] = c[i];
        for (Index j = 0; j < n; j++)
            next_null[line + (size_t)j] = null[line + (size_t)j] - (adds ? r[i] * r[j] / squared : 0.0);
    }
    work->walk.weight[depth] = (double)exponent;
}

FN void start_paper(Work *work) {
    Index n = outputs_of(&work->rows);
    for (Index i = 0; i < n * n; i++) work->walk.null[i] = i % (n + 1) == 0 ? 1.0 : 0.0;
}

/* The point on the rows of a choice (1 + 2 row + upper side in each slot) from g, refined once, with A+ and N at the
   depth that is returned. */
FN Index rebuild(Work *work, const Index *choice, double *y) {
    const Rows *s = &work->rows;
    Index n = outputs_of(s), k = 0;
    double *left = work->face.r;
    copy(y, work->g, n);
    for (; k < n && choice[k] != 0; k++) {
        Index row = choice_row(choice[k] - 1);
        const double *a = s->A + (size_t)row * (size_t)n;
        double gap = choice_bound(s, choice[k] - 1) - dot(a, y, n);
        int adds = leaves_remainder(work, a, k);
        new_column(work, a, s->exponent[row], k, adds);
        subtract(y, -gap, work->spare, n);
        deepen(work, s->exponent[row], k, adds);
    }
    const double *pinv = work->walk.pinv + (size_t)k * (size_t)n * (size_t)n;
    for (Index j = 0; j < k; j++)
        left[j] = choice_bound(s, choice[j] - 1) - dot(s->A + (size_t)choice_row(choice[j] - 1) * (size_t)n, y, n);
    for (Index i = 0; i < n; i++)
        for (Index j = 0; j < k; j++) y[i] += pinv[(size_t)i * (size_t)n + (size_t)j] * left[j];
    return k;
}

/* Look for a feasible compromise that is nearer to f than the answer in work->y. Its choice is written into `choice`;
   0 if there is none. */
FN int nearer_compromise(Work *work, int32_t *choice) {
    const Rows *s = &work->rows;
    Walk *walk = &work->walk;
    const CaffnetTolerances *t = &work->t;
    Index n = outputs_of(s), depth = 0, equalities = 0, *choices = work->face.violated, *after = walk->option;
    double *y = work->other, near = 1.0 - t->tie;
    double best = distance(work->y, work->f, n, work->norm) * near;
    double size = larger(largest(work->f, n), largest(work->g, n));
    for (Index i = 0; i < rows_of(s); i++)
        if (s->equal[i]) choices[equalities++] = 2 * i + 1;
    Index count = equalities + list_choices(s, choices + equalities);
    uint32_t visited = 0;
    int found = 0;
    start_paper(work);
    copy(walk->f, work->g, n);
    walk->dependent[0] = 0;
    after[0] = 0;
    while (depth >= 0) {
        if ((++visited & 1023) == 0 && work->cancel && *work->cancel) return 0;
        Index option = after[depth];
        /* Every choice begins with all equalities, in order. */
        if (option >= count || depth >= n || (depth < equalities && option > depth)) {
            depth--;
            continue;
        }
        after[depth] = option + 1;
        Index row = choice_row(choices[option]), here = depth + 1;
        const double *a = s->A + (size_t)row * (size_t)n, *point = walk->f + (size_t)depth * (size_t)n;
        double gap = choice_bound(s, choices[option]) - dot(a, point, n);
        int adds = leaves_remainder(work, a, depth);
        walk->dependent[here] = walk->dependent[depth] || (depth >= equalities && !adds);
        if (here == n && !walk->dependent[here]) continue;
        new_column(work, a, s->exponent[row], depth, adds);
        copy(y, point, n);
        subtract(y, -gap, work->spare, n);
        walk->place[depth] = choices[option];
        if (walk->dependent[here]) {
            double length = distance(y, work->f, n, work->norm);
            if (length < best && accepts(s, y, size)) {
                best = length * near;
                found = 1;
                for (Index j = 0; j < n; j++) choice[j] = j < here ? 1 + walk->place[j] : 0;
            }
        }
        if (here < n) {
            copy(walk->f + (size_t)here * (size_t)n, y, n);
            deepen(work, s->exponent[row], depth, adds);
            depth = here;
            after[depth] = option + 1;
        }
    }
    return found;
}

/* Add up the gradients of a compromise y for an incoming v. */
FN void compromise_gradient(Work *work, const Index *choice, const double *y, const double *v, double *p, double power,
                            const CaffnetGradients *to, int64_t b) {
    const Rows *s = &work->rows;
    Index n = outputs_of(s);
    double *q = work->spare, *point = work->other;
    start_paper(work);
    Index k = rebuild(work, choice, point);
    size_t block = (size_t)k * (size_t)n * (size_t)n;
    const double *pinv = work->walk.pinv + block, *null = work->walk.null + block;
    for (Index i = 0; i < n; i++) p[i] = dot(null + (size_t)i * (size_t)n, v, n);
    for (Index j = 0; j < k; j++) {
        q[j] = 0.0;
        for (Index i = 0; i < n; i++) q[j] += pinv[(size_t)i * (size_t)n + (size_t)j] * v[i];
    }
    for (Index j = 0; j < k; j++) {
        Index row = choice_row(choice[j] - 1), exponent = s->exponent[row];
        double lambda = 0.0, rho = choice_bound(s, choice[j] - 1) - dot(s->A + (size_t)row * (size_t)n, y, n);
        for (Index i = 0; i < n; i++) lambda += pinv[(size_t)i * (size_t)n + (size_t)j] * (work->g[i] - y[i]);
        for (Index i = 0; to->A && i < n; i++) {
            double mean = 0.0; /* A+ W^-1 q, times the weight of this row */
            for (Index c = 0; c < k; c++)
                mean += pinv[(size_t)i * (size_t)n + (size_t)c] * q[c] *
                        ldexp(1.0, (int)(2.0 * (work->walk.weight[c] - work->walk.weight[j])));
            /* If the square of a ratio overflows, the larger row holds exactly: its residual is 0. */
            double lean = is_finite(mean) ? rho * mean : 0.0;
            to->A[b * to->A_step + (int64_t)row * n + i] += 
                power * times_power(lean - lambda * p[i] - q[j] * y[i], exponent - s->shift);
        }
        int upper = (choice[j] - 1) & 1;
        double *bound = upper ? to->upper : to->lower;
        int64_t step = upper ? to->upper_step : to->lower_step;
        if (bound) bound[b * step + row] += power * times_power(q[j], exponent);
    }
}

/* Answer a compromise of dependent rows where it is nearer; 0 where there is none. */
FN int try_compromise(const CaffnetBatch *batch, int64_t b, Work *work) {
    Rows *s = &work->rows;
    Index n = outputs_of(s);
    int32_t *choice = batch->choice + b * n;
    if (!nearer_compromise(work, choice)) {
        for (Index j = 0; j < n; j++) choice[j] = 0;
        return 0;
    }
    double *ordinary = work->walk.g, *y = work->y, far = distance(y, work->f, n, work->norm);
    copy(ordinary, y, n);
    start_paper(work);
    (void)rebuild(work, choice, y);
    round_point(work, y);
    clamp(s, y);
    for (Index i = 0; i < rows_of(s); i++) work->kept[i] = 0;
    for (Index j = 0; j < n && choice[j] != 0; j++) work->kept[choice_row(choice[j] - 1)] = 1;
    int state = check(s, y, largest(y, n), NULL, 1);
    if (state == CAFFNET_WITHIN_TOL) { /* a row of the choice is exceeded, as expected of a compromise */
        state = CAFFNET_PROJECTED;
        for (Index i = 0; i < rows_of(s); i++)
            if (!work->kept[i] && excess_of(s, i, value_of(s, i, y)) > 0.0) state = CAFFNET_WITHIN_TOL;
    } else if (state == CAFFNET_INSIDE) state = CAFFNET_PROJECTED;
    /* Where rows contradict each other by much more than the answer, the rounding of what they miss may have moved it far. */
    if (!(distance(y, work->f, n, work->norm) < far) || !is_representable(work)) state = REJECTED;
    if (state != REJECTED) {
        write_value(batch, b, work);
        if (batch->strict && !holds_exactly(batch, b, batch->value, b * batch->n, 0)) state = REJECTED;
    }
    if (state == REJECTED) {
        for (Index j = 0; j < n; j++) choice[j] = 0;
        copy(y, ordinary, n);
        return 0;
    }
    for (Index i = 0; i < rows_of(s); i++) batch->active[b * batch->m + i] = 0;
    batch->status[b] = (int8_t)state;
    return 1;
}
