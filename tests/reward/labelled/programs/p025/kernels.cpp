#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int add_rows(const float* x, const float* z, float* y, int64_t count, void*) {
#pragma omp parallel for simd
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] + z[i];
  return 0;
}
