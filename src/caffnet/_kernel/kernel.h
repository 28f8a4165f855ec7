/* The types of the kernel, and what a caller needs: one struct in, arrays out, memory from the caller.

   The set of a sample is {y : lower <= A y <= upper}, f its raw output, w its null-space vector, g = f + w.
   A sub-constraint is a choice of rows, each held at one side; `active` has +1 (upper), -1 (lower) or 0 for every row.
   The mathematics is explained in projection.py and, step by step, in the files beside this one. An ordinary sample goes
   through decide, project, dual, face and verify: read these first, in this order.

     rows        scaling and the test that accepts a point
     exact       sums and signs without rounding
     box         sets made of bounds only
     cholesky    factors of sparse rows
     newton      sparse rows, by their multipliers
     direct      one row or a chain beside the bounds
     face        a sub-constraint as an orthogonal factorisation
     dual        the sub-constraint of the Euclidean projection
     walk        all sub-constraints, depth first
     infeasible  least violation, and the proof that a set is empty
     soft        rows that give way where the set is empty
     verify      the point on one face: computed, refined, rounded, checked
     project     the face of one sample, and the point on it
     violation   least violation with soft and hard rows
     far         rows that meet far away, points beyond the largest number
     write       answers into the caller's arrays
     paper       the least-squares compromises of dependent rows
     strict      every inequality in exact arithmetic
     decide      one sample from its data to a verified answer
     gradient    the derivative
     metric      another metric than the Euclidean one
     quadratic   quadratic programs, multipliers, and linear systems on a face
     entry       batches

   C11 that is also valid CUDA C++: no allocation, no global state, no library but fabs, sqrt, fma, frexp, ldexp, pow.
   Sums run in an order that depends on the length alone, so a sample has the same bits in every batch and build. */
#ifndef CAFFNET_KERNEL_H
#define CAFFNET_KERNEL_H

#include <stdint.h>

#ifdef __CUDACC__
#define CAFFNET_FUNCTION extern "C" __device__
#else
#define CAFFNET_FUNCTION
#endif

enum { CAFFNET_INSIDE, CAFFNET_PROJECTED, CAFFNET_WITHIN_TOL, CAFFNET_INFEASIBLE, CAFFNET_INVALID, CAFFNET_RELAXED,
       CAFFNET_UNDECIDED = 7 /* sparse rows on which the search does not end: for a caller who asks again in full */ };
#define CAFFNET_HAS_NO_ANSWER(status) \
    ((status) == CAFFNET_INFEASIBLE || (status) == CAFFNET_INVALID || (status) == CAFFNET_UNDECIDED)
enum { CAFFNET_FULL, CAFFNET_LITE, CAFFNET_ACTIVE, CAFFNET_PAPER };

/* The numbers of tolerance.py for one number type and one n. */
typedef struct {
    double feasibility, search, rank, tie, underflow, margin, fine_rank, empty, optimal, delicate;
} CaffnetTolerances;

/* A batch. The data are float32 (single != 0) or float64. A step is the distance between the samples of an array in
   elements, 0 for an array that all samples share. Field order is that of native.py. */
typedef struct {
    int64_t n, m, samples;
    int64_t single;  /* the arrays below with type void are float32 */
    int64_t search;  /* FULL, LITE, ACTIVE or PAPER */
    int64_t strict;  /* rows must hold in exact arithmetic */
    int64_t nearest; /* infeasible samples get the point of least violation, not NaN */
    int64_t tangent; /* the gradient of f is projected on the tangent cone */
    int64_t diagonal; /* the metric has one number per output */
    int64_t keep;    /* solve and gradient use again what an earlier call computed from A: one A for all samples, no metric.
                        Pass the same memory again, larger by caffnet_kept bytes, its first 8 bytes zero for the first call.
                        Every call compares A bit by bit with the copy there */
    int64_t f_step, w_step, A_step, lower_step, upper_step, metric_step;
    const void *f, *w, *A, *lower, *upper; /* (B, n), (B, n) or NULL, (B, m, n), (B, m), (B, m) */
    const void *metric;                    /* (B, n, n), or (B, n) if diagonal, or NULL for the Euclidean one */
    const int32_t *row_start, *columns;    /* a sparse A that all share: (m + 1,), where its rows begin; columns. Or NULL */
    const char *kinds;                     /* (m,) '=' for rows that are equalities by declaration, or NULL */
    const char *soft;                      /* (m,) 's' for rows that give way where the set is empty, or NULL */
    const int8_t *start;                   /* (B, m) rows to begin with, or NULL */
    void *value;                           /* (B, n) */
    int8_t *status;                        /* (B,) */
    int8_t *active;                        /* (B, m) */
    int32_t *choice;                       /* (B, n) PAPER: 1 + 2 row + (upper side) in each slot of a compromise */
    const volatile int32_t *cancel;        /* stop when it is not 0, or NULL */
    double norm;                           /* the p of the distance */
    CaffnetTolerances t;
} CaffnetBatch;

/* Gradients. Arrays that are not wanted are NULL; an array with step 0 receives the sum over the samples. */
typedef struct {
    const void *v;                               /* (B, n) incoming */
    int64_t v_step;
    void *f, *w;                                 /* (B, n) */
    double *A, *lower, *upper, *metric;          /* float64 whatever the data, zero at the start */
    int64_t A_step, lower_step, upper_step, metric_step;
} CaffnetGradients;

/* Why a sample has no point: sum_i multiplier_i a_i vanishes up to `residual`, sum_i multiplier_i b_i = gap < 0, in
   exact arithmetic for the scaled rows. So no point with |y|_inf < radius = |gap| / residual satisfies the rows. */
typedef struct {
    double gap, radius;
} CaffnetProof;

/* The most rounds of one dual active-set search, each of which adds a row and drops at most n: a bound on its time. */
#define CAFFNET_ROUNDS(n, m) (10 * ((m) + (n)) + 100)

/* Bytes of workspace for one call at a time. */
CAFFNET_FUNCTION int64_t caffnet_workspace(int64_t n, int64_t m, int64_t search, int64_t metric);

/* The same for a sparse matrix, for which there is ACTIVE only. */
CAFFNET_FUNCTION int64_t caffnet_workspace_sparse(int64_t n, int64_t m, const int32_t *row_start);

/* Bytes beside for a batch with `keep`: copies of the numbers in A, and of the places of a sparse one with so many rows; 0
   rows if it is not. */
CAFFNET_FUNCTION int64_t caffnet_kept(int64_t numbers, int64_t rows);

/* Answers samples first .. last-1; returns how many are INFEASIBLE or INVALID, or -1 if cancelled. */
CAFFNET_FUNCTION int64_t caffnet_solve(const CaffnetBatch *batch, int64_t first, int64_t last, void *memory);

/* Adds up the gradients of samples first .. last-1 from value and active as caffnet_solve left them. */
CAFFNET_FUNCTION void caffnet_gradient(const CaffnetBatch *batch, const CaffnetGradients *to, int64_t first, int64_t last,
                                       void *memory);

/* Linear systems on the faces of a batch: [M A'; A 0] [p; s] = [v; u] for the rows in `active`; M = I without a metric. */
typedef struct {
    const void *v, *u;      /* (B, n), (B, m) or NULL for zero */
    int64_t v_step, u_step;
    void *p, *s;            /* (B, n), (B, m): s is 0 for rows that are not active */
} CaffnetSystem;

/* Minimises y' M y / 2 + q' y on the sets of samples first .. last-1: M is batch.metric, or 0 if
   there is none; q is batch.f. The multipliers, (B, m), are positive at upper bounds; NaN, and WITHIN_TOL, where none prove
   the point. Returns as caffnet_solve. */
CAFFNET_FUNCTION int64_t caffnet_minimise(const CaffnetBatch *batch, void *multiplier, int64_t first, int64_t last,
                                          void *memory);

/* Solves the systems of samples first .. last-1; NaN where M is not positive definite. */
CAFFNET_FUNCTION void caffnet_system(const CaffnetBatch *batch, const CaffnetSystem *system, int64_t first, int64_t last,
                                     void *memory);

/* Writes the multipliers of the rows in conflict in an INFEASIBLE sample, in the user's units, (m,), and the proof. */
CAFFNET_FUNCTION void caffnet_conflict(const CaffnetBatch *batch, int64_t sample, double *multiplier, CaffnetProof *proof,
                                       void *memory);

#endif
