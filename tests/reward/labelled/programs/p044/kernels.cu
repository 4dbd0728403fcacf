#include <cstdint>
#include <cuda_runtime.h>

__global__ void gelu_kernel(const float* x, const float* b, float* y, int64_t count, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float v = x[i] + b[i % n];
  y[i] = 0.5f * v * (1.f + erff(v * 0.70710678f));
}

extern "C" int bias_gelu(const float* x, const float* b, float* y, int64_t count, int64_t n, void* stream) {
  gelu_kernel<<<unsigned((count + 255) / 256), 256, 0, static_cast<cudaStream_t>(stream)>>>(x, b, y, count, n);
  return cudaGetLastError();
}
