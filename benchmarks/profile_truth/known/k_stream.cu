// Reads and writes 256 MiB each once, four floats a thread: nothing but device memory can bind.
#include "truth.h"

static const size_t COUNT = size_t(1) << 26;
static float *source, *target;

static __global__ void k_stream_copy(const float4* __restrict__ in, float4* __restrict__ out) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    out[i] = in[i];
}

extern "C" int truth_prepare(void) {
    int status = fill_zero((void**)&source, COUNT * sizeof(float));
    return status ? status : fill_zero((void**)&target, COUNT * sizeof(float));
}

extern "C" int truth_run(void) {
    k_stream_copy<<<COUNT / 4 / 256, 256>>>((const float4*)source, (float4*)target);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(source);
    cudaFree(target);
    return cudaGetLastError();
}
