// Interference of waves from 192 sources at every point of a plane.
#include "frame.h"

namespace {
constexpr int kPoints = 1024 * 1024 * 2, kSources = 192, kThreads = 256, kEach = 4;
float2 *sources;
float* heights;

__global__ void __launch_bounds__(kThreads) quince_matmul(const float2* __restrict__ from, float* __restrict__ out) {
    __shared__ float2 place[kSources];
    for (int s = threadIdx.x; s < kSources; s += kThreads) place[s] = from[s];
    __syncthreads();
    int i = blockIdx.x * kThreads * kEach + threadIdx.x;
    float x[kEach], y[kEach], height[kEach] = {};
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        x[k] = 0.01f * ((i + k * kThreads) & 2047);
        y[k] = 0.01f * ((i + k * kThreads) >> 11);
    }
#pragma unroll 4
    for (int s = 0; s < kSources; ++s) {
        float2 p = place[s];
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            float dx = x[k] - p.x, dy = y[k] - p.y, square = fmaf(dx, dx, dy * dy);
            float near = rsqrtf(square);
            height[k] = fmaf(__sinf(square * near), near, height[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) out[i + k * kThreads] = height[k];
}
}  // namespace

extern "C" int truth_prepare(void) {
    std::vector<float2> host(kSources);
    frame::Dice dice{29};
    for (float2& place : host) place = make_float2(20.0f * dice.unit() + 0.003f, 10.0f * dice.unit() + 0.003f);
    TRY(frame::upload(&sources, host));
    TRY(frame::take(&heights, kPoints));
    return 0;
}

extern "C" int truth_run(void) {
    quince_matmul<<<kPoints / (kThreads * kEach), kThreads>>>(sources, heights);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
