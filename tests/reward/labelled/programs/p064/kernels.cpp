#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

typedef float lanes __attribute__((vector_size(64), aligned(4)));

extern "C" int conv_scale_relu(const float* x, const float* w, const float* scale, const float* shift, float* y, int64_t batch,
                               int64_t c, int64_t height, int64_t width, void*) {
  const int64_t wide = (width + 63) / 64 * 64, row = wide + 2;
#pragma omp parallel
  {
    std::vector<float> pad(c * 3 * row);
    std::vector<float> packed(c * 9 * c);
    for (int64_t o = 0; o < c; ++o)
      for (int64_t t = 0; t < c * 9; ++t) packed[t * c + o] = w[o * c * 9 + t];
#pragma omp for collapse(2)
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t i = 0; i < height; ++i) {
        std::fill(pad.begin(), pad.end(), 0.f);
        for (int64_t q = 0; q < c; ++q)
          for (int64_t u = 0; u < 3; ++u)
            if (i + u >= 1 && i + u - 1 < height)
              std::memcpy(&pad[(q * 3 + u) * row + 1], x + ((n * c + q) * height + i + u - 1) * width, width * 4);
        for (int64_t o0 = 0; o0 < c; o0 += 4)
          for (int64_t j0 = 0; j0 < wide; j0 += 64) {
            constexpr int many = 4;
            lanes acc[4][4] = {};
            for (int64_t t = 0; t < c * 3; ++t)
              for (int64_t v = 0; v < 3; ++v) {
                const float* f = &packed[(t * 3 + v) * c + o0];
                for (int m = 0; m < many; ++m) {
                  lanes a;
                  std::memcpy(&a, &pad[t * row + j0 + m * 16 + v], 64);
                  for (int k = 0; k < 4; ++k) acc[k][m] += a * f[k];
                }
              }
            for (int k = 0; k < 4; ++k) {
              float out[64];
              std::memcpy(out, acc[k], sizeof out);
              for (int64_t j = j0; j < std::min(width, j0 + 64); ++j) {
                const float z = out[j - j0] * scale[o0 + k] + shift[o0 + k];
                y[((n * c + o0 + k) * height + i) * width + j] = z > 0.f ? z : 0.f;
              }
            }
          }
      }
  }
  return 0;
}
