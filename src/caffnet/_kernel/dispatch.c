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
    int64_t caffnet_workspace_sparse_##isa(int64_t, int64_t, const int32_t *);                                        \
    int64_t caffnet_kept_##isa(int64_t, int64_t);                                                                    \
    int64_t caffnet_solve_##isa(const CaffnetBatch *, int64_t, int64_t, void *);                                     \
    void caffnet_gradient_##isa(const CaffnetBatch *, const CaffnetGradients *, int64_t, int64_t, void *);           \
    int64_t caffnet_minimise_##isa(const CaffnetBatch *, void *, int64_t, int64_t, void *);                          \
    void caffnet_system_##isa(const CaffnetBatch *, const CaffnetSystem *, int64_t, int64_t, void *);                \
    void caffnet_conflict_##isa(const CaffnetBatch *, int64_t, double *, CaffnetProof *, void *);

DECLARE(baseline)
#ifdef CAFFNET_AVX
DECLARE(avx2)
DECLARE(avx512)
#include <cpuid.h>

enum { UNKNOWN, BASELINE, AVX2, AVX512 };

/* The instructions that the processor has and the system saves. Not __builtin_cpu_supports, which needs an object that the run-time
   libraries of some compilers (zig) lack. */
static int ask_processor(void) {
    const unsigned fma_xsave_avx = 1u << 12 | 1u << 27 | 1u << 28, avx2 = 1u << 5;
    const unsigned avx512_f_dq_vl = 1u << 16 | 1u << 17 | 1u << 31;
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & fma_xsave_avx) != fma_xsave_avx) return BASELINE;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if ((saved & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & avx2)) return BASELINE;
    return (saved & 0xe6) == 0xe6 && (b & avx512_f_dq_vl) == avx512_f_dq_vl ? AVX512 : AVX2;
}

/* Asked once: in a virtual machine the question takes longer than a small projection. Two threads that ask at the same
   time get the same answer. */
static _Atomic int processor;

static int best(void) {
    int found = processor;
    if (found == UNKNOWN) processor = found = ask_processor();
    return found;
}

#define PICK(function, arguments)                                                                                    \
    (best() == AVX512 ? function##_avx512 arguments                                                                  \
     : best() == AVX2 ? function##_avx2 arguments                                                                    \
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

EXPORT int64_t caffnet_workspace_sparse(int64_t n, int64_t m, const int32_t *row_start) {
    return caffnet_workspace_sparse_baseline(n, m, row_start);
}

EXPORT int64_t caffnet_kept(int64_t numbers, int64_t rows) { return caffnet_kept_baseline(numbers, rows); }

EXPORT int64_t caffnet_solve(const CaffnetBatch *batch, int64_t first, int64_t last, void *memory) {
    return PICK(caffnet_solve, (batch, first, last, memory));
}

EXPORT void caffnet_gradient(const CaffnetBatch *batch, const CaffnetGradients *to, int64_t first, int64_t last, void *memory) {
    PICK(caffnet_gradient, (batch, to, first, last, memory));
}

EXPORT int64_t caffnet_minimise(const CaffnetBatch *batch, void *multiplier, int64_t first, int64_t last, void *memory) {
    return PICK(caffnet_minimise, (batch, multiplier, first, last, memory));
}

EXPORT void caffnet_system(const CaffnetBatch *batch, const CaffnetSystem *system, int64_t first, int64_t last, void *memory) {
    PICK(caffnet_system, (batch, system, first, last, memory));
}

EXPORT void caffnet_conflict(const CaffnetBatch *batch, int64_t sample, double *multiplier, CaffnetProof *proof, void *memory) {
    PICK(caffnet_conflict, (batch, sample, multiplier, proof, memory));
}
