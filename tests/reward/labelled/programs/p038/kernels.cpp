#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int tanh_all(const float* x, float* y, int64_t count, void*) {
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i) y[i] = std::tanh(x[i]);
  return 0;
}
