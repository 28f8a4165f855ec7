/* Batches: the workspace, and the public functions. */
#include "internal.h"

typedef struct {
    char *memory;
    size_t used;
} Pool;

FN void *take(Pool *pool, size_t count, size_t size) {
    void *place = pool->memory ? pool->memory + pool->used : NULL; /* NULL: only the size is computed */
    pool->used += (count * size + 63) / 64 * 64;
    return place;
}

#define DOUBLES(count) (double *)take(pool, (size_t)(count), sizeof(double))
#define INDICES(count) (Index *)take(pool, (size_t)(count), sizeof(Index))
#define MARKS(count) (int8_t *)take(pool, (size_t)(count), 1)

/* Divide memory for the work on a sparse matrix. */
FN void carve_sparse(Newton *newton, size_t n, size_t m, const int32_t *start, Pool *pool) {
    size_t entries = (size_t)start[m], long_rows = 0;
    for (size_t i = 0; i < m; i++) long_rows += start[i + 1] - start[i] != 1; /* an empty row has a place in the order too */
    newton->column = INDICES(n + 1);
    newton->row = INDICES(entries);
    newton->entry = DOUBLES(entries);
    newton->order = INDICES(m);
    newton->list = INDICES(m);
    newton->place = INDICES(m);
    newton->parent = INDICES(m);
    newton->mark = INDICES(m);
    newton->path = INDICES(m);
    newton->begin = INDICES(m);
    newton->end = INDICES(m);
    newton->pivot = DOUBLES(m);
    newton->line = DOUBLES(m);
    newton->u = DOUBLES(m);
    newton->trial = DOUBLES(m);
    newton->step = DOUBLES(m);
    newton->slope = DOUBLES(m);
    newton->right = DOUBLES(m);
    newton->x = DOUBLES(n);
    newton->y = DOUBLES(n);
    newton->moving = MARKS(m);
    newton->face = MARKS(m);
    newton->room = (int64_t)(long_rows * (long_rows + 1) / 2);
    newton->room = newton->room < MOST_FACTORS ? newton->room : MOST_FACTORS;
    newton->L = DOUBLES(newton->room);
    newton->where = INDICES(newton->room);
}

/* Divide the caller's memory; returns how much of it is used. `start` of a sparse matrix, else NULL. */
FN size_t carve(Work *work, int64_t outputs, int64_t count, const int32_t *start, int search, void *memory) {
    Pool whole = {(char *)memory, 0}, *pool = &whole;
    memset(work, 0, sizeof *work);
    Rows *s = &work->rows;
    s->m = (Index)count;
    s->n = (Index)outputs;
    s->start = start;
    size_t n = (size_t)outputs_of(s), m = (size_t)rows_of(s), wide = m > n ? m : n, dense = !is_sparse(s);
    size_t most = m < n ? m : n; /* rows in a face */
    size_t deep = search == CAFFNET_ACTIVE ? 1 : n + 1, paper = search == CAFFNET_PAPER ? n + 1 : 0;
    s->A = DOUBLES(dense ? m * n : (size_t)start[m]);
    s->exponent = INDICES(m);
    s->factor = DOUBLES(m);
    s->squared = DOUBLES(m);
    s->entries = INDICES(m);
    s->columns = INDICES(dense * m * (n / 4));
    s->plain = INDICES(m);
    s->sign = DOUBLES(m);
    s->low = DOUBLES(m);
    s->high = DOUBLES(m);
    s->equal = MARKS(m);
    Direct *direct = &s->direct;
    direct->link = INDICES(n);
    direct->a = DOUBLES(n);
    direct->low = DOUBLES(n);
    direct->high = DOUBLES(n);
    direct->side = MARKS(n);
    direct->sums = DOUBLES(3 * n);
    direct->first = INDICES(n);
    direct->from = INDICES(n);
    direct->until = INDICES(n);
    Face *face = &work->face;
    Face *faces[3] = {face, &work->saved, &work->first};
    for (int c = 0; c < 3; c++) {
        faces[c]->rows = INDICES(n + 1);
        faces[c]->sides = DOUBLES(n + 1);
        faces[c]->multiplier = DOUBLES(n + 1);
        faces[c]->unit = INDICES(n + 1);
        faces[c]->inverse = DOUBLES(n + 1);
        faces[c]->held = MARKS(m);
    }
    face->left = DOUBLES(m);
    face->z = DOUBLES(n);
    face->d = DOUBLES(n + 1);
    face->r = DOUBLES(n + 1);
    face->violated = INDICES(2 * m);
    Walk *walk = &work->walk;
    walk->f = DOUBLES(deep * n);
    walk->g = DOUBLES(deep * n);
    walk->squared = DOUBLES(deep);
    walk->option = INDICES(n + 2);
    walk->last = INDICES(deep);
    walk->independent = MARKS(deep);
    walk->after = INDICES(m);
    walk->rows = INDICES(n + 1);
    walk->sides = DOUBLES(n + 1);
    walk->place = INDICES(n + 1);
    walk->dependent = MARKS(n + 2);
    walk->weight = DOUBLES(n + 1);
    work->f = DOUBLES(n);
    work->g = DOUBLES(n);
    work->y = DOUBLES(n);
    work->spare = DOUBLES(n);
    work->other = DOUBLES(n);
    work->ordinary = DOUBLES(n);
    work->low = DOUBLES(m);
    work->high = DOUBLES(m);
    work->unit = DOUBLES(m);
    work->give = DOUBLES(m);
    work->level = DOUBLES(m);
    work->tier = MARKS(m);
    work->conflict = DOUBLES(m);
    work->fine = DOUBLES(m);
    work->farthest = DOUBLES(m);
    work->farthest_fine = DOUBLES(m);
    work->kept = MARKS(m);
    work->seed = MARKS(wide);
    work->stood = MARKS(m);
    work->before = MARKS(m);
    walk->pinv = DOUBLES(paper * n * n);
    walk->null = DOUBLES(paper * n * n);
    for (int c = 0; c < 3; c++) { /* last: a box does not touch them, and large memory costs when it is touched */
        faces[c]->Q = DOUBLES(dense * most * n);
        faces[c]->R = DOUBLES(dense * most * n);
    }
    face->rest = DOUBLES(dense * m * n);
    face->part = DOUBLES(dense * m * n);
    if (!dense) carve_sparse(&work->newton, n, m, start, pool);
    return pool->used;
}

/* Take from the batch what the work on its samples needs beside memory. */
FN void set_up(Work *work, const CaffnetBatch *batch) {
    work->rows.newton = &work->newton;
    work->rows.t = &work->t;
    work->rows.start = batch->row_start;
    work->rows.places = batch->columns;
    work->t = batch->t;
    work->norm = batch->norm;
    work->single = (int)batch->single;
    work->soft = batch->soft;
    work->cancel = batch->cancel;
}

FN void prepare(Work *work, const CaffnetBatch *batch, void *memory) {
    (void)carve(work, batch->n, batch->m, batch->row_start, (int)batch->search, memory);
    set_up(work, batch);
}

/* ---------------------------------------------------------------------------------------------- a matrix that comes again */

/* Data of a matrix that are kept between calls: they come first in the memory of a batch with `keep`. */
typedef struct {
    int known; /* the rest is set */
    int sound; /* the rows are scaled, or have NaN (0), or were not needed (-1) */
    int64_t search, entries;
    Work work;
} Kept;

/* Kept, and the bits that it was computed from. */
typedef struct {
    Kept *kept;
    void *A;
    Index *row_start, *columns;
} Copies;

/* Divide memory for the copies of a matrix with so many numbers, and `rows` if it is sparse, else 0; how much is used. */
FN size_t carve_copies(Copies *copies, int64_t numbers, int64_t rows, void *memory) {
    Pool whole = {(char *)memory, 0}, *pool = &whole;
    copies->kept = (Kept *)take(pool, 1, sizeof(Kept));
    copies->A = DOUBLES(numbers);
    copies->row_start = INDICES(rows > 0 ? rows + 1 : 0);
    copies->columns = INDICES(rows > 0 ? numbers : 0);
    return pool->used;
}

FN int same_bits(const void *one, const void *other, size_t bytes) {
    const char *a = (const char *)one, *b = (const char *)other;
    size_t at = 0;
    for (; at + 1024 <= bytes; at += 1024) {
        uint64_t differ = 0, x, y;
        for (size_t c = 0; c < 1024; c += 8) {
            memcpy(&x, a + at + c, 8);
            memcpy(&y, b + at + c, 8);
            differ |= x ^ y;
        }
        if (differ) return 0;
    }
    for (; at < bytes; at++)
        if (a[at] != b[at]) return 0;
    return 1;
}

/* Prepare the work with the data kept of the matrix, if it has the same bits as the kept copy; `sound` as in Kept. The
   copy is made before A is used, so the next call notices anything written to A meanwhile. An identity needs no copy. */
FN int recall(Work *work, const CaffnetBatch *batch, int identity, void *memory) {
    if (!batch->keep) {
        prepare(work, batch, memory);
        return -1;
    }
    Copies copies;
    int64_t rows = batch->row_start ? batch->m : 0, entries = rows > 0 ? batch->row_start[rows] : batch->m * batch->n;
    void *room = (char *)memory + carve_copies(&copies, entries, rows, memory);
    Kept *kept = copies.kept;
    size_t numbers = (size_t)entries * (batch->single ? sizeof(float) : sizeof(double));
    size_t starts = rows > 0 ? (size_t)(rows + 1) * sizeof(Index) : 0, columns = rows > 0 ? (size_t)entries * sizeof(Index) : 0;
    const Rows *s = &kept->work.rows;
    int known = !identity && kept->known && kept->search == batch->search && kept->entries == entries &&
                outputs_of(s) == batch->n && rows_of(s) == batch->m && kept->work.single == batch->single && is_sparse(s) == (rows > 0) &&
                same_bits(&kept->work.t, &batch->t, sizeof batch->t) && same_bits(copies.row_start, batch->row_start, starts) &&
                same_bits(copies.columns, batch->columns, columns) && same_bits(copies.A, batch->A, numbers);
    kept->known = 0; /* until this call has ended */
    if (known) {
        *work = kept->work;
        work->newton.faced = 0; /* factors of one sample */
        set_up(work, batch);
        return kept->sound;
    }
    prepare(work, batch, room);
    if (identity) return -1;
    kept->search = batch->search;
    kept->entries = entries;
    memcpy(copies.A, batch->A, numbers);
    if (rows > 0) {
        memcpy(copies.row_start, batch->row_start, starts);
        memcpy(copies.columns, batch->columns, columns);
    }
    return -1;
}

/* Keep the data of the matrix for the next call. */
FN void keep(const CaffnetBatch *batch, const Work *work, int sound, int identity, void *memory) {
    Kept *kept = (Kept *)memory;
    if (!batch->keep || identity || (batch->cancel && *batch->cancel)) return;
    kept->known = 1;
    kept->sound = sound;
    kept->work = *work;
}

/* ---------------------------------------------------------------------------------------------- metrics */

/* Divide memory for the white sample of a metric, except for its own work; returns how much of it is used. */
FN size_t carve_metric(Metric *metric, int64_t outputs, int64_t count, void *memory) {
    Pool whole = {(char *)memory, 0}, *pool = &whole;
    size_t n = (size_t)outputs, m = (size_t)count;
    memset(metric, 0, sizeof *metric);
    metric->A = DOUBLES(m * n);
    metric->f = DOUBLES(n);
    metric->w = DOUBLES(n);
    metric->z = DOUBLES(n);
    metric->low = DOUBLES(m);
    metric->high = DOUBLES(m);
    metric->active = MARKS(m);
    metric->L = DOUBLES(n * n);
    metric->M = DOUBLES(n * n);
    return pool->used;
}

FN void prepare_metric(Metric *metric, const CaffnetBatch *batch, void *memory) {
    size_t used = carve(&metric->work, batch->n, batch->m, NULL, (int)batch->search, NULL);
    used += carve_metric(metric, batch->n, batch->m, (char *)memory + used);
    CaffnetBatch *white = &metric->batch;
    metric->diagonal = (int)batch->diagonal;
    *white = *batch;
    white->samples = 1;
    white->single = white->strict = white->keep = white->metric_step = 0;
    white->nearest = 1;
    white->f_step = white->w_step = white->A_step = white->lower_step = white->upper_step = 0;
    white->f = metric->f;
    white->w = batch->w ? metric->w : NULL;
    white->A = metric->A;
    white->lower = metric->low;
    white->upper = metric->high;
    white->metric = NULL;
    white->value = metric->z;
    white->status = &metric->status;
    white->active = metric->active;
    prepare(&metric->work, white, (char *)memory + used);
    metric->work.white = 1;
}

/* Scale the rows of sample b, if they are its own or the first (sound < 0); 0 where they have NaN or infinite entries. */
FN int renew_rows(Work *work, const CaffnetBatch *batch, int64_t b, int sound) {
    if (sound >= 0 && batch->A_step == 0) return sound;
    forget_factors(work);
    return read_matrix(batch, b, &work->rows);
}

FN int decide_sample(const CaffnetBatch *batch, int64_t b, Work *work, Metric *metric, CaffnetProof *proof) {
    return batch->metric ? decide_in_metric(batch, b, work, metric, proof) : decide(batch, b, work, proof);
}

EXPORT int64_t NAME(caffnet_workspace)(int64_t n, int64_t m, int64_t search, int64_t metric) {
    Work work;
    Metric white;
    size_t size = carve(&work, n, m, NULL, (int)search, NULL);
    return (int64_t)(metric ? 2 * size + carve_metric(&white, n, m, NULL) : size) + 64;
}

EXPORT int64_t NAME(caffnet_workspace_sparse)(int64_t n, int64_t m, const int32_t *row_start) {
    Work work;
    return (int64_t)carve(&work, n, m, row_start, CAFFNET_ACTIVE, NULL) + 64;
}

EXPORT int64_t NAME(caffnet_kept)(int64_t numbers, int64_t rows) {
    Copies copies;
    return (int64_t)carve_copies(&copies, numbers, rows, NULL);
}

EXPORT int64_t NAME(caffnet_solve)(const CaffnetBatch *batch, int64_t first, int64_t last, void *memory) {
    Work work;
    Metric metric;
    CaffnetProof proof;
    int64_t bad = 0;
    int identity = is_identity(batch), sound = recall(&work, batch, identity, memory);
    if (batch->metric) prepare_metric(&metric, batch, memory);
    for (int64_t b = first; b < last; b++) {
        if (batch->cancel && *batch->cancel) return -1;
        if (identity && clip_sample(batch, b) != REJECTED) continue;
        sound = renew_rows(&work, batch, b, sound);
        for (int64_t j = 0; batch->search == CAFFNET_PAPER && j < batch->n; j++) batch->choice[b * batch->n + j] = 0;
        int state = sound ? decide_sample(batch, b, &work, &metric, &proof) : write_nothing(batch, b, CAFFNET_INVALID);
        bad += CAFFNET_HAS_NO_ANSWER(state);
    }
    keep(batch, &work, sound, identity, memory);
    return batch->cancel && *batch->cancel ? -1 : bad;
}

EXPORT void NAME(caffnet_gradient)(const CaffnetBatch *batch, const CaffnetGradients *to, int64_t first, int64_t last, void *memory) {
    Work work;
    Metric metric;
    int identity = is_identity(batch), clips = identity && !to->w && !to->A, sound = recall(&work, batch, identity, memory);
    if (batch->metric) prepare_metric(&metric, batch, memory);
    for (int64_t b = first; b < last; b++) {
        if (clips) {
            clip_gradient(batch, to, b);
            continue;
        }
        sound = renew_rows(&work, batch, b, sound);
        if (batch->metric) differentiate_in_metric(batch, to, b, &work, &metric);
        else differentiate(batch, to, b, &work);
    }
    keep(batch, &work, sound, identity, memory);
}

EXPORT int64_t NAME(caffnet_minimise)(const CaffnetBatch *batch, void *multiplier, int64_t first, int64_t last, void *memory) {
    Work work;
    Metric metric;
    CaffnetProof proof;
    int64_t bad = 0;
    int sound = -1;
    prepare(&work, batch, memory);
    if (batch->metric) {
        prepare_metric(&metric, batch, memory);
        metric.linear = 1;
    }
    for (int64_t b = first; b < last; b++) {
        if (batch->cancel && *batch->cancel) return -1;
        sound = renew_rows(&work, batch, b, sound);
        int state = batch->metric ? minimise(batch, multiplier, b, sound, &work, &metric, &proof)
                                  : minimise_linear(batch, multiplier, b, sound, &work, &proof);
        bad += CAFFNET_HAS_NO_ANSWER(state);
    }
    return batch->cancel && *batch->cancel ? -1 : bad;
}

EXPORT void NAME(caffnet_system)(const CaffnetBatch *batch, const CaffnetSystem *system, int64_t first, int64_t last, void *memory) {
    Work work;
    Metric metric;
    int sound = -1;
    prepare(&work, batch, memory);
    if (batch->metric) prepare_metric(&metric, batch, memory);
    for (int64_t b = first; b < last; b++) {
        sound = renew_rows(&work, batch, b, sound);
        solve_system(batch, system, b, sound, &work, batch->metric ? &metric : NULL);
    }
}

EXPORT void NAME(caffnet_conflict)(const CaffnetBatch *batch, int64_t sample, double *multiplier, CaffnetProof *proof,
                                   void *memory) {
    Work work;
    Metric metric;
    prepare(&work, batch, memory);
    if (batch->metric) prepare_metric(&metric, batch, memory);
    proof->gap = proof->radius = 0.0;
    for (int64_t i = 0; i < batch->m; i++) multiplier[i] = 0.0;
    if (!read_matrix(batch, sample, &work.rows)) return;
    if (decide_sample(batch, sample, &work, &metric, proof) != CAFFNET_INFEASIBLE) return;
    for (Index i = 0; i < rows_of(&work.rows); i++) multiplier[i] = times_power(work.conflict[i], work.rows.exponent[i]);
    proof->gap = smaller(times_power(proof->gap, -work.rows.shift), -0x1p-1074); /* never rounded to 0 */
    proof->radius = times_power(proof->radius, -work.rows.shift);
}
