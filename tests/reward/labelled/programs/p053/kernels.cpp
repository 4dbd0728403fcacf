#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int add_bias(const float* x, const float* b, float* y, int64_t rows, int64_t n, void*) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < n; ++j) y[i * n + j] = x[i * n + j] + b[j];
  return 0;
}
