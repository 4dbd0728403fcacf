// Copies one column of a 512 MiB matrix of 32 floats a row: one float is used of each sector that is fetched.
#include "truth.h"

static const size_t ROWS = size_t(1) << 22, STRIDE = 32;
static float *source, *target;

static __global__ void k_strided_copy(const float* __restrict__ in, float* __restrict__ out) {
    size_t row = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    out[row] = in[row * STRIDE];
}

extern "C" int truth_prepare(void) {
    int status = fill_zero((void**)&source, ROWS * STRIDE * sizeof(float));
    return status ? status : fill_zero((void**)&target, ROWS * sizeof(float));
}

extern "C" int truth_run(void) {
    k_strided_copy<<<ROWS / 256, 256>>>(source, target);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(source);
    cudaFree(target);
    return cudaGetLastError();
}
