"""What a runner may report about itself, and how far it is believed: a trace of device or operator times, bounded and
parsed with suspicion. It can lower a verdict, never raise one. Collecting it is in ``collect``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.program.model import Program

Origin = Literal["own", "library", "framework", "copy"]
Kind = Literal["kernel", "copy", "memset", "op"]

LIMIT_ROWS = 400
LIMIT_SECONDS = 3600.0


class TraceRow(BaseModel):
    """One kernel (cuda) or operator (cpu), averaged over the traced calls."""

    model_config = ConfigDict(frozen=True)

    name: str
    seconds: float = Field(description="self time per call, seconds")
    calls: float = Field(description="times per call")
    kind: Kind
    operator: str = Field(default="", description="the ATen operator that launched it, where known")
    origin: Origin = "framework"
    disguised: bool = Field(default=False, description="an own kernel that is named as a library's are")


class Trace(BaseModel):
    """A torch.profiler pass over a few calls, in the confined runner, apart from any timing."""

    model_config = ConfigDict(frozen=True)

    subject: Literal["reference", "program"]
    target: Literal["cuda", "cpu"]
    rows: list[TraceRow] = Field(description="by falling time, at most 400")
    wall_seconds: float = Field(description="per call without the profiler, synchronised")
    busy_seconds: float = Field(description="sum over all rows, per call")
    launches: int = Field(description="kernels (cuda) or operators (cpu) per call")
    active_seconds: float = Field(default=0.0, description="in which anything ran on the device, per call; cuda only")
    source: str = "kineto"


_LIBRARY_CUDA = re.compile(
    r"cublas|cudnn|cutlass|xmma|nvjet|[a-z0-9_]*gemm|gemv|splitk|cask_|implicit_convolve|winograd|fft|"
    r"flash_(fwd|bwd)|fmha|pytorch_flash|cudnn_generated|batch_norm_.*cudnn|bn_fw|"
    r"dgrad|wgrad|conv2d_grouped|conv_depthwise|RNN_|LSTM_|nchwTonhwc|nhwcTonchw",
    re.IGNORECASE,
)
_LIBRARY_CPU = re.compile(
    r"^(aten::(mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|linear|convolution|_convolution|conv\w*|thnn_conv\w*|"
    r"mkldnn\w*|_mkldnn\w*|_scaled_dot_product\w*|lstm|gru|_thnn\w*|slow_conv\w*|fft\w*|linalg\w*)|"
    r"mkl\w*::.*|onednn.*|mkldnn.*)$"
)


_DISGUISE = re.compile(r"^(sm\d+_|ampere_|hopper_|volta_|turing_|maxwell_|nvjet|cublas|cudnn|cutlass_\d)")


def origin_of(name: str, kind: Kind, own: frozenset[str], target: str, operator: str = "") -> Origin:
    """Where a row comes from; ``own`` are the Program's kernels (cuda) or launchers (cpu) by name, and ``operator`` is
    the ATen operator that launched it.

    What an ATen operator launched is not the Program's, whatever its name, and a kernel of the Program's that is named
    as a library's are counts as the library's.
    """
    if target == "cpu":
        if name.startswith("own::") and name.removeprefix("own::") in own:
            return "own"
        if kind == "copy":
            return "copy"
        return "library" if _LIBRARY_CPU.match(name) else "framework"
    if kind in ("copy", "memset"):
        return "copy"
    function = function_name(name)
    if function in own and not operator.startswith("aten::"):
        return "library" if _DISGUISE.match(function) else "own"
    return "library" if _LIBRARY_CUDA.search(name) else "framework"


def mangled_function(symbol: str) -> str:
    """The bare function name of a kernel's symbol as a cubin has it: mangled as C++ does, or plain."""
    if not symbol.startswith("_Z"):
        return symbol
    at, last = 2, ""
    nested = symbol.startswith("N", at)
    while at < len(symbol):
        digits = re.match(r"\d+", symbol[at:])
        if digits is not None:
            size = int(digits.group())
            at += len(digits.group())
            last, at = symbol[at : at + size], at + size
            if not nested:  # what follows are template arguments and the parameters' types
                break
        elif symbol[at] in "NKVrL":
            at += 1
        elif symbol.startswith("St", at):
            at += 2
        else:
            break
    return last or symbol


def function_name(kernel: str) -> str:
    """The bare function name of a demangled kernel: no return type, namespaces, template or call arguments."""
    text = kernel.replace("(anonymous namespace)::", "")
    depth, kept = 0, []
    for character in text:
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif character == "(" and depth == 0:
            break
        elif depth == 0:
            kept.append(character)
    words = "".join(kept).strip().split()
    return words[-1].split("::")[-1] if words else ""


_SKIP = {"__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__attribute__", "__block_size__"}
_TRITON = re.compile(r"@(?:triton\.)?jit\b[^\n]*\n(?:\s*@[^\n]*\n)*\s*def\s+([A-Za-z_]\w*)")


def own_kernels(files: Mapping[str, str]) -> frozenset[str]:
    """Names of the kernels that a Program's sources define: ``__global__`` functions and Triton functions."""
    names: set[str] = set()
    for text in files.values():
        plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
        for start in re.finditer(r"__global__", plain):
            rest = plain[start.end() : start.end() + 2000]
            names.update(_first_function(rest))
        names.update(_TRITON.findall(text))
    return frozenset(names)


def own_names(program: Program, kernels: Sequence[str] = ()) -> frozenset[str]:
    """Under which names a Program's own work shows in a trace: its launchers on cpu; on cuda the kernels in its cubins
    (``kernels``, symbols of the built library) where there are any, otherwise those that its sources define."""
    manifest = program.manifest
    if manifest is not None and manifest.target == "cpu":
        return frozenset(launcher.name for launcher in manifest.launchers)
    if kernels:
        scripts = {path: text for path, text in program.files.items() if path.endswith(".py")}
        return frozenset(map(mangled_function, kernels)) | own_kernels(scripts)
    return own_kernels(program.files)


def _first_function(text: str) -> list[str]:
    for found in re.finditer(r"([A-Za-z_]\w*)\s*\(", text):
        if found.group(1) not in _SKIP:
            return [found.group(1)]
    return []


def parse_trace(
    text: str, *, subject: Literal["reference", "program"], target: Literal["cuda", "cpu"], own: frozenset[str]
) -> Trace | None:
    """A runner's report as a Trace; None when it is not one. Numbers out of range are dropped, sums recomputed."""
    try:
        raw: Any = json.loads(text)
        rows = []
        for item in raw["rows"][:LIMIT_ROWS]:
            seconds, calls = float(item["seconds"]), float(item["calls"])
            if not (0 <= seconds < LIMIT_SECONDS and 0 <= calls < 1e9):
                continue
            kind: Kind = item["kind"] if item["kind"] in ("kernel", "copy", "memset", "op") else "op"
            name = str(item["name"])[:500]
            operator = str(item["operator"])[:200]
            origin = origin_of(name, kind, own, target, operator)
            disguised = target == "cuda" and origin == "library" and function_name(name) in own
            rows.append(
                TraceRow(
                    name=name,
                    seconds=seconds,
                    calls=calls,
                    kind=kind,
                    operator=operator,
                    origin=origin,
                    disguised=disguised and not operator.startswith("aten::"),
                )
            )
        wall, launches = float(raw["wall_seconds"]), float(raw["launches"])
        active = float(raw.get("active_seconds", 0.0))
        if not (math.isfinite(active) and 0 <= active < LIMIT_SECONDS):
            active = 0.0
        if not (math.isfinite(wall) and 0 <= wall < LIMIT_SECONDS and 0 <= launches < 1e9):
            return None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    rows.sort(key=lambda row: -row.seconds)
    busy = sum(row.seconds for row in rows)
    return Trace(
        subject=subject,
        target=target,
        rows=rows,
        wall_seconds=wall,
        busy_seconds=busy,
        launches=round(launches),
        active_seconds=active,
    )
