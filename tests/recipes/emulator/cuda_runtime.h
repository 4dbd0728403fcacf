// Runs the project's CUDA kernels on the CPU, one fiber a thread, so that their index arithmetic, barriers and
// exchanges are tested without a GPU. Memory is sequentially consistent here: ordering bugs do not show, and nothing
// is timed. Covers only what those kernels use.
#pragma once
#include <ucontext.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 { float x, y; };
struct float3 { float x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }

typedef int cudaError_t;
typedef void* cudaStream_t;
constexpr cudaError_t cudaSuccess = 0;
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };

namespace emulator {

struct Barrier { int arrived = 0, generation = 0; };
struct Warp {
  uint32_t slots[32];
  uint32_t fragments[32][6];
  const void* rows[32];
  Barrier barrier;
  int size = 0;
};
struct Block {
  std::vector<float4> shared;
  Barrier barriers[16];
  std::vector<Warp> warps;
  int threads = 0;
};
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  dim3 thread, block;
  Block* home = nullptr;
  Warp* warp = nullptr;
  int lane = 0;
  bool done = false;
};

inline Fiber* current = nullptr;
inline ucontext_t scheduler;
inline dim3 grid_size, block_size;
inline unsigned first_block = 0;
inline Block* blocks_running = nullptr;
inline void (*body)(void*) = nullptr;
inline void* body_arguments = nullptr;

inline void yield() { swapcontext(&current->context, &scheduler); }
inline void wait(Barrier& barrier, int expected, bool arrive_only = false) {
  if (++barrier.arrived == expected) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  const int generation = barrier.generation;
  while (!arrive_only && barrier.generation == generation) yield();
}
inline void warp_barrier() { wait(current->warp->barrier, current->warp->size); }
inline void enter() {
  body(body_arguments);
  current->done = true;
  swapcontext(&current->context, &scheduler);
}

// Runs blocks [first, last) together until all their threads are done.
inline void run(unsigned first, unsigned last, size_t shared_bytes) {
  const unsigned threads = block_size.x * block_size.y * block_size.z;
  std::vector<Block> blocks(last - first);
  first_block = first;
  blocks_running = blocks.data();
  std::vector<std::unique_ptr<Fiber>> fibers;
  for (unsigned b = first; b < last; ++b) {
    Block& block = blocks[b - first];
    block.shared.resize((shared_bytes + 15) / 16 + 1);
    std::memset(block.shared.data(), 0xff, shared_bytes);
    block.warps.resize((threads + 31) / 32);
    block.threads = (int)threads;
    for (unsigned t = 0; t < threads; ++t) {
      auto fiber = std::make_unique<Fiber>();
      constexpr size_t STACK = 64 * 1024;
      fiber->stack.reset(new char[STACK]);
      getcontext(&fiber->context);
      fiber->context.uc_stack.ss_sp = fiber->stack.get();
      fiber->context.uc_stack.ss_size = STACK;
      fiber->context.uc_link = &scheduler;
      makecontext(&fiber->context, enter, 0);
      fiber->thread = dim3(t % block_size.x, t / block_size.x % block_size.y, t / (block_size.x * block_size.y));
      fiber->block = dim3(b % grid_size.x, b / grid_size.x % grid_size.y, b / (grid_size.x * grid_size.y));
      fiber->home = &block;
      fiber->warp = &block.warps[t / 32];
      fiber->lane = (int)(t % 32);
      ++fiber->warp->size;
      fibers.push_back(std::move(fiber));
    }
  }
  bool running = true;
  while (running) {
    running = false;
    for (auto& fiber : fibers) {
      if (fiber->done) continue;
      running = true;
      current = fiber.get();
      swapcontext(&scheduler, &fiber->context);
    }
  }
}

// Of each source alone: kernels of two sources may take structures of the same name that differ.
namespace {
template <typename... A>
struct Call {
  void (*function)(A...);
  void** arguments;
  template <size_t... I>
  void apply(std::index_sequence<I...>) { function(*static_cast<std::remove_const_t<std::remove_reference_t<A>>*>(arguments[I])...); }
  static void run(void* self) { static_cast<Call*>(self)->apply(std::index_sequence_for<A...>()); }
};

template <typename... A>
int launch(void (*function)(A...), dim3 grid, dim3 block, void** arguments, size_t shared, bool together) {
  Call<A...> call{function, arguments};
  body = &Call<A...>::run;
  body_arguments = &call;
  grid_size = grid;
  block_size = block;
  const unsigned blocks = grid.x * grid.y * grid.z;
  if (together) run(0, blocks, shared);
  else
    for (unsigned b = 0; b < blocks; ++b) run(b, b + 1, shared);
  return 0;
}
}  // namespace

}  // namespace emulator

#define threadIdx (emulator::current->thread)
#define blockIdx (emulator::current->block)
inline dim3& emulated_block = emulator::block_size;
inline dim3& emulated_grid = emulator::grid_size;
#define blockDim emulated_block
#define gridDim emulated_grid

template <typename... A>
static cudaError_t cudaLaunchCooperativeKernel(void (*f)(A...), dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
  return emulator::launch(f, grid, block, arguments, shared, true);
}
template <typename... A>
static cudaError_t cudaLaunchKernel(void (*f)(A...), dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
  return emulator::launch(f, grid, block, arguments, shared, false);
}
template <typename F>
cudaError_t cudaFuncSetAttribute(F*, int, int) { return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  std::memset(p, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

inline void __syncthreads() { emulator::wait(emulator::current->home->barriers[0], emulator::current->home->threads); }
inline void __syncwarp(unsigned = ~0u) { emulator::warp_barrier(); }
inline void __nanosleep(unsigned) { emulator::yield(); }
inline void __threadfence() {}
inline void barrier_sync(int id, int threads) { emulator::wait(emulator::current->home->barriers[id], threads); }
inline void barrier_arrive(int id, int threads) { emulator::wait(emulator::current->home->barriers[id], threads, true); }
inline float* shared_memory() { return reinterpret_cast<float*>(emulator::current->home->shared.data()); }
inline float4 load_relaxed(const float* p) {
  emulator::yield();
  return *reinterpret_cast<const float4*>(p);
}
inline void store_relaxed(float* p, float value) { *p = value; }
inline long long nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
T emulate_shuffle(T value, int source) {
  static_assert(sizeof(T) == 4, "32-bit shuffles only");
  emulator::Warp* warp = emulator::current->warp;
  std::memcpy(&warp->slots[emulator::current->lane], &value, 4);
  emulator::warp_barrier();
  T result;
  std::memcpy(&result, &warp->slots[source], 4);
  emulator::warp_barrier();
  return result;
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) { return emulate_shuffle(value, emulator::current->lane ^ mask); }
template <typename T>
T __shfl_sync(unsigned, T value, int source) { return emulate_shuffle(value, source); }
template <typename T>
T __shfl_down_sync(unsigned, T value, int delta) {
  const int source = emulator::current->lane + delta;
  return emulate_shuffle(value, source < 32 ? source : emulator::current->lane);
}

template <typename T>
T __ldg(const T* p) { return *p; }
template <typename T>
T __ldcs(const T* p) { return *p; }
template <typename T>
T atomicAdd(T* p, T value) {
  const T old = *p;
  *p += value;
  return old;
}
inline uint32_t __float_as_uint(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float v;
  std::memcpy(&v, &bits, 4);
  return v;
}
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }

#include "exchange.h"
