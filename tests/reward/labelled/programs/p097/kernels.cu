#include <cstdint>
#include <cuda_runtime.h>

__global__ void silu_kernel(const float* x, float* y, int64_t count) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i] / (1.f + expf(-x[i]));
}

extern "C" int silu_all(const float* x, float* y, int64_t count, void* stream) {
  silu_kernel<<<unsigned((count + 255) / 256), 256, 0, static_cast<cudaStream_t>(stream)>>>(x, y, count);
  return cudaGetLastError();
}
