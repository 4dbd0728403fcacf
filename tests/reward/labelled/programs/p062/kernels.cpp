#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int scale_all(const float* x, float* y, int64_t count, float by, void*) {
#pragma omp parallel for simd
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * by;
  return 0;
}
