#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int conv_scale_relu(const float* x, const float* w, const float* scale, const float* shift, float* y, int64_t batch,
                               int64_t c, int64_t height, int64_t width, void*) {
#pragma omp parallel for
  for (int64_t p = 0; p < batch * c; ++p) {
    const int64_t n = p / c, o = p % c;
    for (int64_t i = 0; i < height; ++i)
    {
      std::vector<float> sum(width, 0.f);
      for (int64_t q = 0; q < c; ++q)
        for (int64_t u = 0; u < 3; ++u) {
          const int64_t a = i + u - 1;
          if (a < 0 || a >= height) continue;
          const float* line = x + ((n * c + q) * height + a) * width;
          const float* f = w + ((o * c + q) * 3 + u) * 3;
#pragma omp simd
          for (int64_t j = 1; j < width - 1; ++j) sum[j] += line[j - 1] * f[0] + line[j] * f[1] + line[j + 1] * f[2];
          sum[0] += line[0] * f[1] + line[1] * f[2];
          sum[width - 1] += line[width - 2] * f[0] + line[width - 1] * f[1];
        }
      for (int64_t j = 0; j < width; ++j) {
        const float z = sum[j] * scale[o] + shift[o];
        y[(p * height + i) * width + j] = z > 0.f ? z : 0.f;
      }
    }
  }
  return 0;
}
