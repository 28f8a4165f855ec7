/* Compares the kernel with the answers and gradients in vectors.h, bit for bit. No Python is needed.

   Every problem is asked twice: as a batch, in memory full of NaN, and sample by sample, in memory full of other bytes.
   Bytes beside every array are marked, so that a write out of place shows. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "guard.h"
#include "kernel.h"

enum { ABSENT, LISTED, DRAWN, IDENTITY };

/* An array: `lines` of it, 1 where the samples share it; from the list of numbers, a seed, or an identity. */
typedef struct {
    int lines, source, place, power;
} Array;

typedef struct {
    int n, m, samples, single, search, strict, nearest;
    double norm;
    Array f, w, A, lower, upper, v;
    const char *kinds, *start, *status, *active; /* sides are '-', '.', '+' */
    int value;                                   /* where it stands in `numbers` */
    int modes;                                   /* how many kinds of gradient: exact, tangent */
    uint64_t gradient[2][5];                     /* hashes of the gradients of f, w, A, lower, upper */
    uint64_t conflict;                           /* hash of the proof for the first INFEASIBLE sample */
} Vector;

#include "vectors.h"

/* ---------------------------------------------------------------------------------------------- arrays */

static void put(void *array, int place, double x, int single) {
    if (single) ((float *)array)[place] = (float)x;
    else ((double *)array)[place] = x;
}

static double get(const void *array, int place, int single) {
    return single ? (double)((const float *)array)[place] : ((const double *)array)[place];
}

/* As `noise` in make_vectors.py. */
static double drawn(int seed, int place, int single) {
    uint64_t z = ((uint64_t)place + (uint64_t)seed * 1000003u + 1u) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z = z ^ z >> 31;
    int bits = single ? 24 : 48;
    return ldexp((double)((int64_t)(z >> (64 - bits)) - ((int64_t)1 << (bits - 1))), 3 - bits);
}

static void *load_array(const Array *array, int count, int n, int single) {
    if (array->source == ABSENT && array->lines == 0) return NULL;
    int total = array->lines * count;
    void *to = guarded((size_t)total * (single ? 4 : 8), 0);
    for (int i = 0; i < total; i++)
        put(to, i,
            array->source == LISTED     ? numbers[array->place + i]
            : array->source == IDENTITY ? (double)(i % (n + 1) == 0)
                                        : ldexp(drawn(array->place, i, single), array->power),
            single);
    return to;
}

static int64_t step_of(const Array *array, int count) { return array->lines > 1 ? count : 0; }

static int8_t side_of(char side) { return (int8_t)(side == '+' ? 1 : side == '-' ? -1 : 0); }

static uint64_t bits_of(double x) {
    uint64_t bits = 0x7ff8000000000000u; /* all NaN are one */
    if (x == x) memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint64_t hash(uint64_t state, double x) { return (state ^ bits_of(x)) * 0x100000001B3u; }
static const uint64_t HASH_START = 0xCBF29CE484222325u;

/* The hash of sums, which the package returns in the user's type. */
static uint64_t hash_sums(const double *sums, int count, int single) {
    uint64_t state = HASH_START;
    for (int i = 0; i < count; i++) state = hash(state, single ? (double)(float)sums[i] : sums[i]);
    return state;
}

static uint64_t hash_points(const void *points, int count, int single) {
    uint64_t state = HASH_START;
    for (int i = 0; i < count; i++) state = hash(state, get(points, i, single));
    return state;
}

/* ---------------------------------------------------------------------------------------------- one problem */

static int failures; /* of the problem at hand */

static void differ(int number, const char *what, int sample) {
    if (failures++ < 5) printf("problem %d: %s differs, sample %d\n", number, what, sample);
}

static void compare_answer(int number, const Vector *vector, const CaffnetBatch *batch) {
    int n = vector->n, m = vector->m;
    for (int b = 0; b < vector->samples; b++) {
        int values = 0, sides = 0;
        for (int j = 0; j < n; j++)
            values += bits_of(get(batch->value, b * n + j, vector->single)) != bits_of(numbers[vector->value + b * n + j]);
        for (int i = 0; i < m; i++) sides += batch->active[b * m + i] != side_of(vector->active[b * m + i]);
        if (batch->status[b] != vector->status[b] - '0') differ(number, "the status", b);
        if (values) differ(number, "the value", b);
        if (sides) differ(number, "the active rows", b);
    }
}

static void compare_gradient(int number, const Vector *vector, CaffnetBatch *batch, int mode, int step, int fill, void *memory) {
    static const char *const names[] = {"the gradient of f", "the gradient of w", "the gradient of A",
                                        "the gradient of lower", "the gradient of upper"};
    int n = vector->n, m = vector->m, samples = vector->samples, single = vector->single;
    int rows = m * n * vector->A.lines, low = m * vector->lower.lines, high = m * vector->upper.lines;
    size_t points = (size_t)(samples * n) * (single ? 4 : 8);
    CaffnetGradients to;
    memset(&to, 0, sizeof to);
    to.v = load_array(&vector->v, n, n, single);
    to.v_step = step_of(&vector->v, n);
    to.f = guarded(points, fill);
    to.w = vector->w.lines ? guarded(points, fill) : NULL;
    to.A = guarded((size_t)rows * 8, 0);
    to.lower = guarded((size_t)low * 8, 0);
    to.upper = guarded((size_t)high * 8, 0);
    to.A_step = step_of(&vector->A, m * n);
    to.lower_step = step_of(&vector->lower, m);
    to.upper_step = step_of(&vector->upper, m);
    batch->tangent = mode;
    for (int b = 0; b < samples; b += step) caffnet_gradient(batch, &to, b, b + step < samples ? b + step : samples, memory);
    uint64_t found[] = {hash_points(to.f, samples * n, single), to.w ? hash_points(to.w, samples * n, single) : HASH_START,
                        hash_sums(to.A, rows, single), hash_sums(to.lower, low, single), hash_sums(to.upper, high, single)};
    for (int k = 0; k < 5; k++)
        if (found[k] != vector->gradient[mode][k]) differ(number, names[k], mode);
}

static void compare_conflict(int number, const Vector *vector, const CaffnetBatch *batch, int fill, void *memory) {
    const char *bad = strchr(vector->status, '0' + CAFFNET_INFEASIBLE);
    if (!bad) return;
    double *multiplier = guarded((size_t)vector->m * 8, fill);
    CaffnetProof proof;
    caffnet_conflict(batch, bad - vector->status, multiplier, &proof, memory);
    uint64_t state = HASH_START;
    for (int i = 0; i < vector->m; i++) state = hash(state, multiplier[i]);
    if (hash(hash(state, proof.gap), proof.radius) != vector->conflict) differ(number, "the proof", (int)(bad - vector->status));
}

static void run(int number, const Vector *vector, int step, int fill) {
    int n = vector->n, m = vector->m, samples = vector->samples, single = vector->single;
    int64_t bad = 0, expected = 0;
    CaffnetBatch batch;
    memset(&batch, 0, sizeof batch);
    batch.n = n, batch.m = m, batch.samples = samples, batch.single = single;
    batch.search = vector->search, batch.strict = vector->strict, batch.nearest = vector->nearest;
    batch.f = load_array(&vector->f, n, n, single), batch.f_step = step_of(&vector->f, n);
    batch.w = load_array(&vector->w, n, n, single), batch.w_step = step_of(&vector->w, n);
    batch.A = load_array(&vector->A, m * n, n, single), batch.A_step = step_of(&vector->A, m * n);
    batch.lower = load_array(&vector->lower, m, n, single), batch.lower_step = step_of(&vector->lower, m);
    batch.upper = load_array(&vector->upper, m, n, single), batch.upper_step = step_of(&vector->upper, m);
    batch.kinds = memcpy(guarded((size_t)m, 0), vector->kinds, (size_t)m);
    if (vector->start) {
        int8_t *start = guarded((size_t)(samples * m), 0);
        for (int i = 0; i < samples * m; i++) start[i] = side_of(vector->start[i]);
        batch.start = start;
    }
    batch.value = guarded((size_t)(samples * n) * (single ? 4 : 8), fill);
    batch.status = guarded((size_t)samples, fill);
    batch.active = guarded((size_t)(samples * m), fill);
    if (vector->search == CAFFNET_PAPER) batch.choice = guarded((size_t)(samples * n) * 4, fill);
    batch.norm = vector->norm;
    batch.t = tolerances[single][n];
    void *memory = guarded((size_t)caffnet_workspace(n, m, vector->search, 0), fill);
    for (int b = 0; b < samples; b += step) bad += caffnet_solve(&batch, b, b + step < samples ? b + step : samples, memory);
    for (int b = 0; b < samples; b++) expected += vector->status[b] - '0' >= CAFFNET_INFEASIBLE;
    if (bad != expected) differ(number, "the count of bad samples", 0);
    compare_answer(number, vector, &batch);
    for (int mode = 0; mode < vector->modes; mode++) compare_gradient(number, vector, &batch, mode, step, fill, memory);
    compare_conflict(number, vector, &batch, fill, memory);
    if (!guard_release()) differ(number, "memory beside an array", 0);
}

int main(void) {
    int count = (int)(sizeof vectors / sizeof *vectors), failed = 0;
    for (int k = 0; k < count; k++) {
        failures = 0;
        run(k, &vectors[k], vectors[k].samples, 0xFF);
        run(k, &vectors[k], 1, 0x01);
        failed += failures > 0;
    }
    printf("%d passed, %d failed\n", count - failed, failed);
    return failed > 0;
}
