#include <cstdint>
#include <cuda_runtime.h>

__global__ void rms_kernel(const float* x, const float* z, const float* w, float* y, int64_t n) {
  __shared__ float part[256];
  const int64_t base = blockIdx.x * n;
  float sum = 0.f;
  for (int64_t j = threadIdx.x; j < n; j += 256) {
    const float h = x[base + j] + z[base + j];
    sum += h * h;
  }
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int step = 128; step; step /= 2) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    __syncthreads();
  }
  const float scale = rsqrtf(part[0] / n + 1e-6f);
  for (int64_t j = threadIdx.x; j < n; j += 256) y[base + j] = (x[base + j] + z[base + j]) * scale * w[j];
}

extern "C" int rms_rows(const float* x, const float* z, const float* w, float* y, int64_t rows, int64_t n, void* stream) {
  rms_kernel<<<rows, 256, 0, static_cast<cudaStream_t>(stream)>>>(x, z, w, y, n);
  return cudaGetLastError();
}
