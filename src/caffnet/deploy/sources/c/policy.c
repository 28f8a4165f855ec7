/* The steps of a policy: the network, the rows, the kernel. What they work on is in policy_data.c. */
#include "policy.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* The kernel, for sets of this size. */
#define CAFFNET_OUTPUTS POLICY_SIZE
#define CAFFNET_ROWS POLICY_ROWS
#include "kernel/kernel.c"

#if POLICY_HAS_NETWORK

/* Eight sums side by side, for vector instructions; the order depends on n alone. */
static policy_real sum_of_products(const policy_real *a, const policy_real *b, int n) {
    policy_real sum[8] = {0}, total;
    int j = 0;
    for (; j + 8 <= n; j += 8)
        for (int c = 0; c < 8; c++) sum[c] += a[j + c] * b[j + c];
    total = ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
    for (; j < n; j++) total += a[j] * b[j];
    return total;
}

static policy_real activate(policy_real z, int activation) {
    switch (activation) {
    case POLICY_RELU: return z < 0 ? 0 : z; /* NaN stays */
#if POLICY_USES_EXP
    case POLICY_SILU: return (policy_real)(z / (1 + POLICY_EXP(-z)));
#endif
#if POLICY_USES_TANH
    case POLICY_TANH: return POLICY_TANH_OF(z);
#endif
    default: return z;
    }
}

/* The layers one after the other, from x to y, by way of two lines of memory. */
static void run_network(const PolicyLayer *layer, int count, const policy_real *x, policy_real *y, policy_real line[2][POLICY_WIDTH]) {
    for (int k = 0; k < count; k++, layer++) {
        policy_real *to = k + 1 == count ? y : line[k % 2];
        for (int i = 0; i < layer->outputs; i++)
            to[i] = activate(sum_of_products(layer->weight + (ptrdiff_t)i * layer->inputs, x, layer->inputs) + layer->bias[i], layer->activation);
        x = to;
    }
}

int policy_step(PolicyMemory *memory, const policy_real *x, const policy_real *nominal, PolicyAnswer *answer) {
    const policy_real *w = NULL;
    run_network(policy_backbone, POLICY_BACKBONE_LAYERS, x, memory->f, memory->layer);
    for (int j = 0; nominal && j < POLICY_OUTPUTS; j++) memory->f[j] += nominal[j];
#if POLICY_NULL_LAYERS
    run_network(policy_null, POLICY_NULL_LAYERS, x, memory->w, memory->layer);
    w = memory->w;
#endif
    return policy_project(memory, memory->f, w, x, answer);
}

#endif

/* The largest violation of a row at y, and 0 if there is none. */
static double violation_of(const CaffnetBatch *batch, const policy_real *y) {
    const policy_real *A = (const policy_real *)batch->A;
    const policy_real *lower = (const policy_real *)batch->lower, *upper = (const policy_real *)batch->upper;
    double worst = 0.0;
    for (int i = 0; i < POLICY_ROWS; i++) {
        double value = 0.0;
        for (int j = 0; j < POLICY_OUTPUTS; j++) value += (double)A[i * POLICY_SIZE + j] * (double)y[j];
        double above = value - (double)upper[i], below = (double)lower[i] - value;
        if (!(above <= worst)) worst = above; /* NaN is seen */
        if (!(below <= worst)) worst = below;
    }
    return worst;
}

/* |t|_2, without overflow. */
static policy_real length_of(const policy_real *t) {
    policy_real top = 0, sum = 0;
    for (int j = 0; j < POLICY_OUTPUTS; j++) {
        policy_real size = t[j] < 0 ? -t[j] : t[j];
        if (!(size <= top)) top = size; /* NaN is seen */
    }
    if (!(top > 0)) return top;
    for (int j = 0; j < POLICY_OUTPUTS; j++) sum += (t[j] / top) * (t[j] / top);
    return (policy_real)(top * POLICY_ROOT(sum));
}

/* w, made shorter where it is longer than POLICY_NULL_LIMIT times the distance of f to the set. */
static const policy_real *limited(const CaffnetBatch *given, PolicyMemory *memory, void *room) {
    const policy_real *f = (const policy_real *)given->f, *w = (const policy_real *)given->w;
    CaffnetBatch batch = *given;
    int8_t status = CAFFNET_INVALID;
    batch.search = CAFFNET_ACTIVE, batch.strict = 0, batch.nearest = 1, batch.norm = 2.0;
    batch.w = NULL, batch.start = NULL, batch.value = memory->plain, batch.status = &status;
    NAME(caffnet_solve)(&batch, 0, 1, room);
    for (int j = 0; j < POLICY_OUTPUTS; j++) memory->plain[j] = f[j] - memory->plain[j];
    policy_real limit = (policy_real)POLICY_NULL_LIMIT * length_of(memory->plain), size = length_of(w);
    if (!(size > limit) || isinf(size)) return w;
    for (int j = 0; j < POLICY_OUTPUTS; j++) memory->wide[1][j] = w[j] * (limit / size);
    return memory->wide[1];
}

/* The outputs, with slacks of 0. */
static const policy_real *widened(const policy_real *outputs, policy_real *wide) {
    for (int j = 0; j < POLICY_SIZE; j++) wide[j] = j < POLICY_OUTPUTS ? outputs[j] : 0;
    return wide;
}

int64_t policy_workspace(void) {
    return NAME(caffnet_workspace)(POLICY_SIZE, POLICY_ROWS, POLICY_SEARCH, POLICY_METRIC > 0);
}

int policy_project(PolicyMemory *memory, const policy_real *f, const policy_real *w, const policy_real *x, PolicyAnswer *answer) {
    policy_real *value = memory->wide[2];
    CaffnetBatch batch;
    int8_t status = CAFFNET_INVALID;
    void *room = (void *)(((uintptr_t)memory->workspace + 63) & ~(uintptr_t)63);
    memset(&batch, 0, sizeof batch);
    batch.n = POLICY_SIZE, batch.m = POLICY_ROWS, batch.samples = 1;
    batch.single = sizeof(policy_real) == 4;
    batch.search = POLICY_SEARCH, batch.strict = POLICY_STRICT, batch.nearest = POLICY_NEAREST;
    batch.norm = POLICY_NORM, batch.t = policy_tolerances;
    batch.f = widened(f, memory->wide[0]), batch.w = w ? widened(w, memory->wide[1]) : NULL;
    batch.kinds = policy_kinds, batch.soft = POLICY_SOFT;
#if POLICY_FIXED
    (void)x;
    batch.A = policy_A, batch.lower = policy_lower, batch.upper = policy_upper;
#if POLICY_METRIC
    batch.metric = policy_metric;
#endif
#else
    policy_rows(x, memory->A, memory->lower, memory->upper, memory->metric);
    batch.A = memory->A, batch.lower = memory->lower, batch.upper = memory->upper;
    batch.metric = POLICY_METRIC ? memory->metric : NULL;
#endif
    batch.diagonal = POLICY_METRIC == POLICY_SIZE;
    batch.start = POLICY_WARM ? memory->start : NULL;
    batch.value = value, batch.status = &status, batch.active = answer->active, batch.choice = memory->choice;
    if (POLICY_NULL_LIMIT > 0 && w) batch.w = limited(&batch, memory, room);
    NAME(caffnet_solve)(&batch, 0, 1, room);
    if (POLICY_WARM) memcpy(memory->start, answer->active, POLICY_ROWS);
    for (int j = 0; j < POLICY_SIZE; j++) {
        if (j < POLICY_OUTPUTS) answer->value[j] = value[j];
        else if (value[j] != 0 && !CAFFNET_HAS_NO_ANSWER(status)) status = CAFFNET_RELAXED;
    }
    answer->violation = violation_of(&batch, answer->value);
    answer->status = status;
    return status;
}
