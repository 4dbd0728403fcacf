"""Which compiler flags of a ``load_inline`` call are taken over, and what they mean; any other is refused, so that the
call is built as torch builds it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class FlagRefused(Exception):
    """A flag that is not known here."""


@dataclass(frozen=True)
class Flags:
    """Flags for the C++ compiler, for nvcc (its architecture apart, "" when not given) and libraries to link."""

    cxx: tuple[str, ...]
    cuda: tuple[str, ...]
    arch: str
    libraries: tuple[str, ...]
    openmp: bool


_CXX = re.compile(
    r"-O[0-3sg]|-Ofast|-g|-w|-W[\w=+-]*|-std=(c|gnu)\+\+(14|17|20|1z|2a)|-fPIC|-fopenmp|-pthread|-march=[\w.-]+|-mtune=[\w.-]+"
    r"|-mavx[\w.]*|-mfma|-msse[\w.]*|-mf16c|-f(no-)?(fast-math|math-errno|trapping-math|unroll-loops|tree-vectorize"
    r"|associative-math|finite-math-only|signed-zeros|strict-aliasing|omit-frame-pointer|inline-functions|exceptions|lto)"
    r"|-ffp-contract=\w+|-[DU]\w+(=[\w.+-]*)?"
)
_NVCC = re.compile(
    r"-O[0-3]|-{1,2}use_fast_math|-{1,2}restrict|-{1,2}lineinfo|-{1,2}generate-line-info|-w"
    r"|-{1,2}expt-(relaxed-constexpr|extended-lambda)|-{1,2}extended-lambda|-{1,2}std=c\+\+(14|17|20)"
    r"|-{1,2}(ftz|prec-div|prec-sqrt|fmad)=(true|false)|-{1,2}maxrregcount=\d+|-{1,2}default-stream=[\w-]+"
    r"|(-Xptxas|--ptxas-options)=[\w,=-]+|(-Xcompiler|--compiler-options)=[\w,=+.-]+|-{1,2}threads=?\d*|-[DU]\w+(=[\w.+-]*)?"
)
_PAIRS = {
    "-Xptxas",
    "--ptxas-options",
    "-Xcompiler",
    "--compiler-options",
    "--maxrregcount",
    "-maxrregcount",
    "-std",
    "--std",
}
_LIBRARIES = frozenset({"cublas", "cublasLt", "cudart", "cuda", "m", "pthread", "gomp", "stdc++", "dl", "rt"})
_LINKED = frozenset({"cublas", "cublasLt", "cuda", "m"})
"""Of those, what the compiler does not link anyway."""


def checked_flags(wanted: Mapping[str, Any], arch: str) -> Flags:
    """The flags of a request (see ``torch_inline.request``); ``arch`` is the target's number, such as ``90a``.

    Raises FlagRefused for a flag that is not known, or an architecture that is not the target's.
    """
    if wanted["extra_include_paths"]:
        raise FlagRefused("it has include paths of its own")
    cxx = [flag for flag in wanted["extra_cflags"] if _allowed(flag, _CXX)]
    libraries: list[str] = []
    cuda, own_arch = _nvcc(wanted["extra_cuda_cflags"], arch, libraries)
    openmp = "-fopenmp" in cxx
    for flag in wanted["extra_ldflags"]:
        if flag == "-fopenmp":
            openmp = True
        elif flag.startswith("-l") and flag[2:] in _LIBRARIES:
            libraries.append(flag)
            openmp = openmp or flag == "-lgomp"
        elif not re.fullmatch(r"-O\d|-s|-pthread|-L/usr/local/cuda[\w./-]*", flag):
            raise FlagRefused(f"the flag {flag[:60]} is not known")
    linked = tuple(dict.fromkeys(flag for flag in libraries if flag[2:] in _LINKED))
    return Flags(tuple(cxx), tuple(cuda), own_arch, linked, openmp)


def _allowed(flag: str, pattern: re.Pattern[str]) -> bool:
    if not pattern.fullmatch(flag):
        raise FlagRefused(f"the flag {flag[:60]} is not known")
    return not re.fullmatch(r"-{1,2}std=c\+\+(14|17|1z)", flag)  # ours is at least that


def _nvcc(flags: Sequence[str], arch: str, libraries: list[str]) -> tuple[list[str], str]:
    kept: list[str] = []
    own_arch = ""
    words = list(flags)
    while words:
        flag = words.pop(0)
        if re.match(r"-{1,2}(gencode|generate-code|arch|gpu-architecture|code)\b", flag):
            value = flag.partition("=")[2] or (words.pop(0) if words else "")
            numbers = re.findall(r"(?:sm|compute)_(\d+[af]?)", value)
            if numbers and numbers[-1].rstrip("af") == arch.rstrip("af"):
                own_arch = numbers[-1]
            elif numbers:
                continue  # one of several; none that fits is refused below
            continue
        if flag.startswith("-l") and flag[2:] in _LIBRARIES:
            libraries.append(flag)
        elif flag in _PAIRS and words and re.fullmatch(r"[\w,=+.\"'-]+", words[0]):
            kept += [flag, words.pop(0).strip("\"'")]
        elif _allowed(flag, _NVCC):
            kept.append(flag)
    asked = [flag for flag in flags if re.search(r"(sm|compute)_\d", flag)]
    if asked and not own_arch:
        raise FlagRefused(f"it is compiled for another architecture than {arch}")
    return kept, own_arch
