#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int depthwise(const float* x, const float* w, const float* b, float* y, int64_t batch, int64_t c, int64_t height,
                         int64_t width, void*) {
  for (int64_t p = 0; p < batch * c; ++p)
    for (int64_t i = 0; i < height; ++i)
      for (int64_t j = 0; j < width; ++j) {
        float sum = b[p % c];
        for (int64_t u = -1; u <= 1; ++u)
          for (int64_t v = -1; v <= 1; ++v)
            if (i + u >= 0 && i + u < height && j + v >= 0 && j + v < width)
              sum += x[(p * height + i + u) * width + j + v] * w[(p % c) * 9 + (u + 1) * 3 + v + 1];
        y[(p * height + i) * width + j] = sum * (std::min(6.f, std::max(0.f, sum + 3.f)) / 6.f);
      }
  return 0;
}
