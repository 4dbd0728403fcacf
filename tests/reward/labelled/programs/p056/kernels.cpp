#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int linear_rows(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t k, int64_t n, void*) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = b[j];
      for (int64_t t = 0; t < k; ++t) sum += x[i * k + t] * w[j * k + t];
      y[i * n + j] = sum;
    }
  return 0;
}

static float sigmoid(float v) { return 1.f / (1.f + std::exp(-v)); }

extern "C" int cell_rows(const float* a, const float* b, const float* c, float* h, float* s, int64_t rows, int64_t n, void*) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float gate[4];
      for (int k = 0; k < 4; ++k) gate[k] = a[(i * 4 + k) * n + j] + b[(i * 4 + k) * n + j];
      const float state = sigmoid(gate[1]) * c[i * n + j] + sigmoid(gate[0]) * std::tanh(gate[2]);
      s[i * n + j] = state;
      h[i * n + j] = sigmoid(gate[3]) * std::tanh(state);
    }
  return 0;
}
