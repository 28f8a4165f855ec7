/* One sample, from its data to a verified answer.

   accept     f itself, if it satisfies the rows up to rounding: returned bit for bit           rows.c
   project    the rows of the answer, and the closed form on them, refined and checked          project.c, verify.c
   approach   where no search gives an answer: least violation, a proof that the set is empty   violation.c, far.c
   strict     moved inside until every inequality holds in exact arithmetic                     strict.c
   write      the answer in the caller's arrays                                                 write.c */
#include "internal.h"

/* Answer one sample whose rows are scaled; its status. `proof` is filled for an INFEASIBLE one. */
FN int decide(const CaffnetBatch *batch, int64_t b, Work *work, CaffnetProof *proof) {
    Rows *s = &work->rows;
    Index n = outputs_of(s);
    int search = (int)batch->search, loaded = load_sample(batch, b, work), state = CONFLICT;
    int plain = !batch->w && search != CAFFNET_LITE && (search == CAFFNET_ACTIVE || work->norm == 2.0);
    work->lost = work->unproven = 0;
    s->direct.family = plain || is_sparse(s) ? family_of(s) : ANY;
    const int8_t *start = batch->start ? batch->start + b * batch->m : NULL;
    if (loaded == CAFFNET_INVALID) return write_nothing(batch, b, CAFFNET_INVALID);
    int inside = check(s, work->f, largest(work->f, n), NULL, 1);
    if (inside != REJECTED) {
        if (!batch->strict) return write_itself(batch, b, inside);
        if (holds_exactly(batch, b, batch->f, b * batch->f_step, 0)) return write_itself(batch, b, CAFFNET_INSIDE);
        copy(work->g, work->f, n); /* f is feasible up to rounding: it is moved by rounding only, not by w */
        search = CAFFNET_ACTIVE;
    }
    double size = size_of_sample(work);
    if (loaded != CONFLICT) state = project(work, search, start);
    int found = state >= 0;
    if (!found && !work->lost) state = approach(work, (int)batch->strict, proof);
    if (work->lost) return write_nothing(batch, b, CAFFNET_UNDECIDED);
    state = exclude_far_point(batch, b, work, state, size, proof);
    found = found && state != CAFFNET_INFEASIBLE && state != CAFFNET_RELAXED;
    if (found && search == CAFFNET_PAPER && (batch->w || work->norm != 2.0) && try_compromise(batch, b, work))
        return batch->status[b];
    if (state != CAFFNET_INFEASIBLE && state != CAFFNET_RELAXED && !is_representable(work)) {
        state = into_range(work, proof);
        found = 0;
    }
    work->unproven = work->unproven || !found;
    state = rescale_to_hard_rows(batch, b, work, state, proof);
    if (state == CAFFNET_RELAXED) return write_relaxed(batch, b, work);
    if (batch->strict && state != CAFFNET_INFEASIBLE) {
        state = write_strictly(batch, b, work, search == CAFFNET_PAPER ? CAFFNET_FULL : search, proof);
        /* If no point holds exactly, a point that holds up to rounding is not moved. */
        int stays = state == CAFFNET_WITHIN_TOL && inside != REJECTED;
        if (stays && work->soft) stays = holds_exactly(batch, b, batch->f, b * batch->f_step, 1);
        return stays ? write_itself(batch, b, state) : state;
    }
    return write_outcome(batch, b, work, state);
}
