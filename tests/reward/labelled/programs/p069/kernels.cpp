#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int squeeze_excite(const float* x, const float* w1, const float* b1, const float* w2, const float* b2, float* y,
                              int64_t batch, int64_t c, int64_t k, int64_t size, void*) {
#pragma omp parallel for
  for (int64_t n = 0; n < batch; ++n) {
    std::vector<float> mean(c), s(k);
    const float* in = x + n * c * size;
    for (int64_t p = 0; p < c; ++p) {
      float sum = 0.f;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < size; ++i) sum += in[p * size + i];
      mean[p] = sum / size;
    }
    for (int64_t j = 0; j < k; ++j) {
      float sum = b1[j];
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < c; ++i) sum += w1[j * c + i] * mean[i];
      s[j] = std::max(sum, 0.f);
    }
    for (int64_t p = 0; p < c; ++p) {
      float sum = b2[p];
      for (int64_t j = 0; j < k; ++j) sum += w2[p * k + j] * s[j];
      const float gate = 1.f / (1.f + std::exp(-sum));
      float* out = y + (n * c + p) * size;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) out[i] = in[p * size + i] * gate;
    }
  }
  return 0;
}
