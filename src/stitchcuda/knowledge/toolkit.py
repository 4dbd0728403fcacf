"""What of NVIDIA's toolkit is installed here: headers and guides of CUDA, cuBLAS, cuDNN, CUTLASS, CUB and Nsight.

Found through ``nvcc``, ``CUDA_HOME``, the usual folders and this Python's ``nvidia`` and ``cutlass_library``
packages. Internal headers (``detail``, ``__*`` but for libcu++'s PTX wrappers) are left out: nobody calls them.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stitchcuda.errors import ToolMissing
from stitchcuda.knowledge.model import Refusal
from stitchcuda.knowledge.readers import HTML, MARKDOWN, MAX_BYTES, RST
from stitchcuda.knowledge.sources import Found, SourceFile

_HEADER = frozenset({".h", ".hpp", ".cuh", ".inl"})
_INTERNAL = re.compile(r"(^|/)(detail|details|internal|__(?!ptx)[^/]*|std|thrust/system|cub/agent|nv|fortran)(/|$)")
_TOP = re.compile(
    r"^(cuda|cuda_runtime|cuda_runtime_api|driver_types|device_types|library_types|vector_types|cuda_occupancy|"
    r"cuda_device_runtime_api|cuda_fp16|cuda_bf16|cuda_fp8|cuda_fp6|cuda_fp4|cuda_pipeline.*|cuda_awbarrier.*|"
    r"cooperative_groups|mma|device_functions|device_atomic_functions|sm_\d+_\w+|math_functions|cudaProfiler|"
    r"cuda_profiler_api|nvrtc|cublas\w*|cudnn\w*|cufft\w*|curand\w*|cusparse\w*|cusolver\w*|nvJitLink|"
    r"cupti_(?:activity|profiler_host|range_profiler|pmsampling|sass_metrics)|nvperf_host)\.h$"
)
_DEEP = (
    "cooperative_groups", "crt", "cccl/cub", "cccl/cuda", "cub", "cuda", "cutlass", "cute", "nvtx3", "cudnn_frontend",
)  # fmt: skip

_VERSIONS = (
    ("cuda_runtime_api.h", ("CUDART_VERSION",)),
    ("cutlass/version.h", ("CUTLASS_MAJOR", "CUTLASS_MINOR", "CUTLASS_PATCH")),
    ("cudnn_frontend_version.h", ("CUDNN_FRONTEND_MAJOR_VERSION", "CUDNN_FRONTEND_MINOR_VERSION")),
    ("cudnn_version.h", ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL")),
    ("cublas_api.h", ("CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH")),
)
"""Where each library says its version; CUDA as one number, 13000 for 13.0."""


@dataclass(frozen=True, slots=True)
class Part:
    """One installed part: a folder to read under a short name. ``guides`` holds documents, else headers."""

    name: str
    root: Path
    version: str
    guides: bool = False


def _version(include: Path) -> str:
    """The version that a library's own header names, or nothing."""
    for header, names in _VERSIONS:
        path = include / header
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        found = [re.search(rf"#\s*define\s+{name}\s+(\d+)", text) for name in names]
        numbers = [int(match.group(1)) for match in found if match]
        if len(numbers) == 1:
            return f"{numbers[0] // 1000}.{numbers[0] % 1000 // 10}"
        if numbers:
            return ".".join(map(str, numbers))
    return ""


def toolkit_roots() -> list[Path]:
    """CUDA toolkit folders on this machine, the one that nvcc belongs to first."""
    found: dict[Path, None] = {}
    named = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        path = Path(nvcc)
        real = path.resolve()
        if real.is_file() and real.read_bytes()[:2] == b"#!":
            match = re.search(r"(/\S+)/bin/nvcc", real.read_text(errors="replace"))
            real = Path(match.group(1)) / "bin" / "nvcc" if match else real
        named.append(str(real.parent.parent))
    for candidate in [*named, "/usr/local/cuda", "/opt/cuda"]:
        if candidate and (Path(candidate) / "include" / "cuda_runtime_api.h").is_file():
            found[Path(candidate).resolve()] = None
    return list(found)


def installed_parts() -> list[Part]:
    """Everything found, each folder once. Raises ``ToolMissing`` when there is nothing."""
    parts: dict[Path, Part] = {}
    for root in toolkit_roots():
        include = root / "include"
        parts[include.resolve()] = Part("cuda", include, _version(include))
        for guide in ("doc", "docs"):
            if (root / guide).is_dir():
                parts[(root / guide).resolve()] = Part("cuda-guides", root / guide, _version(include), guides=True)
    site = Path(sysconfig.get_paths()["purelib"])
    for include in sorted([*site.glob("nvidia/*/include"), *site.glob("include")]):
        if any(include.glob("cu*.h")):
            parts.setdefault(include.resolve(), Part(f"nvidia-{include.parent.name}", include, _version(include)))
    for cutlass in (site / "cutlass_library" / "source", site / "cutlass", Path("/usr/local/cutlass")):
        include = cutlass / "include"
        if (include / "cutlass" / "cutlass.h").is_file():
            parts.setdefault(include.resolve(), Part("cutlass", include, _version(include)))
            for guide in ("media/docs", "docs"):
                if (cutlass / guide).is_dir():
                    parts.setdefault(
                        (cutlass / guide).resolve(), Part("cutlass-guides", cutlass / guide, "", guides=True)
                    )
    for pattern, name in (
        ("nsight-compute*/*/docs", "nsight-compute"), ("nsight-compute*/docs", "nsight-compute"),
        ("nsight-systems*/*/docs", "nsight-systems"), ("nsight-systems*/docs", "nsight-systems"),
    ):  # fmt: skip
        for base in [Path("/opt/nvidia"), *toolkit_roots()]:
            for docs in sorted(base.glob(pattern)):
                version = re.search(r"\d{4}\.\d+(\.\d+)?", str(docs))
                parts.setdefault(docs.resolve(), Part(name, docs, version.group() if version else "", guides=True))
    if not parts:
        raise ToolMissing(
            "no CUDA toolkit, cuDNN or CUTLASS is installed here; set CUDA_HOME, or add a folder by its path"
        )
    return list(parts.values())


def files_of(part: Part) -> Iterator[Found]:
    """The files of a part worth reading, in a stable order."""
    if part.guides:
        chosen = [p for p in part.root.rglob("*") if p.suffix.lower() in HTML | MARKDOWN | RST]
    else:
        chosen = [p for p in part.root.iterdir() if _TOP.match(p.name)]
        for folder in _DEEP:
            deep = part.root / folder
            if not deep.is_dir():
                continue
            for path in deep.rglob("*"):
                relative = path.relative_to(part.root).as_posix()
                is_header = path.suffix in _HEADER or (path.suffix == "" and folder.endswith("cuda"))
                if is_header and not _INTERNAL.search(relative):
                    chosen.append(path)
    for path in sorted(dict.fromkeys(chosen), key=lambda p: p.as_posix()):
        name = path.relative_to(part.root).as_posix()
        if not path.is_file():
            continue
        if path.stat().st_size > MAX_BYTES:
            yield Refusal(name, f"is larger than {MAX_BYTES >> 20} MiB")
        else:
            yield SourceFile(name if path.suffix else name + ".h", path.read_bytes())
