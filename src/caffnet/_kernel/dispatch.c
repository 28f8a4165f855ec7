/* One kernel for each set of vector instructions, chosen when it is called. The bits are the same: sums have a fixed
   order and products are not fused, whatever the instructions. */
#include "kernel.h"

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#define DECLARE(isa)                                                                                                \
    int64_t caffnet_workspace_##isa(int64_t, int64_t, int64_t, int64_t);                                             \
    int64_t caffnet_solve_##isa(const CaffnetBatch *, int64_t, int64_t, void *);                                     \
    void caffnet_gradient_##isa(const CaffnetBatch *, const CaffnetGradients *, int64_t, int64_t, void *);           \
    void caffnet_conflict_##isa(const CaffnetBatch *, int64_t, double *, CaffnetProof *, void *);

DECLARE(baseline)
#ifdef CAFFNET_AVX
DECLARE(avx2)
DECLARE(avx512)
#define PICK(function, arguments)                                                                                    \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma")        \
         ? function##_avx512 arguments                                                                               \
     : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? function##_avx2 arguments                   \
                                                                       : function##_baseline arguments)
#else
#define PICK(function, arguments) function##_baseline arguments
#endif

/* Which C files the library was compiled from: native.py looks for this text in the file before it loads it. */
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
EXPORT const char caffnet_sources[] = "caffnet-sources:" TEXT(CAFFNET_SOURCES) ";";

EXPORT int64_t caffnet_workspace(int64_t n, int64_t m, int64_t search, int64_t metric) {
    return caffnet_workspace_baseline(n, m, search, metric);
}

EXPORT int64_t caffnet_solve(const CaffnetBatch *batch, int64_t first, int64_t last, void *memory) {
    return PICK(caffnet_solve, (batch, first, last, memory));
}

EXPORT void caffnet_gradient(const CaffnetBatch *batch, const CaffnetGradients *to, int64_t first, int64_t last, void *memory) {
    PICK(caffnet_gradient, (batch, to, first, last, memory));
}

EXPORT void caffnet_conflict(const CaffnetBatch *batch, int64_t sample, double *multiplier, CaffnetProof *proof, void *memory) {
    PICK(caffnet_conflict, (batch, sample, multiplier, proof, memory));
}
