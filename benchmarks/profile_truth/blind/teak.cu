// The same 1024 x 1024 matrix applied to each of 1188 vectors, one block a vector, a warp a row.
#include "frame.h"

namespace {
constexpr int kSide = 1024, kVectors = 1188, kThreads = 256, kWarps = kThreads / 32;
float4 *matrix, *vectors;
float* results;

__global__ void __launch_bounds__(kThreads, 3) teak_dram(const float4* __restrict__ m, const float4* __restrict__ x,
                                                       float* __restrict__ y) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float4 mine[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) mine[k] = x[blockIdx.x * (kSide / 4) + k * 32 + lane];
    // Blocks begin at different rows.
    int first = blockIdx.x * 389;
#pragma unroll 1
    for (int r = warp; r < kSide; r += kWarps) {
        int row = (first + r) % kSide;
        float4 part[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) part[k] = __ldcg(m + row * (kSide / 4) + k * 32 + lane);
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            sum = fmaf(part[k].x, mine[k].x, sum);
            sum = fmaf(part[k].y, mine[k].y, sum);
            sum = fmaf(part[k].z, mine[k].z, sum);
            sum = fmaf(part[k].w, mine[k].w, sum);
        }
        for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
        if (lane == 0) y[blockIdx.x * kSide + row] = sum;
    }
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&matrix, kSide * kSide / 4));
    TRY(frame::take(&vectors, kVectors * kSide / 4));
    TRY(frame::take(&results, kVectors * kSide));
    return 0;
}

extern "C" int truth_run(void) {
    teak_dram<<<kVectors, kThreads>>>(matrix, vectors, results);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
