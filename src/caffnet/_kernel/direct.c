/* Sets whose projection needs no factorisation: bounds of single outputs, alone (BOUNDS), with one row (BUDGET: simplex,
   capped simplex, any weights), or with an order of neighbours (CHAIN). They are recognised from the scaled rows.

   BUDGET. The row a has one multiplier t, and y(t)_j = clip(g_j - t a_j, low_j, high_j). Its value a y(t) never grows
   with t and is linear between the points where an output meets a bound. Newton's method within a bracket finds the t at
   which it is the bound b, mostly in a few rounds; else the breakpoints are sorted and halved: n log n. No such t exists
   if even the corner of the box that is best for the row misses b: then the row and that corner's bounds prove it.

   CHAIN. y_{j+1} - y_j >= s_j (or all <=) for some j. With the steps taken off, y_j = z_j + S_j, the z must not fall. Bounds
   are tightened along the chain; then neighbours that are out of order join into blocks with one value, the mean of g - S
   within the bounds of the block (pool adjacent violators; Best, Chakravarti and Ubhaya for bounded ones): n steps. A
   bound that excludes another along the chain proves that there is no point, together with the links between them.

   On the rows held, all else is explicit. An output is fixed by its bound, or free; a run of held links moves as one. So

     flat          A+ b + (I - A+ A) g      fixed outputs at their bound; the row's residual shared among the free ones
                                            by weight; a run at the mean of its outputs
     coefficients  r with sum r_i a_i = d   in one sweep

   take the place of an orthogonal factorisation everywhere else in the kernel. */
#include "internal.h"

/* ---------------------------------------------------------------------------------------------- recognise */

/* Two entries of equal size and opposite sign at neighbours: the first of them, else -1. `up` is the entry of the second. */
FN Index link_of(const Rows *s, Index i, double *up) {
    Index first = -1, second = -1;
    double left = 0.0;
    for (Index e = 0; e < s->entries[i]; e++) {
        double a = entry_of(s, i, e);
        if (a == 0.0) continue;
        if (second >= 0) return -1;
        if (first < 0) {
            first = column_of(s, i, e);
            left = a;
        } else {
            second = column_of(s, i, e);
            *up = a;
        }
    }
    return second == first + 1 && *up == -left ? first : -1;
}

/* The family that the samples of a matrix may have. */
FN void recognise(Rows *s) {
    Direct *d = &s->direct;
    Index others = 0;
    int chain = 1;
    d->shape = d->family = ANY;
    s->newton->ordered = s->newton->faced = 0;
    d->row = -1;
    if (outputs_of(s) < DIRECT_FROM && !is_sparse(s)) return;
    for (Index j = 0; j < outputs_of(s); j++) {
        d->link[j] = -1;
        d->a[j] = 0.0;
    }
    for (Index i = 0; i < rows_of(s); i++) {
        if (s->plain[i] >= 0) continue;
        if (s->squared[i] == 0.0) return;
        others++;
        d->row = i;
        double up = 0.0;
        Index j = chain ? link_of(s, i, &up) : -1;
        chain = j >= 0 && d->link[j] < 0;
        if (chain) {
            d->link[j] = i;
            d->a[j] = up;
        } else if (others > 1) return;
    }
    if (others <= 1) {
        d->shape = others == 0 ? BOUNDS : BUDGET;
        for (Index j = 0; j < outputs_of(s); j++) d->a[j] = 0.0;
        for (Index e = 0; d->row >= 0 && e < s->entries[d->row]; e++) d->a[column_of(s, d->row, e)] += entry_of(s, d->row, e);
    } else d->shape = CHAIN;
}

/* Scale the rows of sample b and recognise them; 0 where they have NaN or infinite entries. */
FN int read_matrix(const CaffnetBatch *batch, int64_t b, Rows *s) {
    if (!scale_matrix(batch, b, s)) return 0;
    recognise(s);
    return 1;
}

/* The family of this sample. A chain counts only if all its links are one-sided and point one way. */
FN int family_of(Rows *s) {
    Direct *d = &s->direct;
    int rising = 1, falling = 1;
    if (d->shape != CHAIN) return d->shape == ANY && is_sparse(s) ? SPARSE : d->shape;
    for (Index j = 0; j < outputs_of(s) && (rising || falling); j++) {
        Index i = d->link[j];
        if (i < 0) continue;
        int up = d->a[j] > 0.0, below = is_finite(s->low[i]), above = is_finite(s->high[i]);
        rising = rising && (up ? !above : !below);
        falling = falling && (up ? !below : !above);
    }
    d->falling = !rising;
    return rising || falling ? CHAIN : is_sparse(s) ? SPARSE : ANY;
}

/* The family for the derivative. The rows held are known, so a chain may rise and fall; one with equalities is factorised. */
FN int gradient_family(const Rows *s) {
    for (Index i = 0; i < rows_of(s) && s->direct.shape == CHAIN && !is_sparse(s); i++)
        if (s->equal[i]) return ANY;
    return s->direct.shape == ANY && is_sparse(s) ? SPARSE : s->direct.shape;
}

/* Whether newton.c takes the sample. (Without the first test, a kernel for sets of one size would contain newton.c.) */
INLINE int is_for_newton(const Rows *s) { return is_sparse(s) && s->direct.family == SPARSE; }

/* ---------------------------------------------------------------------------------------------- on rows held */

/* The total of eight sums. */
FN double folded(const double *sum) {
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

/* The sums of a_j x_j and of a_j a_j over the outputs that are not fixed. */
FN double over_free(const Direct *d, const double *x, Index n, double *squared) {
    double sum[8] = {0.0}, size[8] = {0.0};
    Index j = 0;
    for (; j + 8 <= n; j += 8)
        for (int c = 0; c < 8; c++) {
            double a = d->side[j + c] ? 0.0 : d->a[j + c];
            sum[c] += a * x[j + c];
            size[c] += a * a;
        }
    for (int c = 0; c < 8 && j < n; j++, c++) {
        double a = d->side[j] ? 0.0 : d->a[j];
        sum[c] += a * x[j];
        size[c] += a * a;
    }
    *squared = folded(size);
    return folded(sum);
}

/* Move y onto the row of a budget, along the outputs that are not fixed; `finely`: its residual with twice the digits. */
FN void onto_row(const Rows *s, double bound, double *y, int finely) {
    const Direct *d = &s->direct;
    Pair sum = {-bound, 0.0};
    double squared = 0.0;
    (void)over_free(d, y, outputs_of(s), &squared);
    if (!(squared > 0.0)) return;
    if (finely)
        for (Index j = 0; j < outputs_of(s); j++) sum = d->a[j] == 0.0 ? sum : pair_add_product(sum, d->a[j], y[j]);
    else sum.high += dot(d->a, y, outputs_of(s));
    double step = (sum.high + sum.low) / squared;
    for (Index j = 0; j < outputs_of(s); j++) y[j] -= d->side[j] ? 0.0 : step * d->a[j];
}

/* The last output of the run of held links that begins at j, and its output that a bound fixes, or -1. */
FN Index run_end(const Rows *s, const int8_t *held, Index j, Index *fixed) {
    const Direct *d = &s->direct;
    *fixed = d->side[j] ? j : -1;
    while (j + 1 < outputs_of(s) && d->link[j] >= 0 && held[d->link[j]] != 0) {
        j++;
        if (d->side[j]) *fixed = j;
    }
    return j;
}

/* y = A+ b + (I - A+ A) g on the rows held; with b = 0 if `cone`. */
FN void direct_flat(const Rows *s, const int8_t *held, const double *g, double *y, int cone) {
    const Direct *d = &s->direct;
    Index n = outputs_of(s), row = d->row;
    if (is_for_newton(s)) {
        newton_flat(s, held, g, y, cone);
        return;
    }
    copy(y, g, n);
    fix_outputs(s, held, y);
    for (Index j = 0; cone && j < n; j++)
        if (d->side[j]) y[j] = 0.0;
    if (d->shape == BUDGET && held[row] != 0) {
        double bound = cone ? 0.0 : bound_of(s, row, held[row] > 0);
        for (int again = 0; again < 2; again++) onto_row(s, bound, y, 0);
    }
    for (Index first = 0, last, fixed; d->shape == CHAIN && first < n; first = last + 1) {
        last = run_end(s, held, first, &fixed);
        if (last == first) continue;
        double step = 0.0, total = 0.0, *steps = d->sums;
        for (Index j = first; j <= last; j++) {
            steps[j] = step;
            total += g[j] - step;
            Index i = d->link[j];
            if (j < last && !cone) step += bound_of(s, i, held[i] > 0) / d->a[j];
        }
        double base = fixed >= 0 ? y[fixed] - steps[fixed] : total / (double)(last - first + 1);
        for (Index j = first; j <= last; j++) y[j] = base + steps[j];
    }
}

/* Move y onto the rows held, with residuals of twice the digits. */
FN void direct_slide(const Rows *s, const int8_t *held, double *y) {
    Index row = s->direct.row;
    if (s->direct.shape != BUDGET || s->direct.family == SPARSE || held[row] == 0) return;
    fix_outputs(s, held, y);
    onto_row(s, bound_of(s, row, held[row] > 0), y, 1);
}

/* The one that represents all rows, or outputs, that `leader` ties to i. */
FN Index leader_of(Index *leader, Index i) {
    while (leader[i] != i) i = leader[i] = leader[leader[i]];
    return i;
}

/* Unmark the rows that a factorised face leaves out: it takes equalities first, then the others in their order, each if
   it is independent of those before. Dependent are a second bound of an output, a row of a budget and the bounds of all
   its outputs, two bounds in a run of links. On the point of least violation of a set without a point all may be held. */
FN void direct_independent(const Rows *s, int8_t *held) {
    const Direct *d = &s->direct;
    int shape = d->family == SPARSE ? ANY : d->shape, row = 0;
    Index loose = 0, bounds = 0, *leader = d->first;
    for (Index i = 0; i < rows_of(s); i++) bounds += held[i] != 0 && s->plain[i] >= 0;
    if (shape == CHAIN && bounds < 2) return;
    for (Index j = 0; j < outputs_of(s); j++) {
        d->side[j] = 0;
        leader[j] = j;
        loose += d->a[j] != 0.0;
    }
    for (int equal = 1; equal >= 0; equal--)
        for (Index i = 0; i < rows_of(s); i++) {
            if (held[i] == 0 || s->equal[i] != equal) continue;
            Index j = s->plain[i];
            if (j >= 0) {
                int weighs = shape == BUDGET && d->a[j] != 0.0;
                Index first = leader_of(leader, j);
                if (d->side[first] || (weighs && row && loose == 1)) held[i] = 0;
                else {
                    d->side[first] = 1;
                    loose -= weighs;
                }
            } else if (shape == BUDGET) {
                if (loose == 0) held[i] = 0;
                else row = 1;
            } else if (shape == CHAIN) {
                double up = 0.0;
                Index place = link_of(s, i, &up), first = leader_of(leader, place), second = leader_of(leader, place + 1);
                if (d->side[first] && d->side[second]) held[i] = 0;
                else {
                    d->side[first] |= d->side[second];
                    leader[second] = first;
                }
            }
        }
}

/* The coefficients r (m,) of a vector x that the held rows span. */
FN void direct_coefficients(const Rows *s, const int8_t *held, const double *x, double *r) {
    const Direct *d = &s->direct;
    Index n = outputs_of(s), row = d->row;
    double share = 0.0, *bound = d->sums;
    if (is_for_newton(s)) {
        newton_coefficients(s, held, x, r);
        return;
    }
    fix_outputs(s, held, NULL);
    copy(bound, x, n); /* the part of the bound that fixes an output */
    if (d->shape == BUDGET) {
        double squared = 0.0;
        if (held[row] != 0) share = over_free(d, x, n, &squared);
        share = squared > 0.0 ? share / squared : 0.0;
        for (Index j = 0; j < n; j++) bound[j] -= share * d->a[j];
        r[row] = share;
    }
    for (Index first = 0, last, fixed; d->shape == CHAIN && first < n; first = last + 1) {
        last = run_end(s, held, first, &fixed);
        if (last == first) continue;
        double pull = 0.0, total = 0.0;
        for (Index j = first; j <= last; j++) total += x[j];
        for (Index j = first; j < last; j++) {
            pull += (j == fixed ? total : 0.0) - x[j];
            r[d->link[j]] = pull / d->a[j];
        }
        if (fixed >= 0) bound[fixed] = total;
    }
    for (Index i = 0; i < rows_of(s); i++) {
        if (held[i] == 0) r[i] = 0.0;
        else if (s->plain[i] >= 0) r[i] = s->sign[i] * bound[s->plain[i]];
    }
}

/* ---------------------------------------------------------------------------------------------- bounds */

/* The multipliers of a conflict between the bounds of outputs p (lower) and q (upper): of size 1. */
FN void blame_bounds(Work *work, Index p, Index q) {
    const Rows *s = &work->rows;
    const Direct *d = &s->direct;
    Index below = -1, above = -1;
    for (Index i = 0; i < rows_of(s); i++) {
        Index j = s->plain[i];
        if (j == p && below < 0 && puts_bound(s, i, 0, d->low[p])) below = i;
        if (j == q && above < 0 && puts_bound(s, i, 1, d->high[q])) above = i;
    }
    if (below < 0 || above < 0) return;
    work->conflict[below] -= s->sign[below];
    work->conflict[above] += s->sign[above];
}

/* ---------------------------------------------------------------------------------------------- budget */

/* a y(t), and the sum of a_j^2 over the outputs within their bounds. */
FN double budget_at(const Direct *d, const double *g, Index n, double t, double *squared) {
    double sum[8] = {0.0}, size[8] = {0.0};
    const double *a = d->a, *low = d->low, *high = d->high;
    Index j = 0;
    for (; j + 8 <= n; j += 8)
        for (int c = 0; c < 8; c++) {
            double x = g[j + c] - t * a[j + c], y = x < low[j + c] ? low[j + c] : x;
            y = y > high[j + c] ? high[j + c] : y;
            sum[c] += a[j + c] == 0.0 ? 0.0 : a[j + c] * y;
            size[c] += y == x ? a[j + c] * a[j + c] : 0.0;
        }
    for (int c = 0; c < 8 && j < n; j++, c++) {
        double x = g[j] - t * a[j], y = smaller(larger(x, low[j]), high[j]);
        sum[c] += a[j] == 0.0 ? 0.0 : a[j] * y;
        size[c] += y == x ? a[j] * a[j] : 0.0;
    }
    *squared = folded(size);
    return folded(sum);
}

/* Sort numbers, in place: heapsort. */
FN void sort(double *x, Index count) {
    for (Index end = count, top = count / 2; end > 1;) {
        double moved;
        if (top > 0) moved = x[--top];
        else {
            moved = x[--end];
            x[end] = x[0];
        }
        Index at = top;
        for (Index child = 2 * at + 1; child < end; child = 2 * at + 1) {
            if (child + 1 < end && x[child + 1] > x[child]) child++;
            if (!(x[child] > moved)) break;
            x[at] = x[child];
            at = child;
        }
        x[at] = moved;
    }
}

/* The t at which a y(t) = bound, between `near`, where the value is on the side of y(0), and `far`, where it is not. */
FN double halve_breakpoints(const Direct *d, const double *g, Index n, double bound, double sign, double near, double far) {
    double squared = 0.0, *at = d->sums;
    Index count = 0;
    for (Index j = 0; j < n; j++) {
        if (d->a[j] == 0.0) continue;
        double first = sign * (g[j] - d->low[j]) / d->a[j], second = sign * (g[j] - d->high[j]) / d->a[j];
        if (first > near && first < far) at[count++] = first;
        if (second > near && second < far && second != first) at[count++] = second;
    }
    sort(at, count);
    Index lower = 0, upper = count; /* the value crosses the bound between at[lower - 1] and at[upper] */
    while (lower < upper) {
        Index middle = lower + (upper - lower) / 2;
        if (sign * (budget_at(d, g, n, sign * at[middle], &squared) - bound) > 0.0) lower = middle + 1;
        else upper = middle;
    }
    if (lower > 0) near = at[lower - 1];
    if (upper < count) far = at[upper];
    /* Linear in between: by the value at one end and the slope inside. */
    double inside = is_finite(far) ? near + 0.5 * (far - near) : near + 1.0 + fabs(near);
    (void)budget_at(d, g, n, sign * inside, &squared);
    double ignored, value = budget_at(d, g, n, sign * near, &ignored);
    if (!(squared > 0.0)) return sign * far;
    return sign * smaller(near + sign * (value - bound) / squared, far);
}

/* The multiplier at which the row has the value `bound`, which it can reach. */
FN double budget_multiplier(const Direct *d, const double *g, Index n, double value, double squared, double bound) {
    double sign = value > bound ? 1.0 : -1.0, near = 0.0, far = HUGE_VAL, at = 0.0;
    for (int round = 0; round < 30; round++) {
        double next = squared > 0.0 ? at + sign * (value - bound) / squared : HUGE_VAL;
        if (next == at) return sign * at;
        if (!(next > near && next < far)) break;
        at = next;
        value = budget_at(d, g, n, sign * at, &squared);
        if (value == bound) return sign * at;
        if (sign * (value - bound) > 0.0) near = at;
        else far = at;
    }
    return halve_breakpoints(d, g, n, bound, sign, near, far);
}

/* Free one output of a row that is held with all its outputs, the first that moves inside as t goes back; a_j^2, or 0. */
FN double free_one(const Direct *d, const double *g, Index n, double t) {
    Index found = -1;
    double least = HUGE_VAL;
    for (int back = 1; back >= 0 && found < 0; back--)
        for (Index j = 0; j < n; j++) {
            if (d->a[j] == 0.0 || d->side[j] == 0 || d->low[j] == d->high[j]) continue;
            double beyond = g[j] - t * d->a[j] - (d->side[j] > 0 ? d->high[j] : d->low[j]);
            if (back && (beyond > 0.0) == ((t > 0.0) == (d->a[j] > 0.0))) continue; /* farther out */
            double way = fabs(beyond) / fabs(d->a[j]);
            if (way < least) {
                least = way;
                found = j;
            }
        }
    if (found < 0) return 0.0;
    d->side[found] = 0;
    return d->a[found] * d->a[found];
}

/* The bound of output j in the corner where the row of a budget is least (sign > 0) or largest. */
FN double corner_of(const Direct *d, Index j, double sign) { return (d->a[j] > 0.0) == (sign > 0.0) ? d->low[j] : d->high[j]; }

/* The corner of the box where the row is smallest (sign > 0) or largest. */
FN double best_corner(const Direct *d, Index n, double sign) {
    double sum = 0.0;
    for (Index j = 0; j < n; j++)
        if (d->a[j] != 0.0) sum += d->a[j] * corner_of(d, j, sign);
    return sum;
}

/* Write the conflict of the row with the bounds that meet in its best corner: one row for each output. */
FN void blame_budget(Work *work, double sign) {
    const Rows *s = &work->rows;
    const Direct *d = &s->direct;
    for (Index j = 0; j < outputs_of(s); j++) d->side[j] = 0;
    for (Index i = 0; i < rows_of(s); i++) {
        Index j = s->plain[i];
        work->conflict[i] = work->fine[i] = 0.0;
        if (j < 0 || d->a[j] == 0.0 || d->side[j]) continue;
        if (!puts_bound(s, i, (d->a[j] > 0.0) != (sign > 0.0), corner_of(d, j, sign))) continue;
        d->side[j] = 1;
        work->conflict[i] = -sign * d->a[j] * s->sign[i];
    }
    work->conflict[d->row] = sign;
}

/* The point of a budget, or of bounds alone, in y with its rows in face.held; their number, or CONFLICT. */
FN Index budget_search(Work *work, const double *g, double *y, double fine, double coarse) {
    const Rows *s = &work->rows;
    const Direct *d = &s->direct;
    Face *face = &work->face;
    Index n = outputs_of(s), row = d->shape == BUDGET ? d->row : -1;
    double t = 0.0, squared = 0.0, scale = largest(g, n);
    int8_t side = 0;
    if (row >= 0) {
        double value = budget_at(d, g, n, 0.0, &squared), excess = excess_of(s, row, value), bound = 0.0;
        for (Index j = 0; j < n; j++) y[j] = smaller(larger(g[j], d->low[j]), d->high[j]);
        double size = scale + largest(y, n);
        side = value > s->high[row] || s->equal[row] ? 1 : -1;
        bound = bound_of(s, row, side > 0);
        if (excess <= fine * (size + bound_at(s, row, value)) + work->t.underflow) side = s->equal[row] ? 1 : 0;
        else {
            double sign = value > bound ? 1.0 : -1.0, corner = best_corner(d, n, sign), miss = sign * (corner - bound);
            if (miss > 0.0) {
                for (Index j = 0; j < n; j++)
                    if (d->a[j] != 0.0) y[j] = corner_of(d, j, sign);
                int tolerable = coarse > 0.0 && miss <= coarse * (size_at(s, row, y, size) + fabs(bound)) + work->t.underflow;
                if (!tolerable) {
                    blame_budget(work, sign);
                    return CONFLICT;
                }
                t = sign * HUGE_VAL; /* at that corner, without the row */
                side = 0;
            } else t = budget_multiplier(d, g, n, value, squared, bound);
        }
    }
    double free = 0.0;
    for (Index j = 0; j < n; j++) {
        double x = d->a[j] == 0.0 ? g[j] : g[j] - t * d->a[j], room = ROUNDING * (fabs(g[j]) + fabs(x));
        if (!is_finite(room)) room = 0.0;
        d->side[j] = (int8_t)(x > d->high[j] + room ? 1 : x < d->low[j] - room ? -1 : d->low[j] == d->high[j] ? 1 : 0);
        y[j] = d->side[j] > 0 ? d->high[j] : d->side[j] < 0 ? d->low[j] : x;
        if (d->side[j] == 0) free += d->a[j] * d->a[j];
    }
    if (side != 0 && free == 0.0) free = free_one(d, g, n, t); /* 0: it depends on bounds that are equalities */
    clear_face(s, face);
    mark_box(s, face, d->side, d->low, d->high);
    if (side != 0 && free > 0.0) face->held[row] = side;
    return list_held(s, face);
}

/* ---------------------------------------------------------------------------------------------- chain */

/* Write the conflict between the lower bound of the k-th output and the upper bound of the l-th, in the order of the
   chain, and the links between them. */
FN void blame_chain(Work *work, Index k, Index l) {
    const Rows *s = &work->rows;
    const Direct *d = &s->direct;
    Index n = outputs_of(s), p = d->falling ? n - 1 - k : k, q = d->falling ? n - 1 - l : l;
    for (Index i = 0; i < rows_of(s); i++) work->conflict[i] = work->fine[i] = 0.0;
    blame_bounds(work, p, q);
    double sign = d->falling ? 1.0 : -1.0;
    for (Index j = p < q ? p : q; j < (p < q ? q : p); j++) { /* shares that add up: the smaller half carries the rest */
        work->conflict[d->link[j]] = sign / d->a[j];
        work->fine[d->link[j]] = sign * fma(-(1.0 / d->a[j]), d->a[j], 1.0) / d->a[j];
    }
}

/* The point of a chain, in y with its rows in face.held; their number, CONFLICT, or NOT_FOUND where bounds leave some
   outputs no room, which is for a method that factorises. */
FN Index chain_search(Work *work, const double *g, double *y) {
    const Rows *s = &work->rows;
    const Direct *d = &s->direct;
    Face *face = &work->face;
    Index n = outputs_of(s), count = 0;
    double *h = d->sums, *low = d->sums + n, *high = d->sums + 2 * (size_t)n; /* by place in the chain */
    double *total = y, *means = face->z;                                      /* by block */
    Index *first = d->first, *from = d->from, *until = d->until;
    int8_t *clipped = work->seed, *tied = d->side;
    int joined = 0, limited = 0, bounded = 0;
    for (Index i = 0; i < rows_of(s); i++) limited |= s->plain[i] >= 0;
    for (Index i = 0; i < rows_of(s); i++)
        if (s->equal[i]) return NOT_FOUND;
    /* Steps taken off; bounds tightened along the chain, with the places that they come from. */
    double step = 0.0;
    for (Index k = 0; k < n; k++) {
        Index j = d->falling ? n - 1 - k : k;
        h[k] = g[j] - step;
        if (limited) {
            low[k] = d->low[j] - step;
            high[k] = d->high[j] - step;
            from[k] = until[k] = k;
            if (joined && low[k - 1] > low[k]) {
                low[k] = low[k - 1];
                from[k] = from[k - 1];
            }
        }
        Index place = d->falling ? j - 1 : j, link = k + 1 < n ? d->link[place] : -1;
        int upper = link >= 0 && is_finite(s->high[link]);
        joined = upper || (link >= 0 && is_finite(s->low[link])); /* a link without a bound does not connect its outputs */
        double bound = !joined ? 0.0 : upper ? s->high[link] : s->low[link];
        if (!joined) step = 0.0;
        else if (bound != 0.0) step += (d->falling ? -1.0 : 1.0) * bound / d->a[place];
        tied[k] = (int8_t)joined;
    }
    for (Index k = n - 1; k >= 0 && limited; k--) {
        if (tied[k] && high[k + 1] < high[k]) {
            high[k] = high[k + 1];
            until[k] = until[k + 1];
        }
        if (low[k] > high[k]) {
            blame_chain(work, from[k], until[k]);
            return CONFLICT;
        }
    }
    /* Blocks: first[c] is where block c begins, total[c] the sum of its h, means[c] their mean. */
    for (Index k = 0; k < n; k++) {
        Index begin = k;
        double sum = h[k], mean = sum;
        while (begin > 0 && tied[begin - 1]) {
            Index before = first[count - 1];
            double old = means[count - 1], here = mean, there = old;
            if (limited) {
                here = smaller(larger(mean, low[k]), high[begin]);
                there = smaller(larger(old, low[begin - 1]), high[before]);
            }
            /* At one value they stay apart, unless a bound of the other block holds one of them there. */
            int own_low = mean >= here || from[k] >= begin, own_high = old <= there || until[before] < begin;
            if (there < here || (there == here && own_low && own_high)) break;
            sum = total[--count] + sum;
            begin = before;
            mean = sum / (double)(k + 1 - begin);
        }
        first[count] = begin;
        total[count] = sum;
        means[count++] = mean;
    }
    /* The rows that pull: bounds where a block is clipped, links with a positive multiplier. Where the lower bound of
       place p and the upper bound of a later q leave one value, both pull, and a link between them does not. */
    clear_face(s, face);
    double scale = largest(g, n);
    for (Index j = 0; j < n; j++) clipped[j] = 0;
    for (Index c = 0; c < count; c++) {
        Index begin = first[c], end = c + 1 < count ? first[c + 1] : n;
        Index p = limited ? from[end - 1] : 0, q = limited ? until[begin] : 0;
        double mean = means[c], value = limited ? smaller(larger(mean, low[end - 1]), high[begin]) : mean;
        double room = ROUNDING * (double)(end - begin) * (scale + fabs(value)), sum = 0.0, least = 0.0;
        for (Index k = begin; k < end && mean != value; k++) {
            sum += h[k] - value;
            if (k >= p && k < q && low[end - 1] == high[begin]) least = smaller(least, sum);
        }
        double up = larger(larger(-least, -sum), 0.0), down = sum + up, pull = 0.0; /* 0 if mean == value */
        bounded = bounded || up > room || down > room;
        if (up > room) clipped[d->falling ? n - 1 - p : p] = -1;
        if (down > room) clipped[d->falling ? n - 1 - q : q] = 1;
        for (Index k = begin; k + 1 < end; k++) {
            Index i = d->link[d->falling ? n - 2 - k : k];
            pull += h[k] - value;
            if (mean != value) pull += (k == p ? up : 0.0) - (k == q ? down : 0.0);
            if (pull < -room) return NOT_FOUND; /* bounds that touch in another order */
            if (pull > room) face->held[i] = (int8_t)(is_finite(s->high[i]) ? 1 : -1);
        }
    }
    if (bounded) mark_box(s, face, clipped, d->low, d->high);
    direct_flat(s, face->held, g, y, 0);
    work->flat = 1;
    return list_held(s, face);
}

/* Bounds first: where those of one output exclude each other there is nothing to search. */
FN Index direct_search(Work *work, const double *g, double *y, double fine, double coarse) {
    const Rows *s = &work->rows;
    Index wrong = limits_of_outputs(s, s->direct.low, s->direct.high);
    copy(y, g, outputs_of(s));
    if (wrong >= 0) {
        for (Index i = 0; i < rows_of(s); i++) work->conflict[i] = work->fine[i] = 0.0;
        blame_bounds(work, wrong, wrong);
        return CONFLICT;
    }
    if (is_for_newton(s)) return newton_search(work, g, y, fine);
    return s->direct.family == CHAIN ? chain_search(work, g, y) : budget_search(work, g, y, fine, coarse);
}
