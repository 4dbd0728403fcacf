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

extern "C" int bag_rows(const int64_t* index, const float* table, float* y, int64_t bags, int64_t size, int64_t width, void*) {
#pragma omp parallel for
  for (int64_t i = 0; i < bags; ++i) {
    float* out = y + i * width;
    std::fill(out, out + width, 0.f);
    for (int64_t j = 0; j < size; ++j) {
      const float* row = table + index[i * size + j] * width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) out[c] += row[c];
    }
    const float share = 1.f / size;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const float v = out[c] * share, s = v * v;
      const float large = 1.f - 2.f / (exponential(2.f * v) + 1.f);
      const float small = v * (1.f + s * (-0.333333333f + s * (0.133333333f - s * 0.053968254f)));
      out[c] = s < 0.01f ? small : large;
    }
  }
  return 0;
}
