#include <cstdint>
#include <cuda_runtime.h>

__global__ void moments_kernel(const float* x, float* m, int64_t size) {
  __shared__ float sums[256], squares[256];
  const float* in = x + blockIdx.x * size;
  float sum = 0.f, square = 0.f;
  for (int64_t i = threadIdx.x; i < size; i += 256) {
    sum += in[i];
    square += in[i] * in[i];
  }
  sums[threadIdx.x] = sum;
  squares[threadIdx.x] = square;
  __syncthreads();
  for (int step = 128; step; step /= 2) {
    if (threadIdx.x < step) {
      sums[threadIdx.x] += sums[threadIdx.x + step];
      squares[threadIdx.x] += squares[threadIdx.x + step];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    const float mean = sums[0] / size;
    m[2 * blockIdx.x] = mean;
    m[2 * blockIdx.x + 1] = rsqrtf(squares[0] / size - mean * mean + 1e-5f);
  }
}

__global__ void norm_silu_kernel(const float* x, const float* m, const float* w, const float* b, float* y, int64_t count,
                                 int64_t channels, int64_t per_group, int64_t size) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t p = i / size, g = p / per_group, c = p % channels;
  const float v = (x[i] - m[2 * g]) * m[2 * g + 1] * w[c] + b[c];
  y[i] = v / (1.f + expf(-v));
}

extern "C" int moments(const float* x, float* m, int64_t groups, int64_t size, void* stream) {
  moments_kernel<<<unsigned(groups), 256, 0, static_cast<cudaStream_t>(stream)>>>(x, m, size);
  return cudaGetLastError();
}

extern "C" int norm_silu(const float* x, const float* m, const float* w, const float* b, float* y, int64_t planes, int64_t channels,
                         int64_t per_group, int64_t size, void* stream) {
  const int64_t count = planes * size;
  norm_silu_kernel<<<unsigned((count + 255) / 256), 256, 0, static_cast<cudaStream_t>(stream)>>>(x, m, w, b, y, count, channels, per_group, size);
  return cudaGetLastError();
}
