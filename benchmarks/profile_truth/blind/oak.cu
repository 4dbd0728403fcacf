// The Henon map, iterated; one orbit a thread.
#include "frame.h"

namespace {
constexpr int kBlocks = 132, kThreads = 128, kSteps = 160 * 1024;
float2 *seeds, *ends;

__global__ void __launch_bounds__(kThreads) oak_transpose(const float2* __restrict__ in, float2* __restrict__ out) {
    int i = blockIdx.x * kThreads + threadIdx.x;
    float x = in[i].x, y = in[i].y;
#pragma unroll 8
    for (int step = 0; step < kSteps; ++step) {
        float next = fmaf(-1.4f * x, x, 1.0f + y);
        y = 0.3f * x;
        x = next;
    }
    out[i] = make_float2(x, y);
}
}  // namespace

extern "C" int truth_prepare(void) {
    std::vector<float2> host(kBlocks * kThreads);
    frame::Dice dice{23};
    for (float2& seed : host) seed = make_float2(0.1f * dice.unit(), 0.1f * dice.unit());
    TRY(frame::upload(&seeds, host));
    TRY(frame::take(&ends, host.size()));
    return 0;
}

extern "C" int truth_run(void) {
    oak_transpose<<<kBlocks, kThreads>>>(seeds, ends);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
