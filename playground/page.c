/* The kernel for a web page: one problem with two outputs, in fixed arrays that JavaScript reads and writes. */
#include <stddef.h>
#include <string.h>

#include "kernel.h"

enum { N = 2, ROWS = 32 };

static struct {
    double f[N], w[N], A[ROWS * N], lower[ROWS], upper[ROWS], value[N], multiplier[ROWS], norm, metric[N * N];
    CaffnetTolerances t;
    CaffnetProof proof;
    int8_t status, active[ROWS];
    char kinds[ROWS], memory[32768];
} page;

/* Where an array begins, by its place in this list. */
void *page_array(int32_t which) {
    void *const arrays[] = {page.f, page.w, page.A, page.lower, page.upper, page.value, page.multiplier, &page.norm,
                            &page.t, &page.proof, page.active, page.kinds, page.metric};
    return arrays[which];
}

int32_t page_rows(void) { return ROWS; }

static CaffnetBatch batch_of(int32_t m, int32_t search, int32_t has_w, int32_t has_metric) {
    CaffnetBatch batch;
    memset(&batch, 0, sizeof batch);
    batch.n = N, batch.m = m, batch.samples = 1;
    batch.search = search, batch.nearest = 1;
    batch.f = page.f, batch.w = has_w ? page.w : NULL, batch.metric = has_metric ? page.metric : NULL;
    batch.A = page.A, batch.lower = page.lower, batch.upper = page.upper, batch.kinds = page.kinds;
    batch.value = page.value, batch.status = &page.status, batch.active = page.active;
    batch.norm = page.norm, batch.t = page.t;
    return batch;
}

/* Answer the problem in the arrays; its status, or -1 where the memory does not suffice. */
int32_t page_solve(int32_t m, int32_t search, int32_t has_w, int32_t has_metric) {
    CaffnetBatch batch = batch_of(m, search, has_w, has_metric);
    if (m > ROWS || caffnet_workspace(N, m, search, has_metric) > (int64_t)sizeof page.memory) return -1;
    caffnet_solve(&batch, 0, 1, (void *)(((uintptr_t)page.memory + 63) & ~(uintptr_t)63));
    return page.status;
}

/* The rows in conflict, after page_solve has said INFEASIBLE: their multipliers and the gap. */
void page_conflict(int32_t m, int32_t search, int32_t has_w, int32_t has_metric) {
    CaffnetBatch batch = batch_of(m, search, has_w, has_metric);
    caffnet_conflict(&batch, 0, page.multiplier, &page.proof, (void *)(((uintptr_t)page.memory + 63) & ~(uintptr_t)63));
}
