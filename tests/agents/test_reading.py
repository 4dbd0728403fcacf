"""Replies read as programs, and contradictions between Python, manifest and C that are caught before a build."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from stitchcuda.agents.reading import LONGEST_WORDS, explanation, read_program, refusal
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


def test_code_that_is_nested_too_deeply_to_be_read_is_said_so() -> None:
    chain = "if a:\n    pass\n" + "elif a:\n    pass\n" * 3000
    for text in (
        CODER_REPLY.replace("```python\n", f"```python\n{chain}", 1),
        f"{CODER_REPLY}\n### helper.py\n```python\n{chain}```\n",
    ):
        with pytest.raises(ProgramError, match=r"(program|helper)\.py is not valid Python: too deeply nested"):
            read_program(text, None, "cpu")
    with pytest.raises(ProgramError, match=r"manifest\.json is not valid JSON"):
        read_program(f"{CODER_REPLY}\n### manifest.json\n```json\n{'[' * 100_000}\n```\n", None, "cpu")


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


def test_edits_and_a_manifest_make_one_program() -> None:
    base = read_program(reply(), None, "cpu")
    edit = (
        "### kernels.cpp\n```\n<<<<<<< SEARCH\n"
        f"{SOURCE}\n=======\n{SOURCE.replace('float s', 'float s, float t')}\n>>>>>>> REPLACE\n```\n"
    )
    with pytest.raises(ProgramError, match="has 6 parameters"):
        read_program(edit, base, "cpu")
    arguments = [*ARGUMENTS, {"name": "t", "kind": "scalar", "dtype": "float32"}]
    manifest = reply(arguments=arguments).partition("### manifest.json")[2]
    program = read_program(f"{edit}\n### manifest.json{manifest}", base, "cpu")
    assert program.manifest is not None
    assert [argument.name for argument in program.manifest.launchers[0].arguments] == ["x", "y", "n", "s", "t"]


def test_what_a_reply_says_is_told_apart_from_its_code_and_its_edits() -> None:
    edits = (
        "Wider loads.\n\n### kernels.cpp\n```\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n```\nThat halves them.\n"
    )
    assert explanation(edits) == "Wider loads. That halves them."
    said = "One pass.\n\nprogram.py\n```python\nx = 1\n```\n## Notes\n`y` is kept."
    assert explanation(said) == "One pass. Notes `y` is kept."
    assert len(explanation("word " * 1000)) == LONGEST_WORDS


def test_a_refusal_has_a_reason_and_no_code() -> None:
    assert refusal("NO GAIN\nThe call is at 97 % of its bound.") == "The call is at 97 % of its bound."
    assert refusal("## NO_GAIN: the part is 1 % of the time") == "the part is 1 % of the time"
    assert refusal("There is NO GAIN in tiling, so the rows go first.") is None
    with pytest.raises(ProgramError, match="reason"):
        refusal("NO GAIN.")
    for files in (
        "```python\nclass ModelNew:\n    pass\n```\n",
        "### kernels.cu\n```\nint x;\n```\n",
        "kernels.cu\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n",
    ):
        with pytest.raises(ProgramError, match="holds code"):
            refusal(f"NO GAIN, but here it is\n{files}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("```\nNO GAIN\nThe call is at its bound.\n```\n", "The call is at its bound."),
        ("```text\nNO GAIN\n```\nThe call is at its bound.", "The call is at its bound."),
        ("~~~markdown\n**NO GAIN**\n\nThe call is at its bound.\n~~~", "The call is at its bound."),
        ("NO GAIN: the loop\n```cuda\nx += y;\n```\nis at its bound", "the loop ```cuda x += y; ``` is at its bound"),
    ],
)
def test_a_refusal_may_stand_in_a_fence_and_quote_code(text: str, reason: str) -> None:
    assert refusal(text) == reason


@pytest.mark.parametrize("line", ["- ", "-./", "a.py ", "- a.h-", "* a.b/"])
def test_what_a_reply_says_is_read_in_a_time_that_grows_with_its_length(line: str) -> None:
    # Squares of these lengths are billions of steps.
    for text in (f"{line}\n" * 30_000, line * 30_000):
        began = time.process_time()
        explanation(text)
        assert time.process_time() - began < 2
