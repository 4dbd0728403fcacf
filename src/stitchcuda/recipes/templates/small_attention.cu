// Attention over short sequences, straight from where the projections left queries, keys and values.
//
// A block takes one head of one sample: keys and values go to shared memory once, a warp takes a query at a time.
// Lanes hold keys while scores are computed and softmax is taken, and places of the head while values are added.

// P: HEADS, QUERIES, KEYS, SIZE (of a head, a multiple of 4); THREADS; CAUSAL; strides of q, k, v and out over sample,
// head and position (Q_SAMPLE, Q_HEAD, Q_STEP, ...); Q_OFFSET, K_OFFSET, V_OFFSET; scale().
template <class P>
static __global__ void __launch_bounds__(P::THREADS)
    small_attention(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ out) {
  constexpr int PITCH = P::SIZE + 4;  // rows of neighbouring lanes in different banks
  constexpr int KEYS_PER_LANE = (P::KEYS + 31) / 32, PLACES = (P::SIZE + 31) / 32, QUADS = P::SIZE / 4;
  __shared__ float4 shared_keys[P::KEYS * PITCH / 4], shared_values[P::KEYS * QUADS], shared_queries[P::QUERIES * QUADS];
  const int sample = blockIdx.x / P::HEADS, head = blockIdx.x % P::HEADS;
  const float* queries = q + P::Q_OFFSET + sample * P::Q_SAMPLE + head * P::Q_HEAD;
  const float* keys = k + P::K_OFFSET + sample * P::K_SAMPLE + head * P::K_HEAD;
  const float* values = v + P::V_OFFSET + sample * P::V_SAMPLE + head * P::V_HEAD;
  for (int i = threadIdx.x; i < P::KEYS * QUADS; i += P::THREADS) {
    const int key = i / QUADS, place = i % QUADS;
    shared_keys[key * (PITCH / 4) + place] = __ldg(reinterpret_cast<const float4*>(keys + key * P::K_STEP) + place);
    shared_values[i] = __ldg(reinterpret_cast<const float4*>(values + key * P::V_STEP) + place);
  }
  for (int i = threadIdx.x; i < P::QUERIES * QUADS; i += P::THREADS)
    shared_queries[i] = __ldg(reinterpret_cast<const float4*>(queries + i / QUADS * P::Q_STEP) + i % QUADS);
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const float* flat_values = reinterpret_cast<const float*>(shared_values);
  for (int query = threadIdx.x / 32; query < P::QUERIES; query += P::THREADS / 32) {
    float score[KEYS_PER_LANE];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < KEYS_PER_LANE; ++i) {
      const int key = lane + 32 * i;
      const bool seen = key < P::KEYS && (!P::CAUSAL || key <= query);
      float sum = 0.f;
      if (seen) {
#pragma unroll 8
        for (int place = 0; place < QUADS; ++place) {
          const float4 a = shared_queries[query * QUADS + place], b = shared_keys[key * (PITCH / 4) + place];
          sum = fmaf(a.x, b.x, sum);
          sum = fmaf(a.y, b.y, sum);
          sum = fmaf(a.z, b.z, sum);
          sum = fmaf(a.w, b.w, sum);
        }
      }
      score[i] = seen ? sum * P::scale() : -INFINITY;
      top = score[i] > top || score[i] != score[i] ? score[i] : top;
    }
    top = own::warp_reduce(top, own::Max());
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < KEYS_PER_LANE; ++i) {
      score[i] = own::exp(score[i] - top);
      total += score[i];
    }
    total = own::warp_reduce(total, own::Sum());
    float sum[PLACES];
#pragma unroll
    for (int j = 0; j < PLACES; ++j) sum[j] = 0.f;
#pragma unroll
    for (int i = 0; i < KEYS_PER_LANE; ++i) {
      const int count = P::KEYS - 32 * i < 32 ? P::KEYS - 32 * i : 32;
#pragma unroll 8
      for (int from = 0; from < count; ++from) {
        const float weight = __shfl_sync(0xffffffffu, score[i], from);
#pragma unroll
        for (int j = 0; j < PLACES; ++j) {
          const int place = lane + 32 * j;
          if (place < P::SIZE) sum[j] = fmaf(weight, flat_values[(32 * i + from) * P::SIZE + place], sum[j]);
        }
      }
    }
    float* row = out + sample * P::O_SAMPLE + head * P::O_HEAD + query * P::O_STEP;
#pragma unroll
    for (int j = 0; j < PLACES; ++j)
      if (lane + 32 * j < P::SIZE) row[lane + 32 * j] = sum[j] / total;
  }
}

template <class P>
static int run_small_attention(const float* q, const float* k, const float* v, float* out, void* stream) {
  void* arguments[] = {&q, &k, &v, &out};
  const dim3 grid(P::SAMPLES * P::HEADS), block(P::THREADS);
  return static_cast<int>(cudaLaunchKernel(small_attention<P>, grid, block, arguments, 0, static_cast<cudaStream_t>(stream)));
}
