// 128 sums a thread, all live in each round, in a kernel compiled for 32 registers.
#include "truth.h"

static float *source, *target;

static __global__ void k_spill_sums(const float* __restrict__ in, float* out, int rounds) {
    float sum[128];
#pragma unroll
    for (int j = 0; j < 128; ++j) sum[j] = j;
    for (int r = 0; r < rounds; ++r) {
        float v = in[r];
#pragma unroll
        for (int j = 0; j < 128; ++j) sum[j] = fmaf(sum[j], v, sum[(j + 1) % 128]);
    }
    float all = 0;
#pragma unroll
    for (int j = 0; j < 128; ++j) all += sum[j];
    out[blockIdx.x * blockDim.x + threadIdx.x] = all;
}

extern "C" int truth_prepare(void) {
    int status = fill_zero((void**)&source, 4096 * sizeof(float));
    return status ? status : fill_zero((void**)&target, SMS * 16 * 256 * sizeof(float));
}

extern "C" int truth_run(void) {
    k_spill_sums<<<SMS * 16, 256>>>(source, target, 32);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(source);
    cudaFree(target);
    return cudaGetLastError();
}
