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

__global__ void softmax_kernel(const float* x, float* y, int n, float by) {
  __shared__ float tops[8];
  const int64_t base = int64_t(blockIdx.x) * n;
  float top = -INFINITY, sum = 0.f;
  for (int j = threadIdx.x; j < n; j += 256) top = fmaxf(top, x[base + j]);
  for (int step = 16; step; step >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  if ((threadIdx.x & 31) == 0) tops[threadIdx.x >> 5] = top;
  __syncthreads();
  for (int k = 0; k < 8; ++k) top = fmaxf(top, tops[k]);
  for (int j = threadIdx.x; j < n; j += 256) sum += expf((x[base + j] - top) * by);
  const float share = 1.f / block_sum(sum);
  for (int j = threadIdx.x; j < n; j += 256) y[base + j] = expf((x[base + j] - top) * by) * share;
}

extern "C" int softmax_rows(const float* x, float* y, int64_t rows, int64_t n, float by, void* stream) {
  softmax_kernel<<<unsigned(rows), 256, 0, static_cast<cudaStream_t>(stream)>>>(x, y, int(n), by);
  return cudaGetLastError();
}
