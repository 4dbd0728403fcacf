// One warp of 32 works between two barriers, the others wait for it.
#include "truth.h"

static float* target;

static __global__ void k_barrier_steps(float* out, float a, int rounds) {
    __shared__ float shared;
    float mine = threadIdx.x;
    if (threadIdx.x == 0) shared = 1.0f;
    __syncthreads();
    for (int r = 0; r < rounds; ++r) {
        if (threadIdx.x < 32) {
            float x = shared;
            for (int i = 0; i < 64; ++i) x = fmaf(x, a, 0.25f);
            if (threadIdx.x == 0) shared = x;
        }
        __syncthreads();
        mine += shared;
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = mine;
}

extern "C" int truth_prepare(void) {
    return fill_zero((void**)&target, SMS * 2 * 1024 * sizeof(float));
}

extern "C" int truth_run(void) {
    k_barrier_steps<<<SMS * 2, 1024>>>(target, 0.999f, 500);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(target);
    return cudaGetLastError();
}
