// 133 equal blocks on 132 multiprocessors that hold one each: the last runs alone.
#include "truth.h"

static float* target;

static __global__ void k_tail_blocks(float* out, float a, float b, int rounds) {
    extern __shared__ float unused[];
    float x[8];
    if (rounds < 0) out[0] = unused[threadIdx.x];
    for (int j = 0; j < 8; ++j) x[j] = threadIdx.x + j;
    for (int i = 0; i < rounds; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = fmaf(x[j], a, b);
    float sum = 0;
    for (int j = 0; j < 8; ++j) sum += x[j];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" int truth_prepare(void) {
    cudaFuncSetAttribute(k_tail_blocks, cudaFuncAttributeMaxDynamicSharedMemorySize, 160 * 1024);
    return fill_zero((void**)&target, (SMS + 1) * 512 * sizeof(float));
}

extern "C" int truth_run(void) {
    k_tail_blocks<<<SMS + 1, 512, 160 * 1024>>>(target, 0.999f, 0.5f, 8192);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(target);
    return cudaGetLastError();
}
