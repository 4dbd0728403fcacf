// Eight independent chains of exponentials a thread.
#include "truth.h"

static float* target;

static __global__ void k_sfu_exp(float* out, int rounds) {
    float x[8];
    for (int j = 0; j < 8; ++j) x[j] = threadIdx.x * 1e-3f + j * 0.1f;
    for (int i = 0; i < rounds; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[j]));
    float sum = 0;
    for (int j = 0; j < 8; ++j) sum += x[j];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" int truth_prepare(void) {
    return fill_zero((void**)&target, SMS * 16 * 256 * sizeof(float));
}

extern "C" int truth_run(void) {
    k_sfu_exp<<<SMS * 16, 256>>>(target, 256);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(target);
    return cudaGetLastError();
}
