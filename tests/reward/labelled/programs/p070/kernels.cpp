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

static void softmax(float* s, int64_t n, float by) {
  float top = -INFINITY;
#pragma omp simd reduction(max : top)
  for (int64_t j = 0; j < n; ++j) top = s[j] > top ? s[j] : top;
  float sum = 0.f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; ++j) {
    s[j] = exponential((s[j] - top) * by);
    sum += s[j];
  }
  const float share = 1.f / sum;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) s[j] *= share;
}

typedef float lanes __attribute__((vector_size(64), aligned(4)));

extern "C" int attend(const float* q, const float* k, const float* v, float* y, int64_t heads, int64_t n, int64_t d, void*) {
#pragma omp parallel
  {
    std::vector<float> turned(d * n), scores(8 * n);
#pragma omp for
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t j = 0; j < n; ++j)
        for (int64_t t = 0; t < d; ++t) turned[t * n + j] = k[(h * n + j) * d + t];
      for (int64_t i0 = 0; i0 < n; i0 += 8) {
        const float* rows = q + (h * n + i0) * d;
        for (int64_t j0 = 0; j0 < n; j0 += 32) {
          lanes acc[8][2] = {};
          for (int64_t t = 0; t < d; ++t) {
            lanes a, b;
            std::memcpy(&a, &turned[t * n + j0], 64);
            std::memcpy(&b, &turned[t * n + j0 + 16], 64);
            for (int r = 0; r < 8; ++r) {
              acc[r][0] += a * rows[r * d + t];
              acc[r][1] += b * rows[r * d + t];
            }
          }
          for (int r = 0; r < 8; ++r) std::memcpy(&scores[r * n + j0], acc[r], 128);
        }
        for (int r = 0; r < 8; ++r) softmax(&scores[r * n], n, 1.f / std::sqrt(float(d)));
        for (int64_t t0 = 0; t0 < d; t0 += 32) {
          lanes acc[8][2] = {};
          for (int64_t j = 0; j < n; ++j) {
            lanes a, b;
            std::memcpy(&a, v + (h * n + j) * d + t0, 64);
            std::memcpy(&b, v + (h * n + j) * d + t0 + 16, 64);
            for (int r = 0; r < 8; ++r) {
              acc[r][0] += a * scores[r * n + j];
              acc[r][1] += b * scores[r * n + j];
            }
          }
          for (int r = 0; r < 8; ++r) std::memcpy(y + (h * n + i0 + r) * d + t0, acc[r], 128);
        }
      }
    }
  }
  return 0;
}
