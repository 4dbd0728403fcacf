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

__global__ void __launch_bounds__(512) moments_kernel(const float4* x, float* m, int quads) {
  const float4* in = x + int64_t(blockIdx.x) * quads;
  float sum = 0.f, square = 0.f;
#pragma unroll 4
  for (int i = threadIdx.x; i < quads; i += 512) {
    const float4 v = in[i];
    sum += v.x + v.y + v.z + v.w;
    square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  sum = block_sum(sum);
  square = block_sum(square);
  if (threadIdx.x == 0) {
    const float count = 4.f * quads, mean = sum / count;
    m[2 * blockIdx.x] = mean;
    m[2 * blockIdx.x + 1] = rsqrtf(square / count - mean * mean + 1e-5f);
  }
}

__device__ __forceinline__ float silu(float v) { return __fdividef(v, 1.f + expf(-v)); }

__global__ void __launch_bounds__(256) norm_silu_kernel(const float4* x, const float* m, const float* w, const float* b, float4* y,
                                                        int channels, int per_group, int quads) {
  const int p = blockIdx.x, g = p / per_group, c = p % channels;
  const float scale = m[2 * g + 1] * w[c], shift = b[c] - m[2 * g] * scale;
  const int64_t base = int64_t(p) * quads;
#pragma unroll 4
  for (int i = threadIdx.x; i < quads; i += 256) {
    const float4 v = x[base + i];
    y[base + i] = make_float4(silu(v.x * scale + shift), silu(v.y * scale + shift), silu(v.z * scale + shift),
                              silu(v.w * scale + shift));
  }
}

extern "C" int moments(const float* x, float* m, int64_t groups, int64_t size, void* stream) {
  moments_kernel<<<unsigned(groups), 512, 0, static_cast<cudaStream_t>(stream)>>>(reinterpret_cast<const float4*>(x), m, int(size / 4));
  return cudaGetLastError();
}

extern "C" int norm_silu(const float* x, const float* m, const float* w, const float* b, float* y, int64_t planes, int64_t channels,
                         int64_t per_group, int64_t size, void* stream) {
  norm_silu_kernel<<<unsigned(planes), 256, 0, static_cast<cudaStream_t>(stream)>>>(reinterpret_cast<const float4*>(x), m, w, b,
                                                          reinterpret_cast<float4*>(y), int(channels), int(per_group), int(size / 4));
  return cudaGetLastError();
}
