#include <cstdint>
#include <cuda_runtime.h>

__device__ float block_sum(float v) {
  __shared__ float part[32];
  for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  v = (threadIdx.x & 31) < (blockDim.x >> 5) ? part[threadIdx.x & 31] : 0.f;
  for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
  __syncthreads();
  return v;
}

__global__ void __launch_bounds__(256) rms_kernel(const float4* x, const float4* z, const float4* w, float4* y, int n) {
  const int64_t base = int64_t(blockIdx.x) * n;
  float4 h[4];
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float4 a = x[base + threadIdx.x + k * 256], b = z[base + threadIdx.x + k * 256];
    h[k] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    sum += h[k].x * h[k].x + h[k].y * h[k].y + h[k].z * h[k].z + h[k].w * h[k].w;
  }
  const float scale = rsqrtf(block_sum(sum) / (4 * n) + 1e-6f);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float4 g = w[threadIdx.x + k * 256];
    y[base + threadIdx.x + k * 256] =
        make_float4(h[k].x * scale * g.x, h[k].y * scale * g.y, h[k].z * scale * g.z, h[k].w * scale * g.w);
  }
}

extern "C" int rms_rows(const float* x, const float* z, const float* w, float* y, int64_t rows, int64_t n, void* stream) {
  if (n != 4096) return cudaErrorInvalidValue;
  rms_kernel<<<unsigned(rows), 256, 0, static_cast<cudaStream_t>(stream)>>>(
      reinterpret_cast<const float4*>(x), reinterpret_cast<const float4*>(z), reinterpret_cast<const float4*>(w),
      reinterpret_cast<float4*>(y), int(n / 4));
  return cudaGetLastError();
}
