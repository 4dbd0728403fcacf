#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// Scalar functions under the names that the CPU version has; full single precision, no fast-math intrinsics.
namespace own {

using bfloat16 = __nv_bfloat16;
using float16 = __half;

__device__ __forceinline__ float exp(float x) { return expf(x); }
__device__ __forceinline__ float log(float x) { return logf(x); }
__device__ __forceinline__ float log1p(float x) { return log1pf(x); }
__device__ __forceinline__ float expm1(float x) { return expm1f(x); }
__device__ __forceinline__ float tanh(float x) { return tanhf(x); }
__device__ __forceinline__ float erf(float x) { return erff(x); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float sqrt(float x) { return sqrtf(x); }
__device__ __forceinline__ float floor(float x) { return floorf(x); }
__device__ __forceinline__ float ceil(float x) { return ceilf(x); }
__device__ __forceinline__ float trunc(float x) { return truncf(x); }
__device__ __forceinline__ float rint(float x) { return rintf(x); }
__device__ __forceinline__ float pow(float x, float y) { return powf(x, y); }
__device__ __forceinline__ float sin(float x) { return sinf(x); }
__device__ __forceinline__ float cos(float x) { return cosf(x); }
__device__ __forceinline__ double exp(double x) { return ::exp(x); }
__device__ __forceinline__ double log(double x) { return ::log(x); }
__device__ __forceinline__ double log1p(double x) { return ::log1p(x); }
__device__ __forceinline__ double expm1(double x) { return ::expm1(x); }
__device__ __forceinline__ double tanh(double x) { return ::tanh(x); }
__device__ __forceinline__ double erf(double x) { return ::erf(x); }
__device__ __forceinline__ double sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }
__device__ __forceinline__ double sqrt(double x) { return ::sqrt(x); }
__device__ __forceinline__ double floor(double x) { return ::floor(x); }
__device__ __forceinline__ double ceil(double x) { return ::ceil(x); }
__device__ __forceinline__ double trunc(double x) { return ::trunc(x); }
__device__ __forceinline__ double rint(double x) { return ::rint(x); }
__device__ __forceinline__ double pow(double x, double y) { return ::pow(x, y); }
__device__ __forceinline__ double sin(double x) { return ::sin(x); }
__device__ __forceinline__ double cos(double x) { return ::cos(x); }

__device__ __forceinline__ float load(float x) { return x; }
__device__ __forceinline__ double load(double x) { return x; }
__device__ __forceinline__ int64_t load(int64_t x) { return x; }
__device__ __forceinline__ int32_t load(int32_t x) { return x; }
__device__ __forceinline__ int32_t load(int16_t x) { return x; }
__device__ __forceinline__ int32_t load(int8_t x) { return x; }
__device__ __forceinline__ int32_t load(uint8_t x) { return x; }
__device__ __forceinline__ bool load(bool x) { return x; }
__device__ __forceinline__ float load(bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float load(float16 x) { return __half2float(x); }

template <class T, class V> __device__ __forceinline__ T store(V value) { return static_cast<T>(value); }
template <> __device__ __forceinline__ bfloat16 store<bfloat16, float>(float value) { return __float2bfloat16(value); }
template <> __device__ __forceinline__ float16 store<float16, float>(float value) { return __float2half(value); }

// V neighbouring elements moved by one access.
template <class T, int V> struct alignas(sizeof(T) * V) Pack { T at[V]; };

struct Sum {
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct Max {
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a > b ? a : b; }
};
struct Min {
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a < b ? a : b; }
};

// The reduction over one warp, in every lane; all 32 lanes must call it.
template <class T, class Op> __device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// The reduction over a block of WARPS warps, in every thread; all threads must call it.
template <int WARPS, class T, class Op> __device__ __forceinline__ T block_reduce(T value, Op op) {
  __shared__ T partial[WARPS];
  value = warp_reduce(value, op);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = value;
  __syncthreads();
  T total = partial[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; ++warp) total = op(total, partial[warp]);
  return total;
}

}  // namespace own
