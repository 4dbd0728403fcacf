#include <cuda_runtime.h>

#include <cstdint>

// Depthwise convolution of stride 1. A thread has 4 neighbouring columns of ROWS output rows: it reads each input row
// of its window once and keeps the last TAPS_Y of them in registers.
// @CONFIG@
constexpr int COLUMNS = 4;
constexpr int SPAN = COLUMNS + TAPS_X - 1;                 // inputs of one row that four outputs need
constexpr int LEAD = READ == 4 ? (4 - PAD_X % 4) % 4 : 0;  // inputs read before the first one needed, for alignment
constexpr int PACKS = (LEAD + SPAN + READ - 1) / READ;
constexpr int TILES = (OUT_HEIGHT + ROWS - 1) / ROWS;
constexpr int QUADS = (OUT_WIDTH + COLUMNS - 1) / COLUMNS;
constexpr uint32_t ITEMS = static_cast<uint32_t>(PLANES) * TILES * QUADS;

template <int V> struct alignas(4 * V) Pack { float at[V]; };

// The inputs of row ``y`` from column ``x`` on; zeros outside the plane. ``x`` - LEAD is a multiple of READ.
static __device__ __forceinline__ void read_row(const float* __restrict__ plane, int y, int x, float (&row)[SPAN]) {
  const bool inside = y >= 0 && y < HEIGHT;
  float all[PACKS * READ];
#pragma unroll
  for (int p = 0; p < PACKS; ++p) {
    const int column = x - LEAD + p * READ;
    Pack<READ> pack = {};
    if (inside && column >= 0 && column < WIDTH) {
      pack = *reinterpret_cast<const Pack<READ>*>(plane + static_cast<int64_t>(y) * WIDTH + column);
    }
#pragma unroll
    for (int j = 0; j < READ; ++j) all[p * READ + j] = pack.at[j];
  }
#pragma unroll
  for (int j = 0; j < SPAN; ++j) row[j] = all[LEAD + j];
}

__global__ void __launch_bounds__(THREADS, RESIDENT) @NAME@_kernel(
    const float* __restrict__ x, const float* __restrict__ filter, const float* __restrict__ bias,
    float* __restrict__ out) {
  const uint32_t item = blockIdx.x * static_cast<uint32_t>(THREADS) + threadIdx.x;
  if (item >= ITEMS) return;
  const int column = static_cast<int>(item % QUADS) * COLUMNS;
  const int first = static_cast<int>(item / QUADS % TILES) * ROWS;
  const uint32_t plane = item / (static_cast<uint32_t>(QUADS) * TILES);
  const uint32_t channel = plane % CHANNELS;
  const float* from = x + static_cast<uint64_t>(plane) * (HEIGHT * WIDTH);
  float* to = out + static_cast<uint64_t>(plane) * (OUT_HEIGHT * OUT_WIDTH);

  float tap[TAPS_Y][TAPS_X];
#pragma unroll
  for (int i = 0; i < TAPS_Y; ++i) {
#pragma unroll
    for (int j = 0; j < TAPS_X; ++j) tap[i][j] = filter[(channel * TAPS_Y + i) * TAPS_X + j];
  }
  const float start = bias == nullptr ? 0.f : bias[channel];

  float window[TAPS_Y][SPAN];
#pragma unroll
  for (int i = 0; i < TAPS_Y; ++i) read_row(from, first - PAD_Y + i, column - PAD_X, window[i]);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int y = first + r;
    if (y < OUT_HEIGHT) {
      float next[SPAN] = {};  // on its way while this row is computed
      if (r + 1 < ROWS) read_row(from, y - PAD_Y + TAPS_Y, column - PAD_X, next);
      float sum[COLUMNS];
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) sum[c] = start;
#pragma unroll
      for (int i = 0; i < TAPS_Y; ++i) {
#pragma unroll
        for (int j = 0; j < TAPS_X; ++j) {
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c) sum[c] = fmaf(tap[i][j], window[i][j + c], sum[c]);
        }
      }
#pragma unroll
      for (int p = 0; p < COLUMNS / WRITE; ++p) {
        if (column + p * WRITE < OUT_WIDTH) {
          Pack<WRITE> pack;
#pragma unroll
          for (int j = 0; j < WRITE; ++j) pack.at[j] = sum[p * WRITE + j];
          *reinterpret_cast<Pack<WRITE>*>(to + static_cast<int64_t>(y) * OUT_WIDTH + column + p * WRITE) = pack;
        }
      }
#pragma unroll
      for (int j = 0; j < SPAN; ++j) {
#pragma unroll
        for (int i = 0; i < TAPS_Y - 1; ++i) window[i][j] = window[i + 1][j];
        window[TAPS_Y - 1][j] = next[j];
      }
    }
  }
}

extern "C" int @NAME@(const float* x, const float* filter, const float* bias, float* out, void* stream) {
  @NAME@_kernel<<<@BLOCKS@, @THREADS@, 0, static_cast<cudaStream_t>(stream)>>>(x, filter, bias, out);
  return static_cast<int>(cudaGetLastError());
}
