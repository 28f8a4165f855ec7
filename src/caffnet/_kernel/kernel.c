/* The kernel as one translation unit: alone, for callers of kernel.h; for every instruction set (ISA names it), of which
   dispatch.c picks one; or inside another C file (to_c), for sets of one size: that file defines CAFFNET_OUTPUTS and
   CAFFNET_ROWS. Then compilers unroll the loops, and leave out what the file does not call. */
#if defined(CAFFNET_OUTPUTS)
#define NAME(function) function##_of_this_size
#elif defined(ISA)
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(function) JOIN(function, ISA)
#else
#define NAME(function) function
#endif
#if defined(CAFFNET_OUTPUTS)
#define EXPORT static inline
#elif defined(_WIN32) && !defined(ISA)
#define EXPORT __declspec(dllexport)
#elif defined(__CUDACC__)
#define EXPORT CAFFNET_FUNCTION
#else
#define EXPORT
#endif

#include "rows.c"
#include "exact.c"
#include "box.c"
#include "cholesky.c"
#include "newton.c"
#include "direct.c"
#include "face.c"
#include "dual.c"
#include "walk.c"
#include "infeasible.c"
#include "soft.c"
#include "verify.c"
#include "project.c"
#include "violation.c"
#include "far.c"
#include "write.c"
#include "paper.c"
#include "strict.c"
#include "decide.c"
#include "gradient.c"
#include "metric.c"
#include "quadratic.c"
#include "entry.c"
