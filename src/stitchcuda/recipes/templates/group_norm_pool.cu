// Group normalisation of which only the pooled result is kept: a block reads its group once for the statistics and
// once more, from the cache, for the windows. Windows do not overlap and lie inside.
// @CONFIG@
constexpr int AREA = HEIGHT * WIDTH;
constexpr int ROW = GROUP_CHANNELS * AREA;
constexpr int PACKS = ROW / 4;
constexpr int PLANE = AREA / 4;
constexpr int OUT_AREA = OUT_HEIGHT * OUT_WIDTH;
constexpr int OUTPUTS = GROUP_CHANNELS * OUT_AREA;
constexpr int WARPS = THREADS / 32;
constexpr int AHEAD = 4;  // packs of a thread on their way together
static_assert(AREA % 4 == 0 && POOL_WIDTH % WIDE == 0, "whole packs");

// @OPERANDS@

// The sum over the block in every thread; ``scratch`` has a float for each warp.
static __device__ __forceinline__ float block_sum(float value, float* scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) total += scratch[warp];
  return total;
}

__global__ void __launch_bounds__(THREADS) @NAME@_kernel(
    const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ beta,
    float* __restrict__ out, const Operands given) {
  __shared__ float scratch[3 * WARPS];
  const int thread = static_cast<int>(threadIdx.x);
  const int first_channel = static_cast<int>(blockIdx.x) % GROUPS * GROUP_CHANNELS;
  const float* __restrict__ mine = x + static_cast<uint64_t>(blockIdx.x) * ROW;

  // Each thread's mean and squares from distances to its first element, which lose nothing to a large mean.
  float shift = 0.f, sum = 0.f, square = 0.f, count = 0.f;
  for (int base = thread; base < PACKS; base += AHEAD * THREADS) {
    own::Pack<float, 4> pack[AHEAD];
#pragma unroll
    for (int ahead = 0; ahead < AHEAD; ++ahead) {
      const int at = base + ahead * THREADS;
      if (at < PACKS) pack[ahead] = *reinterpret_cast<const own::Pack<float, 4>*>(mine + 4 * at);
    }
#pragma unroll
    for (int ahead = 0; ahead < AHEAD; ++ahead) {
      const int at = base + ahead * THREADS;
      if (at >= PACKS) continue;
      const Before values = before_of(given, first_channel + at / PLANE);
      if (ahead == 0 && base == thread) shift = before(pack[0].at[0], values);
      count += 4.f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float d = before(pack[ahead].at[j], values) - shift;
        sum += d;
        square += d * d;
      }
    }
  }
  const float average = count > 0.f ? sum / count : 0.f;
  // Sums of a large mean are rounded by more than it is: distances to it tell how far off it is.
  const float near = block_sum(count * shift + sum, scratch) / ROW;
  const float apart = shift - near + average;
  const float off = block_sum(count * apart, scratch + WARPS) / ROW;
  const float mean = near + off;
  const float within = square - sum * average + count * apart * apart;
  const float variance = block_sum(within, scratch + 2 * WARPS) / ROW - off * off;
  const float scale = 1.f / sqrtf(variance + EPSILON);

  float* __restrict__ written = out + static_cast<uint64_t>(blockIdx.x) * OUTPUTS;
  for (int item = thread; item < OUTPUTS; item += THREADS) {
    const int channel = item / OUT_AREA, place = item % OUT_AREA;
    const int top = place / OUT_WIDTH * POOL_HEIGHT, left = place % OUT_WIDTH * POOL_WIDTH;
    const float* __restrict__ window = mine + channel * AREA + top * WIDTH + left;
    const Before values = before_of(given, first_channel + channel);
    const After more = after_of(given, first_channel + channel);
    const float weight = scale * (GAMMA ? gamma[first_channel + channel] : 1.f);
    const float offset = BETA ? beta[first_channel + channel] : 0.f;
    float pooled = LARGEST ? -INFINITY : 0.f;
#pragma unroll
    for (int row = 0; row < POOL_HEIGHT; ++row) {
#pragma unroll
      for (int column = 0; column < POOL_WIDTH; column += WIDE) {
        const auto pack = *reinterpret_cast<const own::Pack<float, WIDE>*>(window + row * WIDTH + column);
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
          const float value = after((before(pack.at[j], values) - mean) * weight + offset, more);
          if (LARGEST) pooled = value > pooled || value != value ? value : pooled;
          else pooled += value;
        }
      }
    }
    if (!LARGEST) pooled /= POOL_HEIGHT * POOL_WIDTH;
    written[item] = behind(pooled, behind_of(given, first_channel + channel));
  }
}

extern "C" int @NAME@(
    const float* x, const float* gamma, const float* beta, float* out@PARAMETERS@, void* stream) {
  const Operands given = {@NAMES@};
  @NAME@_kernel<<<@BLOCKS@, @THREADS@, 0, static_cast<cudaStream_t>(stream)>>>(x, gamma, beta, out, given);
  return static_cast<int>(cudaGetLastError());
}
