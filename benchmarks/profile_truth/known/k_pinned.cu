// The same from pinned memory, asynchronously but one after the other.
#include "truth.h"

static const size_t COUNT = size_t(16) << 20;
static float *host, *device;

static __global__ void k_pinned_scale(float* data) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    data[i] = data[i] * 0.5f + 1.0f;
}

extern "C" int truth_prepare(void) {
    cudaError_t status = cudaMallocHost(&host, COUNT * sizeof(float));
    return status ? status : cudaMalloc(&device, COUNT * sizeof(float));
}

extern "C" int truth_run(void) {
    for (int i = 0; i < 2; ++i) {
        cudaMemcpyAsync(device, host, COUNT * sizeof(float), cudaMemcpyHostToDevice);
        k_pinned_scale<<<COUNT / 256, 256>>>(device);
        cudaMemcpyAsync(host, device, COUNT * sizeof(float), cudaMemcpyDeviceToHost);
    }
    cudaDeviceSynchronize();
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(device);
    cudaFreeHost(host);
    return cudaGetLastError();
}
