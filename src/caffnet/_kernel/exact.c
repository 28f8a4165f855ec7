/* Sums and signs without rounding.

   Two numbers h + l represent a sum or a product exactly (two_sum, two_product); a pair of them carries twice the
   digits. The sign of a y - b is decided by a sum in fixed point that holds every product of two finite numbers
   exactly, from the smallest to the largest: only where a bound on the rounding error leaves it open. */
#include "internal.h"

typedef struct {
    double high, low;
} Pair;

FN Pair two_sum(double a, double b) {
    Pair p;
    p.high = a + b;
    double c = p.high - a;
    p.low = (a - (p.high - c)) + (b - c);
    return p;
}

/* s + x with the error of every addition kept. */
FN Pair pair_add(Pair s, double x) {
    Pair p = two_sum(s.high, x);
    return two_sum(p.high, p.low + s.low);
}

/* s + a b */
FN Pair pair_add_product(Pair s, double a, double b) {
    double high = a * b, low = fma(a, b, -high);
    return pair_add(pair_add(s, high), low);
}

/* Fixed point: word j counts 2^(32 j - POINT). Every word is a signed sum of pieces of 32 bits; carries come last. */
enum { POINT = 2240, WORDS = 144 };
typedef struct {
    int64_t word[WORDS];
} Fixed;

/* total += x 2^exponent, for |x| < 2 with at most 53 bits. */
FN void fixed_add(Fixed *total, double x, int exponent) {
    int here = 0;
    if (x == 0.0) return;
    double mantissa = frexp(x, &here);
    int64_t digits = (int64_t)ldexp(fabs(mantissa), 53), sign = x < 0.0 ? -1 : 1;
    int place = exponent + here - 53 + POINT, word = place / 32, bit = place % 32;
    uint64_t low = ((uint64_t)digits & 0xffffffffu) << bit, high = ((uint64_t)digits >> 32) << bit;
    total->word[word] += sign * (int64_t)(low & 0xffffffffu);
    total->word[word + 1] += sign * (int64_t)((low >> 32) + (high & 0xffffffffu));
    total->word[word + 2] += sign * (int64_t)(high >> 32);
}

FN int fixed_sign(Fixed *total) {
    int64_t carry = 0;
    int sign = 0;
    for (int j = 0; j < WORDS; j++) {
        int64_t here = total->word[j] + carry;
        carry = here >= 0 ? here >> 32 : -((-here + 0xffffffff) >> 32); /* rounds down */
        if (here - carry * 4294967296 != 0) sign = 1;
    }
    return carry < 0 ? -1 : sign;
}

/* Whether no product and no sum of a y - b, taken in order, is rounded: as for a bound of one output that y meets. */
FN int sums_exactly(const void *a, int64_t place, const Index *columns, const void *y, int64_t y_place, Index n, double bound,
                    int single) {
    Pair total = {-bound, 0.0};
    int exact = 1;
    for (Index j = 0; j < n && exact; j++) {
        double p = load(a, place + j, single), q = load(y, y_place + (columns ? columns[j] : j), single), term = p * q;
        total = two_sum(total.high, term);
        /* the error of a smaller product may be smaller than the smallest number */
        exact = total.low == 0.0 && fma(p, q, -term) == 0.0 && (fabs(term) > 0x1p-900 || p == 0.0 || q == 0.0);
    }
    return exact && is_finite(total.high);
}

/* The sign of a y - b for n numbers of a row in the user's own numbers, exactly. `columns` has their places, or is NULL. */
FN int exact_sign(const void *a, int64_t place, const Index *columns, const void *y, int64_t y_place, Index n, double bound,
                  int single) {
    double total = -bound, size = fabs(bound);
    for (Index j = 0; j < n; j++) {
        double term = load(a, place + j, single) * load(y, y_place + (columns ? columns[j] : j), single);
        total += term;
        size += fabs(term);
    }
    /* |error| <= (n + 1) eps/2 size and a little; below the square root of the range products have lost digits */
    if (is_finite(size) && size > 0x1p-900 && fabs(total) > (double)(n + 4) * 0x1p-52 * size) return total > 0.0 ? 1 : -1;
    if (sums_exactly(a, place, columns, y, y_place, n, bound, single)) return (total > 0.0) - (total < 0.0);
    Fixed sum;
    memset(&sum, 0, sizeof sum);
    for (Index j = 0; j < n; j++) {
        int first = 0, second = 0;
        double p = frexp(load(a, place + j, single), &first);
        double q = frexp(load(y, y_place + (columns ? columns[j] : j), single), &second);
        double high = p * q, low = fma(p, q, -high);
        fixed_add(&sum, high, first + second);
        fixed_add(&sum, low, first + second);
    }
    int exponent = 0;
    double mantissa = frexp(bound, &exponent);
    fixed_add(&sum, -mantissa, exponent);
    return fixed_sign(&sum);
}

/* Whether the value in the user's array satisfies every inequality of sample b exactly; with `hard`, of its hard rows.
   Equalities are not tested. */
FN int holds_exactly(const CaffnetBatch *batch, int64_t b, const void *y, int64_t y_place, int hard) {
    int single = (int)batch->single;
    const Index *start = batch->row_start;
    for (int64_t i = 0; i < batch->m; i++) {
        double low = lower_of(batch, b, i), high = upper_of(batch, b, i);
        if (low == high || (hard && batch->soft && batch->soft[i] == 's')) continue;
        int64_t place = start ? start[i] : b * batch->A_step + i * batch->n;
        const Index *columns = start ? batch->columns + start[i] : NULL;
        Index n = start ? start[i + 1] - start[i] : (Index)batch->n;
        if (is_finite(high) && exact_sign(batch->A, place, columns, y, y_place, n, high, single) > 0) return 0;
        if (is_finite(low) && exact_sign(batch->A, place, columns, y, y_place, n, low, single) < 0) return 0;
    }
    return 1;
}
