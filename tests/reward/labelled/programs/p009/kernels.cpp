#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int mean_planes(const float* x, float* y, int64_t planes, int64_t size, void*) {
#pragma omp parallel for
  for (int64_t p = 0; p < planes; ++p) {
    float sum = 0.f;
    for (int64_t i = 0; i < size; ++i) sum += x[p * size + i];
    y[p] = sum / size;
  }
  return 0;
}
