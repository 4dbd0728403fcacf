#include <cuda_runtime.h>

#include <cstdint>

// Reduces x [PLANES, LENGTH, INNER] over its second dimension. Warps walk neighbouring columns of a part of the rows,
// with UNROLL loads of each thread on their way; the parts of a block are combined in order.
// @CONFIG@
constexpr int UNROLL = 16;
constexpr int PART = (LENGTH + PARTS - 1) / PARTS;  // rows of a part
constexpr int TILES = (INNER + COLUMNS - 1) / COLUMNS;

struct Best { float value; int row; };

// Whether ``b``, further down, replaces ``a``: NaN is the largest and the smallest, and the first of equals stays.
static __device__ __forceinline__ bool replaces(float b, float a) {
  return LARGEST ? b > a || (b != b && a == a) : b < a || (b != b && a == a);
}

__global__ void __launch_bounds__(COLUMNS * PARTS) @NAME@_kernel(const float* __restrict__ x, @OUT@* __restrict__ out) {
  __shared__ float values[PARTS][COLUMNS];
  __shared__ int rows[PARTS][COLUMNS];
  const int local = static_cast<int>(threadIdx.x) % COLUMNS, part = static_cast<int>(threadIdx.x) / COLUMNS;
  const int column = static_cast<int>(blockIdx.x % TILES) * COLUMNS + local;
  const uint32_t plane = blockIdx.x / TILES;
  const int first = part * PART;
  const int last = first + PART < LENGTH ? first + PART : LENGTH;
  const float* from = x + static_cast<uint64_t>(plane) * LENGTH * INNER + column;
  float sum = 0.f;
  Best best = {LARGEST ? -INFINITY : INFINITY, first};
  if (column < INNER) {
    int row = first;
    for (; row + UNROLL <= last; row += UNROLL) {
      float value[UNROLL];
#pragma unroll
      for (int i = 0; i < UNROLL; ++i) value[i] = from[static_cast<int64_t>(row + i) * INNER];
      if (INDEX) {
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
          if (replaces(value[i], best.value)) best = {value[i], row + i};
        }
      } else {
#pragma unroll
        for (int distance = UNROLL / 2; distance > 0; distance /= 2) {
#pragma unroll
          for (int i = 0; i < distance; ++i) value[i] += value[i + distance];
        }
        sum += value[0];
      }
    }
    for (; row < last; ++row) {
      const float value = from[static_cast<int64_t>(row) * INNER];
      if (INDEX) {
        if (replaces(value, best.value)) best = {value, row};
      } else {
        sum += value;
      }
    }
  }
  values[part][local] = INDEX ? best.value : sum;
  rows[part][local] = best.row;
  __syncthreads();
  if (part != 0 || column >= INNER) return;
#pragma unroll
  for (int other = 1; other < PARTS; ++other) {
    if (INDEX) {
      if (replaces(values[other][local], best.value)) best = {values[other][local], rows[other][local]};
    } else {
      sum += values[other][local];
    }
  }
  out[static_cast<uint64_t>(plane) * INNER + column] = INDEX ? static_cast<@OUT@>(best.row) : static_cast<@OUT@>(sum / DIVISOR);
}

extern "C" int @NAME@(const float* x, @OUT@* out, void* stream) {
  @NAME@_kernel<<<@BLOCKS@, @THREADS@, 0, static_cast<cudaStream_t>(stream)>>>(x, out);
  return static_cast<int>(cudaGetLastError());
}
