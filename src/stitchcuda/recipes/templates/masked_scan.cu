#include <cuda_runtime.h>

#include <cstdint>

// Running sums of rows, of x or of x where a mask of bytes is set. A block walks its row in chunks; a warp has a
// contiguous part of a chunk, scans it in registers, and adds what lies before it. The next chunk is on its way
// meanwhile.
// @CONFIG@
constexpr int WARPS = THREADS / 32;
constexpr int STEPS = 4;                         // float4 of a thread in a chunk
constexpr int CHUNK = THREADS * STEPS * 4;
constexpr unsigned ALL = 0xffffffffu;

struct alignas(4) Flags { uint8_t at[4]; };
struct alignas(16) Four { float at[4]; };

static __device__ __forceinline__ void read_chunk(
    const float* __restrict__ x, const uint8_t* __restrict__ mask, int start, Four (&value)[STEPS]) {
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    const int at = start + k * 128;
    value[k] = Four{};
    if (at < LENGTH) {
      value[k] = *reinterpret_cast<const Four*>(x + at);
      if (MASKED) {
        const Flags flags = *reinterpret_cast<const Flags*>(mask + at);
#pragma unroll
        for (int j = 0; j < 4; ++j) value[k].at[j] *= flags.at[j] ? 1.f : 0.f;
      }
    }
  }
}

__global__ void __launch_bounds__(THREADS, 2) @NAME@_kernel(
    const float* __restrict__ x, const uint8_t* __restrict__ mask, float* __restrict__ out) {
  __shared__ float totals[2][WARPS];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint64_t row = static_cast<uint64_t>(blockIdx.x) * LENGTH;
  const float* from = x + row;
  const uint8_t* flags = MASKED ? mask + row : nullptr;
  const int offset = warp * (STEPS * 128) + lane * 4;
  float carry = 0.f;
  Four value[STEPS], next[STEPS];
  read_chunk(from, flags, offset, value);
  int parity = 0;
#pragma unroll 1
  for (int start = 0; start < LENGTH; start += CHUNK) {
    if (start + CHUNK < LENGTH) read_chunk(from, flags, start + CHUNK + offset, next);
    float before = 0.f;  // of this warp's chunk
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
#pragma unroll
      for (int j = 1; j < 4; ++j) value[k].at[j] += value[k].at[j - 1];
      float sum = value[k].at[3];
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const float lower = __shfl_sync(ALL, sum, lane >= distance ? lane - distance : lane);
        if (lane >= distance) sum += lower;
      }
      const float left = __shfl_sync(ALL, sum, lane > 0 ? lane - 1 : 0);
      const float add = before + (lane > 0 ? left : 0.f);
#pragma unroll
      for (int j = 0; j < 4; ++j) value[k].at[j] += add;
      before += __shfl_sync(ALL, sum, 31);
    }
    if (lane == 0) totals[parity][warp] = before;
    __syncthreads();
    float add = carry, total = 0.f;
#pragma unroll
    for (int other = 0; other < WARPS; ++other) {
      const float part = totals[parity][other];
      if (other < warp) add += part;
      total += part;
    }
    carry += total;
    parity ^= 1;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      const int at = start + offset + k * 128;
#pragma unroll
      for (int j = 0; j < 4; ++j) value[k].at[j] += add;
      if (at < LENGTH) *reinterpret_cast<Four*>(out + row + at) = value[k];
      value[k] = next[k];
    }
  }
}

extern "C" int @NAME@(const float* x, const uint8_t* mask, float* out, void* stream) {
  @NAME@_kernel<<<@ROWS@, @THREADS@, 0, static_cast<cudaStream_t>(stream)>>>(x, mask, out);
  return static_cast<int>(cudaGetLastError());
}
