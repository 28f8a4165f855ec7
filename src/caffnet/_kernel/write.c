/* The answer of a sample, written into the caller's arrays. What writes a whole answer returns its status. */
#include "internal.h"

FN void write_value(const CaffnetBatch *batch, int64_t b, const Work *work) {
    double limit = largest_number(work);
    for (Index j = 0; j < outputs_of(&work->rows); j++)
        store(batch->value, b * batch->n + j, larger(smaller(users_number(work, j), limit), -limit), work->single);
}

FN int write_answer(const CaffnetBatch *batch, int64_t b, const Work *work, int status) {
    if (batch->m > 0) memcpy(batch->active + b * batch->m, work->face.held, (size_t)batch->m);
    batch->status[b] = (int8_t)status;
    write_value(batch, b, work);
    return status;
}

/* The answer f, bit for bit. */
FN int write_itself(const CaffnetBatch *batch, int64_t b, int status) {
    int single = (int)batch->single;
    for (int64_t i = 0; i < batch->m; i++) batch->active[b * batch->m + i] = 0;
    for (int64_t j = 0; j < batch->n; j++)
        store(batch->value, b * batch->n + j, load(batch->f, b * batch->f_step + j, single), single);
    batch->status[b] = (int8_t)status;
    return status;
}

FN int write_nothing(const CaffnetBatch *batch, int64_t b, int status) {
    for (int64_t i = 0; i < batch->m; i++) batch->active[b * batch->m + i] = 0;
    for (int64_t j = 0; j < batch->n; j++) store(batch->value, b * batch->n + j, NAN, (int)batch->single);
    batch->status[b] = (int8_t)status;
    return status;
}

/* Write the answer, or NaN where the set is empty and no point of least violation is asked for. */
FN int write_outcome(const CaffnetBatch *batch, int64_t b, const Work *work, int state) {
    if (state == CAFFNET_INFEASIBLE && !batch->nearest) return write_nothing(batch, b, state);
    return write_answer(batch, b, work, state);
}
