// Eight independent chains of fp64 multiply-adds a thread.
#include "truth.h"

static double* target;

static __global__ void k_double_loop(double* out, double a, double b, int rounds) {
    double x[8];
    for (int j = 0; j < 8; ++j) x[j] = threadIdx.x + j;
    for (int i = 0; i < rounds; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = fma(x[j], a, b);
    double sum = 0;
    for (int j = 0; j < 8; ++j) sum += x[j];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" int truth_prepare(void) {
    return fill_zero((void**)&target, SMS * 16 * 256 * sizeof(double));
}

extern "C" int truth_run(void) {
    k_double_loop<<<SMS * 16, 256>>>(target, 0.999, 0.5, 1024);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(target);
    return cudaGetLastError();
}
