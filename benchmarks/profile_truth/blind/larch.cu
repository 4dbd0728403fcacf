// Sums of segments of very different length, one block a segment.
#include "frame.h"

namespace {
constexpr int kSegments = 2112, kShort = 2048, kLong = 6 * 1024 * 1024, kThreads = 256;
int* starts;
float *values, *sums;

__global__ void __launch_bounds__(kThreads) larch_tail(const int* __restrict__ start, const float* __restrict__ in,
                                                       float* __restrict__ out) {
    __shared__ float parts[kThreads / 32];
    int end = start[blockIdx.x + 1];
    float sum = 0.0f;
#pragma unroll 8
    for (int i = start[blockIdx.x] + threadIdx.x; i < end; i += kThreads) sum += in[i];
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int k = 1; k < kThreads / 32; ++k) sum += parts[k];
        out[blockIdx.x] = sum;
    }
}
}  // namespace

extern "C" int truth_prepare(void) {
    std::vector<int> host(kSegments + 1, 0);
    for (int s = 0; s < kSegments; ++s) host[s + 1] = host[s] + (s % 700 == 300 ? kLong : kShort);
    TRY(frame::upload(&starts, host));
    TRY(frame::take(&values, host[kSegments]));
    TRY(frame::take(&sums, kSegments));
    return 0;
}

extern "C" int truth_run(void) {
    larch_tail<<<kSegments, kThreads>>>(starts, values, sums);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
