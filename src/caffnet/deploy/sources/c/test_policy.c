/* Compares the policy with what torch computes, stored in policy_vectors.h. With an argument N it then measures N steps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "policy.h"
#include "policy_vectors.h"

static PolicyMemory memory;
static double worst; /* the largest difference so far, relative to the size of the number or 1 */

static int is_near(double found, double expected) {
    if (isnan(expected) || isinf(expected)) return isnan(expected) ? isnan(found) : found == expected;
    double difference = fabs(found - expected) / fmax(1.0, fabs(expected));
    if (!(difference <= worst)) worst = difference;
    return difference <= POLICY_TOLERANCE;
}

static int run(int k, PolicyAnswer *answer) {
    const policy_real *x = vector_x + k * POLICY_INPUTS;
#if POLICY_HAS_NETWORK
    return policy_step(&memory, x, NULL, answer);
#else
    return policy_project(&memory, vector_f + k * POLICY_OUTPUTS, NULL, x, answer);
#endif
}

int main(int arguments, char **argument) {
    int failed = 0;
    PolicyAnswer answer;
    if (policy_workspace() > POLICY_WORKSPACE) {
        puts("the workspace is too small for this kernel");
        return 1;
    }
    for (int k = 0; k < POLICY_VECTORS; k++) {
        memset(&answer, 0xA5, sizeof answer);
        int good = run(k, &answer) == vector_status[k] && answer.status == vector_status[k];
        for (int j = 0; j < POLICY_OUTPUTS; j++)
            good &= is_near((double)answer.value[j], (double)vector_value[k * POLICY_OUTPUTS + j]);
        good &= is_near(answer.violation, (double)vector_violation[k]);
#if !POLICY_FIXED
        policy_rows(vector_x + k * POLICY_INPUTS, memory.A, memory.lower, memory.upper, memory.metric);
        for (int i = 0; i < POLICY_ROWS * POLICY_SIZE; i++)
            good &= is_near((double)memory.A[i], (double)vector_A[k * POLICY_ROWS * POLICY_SIZE + i]);
        for (int i = 0; i < POLICY_ROWS; i++)
            good &= is_near((double)memory.lower[i], (double)vector_lower[k * POLICY_ROWS + i]) &
                    is_near((double)memory.upper[i], (double)vector_upper[k * POLICY_ROWS + i]);
#if POLICY_METRIC
        for (int i = 0; i < POLICY_METRIC; i++)
            good &= is_near((double)memory.metric[i], (double)vector_metric[k * POLICY_METRIC + i]);
#endif
#endif
        if (!good) printf("vector %d differs: status %d, expected %d\n", k, (int)answer.status, vector_status[k]);
        failed += !good;
    }
    printf("%d passed, %d failed, largest difference %.3g\n", POLICY_VECTORS - failed, failed, worst);
    if (arguments > 1) {
        long steps = strtol(argument[1], NULL, 10);
        clock_t start = clock();
        for (long k = 0; k < steps; k++) (void)run((int)(k % POLICY_VECTORS), &answer);
        printf("%.0f ns per step\n", 1e9 * (double)(clock() - start) / CLOCKS_PER_SEC / (double)steps);
    }
    return failed > 0;
}
