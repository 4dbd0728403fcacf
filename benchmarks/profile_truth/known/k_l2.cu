// Reads the same 24 MiB twenty times past the L1.
#include "truth.h"

static const size_t COUNT = size_t(6) << 20;
static float *source, *target;

static __global__ void k_l2_sweep(const float4* __restrict__ in, float* out, size_t count, int rounds) {
    float sum = 0;
    size_t step = size_t(gridDim.x) * blockDim.x, start = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int r = 0; r < rounds; ++r)
#pragma unroll 4
        for (size_t i = start; i < count; i += step) {
            float4 v = __ldcg(in + i);
            sum += v.x + v.y + v.z + v.w;
        }
    out[start] = sum;
}

extern "C" int truth_prepare(void) {
    int status = fill_zero((void**)&source, COUNT * sizeof(float));
    return status ? status : fill_zero((void**)&target, SMS * 8 * 256 * sizeof(float));
}

extern "C" int truth_run(void) {
    k_l2_sweep<<<SMS * 8, 256>>>((const float4*)source, target, COUNT / 4, 20);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(source);
    cudaFree(target);
    return cudaGetLastError();
}
