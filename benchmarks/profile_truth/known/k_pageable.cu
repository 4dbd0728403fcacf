// 64 MiB go to the device and back from memory of malloc, around one short kernel.
#include "truth.h"

#include <stdlib.h>
#include <string.h>

static const size_t COUNT = size_t(16) << 20;
static float *host, *device;

static __global__ void k_pageable_scale(float* data) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    data[i] = data[i] * 0.5f + 1.0f;
}

extern "C" int truth_prepare(void) {
    host = (float*)malloc(COUNT * sizeof(float));
    memset(host, 0, COUNT * sizeof(float));
    return cudaMalloc(&device, COUNT * sizeof(float));
}

extern "C" int truth_run(void) {
    cudaMemcpy(device, host, COUNT * sizeof(float), cudaMemcpyHostToDevice);
    k_pageable_scale<<<COUNT / 256, 256>>>(device);
    cudaMemcpy(host, device, COUNT * sizeof(float), cudaMemcpyDeviceToHost);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(device);
    free(host);
    return cudaGetLastError();
}
