// Group normalisation of rows that stay on chip: a team of blocks shares a row, each block its part of it in registers.
// While a row is normalised the next one is on its way into shared memory, so that memory is read and written once.
// Partial statistics go through global memory; a block waits for its team only. Rows are groups of whole channels.
// @CONFIG@
constexpr int PACKS = ROW / 4;  // float4 of a row
constexpr int CHUNK = (PACKS + TEAM - 1) / TEAM;
constexpr int PLANE = AREA / 4;  // float4 of a channel
constexpr int WARPS = THREADS / 32;
constexpr int SHARES = (TEAM + 31) / 32;
static_assert(CHUNK <= ITEMS * THREADS && ROW % 4 == 0 && AREA % 4 == 0, "a block keeps its part");

#ifdef __CUDACC__
static __device__ __forceinline__ float* shared_memory() {
  extern __shared__ float4 dynamic_shared[];
  return reinterpret_cast<float*>(dynamic_shared);
}
static __device__ __forceinline__ void copy_16(void* to, const void* from) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
static __device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> static __device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#endif

// @OPERANDS@

static __device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The sum over the block in every thread; ``scratch`` has a float for each warp.
static __device__ __forceinline__ float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) total += scratch[warp];
  return total;
}

// A thread copies what it will read itself, so that no barrier is needed.
static __device__ __forceinline__ void fetch(const float* __restrict__ from, float4* to, int count) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = item * THREADS + static_cast<int>(threadIdx.x);
    if (at < count) copy_16(to + at, from + 4 * at);
  }
  copies_commit();
}

__global__ void __launch_bounds__(THREADS) @NAME@_kernel(
    const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ beta,
    float* __restrict__ out, float* partials, unsigned long long* counters, const Operands given) {
  float4* next = reinterpret_cast<float4*>(shared_memory());
  float* scratch = shared_memory() + 4 * ITEMS * THREADS;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int team = static_cast<int>(blockIdx.x) / TEAM, member = static_cast<int>(blockIdx.x) % TEAM;
  const int begin = member * CHUNK;
  const int count = PACKS - begin < CHUNK ? PACKS - begin : CHUNK;
  const float* mine = x + 4 * begin;
  fetch(mine + static_cast<int64_t>(team) * ROW, next, count);
  int parity = 0;
  for (int row = team; row < ROWS; row += TEAMS) {
    const int first_channel = row % GROUPS * GROUP_CHANNELS;
    copies_wait<0>();
    float v[ITEMS][4];
    float sum = 0.f;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int at = item * THREADS + thread;
      if (at < count) {
        const float4 pack = next[at];
        const Before values = before_of(given, first_channel + (begin + at) / PLANE);
        v[item][0] = before(pack.x, values);
        v[item][1] = before(pack.y, values);
        v[item][2] = before(pack.z, values);
        v[item][3] = before(pack.w, values);
        sum += (v[item][0] + v[item][1]) + (v[item][2] + v[item][3]);
      }
    }
    float mean = block_sum(sum, scratch) / (4.f * count);
    if (row + TEAMS < ROWS) fetch(mine + static_cast<int64_t>(row + TEAMS) * ROW, next, count);
    float square = 0.f;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (item * THREADS + thread < count) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float d = v[item][j] - mean;
          square = fmaf(d, d, square);
        }
      }
    }
    square = block_sum(square, scratch + WARPS);

    if (TEAM > 1) {
      float* slots = partials + (team * 2 + parity) * (2 * TEAM);
      parity ^= 1;
      if (thread == 0) {
        slots[2 * member] = mean;
        slots[2 * member + 1] = square;
        __threadfence();
        const unsigned long long ticket = atomicAdd(counters + team, 1ull);
        const unsigned long long target = (ticket / TEAM + 1) * TEAM;
        const volatile unsigned long long* counter = counters + team;
        while (*counter < target) __nanosleep(32);
        __threadfence();
      }
      __syncthreads();
      const volatile float* read = slots;
      float means[SHARES], weights[SHARES];
      float weighted = 0.f, within = 0.f;
#pragma unroll
      for (int share = 0; share < SHARES; ++share) {
        const int other = share * 32 + lane;
        const int left = PACKS - other * CHUNK;
        weights[share] = other < TEAM ? 4.f * (left < CHUNK ? left : CHUNK) : 0.f;
        means[share] = other < TEAM ? read[2 * other] : 0.f;
        within += other < TEAM ? read[2 * other + 1] : 0.f;
        weighted = fmaf(weights[share], means[share], weighted);
      }
      mean = warp_sum(weighted) / ROW;
#pragma unroll
      for (int share = 0; share < SHARES; ++share) {
        const float d = means[share] - mean;
        within = fmaf(weights[share] * d, d, within);
      }
      square = warp_sum(within);
    }
    const float scale = 1.f / sqrtf(square / ROW + EPSILON);

    float total = 0.f;
    float4* to = reinterpret_cast<float4*>(out + static_cast<int64_t>(row) * ROW) + begin;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int at = item * THREADS + thread;
      if (at < count) {
        const int channel = first_channel + (begin + at) / PLANE;
        const float factor = GAMMA ? gamma[channel] : 1.f, shift = BETA ? beta[channel] : 0.f;
        const After values = after_of(given, channel);
        float y[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          y[j] = after(fmaf((v[item][j] - mean) * scale, factor, shift), values);
        }
        if (SUMS) {
          total += (y[0] + y[1]) + (y[2] + y[3]);
        } else {
          to[at] = make_float4(y[0], y[1], y[2], y[3]);
        }
      }
    }
    if (SUMS) {
      total = block_sum(total, scratch + 2 * WARPS);
      if (thread == 0) out[row * TEAM + member] = total;
    }
  }
}

extern "C" int @NAME@(const float* x, const float* gamma, const float* beta, float* out, float* partials,
                      long long* counters@PARAMETERS@, void* stream) {
  Operands given = {@NAMES@};
  unsigned long long* tickets = reinterpret_cast<unsigned long long*>(counters);
  constexpr int BYTES = 16 * ITEMS * THREADS + 12 * WARPS;
  const cudaError_t allowed =
      cudaFuncSetAttribute(@NAME@_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
  if (allowed != cudaSuccess) return static_cast<int>(allowed);
  void* arguments[] = {&x, &gamma, &beta, &out, &partials, &tickets, &given};
  return static_cast<int>(cudaLaunchCooperativeKernel(
      @NAME@_kernel, dim3(TEAM * TEAMS), dim3(THREADS), arguments, static_cast<size_t>(BYTES),
      static_cast<cudaStream_t>(stream)));
}
