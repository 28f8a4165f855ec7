/* The rows of one sample: scaled, with the test that accepts a point.

   Row i is multiplied by a power of two so that 1 <= |a_i|_1 < 2. That is exact, so the set does not change, and
   afterwards one number says how large an error in a_i y - b_i rounding can explain:

     t.feasibility * (2 |a_i| |y| + |b_i|),   b_i the bound that is exceeded.

   Outputs that are not in the row do not count: an angle beside a power of 1e6 keeps its own limit. But all is computed in
   float64, where the rounding of one output reaches the others, so 4 t.search (|y|_inf + |f|_inf) is always allowed. In
   float64 this is the larger of the two.

   The numbers of a sample are brought into a range in which they can be squared, by one more power of two: `shift`. */
#include "internal.h"

/* The numbers of row i. */
INLINE double *row_of(const Rows *s, Index i) {
    return s->A + (is_sparse(s) ? (size_t)s->start[i] : (size_t)i * (size_t)outputs_of(s));
}

/* Entry e of those of row i that are looked at: its column, and the number. */
INLINE Index column_of(const Rows *s, Index i, Index e) {
    if (is_sparse(s)) return s->places[s->start[i] + e];
    return s->entries[i] == outputs_of(s) ? e : s->columns[(size_t)i * (size_t)(outputs_of(s) / 4) + (size_t)e];
}

INLINE double entry_of(const Rows *s, Index i, Index e) { return row_of(s, i)[is_sparse(s) ? e : column_of(s, i, e)]; }

/* The same for a row of which few entries are looked at. */
FN double value_of_few(const Rows *s, Index i, const double *y) {
    const double *a = row_of(s, i);
    const Index *places = is_sparse(s) ? s->places + s->start[i] : s->columns + (size_t)i * (size_t)(outputs_of(s) / 4);
    double total = 0.0;
    for (Index e = 0; e < s->entries[i]; e++) total += a[is_sparse(s) ? e : places[e]] * y[places[e]];
    return total;
}

/* a_i y, where zeros are not looked at. */
INLINE double value_of(const Rows *s, Index i, const double *y) {
    Index output = s->plain[i];
    if (output == WHOLE) return dot(s->A + (size_t)i * (size_t)outputs_of(s), y, outputs_of(s));
    return output >= 0 ? s->sign[i] * y[output] + 0.0 /* no -0, as in a sum */ : value_of_few(s, i, y);
}

/* The values of up to a GROUP of rows at y, with the bits of value_of. */
FN void values_of(const Rows *s, const Index *rows, Index count, const double *y, double *values) {
    if (count == GROUP && !is_sparse(s)) {
        const double *lines[GROUP];
        int full = 1;
        for (Index l = 0; l < GROUP; l++) {
            full &= s->plain[rows[l]] == WHOLE;
            lines[l] = row_of(s, rows[l]);
        }
        if (full) {
            group_dots(lines, y, outputs_of(s), values);
            return;
        }
    }
    for (Index l = 0; l < count; l++) values[l] = value_of(s, rows[l], y);
}

/* x 2^exponent, also where 2^exponent alone is out of range. */
FN double times_power(double x, Index exponent) {
    return exponent > -1000 && exponent < 1000 ? x * power_of_two(exponent) : ldexp(x, exponent);
}

/* |a|_1 2^-64 for a row whose |a|_1 is not finite; -1 where it has NaN or infinite entries. */
RARE double size_of_large(const double *a, Index n) {
    double size = 0.0;
    for (Index j = 0; j < n; j++) {
        if (!is_finite(a[j])) return -1.0;
        size += 0x1p-64 * fabs(a[j]);
    }
    return size;
}

/* Scale row i by a power of two that is out of the range of numbers; its |a|_1. */
RARE double scale_far(Rows *s, Index i, Index exponent, const double *from, Index n) {
    double *a = row_of(s, i);
    s->factor[i] = 0.0;
    s->narrow = 1;
    for (Index j = 0; j < n; j++) a[j] = ldexp(from[j], exponent);
    return sum_of_sizes(a, n);
}

/* Look at the entries of row i only that are not zero, if these are so few. */
RARE void find_few(Rows *s, Index i) {
    const double *a = row_of(s, i);
    Index *columns = s->columns + (size_t)i * (size_t)(outputs_of(s) / 4), most = outputs_of(s) / 4, e = 0;
    for (Index j = 0; j < outputs_of(s) && e <= most; j++)
        if (a[j] != 0.0) {
            if (e < most) columns[e] = j;
            e++;
        }
    if (e > most) return;
    s->entries[i] = e;
    s->plain[i] = PARTLY;
}

/* Scale row i of one sample, which has n numbers; 0 where it has NaN or infinite entries. */
INLINE int scale_row(const void *source, int64_t place, int single, Rows *s, Index i, Index n) {
    Index exponent = 1;
    double *a = row_of(s, i);
    const double *from = a;
    if (single)
        for (Index j = 0; j < n; j++) a[j] = (double)((const float *)source)[place + j];
    else from = (const double *)source + place;
    double size = sum_of_sizes(from, n);
    if (!is_finite(size)) { /* NaN, infinite, or a sum that overflows */
        size = size_of_large(from, n);
        if (size < 0.0) return 0;
        exponent = -63;
    }
    if (size > 0.0) exponent -= exponent_of(size);
    else {
        exponent = 0;
        s->zeros = 1;
    }
    if (exponent > -900 && exponent < 900) {
        double factor = s->factor[i] = power_of_two(exponent);
        scale(a, factor, from, n);
        size *= factor;
    } else size = scale_far(s, i, exponent, from, n);
    double squared = dot(a, a, n);
    s->exponent[i] = exponent;
    s->squared[i] = squared;
    s->entries[i] = n;
    s->plain[i] = is_sparse(s) ? PARTLY : WHOLE;
    /* with n / 4 entries, |a|_1^2 <= n / 4 |a|_2^2 */
    if (!is_sparse(s) && 4.0 * size * size <= 1.1 * (double)n * squared) find_few(s, i);
    if (size == 1.0 && squared == 1.0) { /* one entry, of size 1, if the others are not too small to be seen here */
        Index count = 0, output = 0;
        EACH(j, n, (count += a[j] != 0.0, output = a[j] != 0.0 ? j : output))
        if (count == 1) {
            s->plain[i] = is_sparse(s) ? s->places[s->start[i] + output] : output;
            s->sign[i] = a[output];
        }
    }
    s->boxed = s->boxed && s->plain[i] >= 0;
    return 1;
}

FN int scale_matrix(const CaffnetBatch *batch, int64_t b, Rows *s) {
    s->boxed = rows_of(s) > 0;
    s->narrow = s->zeros = 0;
    for (Index i = 0; i < rows_of(s); i++) {
        int64_t place = is_sparse(s) ? s->start[i] : b * batch->A_step + (int64_t)i * outputs_of(s);
        Index count = is_sparse(s) ? s->start[i + 1] - s->start[i] : outputs_of(s);
        if (!scale_row(batch->A, place, (int)batch->single, s, i, count)) return 0;
    }
    return 1;
}

FN double scale_bound(const Rows *s, Index i, double bound) {
    double scaled = s->shift == 0 && s->factor[i] != 0.0 ? bound * s->factor[i] : ldexp(bound, s->exponent[i] + s->shift);
    return larger(smaller(scaled, NO_BOUND), -NO_BOUND);
}

FN int is_soft(const Work *work, Index i) { return work->soft && work->soft[i] == 's'; }

/* Whether row i is a soft one that is relaxed now. */
FN int is_loose(const Rows *s, Index i) { return s->loose && s->loose[i] == 's'; }

/* The upper or the lower bound of row i. */
INLINE double bound_of(const Rows *s, Index i, int upper) { return upper ? s->high[i] : s->low[i]; }

/* The size of y that row i demands, as a binary exponent in scaled units; -5000 if 0 is within its bounds. */
FN Index demand_of(const Rows *s, Index i, double low, double high) {
    double demand = low > 0.0 ? low : high < 0.0 ? -high : 0.0;
    return demand > 0.0 && is_finite(demand) && s->squared[i] > 0.0 ? exponent_of(demand) + s->exponent[i] : -5000;
}

/* Scale the bounds of sample b by `shift` too, chosen so that the largest of f, g and what the rows demand of y is of
   size 1, if that is out of range. Soft rows need not count in it. */
RARE void shift_sample(const CaffnetBatch *batch, int64_t b, Work *work, double size) {
    Rows *s = &work->rows;
    Index top = size > 0.0 ? exponent_of(size) : -5000;
    for (Index i = 0; i < rows_of(s); i++) {
        if (work->soft_rows != COUNT && is_soft(work, i)) continue;
        Index here = demand_of(s, i, lower_of(batch, b, i), upper_of(batch, b, i));
        top = here > top ? here : top;
    }
    s->shift = top > -5000 && (top > 400 || top < -400) ? -top : 0;
    for (Index i = 0; i < rows_of(s); i++) {
        double low = lower_of(batch, b, i), high = upper_of(batch, b, i);
        s->low[i] = is_finite(low) ? scale_bound(s, i, low) : low;
        s->high[i] = is_finite(high) ? scale_bound(s, i, high) : high;
    }
    for (Index j = 0; j < outputs_of(s); j++) {
        work->f[j] = ldexp(work->f[j], s->shift);
        work->g[j] = ldexp(work->g[j], s->shift);
    }
}

/* The scaled bound of a row of zeros. It keeps its sign, and stays beyond `tiny` if the user's bound is beyond it: so scaling
   never decides whether 0 is allowed. */
FN double bound_of_zeros(double bound, double scaled, double tiny) {
    if (bound == 0.0 || !is_finite(bound)) return bound;
    double size = fabs(bound) > tiny ? larger(fabs(scaled), 2.0 * tiny) : 0.5 * tiny;
    return bound > 0.0 ? size : -size;
}

/* Mark the rows whose bounds are the same. */
FN void mark_equal(Rows *s) {
    const double *low = s->low, *high = s->high;
    int8_t *equal = s->equal;
    for (Index i = 0, m = rows_of(s); i < m; i++) equal[i] = low[i] == high[i];
}

/* The largest bound of the sample that is finite, once they are scaled in an unusual way. */
RARE double largest_bound(const Rows *s) {
    double top = 0.0;
    for (Index i = 0; i < rows_of(s); i++) {
        if (is_finite(s->low[i])) top = larger(top, fabs(s->low[i]));
        if (is_finite(s->high[i])) top = larger(top, fabs(s->high[i]));
    }
    return top;
}

/* Take the bounds away from the soft rows. */
RARE void remove_soft_rows(Work *work) {
    for (Index i = 0; i < rows_of(&work->rows); i++) {
        if (!is_soft(work, i)) continue;
        work->rows.low[i] = -HUGE_VAL;
        work->rows.high[i] = HUGE_VAL;
    }
}

/* Scale the bounds of one sample and load f and g. INVALID for NaN or infinite data, CONFLICT if the bounds of a row
   exclude each other (by any amount), else INSIDE. */
FN int load_sample(const CaffnetBatch *batch, int64_t b, Work *work) {
    Rows *s = &work->rows;
    Index n = outputs_of(s), m = rows_of(s);
    int single = work->single, state = CAFFNET_INSIDE;
    double size = 0.0, top = 0.0;
    for (Index j = 0; j < n; j++) {
        double f = load(batch->f, b * batch->f_step + j, single), g = f;
        if (batch->w) g = rounded(f + load(batch->w, b * batch->w_step + j, single), single);
        if (!is_finite(f) || !is_finite(g)) return CAFFNET_INVALID;
        work->f[j] = f;
        work->g[j] = g;
        size = larger(size, larger(fabs(f), fabs(g)));
    }
    s->shift = 0;
    s->loose = NULL;
    work->hopeless = 0;
    const char *kinds = batch->kinds;
    double *lows = s->low, *highs = s->high;
    const double *factors = s->factor;
    for (Index i = 0; i < m; i++) {
        double low = lower_of(batch, b, i), high = upper_of(batch, b, i);
        if (!(low <= high) || low >= HUGE_VAL || high <= -HUGE_VAL) {
            if (low != low || high != high) return CAFFNET_INVALID;
            state = CONFLICT;
        }
        if (kinds && kinds[i] == '=' && !is_finite(high)) return CAFFNET_INVALID;
        lows[i] = low * factors[i];
        highs[i] = high * factors[i];
        if (is_finite(low)) top = larger(top, fabs(lows[i]));
        if (is_finite(high)) top = larger(top, fabs(highs[i]));
    }
    int odd = size > LARGEST || size < SMALLEST || top > LARGEST || s->narrow;
    if (odd) shift_sample(batch, b, work, size);
    for (Index i = 0; i < m && s->zeros; i++) {
        if (s->squared[i] != 0.0) continue;
        double tiny = work->t.underflow;
        s->low[i] = bound_of_zeros(lower_of(batch, b, i), s->low[i], tiny);
        s->high[i] = bound_of_zeros(upper_of(batch, b, i), s->high[i], tiny);
        if (s->low[i] > 0.0 || s->high[i] < 0.0) state = CONFLICT;
    }
    if (work->soft_rows == ARE_IGNORED) remove_soft_rows(work);
    copy(work->low, s->low, m);
    copy(work->high, s->high, m);
    mark_equal(s);
    work->top = odd || s->zeros ? largest_bound(s) : top;
    return state;
}

/* The largest number of a sample: of f, f + w and the bounds. */
FN double size_of_sample(const Work *work) {
    Index n = outputs_of(&work->rows);
    return larger(work->top, larger(largest(work->f, n), largest(work->g, n)));
}

/* How far row i is exceeded at a value of a_i y; negative: room left. */
FN double excess_of(const Rows *s, Index i, double value) { return larger(value - s->high[i], s->low[i] - value); }

/* The size of the bound that this value exceeds, or is nearer to. */
FN double bound_at(const Rows *s, Index i, double value) {
    return fabs(value - s->high[i] > s->low[i] - value ? s->high[i] : s->low[i]);
}

/* The size of the numbers whose rounding counts in row i at y: those of the row, but at least what float64 loses of all
   numbers, whose size is `all`. The allowance is t.feasibility of it. */
FN double size_at(const Rows *s, Index i, const double *y, double all) {
    double share = s->t->feasibility, fine = SHARE_OF_ALL * s->t->search, own = 0.0;
    if (!(share > fine)) return all;
    for (Index e = 0; e < s->entries[i]; e++) own += fabs(entry_of(s, i, e) * y[column_of(s, i, e)]);
    return larger(smaller(2.0 * own, all), fine / share * all);
}

/* Whether a value lies on a bound, up to rounding in numbers of this size. */
FN int lies_on(double value, double bound, double size, const CaffnetTolerances *t) {
    return is_finite(bound) && fabs(value - bound) <= t->feasibility * (size + fabs(bound)) + t->underflow;
}

/* Check y, computed from numbers of size |y| + start. REJECTED: a row is exceeded by more than rounding explains (a row of
   zeros: at all; a bound at the wrong infinity: always), or, if `firm`, a bound of one output at all, relaxed ones aside.
   WITHIN_TOL: a row that is not in `held` (NULL: none is) is exceeded by rounding. INSIDE: neither. */
FN int check(const Rows *s, const double *y, double start, const int8_t *held, int firm) {
    double all = largest(y, outputs_of(s)) + start, share = s->t->feasibility;
    int state = CAFFNET_INSIDE;
    for (Index i = 0; i < rows_of(s); i++) {
        double value = value_of(s, i, y), above = value - s->high[i], below = s->low[i] - value;
        double excess = larger(above, below);
        if (excess > 0.0) {
            if ((firm && s->plain[i] >= 0 && !is_loose(s, i)) || !is_finite(excess)) return REJECTED;
            double size = s->squared[i] == 0.0 ? 0.0 : size_at(s, i, y, all) + bound_at(s, i, value);
            if (!(excess <= share * size + s->t->underflow)) return REJECTED;
            int side = above > 0.0 ? 1 : -1;
            if (!held || (held[i] != side && !(s->equal[i] && held[i] != 0))) state = CAFFNET_WITHIN_TOL;
        } else if (!(excess <= 0.0)) return REJECTED;
    }
    return state;
}

/* Whether every row holds at y, computed from numbers of size |y| + start, up to rounding. */
FN int accepts(const Rows *s, const double *y, double start) { return check(s, y, start, NULL, 0) != REJECTED; }

/* The bounds that row i, which bounds one output, puts on it. */
INLINE void output_bounds(const Rows *s, Index i, double *low, double *high) {
    int up = s->sign[i] > 0.0;
    *low = up ? s->low[i] : 0.0 - s->high[i]; /* no -0 */
    *high = up ? s->high[i] : 0.0 - s->low[i];
}

/* Whether row i puts this bound on its output, from above or from below. */
INLINE int puts_bound(const Rows *s, Index i, int above, double bound) {
    double low, high;
    output_bounds(s, i, &low, &high);
    return (above ? high : low) == bound;
}

/* Put y within the rows +-y_j, exactly; relaxed rows are ignored. */
FN void clamp(const Rows *s, double *y) {
    for (Index i = 0; i < rows_of(s); i++) {
        Index j = s->plain[i];
        if (j < 0 || is_loose(s, i)) continue;
        double low, high;
        output_bounds(s, i, &low, &high);
        if (low <= high) y[j] = smaller(larger(y[j], low), high);
    }
}

/* The bounds of every output, from all rows that bound one; the first output whose bounds exclude each other, or -1. */
FN Index limits_of_outputs(const Rows *s, double *low, double *high) {
    Index wrong = -1;
    for (Index j = 0; j < outputs_of(s); j++) {
        low[j] = -HUGE_VAL;
        high[j] = HUGE_VAL;
    }
    for (Index i = 0; i < rows_of(s); i++) {
        Index j = s->plain[i];
        if (j < 0) continue;
        double below, above;
        output_bounds(s, i, &below, &above);
        low[j] = larger(low[j], below);
        high[j] = smaller(high[j], above);
        if (wrong < 0 && low[j] > high[j]) wrong = j;
    }
    return wrong;
}
