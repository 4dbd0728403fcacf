"""What kind of work a kernel or operator does, told from its name. Not whose it is: that is ``origin``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

Family = Literal["matrix", "recurrent", "reduction", "pointwise", "copy", "synchronise", "other"]

# Checked in this order: a fused "gemm_bias_relu" is a matrix product, "softmax_warp_forward" a reduction.
_PATTERNS: tuple[tuple[Family, re.Pattern[str]], ...] = (
    ("synchronise", re.compile(r"synchronize|aten::(item|_local_scalar_dense|is_nonzero|nonzero)\b", re.I)),
    ("copy", re.compile(r"\bmem(cpy|set)\b|aten::(copy_|_to_copy|clone|contiguous|pin_memory)\b", re.I)),
    ("recurrent", re.compile(r"lstm|gru(?!p)|\brnn|_rnn|rnn_|recurrent|elemwisecell", re.I)),
    (
        "matrix",
        re.compile(
            r"gemm|gemv|cutlass|xmma|nvjet|wgmma|winograd|conv|fprop|implicit|fmha|flash|attention"
            r"|aten::(mm|bmm|addmm|addbmm|baddbmm|matmul|linear|mv|addmv|einsum|dot)\b",
            re.I,
        ),
    ),
    (
        "reduction",
        re.compile(
            r"reduc|softmax|norm|welford|bn_fw|pool|triton_(red|per)"
            r"|aten::(sum|mean|amax|amin|max|min|argmax|argmin|var|std|var_mean|std_mean|prod|cumsum|logsumexp|topk|sort)\b",
            re.I,
        ),
    ),
    (
        "pointwise",
        re.compile(
            r"elementwise|pointwise|triton_poi|vectorized|catarray|index|gather|scatter|fill|dropout|relu|gelu|silu"
            r"|aten::(add|sub|mul|div|rsub|addc(mul|div)|pow|sqrt|rsqrt|exp|expm1|log|log1p|abs|neg|sign|clamp\w*|sigmoid"
            r"|tanh|erf|hard\w+|leaky\w+|elu|mish|softplus|where|maximum|minimum|cat|stack|embedding|masked_fill|lerp"
            r"|bitwise\w*|logical\w*|eq|ne|lt|le|gt|ge|sin|cos|square|reciprocal|floor|ceil|round|trunc|zero|ones|arange)_?\b",
            re.I,
        ),
    ),
)


@lru_cache(maxsize=8192)  # the same names come again with every profile that is read
def family(name: str, operator: str = "") -> Family:
    """The family of a kernel by its name, and by the operator that launched it where the name says nothing."""
    for text in (name, operator):
        for kind, pattern in _PATTERNS:
            if pattern.search(text):
                return kind
    return "other"
