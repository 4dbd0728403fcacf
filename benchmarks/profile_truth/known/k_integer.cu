// Eight independent xorshift generators a thread.
#include "truth.h"

static unsigned* target;

static __global__ void k_integer_mix(unsigned* out, int rounds) {
    unsigned x[8];
    for (int j = 0; j < 8; ++j) x[j] = threadIdx.x * 8 + j + 1;
    for (int i = 0; i < rounds; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            x[j] ^= x[j] << 13;
            x[j] ^= x[j] >> 17;
            x[j] ^= x[j] << 5;
        }
    unsigned all = 0;
    for (int j = 0; j < 8; ++j) all ^= x[j];
    out[blockIdx.x * blockDim.x + threadIdx.x] = all;
}

extern "C" int truth_prepare(void) {
    return fill_zero((void**)&target, SMS * 16 * 256 * sizeof(unsigned));
}

extern "C" int truth_run(void) {
    k_integer_mix<<<SMS * 16, 256>>>(target, 512);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(target);
    return cudaGetLastError();
}
