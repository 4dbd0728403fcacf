// The host waits for the device after each of a thousand small kernels.
#include "truth.h"

static float* target;

static __global__ void k_sync_step(float* out, int rounds) {
    float x = out[threadIdx.x];
    for (int i = 0; i < rounds; ++i) x = fmaf(x, 0.5f, 1.0f);
    out[threadIdx.x] = x;
}

extern "C" int truth_prepare(void) {
    return fill_zero((void**)&target, 128 * sizeof(float));
}

extern "C" int truth_run(void) {
    for (int i = 0; i < 1000; ++i) {
        k_sync_step<<<1, 128>>>(target, 500);
        cudaStreamSynchronize(0);
    }
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(target);
    return cudaGetLastError();
}
