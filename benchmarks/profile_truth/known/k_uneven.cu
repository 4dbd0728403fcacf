// One block of 1,056 computes fifty times as long as each of the others.
#include "truth.h"

static float* target;

static __global__ void k_uneven_rows(float* out, float a, float b, int rounds) {
    float x[8];
    for (int j = 0; j < 8; ++j) x[j] = threadIdx.x + j;
    for (int i = 0; i < (blockIdx.x == 7 ? 50 * rounds : rounds); ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = fmaf(x[j], a, b);
    float sum = 0;
    for (int j = 0; j < 8; ++j) sum += x[j];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" int truth_prepare(void) {
    return fill_zero((void**)&target, SMS * 8 * 256 * sizeof(float));
}

extern "C" int truth_run(void) {
    k_uneven_rows<<<SMS * 8, 256>>>(target, 0.999f, 0.5f, 256);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(target);
    return cudaGetLastError();
}
