#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int sigmoid_all(const float* x, float* y, int64_t count, void*) {
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i) y[i] = 1.f / (1.f + std::exp(-x[i]));
  return 0;
}
