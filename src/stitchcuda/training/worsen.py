"""Verified programs made worse in known ways, so that there is something to repair or to make faster.

Each fault is a change of text that recipes' programs (``recipes.emit_cpu``, ``recipes.emit_cuda``) admit; whether it
did what its name says is for an evaluation to tell. Nothing here runs a program.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stitchcuda.program.model import ENTRY, Program

Kind = Literal["slower", "wrong", "broken"]


@dataclass(frozen=True)
class Fault:
    """One way to make a program worse."""

    name: str
    kind: Kind
    """slower: still correct; wrong: computes something else; broken: does not build or run."""
    targets: tuple[str, ...]
    change: Callable[[str], str]
    """Of the part of a native source below its prelude; the text itself where it does not apply."""
    file: Literal["native", "entry"] = "native"


@dataclass(frozen=True)
class Worsened:
    """A program that is expected to be worse."""

    fault: str
    kind: Kind
    program: Program


def worsened(program: Program, target: str) -> list[Worsened]:
    """Every fault that applies to a program of recipes for ``target`` (cuda or cpu), each in a program of its own."""
    found: list[Worsened] = []
    seen = {program.digest}
    for fault in FAULTS:
        if target not in fault.targets:
            continue
        for path, text in program.files.items():
            if not (path == ENTRY if fault.file == "entry" else path.endswith((".cpp", ".cu"))):
                continue
            head, body = _split(text)
            changed = head + fault.change(body)
            made = program.model_copy(update={"files": {**program.files, path: changed}, "notes": ""})
            if made.digest not in seen:
                seen.add(made.digest)
                found.append(Worsened(fault.name, fault.kind, made))
                break
    return found


def _split(text: str) -> tuple[str, str]:
    """The prelude, which all programs share, and the kernels below it."""
    mark = "}  // namespace own\n"
    at = text.rfind(mark)
    return (text[: at + len(mark)], text[at + len(mark) :]) if at >= 0 else ("", text)


def _without(pattern: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, "", text, flags=re.MULTILINE)


def _first(pattern: str, to: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, to, text, count=1, flags=re.MULTILINE)


def _last(pattern: str, to: str) -> Callable[[str], str]:
    """Change the last place that fits."""

    def change(text: str) -> str:
        places = list(re.finditer(pattern, text, re.MULTILINE))
        if not places:
            return text
        last = places[-1]
        return text[: last.start()] + last.expand(to) + text[last.end() :]

    return change


_LOOP = r"^( *)for \(int64_t i = (\w+); i < (\w+); \+\+i\) \{$"


def _strided(text: str) -> str:
    """Walk each run with a stride: every cache line is fetched many times, and nothing is vector code."""
    changed = re.sub(
        _LOOP,
        r"\1for (int64_t lane = 0; lane < 16; ++lane)\n\1for (int64_t i = \2 + lane; i < \3; i += 16) {",
        text,
        flags=re.MULTILINE,
    )
    return re.sub(r"^#pragma omp simd.*\n", "", changed, flags=re.MULTILINE) if changed != text else text


def _twice(text: str) -> str:
    """Do all of the work twice, where a second time gives the same: no buffer is both read and written."""
    read = set(re.findall(r"const \w+(?:::\w+)?\* __restrict__ (\w+)[,)]", text))
    written = set(re.findall(r"[(,] ?(?!const)[\w:]+\* __restrict__ (\w+)[,)]", text))
    if read & written or "inout" in text:
        return text
    return re.sub(
        r"^(  )for \(int64_t task = 0; task < (\d+); \+\+task\) \{$",
        r"\1for (int64_t pass = 0; pass < 2 * int64_t(\2); ++pass) {\n\1  const int64_t task = pass % int64_t(\2);",
        re.sub(r"^#pragma omp parallel.*\n", "", text, flags=re.MULTILINE),
        flags=re.MULTILINE,
    )


def _slow_division(text: str) -> str:
    """Double precision where single is enough."""
    return re.sub(
        r"const float (v\d+) = \((v\d+) \* (v\d+)\);", r"const float \1 = float(double(\2) * double(\3));", text
    )


_BLOCK = r"^(.*_kernel<<<)(.+?), (\d+), (.*>>>\(.*\);)$"


def _narrow(text: str) -> str:
    """Elements one by one instead of in packs of four: recipes' packs become arrays that are filled by hand."""
    return re.sub(
        r"const own::Pack<([\w:]+), (\d)> (\w+) = \*reinterpret_cast<const own::Pack<[\w:]+, \d>\*>\((.+?)\);",
        r"own::Pack<\1, \2> \3; for (int one = 0; one < \2; ++one) "
        r"\3.at[one] = static_cast<const \1*>(\4)[one];",
        re.sub(
            r"\*reinterpret_cast<own::Pack<([\w:]+), (\d)>\*>\((.+?)\) = (\w+);",
            r"for (int one = 0; one < \2; ++one) static_cast<\1*>(\3)[one] = \4.at[one];",
            text,
        ),
    )


_CPU, _CUDA, _BOTH = ("cpu",), ("cuda",), ("cpu", "cuda")

FAULTS = (
    # Slower.
    Fault("threads_removed", "slower", _CPU, _without(r"^#pragma omp parallel.*\n")),
    Fault("loop_order_broken", "slower", _CPU, _strided),
    Fault("double_pass", "slower", _CPU, _twice),
    Fault("double_precision", "slower", _BOTH, _slow_division),
    Fault("vector_access_removed", "slower", _CUDA, _narrow),
    Fault("result_copied", "slower", _BOTH, _last(r"^(        return \w+)$", r"\1.clone()"), file="entry"),
    # Wrong.
    Fault("last_element_left_out", "wrong", _CPU, _last(_LOOP, r"\1for (int64_t i = \2; i < \3 - 1; ++i) {")),
    Fault("first_element_left_out", "wrong", _CPU, _first(_LOOP, r"\1for (int64_t i = \2 + 1; i < \3; ++i) {")),
    Fault("last_rows_left_out", "wrong", _CPU, _first(r"task < (\d+); \+\+task", r"task < \1 - \1 / 8; ++task")),
    Fault("accumulator_overwritten", "wrong", _BOTH, _first(r"^( *(?:part_)?v\d+) \+= ", r"\1 = ")),
    Fault("wrong_eps", "wrong", _BOTH, _first(r"= 1e-0?(\d)f;", "= 1e-01f;")),
    Fault(
        "start_at_zero", "wrong", _BOTH, _first(r"= -(?:std::numeric_limits<float>::infinity\(\)|INFINITY);", "= 0.0f;")
    ),
    Fault("sign_flipped", "wrong", _BOTH, _last(r"= \((v\d+) - (v\d+)\);", r"= (\2 - \1);")),
    Fault("sum_for_difference", "wrong", _BOTH, _first(r"= \((v\d+) \+ (v\d+)\);", r"= (\1 - \2);")),
    Fault("factor_forgotten", "wrong", _BOTH, _last(r"= \((v\d+) \* (v\d+)\);", r"= \1;")),
    Fault("clamp_reversed", "wrong", _BOTH, _first(r"(v\d+) < float\(0\) \? float\(0\)", r"\1 > float(0) ? float(0)")),
    Fault("wrong_row", "wrong", _BOTH, _last(r"\bi0 \* (u?int\w*)\((\d+)\);$", r"i0 * \1(\2 - 1);")),
    Fault("block_size_broken", "wrong", _CUDA, _first(_BLOCK, r"\g<1>\2, \3 / 2, \4")),
    Fault("grid_too_small", "wrong", _CUDA, _first(_BLOCK, r"\g<1>(\2) / 2 + 1, \3, \4")),
    Fault("bound_off_by_one", "wrong", _CUDA, _first(r"if \(column < (\d+)u\)", r"if (column < \1u - 1u)")),
    # Broken.
    Fault("undeclared_name", "broken", _BOTH, _last(r"own::store<([\w:]+)>\((v\d+)\)", r"own::store<\1>(\2_)")),
    Fault("semicolon_forgotten", "broken", _BOTH, _first(r"^( *const float v\d+ = .*);$", r"\1")),
    Fault(
        "argument_forgotten", "broken", _BOTH, _first(r'^(extern "C" int \w+\()const \w+\* __restrict__ (\w+), ', r"\1")
    ),
)
"""In the order in which they are tried."""
