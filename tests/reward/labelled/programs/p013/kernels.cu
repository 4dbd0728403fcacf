#include <cstdint>
#include <cuda_runtime.h>

__global__ void linear_gelu_kernel(const float* x, const float* w, const float* b, float* y, int rows, int k, int n) {
  __shared__ float a[16][16], c[16][17];
  const int i = blockIdx.y * 16 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x;
  float sum = 0.f;
  for (int t = 0; t < k; t += 16) {
    a[threadIdx.y][threadIdx.x] = x[int64_t(i) * k + t + threadIdx.x];
    c[threadIdx.y][threadIdx.x] = w[int64_t(blockIdx.x * 16 + threadIdx.y) * k + t + threadIdx.x];
    __syncthreads();
    for (int s = 0; s < 16; ++s) sum += a[threadIdx.y][s] * c[threadIdx.x][s];
    __syncthreads();
  }
  const float v = sum + b[j];
  y[int64_t(i) * n + j] = 0.5f * v * (1.f + erff(v * 0.70710678f));
}

extern "C" int linear_gelu(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t k, int64_t n, void* stream) {
  if (rows % 16 || n % 16 || k % 16) return cudaErrorInvalidValue;
  linear_gelu_kernel<<<dim3(unsigned(n / 16), unsigned(rows / 16)), dim3(16, 16), 0, static_cast<cudaStream_t>(stream)>>>(x, w, b, y, int(rows), int(k), int(n));
  return cudaGetLastError();
}
