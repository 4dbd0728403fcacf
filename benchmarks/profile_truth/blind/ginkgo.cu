// Moving average over the last 56 samples of two channels, for many stations; a thread marches through time.
#include "frame.h"

namespace {
constexpr int kStations = 132 * 2 * 128 * 4, kWindow = 56, kSteps = 5 * kWindow;
float *rain, *wind, *means;

__global__ void __launch_bounds__(128, 2) ginkgo_conflict(const float* first, const float* second, float* out) {
    size_t at = blockIdx.x * 128 + threadIdx.x;
    float one[kWindow], two[kWindow], sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int k = 0; k < kWindow; ++k) one[k] = two[k] = 0.0f;
#pragma unroll 1
    for (int step = 0; step < kSteps; step += kWindow) {
#pragma unroll
        for (int k = 0; k < kWindow; ++k) {
            float a = first[at], b = second[at];
            sum += a - one[k];
            square += b - two[k];
            one[k] = a;
            two[k] = b;
            out[at] = sum * square;
            at += kStations;
        }
    }
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&rain, static_cast<size_t>(kStations) * kSteps));
    TRY(frame::take(&wind, static_cast<size_t>(kStations) * kSteps));
    TRY(frame::take(&means, static_cast<size_t>(kStations) * kSteps));
    return 0;
}

extern "C" int truth_run(void) {
    ginkgo_conflict<<<kStations / 128, 128>>>(rain, wind, means);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
