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

typedef float lanes __attribute__((vector_size(64), aligned(4)));

template <typename Finish>
static void product(const float* x, const float* w, float* y, int64_t rows, int64_t k, int64_t n, Finish finish) {
#pragma omp parallel
  {
    std::vector<float> panel(32 * k);
#pragma omp for
    for (int64_t j0 = 0; j0 < n; j0 += 32) {
      for (int64_t j = 0; j < 32; ++j)
        for (int64_t t = 0; t < k; ++t) panel[t * 32 + j] = w[(j0 + j) * k + t];
      for (int64_t i0 = 0; i0 < rows; i0 += 8) {
        lanes acc[8][2] = {};
        for (int64_t t = 0; t < k; ++t) {
          lanes p0, p1;
          std::memcpy(&p0, &panel[t * 32], 64);
          std::memcpy(&p1, &panel[t * 32 + 16], 64);
          for (int r = 0; r < 8; ++r) {
            const float v = x[(i0 + r) * k + t];
            acc[r][0] += p0 * v;
            acc[r][1] += p1 * v;
          }
        }
        for (int r = 0; r < 8; ++r) {
          float out[32];
          std::memcpy(out, acc[r], sizeof out);
          finish(i0 + r, j0, out);
          std::memcpy(y + (i0 + r) * n + j0, out, sizeof out);
        }
      }
    }
  }
}

extern "C" int linear_rows(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t k, int64_t n, void*) {
  product(x, w, y, rows, k, n, [=](int64_t, int64_t j0, float* out) {
    for (int j = 0; j < 32; ++j) out[j] += b[j0 + j];
  });
  return 0;
}
