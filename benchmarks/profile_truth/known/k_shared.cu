// Sixteen-byte shared memory reads without conflicts, one addition a word.
#include "truth.h"

static float* target;

static __global__ void k_shared_reads(float* out, int rounds) {
    __shared__ float4 tile[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) tile[i] = make_float4(i, 1, 2, 3);
    __syncthreads();
    unsigned base = unsigned(__cvta_generic_to_shared(tile)), at = threadIdx.x * 16;
    float sum = 0;
    for (int r = 0; r < rounds; ++r) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float x, y, z, w;
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
                         : "r"(base + (at + j * 2048) % 16384));
            sum += (x + y) + (z + w);
        }
        at = (at + 512) % 16384;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" int truth_prepare(void) {
    return fill_zero((void**)&target, SMS * 8 * 256 * sizeof(float));
}

extern "C" int truth_run(void) {
    k_shared_reads<<<SMS * 8, 256>>>(target, 512);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(target);
    return cudaGetLastError();
}
