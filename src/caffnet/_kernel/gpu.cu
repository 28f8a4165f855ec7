/* The kernel on a GPU: one launch for a batch, one thread for a sample at a time, workspace in global memory. */
#include "kernel.c"

/* How many bytes of workspace a thread has, for threads beside each other in one array. */
#define ROOM(memory, room) ((char *)(memory) + (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * (room))

extern "C" __global__ void caffnet_solve_batch(CaffnetBatch batch, void *memory, int64_t room, unsigned long long *bad) {
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t b = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; b < batch.samples; b += threads)
        if (caffnet_solve(&batch, b, b + 1, ROOM(memory, room))) atomicAdd(bad, 1ull);
}

/* Every gradient has a step: sums over the samples are the caller's. */
extern "C" __global__ void caffnet_gradient_batch(CaffnetBatch batch, CaffnetGradients to, void *memory, int64_t room) {
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t b = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; b < batch.samples; b += threads)
        caffnet_gradient(&batch, &to, b, b + 1, ROOM(memory, room));
}
