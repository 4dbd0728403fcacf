// The emulator's tensor cores, asynchronous copies and clusters: fragments, descriptors and swizzles are laid out as the
// PTX manual says, and sums are truncated to float32 as the hardware truncates them, so that layouts and numerics are
// tested. Copies by cp.async land only when they are waited for.
#pragma once
#include "cuda_fp16.h"

struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension, cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct { unsigned x, y, z; } clusterDim;
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace emulator {

inline int cluster = 1;  // blocks along y
constexpr unsigned SHARED_ORIGIN = 48;

inline Block& block_of_cluster(int rank) {
  const dim3 at = current->block;
  const unsigned y = at.y / cluster * cluster + rank;
  return blocks_running[at.x + grid_size.x * (y + grid_size.y * at.z) - first_block];
}
inline char* shared_base(Block& block) { return reinterpret_cast<char*>(block.shared.data()); }
// The same place in the shared memory of another block of the cluster.
template <typename T>
T* at_block(T* mine, int rank) {
  const ptrdiff_t offset = reinterpret_cast<char*>(mine) - shared_base(*current->home);
  return reinterpret_cast<T*>(shared_base(block_of_cluster(rank)) + offset);
}

struct MemoryBarrier {
  int32_t bytes;
  uint8_t pending, count, phase, unused;
  void check() {
    if (pending != 0 || bytes != 0) return;
    pending = count;
    phase ^= 1;
  }
};
static_assert(sizeof(MemoryBarrier) == 8, "an mbarrier");
inline MemoryBarrier& memory_barrier(uint64_t* barrier) { return *reinterpret_cast<MemoryBarrier*>(barrier); }

inline float half_at(const char* address) {
  __half value;
  std::memcpy(&value.bits, address, 2);
  return __half2float(value);
}
inline float half_of(uint32_t pair, int index) {
  __half value;
  value.bits = (uint16_t)(pair >> (16 * index));
  return __half2float(value);
}
inline float truncated(double value) {
  const float rounded = (float)value;
  return std::fabs((double)rounded) > std::fabs(value) ? std::nextafterf(rounded, 0.f) : rounded;
}

struct PendingCopy { void* to; const void* from; };
inline std::vector<std::vector<std::vector<PendingCopy>>> groups;  // of each thread of the running block
inline std::vector<std::vector<PendingCopy>>& my_groups() {
  const unsigned threads = block_size.x;
  const unsigned index = (current->home - blocks_running) * threads + current->thread.x;
  if (groups.size() <= index) groups.resize(index + 1);
  if (groups[index].empty()) groups[index].emplace_back();
  return groups[index];
}

}  // namespace emulator

template <typename... A, typename... B>
static cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*f)(A...), B... given) {
  emulator::cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) emulator::cluster = config->attrs[i].val.clusterDim.y;
  emulator::groups.clear();
  void* arguments[] = {&given...};
  return emulator::launch(f, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, emulator::cluster > 1);
}

inline char* tile_memory() { return emulator::shared_base(*emulator::current->home); }
inline unsigned shared_address(const void* p) {
  const ptrdiff_t offset = static_cast<const char*>(p) - emulator::shared_base(*emulator::current->home);
  return emulator::SHARED_ORIGIN + (unsigned)offset;
}

inline void copy_16(void* to, const void* from) { emulator::my_groups().back().push_back({to, from}); }
inline void copies_commit() { emulator::my_groups().emplace_back(); }
template <int PENDING>
void copies_wait() {
  auto& groups = emulator::my_groups();
  while (groups.size() > PENDING + 1) {
    for (const auto& copy : groups.front()) std::memcpy(copy.to, copy.from, 16);
    groups.erase(groups.begin());
  }
}

inline void load_matrices(uint32_t (&r)[4], const void* row) {
  emulator::Warp* warp = emulator::current->warp;
  const int lane = emulator::current->lane;
  warp->rows[lane] = row;
  emulator::warp_barrier();
  for (int i = 0; i < 4; ++i) std::memcpy(&r[i], static_cast<const char*>(warp->rows[i * 8 + lane / 4]) + lane % 4 * 4, 4);
  emulator::warp_barrier();
}

inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::Warp* warp = emulator::current->warp;
  const int lane = emulator::current->lane;
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  std::memcpy(warp->fragments[lane], mine, sizeof(mine));
  emulator::warp_barrier();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double total = d[i];
    for (int k = 0; k < 16; ++k) {
      const int from = k % 8 / 2;
      const uint32_t x = warp->fragments[row % 8 * 4 + from][row / 8 + k / 8 * 2];
      const uint32_t w = warp->fragments[column * 4 + from][4 + k / 8];
      total += (double)emulator::half_of(x, k % 2) * emulator::half_of(w, k % 2);
    }
    d[i] = emulator::truncated(total);
  }
  emulator::warp_barrier();
}

inline void barrier_init(uint64_t* barrier, int arrivals) {
  emulator::memory_barrier(barrier) = {0, (uint8_t)arrivals, (uint8_t)arrivals, 0, 0};
}
inline void barriers_ready() {}
inline void barrier_expect(uint64_t* barrier, int bytes) {
  auto& b = emulator::memory_barrier(barrier);
  b.bytes += bytes;
  --b.pending;
  b.check();
}
inline void barrier_arrive_at(uint64_t* barrier, int block) {
  auto& b = emulator::memory_barrier(emulator::at_block(barrier, block));
  --b.pending;
  b.check();
}
inline bool barrier_done(uint64_t* barrier, int parity) {
  if (emulator::memory_barrier(barrier).phase != parity) return true;
  emulator::yield();
  return false;
}
inline uint64_t cache_policy(bool) { return 0; }
inline void copy_to(int rank, void* to, const void* from, int bytes, uint64_t* barrier) {
  std::memcpy(emulator::at_block(static_cast<char*>(to), rank), from, bytes);
  auto& b = emulator::memory_barrier(emulator::at_block(barrier, rank));
  b.bytes -= bytes;
  b.check();
}
inline void copy_to_cluster(void* to, const void* from, int bytes, uint64_t* barrier) {
  for (int rank = 0; rank < emulator::cluster; ++rank) copy_to(rank, to, from, bytes, barrier);
}
inline void copy_tile(void* to, const void* from, int bytes, uint64_t* barrier, uint64_t) {
  copy_to((int)(emulator::current->block.y % emulator::cluster), to, from, bytes, barrier);
}
inline int cluster_rank() { return (int)(emulator::current->block.y % emulator::cluster); }
inline void cluster_sync() {
  emulator::Block& first = emulator::block_of_cluster(0);
  emulator::wait(first.barriers[15], first.threads * emulator::cluster);
}
template <int COUNT>
void fewer_registers() {}
template <int COUNT>
void more_registers() {}
inline void wgmma_fence() {}
inline void pin(float (&)[64]) {}
inline void wgmma_commit() {}
template <int PENDING>
void wgmma_wait() {}

// Element (row, k) of a K-major operand that is swizzled over 128 bytes, or over 64.
inline float operand(uint64_t descriptor, int row, int k) {
  const unsigned start = (unsigned)(descriptor & 0x3fff) << 4, group = (unsigned)(descriptor >> 32 & 0x3fff) << 4;
  const bool wide = descriptor >> 62 == 1;
  unsigned address = start + row / 8 * group + row % 8 * (wide ? 128 : 64) + k * 2;
  address ^= (address >> 7 & (wide ? 7 : 3)) << 4;
  return emulator::half_at(emulator::shared_base(*emulator::current->home) + (address - emulator::SHARED_ORIGIN));
}
inline void multiply_add(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  const int thread = (int)emulator::current->thread.x % 128;
  for (int h = 0; h < 2; ++h) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + h * 8;
    float x[16];
    for (int k = 0; k < 16; ++k) x[k] = operand(a, row, k);
    for (int j = 0; j < 16; ++j)
      for (int c = 0; c < 2; ++c) {
        const int i = j * 4 + h * 2 + c, column = j * 8 + thread % 4 * 2 + c;
        double total = accumulate ? d[i] : 0.;
        for (int k = 0; k < 16; ++k) total += (double)x[k] * operand(b, column, k);
        d[i] = emulator::truncated(total);
      }
  }
}
inline void wgmma_first(float (&d)[64], uint64_t a, uint64_t b) { multiply_add(d, a, b, false); }
inline void wgmma(float (&d)[64], uint64_t a, uint64_t b) { multiply_add(d, a, b, true); }
