#include <cuda_runtime.h>

#include <cstdint>

// The mean cross entropy of rows of logits and class indices, without writing what is between. A block walks over
// rows with the next one on its way; each block leaves its sum, and the last one to finish adds them in order.
// @CONFIG@
constexpr int WARPS = THREADS / 32;
constexpr int PACKS = CLASSES / 4;
constexpr unsigned ALL = 0xffffffffu;

struct alignas(16) Four { float at[4]; };

static __device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const float other = __shfl_xor_sync(ALL, value, offset);
    value = other > value ? other : value;
  }
  return value;
}
static __device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(ALL, value, offset);
  return value;
}

static __device__ __forceinline__ void read_row(const float* __restrict__ row, Four (&value)[ITEMS]) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = item * THREADS + static_cast<int>(threadIdx.x);
    if (at < PACKS) value[item] = *reinterpret_cast<const Four*>(row + 4 * at);
  }
}

__global__ void __launch_bounds__(THREADS) @NAME@_kernel(
    const float* __restrict__ x, const int64_t* __restrict__ target, float* __restrict__ out, float* partials,
    int* done) {
  __shared__ float tops[WARPS];
  __shared__ float sums[WARPS];
  __shared__ int last;
  const int thread = static_cast<int>(threadIdx.x);
  float loss = 0.f, counted = 0.f;  // of this block's rows, kept by thread 0
  Four value[ITEMS], next[ITEMS];
  read_row(x + static_cast<uint64_t>(blockIdx.x) * CLASSES, value);
#pragma unroll 1
  for (int row = static_cast<int>(blockIdx.x); row < ROWS; row += BLOCKS) {
    if (row + BLOCKS < ROWS) read_row(x + static_cast<uint64_t>(row + BLOCKS) * CLASSES, next);
    int64_t label = 0;
    float wanted = 0.f;
    if (thread == 0) {
      label = target[row];
      const bool inside = label >= 0 && label < CLASSES;
      wanted = inside ? x[static_cast<uint64_t>(row) * CLASSES + label] : NAN;
    }
    float top = -INFINITY;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (item * THREADS + thread < PACKS) {
#pragma unroll
        for (int j = 0; j < 4; ++j) top = value[item].at[j] > top ? value[item].at[j] : top;
      }
    }
    top = warp_max(top);
    if (thread % 32 == 0) tops[thread / 32] = top;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) top = tops[warp] > top ? tops[warp] : top;
    float sum = 0.f;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (item * THREADS + thread < PACKS) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += expf(value[item].at[j] - top);
        value[item] = next[item];
      }
    }
    sum = warp_sum(sum);
    if (thread % 32 == 0) sums[thread / 32] = sum;
    __syncthreads();
    if (thread == 0 && label != IGNORED) {
      float total = 0.f;
#pragma unroll
      for (int warp = 0; warp < WARPS; ++warp) total += sums[warp];
      loss += logf(total) - (wanted - top);  // of large logits the difference is exact, or nearly
      counted += 1.f;
    }
  }
  if (thread == 0) {
    partials[2 * blockIdx.x] = loss;
    partials[2 * blockIdx.x + 1] = counted;
    __threadfence();
    last = atomicAdd(done, 1) == BLOCKS - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  const volatile float* read = partials;
  loss = counted = 0.f;
  for (int block = thread; block < BLOCKS; block += THREADS) {
    loss += read[2 * block];
    counted += read[2 * block + 1];
  }
  loss = warp_sum(loss);
  counted = warp_sum(counted);
  if (thread % 32 == 0) {
    tops[thread / 32] = loss;
    sums[thread / 32] = counted;
  }
  __syncthreads();
  if (thread == 0) {
    loss = counted = 0.f;
    for (int warp = 0; warp < WARPS; ++warp) {
      loss += tops[warp];
      counted += sums[warp];
    }
    out[0] = MEAN ? loss / counted : loss;
    *done = 0;
  }
}

extern "C" int @NAME@(const float* x, const int64_t* target, float* out, float* partials, int* done, void* stream) {
  @NAME@_kernel<<<@BLOCKS@, @THREADS@, 0, static_cast<cudaStream_t>(stream)>>>(x, target, out, partials, done);
  return static_cast<int>(cudaGetLastError());
}
