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

extern "C" int norm_silu(const float* x, const float* w, const float* b, float* y, int64_t batch, int64_t channels, int64_t groups,
                         int64_t size, void*) {
  const int64_t per = channels / groups, span = per * size;
#pragma omp parallel for
  for (int64_t g = 0; g < batch * groups; ++g) {
    const float* in = x + g * span;
    float sum = 0.f, square = 0.f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < span; ++i) sum += in[i];
    const float mean = sum / span;
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < span; ++i) square += (in[i] - mean) * (in[i] - mean);
    const float scale = 1.f / std::sqrt(square / span + 1e-5f);
    for (int64_t k = 0; k < per; ++k) {
      const int64_t c = g % groups * per + k;
      const float a = scale * w[c], d = b[c] - mean * a;
      float* out = y + g * span + k * size;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) {
        const float v = in[k * size + i] * a + d;
        out[i] = v / (1.f + exponential(-v));
      }
    }
  }
  return 0;
}
