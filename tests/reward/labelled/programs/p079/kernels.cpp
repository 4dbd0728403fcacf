#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int take_bias(const float* x, float* y, int64_t count, void*) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i];
  return 0;
}
