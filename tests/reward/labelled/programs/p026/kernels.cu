#include <cstdint>
#include <cuda_runtime.h>

__global__ void rms_kernel(const float* x, const float* z, const float* w, float* y, int64_t rows, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows) return;
  float sum = 0.f;
  for (int64_t j = 0; j < n; ++j) {
    const float h = x[i * n + j] + z[i * n + j];
    sum += h * h;
  }
  const float scale = rsqrtf(sum / n + 1e-6f);
  for (int64_t j = 0; j < n; ++j) y[i * n + j] = (x[i * n + j] + z[i * n + j]) * scale * w[j];
}

extern "C" int rms_rows(const float* x, const float* z, const float* w, float* y, int64_t rows, int64_t n, void* stream) {
  rms_kernel<<<unsigned((rows + 63) / 64), 64, 0, static_cast<cudaStream_t>(stream)>>>(x, z, w, y, rows, n);
  return cudaGetLastError();
}
