#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int mean_planes(const float* x, float* y, int64_t planes, int64_t size, void*) {
  for (int64_t p = 0; p < planes; ++p) {
    const float* plane = x + p * size;
    float sum = 0.f;
    for (int64_t i = 0; i < size; ++i) sum += *plane++;
    y[p] = sum / size;
  }
  return 0;
}

extern "C" int excite(const float* m, const float* w1, const float* b1, const float* w2, const float* b2, float* y, int64_t batch,
                      int64_t c, int64_t k, void*) {
  for (int64_t n = 0; n < batch; ++n) {
    std::vector<float> s(k);
    for (int64_t j = 0; j < k; ++j) {
      float sum = b1[j];
      for (int64_t i = 0; i < c; ++i) sum += w1[j * c + i] * m[n * c + i];
      s[j] = std::max(sum, 0.f);
    }
    for (int64_t i = 0; i < c; ++i) {
      float sum = b2[i];
      for (int64_t j = 0; j < k; ++j) sum += w2[i * k + j] * s[j];
      y[n * c + i] = 1.f / (1.f + std::exp(-sum));
    }
  }
  return 0;
}

extern "C" int scale_planes(const float* x, const float* by, float* y, int64_t planes, int64_t size, void*) {
  for (int64_t p = 0; p < planes; ++p)
    for (int64_t i = 0; i < size; ++i) y[p * size + i] = x[p * size + i] * by[p];
  return 0;
}
