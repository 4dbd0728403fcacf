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

extern "C" int scan_gate(const float* x, const float* gate, float* y, int64_t rows, int64_t n, void*) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; i += 4) {
    const int64_t many = std::min<int64_t>(4, rows - i);
    double total[4] = {};
    for (int64_t j0 = 0; j0 < n; j0 += 512) {
      const int64_t end = std::min(n, j0 + 512);
      float sums[4][512];
      for (int64_t j = j0; j < end; ++j)
        for (int64_t r = 0; r < many; ++r) sums[r][j - j0] = float(total[r] += x[(i + r) * n + j]);
      for (int64_t r = 0; r < many; ++r) {
        const float* g = gate + (i + r) * n;
        float* out = y + (i + r) * n;
#pragma omp simd
        for (int64_t j = j0; j < end; ++j) out[j] = sums[r][j - j0] / (1.f + exponential(-g[j]));
      }
    }
  }
  return 0;
}
