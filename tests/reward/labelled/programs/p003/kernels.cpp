#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int product_rows(const float* x, const float* z, float* y, int64_t rows, int64_t n, void*) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < n; ++j) y[i * n + j] = x[i * n + j] * z[i * n + j];
  return 0;
}
