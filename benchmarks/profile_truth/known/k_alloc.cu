// Memory is allocated and freed around each of fifty kernels.
#include "truth.h"

static const size_t COUNT = size_t(8) << 20;

static __global__ void k_alloc_fill(float* data) {
    data[size_t(blockIdx.x) * blockDim.x + threadIdx.x] = 1.0f;
}

extern "C" int truth_prepare(void) {
    return cudaFree(0);
}

extern "C" int truth_run(void) {
    for (int i = 0; i < 50; ++i) {
        float* data;
        cudaMalloc(&data, COUNT * sizeof(float));
        k_alloc_fill<<<COUNT / 256, 256>>>(data);
        cudaFree(data);
    }
    cudaDeviceSynchronize();
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    
    return cudaGetLastError();
}
