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

static inline float sigmoid(float v) { return 1.f / (1.f + exponential(-v)); }
static inline float tangent(float v) {
  const float s = v * v;
  const float large = 1.f - 2.f / (exponential(2.f * v) + 1.f);
  const float small = v * (1.f + s * (-0.333333333f + s * (0.133333333f - s * 0.053968254f)));
  return s < 0.01f ? small : large;
}

extern "C" int cell_rows(const float* a, const float* b, const float* c, float* h, float* s, int64_t rows, int64_t n, void*) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    const float *u = a + i * 4 * n, *v = b + i * 4 * n;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float state = sigmoid(u[n + j] + v[n + j]) * c[i * n + j] + sigmoid(u[j] + v[j]) * tangent(u[2 * n + j] + v[2 * n + j]);
      s[i * n + j] = state;
      h[i * n + j] = sigmoid(u[3 * n + j] + v[3 * n + j]) * tangent(state);
    }
  }
  return 0;
}
