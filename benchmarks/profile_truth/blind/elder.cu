// A Chebyshev series of 64 terms, applied to its own result again and again.
#include "frame.h"

namespace {
constexpr int kPoints = 4 * 1024 * 1024, kTerms = 64, kRounds = 48;
__constant__ float terms[kTerms];
float *xs, *ys;

__global__ void __launch_bounds__(256) elder_chase(const float4* __restrict__ in, float4* __restrict__ out) {
    int i = blockIdx.x * 256 + threadIdx.x;
    float4 quad = in[i];
    float x[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
        float now[4], before[4];
#pragma unroll
        for (int p = 0; p < 4; ++p) now[p] = before[p] = 0.0f;
#pragma unroll
        for (int k = kTerms - 1; k >= 0; --k) {
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                float next = fmaf(x[p], now[p], terms[k] - before[p]);
                before[p] = now[p];
                now[p] = next;
            }
        }
#pragma unroll
        for (int p = 0; p < 4; ++p) x[p] = 0.5f * now[p];
    }
    out[i] = make_float4(x[0], x[1], x[2], x[3]);
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&xs, kPoints));
    TRY(frame::take(&ys, kPoints));
    float host[kTerms];
    frame::Dice dice{7};
    for (float& term : host) term = (dice.unit() - 0.5f) / 64.0f;
    return cudaMemcpyToSymbol(terms, host, sizeof(host));
}

extern "C" int truth_run(void) {
    elder_chase<<<kPoints / 1024, 256>>>(reinterpret_cast<const float4*>(xs), reinterpret_cast<float4*>(ys));
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
