// out = a · b in float32 accuracy on the tensor cores' float16 pipe, for two operands that both change at every call.
//
// As in the linear layer's kernel, each row of a and each column of b is scaled by a power of two so that its largest
// value lies in [2^14, 2^15), and split into hi + lo, both float16; hi·hi + hi·lo + lo·hi is summed in float32. Two
// passes over memory make the images: `largest_values` finds the magnitudes, `split_tiles` writes the tiles, those
// first that were read last; where K is short, `split_whole` keeps rows in registers and reads them once. Both operands are [batches, rows, columns] here, columns being summed over, and contiguous
// along either rows or columns.
//
// Tiles of zeros are noted, and a product runs over the part of K between the first and the last tile where neither
// operand is zero. Rows with an infinity or NaN are zeros in the image; `finish` computes their outputs plainly.
// @HEAD@

constexpr int PASS_THREADS = SPLIT_THREADS / 2;
constexpr int PASS_WARPS = PASS_THREADS / 32;
constexpr int MOST_CHUNKS = 64, LEAST_CHUNK = 512;
constexpr int PLAIN = 0x7fffffff;  // in place of the exponent of a row that is not finite

struct Operand {
  const float* x;
  long long batch_step, row_step, column_step;  // elements; row_step or column_step is 1
  __half* image;                                // [batches, row tiles, column tiles, 2, TILE, K_TILE]
  int* exponents;                               // [batches, rows]: x = image * 2^exponent, or PLAIN
  unsigned* parts;  // [batches, chunks, rows]: bits of the largest magnitude in a chunk of columns
  int* occupied;    // [batches, row tiles, column tiles]: 0 where a tile is all zeros
  int batches, rows, columns, chunks, chunk;
  int vector;  // 16-byte loads are aligned
  int whole;   // rows are short enough for `split_whole`
};

static __host__ __device__ __forceinline__ int pieces(int size, int piece) { return (size + piece - 1) / piece; }

// A magnitude's bits: they order as magnitudes do, infinities and NaN last.
static __device__ __forceinline__ unsigned noted(float value) { return __float_as_uint(value) & 0x7fffffffu; }
static __device__ __forceinline__ unsigned both(unsigned a, unsigned b) { return a > b ? a : b; }
static __device__ __forceinline__ unsigned noted(const float4& v) {
  return both(both(noted(v.x), noted(v.y)), both(noted(v.z), noted(v.w)));
}

// Blocks of `largest_values` for an operand; consecutive blocks read neighbouring memory.
static __host__ __device__ __forceinline__ long long largest_blocks(const Operand& p) {
  if (p.whole) return 0;
  return (long long)p.batches * p.chunks * pieces(p.rows, p.column_step == 1 ? PASS_WARPS : TILE);
}

// A warp for a row, or for every eighth column of 128 rows.
static __device__ __forceinline__ void largest_of(const Operand& p, long long block, unsigned (*shared)[TILE]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (p.column_step == 1) {
    const int groups = pieces(p.rows, PASS_WARPS);
    const int chunk = (int)(block % p.chunks), batch = (int)(block / p.chunks / groups);
    const int row = (int)(block / p.chunks % groups) * PASS_WARPS + warp;
    if (row >= p.rows) return;
    const float* x = p.x + batch * p.batch_step + row * p.row_step;
    const int end = p.columns < (chunk + 1) * p.chunk ? p.columns : (chunk + 1) * p.chunk;
    unsigned largest = 0;
    if (p.vector && p.columns % 4 == 0) {
#pragma unroll 4
      for (int c = chunk * p.chunk + lane * 4; c < end; c += 128)
        largest = both(largest, noted(*reinterpret_cast<const float4*>(x + c)));
    } else {
#pragma unroll 4
      for (int c = chunk * p.chunk + lane; c < end; c += 32) largest = both(largest, noted(x[c]));
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
      largest = both(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    if (lane == 0) p.parts[((long long)batch * p.chunks + chunk) * p.rows + row] = largest;
    return;
  }
  const int groups = pieces(p.rows, TILE);
  const int row = (int)(block % groups) * TILE + lane * 4;
  const int chunk = (int)(block / groups % p.chunks), batch = (int)(block / groups / p.chunks);
  const float* x = p.x + batch * p.batch_step + row;
  const int end = p.columns < (chunk + 1) * p.chunk ? p.columns : (chunk + 1) * p.chunk;
  unsigned largest[4] = {0, 0, 0, 0};
  if (p.vector && row + 4 <= p.rows) {
#pragma unroll 8
    for (int c = chunk * p.chunk + warp; c < end; c += PASS_WARPS) {
      const float4 v = *reinterpret_cast<const float4*>(x + c * p.column_step);
      largest[0] = both(largest[0], noted(v.x)), largest[1] = both(largest[1], noted(v.y));
      largest[2] = both(largest[2], noted(v.z)), largest[3] = both(largest[3], noted(v.w));
    }
  } else {
    for (int i = 0; i < 4 && row + i < p.rows; ++i)
      for (int c = chunk * p.chunk + warp; c < end; c += PASS_WARPS)
        largest[i] = both(largest[i], noted(x[c * p.column_step + i]));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) shared[warp][lane * 4 + i] = largest[i];
  __syncthreads();
  const int mine = (int)(block % groups) * TILE + (int)threadIdx.x;
  if (threadIdx.x >= TILE || mine >= p.rows) return;
  unsigned all = 0;
#pragma unroll
  for (int i = 0; i < PASS_WARPS; ++i) all = both(all, shared[i][threadIdx.x]);
  p.parts[((long long)batch * p.chunks + chunk) * p.rows + mine] = all;
}

static __global__ void __launch_bounds__(PASS_THREADS) largest_values(const Operand a, const Operand b) {
  __shared__ unsigned shared[PASS_WARPS][TILE];
  const long long block = blockIdx.x, first = largest_blocks(a);
  if (block < first) largest_of(a, block, shared);
  else largest_of(b, block - first, shared);
}

// The exponent that brings a row whose `parts` joined to `largest` into float16's range.
static __device__ __forceinline__ int exponent_of(unsigned largest) {
  if (largest >= 0x7f800000u) return PLAIN;
  const int biased = (int)(largest >> 23);
  return largest == 0 ? 0 : (biased == 0 ? 1 : biased) - 127 - 14;
}

// Scales eight neighbours along K, splits them, and stores 16 bytes of hi and of lo.
static __device__ __forceinline__ void store_split(const float (&values)[8], int exponent, __half* to) {
  const int half_way = exponent == PLAIN ? 0 : -exponent / 2;
  const float scale = exponent == PLAIN ? 0.f : __uint_as_float((unsigned)(127 + half_way) << 23);
  const float rest = exponent == PLAIN ? 0.f : __uint_as_float((unsigned)(127 - exponent - half_way) << 23);
  __half hi[8], lo[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float v = exponent == PLAIN ? 0.f : values[i] * scale * rest;
    hi[i] = __float2half_rn(v);
    lo[i] = __float2half_rn(v - __half2float(hi[i]));
  }
  *reinterpret_cast<uint4*>(to) =
      make_uint4(packed(hi[0], hi[1]), packed(hi[2], hi[3]), packed(hi[4], hi[5]), packed(hi[6], hi[7]));
  *reinterpret_cast<uint4*>(to + PLANE) =
      make_uint4(packed(lo[0], lo[1]), packed(lo[2], lo[3]), packed(lo[4], lo[5]), packed(lo[6], lo[7]));
}

static __host__ __device__ __forceinline__ long long image_tiles(const Operand& p) {
  return (long long)p.batches * pieces(p.rows, TILE) * pieces(p.columns, K_TILE);
}
static __host__ __device__ __forceinline__ long long split_blocks(const Operand& p) {
  return p.whole ? 0 : image_tiles(p);
}

constexpr int STEPS = TILE * CHUNKS / PASS_THREADS;

// The i-th piece of a tile that a thread moves, eight values along K. Where those are neighbours in memory a warp reads
// some rows at a time; else 32 rows, and a thread's pieces are neighbours so that they fill sectors.
static __device__ __forceinline__ int piece_row(bool along, int i) {
  return along ? (i * PASS_THREADS + (int)threadIdx.x) / CHUNKS : (int)threadIdx.x % TILE;
}
static __device__ __forceinline__ int piece_chunk(bool along, int i) {
  return along ? (int)threadIdx.x % CHUNKS : (int)threadIdx.x / TILE * STEPS + i;
}

// A thread's pieces, zeros beyond the operand. WHOLE tiles lie inside it and, along K, aligned.
template <bool WHOLE>
static __device__ __forceinline__ void load_pieces(const Operand& p, const float* x, bool along, int first_row,
                                                   int first_column, float (&values)[STEPS][8]) {
#pragma unroll
  for (int i = 0; i < STEPS; ++i) {
    const int row = first_row + piece_row(along, i), column = first_column + piece_chunk(along, i) * 8;
    const float* from = x + row * p.row_step + column * p.column_step;
    if (WHOLE && along) {
      const float4 v = *reinterpret_cast<const float4*>(from), w = *reinterpret_cast<const float4*>(from + 4);
      values[i][0] = v.x, values[i][1] = v.y, values[i][2] = v.z, values[i][3] = v.w;
      values[i][4] = w.x, values[i][5] = w.y, values[i][6] = w.z, values[i][7] = w.w;
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const bool inside = WHOLE || (row < p.rows && column + j < p.columns);
        values[i][j] = inside ? from[j * p.column_step] : 0.f;
      }
    }
  }
}

// One tile of an operand.
static __device__ __forceinline__ void split_of(const Operand& p, long long block, int* exponents, int* any) {
  const int row_tiles = pieces(p.rows, TILE), tiles = pieces(p.columns, K_TILE);
  const bool along = p.column_step == 1;
  const int tile = (int)(along ? block % tiles : block / row_tiles % tiles);
  const int row_tile = (int)(along ? block / tiles % row_tiles : block % row_tiles);
  const int batch = (int)(block / ((long long)tiles * row_tiles));
  const int thread = (int)threadIdx.x;
  const float* x = p.x + batch * p.batch_step;
  const int first_row = row_tile * TILE, first_column = tile * K_TILE;
  const bool inside = first_row + TILE <= p.rows && first_column + K_TILE <= p.columns;
  float values[STEPS][8];
  if (inside && (p.vector || !along)) load_pieces<true>(p, x, along, first_row, first_column, values);
  else load_pieces<false>(p, x, along, first_row, first_column, values);
  if (thread < TILE) {
    const int row = row_tile * TILE + thread;
    unsigned largest = 0;
    if (row < p.rows) {
      const unsigned* parts = p.parts + (long long)batch * p.chunks * p.rows + row;
#pragma unroll 4
      for (int i = 0; i < p.chunks; ++i) largest = both(largest, parts[(long long)i * p.rows]);
    }
    const int exponent = exponent_of(largest);
    exponents[thread] = exponent;
    if (tile == 0 && row < p.rows) p.exponents[(long long)batch * p.rows + row] = exponent;
  }
  if (thread == 0) *any = 0;
  __syncthreads();
  const long long place = ((long long)batch * row_tiles + row_tile) * tiles + tile;
  __half* image = p.image + place * (2 * PLANE);
  unsigned nonzero = 0;
#pragma unroll
  for (int i = 0; i < STEPS; ++i) {
    const int row = piece_row(along, i);
#pragma unroll
    for (int j = 0; j < 8; ++j) nonzero |= __float_as_uint(values[i][j]) << 1;
    store_split(values[i], exponents[row], image + row * K_TILE + swizzled(row, piece_chunk(along, i)) * 8);
  }
  if (nonzero != 0) *any = 1;
  __syncthreads();
  if (thread == 0) p.occupied[place] = *any;
}

// In the reverse order of `largest_values`: what was read last is in L2 still.
static __global__ void __launch_bounds__(PASS_THREADS) split_tiles(const Operand a, const Operand b) {
  __shared__ int exponents[TILE];
  __shared__ int any;
  const long long first = split_blocks(a), block = first + split_blocks(b) - 1 - blockIdx.x;
  if (block < first) split_of(a, block, exponents, &any);
  else split_of(b, block - first, exponents, &any);
}

constexpr int WHOLE_THREADS = 512, WHOLE_ROWS = 16;
constexpr int WHOLE_COLUMNS = WHOLE_THREADS / WHOLE_ROWS * 32;  // 32 values a thread

static __host__ __device__ __forceinline__ long long whole_blocks(const Operand& p) {
  return p.whole ? (long long)p.batches * pieces(p.rows, TILE) * (TILE / WHOLE_ROWS) : 0;
}

// Some rows of an operand, all of K at once. `occupied` is zero before.
static __device__ __forceinline__ void whole_of(const Operand& p, long long block, unsigned (*shared)[WHOLE_ROWS]) {
  const int groups = pieces(p.rows, TILE) * (TILE / WHOLE_ROWS), tiles = pieces(p.columns, K_TILE);
  const int thread = (int)threadIdx.x, lane = thread % 32;
  const bool along = p.column_step == 1;
  const int batch = (int)(block / groups);
  const int row = (int)(block % groups) * WHOLE_ROWS + (along ? thread / 32 : thread % WHOLE_ROWS);
  // A warp's lanes have neighbouring pieces of a row, or 16 rows and four neighbouring pieces each.
  const int first = along ? lane : thread / WHOLE_ROWS * 4, step = along ? 32 : 1;
  const float* x = p.x + batch * p.batch_step + row * p.row_step;
  float values[4][8];
  if (along && p.vector && p.columns % 8 == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = (first + i * step) * 8;
      float4 v = make_float4(0.f, 0.f, 0.f, 0.f), w = v;
      if (row < p.rows && column < p.columns) {
        v = *reinterpret_cast<const float4*>(x + column);
        w = *reinterpret_cast<const float4*>(x + column + 4);
      }
      values[i][0] = v.x, values[i][1] = v.y, values[i][2] = v.z, values[i][3] = v.w;
      values[i][4] = w.x, values[i][5] = w.y, values[i][6] = w.z, values[i][7] = w.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int column = (first + i * step) * 8 + j;
        values[i][j] = row < p.rows && column < p.columns ? x[column * p.column_step] : 0.f;
      }
    }
  }
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) largest = both(largest, noted(values[i / 8][i % 8]));
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, largest, offset);
    // Across rows, only lanes that are 16 apart have the same one.
    if (along || offset == WHOLE_ROWS) largest = both(largest, other);
  }
  if (!along) {
    if (lane < WHOLE_ROWS) shared[thread / 32][lane] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WHOLE_THREADS / 32; ++i) largest = both(largest, shared[i][thread % WHOLE_ROWS]);
  }
  const int exponent = exponent_of(largest);
  if (row < p.rows && first == 0) p.exponents[(long long)batch * p.rows + row] = exponent;
  const long long row_tile = (long long)batch * pieces(p.rows, TILE) + row / TILE;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int chunk = first + i * step;
    const long long place = row_tile * tiles + chunk / CHUNKS;
    if (chunk >= tiles * CHUNKS) continue;
    unsigned nonzero = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) nonzero |= __float_as_uint(values[i][j]) << 1;
    if (nonzero != 0) p.occupied[place] = 1;
    __half* to = p.image + place * (2 * PLANE) + row % TILE * K_TILE;
    store_split(values[i], exponent, to + swizzled(row % TILE, chunk % CHUNKS) * 8);
  }
}

static __global__ void __launch_bounds__(WHOLE_THREADS, SPLIT_GEMM_WGMMA ? 2 : 1) split_whole(const Operand a, const Operand b) {
  __shared__ unsigned shared[WHOLE_THREADS / 32][WHOLE_ROWS];
  const long long block = blockIdx.x, first = whole_blocks(a);
  if (block < first) whole_of(a, block, shared);
  else whole_of(b, block - first, shared);
}

enum Kept { ALL = 0, LOWER = 1, UPPER = 2 };

struct Gemm {
  const __half* a;  // image of a: rows of it
  const __half* b;  // image of b: columns of it
  const int* a_exponents;
  const int* b_exponents;
  const int* a_occupied;
  const int* b_occupied;
  const float* a_values;
  const float* b_values;
  long long a_batch_step, a_row_step, a_k_step, b_batch_step, b_column_step, b_k_step;
  float* out;       // [batches, m, n]
  float* partials;  // [splits, batches, m, n] if splits > 1
  int batches, m, n, k, splits;
  int kept, diagonal;  // LOWER keeps columns up to row + diagonal, UPPER those from there on; others are zero
  bool a_shared, b_shared;  // one matrix for all batches
};

// What a block computes: an output tile over a range of K's tiles.
struct Work {
  long long a_tile, b_tile;  // places in the images
  int batch, split, row, column, first, last;
};

static __device__ __forceinline__ Work work_of(const Gemm& p, int k_tiles) {
  Work work;
  work.batch = (int)blockIdx.z / p.splits;
  work.split = (int)blockIdx.z % p.splits;
  const int m_tiles = (int)gridDim.x, n_tiles = pieces(p.n, TILE);
  int m_tile = (int)blockIdx.x, n_tile = (int)blockIdx.y;
  // Of triangular operands the longest products come first.
  if (p.kept == LOWER) m_tile = m_tiles - 1 - m_tile;
  if (p.kept == UPPER) n_tile = ((int)gridDim.y / CLUSTER - 1 - n_tile / CLUSTER) * CLUSTER + n_tile % CLUSTER;
  // A cluster shares the tiles of a, so all of it runs over the same range.
  const int n_first = n_tile / CLUSTER * CLUSTER;
  work.row = m_tile * TILE;
  work.column = n_tile * TILE;
  work.first = (int)((long long)k_tiles * work.split / p.splits);
  work.last = (int)((long long)k_tiles * (work.split + 1) / p.splits);
  if (p.kept == LOWER && n_first * TILE > work.row + TILE - 1 + p.diagonal) work.last = work.first;
  if (p.kept == UPPER && (n_first + CLUSTER) * TILE - 1 < work.row + p.diagonal) work.last = work.first;
  const long long b_first = p.b_shared ? 0 : (long long)work.batch * n_tiles;
  work.a_tile = (p.a_shared ? 0 : (long long)work.batch * m_tiles) + m_tile;
  work.b_tile = b_first + (n_tile < n_tiles ? n_tile : n_tiles - 1);
  int low = work.last, high = work.first;
  for (int i = work.first + (int)threadIdx.x % 32; i < work.last; i += 32) {
    const int left = p.a_occupied[work.a_tile * k_tiles + i];
    int right = 0;
#pragma unroll
    for (int j = 0; j < CLUSTER; ++j) {
      const int other = n_first + j < n_tiles ? n_first + j : n_tiles - 1;
      right |= p.b_occupied[(b_first + other) * k_tiles + i];
    }
    if (left == 0 || right == 0) continue;
    low = i < low ? i : low;
    high = i + 1;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const int lower = __shfl_xor_sync(0xffffffffu, low, offset), higher = __shfl_xor_sync(0xffffffffu, high, offset);
    low = lower < low ? lower : low;
    high = higher > high ? higher : high;
  }
  work.first = low;
  work.last = high > low ? high : low;
  return work;
}

// An output whose row of a, or column of b, is not finite.
static __device__ __noinline__ float plain(const Gemm& p, int batch, int row, int column) {
  const float* a = p.a_values + batch * p.a_batch_step + row * p.a_row_step;
  const float* b = p.b_values + batch * p.b_batch_step + column * p.b_column_step;
  float sum = 0.f;
  for (int k = 0; k < p.k; ++k) sum = fmaf(a[k * p.a_k_step], b[k * p.b_k_step], sum);
  return sum;
}

// An output from its sum over K.
static __device__ __forceinline__ float finish(const Gemm& p, int batch, int row, int column, float sum) {
  if (p.kept == LOWER && column > row + p.diagonal) return 0.f;
  if (p.kept == UPPER && column < row + p.diagonal) return 0.f;
  const int a = p.a_exponents[(p.a_shared ? 0 : (long long)batch * p.m) + row];
  const int b = p.b_exponents[(p.b_shared ? 0 : (long long)batch * p.n) + column];
  if (a == PLAIN || b == PLAIN) return plain(p, batch, row, column);
  return ldexpf(sum, a + b);
}

// Two neighbouring columns of a row.
static __device__ __forceinline__ void store_pair(const Gemm& p, const Work& work, int row, int column, float a,
                                                  float b) {
  if (row >= p.m || column >= p.n) return;
  const long long at = ((long long)work.batch * p.m + row) * p.n + column;
  const bool second = column + 1 < p.n;
  float* to = p.out + at;
  if (p.splits > 1) {
    to = p.partials + (long long)work.split * p.batches * p.m * p.n + at;
  } else {
    a = finish(p, work.batch, row, column, a);
    if (second) b = finish(p, work.batch, row, column + 1, b);
  }
  if (p.n % 2 == 0) {
    *reinterpret_cast<float2*>(to) = make_float2(a, b);
  } else {
    to[0] = a;
    if (second) to[1] = b;
  }
}

// Adds the parts of a K that was cut, in order.
static __global__ void __launch_bounds__(256) split_add_parts(const __grid_constant__ Gemm p) {
  const long long size = (long long)p.batches * p.m * p.n;
  const long long at = blockIdx.x * 256ll + threadIdx.x;
  if (at >= size) return;
  float sum = 0.f;
  for (int split = 0; split < p.splits; ++split) sum += p.partials[split * size + at];
  const long long row = at / p.n;
  p.out[at] = finish(p, (int)(row / p.m), (int)(row % p.m), (int)(at % p.n), sum);
}

// @MULTIPLY@

// Room for the notes on an operand, of whose exponents, parts and occupied tiles `notes` is the next free place.
static Operand operand(const float* x, __half* image, int*& notes, long long batches, long long rows, long long columns,
                       long long batch_step, long long row_step, long long column_step) {
  Operand p = {x, batch_step, row_step, column_step, image};
  p.batches = batch_step == 0 ? 1 : (int)batches;
  p.rows = (int)rows;
  p.columns = (int)columns;
  const int least = pieces(pieces(p.columns, MOST_CHUNKS), K_TILE) * K_TILE;
  p.chunk = least > LEAST_CHUNK ? least : LEAST_CHUNK;
  p.chunks = pieces(p.columns, p.chunk);
  p.exponents = notes;
  notes += (long long)p.batches * rows;
  p.parts = reinterpret_cast<unsigned*>(notes);
  notes += (long long)p.batches * p.chunks * rows;
  p.occupied = notes;
  notes += image_tiles(p);
  const long long steps = batch_step | (column_step == 1 ? row_step : column_step);
  p.whole = p.columns <= WHOLE_COLUMNS && (column_step == 1 || p.columns > WHOLE_COLUMNS / 2);
  p.vector = steps % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
  return p;
}

// out = a · b over batches, rows m, columns n and sums k, with what lies beyond the kept triangle zero. Steps are
// elements between neighbours along each dimension of a [batch, m, k] and b [batch, k, n]; a batch step of 0 shares the
// matrix. partials is needed if K is cut in several splits.
extern "C" int @MATMUL@(const float* a, const float* b, float* out, __half* a_image, __half* b_image, int* notes,
                        float* partials, long long batches, long long m, long long n, long long k,
                        long long a_batch_step, long long a_row_step, long long a_k_step, long long b_batch_step,
                        long long b_k_step, long long b_column_step, long long splits, long long kept,
                        long long diagonal, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  Operand left = operand(a, a_image, notes, batches, m, k, a_batch_step, a_row_step, a_k_step);
  Operand right = operand(b, b_image, notes, batches, n, k, b_batch_step, b_column_step, b_k_step);
  void* operands[] = {&left, &right};
  const long long reading = largest_blocks(left) + largest_blocks(right);
  const long long writing = split_blocks(left) + split_blocks(right);
  const long long whole = whole_blocks(left) + whole_blocks(right);
  cudaError_t error = cudaSuccess;
  for (const Operand* p : {&left, &right}) {
    if (p->whole && error == cudaSuccess)
      error = cudaMemsetAsync(p->occupied, 0, (size_t)image_tiles(*p) * sizeof(int), on);
  }
  if (whole > 0 && error == cudaSuccess)
    error = cudaLaunchKernel(split_whole, dim3((unsigned)whole), dim3(WHOLE_THREADS), operands, 0, on);
  if (reading > 0 && error == cudaSuccess)
    error = cudaLaunchKernel(largest_values, dim3((unsigned)reading), dim3(PASS_THREADS), operands, 0, on);
  if (writing > 0 && error == cudaSuccess)
    error = cudaLaunchKernel(split_tiles, dim3((unsigned)writing), dim3(PASS_THREADS), operands, 0, on);
  if (error != cudaSuccess) return (int)error;
  error = cudaFuncSetAttribute(split_multiply, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  if (error != cudaSuccess) return (int)error;
  Gemm gemm = {a_image, b_image, left.exponents, right.exponents, left.occupied, right.occupied, a, b,
               a_batch_step, a_row_step, a_k_step, b_batch_step, b_column_step, b_k_step, out, partials,
               (int)batches, (int)m, (int)n, (int)k, (int)splits, (int)kept, (int)diagonal,
               a_batch_step == 0, b_batch_step == 0};
  void* arguments[] = {&gemm};
  const int n_tiles = pieces((int)n, TILE);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 1;
  cluster.val.clusterDim.y = CLUSTER;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)pieces((int)m, TILE), (unsigned)(pieces(n_tiles, CLUSTER) * CLUSTER),
                        (unsigned)(batches * splits));
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = SHARED_BYTES;
  config.stream = on;
  config.attrs = &cluster;
  config.numAttrs = CLUSTER > 1 ? 1 : 0;
  error = cudaLaunchKernelEx(&config, split_multiply, gemm);
  if (error != cudaSuccess || splits == 1) return (int)error;
  const dim3 adding((unsigned)((batches * m * n + 255) / 256));
  return (int)cudaLaunchKernel(split_add_parts, adding, dim3(256), arguments, 0, on);
}
