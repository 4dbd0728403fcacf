"""Which architectures and libraries a passage is about, from its file's place and its own words.

An architecture tag is ``sm_90`` (that one) or ``sm_90+`` (that one and later). No tag means: holds everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from stitchcuda.knowledge.model import Chunk, Tags

FAMILIES = {
    "volta": ("sm_70",),
    "turing": ("sm_75",),
    "ampere": ("sm_80", "sm_86"),
    "ada": ("sm_89",),
    "hopper": ("sm_90",),
    "blackwell": ("sm_100", "sm_103", "sm_120"),
}
"""Architecture names users say, and the compute capabilities they mean."""

_PATH_LIBRARIES = (
    (re.compile(r"cublasLt|cublas_?lt", re.IGNORECASE), ("cublas", "cublaslt")),
    (re.compile(r"cublas", re.IGNORECASE), ("cublas",)),
    (re.compile(r"cudnn", re.IGNORECASE), ("cudnn",)),
    (re.compile(r"(^|/)cute/"), ("cutlass", "cute")),
    (re.compile(r"cutlass", re.IGNORECASE), ("cutlass",)),
    (re.compile(r"(^|/)cub/"), ("cub",)),
    (re.compile(r"(^|/)thrust/"), ("thrust",)),
    (re.compile(r"(^|/)cuda/(__)?ptx"), ("libcudacxx", "ptx")),
    (re.compile(r"(^|/)cccl/cuda/"), ("libcudacxx",)),
    (re.compile(r"cooperative_groups"), ("cooperative_groups",)),
    (re.compile(r"(^|/)cuda\.h$"), ("cuda_driver",)),
    (re.compile(r"cuda_runtime|driver_types|cuda_device_runtime"), ("cuda_runtime",)),
    (re.compile(r"cupti", re.IGNORECASE), ("cupti",)),
    (re.compile(r"nvtx", re.IGNORECASE), ("nvtx",)),
    (re.compile(r"nsight[-_ ]?compute|(^|/)ncu", re.IGNORECASE), ("nsight_compute",)),
    (re.compile(r"nsight[-_ ]?systems|(^|/)nsys", re.IGNORECASE), ("nsight_systems",)),
    (re.compile(r"nvrtc", re.IGNORECASE), ("nvrtc",)),
)
_PATH_ARCH = re.compile(r"(?:^|[/_])sm(\d{2,3})(?=[_./])")
_PTX_TARGETS = re.compile(r"PTX ISA \d+(?:, |,)(SM_\d+[af]?(?:,\s*SM_\d+[af]?)*)")


def tag_document(name: str) -> Tags:
    """Tags from a file's path: its library (the first rule that matches wins), and for CUTLASS its architecture."""
    libraries = next((found for pattern, found in _PATH_LIBRARIES if pattern.search(name)), ())
    return Tags(_path_arch(name) if "cutlass" in libraries else (), libraries)


def _path_arch(name: str) -> tuple[str, ...]:
    """CUTLASS names files by the first architecture they are for. Up to sm90 later ones run them too, but for wgmma;
    the tensor core instructions of sm100 and after belong to their own family."""
    match = _PATH_ARCH.search(name)
    if not match:
        return ()
    number = int(match.group(1))
    if number == 100:
        return ("sm_100", "sm_103")
    own_only = number > 90 or (number == 90 and "gmma" in name)
    return (f"sm_{number}" + ("" if own_only else "+"),)


def tag_chunk(chunk: Chunk, document: Tags) -> Chunk:
    """``chunk`` with its document's tags, and with the architectures that a PTX availability line in it names."""
    arch: tuple[str, ...] = chunk.tags.arch
    if not arch:
        found: dict[str, None] = {}
        for match in _PTX_TARGETS.finditer(chunk.text):
            for target in re.split(r",\s*", match.group(1)):
                number = re.sub(r"\D", "", target)
                found["sm_" + number + ("" if target[-1] in "af" else "+")] = None
        arch = tuple(found)
    tags = Tags(arch, chunk.tags.libraries).merged(document)
    return chunk if tags == chunk.tags else replace(chunk, tags=tags)


def normalize_arch(names: Iterable[str]) -> tuple[str, ...]:
    """Architectures as tags: family names become their compute capabilities, ``sm_90a`` becomes ``sm_90``.

    Raises ValueError for a name that is neither, naming it.
    """
    out: dict[str, None] = {}
    for name in names:
        low = name.strip().lower()
        if low in FAMILIES:
            out.update(dict.fromkeys(FAMILIES[low]))
            continue
        match = re.fullmatch(r"(?:sm_?|compute_?)?(\d{2,3})[af]?(\+?)", low)
        if not match:
            raise ValueError(f"{name!r} is not an architecture; expected sm_90 and the like, or {', '.join(FAMILIES)}")
        out[f"sm_{match.group(1)}{match.group(2)}"] = None
    return tuple(out)


def arch_fits(tags: Iterable[str], wanted: Iterable[str]) -> bool:
    """True if a passage with architecture ``tags`` holds for one of ``wanted`` (both normalised), or has no tags."""
    have = list(tags)
    if not have:
        return True
    numbers = [int(w.rstrip("+")[3:]) for w in wanted]
    for tag in have:
        least = int(tag.rstrip("+")[3:])
        if any(number == least or (tag.endswith("+") and number > least) for number in numbers):
            return True
    return False
