// Linear layers over few rows: latency decides, so the weights are spread over as many warps as there is work for, and
// what lies around a layer joins it: LayerNorm of the rows before, activation and residual addition after.
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

// The sum over the warp in every lane.
static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
}

template <class P>
static __device__ __forceinline__ void place(int m, int n, float v, const float* bias, const float* residual, float* out) {
  v = P::finish(P::BIAS ? v + bias[n] : v);
  out[P::out_row(m) + n] = P::RESIDUAL ? residual[P::residual_row(m) + n] + v : v;
}

// P: M, N, K; COLUMNS, K_WARPS, N_WARPS, SPLITS; row(m), out_row(m), residual_row(m), normal_row(m): the places of row m
// in x, out, residual and normal; BIAS, RESIDUAL; NORM, whether x is normalised first, with GAMMA and BETA and eps();
// KEEPS, whether that is written to normal; finish(v), the activation.
template <class P>
static __global__ void __launch_bounds__(32 * P::K_WARPS * P::N_WARPS)
    skinny_linear(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                  const float* __restrict__ gamma, const float* __restrict__ beta, const float* __restrict__ residual,
                  float* __restrict__ out, float* __restrict__ normal, float* partials, int* arrived) {
  constexpr int VALUES = P::M * P::COLUMNS, TILE = P::N_WARPS * P::COLUMNS, WARPS = P::K_WARPS * P::N_WARPS, THREADS = 32 * WARPS;
  constexpr int STEP = P::K_WARPS * P::SPLITS * 128;
  __shared__ float sums[P::K_WARPS][P::N_WARPS][VALUES];
  __shared__ float4 rows[P::NORM ? P::M * P::K / 4 : 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k_warp = warp % P::K_WARPS, n_warp = warp / P::K_WARPS;
  const int first = (blockIdx.x * P::N_WARPS + n_warp) * P::COLUMNS;
  int k = (blockIdx.y * P::K_WARPS + k_warp) * 128 + lane * 4;
  // Weights are on their way while the rows are normalised.
  float4 next[P::COLUMNS];
  const float* weights[P::COLUMNS];
#pragma unroll
  for (int c = 0; c < P::COLUMNS; ++c) {
    const long long n = first + c < P::N ? first + c : P::N - 1;
    weights[c] = w + n * P::K;
    if (k < P::K) next[c] = __ldg(reinterpret_cast<const float4*>(weights[c] + k));
  }
  if constexpr (P::NORM) {
    constexpr int PARTS = (P::K + 127) / 128;
#pragma unroll
    for (int i = 0; i < (P::M + WARPS - 1) / WARPS; ++i) {
      const int m = warp + i * WARPS;
      if (m >= P::M) break;
      float4 v[PARTS];
      float sum = 0.f;
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        const int place = part * 128 + lane * 4;
        v[part] = place < P::K ? __ldg(reinterpret_cast<const float4*>(x + P::row(m) + place)) : make_float4(0.f, 0.f, 0.f, 0.f);
        sum += (v[part].x + v[part].y) + (v[part].z + v[part].w);
      }
      const float mean = warp_sum(sum) / P::K;
      float square = 0.f;
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        v[part] = make_float4(v[part].x - mean, v[part].y - mean, v[part].z - mean, v[part].w - mean);
        if (part * 128 + lane * 4 < P::K)
          square += (v[part].x * v[part].x + v[part].y * v[part].y) + (v[part].z * v[part].z + v[part].w * v[part].w);
      }
      const float scale = 1.f / sqrtf(warp_sum(square) / P::K + P::eps());
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        const int place = part * 128 + lane * 4;
        if (place >= P::K) continue;
        float4 y = make_float4(v[part].x * scale, v[part].y * scale, v[part].z * scale, v[part].w * scale);
        if (P::GAMMA) {
          const float4 g = __ldg(reinterpret_cast<const float4*>(gamma + place));
          y = make_float4(y.x * g.x, y.y * g.y, y.z * g.z, y.w * g.w);
        }
        if (P::BETA) {
          const float4 b = __ldg(reinterpret_cast<const float4*>(beta + place));
          y = make_float4(y.x + b.x, y.y + b.y, y.z + b.z, y.w + b.w);
        }
        rows[(m * P::K + place) / 4] = y;
        if (P::KEEPS && blockIdx.x == 0) *reinterpret_cast<float4*>(normal + P::normal_row(m) + place) = y;
      }
    }
    __syncthreads();
  }
  float v[VALUES];
#pragma unroll
  for (int i = 0; i < VALUES; ++i) v[i] = 0.f;
  for (; k < P::K; k += STEP) {
    float4 b[P::COLUMNS];
#pragma unroll
    for (int c = 0; c < P::COLUMNS; ++c) {
      b[c] = next[c];
      if (k + STEP < P::K) next[c] = __ldg(reinterpret_cast<const float4*>(weights[c] + k + STEP));
    }
#pragma unroll
    for (int m = 0; m < P::M; ++m) {
      const float4 a = P::NORM ? rows[(m * P::K + k) / 4] : __ldg(reinterpret_cast<const float4*>(x + P::row(m) + k));
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
    if (P::SPLITS == 1) place<P>(m, n, total, bias, residual, out);
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
      place<P>(m, n, total, bias, residual, out);
    }
    if (threadIdx.x == 0) arrived[blockIdx.x] = 0;
  }
}

template <class P>
static int run_skinny_linear(const float* x, const float* w, const float* bias, const float* gamma, const float* beta,
                             const float* residual, float* out, float* normal, float* partials, int* arrived, void* stream) {
  void* arguments[] = {&x, &w, &bias, &gamma, &beta, &residual, &out, &normal, &partials, &arrived};
  constexpr int TILE = P::N_WARPS * P::COLUMNS;
  const dim3 grid((P::N + TILE - 1) / TILE, P::SPLITS), block(32 * P::K_WARPS * P::N_WARPS);
  return static_cast<int>(cudaLaunchKernel(skinny_linear<P>, grid, block, arguments, 0, static_cast<cudaStream_t>(stream)));
}
