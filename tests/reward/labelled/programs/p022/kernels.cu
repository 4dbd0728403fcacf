#include <cstdint>
#include <cuda_runtime.h>

__global__ void scale_kernel(const float* x, float* y, int64_t count, float by) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i] * by;
}

extern "C" int scale_all(const float* x, float* y, int64_t count, float by, void* stream) {
  scale_kernel<<<unsigned((count + 255) / 256), 256, 0, static_cast<cudaStream_t>(stream)>>>(x, y, count, by);
  return cudaGetLastError();
}
