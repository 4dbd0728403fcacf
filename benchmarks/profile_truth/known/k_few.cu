// Four blocks sum 64 MiB.
#include "truth.h"

static const size_t COUNT = size_t(1) << 24;
static float *source, *target;

static __global__ void k_few_sum(const float4* __restrict__ in, float* out, size_t count) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        float4 v = in[i];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum.x + sum.y + sum.z + sum.w;
}

extern "C" int truth_prepare(void) {
    int status = fill_zero((void**)&source, COUNT * sizeof(float));
    return status ? status : fill_zero((void**)&target, 4 * 1024 * sizeof(float));
}

extern "C" int truth_run(void) {
    k_few_sum<<<4, 1024>>>((const float4*)source, target, COUNT / 4);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(source);
    cudaFree(target);
    return cudaGetLastError();
}
