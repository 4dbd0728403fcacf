#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

static inline float exponential(float x) {
  x = x < -87.f ? -87.f : x;
  x = x > 88.f ? 88.f : x;
  const float n = (x * 1.44269504f + 12582912.f) - 12582912.f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

static inline float error_function(float x) {
  const float a = std::fabs(x);
  const float t = 1.f / (1.f + 0.3275911f * a);
  const float p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
  const float y = 1.f - p * exponential(-a * a);
  return x < 0.f ? -y : y;
}

static void gelu_norm(const float* x, const float* g, const float* b, float* y, int64_t n) {
  float sum = 0.f, square = 0.f;
#pragma omp simd reduction(+ : sum, square)
  for (int64_t j = 0; j < n; ++j) {
    const float v = 0.5f * x[j] * (1.f + error_function(x[j] * 0.70710678f));
    y[j] = v;
    sum += v;
  }
  const float mean = sum / n;
#pragma omp simd reduction(+ : square)
  for (int64_t j = 0; j < n; ++j) square += (y[j] - mean) * (y[j] - mean);
  const float scale = 1.f / std::sqrt(square / n + 1e-5f);
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) y[j] = (y[j] - mean) * scale * g[j] + b[j];
}

extern "C" int gelu_norm_rows(const float* x, const float* g, const float* b, float* y, int64_t rows, int64_t n, void*) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) gelu_norm(x + i * n, g, b, y + i * n, n);
  return 0;
}

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
