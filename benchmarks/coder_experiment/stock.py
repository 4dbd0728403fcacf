"""Source of what the harness brings along: the stock kernels behind ``lib``, one for each operator and as fast as such
kernels are, and the service kernels that make inputs, find what was overwritten and fetch samples.

Inputs are a hash of a key and a place, so that the judge computes any element by itself and none is ever sent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coder_experiment.operators import BINARY, LAYOUT, OPERATORS, ROW, Operator
from coder_experiment.source import CPU_HEADER, CUDA_HEADER

MODES = ("uniform", "sparse")
"""All places random; or an eighth of them zero."""

_ROW_BODIES = {
    "softmax": """float m = -1e30f; each m = fmaxf(m, sr[c]); m = all_max(m);
  float t = 0.f; each t += expf(sr[c] - m); t = 1.f / all_sum(t); each dr[c] = expf(sr[c] - m) * t;""",
    "rmsnorm": "float t = 0.f; each t += sr[c] * sr[c]; t = rsqrtf(all_sum(t) / C + 1e-5f); each dr[c] = sr[c] * t;",
    "center": "float t = 0.f; each t += sr[c]; t = all_sum(t) / C; each dr[c] = sr[c] - t;",
    "rowsum": "float t = 0.f; each t += sr[c]; t = all_sum(t); if (lane == 0) d[r] = t;",
    "rowmax": "float m = -1e30f; each m = fmaxf(m, sr[c]); m = all_max(m); if (lane == 0) d[r] = m;",
}

_PARAMETERS = "const float* s, const float* o, float k, float* d, int R, int C"

_HASH = """
QUALIFIED float value_at(unsigned at, unsigned key, int mode, float scale) {
  unsigned h = at * 0x9E3779B1u + key;
  h ^= h >> 16; h *= 0x85EBCA6Bu; h ^= h >> 13; h *= 0xC2B2AE35u; h ^= h >> 16;
  if (mode == 1 && (h & 7u) == 0u) return 0.f;
  return ((float)(h >> 8) * (1.f / 4194304.f) - 2.f) * scale;
}
"""

_CUDA_SERVICE = """
extern "C" __global__ void generate(float* p, unsigned n, unsigned key, int mode, float scale) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    p[i] = value_at(i, key, mode, scale);
}
extern "C" __global__ void changed(const float* p, unsigned n, unsigned key, int mode, float scale, unsigned* count) {
  unsigned bad = 0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    bad += __float_as_uint(p[i]) != __float_as_uint(value_at(i, key, mode, scale));
  if (bad) atomicAdd(count, bad);
}
extern "C" __global__ void overrun(const unsigned* p, unsigned n, unsigned* count) {
  unsigned bad = 0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    bad += p[i] != 0xffffffffu;
  if (bad) atomicAdd(count, bad);
}
extern "C" __global__ void gather(const float* p, const int* places, float* out, unsigned n) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = p[places[i]];
}
"""

_CPU_SERVICE = """
static inline unsigned bits(float v) { unsigned u; __builtin_memcpy(&u, &v, 4); return u; }
extern "C" void generate(float* p, unsigned n, unsigned key, int mode, float scale) {
  for (unsigned i = 0; i < n; i++) p[i] = value_at(i, key, mode, scale);
}
extern "C" void changed(const float* p, unsigned n, unsigned key, int mode, float scale, unsigned* count) {
  for (unsigned i = 0; i < n; i++) *count += bits(p[i]) != bits(value_at(i, key, mode, scale));
}
extern "C" void overrun(const unsigned* p, unsigned n, unsigned* count) {
  for (unsigned i = 0; i < n; i++) *count += p[i] != 0xffffffffu;
}
extern "C" void gather(const float* p, const int* places, float* out, unsigned n) {
  for (unsigned i = 0; i < n; i++) out[i] = p[places[i]];
}
"""


def values(key: int, places: NDArray[np.uint32], mode: int, scale: float) -> NDArray[np.float32]:
    """The inputs at flat ``places``, as the service kernel makes them: within ``scale`` times [-2, 2); float32."""
    with np.errstate(over="ignore"):
        h = places.astype(np.uint32) * np.uint32(0x9E3779B1) + np.uint32(key)
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x85EBCA6B)
        h ^= h >> np.uint32(13)
        h *= np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
    made = ((h >> np.uint32(8)).astype(np.float32) * np.float32(1 / 4194304) - np.float32(2)) * np.float32(scale)
    if mode == 1:
        made[(h & np.uint32(7)) == 0] = 0
    return made.astype(np.float32)


def symbol(operator: str, cols: int) -> str:
    """Name of the stock kernel for rows of ``cols``: a warp for short ones, a block for long ones."""
    return f"lib_{operator}_{'warp' if cols <= 1024 else 'block'}" if operator in _ROW_BODIES else f"lib_{operator}"


def grid(operator: str, rows: int, cols: int) -> tuple[int, int, int, int]:
    """Blocks in x and y, threads in x and y."""
    kind = OPERATORS[operator].kind
    if kind == LAYOUT:
        return -(-cols // 32), -(-rows // 32), 32, 8
    if kind == ROW:
        return (-(-rows // 8) if cols <= 1024 else rows), 1, 256, 1
    return max(1, -(-rows * cols // 1024)), 1, 256, 1


def cuda() -> str:
    """CUDA source of all of it."""
    parts = [CUDA_HEADER, _HASH, _CUDA_SERVICE]
    for operator in OPERATORS.values():
        if operator.kind == ROW:
            for group, threads, row in (
                ("warp", 32, "blockIdx.x * 8 + threadIdx.x / 32"),
                ("block", 256, "blockIdx.x"),
            ):
                lane = "threadIdx.x & 31" if group == "warp" else "threadIdx.x"
                parts.append(
                    f"\n#define all_sum(v) group_sum<{threads}>(v, box_)\n"
                    f"#define all_max(v) group_max<{threads}>(v, box_)\n"
                    f'extern "C" __global__ void __launch_bounds__(256) lib_{operator.name}_{group}({_PARAMETERS}) {{\n'
                    f"  __shared__ float box_[32]; const int r = {row}, lane = {lane}, W = {threads};\n"
                    "  if (r >= R) return;\n"
                    "  const float* sr = s + (long long)r * C; float* dr = d + (long long)r * C;\n"
                    f"  {_ROW_BODIES[operator.name]}\n}}\n#undef all_sum\n#undef all_max\n"
                )
        elif operator.kind == LAYOUT:
            parts.append(
                f'extern "C" __global__ void lib_{operator.name}({_PARAMETERS}) {{\n'
                "  __shared__ float tile_[32][33]; const int tx_ = threadIdx.x, ty_ = threadIdx.y;\n"
                "  const int bx_ = blockIdx.x, by_ = blockIdx.y;\n  FILL(s[at]); DRAIN(d[to] = v);\n}\n"
            )
        else:
            parts.append(
                f'extern "C" __global__ void lib_{operator.name}({_PARAMETERS}) {{\n'
                "  const int n = R * C, i = (blockIdx.x * 256 + threadIdx.x) * 4;\n  ld(v, s);\n"
                + ("  ld(z, o);\n" if operator.kind == BINARY else "")
                + f"  for (int j = 0; j < 4; j++) v[j] = {_expression(operator, 'z[j]', 'v[j]')};\n  st(d, v);\n}}\n"
            )
    return "".join(parts)


def cpp() -> str:
    """The same as C++."""
    parts = [CPU_HEADER, _HASH, _CPU_SERVICE]
    for operator in OPERATORS.values():
        head = f'extern "C" void {{name}}({_PARAMETERS}) {{{{\n'
        if operator.kind == ROW:
            for group in ("warp", "block"):
                parts.append(
                    head.format(name=f"lib_{operator.name}_{group}")
                    + "  for (int r = 0; r < R; r++) { const int lane = 0, W = 1;\n"
                    "  const float* sr = s + (long)r * C; float* dr = d + (long)r * C;\n"
                    f"  {_ROW_BODIES[operator.name]}\n  }}\n}}\n"
                )
        elif operator.kind == LAYOUT:
            parts.append(
                head.format(name=f"lib_{operator.name}") + "  for (int r = 0; r < R; r++) for (int c = 0; c < C; c++)\n"
                "  d[(long)c * R + r] = s[(long)r * C + c];\n}\n"
            )
        else:
            parts.append(
                head.format(name=f"lib_{operator.name}")
                + f"  for (int i = 0; i < R * C; i++) d[i] = {_expression(operator, 'o[i]', 's[i]')};\n}}\n"
            )
    return "".join(parts)


def _expression(operator: Operator, buffer: str, value: str) -> str:
    return operator.code.format(v=value, o=buffer if operator.kind == BINARY else "k")
