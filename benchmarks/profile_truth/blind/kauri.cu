// Driven Duffing oscillators, four a thread, with a shared table of forces.
#include "frame.h"

namespace {
constexpr int kBlocks = 140, kThreads = 1024, kForces = 32 * 1024, kSteps = 24 * 1024;
constexpr size_t kShared = sizeof(float) * kForces;
float *forces, *ends;

__global__ void __launch_bounds__(kThreads) kauri_latency(const float* __restrict__ drive, float* __restrict__ out) {
    extern __shared__ float table[];
    for (int i = threadIdx.x; i < kForces; i += kThreads) table[i] = drive[i];
    __syncthreads();
    int at = blockIdx.x * kThreads + threadIdx.x;
    float x[4], v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        x[k] = 0.01f * k;
        v[k] = 1e-6f * at;
    }
#pragma unroll 4
    for (int step = 0; step < kSteps; ++step) {
        float force = table[step];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            float pull = fmaf(-x[k] * x[k], x[k], force);
            v[k] = fmaf(0.01f, pull, 0.998f * v[k]);
            x[k] = fmaf(0.01f, v[k], x[k]);
        }
    }
    out[at] = x[0] + x[1] + x[2] + x[3];
}
}  // namespace

extern "C" int truth_prepare(void) {
    std::vector<float> host(kForces);
    frame::Dice dice{13};
    for (float& force : host) force = dice.unit() - 0.5f;
    TRY(frame::upload(&forces, host));
    TRY(frame::take(&ends, kBlocks * kThreads));
    return cudaFuncSetAttribute(kauri_latency, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
}

extern "C" int truth_run(void) {
    kauri_latency<<<kBlocks, kThreads, kShared>>>(forces, ends);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
