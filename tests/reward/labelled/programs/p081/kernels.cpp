#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int attend(const float* q, const float* k, const float* v, float* y, int64_t heads, int64_t n, int64_t d, void*) {
#pragma omp parallel for
  for (int64_t i = 0; i < heads * n; ++i) {
    const int64_t h = i / n;
    std::vector<float> s(n);
    float top = -INFINITY, sum = 0.f;
    for (int64_t j = 0; j < n; ++j) {
      float dot = 0.f;
#pragma omp simd reduction(+ : dot)
      for (int64_t t = 0; t < d; ++t) dot += q[i * d + t] * k[(h * n + j) * d + t];
      s[j] = dot / std::sqrt(float(d));
      top = std::max(top, s[j]);
    }
    for (int64_t j = 0; j < n; ++j) {
      s[j] = std::exp(s[j] - top);
      sum += s[j];
    }
    std::vector<float> out(d, 0.f);
    for (int64_t j = 0; j < n; ++j)
#pragma omp simd
      for (int64_t t = 0; t < d; ++t) out[t] += s[j] * v[(h * n + j) * d + t];
    for (int64_t t = 0; t < d; ++t) y[i * d + t] = out[t] / sum;
  }
  return 0;
}
