/* Types and short functions of all files of the kernel. They are compiled together, as kernel.c. */
#ifndef CAFFNET_INTERNAL_H
#define CAFFNET_INTERNAL_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernel.h"

#ifdef __CUDACC__
#define FN static __device__ __noinline__ /* inlined into one function, the kernel takes an hour to compile */
#define INLINE static __device__ __forceinline__
#define RARE FN
#define RESTRICT __restrict__
#else
#define FN static inline
#define INLINE static inline __attribute__((always_inline))
#define RARE static __attribute__((noinline, cold)) /* kept apart from the code that every sample runs */
#define RESTRICT restrict
#endif

typedef int32_t Index;

/* Numbers between these can be squared, summed and divided without overflow or underflow. */
#define SMALLEST 0x1p-400
#define LARGEST 0x1p+400
/* A bound beyond this, in a sample whose other numbers are below LARGEST, can only be a way to write "none". */
#define NO_BOUND 0x1p+500

enum { NOT_FOUND = -1, CONFLICT = -2 }; /* in place of the number of rows of a face */
enum { REJECTED = -1 };                 /* in place of a status */
enum { COUNT, DO_NOT_SCALE, ARE_IGNORED }; /* soft rows count in everything; in all but the scale of a sample; in nothing */
enum { WHOLE = -1, PARTLY = -2 };       /* in place of an output: a row whose n numbers are all read; only its entries are */

/* Sums of pairs of numbers (exact.c) lose less than this share of their terms. */
#define LOST_BY_PAIRS 0x1p-98
/* Two units in the last place: what one operation and the rounding of its input leave. */
#define ROUNDING 0x1p-51
/* Every row may be exceeded by this many times t.search of the largest output, however small its own numbers are. */
#define SHARE_OF_ALL 4.0
/* The most levels of soft rows that a gradient distinguishes; gradient.py takes samples with more rows that give way. */
#ifdef __CUDACC__
#define LEVELS 16
#else
#define LEVELS 64
#endif
/* A remainder |z|^2 below this share of |a|^2 is projected again. A new row multiplies the error in the orthogonality of the
   directions by |d| / |z|, which is at most 1 from one half on: so the error does not grow from row to row. */
#define CANCELLATION 0.5
/* The same after a row was dropped. What a remainder gets back along one direction does not multiply that error: here the
   share only limits the loss to one decimal digit. */
#define CANCELLATION_OF_DROP 0.01
/* Lines of a factor that are processed together; unrolled code assumes four. */
#define GROUP 4
/* Smaller sets are answered faster by the general method. */
#define DIRECT_FROM 12

/* A step of newton.c is accepted when the slope along it has fallen to this share: it need not be exact but on the last
   piece, where the full step is. */
#define LINE_SEARCH 0.1
#define NEWTON_ROUNDS 100
/* The same for a set that is too large to be searched in full afterwards (FULL_ENTRIES, as _FULL of native.py). Chains that
   rise and fall in a box take up to half as many rounds as they have outputs. */
#define NEWTON_ROUNDS_ALONE 3000
#define FULL_ENTRIES 0x800000
/* Rows become the tail of cholesky.c when each has this share of the others as neighbours. */
#define FULL_TAIL 0.5
/* Most numbers in its factors: 256 MB, of which only the used part is ever touched. */
#define MOST_FACTORS 0x2000000

/* What is searched without an orthogonal factorisation: sets that direct.c knows, and other SPARSE rows by newton.c. */
enum { ANY, BOUNDS, BUDGET, CHAIN, SPARSE };
typedef struct {
    int shape;          /* what the matrix may be */
    int family;         /* what the sample is */
    int falling;        /* CHAIN: the outputs fall */
    Index row;          /* BUDGET: the row that is no bound of one output */
    Index *link;        /* (n,) CHAIN: the row that ties output j to j + 1, or -1 */
    double *a;          /* (n,) BUDGET: that row; CHAIN: the entry of y_{j+1} in link j */
    double *low, *high; /* (n,) the bounds of every output */
    int8_t *side;       /* (n,) the bound that fixes an output */
    double *sums;       /* (3, n) scratch */
    Index *first, *from, *until; /* (n,) CHAIN: where blocks begin, where bounds come from */
} Direct;

/* The rows of a sparse matrix that are no bounds, for newton.c. */
typedef struct {
    int ordered;            /* the matrix has been read */
    Index *column, *row;    /* (n + 1,), (entries,) where each column begins; the rows of its entries */
    double *entry;          /* (entries,) */
    Index *order, count;    /* (m,) these rows as they are eliminated */
    Index tail;             /* where the rows begin that are nearly all neighbours */
    Index *list, *place, k; /* (m,) the rows of the factors; where each row is among them, or -1 */
    Index first;            /* where the tail begins in `list` */
    Index *parent, *mark, *path; /* (m,) links of the columns; scratch */
    Index *begin, *end;     /* (m,) the entries of a column before the tail */
    Index *where;           /* (room,) their lines */
    double *L;              /* (room,) the entries; then, from `full`, the lines of the tail */
    double *full;
    int64_t room;
    double *pivot, *line;   /* (m,) the diagonal of L, 0 for rows left out; scratch */
    double *u, *trial, *step, *slope, *right; /* (m,) multipliers */
    double *x, *y;          /* (n,) */
    int8_t *moving;         /* (m,) */
    int faced;              /* the factors are those of a face: */
    int8_t *face;           /* (m,) the sides of its rows */
} Newton;

/* The rows of one sample, each times a power of two so that 1 <= |a|_1 < 2. */
typedef struct {
    Index m, n;
    double *A;         /* (m, n), or only the entries of a sparse matrix */
    const Index *start, *places; /* of a sparse matrix: where each row begins in A, (m + 1,); their columns. Else NULL */
    Index *exponent;   /* (m,) the power of two */
    double *factor;    /* (m,) the same as a number; 0 where it is out of range */
    double *squared;   /* (m,) |a|_2^2 */
    Index *entries;    /* (m,) how many entries of a row are looked at: n, or fewer where most are zero */
    Index *columns;    /* (m, n / 4) which ones, where they are fewer */
    Index *plain;      /* (m,) the output of a row that reads +-y_j; else WHOLE or PARTLY, as its entries are looked at */
    double *sign;      /* (m,) the entry of such a row */
    double *low, *high; /* (m,) bounds, scaled likewise; what is searched */
    int8_t *equal;     /* (m,) both bounds are the same */
    Index shift;       /* f, g and the bounds are times 2^shift: 0 but for the largest and smallest numbers */
    int boxed;         /* all rows are plain */
    Direct direct;
    Newton *newton;    /* of a sparse matrix */
    const CaffnetTolerances *t;
    const char *loose; /* (m,) 's' for soft rows, while they are relaxed: their bounds need not be numbers of the user's
                          type. Else NULL */
    int narrow;        /* a scaled entry or bound has lost bits: the smallest numbers beside the largest */
    int zeros;         /* there is a row of zeros */
} Rows;

/* A sub-constraint, factorised: a_{rows[j]} = sum_{i <= j} R_ij q_i with orthonormal q. */
typedef struct {
    Index k;
    double *Q;          /* (min(m, n), n) one direction per line */
    double *R;          /* the same size, upper triangular */
    double *inverse;    /* (n,) 1 / R_jj */
    Index *rows;        /* (n,) */
    double *sides;      /* (n,) +1 or -1: at the upper or the lower bound */
    double *multiplier; /* (n,) */
    Index *unit;        /* (n,) the output where q_j is +-1 and zero elsewhere, as a bound of one output makes it, or -1 */
    int8_t *held;       /* (m,) the side of every row */
    double *z, *d, *r;  /* (n,) a row orthogonal to the face; its part on the q; the same as coefficients of the rows */
    Index *violated;    /* (2 m,) rows that were violated when last looked at; other searches: the choices */
    Index base;         /* how many of the rows are equalities: the first ones, never dropped */
    double *rest, *part; /* (m, n) z and d of every row for the face of the equalities alone */
    double *left;       /* (m,) |z|^2; negative where not known yet */
    Index entering, side; /* the row at which a conflict showed */
} Face;

/* The state of a depth-first search, and the best sub-constraint so far. */
typedef struct {
    double *f, *g;      /* (n + 1, n) f and g projected on the flat at every depth */
    double *squared;    /* (n + 1,) the squared distance of f to the flat */
    Index *option;      /* (n + 1,) the place of the next choice */
    Index *last;        /* (n + 1,) the row whose direction is in Q */
    int8_t *independent; /* (n + 1,) */
    Index *after;       /* (m,) how many rows after this one can be chosen */
    Index *rows;        /* (n + 1,) the best */
    double *sides;
    double *pinv, *null; /* (n + 1, n, n) PAPER: A+ and I - A+ A at every depth */
    Index *place;       /* (n + 1,) PAPER: the option at every depth */
    int8_t *dependent;  /* (n + 1,) PAPER */
    double *weight;     /* (n,) PAPER: the exponents of the rows */
} Walk;

typedef struct {
    Rows rows;
    Face face;
    Face saved, first; /* copies of `face`; only what copy_face copies */
    Walk walk;
    double *f, *g, *y;         /* (n,) */
    double *spare, *other;     /* (n,) scratch: verify_point uses `spare`, project both */
    double *low, *high;        /* (m,) the bounds of the sample, while rows.low and rows.high are relaxed */
    double top;                /* the largest of those that are finite */
    double *unit;              /* (m,) what one unit of relaxation is in each row */
    double *give;              /* (m,) what each row is relaxed by in any case */
    double relax;              /* the relaxation at which the rows meet, in the user's units */
    double *level;             /* (m,) what each soft row of a RELAXED answer is relaxed by */
    int8_t *tier;              /* (m,) the sides of the rows that determine the levels; of a gradient: their levels, 1, 2, ... */
    const char *soft;          /* (m,) 's' for soft rows, or NULL */
    int hopeless;              /* a soft row that no point satisfies was given infinite bounds */
    int soft_rows;             /* COUNT, or how they are ignored */
    double *conflict, *fine;   /* (m,) multipliers that prove a set empty, and their lower halves */
    double *farthest, *farthest_fine; /* (m,) those of the conflict of a climb whose proof reached farthest */
    double reach;              /* its radius; 0: there is none */
    double *ordinary;          /* (n,) the answer, while another one is looked for (keep_answer) */
    int8_t *stood;             /* (m,) its rows */
    int8_t *kept, *seed;       /* (m,), (max(m, n),) rows set aside */
    int ready;                 /* the face has the factors of these equalities: */
    int8_t *before;            /* (m,) as in rows.equal */
    int lost;                  /* a search on sparse rows has not ended */
    int flat;                  /* y of the last search is the closed form on its face */
    int white;                 /* the sample of a metric in white: the sizes of its numbers mean nothing to the user */
    int unproven;              /* the answer was not found by the search, or not proven to be the nearest point */
    int exchanged;             /* float32: a row left for one that depends on the face in the digits of float32 only */
    Newton newton;
    CaffnetTolerances t;
    double norm;
    int single;
    const volatile int32_t *cancel;
} Work;

/* A metric M = L L', times a power of two, and the sample in z = L' y, where it is the Euclidean one. */
typedef struct {
    double *L;          /* (n, n) lower triangular, or (n,) */
    double *M;          /* the same times L', while `linear` */
    double *A;          /* (m, n) */
    double *f, *w, *z;  /* (n,) */
    double *low, *high; /* (m,) */
    int8_t *active;     /* (m,) */
    int8_t status;
    int diagonal;
    int linear;         /* f is the linear term q of a quadratic program, not a point */
    Index exponent;     /* of the power of two */
    int ready;          /* L and A are those of the samples before */
    CaffnetBatch batch; /* of this one sample */
    Work work;
} Metric;

/* The size of a set, and whether its matrix is stored by its entries: constants in a kernel for sets of one size. */
#ifdef CAFFNET_OUTPUTS
INLINE Index outputs_of(const Rows *s) { return (void)s, CAFFNET_OUTPUTS; }
INLINE Index rows_of(const Rows *s) { return (void)s, CAFFNET_ROWS; }
INLINE int is_sparse(const Rows *s) { return (void)s, 0; }
#else
INLINE Index outputs_of(const Rows *s) { return s->n; }
INLINE Index rows_of(const Rows *s) { return s->m; }
INLINE int is_sparse(const Rows *s) { return s->start != NULL; }
#endif

/* Whether a sample is searched without factors of its rows. */
INLINE int is_direct(const Rows *s) { return (is_sparse(s) || outputs_of(s) >= DIRECT_FROM) && s->direct.family != ANY; }

/* The face without rows. */
FN void clear_face(const Rows *s, Face *face) {
    memset(face->held, 0, (size_t)rows_of(s));
    face->k = 0;
}

FN double larger(double a, double b) { return a > b ? a : b; }
FN double smaller(double a, double b) { return a < b ? a : b; }
FN int is_finite(double x) { return fabs(x) <= 1.7976931348623157e308; }

/* The binary exponent of a number: |x| < 2^exponent, as frexp has it. */
FN Index exponent_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    Index exponent = (Index)(bits >> 52 & 0x7ff);
    if (exponent > 0) return exponent - 1022;
    int small = 0;
    (void)frexp(x, &small);
    return small;
}

/* 2^exponent, for |exponent| < 1000 */
FN double power_of_two(Index exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

FN double load(const void *array, int64_t place, int single) {
    return single ? (double)((const float *)array)[place] : ((const double *)array)[place];
}

FN void store(void *array, int64_t place, double x, int single) {
    if (single) ((float *)array)[place] = (float)x;
    else ((double *)array)[place] = x;
}

/* The user's bounds of row i in sample b. */
INLINE double lower_of(const CaffnetBatch *batch, int64_t b, int64_t i) {
    return load(batch->lower, b * batch->lower_step + i, (int)batch->single);
}

INLINE double upper_of(const CaffnetBatch *batch, int64_t b, int64_t i) {
    return load(batch->upper, b * batch->upper_step + i, (int)batch->single);
}

/* The number in the user's type. */
FN double rounded(double x, int single) { return single ? (double)(float)x : x; }

/* ---------------------------------------------------------------------------------------------- vectors */

/* Eight sums side by side, in as few registers as the processor has for them: compilers do not do this themselves.
   WIDTH is how many numbers one instruction adds or multiplies. */
#if defined(__CUDACC__) || defined(__AVX512F__)
#define WIDTH 8
#elif defined(__AVX__)
#define WIDTH 4
#else
#define WIDTH 2
#endif
#define PARTS (8 / WIDTH)

#if defined(__CUDACC__)
#define UNROLL _Pragma("unroll")
#elif defined(__GNUC__) && !defined(__clang__)
#define UNROLL _Pragma("GCC unroll 8")
#else
#define UNROLL
#endif

/* A step for every j up to the end, fewer than eight, in this order. Not as a loop: a compiler would make vectors of it, and
   their preparation takes longer than so few steps. */
#define FEW(j, end, step)               \
    {                                   \
        const Index left = (end) - (j); \
        if (left & 4) {                 \
            step; j++;                  \
            step; j++;                  \
            step; j++;                  \
            step; j++;                  \
        }                               \
        if (left & 2) {                 \
            step; j++;                  \
            step; j++;                  \
        }                               \
        if (left & 1) {                 \
            step; j++;                  \
        }                               \
    }

/* A step for every j from 0 to n - 1. */
#define EACH(j, n, step)           \
    Index j = 0;                   \
    if ((n) >= 8)                  \
        for (; j < (n); j++) step; \
    else FEW(j, n, step)

#ifdef __CUDACC__
template <int SIZE> struct Numbers {
    double at[SIZE];
    __device__ double operator[](int c) const { return at[c]; }
    __device__ void operator+=(const Numbers &x) {
        for (int c = 0; c < SIZE; c++) at[c] += x.at[c];
    }
    __device__ Numbers operator*(const Numbers &x) const {
        Numbers product = x;
        for (int c = 0; c < SIZE; c++) product.at[c] *= at[c];
        return product;
    }
};
typedef Numbers<8> Vector;
typedef Numbers<4> Four;
typedef Numbers<2> Two;
#else
typedef double Vector __attribute__((vector_size(8 * WIDTH)));
typedef double Four __attribute__((vector_size(32)));
typedef double Two __attribute__((vector_size(16)));
#endif

typedef struct {
    Vector part[PARTS];
} Eight;

/* sum += a b, number by number */
INLINE void add_products(Eight *sum, const double *a, const double *b) {
    UNROLL
    for (int p = 0; p < PARTS; p++) {
        Vector x, y;
        memcpy(&x, a + p * WIDTH, sizeof x);
        memcpy(&y, b + p * WIDTH, sizeof y);
        sum->part[p] += x * y;
    }
}

/* The same for two numbers. */
INLINE void add_two(Two *sum, const double *a, const double *b) {
    Two x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    *sum += x * y;
}

/* The total of eight sums and of the last products, fewer than eight, which join the sums while these are folded. */
INLINE double total_of(const Eight *sum, const double *a, const double *b, Index left) {
#if WIDTH == 2
    Two low = sum->part[0], high = sum->part[1];
    low += sum->part[2];
    high += sum->part[3];
#else
    Vector v = sum->part[0];
    Four four = {v[0], v[1], v[2], v[3]};
#if WIDTH == 8
    Four upper = {v[4], v[5], v[6], v[7]};
    four += upper;
#else
    four += sum->part[1];
#endif
    Two low = {four[0], four[1]}, high = {four[2], four[3]};
#endif
    if (left & 4) {
        add_two(&low, a, b);
        add_two(&high, a + 2, b + 2);
        a += 4;
        b += 4;
    }
    low += high;
    if (left & 2) {
        add_two(&low, a, b);
        a += 2;
        b += 2;
    }
    double total = low[0] + low[1];
    return left & 1 ? total + a[0] * b[0] : total;
}

/* Products of `count` lines (a constant) with b: each number of b is loaded once. The bits are those of
   long_dot, whose order of sums depends on n alone. */
INLINE void long_dots(const double *const *lines, int count, const double *b, Index n, double *to) {
    Eight sum[GROUP];
    Index j = 0;
    UNROLL
    for (int l = 0; l < count; l++) memset(&sum[l], 0, sizeof sum[l]);
    for (; j + 8 <= n; j += 8) {
        UNROLL
        for (int l = 0; l < count; l++) add_products(&sum[l], lines[l] + j, b + j);
    }
    UNROLL
    for (int l = 0; l < count; l++) to[l] = total_of(&sum[l], lines[l] + j, b + j, n - j);
}

FN double long_dot(const double *a, const double *b, Index n) {
    double total;
    long_dots(&a, 1, b, n, &total);
    return total;
}

/* The products of a GROUP of lines with b: as many at a time as there are registers for. */
FN void group_dots(const double *const *lines, const double *b, Index n, double *to) {
    if (WIDTH == 8) long_dots(lines, GROUP, b, n, to);
    else {
        long_dots(lines, 2, b, n, to);
        long_dots(lines + 2, 2, b, n, to + 2);
    }
}

INLINE double dot(const double *a, const double *b, Index n) {
    if (n >= 8) return long_dot(a, b, n);
    double total = 0.0;
    Index j = 0;
    FEW(j, n, total += a[j] * b[j])
    return total;
}

/* |y|_1 */
INLINE double sum_of_sizes(const double *y, Index n) {
    double total = 0.0;
    Index j = 0;
    if (n >= 8) {
        double sum[8] = {0.0};
        for (; j + 8 <= n; j += 8)
            for (int c = 0; c < 8; c++) sum[c] += fabs(y[j + c]);
        for (int c = 0; c < 8; c++) total += sum[c];
    }
    FEW(j, n, total += fabs(y[j]))
    return total;
}

/* y -= amount_l x_l for a GROUP of lines x, one after the other. */
FN void subtract_lines(double *RESTRICT y, const double *RESTRICT amount, const double *RESTRICT x, Index n) {
    const double *RESTRICT second = x + n, *RESTRICT third = second + n, *RESTRICT fourth = third + n;
    double a = amount[0], b = amount[1], c = amount[2], d = amount[3];
    for (Index j = 0; j < n; j++) y[j] = (((y[j] - a * x[j]) - b * second[j]) - c * third[j]) - d * fourth[j];
}

/* y -= amount x */
FN void subtract(double *RESTRICT y, double amount, const double *RESTRICT x, Index n) {
    EACH(j, n, y[j] -= amount * x[j])
}

/* to = factor from; they may be the same. */
INLINE void scale(double *to, double factor, const double *from, Index n) {
    EACH(j, n, to[j] = factor * from[j])
}

FN void copy(double *RESTRICT to, const double *RESTRICT from, Index n) {
    EACH(j, n, to[j] = from[j])
}

/* |y|_inf */
FN double largest(const double *y, Index n) {
    double top = 0.0;
    Index j = 0;
    if (n >= 8) {
        double most[8] = {0.0};
        for (; j + 8 <= n; j += 8)
            for (int c = 0; c < 8; c++) most[c] = fabs(y[j + c]) > most[c] ? fabs(y[j + c]) : most[c];
        for (int c = 0; c < 8; c++) top = larger(top, most[c]);
    }
    FEW(j, n, top = larger(top, fabs(y[j])))
    return top;
}

/* |y - f|_p, relative to the largest entry where powers leave the range of numbers. */
FN double distance(const double *y, const double *f, Index n, double p) {
    double top = 0.0, total = 0.0;
    if (p == 2.0) {
        for (Index j = 0; j < n; j++) total += (y[j] - f[j]) * (y[j] - f[j]);
        if (total > SMALLEST && total < LARGEST) return sqrt(total);
        total = 0.0;
    }
    for (Index j = 0; j < n; j++) top = larger(top, fabs(y[j] - f[j]));
    if (p > 1e300 || top == 0.0) return top;
    for (Index j = 0; j < n; j++) {
        double share = fabs(y[j] - f[j]) / top;
        total += p == 2.0 ? share * share : p == 1.0 ? share : pow(share, p);
    }
    return top * (p == 2.0 ? sqrt(total) : p == 1.0 ? total : pow(total, 1.0 / p));
}

#endif
