// A small recurrent network over 1500 time steps: three kernels a step on a state of 2048 numbers.
#include "frame.h"

namespace {
constexpr int kState = 2048, kSteps = 1500;
float *state, *gate, *inputs;

__global__ void acacia_gate(const float* s, float* g) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    g[i] = 1.0f / (1.0f + __expf(-s[i]));
}
__global__ void acacia_mix(float* s, const float* g, const float* x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    s[i] = g[i] * s[i] + (1.0f - g[i]) * x[i];
}
__global__ void acacia_squash(float* s) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    s[i] = tanhf(s[i]);
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&state, kState));
    TRY(frame::take(&gate, kState));
    TRY(frame::take(&inputs, kState * kSteps));
    return 0;
}

extern "C" int truth_run(void) {
    for (int step = 0; step < kSteps; ++step) {
        acacia_gate<<<kState / 256, 256>>>(state, gate);
        acacia_mix<<<kState / 256, 256>>>(state, gate, inputs + step * kState);
        acacia_squash<<<kState / 256, 256>>>(state);
    }
    TRY(cudaGetLastError());
    return cudaDeviceSynchronize();
}

extern "C" int truth_release(void) { return frame::give_back(); }
