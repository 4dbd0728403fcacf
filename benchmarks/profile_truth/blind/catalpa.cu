// Frames arrive in ordinary host memory, are brightened on the device, and go back.
#include <cstdlib>

#include "frame.h"

namespace {
constexpr size_t kPixels = 8 * 1024 * 1024;
constexpr int kFrames = 3;
float *arriving, *leaving, *pixels;

__global__ void __launch_bounds__(256) catalpa_brighten(float* p) {
    size_t i = blockIdx.x * 256 + threadIdx.x;
    p[i] = fminf(1.0f, 1.2f * p[i] + 0.05f);
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&pixels, kPixels));
    arriving = static_cast<float*>(malloc(kPixels * sizeof(float)));
    leaving = static_cast<float*>(malloc(kPixels * sizeof(float)));
    if (!arriving || !leaving) return cudaErrorMemoryAllocation;
    for (size_t i = 0; i < kPixels; ++i) arriving[i] = leaving[i] = static_cast<float>(i % 251) / 251.0f;
    return 0;
}

extern "C" int truth_run(void) {
    for (int image = 0; image < kFrames; ++image) {
        TRY(cudaMemcpy(pixels, arriving, kPixels * sizeof(float), cudaMemcpyHostToDevice));
        catalpa_brighten<<<kPixels / 256, 256>>>(pixels);
        TRY(cudaMemcpy(leaving, pixels, kPixels * sizeof(float), cudaMemcpyDeviceToHost));
    }
    TRY(cudaGetLastError());
    return cudaDeviceSynchronize();
}

extern "C" int truth_release(void) {
    free(arriving);
    free(leaving);
    return frame::give_back();
}
