#include <cstdint>
#include <cuda_runtime.h>

__global__ void __launch_bounds__(256) linear_gelu_kernel(const float* x, const float* w, const float* b, float* y, int k, int n) {
  __shared__ __align__(16) float a[2][8][132], c[2][8][132];
  const int row = blockIdx.y * 128, column = blockIdx.x * 128;
  const int at = threadIdx.x / 2, part = threadIdx.x % 2 * 4;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  float acc[8][8] = {};
  const float* xs = x + int64_t(row + at) * k + part;
  const float* ws = w + int64_t(column + at) * k + part;
  float4 p = *reinterpret_cast<const float4*>(xs), q = *reinterpret_cast<const float4*>(ws);
  for (int t = 0, stage = 0; t < k; t += 8, stage = 1 - stage) {
    a[stage][part][at] = p.x; a[stage][part + 1][at] = p.y; a[stage][part + 2][at] = p.z; a[stage][part + 3][at] = p.w;
    c[stage][part][at] = q.x; c[stage][part + 1][at] = q.y; c[stage][part + 2][at] = q.z; c[stage][part + 3][at] = q.w;
    __syncthreads();
    if (t + 8 < k) {
      p = *reinterpret_cast<const float4*>(xs + t + 8);
      q = *reinterpret_cast<const float4*>(ws + t + 8);
    }
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      alignas(16) float u[8], v[8];
      *reinterpret_cast<float4*>(u) = *reinterpret_cast<const float4*>(&a[stage][s][ty * 4]);
      *reinterpret_cast<float4*>(u + 4) = *reinterpret_cast<const float4*>(&a[stage][s][64 + ty * 4]);
      *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(&c[stage][s][tx * 4]);
      *reinterpret_cast<float4*>(v + 4) = *reinterpret_cast<const float4*>(&c[stage][s][64 + tx * 4]);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] += u[i] * v[j];
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t r = row + (i / 4) * 64 + ty * 4 + i % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int base = column + h * 64 + tx * 4;
      alignas(16) float out[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float v = acc[i][h * 4 + j] + b[base + j];
        out[j] = 0.5f * v * (1.f + erff(v * 0.70710678f));
      }
      *reinterpret_cast<float4*>(y + r * n + base) = *reinterpret_cast<const float4*>(out);
    }
  }
}

extern "C" int linear_gelu(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t k, int64_t n, void* stream) {
  if (rows % 128 || n % 128 || k % 8) return cudaErrorInvalidValue;
  linear_gelu_kernel<<<dim3(unsigned(n / 128), unsigned(rows / 128)), 256, 0, static_cast<cudaStream_t>(stream)>>>(x, w, b, y, int(k), int(n));
  return cudaGetLastError();
}
