// One chain of multiply-adds a thread, one warp a scheduler: each waits four cycles for the one before.
#include "truth.h"

static float* target;

static __global__ void k_chain_poly(float* out, float a, float b, int rounds) {
    float x[1];
    for (int j = 0; j < 1; ++j) x[j] = threadIdx.x + j;
    for (int i = 0; i < rounds; ++i)
#pragma unroll
        for (int j = 0; j < 1; ++j) x[j] = fmaf(x[j], a, b);
    float sum = 0;
    for (int j = 0; j < 1; ++j) sum += x[j];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" int truth_prepare(void) {
    return fill_zero((void**)&target, SMS * 128 * sizeof(float));
}

extern "C" int truth_run(void) {
    k_chain_poly<<<SMS, 128>>>(target, 0.999f, 0.5f, 100000);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(target);
    return cudaGetLastError();
}
