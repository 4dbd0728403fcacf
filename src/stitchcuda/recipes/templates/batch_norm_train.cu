// Train-mode BatchNorm over NCHW float32 with its neighbours: an activation and a residual addition after it, and
// the depthwise convolution that follows it in mobile networks.
//
// Where one channel of the batch fits a thread block, a block owns a channel: values stay in registers (and shared
// memory for the convolution's window), statistics are two-pass sums over them, and one launch does everything.
// Larger tensors take separate launches: partial moments, their combination in a fixed order, and the application.
// Variances are never a difference of raw sums.
#include <cuda_runtime.h>

#ifdef __CUDACC__
static __device__ __forceinline__ float* shared_memory() {
  extern __shared__ float4 dynamic_shared[];
  return reinterpret_cast<float*>(dynamic_shared);
}
#endif

enum Activation { NONE = 0, RELU = 1, RELU6 = 2, SILU = 3, HARDSWISH = 4 };

// Comparisons are written so that NaN passes through, as in PyTorch.
static __device__ __forceinline__ float activate(float x, int kind) {
  switch (kind) {
    case RELU: return x < 0.f ? 0.f : x;
    case RELU6: return x < 0.f ? 0.f : x > 6.f ? 6.f : x;
    case SILU: return x / (1.f + expf(-x));
    case HARDSWISH: return x * (x + 3.f < 0.f ? 0.f : x + 3.f > 6.f ? 6.f : x + 3.f) * (1.f / 6.f);
    default: return x;
  }
}

struct Norm {
  const float* weight;  // or null for ones
  const float* bias;    // or null for zeros
  float* running_mean;  // or null: no statistics are kept
  float* running_var;
  long long* batches;   // num_batches_tracked, or null
  float momentum, eps;
};

struct Affine {
  float scale, shift, mean;
};

static __device__ __forceinline__ float normalised(float x, const Affine& a) { return fmaf(x - a.mean, a.scale, a.shift); }

// The transform of one channel; the thread with ``keeps`` also updates the running statistics as PyTorch does.
static __device__ __forceinline__ Affine finish(const Norm& norm, int channel, float mean, float m2, float count, bool keeps) {
  const float variance = m2 / count;
  if (keeps && norm.running_mean) {
    const float unbiased = m2 / (count - 1.f);
    norm.running_mean[channel] = (1.f - norm.momentum) * norm.running_mean[channel] + norm.momentum * mean;
    norm.running_var[channel] = (1.f - norm.momentum) * norm.running_var[channel] + norm.momentum * unbiased;
  }
  if (keeps && channel == 0 && norm.batches) ++*norm.batches;
  const float inverse = 1.f / sqrtf(variance + norm.eps);
  return {norm.weight ? norm.weight[channel] * inverse : inverse, norm.bias ? norm.bias[channel] : 0.f, mean};
}

static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
}

// The sum over the block in every thread; ``scratch`` holds 32 floats that nobody else uses between two barriers.
static __device__ __forceinline__ float block_sum(float v, float* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  v = warp_sum(v);
  if (warps == 1) return v;
  if (lane == 0) scratch[warp] = v;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.f);
}

template <int V>
static __device__ __forceinline__ void load(const float* source, float* v) {
  if (V == 4) {
    const float4 t = __ldg(reinterpret_cast<const float4*>(source));
    v[0] = t.x, v[1 % V] = t.y, v[2 % V] = t.z, v[3 % V] = t.w;
  } else if (V == 2) {
    const float2 t = __ldg(reinterpret_cast<const float2*>(source));
    v[0] = t.x, v[1 % V] = t.y;
  } else {
    v[0] = __ldg(source);
  }
}

template <int V>
static __device__ __forceinline__ void store(float* destination, const float* v) {
  if (V == 4) *reinterpret_cast<float4*>(destination) = make_float4(v[0], v[1 % V], v[2 % V], v[3 % V]);
  else if (V == 2) *reinterpret_cast<float2*>(destination) = make_float2(v[0], v[1 % V]);
  else *destination = v[0];
}

// Exact for value * divisor < 2^32; ``magic`` is reciprocal(divisor).
struct Divisor {
  unsigned by, magic;
};
static Divisor divisor(int by) { return {(unsigned)by, by > 1 ? 0xffffffffu / (unsigned)by + 1u : 0u}; }
static __device__ __forceinline__ unsigned quotient(unsigned value, const Divisor& d) {
  return d.by == 1 ? value : (unsigned)(((unsigned long long)value * d.magic) >> 32);
}

// ---- One channel a block ----

template <int V, int ITEMS>
static __global__ void __launch_bounds__(512) norm_resident(const float* __restrict__ x, const float* __restrict__ residual,
                                                     float* __restrict__ out, Norm norm, int batch, int channels, int area,
                                                     Divisor units_per_plane, int activation) {
  __shared__ float scratch[64];
  const int channel = blockIdx.x, units = batch * (int)units_per_plane.by;
  float v[ITEMS][V];
  float sum = 0.f;
  int at[ITEMS];  // elements; the recipe keeps larger tensors away
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int unit = threadIdx.x + i * blockDim.x;
    const unsigned sample = quotient(unit, units_per_plane);
    at[i] = unit < units ? ((int)sample * channels + channel) * area + (unit - (int)(sample * units_per_plane.by)) * V : -1;
#pragma unroll
    for (int e = 0; e < V; ++e) v[i][e] = 0.f;
    if (at[i] >= 0) load<V>(x + at[i], v[i]);
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
#pragma unroll
    for (int e = 0; e < V; ++e) sum += v[i][e];
  const float count = (float)(batch * area);
  const float mean = block_sum(sum, scratch) / count;
  float m2 = 0.f;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    if (at[i] >= 0)
#pragma unroll
      for (int e = 0; e < V; ++e) m2 = fmaf(v[i][e] - mean, v[i][e] - mean, m2);
  m2 = block_sum(m2, scratch + 32);
  const Affine affine = finish(norm, channel, mean, m2, count, threadIdx.x == 0);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (at[i] < 0) continue;
    float r[V];
#pragma unroll
    for (int e = 0; e < V; ++e) r[e] = 0.f;
    if (residual) load<V>(residual + at[i], r);
#pragma unroll
    for (int e = 0; e < V; ++e) v[i][e] = activate(normalised(v[i][e], affine) + r[e], activation);
    store<V>(out + at[i], v[i]);
  }
}

struct Window {
  int batch, channels, height, width, out_height, out_width;
  int strips;      // groups of four outputs in an output row
  int rows, pitch; // of the zero-padded input plane in shared memory; its first column is input column -4
  Divisor units_per_plane, units_per_row, strips_per_plane, strips_per_row;
};

// Four outputs of a row from an input plane in shared memory.
template <int K, int STRIDE>
static __device__ __forceinline__ void convolve(const float* plane, int pitch, int row, int strip, const float (&w)[K * K],
                                         float bias, float* out) {
  constexpr int LOADS = STRIDE == 1 ? 3 : 4, PAD = (K - 1) / 2;
#pragma unroll
  for (int e = 0; e < 4; ++e) out[e] = bias;
#pragma unroll
  for (int ky = 0; ky < K; ++ky) {
    const float4* source = reinterpret_cast<const float4*>(plane + (row * STRIDE + ky) * pitch + strip * 4 * STRIDE);
    float v[LOADS * 4];
#pragma unroll
    for (int j = 0; j < LOADS; ++j) {
      const float4 t = source[j];
      v[4 * j] = t.x, v[4 * j + 1] = t.y, v[4 * j + 2] = t.z, v[4 * j + 3] = t.w;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int kx = 0; kx < K; ++kx) out[e] = fmaf(v[4 - PAD + e * STRIDE + kx], w[ky * K + kx], out[e]);
  }
}

template <int K>
static __device__ __forceinline__ void load_filter(const float* filter, int channel, float (&w)[K * K]) {
#pragma unroll
  for (int i = 0; i < K * K; ++i) w[i] = __ldg(filter + channel * K * K + i);
}

// BatchNorm, activation, depthwise convolution, BatchNorm, activation.
template <int K, int STRIDE, int V, int ITEMS>
static __global__ void __launch_bounds__(512) depthwise_resident(const float* __restrict__ x, const float* __restrict__ filter,
                                                          float* __restrict__ out, Norm first, int first_activation,
                                                          Norm second, int second_activation, Window g) {
  __shared__ float scratch[128];
  float* tile = shared_memory();
  const int channel = blockIdx.x;
  for (int i = threadIdx.x; i < g.batch * g.rows * g.pitch / 4; i += blockDim.x)
    reinterpret_cast<float4*>(tile)[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  {
    const int units = g.batch * (int)g.units_per_plane.by, area = g.height * g.width;
    float v[ITEMS][V];
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int unit = threadIdx.x + i * blockDim.x;
#pragma unroll
      for (int e = 0; e < V; ++e) v[i][e] = 0.f;
      if (unit < units) {
        const unsigned sample = quotient(unit, g.units_per_plane);
        load<V>(x + ((long long)sample * g.channels + channel) * area + (unit - sample * g.units_per_plane.by) * V, v[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
#pragma unroll
      for (int e = 0; e < V; ++e) sum += v[i][e];
    const float count = (float)(g.batch * area);
    const float mean = block_sum(sum, scratch) / count;
    float m2 = 0.f;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
      if ((int)threadIdx.x + i * (int)blockDim.x < units)
#pragma unroll
        for (int e = 0; e < V; ++e) m2 = fmaf(v[i][e] - mean, v[i][e] - mean, m2);
    m2 = block_sum(m2, scratch + 32);
    const Affine affine = finish(first, channel, mean, m2, count, threadIdx.x == 0);
    __syncthreads();
    constexpr int PAD = (K - 1) / 2;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int unit = threadIdx.x + i * blockDim.x;
      if (unit >= units) continue;
      const unsigned sample = quotient(unit, g.units_per_plane);
      const unsigned within = unit - sample * g.units_per_plane.by;
      const unsigned row = quotient(within, g.units_per_row);
      if ((int)row + PAD >= g.rows) continue;
#pragma unroll
      for (int e = 0; e < V; ++e) v[i][e] = activate(normalised(v[i][e], affine), first_activation);
      store<V>(tile + (sample * g.rows + row + PAD) * g.pitch + 4 + (within - row * g.units_per_row.by) * V, v[i]);
    }
  }
  __syncthreads();
  float w[K * K];
  load_filter<K>(filter, channel, w);
  const int strips = g.batch * (int)g.strips_per_plane.by;
  float y[ITEMS][4];
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int strip = threadIdx.x + i * blockDim.x;
#pragma unroll
    for (int e = 0; e < 4; ++e) y[i][e] = 0.f;
    if (strip >= strips) continue;
    const unsigned sample = quotient(strip, g.strips_per_plane);
    const unsigned within = strip - sample * g.strips_per_plane.by;
    const unsigned row = quotient(within, g.strips_per_row);
    const unsigned column = within - row * g.strips_per_row.by;
    convolve<K, STRIDE>(tile + sample * g.rows * g.pitch, g.pitch, row, column, w, 0.f, y[i]);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if ((int)column * 4 + e < g.out_width) sum += y[i][e];
  }
  const int out_area = g.out_height * g.out_width;
  const float count = (float)(g.batch * out_area);
  const float mean = block_sum(sum, scratch + 64) / count;
  float m2 = 0.f;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int strip = threadIdx.x + i * blockDim.x;
    if (strip >= strips) continue;
    const unsigned column = (unsigned)strip - quotient(strip, g.strips_per_row) * g.strips_per_row.by;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if ((int)column * 4 + e < g.out_width) m2 = fmaf(y[i][e] - mean, y[i][e] - mean, m2);
  }
  m2 = block_sum(m2, scratch + 96);
  const Affine affine = finish(second, channel, mean, m2, count, threadIdx.x == 0);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int strip = threadIdx.x + i * blockDim.x;
    if (strip >= strips) continue;
    const unsigned sample = quotient(strip, g.strips_per_plane);
    const unsigned within = strip - sample * g.strips_per_plane.by;
    const unsigned row = quotient(within, g.strips_per_row);
    const int column = (int)(within - row * g.strips_per_row.by) * 4;
    float* destination = out + ((long long)sample * g.channels + channel) * out_area + row * g.out_width + column;
#pragma unroll
    for (int e = 0; e < 4; ++e) y[i][e] = activate(normalised(y[i][e], affine), second_activation);
    if (g.out_width % 4 == 0) {
      store<4>(destination, y[i]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (column + e < g.out_width) destination[e] = y[i][e];
    }
  }
}

// ---- Channels larger than a block ----

constexpr int CHUNK_THREADS = 256, CHUNK_ITEMS = 8;

// Position of a thread's unit within a channel spread over the batch, advanced without divisions.
struct Walk {
  long long sample;
  int within, units;
  __device__ Walk(long long unit, int units_per_plane) : units(units_per_plane) {
    sample = unit / units;
    within = (int)(unit - sample * units);
  }
  __device__ __forceinline__ void advance(int by) {
    within += by;
    while (within >= units) within -= units, ++sample;
  }
};

// partials[channel][part] = {mean, sum of squared deviations, count} of CHUNK_THREADS * CHUNK_ITEMS units.
template <int V>
static __global__ void __launch_bounds__(CHUNK_THREADS) moments(const float* __restrict__ x, float* __restrict__ partials, int batch,
                                                         int channels, int area) {
  __shared__ float scratch[64];
  const int channel = blockIdx.y, part = blockIdx.x, units = area / V;
  const long long all = (long long)batch * units;
  const long long first = (long long)part * CHUNK_THREADS * CHUNK_ITEMS;
  Walk walk(first + threadIdx.x, units);
  float v[CHUNK_ITEMS][V];
#pragma unroll
  for (int i = 0; i < CHUNK_ITEMS; ++i) {
#pragma unroll
    for (int e = 0; e < V; ++e) v[i][e] = 0.f;
    if (walk.sample < batch) load<V>(x + (walk.sample * channels + channel) * area + (long long)walk.within * V, v[i]);
    walk.advance(CHUNK_THREADS);
  }
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < CHUNK_ITEMS; ++i)
#pragma unroll
    for (int e = 0; e < V; ++e) sum += v[i][e];
  const long long left = all - first;
  const int mine = (int)(left < CHUNK_THREADS * CHUNK_ITEMS ? left : CHUNK_THREADS * CHUNK_ITEMS);
  const float count = (float)(mine * V);
  const float mean = block_sum(sum, scratch) / count;
  float m2 = 0.f;
#pragma unroll
  for (int i = 0; i < CHUNK_ITEMS; ++i)
    if ((int)threadIdx.x + i * CHUNK_THREADS < mine)
#pragma unroll
      for (int e = 0; e < V; ++e) m2 = fmaf(v[i][e] - mean, v[i][e] - mean, m2);
  m2 = block_sum(m2, scratch + 32);
  if (threadIdx.x == 0) {
    float* to = partials + ((long long)channel * gridDim.x + part) * 3;
    to[0] = mean, to[1] = m2, to[2] = count;
  }
}

// One warp a channel: combines the parts and writes {scale, shift, mean} to affine[channel].
static __global__ void combine(const float* __restrict__ partials, int parts, int channels, Norm norm, float* __restrict__ affine) {
  const int channel = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (channel >= channels) return;
  const float* from = partials + (long long)channel * parts * 3;
  float total = 0.f, weighted = 0.f;
  const float origin = from[0];
  for (int i = lane; i < parts; i += 32) {
    total += from[3 * i + 2];
    weighted = fmaf(from[3 * i] - origin, from[3 * i + 2], weighted);
  }
  total = warp_sum(total);
  const float mean = origin + warp_sum(weighted) / total;
  float m2 = 0.f;
  for (int i = lane; i < parts; i += 32) {
    const float shift = from[3 * i] - mean;
    m2 += fmaf(shift * shift, from[3 * i + 2], from[3 * i + 1]);
  }
  m2 = warp_sum(m2);
  const Affine a = finish(norm, channel, mean, m2, total, lane == 0);
  if (lane == 0) affine[3 * channel] = a.scale, affine[3 * channel + 1] = a.shift, affine[3 * channel + 2] = a.mean;
}

template <int V>
static __global__ void __launch_bounds__(CHUNK_THREADS) apply(const float* __restrict__ x, const float* __restrict__ residual,
                                                       const float* __restrict__ affine, float* __restrict__ out, int batch,
                                                       int channels, int area, int activation) {
  const int channel = blockIdx.y, units = area / V;
  const Affine a = {affine[3 * channel], affine[3 * channel + 1], affine[3 * channel + 2]};
  Walk walk((long long)blockIdx.x * CHUNK_THREADS * CHUNK_ITEMS + threadIdx.x, units);
  float v[CHUNK_ITEMS][V], r[CHUNK_ITEMS][V];
  long long at[CHUNK_ITEMS];
#pragma unroll
  for (int i = 0; i < CHUNK_ITEMS; ++i) {
    at[i] = walk.sample < batch ? (walk.sample * channels + channel) * area + (long long)walk.within * V : -1;
    walk.advance(CHUNK_THREADS);
    if (at[i] >= 0) load<V>(x + at[i], v[i]);
#pragma unroll
    for (int e = 0; e < V; ++e) r[i][e] = 0.f;
    if (at[i] >= 0 && residual) load<V>(residual + at[i], r[i]);
  }
#pragma unroll
  for (int i = 0; i < CHUNK_ITEMS; ++i) {
    if (at[i] < 0) continue;
#pragma unroll
    for (int e = 0; e < V; ++e) v[i][e] = activate(normalised(v[i][e], a) + r[i][e], activation);
    store<V>(out + at[i], v[i]);
  }
}

struct Tiles {
  int count, rows;  // output rows of a tile; the last may have fewer
};

// Depthwise convolution of GROUP-thread tiles, optionally of act(norm(x)), optionally with partial moments of its output.
template <int K, int STRIDE, int GROUP, int V, int ITEMS>
static __global__ void __launch_bounds__(GROUP < 128 ? 128 : GROUP)
    depthwise_tiles(const float* __restrict__ x, const float* __restrict__ filter, const float* __restrict__ bias,
                    const float* __restrict__ affine, int activation, float* __restrict__ out, float* __restrict__ partials,
                    Window g, Tiles tiles) {
  __shared__ float scratch[64];
  constexpr int GROUPS = GROUP < 128 ? 128 / GROUP : 1, PAD = (K - 1) / 2;
  static_assert(GROUP == 32 || GROUPS == 1, "a block holds one tile, or one a warp");
  const int group = threadIdx.x / GROUP, thread = threadIdx.x % GROUP;
  const int index = blockIdx.x * GROUPS + group;
  const bool real = index < g.batch * g.channels * tiles.count;
  const int tile = index % tiles.count, plane = index / tiles.count;
  const int channel = plane % g.channels, sample = plane / g.channels;
  const int first = tile * tiles.rows;
  const int rows = g.out_height - first < tiles.rows ? g.out_height - first : tiles.rows;
  float* window = shared_memory() + group * g.rows * g.pitch;
  if (real) {
    const float* source = x + (long long)plane * g.height * g.width;
    Affine a = {1.f, 0.f, 0.f};
    if (affine) a = {affine[3 * channel], affine[3 * channel + 1], affine[3 * channel + 2]};
    for (int r = thread; r < g.rows; r += GROUP) {
      for (int c = 0; c < 4; ++c) window[r * g.pitch + c] = 0.f;
      for (int c = 4 + g.width; c < g.pitch; ++c) window[r * g.pitch + c] = 0.f;
    }
    // Many loads at once, before the first of them is used: the latency of device memory is paid once a batch.
    constexpr int AHEAD = V == 4 ? 8 : 12;
    const Divisor by_units = g.units_per_row;
    const int units = g.rows * (int)by_units.by;
    for (int base = thread; base < units; base += GROUP * AHEAD) {
      float v[AHEAD][V];
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) {
        const int i = base + j * GROUP;
        const int r = (int)quotient(i, by_units), row = first * STRIDE - PAD + r;
#pragma unroll
        for (int e = 0; e < V; ++e) v[j][e] = 0.f;
        if (i < units && row >= 0 && row < g.height) load<V>(source + row * g.width + (i - r * (int)by_units.by) * V, v[j]);
      }
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) {
        const int i = base + j * GROUP;
        const int r = (int)quotient(i, by_units), row = first * STRIDE - PAD + r;
        if (i >= units) continue;
        if (affine && row >= 0 && row < g.height)
#pragma unroll
          for (int e = 0; e < V; ++e) v[j][e] = activate(normalised(v[j][e], a), activation);
        store<V>(window + r * g.pitch + 4 + (i - r * (int)by_units.by) * V, v[j]);
      }
    }
  }
  __syncthreads();
  float w[K * K];
  if (real) load_filter<K>(filter, channel, w);
  const float b = real && bias ? bias[channel] : 0.f;
  const int strips = real ? rows * g.strips : 0;
  float y[ITEMS][4];
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int strip = thread + i * GROUP;
    if (strip >= strips) continue;
    const int row = (int)quotient(strip, g.strips_per_row), column = (strip - row * g.strips) * 4;
    convolve<K, STRIDE>(window, g.pitch, row, column / 4, w, b, y[i]);
    float* destination = out + (long long)plane * g.out_height * g.out_width + (first + row) * g.out_width + column;
    if (g.out_width % 4 == 0) store<4>(destination, y[i]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (column + e >= g.out_width) continue;
      sum += y[i][e];
      if (g.out_width % 4 != 0) destination[e] = y[i][e];
    }
  }
  if (!partials) return;
  const float count = (float)(rows * g.out_width);
  const float mean = (GROUP == 32 ? warp_sum(sum) : block_sum(sum, scratch)) / count;
  float m2 = 0.f;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int strip = thread + i * GROUP;
    if (strip >= strips) continue;
    const int row = (int)quotient(strip, g.strips_per_row), column = (strip - row * g.strips) * 4;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (column + e < g.out_width) m2 = fmaf(y[i][e] - mean, y[i][e] - mean, m2);
  }
  m2 = GROUP == 32 ? warp_sum(m2) : block_sum(m2, scratch + 32);
  if (real && thread == 0) {
    float* to = partials + (((long long)channel * g.batch + sample) * tiles.count + tile) * 3;
    to[0] = mean, to[1] = m2, to[2] = count;
  }
}

// ---- Host side ----

static int round_up(int n, int to) { return (n + to - 1) / to * to; }
static int ceil_div(long long n, long long by) { return (int)((n + by - 1) / by); }

template <typename... P, typename... A>
static int start(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, A... given) {
  struct Launch {
    static int go(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, P... values) {
      void* arguments[] = {(void*)&values...};
      if (shared > 48 * 1024) {
        const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error != cudaSuccess) return (int)error;
      }
      return (int)cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
    }
  };
  return Launch::go(kernel, grid, block, shared, stream, given...);
}

template <int V, int ITEMS>
static int norm_by_channel(const float* x, const float* residual, float* out, Norm norm, int batch, int channels, int area,
                           int activation, int threads, cudaStream_t stream) {
  return start(norm_resident<V, ITEMS>, dim3(channels), dim3(threads), 0, stream, x, residual, out, norm, batch, channels, area,
               divisor(area / V), activation);
}

template <int V>
static int parts_of(int batch, int area) {
  return ceil_div((long long)batch * area / V, CHUNK_THREADS * CHUNK_ITEMS);
}

// Workspace: 3 * channels * (parts + 1) floats.
template <int V>
static int norm_by_chunks(const float* x, const float* residual, float* out, Norm norm, int batch, int channels, int area,
                          int activation, float* workspace, cudaStream_t stream) {
  const int parts = parts_of<V>(batch, area);
  const dim3 grid(parts, channels), block(CHUNK_THREADS);
  float* affine = workspace + 3ll * channels * parts;
  if (const int error = start(moments<V>, grid, block, 0, stream, x, workspace, batch, channels, area)) return error;
  if (const int error = start(combine, dim3(ceil_div(channels, 4)), dim3(128), 0, stream, workspace, parts, channels, norm, affine))
    return error;
  return start(apply<V>, grid, block, 0, stream, x, residual, affine, out, batch, channels, area, activation);
}

static Window window_of(int batch, int channels, int height, int width, int kernel, int stride) {
  Window g;
  const int pad = (kernel - 1) / 2;
  g.batch = batch, g.channels = channels, g.height = height, g.width = width;
  g.out_height = (height + 2 * pad - kernel) / stride + 1;
  g.out_width = (width + 2 * pad - kernel) / stride + 1;
  g.strips = ceil_div(g.out_width, 4);
  g.rows = (g.out_height - 1) * stride + kernel;
  const int read = g.strips * 4 * stride + 8, written = width + 4;
  g.pitch = round_up(read > written ? read : written, 4);
  g.strips_per_plane = divisor(g.out_height * g.strips);
  g.strips_per_row = divisor(g.strips);
  return g;
}

template <int K, int STRIDE, int V, int ITEMS>
static int depthwise_by_channel(const float* x, const float* filter, float* out, Norm first, int first_activation, Norm second,
                                int second_activation, int batch, int channels, int height, int width, int threads,
                                cudaStream_t stream) {
  Window g = window_of(batch, channels, height, width, K, STRIDE);
  g.units_per_plane = divisor(height * width / V);
  g.units_per_row = divisor(width / V);
  const size_t shared = sizeof(float) * batch * g.rows * (size_t)g.pitch;
  return start(depthwise_resident<K, STRIDE, V, ITEMS>, dim3(channels), dim3(threads), shared, stream, x, filter, out, first,
               first_activation, second, second_activation, g);
}

template <int K, int STRIDE, int GROUP, int V>
static int depthwise_by_tiles(const float* x, const float* filter, const float* bias, const float* affine, int activation,
                              float* out, float* partials, int batch, int channels, int height, int width, int tile_rows,
                              cudaStream_t stream) {
  Window g = window_of(batch, channels, height, width, K, STRIDE);
  const Tiles tiles = {ceil_div(g.out_height, tile_rows), tile_rows};
  g.rows = (tile_rows - 1) * STRIDE + K;
  g.units_per_row = divisor(width / V);
  constexpr int GROUPS = GROUP < 128 ? 128 / GROUP : 1;
  const size_t shared = sizeof(float) * GROUPS * g.rows * g.pitch;
  const dim3 grid(ceil_div((long long)batch * channels * tiles.count, GROUPS)), block(GROUP < 128 ? 128 : GROUP);
  return start(depthwise_tiles<K, STRIDE, GROUP, V, 4>, grid, block, shared, stream, x, filter, bias, affine, activation, out, partials,
               g, tiles);
}

// Workspace: 3 * channels * (input parts + output tiles + 2) floats and the convolution's output, 16-byte aligned.
template <int K, int STRIDE, int GROUP, int V, int ROW_V, int OUT_V>
static int norm_depthwise_by_chunks(const float* x, const float* filter, float* out, Norm first, int first_activation, Norm second,
                                    int second_activation, int batch, int channels, int height, int width, int tile_rows,
                                    float* workspace, cudaStream_t stream) {
  const Window g = window_of(batch, channels, height, width, K, STRIDE);
  const int area = height * width, out_area = g.out_height * g.out_width;
  const int parts = parts_of<V>(batch, area), tiles = batch * ceil_div(g.out_height, tile_rows);
  float* first_affine = workspace + 3ll * channels * parts;
  float* partials = first_affine + 3ll * channels;
  float* second_affine = partials + 3ll * channels * tiles;
  float* y = workspace + (3ll * channels * (parts + tiles + 2) + 3) / 4 * 4;
  const dim3 warps(ceil_div(channels, 4));
  if (const int error = start(moments<V>, dim3(parts, channels), dim3(CHUNK_THREADS), 0, stream, x, workspace, batch, channels, area))
    return error;
  if (const int error = start(combine, warps, dim3(128), 0, stream, workspace, parts, channels, first, first_affine)) return error;
  if (const int error = depthwise_by_tiles<K, STRIDE, GROUP, ROW_V>(x, filter, nullptr, first_affine, first_activation, y, partials, batch,
                                                             channels, height, width, tile_rows, stream))
    return error;
  if (const int error = start(combine, warps, dim3(128), 0, stream, partials, tiles, channels, second, second_affine)) return error;
  return start(apply<OUT_V>, dim3(parts_of<OUT_V>(batch, out_area), channels), dim3(CHUNK_THREADS), 0, stream, y, nullptr,
               second_affine, out, batch, channels, out_area, second_activation);
}

// @LAUNCHERS@
