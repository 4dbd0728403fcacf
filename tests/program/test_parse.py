"""Replies of language models become Programs, or sentences that can be sent back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcuda.errors import ProgramError
from stitchcuda.program.model import Program
from stitchcuda.program.parse import parse_edits, parse_reply

ENTRY = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
KERNEL = 'extern "C" int scale(const float* x, float* y, long n, void* stream) { return 0; }\n'
MANIFEST = json.dumps(
    {
        "target": "cpu",
        "launchers": [
            {
                "name": "scale",
                "source": "kernels.cpp",
                "arguments": [
                    {"name": "x", "dtype": "float32"},
                    {"name": "y", "dtype": "float32", "role": "output"},
                    {"name": "n", "kind": "scalar", "dtype": "int64"},
                ],
            }
        ],
    }
)


def fence(text: str, info: str = "python") -> str:
    return f"```{info}\n{text}```\n"


@pytest.mark.parametrize(
    "reply",
    [
        f"Here it is.\n{fence(ENTRY, 'python program.py')}{fence(KERNEL, 'cpp kernels.cpp')}",
        f"### program.py\n\n{fence(ENTRY)}\n**`kernels.cpp`**:\n{fence(KERNEL, 'cpp')}",
        f"{fence(ENTRY, 'python:program.py')}{fence(KERNEL, 'cpp title=kernels.cpp')}",
    ],
)
def test_files_are_named_on_the_fence_or_by_a_heading(reply: str) -> None:
    assert parse_reply(reply).files == {"program.py": ENTRY, "kernels.cpp": KERNEL}


def test_a_first_line_can_name_the_file() -> None:
    program = parse_reply(fence("# file: program.py\n" + ENTRY) + fence("// file: src/k.cu\nint x;\n", "cuda"))
    assert sorted(program.files) == ["program.py", "src/k.cu"]


def test_a_single_kernelbench_file_is_the_entry() -> None:
    assert parse_reply(f"Thoughts...\n{fence(ENTRY)}").files == {"program.py": ENTRY}


def test_a_manifest_in_the_reply_becomes_the_manifest() -> None:
    reply = fence(ENTRY, "python program.py") + fence(KERNEL, "cpp kernels.cpp") + fence(MANIFEST, "json manifest.json")
    program = parse_reply(reply.replace("}```", "}\n```"))
    assert program.manifest is not None
    assert program.manifest.launchers[0].name == "scale"
    assert "manifest.json" not in program.files


def test_a_wrong_field_of_the_manifest_is_named() -> None:
    wrong = MANIFEST.replace('"float32", "role"', '"float33", "role"')
    reply = fence(ENTRY, "python program.py") + fence(wrong + "\n", "json manifest.json")
    with pytest.raises(ProgramError, match=r"launchers\[0\] \(scale\)\.arguments\[1\] \(y\)\.dtype"):
        parse_reply(reply)


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ("I cannot do that.", "holds no code"),
        ("```python program.py\nimport torch\nclass Mod", "cut off"),
        (
            fence(ENTRY, "python program.py") + fence("x = 1\n", "python program.py"),
            "two different files named program.py",
        ),
        (fence("x = 1\n"), "does not define class ModelNew"),
        (fence("x = 1\n", "python program.py"), "does not define ModelNew"),
        (fence("class ModelNew(:\n", "python program.py"), "not valid Python.*line 1"),
        (fence(ENTRY, "python program.py") + fence("int x;\n", "cuda /etc/evil.cu"), "is absolute"),
        (fence(ENTRY, "python program.py") + fence("int x;\n", "cuda ../evil.cu"), "leaves the program's folder"),
        (fence(ENTRY, "python program.py") + fence("x = 1\n", "python bindings.py"), "written by the build step"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(reply: str, sentence: str) -> None:
    with pytest.raises(ProgramError, match=sentence):
        parse_reply(reply)


def test_the_same_file_sent_twice_alike_is_fine() -> None:
    assert parse_reply(fence(ENTRY, "python program.py") * 2).files == {"program.py": ENTRY}


def test_files_of_the_base_stay_unless_sent_again() -> None:
    base = Program(files={"program.py": ENTRY, "kernels.cpp": KERNEL})
    program = parse_reply(fence("int y;\n", "cpp kernels.cpp"), base=base)
    assert program.files == {"program.py": ENTRY, "kernels.cpp": "int y;\n"}


def edit(search: str, replace: str, name: str = "kernels.cpp") -> str:
    return f"{name}\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


BASE = Program(files={"program.py": ENTRY, "kernels.cpp": "int a;\nint b;\nint a;\n  int c;  \n"})


def test_an_edit_replaces_the_lines_it_quotes() -> None:
    assert parse_edits(edit("int b;\nint a;", "long b;"), BASE).files["kernels.cpp"] == "int a;\nlong b;\n  int c;  \n"


def test_an_edit_ignores_trailing_spaces_and_fences() -> None:
    reply = "```cpp\n" + edit("  int c;", "  int d;") + "```\n"
    assert "  int d;" in parse_reply(reply, base=BASE).files["kernels.cpp"]


def test_an_edit_without_a_file_goes_to_the_only_match() -> None:
    assert "int B;" in parse_edits(edit("int b;", "int B;", name=""), BASE).files["kernels.cpp"]


def test_an_empty_search_makes_a_file() -> None:
    assert parse_edits(edit("", "int n;", "new.cpp"), BASE).files["new.cpp"] == "int n;\n"


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (edit("int a;", "x"), r"matches 2 places \(lines 1, 3\)"),
        (edit("int z;", "x"), "matches nothing in kernels.cpp"),
        (edit("int b;", "x", "other.cpp"), "other.cpp, which is not there"),
        (edit("int b;", "x")[:-20], "not finished"),
        (edit("int b;\nint q;", "x"), "its first line is at line 2, but what follows differs"),
        ("no edits", "holds no edit"),
    ],
)
def test_an_edit_that_does_not_fit_is_said_in_a_sentence(reply: str, sentence: str) -> None:
    with pytest.raises(ProgramError, match=sentence):
        parse_edits(reply, BASE)


PIECES = st.sampled_from(
    [
        "```python program.py\n",
        "```\n",
        ENTRY,
        KERNEL,
        "```cuda k.cu\n",
        "~~~json manifest.json\n",
        MANIFEST,
        "\n",
        "### k.cu\n",
        "<<<<<<< SEARCH\n",
        "=======\n",
        ">>>>>>> REPLACE\n",
        "kernels.cpp\n",
        "int a;\n",
        "\x00",
        "```",
    ]
)


@given(st.lists(PIECES | st.text(max_size=20), max_size=12).map("".join), st.booleans())
def test_any_reply_gives_a_program_or_a_sentence(reply: str, with_base: bool) -> None:
    try:
        program = parse_reply(reply, base=BASE if with_base else None)
    except ProgramError as error:
        program, sentence = None, str(error)
    assert "program.py" in program.files if program is not None else 10 < len(sentence) < 2000


def test_the_manifest_can_be_edited() -> None:
    reply = (
        fence(ENTRY, "python program.py")
        + fence(KERNEL, "cpp kernels.cpp")
        + fence(MANIFEST + "\n", "json manifest.json")
    )
    base = parse_reply(reply)
    edited = parse_edits(
        edit(
            '          "alignment": 4,\n          "optional": false\n        }\n      ]',
            '          "alignment": 8,\n          "optional": false\n        }\n      ]',
            "manifest.json",
        ),
        base,
    )
    assert edited.manifest is not None
    assert edited.manifest.launchers[0].arguments[-1].alignment == 8
