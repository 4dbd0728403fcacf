#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int scale_relu(const float* x, const float* scale, const float* shift, float* y, int64_t planes, int64_t channels,
                          int64_t size, void*) {
#pragma omp parallel for
  for (int64_t p = 0; p < planes; ++p) {
    const float a = scale[p % channels], b = shift[p % channels];
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) {
      const float v = x[p * size + i] * a + b;
      y[p * size + i] = v > 0.f ? v : 0.f;
    }
  }
  return 0;
}
