// relu(A^T B + bias), fp32: tiles of 128 x 128, eight by eight results a thread.
#include "frame.h"

namespace {
constexpr int kM = 3072, kN = 2816, kK = 2048, kTile = 128, kDeep = 16;
float *left, *right, *bias, *result;

__global__ void __launch_bounds__(256, 2) fir_norm(const float* __restrict__ a, const float* __restrict__ b,
                                                  const float* __restrict__ add, float* __restrict__ c) {
    __shared__ float4 panel_a[2][kDeep][kTile / 4], panel_b[2][kDeep][kTile / 4];
    int lane = threadIdx.x % 32, deep = threadIdx.x / 32, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const float* from_a = a + static_cast<size_t>(deep) * kM + blockIdx.y * kTile + lane * 4;
    const float* from_b = b + static_cast<size_t>(deep) * kN + blockIdx.x * kTile + lane * 4;
    float sum[8][8] = {};
    float4 next_a[2], next_b[2];
    auto fetch = [&](int k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            next_a[half] = *reinterpret_cast<const float4*>(from_a + static_cast<size_t>(k + half * 8) * kM);
            next_b[half] = *reinterpret_cast<const float4*>(from_b + static_cast<size_t>(k + half * 8) * kN);
        }
    };
    auto keep = [&](int side) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            panel_a[side][deep + half * 8][lane] = next_a[half];
            panel_b[side][deep + half * 8][lane] = next_b[half];
        }
    };
    fetch(0);
    keep(0);
    __syncthreads();
    for (int k = 0; k < kK; k += kDeep) {
        int side = (k / kDeep) & 1;
        if (k + kDeep < kK) fetch(k + kDeep);
#pragma unroll
        for (int d = 0; d < kDeep; ++d) {
            float4 a0 = panel_a[side][d][ty], a1 = panel_a[side][d][ty + 16];
            float4 b0 = panel_b[side][d][tx], b1 = panel_b[side][d][tx + 16];
            float l[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
            float r[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(l[i], r[j], sum[i][j]);
        }
        if (k + kDeep < kK) keep(side ^ 1);
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int column = blockIdx.x * kTile + half * 64 + tx * 4;
        float4 plus = *reinterpret_cast<const float4*>(add + column);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            int row = blockIdx.y * kTile + (i / 4) * 64 + ty * 4 + i % 4;
            const float* s = sum[i] + half * 4;
            *reinterpret_cast<float4*>(c + static_cast<size_t>(row) * kN + column) =
                make_float4(fmaxf(s[0] + plus.x, 0.0f), fmaxf(s[1] + plus.y, 0.0f), fmaxf(s[2] + plus.z, 0.0f),
                            fmaxf(s[3] + plus.w, 0.0f));
        }
    }
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&left, static_cast<size_t>(kM) * kK));
    TRY(frame::take(&right, static_cast<size_t>(kN) * kK));
    TRY(frame::take(&bias, kN));
    TRY(frame::take(&result, static_cast<size_t>(kM) * kN));
    return 0;
}

extern "C" int truth_run(void) {
    fir_norm<<<dim3(kN / kTile, kM / kTile), 256>>>(left, right, bias, result);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
