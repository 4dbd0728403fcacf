#include <cuda_runtime.h>

#include <cstdint>

// Softmax over channels of x [BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH], then the largest value of each window. A thread has
// one row of a window in each of its layers; the rows of a window are neighbouring lanes. Only windows are read.
// @CONFIG@
constexpr int AREA = DEPTH * HEIGHT * WIDTH;
constexpr int OUT_DEPTH = DEPTH / WINDOW_D, OUT_HEIGHT = HEIGHT / WINDOW_H, OUT_WIDTH = WIDTH / WINDOW_W;
constexpr int OUT_AREA = OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH;
constexpr uint32_t WINDOWS = static_cast<uint32_t>(BATCH) * OUT_AREA;
constexpr unsigned ALL = 0xffffffffu;
static_assert(WINDOW_W % READ == 0 && WIDTH % READ == 0 && 32 % WINDOW_H == 0, "rows of windows are whole accesses");

struct alignas(4 * READ) Pack { float at[READ]; };

static __device__ __forceinline__ float larger(float a, float b) { return b > a || b != b ? b : a; }

__global__ void __launch_bounds__(THREADS) @NAME@_kernel(
    const float* __restrict__ x, const float* __restrict__ bias, float* __restrict__ out) {
  const uint32_t item = blockIdx.x * static_cast<uint32_t>(THREADS) + threadIdx.x;
  const bool exists = item / WINDOW_H < WINDOWS;
  const uint32_t window = exists ? item / WINDOW_H : WINDOWS - 1;
  const int part = static_cast<int>(item % WINDOW_H);
  const uint32_t sample = window / OUT_AREA;
  const int place = static_cast<int>(window % OUT_AREA);
  const int w = place % OUT_WIDTH, h = place / OUT_WIDTH % OUT_HEIGHT, d = place / (OUT_WIDTH * OUT_HEIGHT);
  const float* from = x + static_cast<uint64_t>(sample) * CHANNELS * AREA +
                      (d * WINDOW_D * HEIGHT + h * WINDOW_H + part) * WIDTH + w * WINDOW_W;
  float best[CHANNELS];
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) best[c] = -INFINITY;
#pragma unroll 1
  for (int layer = 0; layer < WINDOW_D; ++layer) {
    float value[CHANNELS][WINDOW_W];
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
      for (int p = 0; p < WINDOW_W / READ; ++p) {
        const Pack pack = *reinterpret_cast<const Pack*>(from + layer * HEIGHT * WIDTH + c * AREA + p * READ);
#pragma unroll
        for (int j = 0; j < READ; ++j) value[c][p * READ + j] = pack.at[j];
      }
    }
#pragma unroll
    for (int j = 0; j < WINDOW_W; ++j) {
      float top = -INFINITY, sum = 0.f;
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        if (bias != nullptr) value[c][j] += bias[c];
        top = value[c][j] > top ? value[c][j] : top;
      }
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        value[c][j] = expf(value[c][j] - top);
        sum += value[c][j];
      }
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) best[c] = larger(best[c], value[c][j] / sum);
    }
  }
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
    for (int distance = 1; distance < WINDOW_H; distance *= 2) {
      best[c] = larger(best[c], __shfl_xor_sync(ALL, best[c], distance));
    }
    if (exists && c % WINDOW_H == part) {
      out[(static_cast<uint64_t>(sample) * CHANNELS + c) * OUT_AREA + place] = best[c];
    }
  }
}

extern "C" int @NAME@(const float* x, const float* bias, float* out, void* stream) {
  @NAME@_kernel<<<@BLOCKS@, @THREADS@, 0, static_cast<cudaStream_t>(stream)>>>(x, bias, out);
  return static_cast<int>(cudaGetLastError());
}
