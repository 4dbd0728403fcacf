#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int loss_rows(const float* x, const int64_t* target, float* y, int64_t rows, int64_t n, float part, void*) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    float top = x[i * n];
    for (int64_t j = 1; j < n; ++j) top = std::max(top, x[i * n + j]);
    double total = 0, mean = 0;
    for (int64_t j = 0; j < n; ++j) total += std::exp(x[i * n + j] - top);
    for (int64_t j = 0; j < n; ++j) mean += x[i * n + j];
    const double shift = top + std::log(total);
    y[i] = float(-(1.0 - part) * (x[i * n + target[i]] - shift) - part * (mean / n - shift));
  }
  return 0;
}
