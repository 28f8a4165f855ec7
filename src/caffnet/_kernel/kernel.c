/* The kernel as one translation unit. Compiled once for every instruction set (ISA names it); dispatch.c picks one. */
#ifndef ISA
#define NAME(function) function
#else
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(function) JOIN(function, ISA)
#endif
#if defined(_WIN32) && !defined(ISA)
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
#include "paper.c"
#include "infeasible.c"
#include "soft.c"
#include "decide.c"
#include "gradient.c"
#include "metric.c"
#include "quadratic.c"
#include "entry.c"
