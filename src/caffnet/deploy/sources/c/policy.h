/* A constrained policy without Python: y = P*(f(x), w(x)), as CAffNet computes it. Exported by caffnet.

   C11 (this header is C++ too). No allocation, no global state: all memory is in PolicyMemory, one for every thread.

     static PolicyMemory memory;              zero at the start
     PolicyAnswer answer;
     if (CAFFNET_HAS_NO_ANSWER(policy_step(&memory, x, NULL, &answer))) stop_the_robot();

   Time is bounded: POLICY_MOST_STEPS in policy_data.h. */
#ifndef POLICY_H
#define POLICY_H

#include "kernel.h"
#include "policy_data.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    policy_real value[POLICY_OUTPUTS];
    double violation;                     /* the largest of all rows, in their units, measured from the data */
    int32_t status;                       /* CAFFNET_INSIDE, _PROJECTED, _WITHIN_TOL, _RELAXED, _INFEASIBLE or _INVALID */
    int8_t active[POLICY_ROWS_OR_1];      /* the rows that the value was put on: +1 upper bound, -1 lower, else 0 */
} PolicyAnswer;

typedef struct {
    unsigned char workspace[POLICY_WORKSPACE];
    policy_real f[POLICY_OUTPUTS], w[POLICY_OUTPUTS], layer[2][POLICY_WIDTH];
    policy_real plain[POLICY_SIZE]; /* the projection of f alone, where w has a limit */
    policy_real wide[3][POLICY_SIZE]; /* f, w and the value with their slacks */
    int32_t choice[POLICY_SIZE];
    int8_t start[POLICY_ROWS_OR_1]; /* the rows of the step before, where the layer has warm_start */
#if !POLICY_FIXED
    policy_real A[POLICY_ROWS_OR_1 * POLICY_SIZE], lower[POLICY_ROWS_OR_1], upper[POLICY_ROWS_OR_1];
    policy_real metric[POLICY_METRIC + 1];
#endif
} PolicyMemory;

/* The layer: raw output f, null-space vector w or NULL, the input x (NULL where the rows do not depend on it).
   Returns the status. RELAXED: soft rows gave way (those with a weight: a little, as it pays), hard ones hold. INFEASIBLE: there is no point in the set; the value
   then is NaN, or with on_infeasible="nearest" the point of least violation. INVALID: data are NaN, so is the value. */
int policy_project(PolicyMemory *memory, const policy_real *f, const policy_real *w, const policy_real *x,
                   PolicyAnswer *answer);

#if POLICY_HAS_NETWORK
/* The network and the layer. `nominal` is added to the raw output, or NULL. */
int policy_step(PolicyMemory *memory, const policy_real *x, const policy_real *nominal, PolicyAnswer *answer);
#endif

/* The bytes that the kernel in this folder works in: POLICY_WORKSPACE, if all files were written together. */
int64_t policy_workspace(void);

#if !POLICY_FIXED
/* The rows at x: A (POLICY_ROWS, POLICY_SIZE), lower and upper (POLICY_ROWS,), and the metric (POLICY_METRIC,). */
void policy_rows(const policy_real *x, policy_real *A, policy_real *lower, policy_real *upper, policy_real *metric);
#endif

#ifdef __cplusplus
}
#endif
#endif
