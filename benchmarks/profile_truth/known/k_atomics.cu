// A histogram of sixteen bins in global memory, one atomic addition a value.
#include "truth.h"

static const size_t COUNT = size_t(1) << 22;
static unsigned* values;
static float* bins;

static __global__ void k_atomics_fill(unsigned* out) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    out[i] = unsigned(i * 2654435761u) >> 7;
}

static __global__ void k_atomics_count(const unsigned* __restrict__ in, float* out) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    atomicAdd(out + (in[i] & 15), 1.0f);
}

extern "C" int truth_prepare(void) {
    int status = fill_zero((void**)&values, COUNT * sizeof(unsigned));
    if (!status) status = fill_zero((void**)&bins, 16 * sizeof(float));
    if (status) return status;
    k_atomics_fill<<<COUNT / 256, 256>>>(values);
    return cudaDeviceSynchronize();
}

extern "C" int truth_run(void) {
    k_atomics_count<<<COUNT / 256, 256>>>(values, bins);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(values);
    cudaFree(bins);
    return cudaGetLastError();
}
