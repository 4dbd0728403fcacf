// The Lorenz system by the midpoint rule in double precision, two orbits a thread.
#include "frame.h"

namespace {
constexpr int kThreads = 256, kBlocks = 132 * 8, kSteps = 1500;
double* ends;

__device__ __forceinline__ void slope(const double (&at)[3], double (&d)[3]) {
    d[0] = fma(-10.0, at[0], 10.0 * at[1]);
    d[1] = fma(at[0], 28.0 - at[2], -at[1]);
    d[2] = fma(at[0], at[1], -8.0 / 3.0 * at[2]);
}

__global__ void __launch_bounds__(kThreads) spruce_atomic(double* __restrict__ out) {
    int i = blockIdx.x * kThreads + threadIdx.x;
    double at[2][3];
#pragma unroll
    for (int o = 0; o < 2; ++o) {
        at[o][0] = 1.0 + 1e-7 * i;
        at[o][1] = 1.0 - 0.5 * o;
        at[o][2] = 20.0;
    }
#pragma unroll 2
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int o = 0; o < 2; ++o) {
            double d[3], half[3];
            slope(at[o], d);
#pragma unroll
            for (int k = 0; k < 3; ++k) half[k] = fma(0.0005, d[k], at[o][k]);
            slope(half, d);
#pragma unroll
            for (int k = 0; k < 3; ++k) at[o][k] = fma(0.001, d[k], at[o][k]);
        }
    }
    out[i] = at[0][0] + at[0][1] + at[0][2] + at[1][0] + at[1][1] + at[1][2];
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&ends, kBlocks * kThreads, 0));
    return 0;
}

extern "C" int truth_run(void) {
    spruce_atomic<<<kBlocks, kThreads>>>(ends);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
