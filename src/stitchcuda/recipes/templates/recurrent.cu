// One persistent kernel for GRU and LSTM chains: weights stay in registers for the whole sequence, hidden
// states travel through L2. A chain is one direction of a layer, or one layer of a stack that runs as a wavefront.
//
// A CTA owns UNITS hidden units of one chain for BATCH_TILE batch rows. The output buffer is its own exchange
// medium: it is filled with a sentinel (all bits set, a NaN that no store below ever writes) and readers poll the
// values they need until none is the sentinel. Every value carries its own validity, so relaxed 4-byte accesses
// suffice and no flag, fence or grid barrier lies on the path from one step to the next. A reader that waits longer
// than TIMEOUT_NS goes on with the sentinel: the outputs are then NaN, and the kernel ends.
//
// With CLUSTER the CTAs of one chain and batch tile are a thread block cluster. They send their states into each
// other's shared memory, double-buffered, and wait on a transaction barrier there; the output is only written. A
// buffer is free again when its reader's own state has arrived everywhere: a CTA sends the state of step s after it
// has read that of step s - 1, and nobody sends step s + 1 without it.
#include <cuda_runtime.h>

#include <cstdint>

// @CONFIG@

constexpr int COLUMNS = HIDDEN / 32;                                        // of a weight row, per lane
constexpr int VECTOR = COLUMNS % 4 == 0 ? 4 : COLUMNS % 2 == 0 ? 2 : 1;     // floats per shared-memory access
constexpr int BATCH_TILES = (BATCH + BATCH_TILE - 1) / BATCH_TILE;
constexpr int SLICES = (HIDDEN + UNITS - 1) / UNITS;
constexpr int ROWS = GATES * UNITS;                                         // weight rows of one CTA
constexpr int ROLE_WARPS = (ROWS + ROWS_PER_WARP - 1) / ROWS_PER_WARP;
constexpr int ROLE_THREADS = ROLE_WARPS * 32;
constexpr int THREADS = INPUT_INSIDE ? 2 * ROLE_THREADS : ROLE_THREADS;
constexpr int STATE = BATCH_TILE * HIDDEN;                                  // floats of one hidden state tile
constexpr int PARTIALS = ROLE_WARPS * ROWS_PER_WARP * BATCH_TILE;
constexpr int BARRIER_FLOATS = CLUSTER ? 4 : 0;                             // two transaction barriers
constexpr int SHARED_FLOATS = BARRIER_FLOATS + (INPUT_INSIDE ? 2 * STATE + 3 * PARTIALS : (CLUSTER ? 2 : 1) * STATE + PARTIALS);
constexpr int PAIRS = (UNITS * BATCH_TILE + ROLE_THREADS - 1) / ROLE_THREADS;  // (unit, batch row) pairs per thread
constexpr int FETCHES = (STATE / 4 + ROLE_THREADS - 1) / ROLE_THREADS;
constexpr int CTAS = CHAINS * BATCH_TILES * SLICES;
constexpr unsigned SENTINEL = 0xffffffffu;
constexpr long long TIMEOUT_NS = 2000000000ll;
static_assert(!CLUSTER || (!INPUT_INSIDE && UNITS % 4 == 0 && SLICES <= 8), "unsupported cluster");
static_assert(HIDDEN % 32 == 0 && BATCH_TILE % BATCH_STEP == 0, "unsupported tile");

// Barriers: one per role, and a full/empty pair per slot of the input projection's double buffer.
enum Barrier { RECURRENT_READY = 1, INPUT_READY = 2, SLOT_FULL = 3, SLOT_EMPTY = 5 };

#ifdef __CUDACC__
static __device__ __forceinline__ float4 load_relaxed(const float* address) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(address)
               : "memory");
  return v;
}
static __device__ __forceinline__ void store_relaxed(float* address, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}
static __device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ __forceinline__ long long nanoseconds() {
  long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
static __device__ __forceinline__ float* shared_memory() {
  extern __shared__ float4 dynamic_shared[];
  return reinterpret_cast<float*>(dynamic_shared);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define WITH_CLUSTERS(...) __VA_ARGS__
#else
#define WITH_CLUSTERS(...) __trap()
#endif
[[maybe_unused]] static __device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
static __device__ __forceinline__ void cluster_sync() {
  WITH_CLUSTERS(asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory"));
}
static __device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  WITH_CLUSTERS(asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                             : "memory"));
}
static __device__ __forceinline__ void barriers_ready() {
  WITH_CLUSTERS(asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"));
}
static __device__ __forceinline__ void barrier_expect(uint64_t* barrier, int bytes) {
  WITH_CLUSTERS(asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                             : "memory"));
}
static __device__ __forceinline__ bool barrier_done(uint64_t* barrier, int parity) {
  unsigned done = 0;
  WITH_CLUSTERS(asm volatile("{\n\t.reg .pred p;\n\t"
                             "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
                             "selp.u32 %0, 1, 0, p;\n\t}"
                             : "=r"(done)
                             : "r"(shared_address(barrier)), "r"(parity)
                             : "memory"));
  return done != 0;
}
// Stores to the same place in CTA ``rank`` of the cluster, and counts the bytes on its barrier.
static __device__ __forceinline__ void send(float* place, int rank, const float4& v, uint64_t* barrier) {
  WITH_CLUSTERS(asm volatile(
      "{\n\t.reg .b32 to, on;\n\t"
      "mapa.shared::cluster.u32 to, %0, %6;\n\t"
      "mapa.shared::cluster.u32 on, %1, %6;\n\t"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%2, %3, %4, %5}, [on];\n\t}" ::"r"(
          shared_address(place)),
      "r"(shared_address(barrier)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(rank)
      : "memory"));
}
#endif

struct Chain {
  const float* x;      // chain 0 of a stack, every chain otherwise: W_ih·x_t + b_ih, [step, batch, GATES * HIDDEN]
  const float* w_ih;   // INPUT_INSIDE, chains after the first: [GATES * HIDDEN, HIDDEN]
  const float* b_ih;   // or null
  const float* w_hh;   // [GATES * HIDDEN, HIDDEN]
  const float* b_hh;   // or null
  const float* h0;     // [BATCH, HIDDEN], or null for zeros
  const float* c0;
  float* out;          // [step, batch, ...] by OUT_STEP and OUT_ROW
  float* h_n;          // [BATCH, HIDDEN]
  float* c_n;
};

struct Chains {
  Chain of[CHAINS];
};

struct Watch {
  int spins = 0;
  long long start = 0;
  bool expired = false;

  __device__ __forceinline__ bool wait_is_over() {
    if (expired) return true;
    if (++spins < 8192) return false;
    if (spins % 32 == 0) {
      const long long now = nanoseconds();
      if (start == 0) start = now;
      expired = now - start > TIMEOUT_NS;
    }
    __nanosleep(100);
    return expired;
  }
  __device__ __forceinline__ void restart() {
    spins = 0;
    start = 0;
  }
};

static __device__ __forceinline__ bool arrived(const float4& v) {
  return __float_as_uint(v.x) != SENTINEL && __float_as_uint(v.y) != SENTINEL && __float_as_uint(v.z) != SENTINEL &&
         __float_as_uint(v.w) != SENTINEL;
}

// Copies rows [0, rows) of a published state (OUT_ROW floats apart) to shared memory as [BATCH_TILE, HIDDEN].
static __device__ __forceinline__ void fetch(const float* source, int rows, float* destination, int thread, Watch& watch) {
  float4 v[FETCHES];
#pragma unroll
  for (int j = 0; j < FETCHES; ++j) {
    const int i = thread + j * ROLE_THREADS;
    const bool wanted = i < rows * (HIDDEN / 4);
    v[j] = wanted ? load_relaxed(source + (i / (HIDDEN / 4)) * (long long)OUT_ROW + (i % (HIDDEN / 4)) * 4)
                  : make_float4(0.f, 0.f, 0.f, 0.f);
  }
  watch.restart();
  for (;;) {
    bool ready = true;
#pragma unroll
    for (int j = 0; j < FETCHES; ++j) ready = ready && arrived(v[j]);
    if (ready || watch.wait_is_over()) break;
#pragma unroll
    for (int j = 0; j < FETCHES; ++j) {
      const int i = thread + j * ROLE_THREADS;
      if (!arrived(v[j])) v[j] = load_relaxed(source + (i / (HIDDEN / 4)) * (long long)OUT_ROW + (i % (HIDDEN / 4)) * 4);
    }
  }
#pragma unroll
  for (int j = 0; j < FETCHES; ++j) {
    const int i = thread + j * ROLE_THREADS;
    if (i < STATE / 4) reinterpret_cast<float4*>(destination)[i] = v[j];
  }
}

constexpr int odd_part(int n) { return n % 2 ? n : odd_part(n / 2); }
constexpr int ODD_ROWS = odd_part(ROWS_PER_WARP);
constexpr int EVEN_ROWS = ROWS_PER_WARP / ODD_ROWS;  // a power of two
constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }
constexpr int SWAP_STAGES = log2_of(EVEN_ROWS) < 5 ? log2_of(EVEN_ROWS) : 5;
__host__ __device__ constexpr int halved(int n, int times) { return times == 0 ? n : halved((n + 1) / 2, times - 1); }
constexpr int SPLIT_VALUES = (ROWS_PER_WARP >> SWAP_STAGES) * BATCH_STEP;  // left after the stages without selection
constexpr int SPLIT_STAGES = 5 - SWAP_STAGES;
constexpr int FINAL_VALUES = halved(SPLIT_VALUES, SPLIT_STAGES);

// The order in which a lane holds its rows: in each halving stage a lane keeps the first half of its values and
// sends the second, so lanes that are to keep the upper rows hold them first.
static __device__ __forceinline__ int row_swap(int lane) {
  int swap = 0;
  for (int stage = 0; stage < SWAP_STAGES; ++stage)
    if (lane & (16 >> stage)) swap |= EVEN_ROWS >> (stage + 1);
  return swap;
}

// Weights of one warp: ROWS_PER_WARP rows of the CTA's slice, COLUMNS columns a lane.
static __device__ __forceinline__ void load_weights(const float* matrix, int warp, int lane, int unit0,
                                             float (&w)[ROWS_PER_WARP][COLUMNS]) {
  const int swap = row_swap(lane);
#pragma unroll
  for (int i = 0; i < ROWS_PER_WARP; ++i) {
    const int row = warp * ROWS_PER_WARP + ((i / ODD_ROWS) ^ swap) * ODD_ROWS + i % ODD_ROWS;
    const int unit = unit0 + row % UNITS;
    const bool real = row < ROWS && unit < HIDDEN;
    const float* source = matrix + ((long long)(row / UNITS) * HIDDEN + unit) * HIDDEN;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) w[i][c] = real ? __ldg(source + ((c / VECTOR) * 32 + lane) * VECTOR + c % VECTOR) : 0.f;
  }
}

// Where this lane's reduced values belong in the partials [row, BATCH_TILE]; negative: nowhere.
static __device__ __forceinline__ void final_places(int warp, int lane, int (&place)[FINAL_VALUES]) {
#pragma unroll
  for (int f = 0; f < FINAL_VALUES; ++f) {
    int index = f;
    bool real = true;
#pragma unroll
    for (int stage = SPLIT_STAGES - 1; stage >= 0; --stage) {
      const int n = halved(SPLIT_VALUES, stage);
      if (lane & (16 >> (SWAP_STAGES + stage))) index += (n + 1) / 2;
      real = real && index < n;
    }
    const int row = warp * ROWS_PER_WARP + row_swap(lane) * ODD_ROWS + index / BATCH_STEP;
    place[f] = real ? row * BATCH_TILE + index % BATCH_STEP : -1;
  }
}

template <int N, int MASK>
struct Split {
  static __device__ __forceinline__ void run(float* v, int lane) {
    constexpr int HALF = (N + 1) / 2;
    const bool upper = lane & MASK;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const float low = v[i];
      const float high = i + HALF < N ? v[i + HALF] : 0.f;
      v[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, MASK);
    }
    Split<HALF, MASK / 2>::run(v, lane);
  }
};
template <int N>
struct Split<N, 0> {
  static __device__ __forceinline__ void run(float*, int) {}
};

// Halving stages as long as the number of rows is even: row_swap makes selections unnecessary.
template <int ROWS_LEFT, int MASK, bool EVEN = ROWS_LEFT % 2 == 0 && MASK != 0>
struct Swap {
  static __device__ __forceinline__ void run(float* v, int lane) {
    constexpr int HALF = ROWS_LEFT / 2 * BATCH_STEP;
#pragma unroll
    for (int i = 0; i < HALF; ++i) v[i] += __shfl_xor_sync(0xffffffffu, v[i + HALF], MASK);
    Swap<ROWS_LEFT / 2, MASK / 2>::run(v, lane);
  }
};
template <int ROWS_LEFT, int MASK>
struct Swap<ROWS_LEFT, MASK, false> {
  static __device__ __forceinline__ void run(float* v, int lane) { Split<ROWS_LEFT * BATCH_STEP, MASK>::run(v, lane); }
};

// partials[row, b] = sum over columns of w[row, :] * state[b, :], for the warp's rows and all rows of the batch tile.
static __device__ __forceinline__ void multiply(const float (&w)[ROWS_PER_WARP][COLUMNS], const float* state, float* partials,
                                         const int (&place)[FINAL_VALUES], int lane) {
#pragma unroll BATCH_UNROLL
  for (int b0 = 0; b0 < BATCH_TILE; b0 += BATCH_STEP) {
    float sum[ROWS_PER_WARP * BATCH_STEP];
#pragma unroll
    for (int i = 0; i < ROWS_PER_WARP * BATCH_STEP; ++i) sum[i] = 0.f;
#pragma unroll
    for (int q = 0; q < COLUMNS / VECTOR; ++q) {
#pragma unroll
      for (int b = 0; b < BATCH_STEP; ++b) {
        const float* source = state + (b0 + b) * HIDDEN + (q * 32 + lane) * VECTOR;
        float h[VECTOR];
        if (VECTOR == 4) {
          const float4 v = *reinterpret_cast<const float4*>(source);
          h[0] = v.x, h[1 % VECTOR] = v.y, h[2 % VECTOR] = v.z, h[3 % VECTOR] = v.w;
        } else if (VECTOR == 2) {
          const float2 v = *reinterpret_cast<const float2*>(source);
          h[0] = v.x, h[1 % VECTOR] = v.y;
        } else {
          h[0] = *source;
        }
#pragma unroll
        for (int i = 0; i < ROWS_PER_WARP; ++i)
#pragma unroll
          for (int e = 0; e < VECTOR; ++e) sum[i * BATCH_STEP + b] = fmaf(w[i][q * VECTOR + e], h[e], sum[i * BATCH_STEP + b]);
      }
    }
    Swap<ROWS_PER_WARP, 16>::run(sum, lane);
#pragma unroll
    for (int f = 0; f < FINAL_VALUES; ++f)
      if (place[f] >= 0) partials[place[f] + b0] = sum[f];
  }
}

static __device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// W_ih·x_t for a chain whose input is the chain before it; runs ahead of the recurrence by up to two steps.
static __device__ __forceinline__ void project_input(const Chain& chain, const float* source, int rows, int unit0, float* state,
                                              float* slots) {
  const int thread = threadIdx.x - ROLE_THREADS, warp = thread / 32, lane = thread % 32;
  float w[ROWS_PER_WARP][COLUMNS];
  load_weights(chain.w_ih, warp, lane, unit0, w);
  int place[FINAL_VALUES];
  final_places(warp, lane, place);
  Watch watch;
  for (int step = 0; step < STEPS; ++step) {
    fetch(source + step * (long long)OUT_STEP, rows, state, thread, watch);
    barrier_sync(INPUT_READY, ROLE_THREADS);
    const int slot = step % 2;
    if (step >= 2) barrier_sync(SLOT_EMPTY + slot, THREADS);
    multiply(w, state, slots + slot * PARTIALS, place, lane);
    barrier_arrive(SLOT_FULL + slot, THREADS);
    barrier_sync(INPUT_READY, ROLE_THREADS);
  }
}

static __device__ __forceinline__ void recur(const Chain& chain, bool reversed, bool input_inside, int rows, int batch0, int unit0,
                                      float* states, float* partials, const float* slots, uint64_t* transactions) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  float w[ROWS_PER_WARP][COLUMNS];
  load_weights(chain.w_hh, warp, lane, unit0, w);
  int place[FINAL_VALUES];
  final_places(warp, lane, place);

  bool mine[PAIRS];
  int unit_of[PAIRS], row_of[PAIRS];
  float h[PAIRS], c[PAIRS], bias[PAIRS][GATES], input_bias[PAIRS][GATES], next[PAIRS][GATES];
  const int first = reversed ? STEPS - 1 : 0;
#pragma unroll
  for (int k = 0; k < PAIRS; ++k) {
    const int pair = thread + k * ROLE_THREADS;
    unit_of[k] = pair % UNITS;
    row_of[k] = pair / UNITS;
    mine[k] = row_of[k] < rows && unit0 + unit_of[k] < HIDDEN;
    const int unit = unit0 + unit_of[k];
    const int cell = (batch0 + row_of[k]) * HIDDEN + unit;
    h[k] = mine[k] && chain.h0 ? chain.h0[cell] : 0.f;
    c[k] = GATES == 4 && mine[k] && chain.c0 ? chain.c0[cell] : 0.f;
#pragma unroll
    for (int g = 0; g < GATES; ++g) {
      bias[k][g] = mine[k] && chain.b_hh ? chain.b_hh[g * HIDDEN + unit] : 0.f;
      input_bias[k][g] = mine[k] && input_inside && chain.b_ih ? chain.b_ih[g * HIDDEN + unit] : 0.f;
      next[k][g] = mine[k] && !input_inside
                       ? __ldg(chain.x + first * (long long)X_STEP + (batch0 + row_of[k]) * (long long)X_ROW + g * HIDDEN + unit)
                       : 0.f;
    }
  }

  const int expected = rows * HIDDEN * (int)sizeof(float);
  if (CLUSTER) {
    for (int i = thread; i < STATE; i += ROLE_THREADS) states[STATE + i] = 0.f;  // for rows that nobody sends
    if (thread == 0) {
      barrier_init(transactions, 1);
      barrier_init(transactions + 1, 1);
      barriers_ready();
      barrier_expect(transactions, expected);
      barrier_expect(transactions + 1, expected);
    }
    cluster_sync();
  }

  Watch watch;
  for (int step = 0; step < STEPS; ++step) {
    const int t = reversed ? STEPS - 1 - step : step;
    float* state = CLUSTER ? states + step % 2 * STATE : states;
    float x[PAIRS][GATES];
#pragma unroll
    for (int k = 0; k < PAIRS; ++k) {
#pragma unroll
      for (int g = 0; g < GATES; ++g) {
        x[k][g] = next[k][g];
        if (mine[k] && !input_inside && step + 1 < STEPS) {
          const int after = reversed ? t - 1 : t + 1;
          next[k][g] = __ldg(chain.x + after * (long long)X_STEP + (batch0 + row_of[k]) * (long long)X_ROW + g * HIDDEN + unit0 +
                             unit_of[k]);
        }
      }
    }
    if (step == 0) {
      for (int i = thread; i < STATE; i += ROLE_THREADS)
        state[i] = chain.h0 && i / HIDDEN < rows ? chain.h0[(batch0 + i / HIDDEN) * HIDDEN + i % HIDDEN] : 0.f;
    } else if (CLUSTER) {
      // Barrier ``step % 2`` completes for the steps of its parity in turn, beginning with step 1 or 2.
      watch.restart();
      while (!barrier_done(transactions + step % 2, (step - 1) / 2 % 2) && !watch.wait_is_over()) {
      }
      if (thread == 0 && step + 2 < STEPS) barrier_expect(transactions + step % 2, expected);
    } else {
      const int before = reversed ? t + 1 : t - 1;
      fetch(chain.out + before * (long long)OUT_STEP + batch0 * (long long)OUT_ROW, rows, state, thread, watch);
    }
    if (!CLUSTER || step == 0) barrier_sync(RECURRENT_READY, ROLE_THREADS);
    multiply(w, state, partials, place, lane);
    barrier_sync(RECURRENT_READY, ROLE_THREADS);
    const float* projected = slots + (step % 2) * PARTIALS;
    if (input_inside) barrier_sync(SLOT_FULL + step % 2, THREADS);
#pragma unroll
    for (int k = 0; k < PAIRS; ++k) {
      // With CLUSTER, all lanes of a warp go along to exchange their values.
      if (CLUSTER ? (thread & ~31) + k * ROLE_THREADS >= UNITS * BATCH_TILE : !mine[k]) continue;
      const int here = mine[k] ? row_of[k] : 0;
      float a[GATES];
#pragma unroll
      for (int g = 0; g < GATES; ++g) {
        const int cell = (g * UNITS + unit_of[k]) * BATCH_TILE + here;
        a[g] = partials[cell] + bias[k][g];
        if (input_inside) x[k][g] = projected[cell] + input_bias[k][g];
      }
      if (GATES == 3) {
        const float reset = sigmoid(x[k][0] + a[0]);
        const float update = sigmoid(x[k][1] + a[1]);
        const float fresh = tanhf(x[k][2] + reset * a[2]);
        h[k] = (h[k] - fresh) * update + fresh;
      } else {
        const float in = sigmoid(x[k][0] + a[0]);
        const float forget = sigmoid(x[k][1] + a[1]);
        const float cell = tanhf(x[k][2] + a[2]);
        const float out = sigmoid(x[k][GATES - 1] + a[GATES - 1]);
        c[k] = forget * c[k] + in * cell;
        h[k] = out * tanhf(c[k]);
      }
      if (CLUSTER) {
        if (watch.expired) h[k] = __uint_as_float(0x7fffffffu);
        float4 v;
        v.x = __shfl_sync(0xffffffffu, h[k], lane & ~3);
        v.y = __shfl_sync(0xffffffffu, h[k], (lane & ~3) + 1);
        v.z = __shfl_sync(0xffffffffu, h[k], (lane & ~3) + 2);
        v.w = __shfl_sync(0xffffffffu, h[k], (lane & ~3) + 3);
        if (!mine[k]) continue;
        float* to = states + (step + 1) % 2 * STATE + row_of[k] * HIDDEN + unit0 + (unit_of[k] & ~3);
        if (step + 1 < STEPS)
          for (int rank = lane % 4; rank < SLICES; rank += 4) send(to, rank, v, transactions + (step + 1) % 2);
        chain.out[t * (long long)OUT_STEP + (batch0 + row_of[k]) * (long long)OUT_ROW + unit0 + unit_of[k]] = h[k];
        continue;
      }
      const float value = __float_as_uint(h[k]) == SENTINEL ? __uint_as_float(0x7fffffffu) : h[k];
      store_relaxed(chain.out + t * (long long)OUT_STEP + (batch0 + row_of[k]) * (long long)OUT_ROW + unit0 + unit_of[k], value);
    }
    if (input_inside && step + 2 < STEPS) barrier_arrive(SLOT_EMPTY + step % 2, THREADS);
  }
#pragma unroll
  for (int k = 0; k < PAIRS; ++k) {
    if (!mine[k]) continue;
    const int cell = (batch0 + row_of[k]) * HIDDEN + unit0 + unit_of[k];
    chain.h_n[cell] = h[k];
    if (GATES == 4) chain.c_n[cell] = c[k];
  }
  if (CLUSTER) {  // nobody leaves while its shared memory may still be written
    __syncwarp();
    cluster_sync();
  }
}

static __global__ void __launch_bounds__(THREADS, 1) recurrent_chains(const Chains chains) {
  const int block = CLUSTER ? blockIdx.y : blockIdx.x;
  const int slice = block % SLICES;  // the rank in a cluster
  const int tile = block / SLICES % BATCH_TILES;
  const int index = block / (SLICES * BATCH_TILES);
  const Chain& chain = chains.of[index];
  const int batch0 = tile * BATCH_TILE;
  const int rows = BATCH - batch0 < BATCH_TILE ? BATCH - batch0 : BATCH_TILE;
  const bool input_inside = INPUT_INSIDE && index > 0;
  uint64_t* transactions = reinterpret_cast<uint64_t*>(shared_memory());
  float* state = shared_memory() + BARRIER_FLOATS;
  float* partials = state + (CLUSTER ? 2 : 1) * STATE;
  float* input_state = partials + PARTIALS;
  float* slots = input_state + STATE;
  if (threadIdx.x < ROLE_THREADS) {
    recur(chain, BIDIRECTIONAL && index % 2 == 1, input_inside, rows, batch0, slice * UNITS, state, partials, slots, transactions);
  } else if (INPUT_INSIDE && input_inside) {
    const float* source = chains.of[index > 0 ? index - 1 : 0].out + batch0 * (long long)OUT_ROW;
    project_input(chain, source, rows, slice * UNITS, input_state, slots);
  }
}

// Without clusters every CTA must be resident at once, which the cooperative launch checks; clusters are independent.
static int launch(const Chains& chains, cudaStream_t stream) {
  const int bytes = SHARED_FLOATS * (int)sizeof(float);
  cudaError_t error = cudaFuncSetAttribute(recurrent_chains, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return (int)error;
  if (CLUSTER) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = attribute.val.clusterDim.z = 1;
    attribute.val.clusterDim.y = SLICES;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1, CTAS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return (int)cudaLaunchKernelEx(&config, recurrent_chains, chains);
  }
  Chains copy = chains;
  void* arguments[] = {&copy};
  return (int)cudaLaunchCooperativeKernel(recurrent_chains, dim3(CTAS), dim3(THREADS), arguments, (size_t)bytes, stream);
}

// @LAUNCHER@
