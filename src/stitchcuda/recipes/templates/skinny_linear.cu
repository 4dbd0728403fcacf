// Linear layers over few rows: latency decides, so the weights are spread over as many warps as there is work for.
//
// A warp owns COLUMNS rows of the weight and every 128th part of K that is its turn: each lane reads 16 bytes of a
// weight row, once, and multiplies them with the same place of every row of x. The 32 lanes' sums are folded in a
// fixed tree, those of K_WARPS warps and SPLITS blocks in rising order, so that results do not vary from call to call.

// Sums each of the N values over the lanes with N rather than 5 N exchanges: in each step a lane hands the half that
// it gives up to its partner. Afterwards it holds the sums of values [begin, end).
template <int N, int MASK>
static __device__ __forceinline__ void fold(float* v, int lane, int& begin, int& end) {
  constexpr int HALF = (N + 1) / 2;
  const bool upper = (lane & MASK) != 0;
#pragma unroll
  for (int i = 0; i < HALF; ++i) {
    const float high = i + HALF < N ? v[i + HALF < N ? i + HALF : 0] : 0.f;
    const float kept = upper ? high : v[i], sent = upper ? v[i] : high;
    v[i] = kept + __shfl_xor_sync(0xffffffffu, sent, MASK);
  }
  if (upper) begin += HALF;
  else if (end > begin + HALF) end = begin + HALF;
  if constexpr (MASK > 1) fold<HALF, MASK / 2>(v, lane, begin, end);
}

static __host__ __device__ constexpr int folded(int n) {
  for (int step = 0; step < 5; ++step) n = (n + 1) / 2;
  return n;
}

// P: M, N, K; COLUMNS, K_WARPS, N_WARPS, SPLITS; row(m), the place of x's row m; BIAS; finish(v), the activation.
template <class P>
static __global__ void __launch_bounds__(32 * P::K_WARPS * P::N_WARPS)
    skinny_linear(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias, float* __restrict__ out,
                  float* partials, int* arrived) {
  constexpr int VALUES = P::M * P::COLUMNS, TILE = P::N_WARPS * P::COLUMNS, THREADS = 32 * P::K_WARPS * P::N_WARPS;
  __shared__ float sums[P::K_WARPS][P::N_WARPS][VALUES];
  const int lane = threadIdx.x % 32, k_warp = threadIdx.x / 32 % P::K_WARPS, n_warp = threadIdx.x / (32 * P::K_WARPS);
  const int first = (blockIdx.x * P::N_WARPS + n_warp) * P::COLUMNS;
  float v[VALUES];
#pragma unroll
  for (int i = 0; i < VALUES; ++i) v[i] = 0.f;
  for (int k = (blockIdx.y * P::K_WARPS + k_warp) * 128 + lane * 4; k < P::K; k += P::K_WARPS * P::SPLITS * 128) {
    float4 b[P::COLUMNS];
#pragma unroll
    for (int c = 0; c < P::COLUMNS; ++c) {
      const long long n = first + c < P::N ? first + c : P::N - 1;
      b[c] = __ldg(reinterpret_cast<const float4*>(w + n * P::K + k));
    }
#pragma unroll
    for (int m = 0; m < P::M; ++m) {
      const float4 a = __ldg(reinterpret_cast<const float4*>(x + P::row(m) + k));
#pragma unroll
      for (int c = 0; c < P::COLUMNS; ++c) {
        float& sum = v[m * P::COLUMNS + c];
        sum = fmaf(a.x, b[c].x, sum);
        sum = fmaf(a.y, b[c].y, sum);
        sum = fmaf(a.z, b[c].z, sum);
        sum = fmaf(a.w, b[c].w, sum);
      }
    }
  }
  int begin = 0, end = VALUES;
  fold<VALUES, 16>(v, lane, begin, end);
#pragma unroll
  for (int i = 0; i < folded(VALUES); ++i)
    if (begin + i < end) sums[k_warp][n_warp][begin + i] = v[i];
  __syncthreads();
  for (int t = threadIdx.x; t < P::M * TILE; t += THREADS) {
    const int m = t / TILE, j = t % TILE, n = blockIdx.x * TILE + j;
    if (n >= P::N) continue;
    const int part = j / P::COLUMNS, value = m * P::COLUMNS + j % P::COLUMNS;
    float total = sums[0][part][value];
#pragma unroll
    for (int i = 1; i < P::K_WARPS; ++i) total += sums[i][part][value];
    if (P::SPLITS == 1) out[m * P::N + n] = P::finish(P::BIAS ? total + bias[n] : total);
    else partials[(blockIdx.y * P::M + m) * P::N + n] = total;
  }
  if constexpr (P::SPLITS > 1) {
    // The last block of a column tile adds what the others left.
    __shared__ int last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(arrived + blockIdx.x, 1) == P::SPLITS - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int t = threadIdx.x; t < P::M * TILE; t += THREADS) {
      const int m = t / TILE, n = blockIdx.x * TILE + t % TILE;
      if (n >= P::N) continue;
      const volatile float* part = partials + m * P::N + n;
      float total = part[0];
#pragma unroll
      for (int split = 1; split < P::SPLITS; ++split) total += part[split * P::M * P::N];
      out[m * P::N + n] = P::finish(P::BIAS ? total + bias[n] : total);
    }
    if (threadIdx.x == 0) arrived[blockIdx.x] = 0;
  }
}

template <class P>
static int run_skinny_linear(const float* x, const float* w, const float* bias, float* out, float* partials, int* arrived, void* stream) {
  void* arguments[] = {&x, &w, &bias, &out, &partials, &arrived};
  constexpr int TILE = P::N_WARPS * P::COLUMNS;
  const dim3 grid((P::N + TILE - 1) / TILE, P::SPLITS), block(32 * P::K_WARPS * P::N_WARPS);
  return static_cast<int>(cudaLaunchKernel(skinny_linear<P>, grid, block, arguments, 0, static_cast<cudaStream_t>(stream)));
}
