// y = activation(x · wᵀ + bias) in float32 accuracy on the tensor cores' float16 pipe.
//
// Every row of x and of w is scaled by a power of two so that its largest finite value lies in [2^14, 2^15), and each
// scaled value is split into hi + lo, both float16. Because the scale uses the top of float16's range, lo needs no
// scale of its own: values down to 2^-17 of their row's largest keep 22 bits, smaller ones an absolute error below
// 2^-39 of it. hi·hi + hi·lo + lo·hi is summed by the tensor cores in one float32 accumulator; what is dropped, lo·lo,
// is below 2^-22 of a product. Tensor cores truncate when they add, so after every PROMOTE_TILES tiles of K the
// accumulator is added into a second one by ordinary additions, which round. Small products go first within that.
//
// Split operands are kept as images of tiles: TILE rows by K_TILE columns, hi then lo, each swizzled as it lies in
// shared memory, so that a tile is one contiguous copy. The image of w is made once, that of x at every call.
// Infinities and NaN in x take part as zeros; `finish` puts their effect back, row by row.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// @CONFIG@

constexpr int TILE = 128;                    // rows of a tile, of x and of w
constexpr int PLANE = TILE * K_TILE;         // float16 values of hi, or of lo, in a tile
constexpr int PLANE_BYTES = PLANE * 2;
constexpr int STAGE_BYTES = 4 * PLANE_BYTES;  // hi and lo of both operands
constexpr int CHUNKS = K_TILE / 8;           // 16-byte pieces of a row
constexpr int SPLIT_THREADS = 512;           // at most
static_assert(K_TILE == 32 || K_TILE == 64, "a row of a tile is 64 or 128 bytes");

#ifdef __CUDACC__
static __device__ __forceinline__ char* tile_memory() {
  extern __shared__ float4 dynamic_tiles[];
  return reinterpret_cast<char*>(dynamic_tiles);
}
static __device__ __forceinline__ unsigned shared_address(const void* p) {
  return (unsigned)__cvta_generic_to_shared(p);
}
#endif

static __device__ __forceinline__ int swizzled(int row, int chunk) {
  return K_TILE == 64 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3);
}

struct Split {
  const float* x;  // [rows, columns], contiguous, 16-byte aligned; columns divisible by 8
  __half* image;   // [row tiles, column tiles, 2, TILE, K_TILE]
  int* exponents;  // [row tiles * TILE]: x = image * 2^exponent
  int* special;    // [row tiles * TILE]: bit 0 an infinity in the row, bit 1 a NaN; null keeps them in the image
  int rows, columns;
};

static __device__ __forceinline__ uint32_t packed(__half a, __half b) {
  return (uint32_t)__half_as_ushort(a) | (uint32_t)__half_as_ushort(b) << 16;
}

// One block a row: the largest finite value, then the split.
static __global__ void __launch_bounds__(SPLIT_THREADS) split_rows(const Split p) {
  const int threads = (int)blockDim.x;
  __shared__ unsigned shared_largest[SPLIT_THREADS / 32];
  __shared__ unsigned shared_special[SPLIT_THREADS / 32];
  const int row = blockIdx.x;
  const int tiles = (p.columns + K_TILE - 1) / K_TILE;
  const float* x = p.x + (long long)row * p.columns;
  const bool exists = row < p.rows;
  unsigned largest = 0, special = 0;
  if (exists) {
#pragma unroll 4
    for (int c = threadIdx.x * 4; c < p.columns; c += threads * 4) {
      const float4 v = *reinterpret_cast<const float4*>(x + c);
      const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned bits = __float_as_uint(values[i]) & 0x7fffffffu;
        if (bits < 0x7f800000u) largest = bits > largest ? bits : largest;
        else special |= bits == 0x7f800000u ? 1u : 2u;
      }
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, largest, offset);
    largest = other > largest ? other : largest;
    special |= __shfl_xor_sync(0xffffffffu, special, offset);
  }
  if (threadIdx.x % 32 == 0) {
    shared_largest[threadIdx.x / 32] = largest;
    shared_special[threadIdx.x / 32] = special;
  }
  __syncthreads();
  for (int warp = 0; warp < threads / 32; ++warp) {
    largest = shared_largest[warp] > largest ? shared_largest[warp] : largest;
    special |= shared_special[warp];
  }
  const int biased = (int)(largest >> 23);
  const int exponent = largest == 0 ? 0 : (biased == 0 ? 1 : biased) - 127 - 14;
  const int half_way = -exponent / 2;
  const float scale = __uint_as_float((unsigned)(127 + half_way) << 23);
  const float rest = __uint_as_float((unsigned)(127 - exponent - half_way) << 23);
  __half* image = p.image + (long long)(row / TILE) * tiles * (2 * PLANE) + (row % TILE) * K_TILE;
#pragma unroll 2
  for (int chunk = threadIdx.x; chunk < tiles * CHUNKS; chunk += threads) {
    float values[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
    if (exists && chunk * 8 < p.columns) {
      const float4 a = *reinterpret_cast<const float4*>(x + chunk * 8);
      const float4 b = *reinterpret_cast<const float4*>(x + chunk * 8 + 4);
      values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
      values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
    }
    __half hi[8], lo[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool finite = (__float_as_uint(values[i]) & 0x7fffffffu) < 0x7f800000u;
      const float v = finite || p.special == nullptr ? values[i] * scale * rest : 0.f;
      hi[i] = __float2half_rn(v);
      lo[i] = __float2half_rn(finite ? v - __half2float(hi[i]) : 0.f);
    }
    __half* to = image + (long long)(chunk / CHUNKS) * (2 * PLANE) + swizzled(row % TILE, chunk % CHUNKS) * 8;
    *reinterpret_cast<uint4*>(to) =
        make_uint4(packed(hi[0], hi[1]), packed(hi[2], hi[3]), packed(hi[4], hi[5]), packed(hi[6], hi[7]));
    *reinterpret_cast<uint4*>(to + PLANE) =
        make_uint4(packed(lo[0], lo[1]), packed(lo[2], lo[3]), packed(lo[4], lo[5]), packed(lo[6], lo[7]));
  }
  if (threadIdx.x == 0) {
    p.exponents[row] = exponent;
    if (p.special != nullptr) p.special[row] = (int)special;
  }
}

enum Activation { NONE = 0, RELU = 1, GELU = 2 };

struct Gemm {
  const __half* a;  // image of x
  const __half* b;  // image of w
  const int* a_exponents;
  const int* b_exponents;
  const int* a_special;
  const float* x;     // [m, k]
  const float* bias;  // [n] or null
  float* out;         // [m, n]
  float* partials;    // [splits, m, n] if splits > 1
  int m, n, k, splits, activation;
};

// The sum that the infinities of a row of x add to one output, which the image left out.
static __device__ __noinline__ float infinities(const Gemm& p, int row, int column) {
  const int tiles = (p.k + K_TILE - 1) / K_TILE;
  const __half* w = p.b + (long long)(column / TILE) * tiles * (2 * PLANE) + (column % TILE) * K_TILE;
  float sum = 0.f;
  for (int k = 0; k < p.k; ++k) {
    const float v = p.x[(long long)row * p.k + k];
    if ((__float_as_uint(v) & 0x7fffffffu) != 0x7f800000u) continue;
    const __half* at = w + (long long)(k / K_TILE) * (2 * PLANE);
    const int place = swizzled(column % TILE, k % K_TILE / 8) * 8 + k % 8;
    sum += v * (__half2float(at[place]) + __half2float(at[place + PLANE]));
  }
  return sum;
}

// An output from its sum over K.
static __device__ __forceinline__ float finish(const Gemm& p, int row, int column, float sum) {
  float v = ldexpf(sum, p.a_exponents[row] + p.b_exponents[column]);
  const int special = p.a_special[row];
  if (special != 0) v += special & 2 ? __uint_as_float(0x7fc00000u) : infinities(p, row, column);
  if (p.bias != nullptr) v += p.bias[column];
  if (p.activation == RELU) return v < 0.f ? 0.f : v;
  if (p.activation == GELU) return 0.5f * v * (1.f + erff(v * 0.70710678118654752f));
  return v;
}

// Two neighbouring columns of a row.
static __device__ __forceinline__ void store_pair(const Gemm& p, int split, int row, int column, float a, float b) {
  if (row >= p.m || column >= p.n) return;
  const long long at = (long long)row * p.n + column;
  if (p.splits > 1) {
    float* to = p.partials + (long long)split * p.m * p.n + at;
    *reinterpret_cast<float2*>(to) = make_float2(a, b);
    return;
  }
  *reinterpret_cast<float2*>(p.out + at) = make_float2(finish(p, row, column, a), finish(p, row, column + 1, b));
}

// Adds the parts of a K that was cut, in order.
static __global__ void __launch_bounds__(256) split_add_parts(const Gemm p) {
  const long long size = (long long)p.m * p.n;
  const long long at = blockIdx.x * 256ll + threadIdx.x;
  if (at >= size) return;
  float sum = 0.f;
  for (int split = 0; split < p.splits; ++split) sum += p.partials[split * size + at];
  p.out[at] = finish(p, (int)(at / p.n), (int)(at % p.n), sum);
}

#if SPLIT_GEMM_WGMMA

#ifdef __CUDACC__
static __device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
static __device__ __forceinline__ void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void barrier_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Arrives on the barrier at the same place in another block of the cluster.
static __device__ __forceinline__ void barrier_arrive_at(uint64_t* barrier, int block) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(barrier)),
      "r"(block)
      : "memory");
}
static __device__ __forceinline__ bool barrier_done(uint64_t* barrier, int parity) {
  unsigned done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
// How L2 keeps what a copy reads: as usual, or first to go.
static __device__ __forceinline__ uint64_t cache_policy(bool once) {
  uint64_t policy;
  if (once) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  else asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
static __device__ __forceinline__ void copy_tile(void* to, const void* from, int bytes, uint64_t* barrier,
                                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
// Copies to the same place in every block of the cluster, and counts the bytes on the barrier there.
static __device__ __forceinline__ void copy_to_cluster(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)), "h"((uint16_t)((1 << CLUSTER) - 1))
      : "memory");
}
static __device__ __forceinline__ int cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return (int)rank;
}
static __device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
template <int COUNT> static __device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> static __device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
static __device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> static __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from moving uses of accumulators across the waits beside it.
static __device__ __forceinline__ void pin(float (&d)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// d = a · bᵀ, or d += a · bᵀ, for 64 rows of a and 128 of b, 16 values of K, by four warps.
#define EIGHT(kind, i) \
  kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3]), kind(d[i + 4]), kind(d[i + 5]), kind(d[i + 6]), kind(d[i + 7])
#define ACCUMULATORS(kind) \
  EIGHT(kind, 0), EIGHT(kind, 8), EIGHT(kind, 16), EIGHT(kind, 24), EIGHT(kind, 32), EIGHT(kind, 40), EIGHT(kind, 48), \
      EIGHT(kind, 56)
#define WGMMA(accumulate) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate ", 0;\n" \
  "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, 0, 0;\n}"
static __device__ __forceinline__ void wgmma_first(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(WGMMA("0") : ACCUMULATORS("=f") : "l"(a), "l"(b) : "memory");
}
static __device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(WGMMA("1") : ACCUMULATORS("+f") : "l"(a), "l"(b) : "memory");
}
#endif

constexpr int CONSUMERS = 256;  // two warpgroups, 64 rows of x each,
// and a warp that copies; a whole warpgroup of it where the others need its registers
constexpr int THREADS = CONSUMERS + (ROUND > 1 ? 128 : 32);
constexpr int SHARED_BYTES = 1024 + STAGES * STAGE_BYTES + 2 * STAGES * 8;
constexpr int SLICE_BYTES = 2 * PLANE_BYTES / CLUSTER;  // of x's tile, that one block of a cluster copies to all

static __device__ __forceinline__ void barrier_wait(uint64_t* barrier, int parity) {
  while (!barrier_done(barrier, parity)) {
  }
}

// A tile plane in shared memory, K-major, swizzled over a row's 128 or 64 bytes: rows in groups of 8.
static __device__ __forceinline__ uint64_t descriptor(const char* plane) {
  const uint64_t address = (shared_address(plane) & 0x3ffffu) >> 4;
  return address | 1ull << 16 | (uint64_t)(K_TILE * 16 >> 4) << 32 | (K_TILE == 64 ? 1ull : 2ull) << 62;
}

// A place in the ring of tiles, and the parity of the barriers' phase there.
struct Place {
  int slot = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
};

// Starts the products of a tile of K into `part`.
static __device__ __forceinline__ void start(float (&part)[64], const char* tiles, uint64_t* full, Place& at, int group) {
  barrier_wait(full + at.slot, at.parity);
  const char* stage = tiles + at.slot * STAGE_BYTES;
  at.advance();
  const uint64_t a_hi = descriptor(stage + group * (PLANE_BYTES / 2));
  const uint64_t a_lo = a_hi + (PLANE_BYTES >> 4);
  const uint64_t b_hi = descriptor(stage + 2 * PLANE_BYTES);
  const uint64_t b_lo = b_hi + (PLANE_BYTES >> 4);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < K_TILE / 16; ++k) {
    if (k == 0) wgmma_first(part, a_lo, b_hi);
    else wgmma(part, a_lo + 2 * k, b_hi + 2 * k);
    wgmma(part, a_hi + 2 * k, b_lo + 2 * k);
  }
#pragma unroll
  for (int k = 0; k < K_TILE / 16; ++k) wgmma(part, a_hi + 2 * k, b_hi + 2 * k);
  wgmma_commit();
}

// Tells the copying warps of the cluster that this warp has read the tile.
static __device__ __forceinline__ void release(uint64_t* empty, Place& at, int lane) {
  if (lane < CLUSTER) barrier_arrive_at(empty + at.slot, CLUSTER > 1 ? lane : 0);
  at.advance();
}

static __device__ __forceinline__ void add(float (&sum)[64], float (&part)[64]) {
  pin(part);
#pragma unroll
  for (int i = 0; i < 64; ++i) sum[i] += part[i];
}

// Blocks of a cluster have neighbouring tiles of w and the same tile of x.
static __global__ void __launch_bounds__(THREADS, 1) split_multiply(const Gemm p) {
  char* tiles = tile_memory();
  tiles += (1024 - (shared_address(tiles) & 1023u)) & 1023u;
  uint64_t* full = reinterpret_cast<uint64_t*>(tiles + STAGES * STAGE_BYTES);
  uint64_t* empty = full + STAGES;
  const int k_tiles = (p.k + K_TILE - 1) / K_TILE;
  const int first = (int)((long long)k_tiles * blockIdx.z / p.splits);
  const int last = (int)((long long)k_tiles * (blockIdx.z + 1) / p.splits);
  const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, CONSUMERS / 32 * CLUSTER);
    }
    barriers_ready();
  }
  __syncwarp();
  if (CLUSTER > 1) cluster_sync();
  else __syncthreads();
  if (warp >= CONSUMERS / 32) {
    if (ROUND > 1) fewer_registers<24>();
    if (threadIdx.x == CONSUMERS) {
      const int b_tiles = (p.n + TILE - 1) / TILE;
      const int b_tile = (int)blockIdx.y < b_tiles ? (int)blockIdx.y : b_tiles - 1;
      const int rank = CLUSTER > 1 ? cluster_rank() : 0;
      const uint64_t keep = cache_policy(false), stream = cache_policy(STREAM_WEIGHTS && gridDim.x == 1);
      const char* a = reinterpret_cast<const char*>(p.a + (long long)blockIdx.x * k_tiles * (2 * PLANE));
      const char* b = reinterpret_cast<const char*>(p.b + (long long)b_tile * k_tiles * (2 * PLANE));
      Place place;
      for (int i = first; i < last; ++i, place.advance()) {
        if (i >= first + STAGES) barrier_wait(empty + place.slot, place.parity ^ 1);
        barrier_expect(full + place.slot, STAGE_BYTES);
        char* to = tiles + place.slot * STAGE_BYTES;
        const long long at = (long long)i * (2 * PLANE_BYTES);
        const int slice = rank * SLICE_BYTES;
        if (CLUSTER > 1) copy_to_cluster(to + slice, a + at + slice, SLICE_BYTES, full + place.slot);
        else copy_tile(to, a + at, SLICE_BYTES, full + place.slot, keep);
        copy_tile(to + 2 * PLANE_BYTES, b + at, 2 * PLANE_BYTES, full + place.slot, stream);
      }
    }
  } else {
    if (ROUND > 1) more_registers<240>();
    const int group = warp / 4;
    float sum[64], part[2][64];
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[i] = 0.f;
    // Within a round one tile's products are queued while those of the tile before are added, so that the tensor cores
    // do not drain. Nothing is in flight from round to round: the assembler would serialise all products.
    Place started, released;
    int left = last - first;
    for (; left >= ROUND; left -= ROUND) {
      start(part[0], tiles, full, started, group);
#pragma unroll
      for (int i = 0; i < ROUND; ++i) {
        if (i + 1 < ROUND) {
          start(part[(i + 1) % 2], tiles, full, started, group);
          wgmma_wait<1>();
        } else {
          wgmma_wait<0>();
        }
        release(empty, released, lane);
        add(sum, part[i % 2]);
      }
    }
    for (; left > 0; --left) {
      start(part[0], tiles, full, started, group);
      wgmma_wait<0>();
      release(empty, released, lane);
      add(sum, part[0]);
    }
    const int row = blockIdx.x * TILE + group * 64 + warp % 4 * 16 + lane / 4;
    const int column = blockIdx.y * TILE + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      store_pair(p, blockIdx.z, row, column + j * 8, sum[4 * j], sum[4 * j + 1]);
      store_pair(p, blockIdx.z, row + 8, column + j * 8, sum[4 * j + 2], sum[4 * j + 3]);
    }
  }
  if (CLUSTER > 1) {
    __syncwarp();
    cluster_sync();
  }
}

#else

#ifdef __CUDACC__
static __device__ __forceinline__ void copy_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
static __device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> static __device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

constexpr int THREADS = 256;  // 2 by 4 warps, each 64 rows of x by 32 of w
constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;
static_assert(CLUSTER == 1, "clusters need the bulk copy engine");

static __device__ __forceinline__ void copy_stage(char* to, const char* a, const char* b) {
#pragma unroll
  for (int i = 0; i < 2 * PLANE_BYTES / 16 / THREADS; ++i) {
    const int at = (i * THREADS + threadIdx.x) * 16;
    copy_16(to + at, a + at);
    copy_16(to + 2 * PLANE_BYTES + at, b + at);
  }
}

static __global__ void __launch_bounds__(THREADS, 1) split_multiply(const Gemm p) {
  char* tiles = tile_memory();
  const int k_tiles = (p.k + K_TILE - 1) / K_TILE;
  const int first = (int)((long long)k_tiles * blockIdx.z / p.splits);
  const int last = (int)((long long)k_tiles * (blockIdx.z + 1) / p.splits);
  const char* a = reinterpret_cast<const char*>(p.a + (long long)blockIdx.x * k_tiles * (2 * PLANE));
  const char* b = reinterpret_cast<const char*>(p.b + (long long)blockIdx.y * k_tiles * (2 * PLANE));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
  float sum[4][4][4], part[4][4][4];
#pragma unroll
  for (int i = 0; i < 64; ++i) sum[i / 16][i / 4 % 4][i % 4] = part[i / 16][i / 4 % 4][i % 4] = 0.f;
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    const long long at = (long long)(first + i) * (2 * PLANE_BYTES);
    if (first + i < last) copy_stage(tiles + i * STAGE_BYTES, a + at, b + at);
    copies_commit();
  }
  for (int tile = first; tile < last; ++tile) {
    const int turn = tile - first;
    copies_wait<STAGES - 2>();
    __syncthreads();
    const int next = tile + STAGES - 1;
    const long long at = (long long)next * (2 * PLANE_BYTES);
    if (next < last) copy_stage(tiles + (turn + STAGES - 1) % STAGES * STAGE_BYTES, a + at, b + at);
    copies_commit();
    const char* stage = tiles + turn % STAGES * STAGE_BYTES;
#pragma unroll
    for (int k = 0; k < K_TILE / 16; ++k) {
      uint32_t b_hi[2][4], b_lo[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = warp_column + j * 16 + (lane & 7) + (lane >> 4) * 8;
        const char* from = stage + 2 * PLANE_BYTES + row * (K_TILE * 2) + swizzled(row, k * 2 + (lane >> 3 & 1)) * 16;
        load_matrices(b_hi[j], from);
        load_matrices(b_lo[j], from + PLANE_BYTES);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t a_hi[4], a_lo[4];
        const int row = warp_row + i * 16 + (lane & 15);
        const char* from = stage + row * (K_TILE * 2) + swizzled(row, k * 2 + (lane >> 4)) * 16;
        load_matrices(a_hi, from);
        load_matrices(a_lo, from + PLANE_BYTES);
#pragma unroll
        for (int j = 0; j < 4; ++j) mma(part[i][j], a_lo, b_hi[j / 2][j % 2 * 2], b_hi[j / 2][j % 2 * 2 + 1]);
#pragma unroll
        for (int j = 0; j < 4; ++j) mma(part[i][j], a_hi, b_lo[j / 2][j % 2 * 2], b_lo[j / 2][j % 2 * 2 + 1]);
#pragma unroll
        for (int j = 0; j < 4; ++j) mma(part[i][j], a_hi, b_hi[j / 2][j % 2 * 2], b_hi[j / 2][j % 2 * 2 + 1]);
      }
    }
    if (turn % PROMOTE_TILES == PROMOTE_TILES - 1 || tile == last - 1) {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        sum[i / 16][i / 4 % 4][i % 4] += part[i / 16][i / 4 % 4][i % 4];
        part[i / 16][i / 4 % 4][i % 4] = 0.f;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = blockIdx.x * TILE + warp_row + i * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = blockIdx.y * TILE + warp_column + j * 8 + lane % 4 * 2;
      store_pair(p, blockIdx.z, row, column, sum[i][j][0], sum[i][j][1]);
      store_pair(p, blockIdx.z, row + 8, column, sum[i][j][2], sum[i][j][3]);
    }
  }
}

#endif

static int split(const Split& split, cudaStream_t stream) {
  Split copy = split;
  void* arguments[] = {&copy};
  const int rows = (split.rows + TILE - 1) / TILE * TILE;
  const int threads = split.columns >= 8 * SPLIT_THREADS ? SPLIT_THREADS : (split.columns / 8 + 31) / 32 * 32;
  return (int)cudaLaunchKernel(split_rows, dim3(rows), dim3(threads), arguments, 0, stream);
}

// The split form of a weight, made once: image, and exponents of its rows.
extern "C" int @PACK@(const float* w, __half* image, int* exponents, long long rows, long long columns, void* stream) {
  const Split given = {w, image, exponents, nullptr, (int)rows, (int)columns};
  return split(given, static_cast<cudaStream_t>(stream));
}

// out = activation(x · wᵀ + bias). x_rows holds the exponents of x's rows and what is special about them, padded to
// tiles of rows; partials is needed if K is cut in several splits.
extern "C" int @LINEAR@(const float* x, const __half* w_image, const int* w_exponents, const float* bias, float* out,
                        __half* x_image, int* x_rows, float* partials, long long m, long long n, long long k,
                        long long splits, long long activation, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  const int m_tiles = (int)((m + TILE - 1) / TILE), n_tiles = (int)((n + TILE - 1) / TILE);
  int* special = x_rows + m_tiles * TILE;
  const Split given = {x, x_image, x_rows, special, (int)m, (int)k};
  if (const int error = split(given, on)) return error;
  cudaError_t error = cudaFuncSetAttribute(split_multiply, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  if (error != cudaSuccess) return (int)error;
  Gemm gemm = {x_image, w_image, x_rows, w_exponents, special, x, bias, out, partials, (int)m, (int)n, (int)k,
               (int)splits, (int)activation};
  void* arguments[] = {&gemm};
  const dim3 grid(m_tiles, (n_tiles + CLUSTER - 1) / CLUSTER * CLUSTER, (int)splits);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 1;
  cluster.val.clusterDim.y = CLUSTER;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = SHARED_BYTES;
  config.stream = on;
  config.attrs = &cluster;
  config.numAttrs = CLUSTER > 1 ? 1 : 0;
  error = cudaLaunchKernelEx(&config, split_multiply, gemm);
  if (error != cudaSuccess || splits == 1) return (int)error;
  return (int)cudaLaunchKernel(split_add_parts, dim3((unsigned)((m * n + 255) / 256)), dim3(256), arguments, 0, on);
}
