"""From programs to source that compiles: CUDA for NVRTC, C++ for the ``cpu`` back end. The same body goes between a
fixed header and footer, which give it these names:

- all kinds: ``a b c`` (inputs), ``u w`` (scratch), ``y`` (output), ``R`` rows, ``C`` columns, ``n`` = R C, and the
  functions ``gelu silu sigmoid sq`` beside CUDA's own.
- elem: ``i``, the thread's first element; with 4 elements a thread ``ld(v, p)`` declares ``v[4]`` and reads it from
  buffer p, ``st(p, v)`` writes it, both with the tail in mind; ``V`` is 4.
- thread, warp, block: ``r`` the row, ``lane`` and ``W``; ``each`` loops over this worker's columns ``c``;
  ``ar br cr ur wr yr`` point at the row; ``all_sum(v)`` and ``all_max(v)`` combine the workers' values for all of them.
- tile: ``FILL(e)`` stores ``e`` (element ``at`` of a row-major matrix) in the tile; ``DRAIN(s)`` runs ``s`` for each
  element ``v`` of the transposed tile, whose place in the transposed matrix is ``to``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coder_experiment.language import Own, Program

SIGNATURE = (
    "const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ c_, "
    "float* u, float* w, float* y, int R, int C, int n"
)

_MATHS = """
QUALIFIED float sigmoid(float v) { return 1.f / (1.f + expf(-v)); }
QUALIFIED float silu(float v) { return v / (1.f + expf(-v)); }
QUALIFIED float gelu(float v) { return 0.5f * v * (1.f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v))); }
QUALIFIED float sq(float v) { return v * v; }
"""

CUDA_HEADER = (
    "#define QUALIFIED __device__ __forceinline__\n"
    + _MATHS
    + """
#define each for (int c = lane; c < C; c += W)
template <int G> __device__ __forceinline__ float group_sum(float v, float* box) {
  if (G == 1) return v;
  for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
  if (G == 32) return v;
  __syncthreads();
  if ((threadIdx.x & 31) == 0) box[threadIdx.x >> 5] = v;
  __syncthreads();
  float all = 0.f;
  for (int k = 0; k < G / 32; k++) all += box[k];
  return all;
}
template <int G> __device__ __forceinline__ float group_max(float v, float* box) {
  if (G == 1) return v;
  for (int d = 16; d; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
  if (G == 32) return v;
  __syncthreads();
  if ((threadIdx.x & 31) == 0) box[threadIdx.x >> 5] = v;
  __syncthreads();
  float all = box[0];
  for (int k = 1; k < G / 32; k++) all = fmaxf(all, box[k]);
  return all;
}
#define ROWS const float *ar = a + (long long)r * C, *br = b + (long long)r * C, *cr = c_ + (long long)r * C; \\
  float *ur = u + (long long)r * C, *wr = w + (long long)r * C, *yr = y + (long long)r * C;
#define ld(v, p) float v[4]; { const float* q_ = (p); \\
  if (i + 3 < n) { float4 f_ = *(const float4*)(q_ + i); v[0] = f_.x; v[1] = f_.y; v[2] = f_.z; v[3] = f_.w; } \\
  else for (int k_ = 0; k_ < 4; k_++) v[k_] = i + k_ < n ? q_[i + k_] : 0.f; }
#define st(p, v) { float* q_ = (p); \\
  if (i + 3 < n) *(float4*)(q_ + i) = make_float4(v[0], v[1], v[2], v[3]); \\
  else for (int k_ = 0; k_ < 4; k_++) if (i + k_ < n) q_[i + k_] = v[k_]; }
#define FILL(...) { for (int k_ = ty_; k_ < 32; k_ += 8) { int r_ = by_ * 32 + k_, d_ = bx_ * 32 + tx_; \\
  if (r_ < R && d_ < C) { int at = r_ * C + d_; tile_[k_][tx_] = (__VA_ARGS__); } } __syncthreads(); }
#define DRAIN(...) { for (int k_ = ty_; k_ < 32; k_ += 8) { int r_ = bx_ * 32 + k_, d_ = by_ * 32 + tx_; \\
  if (r_ < C && d_ < R) { int to = r_ * R + d_; float v = tile_[tx_][k_]; __VA_ARGS__; } } __syncthreads(); }
"""
)

CPU_HEADER = (
    "#include <math.h>\n#define __restrict__ __restrict\n#define QUALIFIED static inline\n"
    + _MATHS
    + """
static inline float rsqrtf(float v) { return 1.f / sqrtf(v); }
static inline float all_sum(float v) { return v; }
static inline float all_max(float v) { return v; }
struct float4 { float x, y, z, w; };
#define each for (int c = lane; c < C; c += W)
#define ROWS const float *ar = a + (long)r * C, *br = b + (long)r * C, *cr = c_ + (long)r * C; \\
  float *ur = u + (long)r * C, *wr = w + (long)r * C, *yr = y + (long)r * C;
#define ld(v, p) float v[4]; for (int k_ = 0; k_ < 4; k_++) v[k_] = i + k_ < n ? (p)[i + k_] : 0.f;
#define st(p, v) for (int k_ = 0; k_ < 4; k_++) if (i + k_ < n) (p)[i + k_] = v[k_];
#define FILL(...) for (int k_ = 0; k_ < 32; k_++) for (int tx_ = 0; tx_ < 32; tx_++) { \\
  int r_ = by_ * 32 + k_, d_ = bx_ * 32 + tx_; \\
  if (r_ < R && d_ < C) { int at = r_ * C + d_; tile_[k_][tx_] = (__VA_ARGS__); } }
#define DRAIN(...) for (int k_ = 0; k_ < 32; k_++) for (int tx_ = 0; tx_ < 32; tx_++) { \\
  int r_ = bx_ * 32 + k_, d_ = by_ * 32 + tx_; \\
  if (r_ < C && d_ < R) { int to = r_ * R + d_; float v = tile_[tx_][k_]; __VA_ARGS__; } }
"""
)

_GROUP = {"thread": "1", "warp": "32", "block": "{threads}"}


@dataclass(frozen=True)
class Launch:
    """How often a kernel is launched: blocks in x and y, threads in x and y."""

    grid: tuple[int, int]
    block: tuple[int, int]


def cuda(program: Program) -> str:
    """CUDA source with one kernel ``own_K`` for each own node, K its place among the nodes."""
    return CUDA_HEADER + "".join(
        _cuda_kernel(f"own_{at}", node) for at, node in enumerate(program.nodes) if isinstance(node, Own)
    )


def cpp(program: Program) -> str:
    """The same as C++ functions."""
    return CPU_HEADER + "".join(
        _cpp_kernel(f"own_{at}", node) for at, node in enumerate(program.nodes) if isinstance(node, Own)
    )


def launch(node: Own, rows: int, cols: int) -> Launch:
    """Blocks and threads for a matrix of ``rows`` x ``cols``."""

    def up(total: int, part: int) -> int:
        return max(1, -(-total // part))

    if node.kind == "tile":
        return Launch((up(cols, 32), up(rows, 32)), (32, 8))
    if node.kind == "elem":
        return Launch((up(rows * cols, node.threads * node.vector), 1), (node.threads, 1))
    rows_a_block = {"thread": node.threads, "warp": node.threads // 32, "block": 1}[node.kind]
    return Launch((up(rows, rows_a_block), 1), (node.threads, 1))


def _cuda_kernel(name: str, node: Own) -> str:
    threads = 256 if node.kind == "tile" else node.threads
    group = _GROUP.get(node.kind, "1").format(threads=threads)
    prologue: Mapping[str, str] = {
        "elem": f"  const int i = (blockIdx.x * {threads} + threadIdx.x) * {node.vector};\n"
        f"  const int V = {node.vector};\n"
        "  const float* c = c_;\n",
        "thread": f"  const int r = blockIdx.x * {threads} + threadIdx.x, lane = 0, W = 1;\n"
        "  if (r >= R) return;\n  ROWS\n",
        "warp": f"  const int r = blockIdx.x * {threads // 32} + threadIdx.x / 32, lane = threadIdx.x & 31, W = 32;\n"
        "  if (r >= R) return;\n  ROWS\n",
        "block": f"  const int r = blockIdx.x, lane = threadIdx.x, W = {threads};\n  ROWS\n",
        "tile": "  __shared__ float tile_[32][33]; const float* c = c_;\n"
        "  const int tx_ = threadIdx.x, ty_ = threadIdx.y, bx_ = blockIdx.x, by_ = blockIdx.y;\n",
    }
    return (
        f"\n#define all_sum(v) group_sum<{group}>(v, box_)\n#define all_max(v) group_max<{group}>(v, box_)\n"
        f'extern "C" __global__ void __launch_bounds__({threads}) {name}({SIGNATURE}) {{\n'
        f"  __shared__ float box_[32];\n{prologue[node.kind]}  {{\n#line 1\n{node.body}\n  }}\n}}\n"
        "#undef all_sum\n#undef all_max\n"
    )


def _cpp_kernel(name: str, node: Own) -> str:
    body = f"  [&]() {{\n#line 1\n{node.body}\n  }}();\n"
    loops = {
        "elem": f"  const int V = {node.vector}; const float* c = c_; (void)V;\n"
        f"  for (int i = 0; i < n; i += {node.vector}) {{\n{body}  }}\n",
        "tile": "  const float* c = c_; static float tile_[32][33];\n"
        f"  for (int by_ = 0; by_ * 32 < R; by_++) for (int bx_ = 0; bx_ * 32 < C; bx_++) {{\n{body}  }}\n",
    }
    rows = f"  for (int r = 0; r < R; r++) {{ const int lane = 0, W = 1; ROWS\n{body}  }}\n"
    return f'\nextern "C" void {name}({SIGNATURE}) {{\n{loops.get(node.kind, rows)}}}\n'
