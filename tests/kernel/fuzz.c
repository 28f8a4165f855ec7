/* Makes small problems from bytes, asks the kernel for every answer and gradient, and aborts when a promise is broken:

     - a status, a side or the count of bad samples is out of range
     - a value that was answered is not finite, or breaks a row by more than rounding explains. WITHIN_TOL may: rows that
       are parallel but for rounding can exclude each other without a proof, and the answer then lies between them. Such
       samples are counted as open, and must be fewer than one in a thousand
     - a sample that is INSIDE did not come back bit for bit
     - under `strict`, a row of an INSIDE or PROJECTED sample is broken at all
     - a hard row of a RELAXED sample is broken by more than rounding explains, or a soft row is part of a proof that hard
       rows exclude each other
     - an answer depends on what was in the workspace, or on the other samples of its batch
     - memory beside the caller's arrays was written

   Bytes come from libFuzzer (LLVMFuzzerTestOneInput), or from the driver below, which needs nothing but POSIX:

     fuzz SECONDS [SEED]   many problems, one per seed; seeds that fail are printed
     fuzz -s SEED          one problem, shown
     fuzz -r SEED          one problem that fails, reduced to few small numbers and shown
     fuzz -f < FILE        the bytes of a file */
#define _GNU_SOURCE
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guard.h"
#include "kernel.h"

enum { MOST_N = 6, MOST_M = 12, MOST_SAMPLES = 3, MOST_BYTES = 1024 };

typedef struct {
    int n, m, samples, single, has_w, has_start, has_kinds, has_soft;
    int own_f, own_w, own_A, own_lower, own_upper; /* one per sample, not one for all */
    double norm;
    double f[MOST_SAMPLES][MOST_N], w[MOST_SAMPLES][MOST_N], v[MOST_SAMPLES][MOST_N];
    double A[MOST_SAMPLES][MOST_M][MOST_N], lower[MOST_SAMPLES][MOST_M], upper[MOST_SAMPLES][MOST_M];
    char kinds[MOST_M], soft[MOST_M];
    int8_t start[MOST_SAMPLES * MOST_M];
    int has_metric, diagonal;
    double metric[MOST_N * MOST_N];
} Problem;

typedef struct {
    unsigned char value[MOST_SAMPLES * MOST_N * 8];
    int8_t status[MOST_SAMPLES], active[MOST_SAMPLES * MOST_M];
    int32_t choice[MOST_SAMPLES * MOST_N];
    unsigned char to_f[2][MOST_SAMPLES * MOST_N * 8], to_w[2][MOST_SAMPLES * MOST_N * 8];
    double to_A[2][MOST_SAMPLES * MOST_M * MOST_N], to_lower[2][MOST_SAMPLES * MOST_M], to_upper[2][MOST_SAMPLES * MOST_M];
} Outcome;

/* ---------------------------------------------------------------------------------------------- failures */

static const char *const status_names[] = {"INSIDE", "PROJECTED", "WITHIN_TOL", "INFEASIBLE", "INVALID", "RELAXED"};
static char situation[256];         /* what was being done */
static char *note_to = NULL;        /* where the driver reads what failed */
enum { NOTE_BYTES = 256 };
#define OPEN "open: "

static _Noreturn void fail(const char *format, ...) {
    char text[NOTE_BYTES];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "fuzz: %s (%s)\n", text, situation);
    if (note_to) memcpy(note_to, text, sizeof text);
    abort();
}

/* ---------------------------------------------------------------------------------------------- problems */

typedef struct {
    const uint8_t *at, *end;
} Bytes;

static int next(Bytes *bytes) { return bytes->at < bytes->end ? *bytes->at++ : 0; }

/* Several bytes as one number, the lowest first. */
static int next_word(Bytes *bytes, int count) {
    int word = 0;
    for (int i = 0; i < count; i++) word |= next(bytes) << (8 * i);
    return word;
}

/* A number; small bytes are simple numbers. `wild` is how far it may go: 0 integers, 1 ordinary numbers, 2 any size,
   3 infinities and NaN too. */
static double number(Bytes *bytes, int wild) {
    static const double simple[] = {0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 5.0};
    static const double fine[] = {0.1, -0.1, 0.3, -0.3, 0.7, 1.0 / 3.0, -2.0 / 3.0, 0x1.0000000000001p0,
                                  -0x1.fffffffffffffp-1, 0x1.000002p0, 1e-3, 1e3, 1e-8, -1e8, 0x1p-52, 0x1p-23};
    static const double extreme[] = {-0.0, 0x1p-1074, -0x1p-1070, 1e-310, 1e-300, -1e-160, 1e160, 1e300,
                                     1e308, -1e308, 0x1.fffffffffffffp1023, 1e38, 3.4e38, -1e-38, 1e-45, 0x1p500};
    int kind = next(bytes);
    if (wild == 0 || kind < 64) return simple[kind % 8];
    if (kind < 144) { /* 24 random bits in [-4, 4) */
        return (double)(next_word(bytes, 3) - 0x800000) * 0x1p-21;
    }
    if (kind < 192 || wild == 1) return fine[kind % 16];
    if (kind < 216 || (wild == 2 && kind >= 240)) {
        int sign = next(bytes), power = next_word(bytes, 2) % 2098 - 1074;
        return ldexp(sign & 1 ? -1.0 - sign / 256.0 : 1.0 + sign / 256.0, power);
    }
    if (kind < 250) return extreme[kind % 16];
    return kind < 252 ? INFINITY : kind < 254 ? -INFINITY : NAN;
}

static double as_user(double x, int single) { return single ? (double)(float)x : x; }

static void make_rows(Problem *p, Bytes *bytes, int b, int wild) {
    for (int i = 0; i < p->m; i++) {
        double *a = p->A[b][i];
        int kind = next(bytes) % 8, other = i > 0 ? next(bytes) % i : 0, place = next(bytes) % p->n;
        if (i == 0 && kind > 3) kind -= 4;
        for (int j = 0; j < p->n; j++) {
            if (kind == 0) a[j] = j == place ? 1.0 : 0.0;
            else if (kind == 1) a[j] = j == place ? number(bytes, wild) : 0.0;
            else if (kind < 4) a[j] = number(bytes, wild);
            else if (kind < 7) a[j] = p->A[b][other][j]; /* (nearly) parallel */
            else a[j] = p->A[b][other][j] + p->A[b][i - 1][j];
        }
        if (kind == 4 || kind == 5) {
            double factor = number(bytes, wild > 1 ? 1 : wild);
            for (int j = 0; j < p->n; j++) a[j] *= factor;
        }
        if (kind == 5 || kind == 6) a[place] += a[place] * (double)(next(bytes) % 16 - 8) * (p->single ? 0x1p-23 : 0x1p-52);
        for (int j = 0; j < p->n; j++) a[j] = as_user(a[j], p->single);
    }
}

static void make_bounds(Problem *p, Bytes *bytes, int b, int wild) {
    double centre[MOST_N];
    int met = next(bytes) % 4; /* 0: whatever comes; else the bounds leave room for the centre */
    for (int j = 0; j < p->n; j++) centre[j] = number(bytes, wild > 1 ? 1 : wild);
    for (int i = 0; i < p->m; i++) {
        double at = 0.0, low = -INFINITY, high = INFINITY;
        int kind = next(bytes) % 8;
        for (int j = 0; j < p->n && met; j++) at += p->A[p->own_A ? b : 0][i][j] * centre[j];
        double first = number(bytes, wild), second = kind == 3 || kind == 4 ? number(bytes, wild) : 0.0;
        if (kind < 3) high = met ? at + fabs(first) : first;
        else if (kind == 3) low = met ? at - fabs(first) : first, high = met ? at + fabs(second) : second;
        else if (kind == 4) low = met ? at : first, high = low + fabs(second) * (p->single ? 0x1p-22 : 0x1p-51);
        else if (kind == 5) low = met ? at - fabs(first) : first;
        else if (kind == 6) low = high = met ? at : first;
        p->lower[b][i] = as_user(low, p->single);
        p->upper[b][i] = as_user(high, p->single);
        if (b == 0) p->kinds[i] = kind == 6 ? '=' : 'B';
        else if (p->kinds[i] == '=') { /* declared for all samples */
            double bound = kind == 6 ? high : as_user(first, p->single);
            p->lower[b][i] = p->upper[b][i] = as_user(bound, p->single);
        }
    }
}

static void make_points(Problem *p, Bytes *bytes, double (*points)[MOST_N], int count, int wild) {
    for (int b = 0; b < count; b++)
        for (int j = 0; j < p->n; j++) points[b][j] = as_user(number(bytes, wild), p->single);
}

/* A positive definite matrix L L', or its diagonal, of ordinary numbers. */
static void make_metric(Problem *p, Bytes *bytes) {
    double L[MOST_N][MOST_N] = {{0.0}};
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j <= i; j++) {
            double x = number(bytes, 0);
            L[i][j] = i == j ? 1.0 + fabs(x) : x;
        }
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j < p->n; j++) {
            double sum = 0.0;
            for (int c = 0; c < p->n; c++) sum += L[i][c] * L[j][c];
            if (!p->diagonal) p->metric[i * p->n + j] = sum;
            else if (i == j) p->metric[i] = L[i][i];
        }
}

static Problem make_problem(const uint8_t *data, size_t size) {
    static const double norms[] = {2.0, 1.0, INFINITY, 2.0, 3.0, 1.5, 2.0, 40.0};
    Bytes bytes = {data, data + size};
    Problem p;
    memset(&p, 0, sizeof p);
    int wild = next(&bytes) % 8, options = next(&bytes), own = next(&bytes);
    wild = wild < 2 ? 0 : wild < 5 ? 1 : wild < 7 ? 2 : 3;
    p.n = 1 + next(&bytes) % MOST_N;
    p.m = next(&bytes) % (MOST_M + 1);
    p.samples = 1 + next(&bytes) % MOST_SAMPLES;
    p.single = options & 1;
    p.has_w = options >> 1 & 1;
    p.has_start = options >> 2 & 1;
    p.has_kinds = options >> 3 & 1;
    p.has_soft = options >> 7 & 1;
    p.norm = norms[options >> 4 & 7];
    p.own_f = !(own & 1), p.own_w = !(own & 2), p.own_A = own >> 2 & 1, p.own_lower = own >> 3 & 1;
    p.own_upper = own >> 3 & 1; /* bounds of one row belong together */
    make_points(&p, &bytes, p.f, p.own_f ? p.samples : 1, wild);
    for (int b = 0; b < (p.own_A ? p.samples : 1); b++) make_rows(&p, &bytes, b, wild);
    for (int b = 0; b < (p.own_lower ? p.samples : 1); b++) make_bounds(&p, &bytes, b, wild);
    if (p.has_w) make_points(&p, &bytes, p.w, p.own_w ? p.samples : 1, wild);
    make_points(&p, &bytes, p.v, p.samples, wild);
    for (int i = 0; i < p.samples * p.m; i++) p.start[i] = (int8_t)(next(&bytes) % 3 - 1);
    for (int i = 0; i < p.m; i++) p.soft[i] = next(&bytes) & 1 ? 's' : '.';
    int more = next(&bytes);
    p.has_metric = wild < 2 && more % 4 == 1, p.diagonal = more >> 4 & 1;
    if (p.has_metric) make_metric(&p, &bytes);
    return p;
}

static void show(const Problem *p) {
    printf("n = %d, m = %d, samples = %d, %s, norm = %g%s\n", p->n, p->m, p->samples, p->single ? "float32" : "float64",
           p->norm, p->has_kinds ? ", kinds given" : "");
    for (int i = 0; p->has_metric && i < p->n * (p->diagonal ? 1 : p->n); i++)
        printf("%s%.17g%s", i == 0 ? "metric " : " ", p->metric[i], (i + 1) % p->n == 0 ? "\n" : "");
    for (int b = 0; b < p->samples; b++) {
        printf("sample %d\n  f     ", b);
        for (int j = 0; j < p->n; j++) printf(" %.17g", p->f[p->own_f ? b : 0][j]);
        if (p->has_w) printf("\n  w     ");
        for (int j = 0; j < p->n && p->has_w; j++) printf(" %.17g", p->w[p->own_w ? b : 0][j]);
        printf("\n  v     ");
        for (int j = 0; j < p->n; j++) printf(" %.17g", p->v[b][j]);
        for (int i = 0; i < p->m; i++) {
            printf("\n  row %-2d", i);
            for (int j = 0; j < p->n; j++) printf(" %.17g", p->A[p->own_A ? b : 0][i][j]);
            printf("   in [%.17g, %.17g]", p->lower[p->own_lower ? b : 0][i], p->upper[p->own_upper ? b : 0][i]);
            if (p->has_kinds && p->kinds[i] == '=') printf(" =");
            if (p->has_soft && p->soft[i] == 's') printf(" soft");
            if (p->has_start) printf(" start %d", p->start[b * p->m + i]);
        }
        printf("\n");
    }
}

/* ---------------------------------------------------------------------------------------------- the kernel */

/* The numbers of tolerance.py. */
static CaffnetTolerances tolerances(int single, int n) {
    double eps = single ? 0x1p-23 : 0x1p-52, tiny = single ? 0x1p-126 : 0x1p-1022;
    CaffnetTolerances t;
    t.feasibility = t.tie = 4.0 * n * eps;
    t.search = n * 0x1p-52;
    t.rank = 8.0 * sqrt(n) * eps;
    t.underflow = tiny / eps;
    t.margin = t.feasibility + 4.0 * (n + 2) * eps;
    t.fine_rank = 8.0 * sqrt(n) * 0x1p-52;
    t.empty = 0x1p-20;
    t.optimal = sqrt(eps);
    t.delicate = 0x1p-40;
    return t;
}

static void put(void *array, int place, double x, int single) {
    if (single) ((float *)array)[place] = (float)x;
    else ((double *)array)[place] = x;
}

static double get(const void *array, int place, int single) {
    return single ? (double)((const float *)array)[place] : ((const double *)array)[place];
}

static void *pack(const double *from, int lines, int stride, int count, int single) {
    void *to = guarded((size_t)(lines * count) * (single ? 4 : 8), 0);
    for (int b = 0; b < lines; b++)
        for (int c = 0; c < count; c++) put(to, b * count + c, from[b * stride + c], single);
    return to;
}

static void *pack_rows(const Problem *p) {
    int lines = p->own_A ? p->samples : 1, count = p->m * p->n;
    void *to = guarded((size_t)(lines * count) * (p->single ? 4 : 8), 0);
    for (int b = 0; b < lines; b++)
        for (int c = 0; c < count; c++) put(to, b * count + c, p->A[b][c / p->n][c % p->n], p->single);
    return to;
}

/* Everything the kernel says about a problem. Samples are answered in calls of `step`, in memory that holds `fill`. */
static void ask(const Problem *p, int search, int strict, int nearest, int step, int fill, Outcome *outcome) {
    int n = p->n, m = p->m, samples = p->samples;
    size_t number_size = p->single ? 4 : 8, points = (size_t)(samples * n) * number_size;
    CaffnetBatch batch;
    memset(&batch, 0, sizeof batch);
    batch.n = n, batch.m = m, batch.samples = samples, batch.single = p->single;
    batch.search = search, batch.strict = strict, batch.nearest = nearest;
    batch.f_step = p->own_f ? n : 0, batch.w_step = p->own_w ? n : 0, batch.A_step = p->own_A ? m * n : 0;
    batch.lower_step = p->own_lower ? m : 0, batch.upper_step = p->own_upper ? m : 0;
    batch.f = pack(p->f[0], p->own_f ? samples : 1, MOST_N, n, p->single);
    if (p->has_w) batch.w = pack(p->w[0], p->own_w ? samples : 1, MOST_N, n, p->single);
    batch.A = pack_rows(p);
    batch.lower = pack(p->lower[0], p->own_lower ? samples : 1, MOST_M, m, p->single);
    batch.upper = pack(p->upper[0], p->own_upper ? samples : 1, MOST_M, m, p->single);
    if (p->has_kinds) batch.kinds = memcpy(guarded((size_t)m, 0), p->kinds, (size_t)m);
    if (p->has_soft) batch.soft = memcpy(guarded((size_t)m, 0), p->soft, (size_t)m);
    int measured = p->has_metric && p->norm == 2.0 && search != CAFFNET_PAPER; /* what else Python refuses */
    if (measured) {
        batch.metric = pack(p->metric, 1, 0, p->diagonal ? n : n * n, p->single);
        batch.diagonal = p->diagonal;
    }
    if (p->has_start) batch.start = memcpy(guarded((size_t)(samples * m), 0), p->start, (size_t)(samples * m));
    batch.value = guarded(points, fill);
    batch.status = guarded((size_t)samples, fill);
    batch.active = guarded((size_t)(samples * m), fill);
    if (search == CAFFNET_PAPER) batch.choice = guarded((size_t)(samples * n) * 4, fill);
    batch.norm = p->norm;
    batch.t = tolerances(p->single, n);
    void *memory = guarded((size_t)caffnet_workspace(n, m, search, measured), fill);
    int64_t bad = 0, seen = 0;
    for (int b = 0; b < samples; b += step) bad += caffnet_solve(&batch, b, b + step < samples ? b + step : samples, memory);
    memset(outcome, 0, sizeof *outcome);
    memcpy(outcome->value, batch.value, points);
    memcpy(outcome->status, batch.status, (size_t)samples);
    memcpy(outcome->active, batch.active, (size_t)(samples * m));
    if (batch.choice) memcpy(outcome->choice, batch.choice, (size_t)(samples * n) * 4);
    for (int b = 0; b < samples; b++) seen += CAFFNET_HAS_NO_ANSWER(outcome->status[b]);
    for (int j = 0; j < samples * n; j++) /* the gradient takes rows from it */
        if (outcome->choice[j] < 0 || outcome->choice[j] > 2 * m)
            fail("slot %d of sample %d holds the choice %d", j % n, j / n, outcome->choice[j]);
    if (bad != seen) fail("%d samples were counted as bad, %d are", (int)bad, (int)seen);
    for (int tangent = 0; tangent < (search == CAFFNET_PAPER ? 1 : 2); tangent++) {
        int lines_A = p->own_A ? samples : 1, lines = p->own_lower ? samples : 1;
        size_t size_A = (size_t)(lines_A * m * n) * 8, size = (size_t)(lines * m) * 8;
        CaffnetGradients to;
        memset(&to, 0, sizeof to);
        batch.tangent = tangent;
        to.v = pack(p->v[0], samples, MOST_N, n, p->single), to.v_step = n;
        to.f = guarded(points, fill), to.w = guarded(points, fill);
        to.A = guarded(size_A, 0), to.lower = guarded(size, 0), to.upper = guarded(size, 0);
        to.A_step = batch.A_step, to.lower_step = batch.lower_step, to.upper_step = batch.upper_step;
        for (int b = 0; b < samples; b += step)
            caffnet_gradient(&batch, &to, b, b + step < samples ? b + step : samples, memory);
        memcpy(outcome->to_f[tangent], to.f, points);
        memcpy(outcome->to_w[tangent], to.w, points);
        memcpy(outcome->to_A[tangent], to.A, size_A);
        memcpy(outcome->to_lower[tangent], to.lower, size);
        memcpy(outcome->to_upper[tangent], to.upper, size);
    }
    double *multiplier = guarded((size_t)m * 8, fill);
    CaffnetProof proof = {0.0, 0.0};
    for (int b = 0; b < samples; b++)
        if (outcome->status[b] == CAFFNET_INFEASIBLE) {
            int some = 0;
            caffnet_conflict(&batch, b, multiplier, &proof, memory);
            for (int i = 0; i < m; i++) some = some || multiplier[i] != 0.0;
            for (int i = 0; i < m; i++)
                if (p->has_soft && p->soft[i] == 's' && multiplier[i] != 0.0) fail("soft row %d is part of a proof", i);
            if (!some || !(proof.gap < 0.0)) fail("an infeasible sample has no proof");
        }
    if (!guard_release()) fail("memory beside an array was written");
}

/* ---------------------------------------------------------------------------------------------- the promises */

static double most(const double *x, int n) {
    double top = 0.0;
    for (int j = 0; j < n; j++) top = fabs(x[j]) > top ? fabs(x[j]) : top;
    return top;
}

/* Judge one sample. Long double has room for every product of the data. */
static void judge(const Problem *p, int b, int strict, int nearest, const Outcome *outcome) {
    int n = p->n, m = p->m, single = p->single, status = outcome->status[b];
    const double *f = p->f[p->own_f ? b : 0], *w = p->w[p->own_w ? b : 0];
    const int8_t *active = outcome->active + b * m;
    double y[MOST_N];
    if (status < CAFFNET_INSIDE || status > CAFFNET_RELAXED || (status == CAFFNET_RELAXED && !p->has_soft)) fail("sample %d has the status %d", b, status);
    for (int j = 0; j < n; j++) y[j] = get(outcome->value, b * n + j, single);
    for (int i = 0; i < m; i++) {
        int line = p->own_lower ? b : 0;
        if (active[i] < -1 || active[i] > 1) fail("row %d of sample %d is held at the side %d", i, b, active[i]);
        if (!CAFFNET_HAS_NO_ANSWER(status) && active[i] != 0 && isinf(active[i] > 0 ? p->upper[line][i] : p->lower[line][i]))
            fail("row %d of sample %d is held at an infinite bound", i, b);
    }
    if (status == CAFFNET_INVALID || (status == CAFFNET_INFEASIBLE && !nearest)) {
        for (int j = 0; j < n; j++)
            if (!isnan(y[j])) fail("sample %d is %s and has a value", b, status_names[status]);
        return;
    }
    for (int j = 0; j < n; j++)
        if (!isfinite(y[j])) fail("output %d of sample %d, %s, is not finite", j, b, status_names[status]);
    if (status == CAFFNET_INFEASIBLE) return;
    for (int j = 0; j < n; j++)
        if (status == CAFFNET_INSIDE && (y[j] != f[j] || signbit(y[j]) != signbit(f[j])))
            fail("output %d of sample %d is INSIDE and was changed", j, b);
    long double eps = single ? 0x1p-23L : 0x1p-52L, tiny = single ? 0x1p-126L : 0x1p-1022L;
    for (int i = 0; i < m; i++) {
        if (status == CAFFNET_RELAXED && p->soft[i] == 's') continue;
        const double *a = p->A[p->own_A ? b : 0][i];
        double low = p->lower[p->own_lower ? b : 0][i], high = p->upper[p->own_lower ? b : 0][i];
        long double value = 0.0L, sizes = 0.0L, terms = 0.0L;
        for (int j = 0; j < n; j++) {
            value += (long double)a[j] * y[j];
            terms += fabsl((long double)a[j] * y[j]);
            sizes += fabs(a[j]);
        }
        long double excess = 0.0L, bound = 0.0L;
        if (value > high) excess = value - high, bound = fabs(high);
        else if (value < low) excess = low - value, bound = fabs(low);
        long double near = (long double)most(y, n) + most(f, n) + (p->has_w ? most(w, n) : 0.0);
        long double allowed = 64.0L * n * eps * (sizes * near + bound) + 64.0L * sizes * tiny / eps;
        if (excess > allowed)
            fail("%srow %d of sample %d, %s, is exceeded by %.3Lg, allowed is %.3Lg", status == CAFFNET_WITHIN_TOL ? OPEN : "",
                 i, b, status_names[status], excess, allowed);
        if (strict && status <= CAFFNET_PROJECTED && low < high && excess > 0x1p-58L * (terms + bound))
            fail("row %d of sample %d, %s under strict, is exceeded by %.3Lg", i, b, status_names[status], excess);
    }
}

/* How many choices of at most n sides there are: what a search through all of them looks at. */
static double choices(const Problem *p) {
    int sides = 0;
    for (int i = 0; i < p->m; i++) {
        int fewest = 0;
        for (int b = 0; b < (p->own_lower ? p->samples : 1); b++) {
            int here = isfinite(p->lower[b][i]) + isfinite(p->upper[b][i]);
            fewest = here > fewest ? here : fewest;
        }
        sides += fewest;
    }
    double count = 0.0, term = 1.0;
    for (int k = 1; k <= p->n; k++) count += term = term * (sides - k + 1) / k;
    return count;
}

static void test(const Problem *p) {
    static const char *const names[] = {"full", "lite", "active", "paper"};
    static Outcome whole, alone;
    for (int search = CAFFNET_FULL; search <= CAFFNET_PAPER; search++) {
        if (search != CAFFNET_ACTIVE && choices(p) > 2000.0) continue;
        for (int mode = 0; mode < 4; mode++) {
            int strict = mode & 1, nearest = mode >> 1;
            (void)snprintf(situation, sizeof situation, "search %s%s%s", names[search], strict ? ", strict" : "",
                           nearest ? ", nearest" : "");
            ask(p, search, strict, nearest, p->samples, 0xFF, &whole);
            for (int b = 0; b < p->samples; b++) judge(p, b, strict, nearest, &whole);
            ask(p, search, strict, nearest, 1, 0x01, &alone);
            if (memcmp(whole.value, alone.value, sizeof whole.value) || memcmp(whole.status, alone.status, sizeof whole.status) ||
                memcmp(whole.active, alone.active, sizeof whole.active) || memcmp(whole.choice, alone.choice, sizeof whole.choice))
                fail("an answer depends on its batch or on the workspace");
            if (memcmp(&whole, &alone, sizeof whole)) fail("a gradient depends on its batch or on the workspace");
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Problem problem = make_problem(data, size);
    test(&problem);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- the driver */

#ifndef CAFFNET_LIBFUZZER
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CASES = 500, PATIENCE = 10, KINDS = 32, SHOWN = 4 };

/* What a child that dies leaves behind. */
typedef struct {
    volatile uint64_t seed;
    char note[NOTE_BYTES];
} Trace;

static Trace *trace;

static uint64_t advance(uint64_t *state) { /* xorshift64* */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1DULL;
}

/* The bytes of a seed; some seeds favour small bytes, which are simple numbers. */
static size_t bytes_of(uint64_t seed, uint8_t *bytes) {
    uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
    for (int i = 0; i < 8; i++) (void)advance(&state);
    int simple = advance(&state) >> 62 == 0;
    for (int i = 0; i < MOST_BYTES; i++) {
        uint64_t bits = advance(&state);
        bytes[i] = (uint8_t)(bits >> 56);
        if (simple && i > 5 && bits & 3) bytes[i] &= 7;
    }
    return MOST_BYTES;
}

/* Stop this process after so many seconds of its own time: on a busy machine others take as much as they like. */
static void give_time(int seconds) {
    struct itimerval limit = {{0, 0}, {seconds, 0}};
    (void)setitimer(ITIMER_PROF, &limit, NULL);
}

static int ran_out_of_time(int state) { return WIFSIGNALED(state) && WTERMSIG(state) == SIGPROF; }

/* Run bytes in a child; 0 where it fails. */
static int survives(const uint8_t *bytes, size_t size, int quiet) {
    trace->note[0] = 0;
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (quiet && !freopen("/dev/null", "w", stderr)) _exit(2);
        give_time(quiet ? 1 : PATIENCE);
        (void)LLVMFuzzerTestOneInput(bytes, size);
        _exit(0);
    }
    int state = 1;
    (void)waitpid(child, &state, 0);
    if (ran_out_of_time(state)) (void)snprintf(trace->note, NOTE_BYTES, "it does not end");
    return WIFEXITED(state) && WEXITSTATUS(state) == 0;
}

static int same_kind(const char *a, const char *b) { /* of messages that differ in their numbers */
    for (;; a++, b++) {
        while (*a && (strchr("0123456789.+-", *a) || (*a == 'e' && a[1] && strchr("+-", a[1])))) a++;
        while (*b && (strchr("0123456789.+-", *b) || (*b == 'e' && b[1] && strchr("+-", b[1])))) b++;
        if (*a != *b) return 0;
        if (!*a) return 1;
    }
}

/* Make bytes smaller, one after the other, while the failure stays the same. */
static int reduce(uint64_t seed) {
    static uint8_t bytes[MOST_BYTES];
    size_t size = bytes_of(seed, bytes);
    if (survives(bytes, size, 0)) {
        printf("seed %llu passes\n", (unsigned long long)seed);
        return 0;
    }
    char kind[NOTE_BYTES];
    memcpy(kind, trace->note, sizeof kind);
    for (size_t shorter = size / 2; shorter > 0;) {
        int smaller = size > shorter && !survives(bytes, size - shorter, 1) && same_kind(kind, trace->note);
        if (smaller) size -= shorter;
        else shorter /= 2;
    }
    for (int again = 1; again;) {
        again = 0;
        for (size_t i = 0; i < size; i++) {
            static const int steps[] = {255, 128, 64, 32, 16, 8, 4, 2, 1};
            for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
                uint8_t kept = bytes[i], less = (uint8_t)(steps[k] == 255 ? 0 : kept - steps[k]);
                if (kept < (steps[k] == 255 ? 1 : steps[k])) continue;
                bytes[i] = less;
                if (!survives(bytes, size, 1) && same_kind(kind, trace->note)) again = 1;
                else bytes[i] = kept;
            }
        }
    }
    (void)survives(bytes, size, 0);
    Problem problem = make_problem(bytes, size);
    show(&problem);
    return 1;
}

/* Count a failure, and print it where few of its kind were seen. */
static void note_failure(const char *note) {
    static struct {
        char note[NOTE_BYTES];
        int count;
    } kinds[KINDS];
    for (int k = 0; k < KINDS; k++) {
        if (kinds[k].count == 0) memcpy(kinds[k].note, note, sizeof kinds[k].note);
        if (k < KINDS - 1 && !same_kind(kinds[k].note, note)) continue;
        if (kinds[k].count++ < SHOWN) printf("seed %llu fails: %s\n", (unsigned long long)trace->seed, note);
        return;
    }
}

static int run_seeds(double seconds, uint64_t seed) {
    struct timespec began, now;
    uint64_t first = seed;
    int failures = 0, open = 0;
    (void)clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        trace->seed = seed;
        trace->note[0] = 0;
        (void)fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            static uint8_t bytes[MOST_BYTES];
            if (!freopen("/dev/null", "w", stderr)) _exit(2);
            for (uint64_t last = seed + CASES; seed < last; seed++) {
                trace->seed = seed;
                give_time(PATIENCE);
                (void)LLVMFuzzerTestOneInput(bytes, bytes_of(seed, bytes));
            }
            _exit(0);
        }
        int state = 1;
        (void)waitpid(child, &state, 0);
        if (WIFEXITED(state) && WEXITSTATUS(state) == 0) seed += CASES;
        else {
            char note[NOTE_BYTES] = "a sanitizer stopped it, see -s";
            if (ran_out_of_time(state)) (void)snprintf(note, sizeof note, "it does not end");
            if (trace->note[0]) memcpy(note, trace->note, sizeof note);
            if (strncmp(note, OPEN, strlen(OPEN)) == 0) open++;
            else {
                note_failure(note);
                failures++;
            }
            seed = trace->seed + 1;
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - began.tv_sec) < seconds);
    uint64_t problems = seed - first;
    printf("%llu problems, %d failed, %d open\n", (unsigned long long)problems, failures, open);
    return failures > 0 || (uint64_t)open * 1000 > problems;
}

static int run_input(void) {
    static uint8_t bytes[MOST_BYTES];
    size_t size = fread(bytes, 1, sizeof bytes, stdin);
    return LLVMFuzzerTestOneInput(bytes, size);
}

int main(int count, char **words) {
    trace = mmap(NULL, sizeof *trace, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (trace == MAP_FAILED) return 2;
    note_to = trace->note;
    if (count == 2 && !strcmp(words[1], "-f")) return run_input();
    if (count == 3 && !strcmp(words[1], "-r")) return reduce(strtoull(words[2], NULL, 0));
    if (count == 3 && !strcmp(words[1], "-s")) {
        static uint8_t bytes[MOST_BYTES];
        size_t size = bytes_of(strtoull(words[2], NULL, 0), bytes);
        Problem problem = make_problem(bytes, size);
        show(&problem);
        return LLVMFuzzerTestOneInput(bytes, size);
    }
    if (count < 2) {
        fprintf(stderr, "fuzz SECONDS [SEED] | -s SEED | -r SEED | -f < FILE\n");
        return 2;
    }
    return run_seeds(atof(words[1]), count > 2 ? strtoull(words[2], NULL, 0) : 1);
}
#endif
