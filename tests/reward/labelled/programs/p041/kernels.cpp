#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int relu_all(const float* x, float* y, int64_t count, void*) {
#pragma omp parallel for simd
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] > 0.f ? x[i] : 0.f;
  return 0;
}
