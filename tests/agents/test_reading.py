"""Replies read as programs, and contradictions between Python, manifest and C that are caught before a build."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stitchcuda.agents.reading import read_program
from stitchcuda.errors import ProgramError
from tests.agents.support import CODER_REPLY, PROGRAM_SOURCE, native_program

SOURCE = 'extern "C" int scale(const float* x, float* y, int64_t n, float s, void* stream) { return 0; }'
ARGUMENTS: list[dict[str, Any]] = [
    {"name": "x", "dtype": "float32"},
    {"name": "y", "dtype": "float32", "role": "output"},
    {"name": "n", "kind": "scalar", "dtype": "int64"},
    {"name": "s", "kind": "scalar", "dtype": "float32"},
]


def reply(
    source: str = SOURCE, arguments: list[dict[str, Any]] = ARGUMENTS, *, imported: str = "scale", target: str = "cpu"
) -> str:
    launchers = [{"name": "scale", "source": "kernels.cpp", "arguments": arguments}]
    manifest = json.dumps({"version": 1, "target": target, "launchers": launchers})
    program = PROGRAM_SOURCE.replace("import torch\n", f"import torch\nfrom bindings import {imported}\n", 1)
    return (
        f"### program.py\n```python\n{program}```\n\n### kernels.cpp\n```cpp\n#include <cstdint>\n{source}\n```\n\n"
        f"### manifest.json\n```json\n{manifest}\n```\n"
    )


def test_a_consistent_reply_is_a_program_with_its_manifest() -> None:
    program = read_program(reply(), None, "cpu")
    assert sorted(program.files) == ["kernels.cpp", "program.py"]
    assert program.manifest is not None
    assert [argument.name for argument in program.manifest.launchers[0].arguments] == ["x", "y", "n", "s"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (reply(imported="scale, shift"), "shift is imported from bindings"),
        (reply(SOURCE.replace(", float s", "")), "has 4 parameters; manifest.json gives it 5"),
        (reply(SOURCE.replace("int64_t n", "int n")), "int64_t"),
        (reply(SOURCE.replace("float s", "const float* s")), "by value"),
        (reply(SOURCE.replace("const float* x", "const double* x")), "in C that is float"),
        (reply(SOURCE.replace('extern "C" ', "")), "no C linkage"),
        (reply(SOURCE.replace("int scale", "void scale")), "does not return int"),
        (reply("".join(reply()[:3]), ARGUMENTS), "scale"),
        ("", "empty"),
    ],
    ids=["import", "count", "width", "pointer", "type", "linkage", "return", "missing", "empty"],
)
def test_a_contradiction_is_named(text: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words.replace("(", r"\(")):
        read_program(text, None, "cpu")


def test_the_manifest_must_be_for_the_tasks_target() -> None:
    with pytest.raises(ProgramError, match="target"):
        read_program(reply(), None, "cuda")


@pytest.mark.parametrize(
    "source",
    [
        SOURCE.replace("const float* x", "const float* __restrict__ x").replace("int64_t n", "const long long n"),
        SOURCE.replace("const float* x", "const void* x"),
        'extern "C" {\n// scale(x)\n' + SOURCE.replace('extern "C" ', "") + "\n}",
        SOURCE.replace("int64_t n", "std::int64_t n"),
        "using real = float;\n" + SOURCE.replace("const float* x", "const real* x"),
    ],
)
def test_other_spellings_of_the_same_prototype_are_fine(source: str) -> None:
    assert read_program(reply(source), None, "cpu").manifest is not None


def test_a_whole_reply_replaces_the_base_and_a_part_of_one_is_laid_over_it() -> None:
    base = native_program()
    assert sorted(read_program(CODER_REPLY, base, "cpu").files) == ["program.py"]
    part = "### helper.h\n```cpp\nstatic int x;\n```\n"
    assert sorted(read_program(part, base, "cpu").files) == ["helper.h", "kernels.cpp", "program.py"]
