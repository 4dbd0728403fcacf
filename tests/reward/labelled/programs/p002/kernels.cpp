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
      for (int64_t j = 0; j < width; ++j) {
        float sum = 0.f;
        for (int64_t q = 0; q < c; ++q)
          for (int64_t u = 0; u < 3; ++u)
            for (int64_t v = 0; v < 3; ++v) {
              const int64_t a = i + u - 1, b = j + v - 1;
              if (a < 0 || a >= height || b < 0 || b >= width) continue;
              sum += x[((n * c + q) * height + a) * width + b] * w[((o * c + q) * 3 + u) * 3 + v];
            }
        const float z = sum * scale[o] + shift[o];
        y[(p * height + i) * width + j] = z > 0.f ? z : 0.f;
      }
  }
  return 0;
}
