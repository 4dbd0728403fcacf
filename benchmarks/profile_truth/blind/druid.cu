// Batches go from page-locked memory to the device, are normalised, and come back, one batch after the other.
#include "frame.h"

namespace {
constexpr size_t kNumbers = 24 * 1024 * 1024;
constexpr int kBatches = 3;
float *host_batch, *batch;

__global__ void __launch_bounds__(256) druid_scale(float* p) {
    size_t i = blockIdx.x * 256 + threadIdx.x;
    p[i] = 0.5f * p[i] + 0.25f;
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&batch, kNumbers));
    TRY(cudaMallocHost(reinterpret_cast<void**>(&host_batch), kNumbers * sizeof(float)));
    for (size_t i = 0; i < kNumbers; ++i) host_batch[i] = static_cast<float>(i % 127) / 127.0f;
    return 0;
}

extern "C" int truth_run(void) {
    for (int k = 0; k < kBatches; ++k) {
        TRY(cudaMemcpyAsync(batch, host_batch, kNumbers * sizeof(float), cudaMemcpyHostToDevice));
        druid_scale<<<kNumbers / 256, 256>>>(batch);
        TRY(cudaMemcpyAsync(host_batch, batch, kNumbers * sizeof(float), cudaMemcpyDeviceToHost));
    }
    TRY(cudaGetLastError());
    return cudaDeviceSynchronize();
}

extern "C" int truth_release(void) {
    cudaError_t error = cudaFreeHost(host_batch);
    int other = frame::give_back();
    return error != cudaSuccess ? error : other;
}
