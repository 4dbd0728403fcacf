// Softmax of each row of logits that are stored class by class (column-major).
#include "frame.h"

namespace {
constexpr int kRows = 8192, kClasses = 4096, kThreads = 256, kEach = kClasses / kThreads;
float *logits, *chances;

__device__ float whole(float value, bool largest, float* scratch) {
    for (int step = 16; step; step >>= 1) {
        float other = __shfl_xor_sync(~0u, value, step);
        value = largest ? fmaxf(value, other) : value + other;
    }
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = scratch[threadIdx.x % 8];
    for (int step = 4; step; step >>= 1) {
        float other = __shfl_xor_sync(~0u, value, step);
        value = largest ? fmaxf(value, other) : value + other;
    }
    __syncthreads();
    return value;
}

__global__ void __launch_bounds__(kThreads) baobab_stream(const float* __restrict__ in, float* __restrict__ out) {
    __shared__ float scratch[8];
    // Rows in bit-reversed order, as a shuffled batch has them.
    int row = static_cast<int>(__brev(blockIdx.x) >> 19);
    float value[kEach], most = -3.0e38f, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kEach; ++k) value[k] = in[static_cast<size_t>(k * kThreads + threadIdx.x) * kRows + row];
#pragma unroll
    for (int k = 0; k < kEach; ++k) most = fmaxf(most, value[k]);
    most = whole(most, true, scratch);
#pragma unroll
    for (int k = 0; k < kEach; ++k) sum += value[k] = __expf(value[k] - most);
    sum = 1.0f / whole(sum, false, scratch);
#pragma unroll
    for (int k = 0; k < kEach; ++k) out[static_cast<size_t>(row) * kClasses + k * kThreads + threadIdx.x] = value[k] * sum;
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&logits, static_cast<size_t>(kRows) * kClasses));
    TRY(frame::take(&chances, static_cast<size_t>(kRows) * kClasses));
    return 0;
}

extern "C" int truth_run(void) {
    baobab_stream<<<kRows, kThreads>>>(logits, chances);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
