"""Replies of language models become Programs, or sentences that can be sent back."""

from __future__ import annotations

import contextlib
import json
import re
import time

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


NATIVE = parse_reply(
    fence(ENTRY, "python program.py") + fence(KERNEL, "cpp kernels.cpp") + fence(f"{MANIFEST}\n", "json manifest.json")
)
ONE_MORE = json.loads(MANIFEST)
ONE_MORE["launchers"][0]["arguments"].append({"name": "m", "kind": "scalar", "dtype": "int64"})
WIDER = KERNEL.replace("long n", "long n, long m")


def in_a_fence(text: str) -> str:
    name, _, marks = text.partition("\n")
    return f"### {name}\n```\n{marks}```\n"


CHANGE_OF_BASE = edit("int b;", "long b;")
CHANGE = in_a_fence(edit(KERNEL.rstrip(), WIDER.rstrip()))


@pytest.mark.parametrize("marks", ["", "unclosed"])
def test_whole_files_may_stand_beside_edits(marks: str) -> None:
    manifest = f"### manifest.json\n{fence(json.dumps(ONE_MORE) + chr(10), 'json')}"
    entry = fence(ENTRY + "# more\n", "python program.py")
    change = CHANGE.removesuffix("```\n") if marks else CHANGE
    program = parse_reply(f"Both.\n{manifest}{entry}{change}", base=NATIVE)
    assert program.files == {"program.py": ENTRY + "# more\n", "kernels.cpp": WIDER}
    assert program.manifest is not None
    assert [argument.name for argument in program.manifest.launchers[0].arguments] == ["x", "y", "n", "m"]


def test_a_file_is_edited_or_sent_whole_but_not_both() -> None:
    assert parse_reply(CHANGE + fence(WIDER, "cpp kernels.cpp"), base=NATIVE).files["kernels.cpp"] == WIDER
    with pytest.raises(ProgramError, match=r"edits kernels\.cpp and holds another kernels\.cpp"):
        parse_reply(CHANGE + fence(KERNEL, "cpp kernels.cpp"), base=NATIVE)


def test_a_whole_file_beside_edits_is_not_lost_to_a_fence_that_is_open_or_cut_off() -> None:
    manifest = f"### manifest.json\n{fence(json.dumps(ONE_MORE) + chr(10), 'json')}"
    with pytest.raises(ProgramError, match="not closed before the next"):
        parse_reply(CHANGE.removesuffix("```\n") + manifest, base=NATIVE)
    with pytest.raises(ProgramError, match="cut off"):
        parse_reply(CHANGE + manifest[:-5], base=NATIVE)


@pytest.mark.parametrize(
    "heading",
    [
        "### kernels.cpp (updated)",
        "### kernels.cpp - new reduction",
        "### `kernels.cpp` — kernels (and the launcher)",
        "#### 2. kernels.cpp: one pass",
        "### File 2: kernels.cpp",
        "**File 2:** `kernels.cpp`",
        "### Updated kernels.cpp",
        "**kernels.cpp** (changed)",
        "**kernels.cpp (changed)**",
        "`kernels.cpp` [new]:",
    ],
)
def test_a_heading_may_say_more_than_the_name(heading: str) -> None:
    sent = f"{heading}\n{fence(WIDER, 'cpp')}"
    assert parse_reply(sent, base=NATIVE).files["kernels.cpp"] == WIDER
    entry, manifest = fence(ENTRY, "python program.py"), fence(f"{MANIFEST}\n", "json manifest.json")
    assert parse_reply(sent + entry + manifest).files["kernels.cpp"] == WIDER
    edited = f"{in_a_fence(edit('', 'int n;', 'other.cpp'))}{sent}"
    assert parse_reply(edited, base=NATIVE).files["kernels.cpp"] == WIDER


@pytest.mark.parametrize("heading", ["### kernels.cpp (two places)", "**kernels.cpp** - the launcher"])
def test_an_edit_goes_to_the_file_of_a_heading_that_says_more(heading: str) -> None:
    text = f"### program.py\n\n{heading}\n```\n{edit(KERNEL.rstrip(), WIDER.rstrip(), name='')}```\n"
    assert parse_reply(text, base=NATIVE).files["kernels.cpp"] == WIDER


@pytest.mark.parametrize(
    "lines",
    [
        f"### kernels.cpp (the loop)\n{fence('for (;;) {}' + chr(10), 'cpp')}",
        f"`kernels.cpp` - the launcher calls\n{fence('scale(x, y, n, stream);' + chr(10))}",
        f"### aten/src/SoftMax.cu (as PyTorch does it)\n{fence('int soft;' + chr(10), 'cuda')}",
        fence("x += y;\n", "cuda"),
        f"The launcher becomes\n{fence('extern C int scale(long n) { return 0; }' + chr(10), 'cpp')}",
    ],
)
def test_a_few_lines_that_illustrate_are_no_file(lines: str) -> None:
    files = fence(ENTRY, "python program.py") + fence(WIDER, "cpp kernels.cpp")
    for reply in (lines + files, files + lines):
        assert parse_reply(reply, base=NATIVE).files == {"program.py": ENTRY, "kernels.cpp": WIDER}
    assert parse_reply(lines + CHANGE, base=NATIVE).files == {"program.py": ENTRY, "kernels.cpp": WIDER}


def test_lines_of_the_base_may_be_quoted() -> None:
    quoted = f"### kernels.cpp (now)\n{fence(KERNEL, 'cpp')}As it is:\n{fence(KERNEL, 'cpp')}"
    program = parse_reply(quoted + fence(ENTRY + "# more\n", "python program.py"), base=NATIVE)
    assert program.files == {"program.py": ENTRY + "# more\n", "kernels.cpp": KERNEL}


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (f"The kernels are now\n{fence(WIDER, 'cpp')}", "kernels.cpp"),
        (f"The manifest is now\n{fence(json.dumps(ONE_MORE) + chr(10), 'json')}", "manifest.json"),
        (f"The module is now\n{fence(ENTRY + '# more' + chr(10))}", "program.py"),
    ],
)
def test_a_file_without_a_name_is_not_lost(lines: str, name: str) -> None:
    edited = in_a_fence(edit("", "int n;", "other.cpp"))
    with pytest.raises(ProgramError, match=f"looks like {re.escape(name)}"):
        parse_reply(edited + lines, base=NATIVE)
    if name != "program.py":
        with pytest.raises(ProgramError, match=f"looks like {re.escape(name)}"):
            parse_reply(fence(ENTRY + "# more\n", "python program.py") + lines, base=NATIVE)


def test_a_list_of_files_before_a_block_names_none() -> None:
    files = "1. `program.py` - calls\n2. `kernels.cpp` - the kernels\n\n"
    assert parse_reply(files + fence(ENTRY)).files == {"program.py": ENTRY}
    assert parse_reply(f"**model.py** (all of it)\n{fence(ENTRY)}").files == {"program.py": ENTRY}


def test_a_name_that_begins_like_a_word_for_files_is_kept() -> None:
    reply = fence(ENTRY, "python program.py") + f"### file_ops.h\n{fence('int x;' + chr(10), 'cpp')}"
    assert sorted(parse_reply(reply).files) == ["file_ops.h", "program.py"]


@pytest.mark.parametrize("line", ["_", "**", " ", "a.py ", "a.py*", "```:", "### k.cpp (", "`File "])
def test_a_reply_is_read_in_a_time_that_grows_with_its_length(line: str) -> None:
    long = f"{line * 30_000}\n{line}{line[-1] * 30_000}!\n"
    began = time.process_time()
    for text in (long, f"{long}{CHANGE}"):
        with contextlib.suppress(ProgramError):
            parse_reply(text, base=NATIVE)
    assert time.process_time() - began < 2


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
        "**k.cu** (new)\n",
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


SHOWN = "**{name}** - unchanged, it still says:\n```{language}\n{line}\n```\n"


def test_a_few_lines_under_a_heading_that_says_more_are_no_file() -> None:
    kernel = SHOWN.format(name="kernels.cpp", language="cpp", line="return 0;  // as before")
    entry = SHOWN.format(name="program.py", language="python", line="scale(x, y, n)")
    more = ENTRY + "# more\n"
    assert parse_reply(f"### program.py\n{fence(more)}{kernel}", base=NATIVE).files == NATIVE.files | {
        "program.py": more
    }
    assert parse_reply(f"{CHANGE_OF_BASE}{entry}", base=BASE).files["program.py"] == ENTRY
    assert parse_reply(f"{fence(more)}`program.py`: forward in short:\n{fence('y = x + 1' + chr(10))}").files == {
        "program.py": more
    }


def test_what_is_quoted_again_is_no_file_without_a_name() -> None:
    manifest = f"The manifest stays:\n{fence(json.dumps(json.loads(MANIFEST), indent=4) + chr(10), 'json')}"
    body = f"As it was:\n{fence(KERNEL.replace(' { ', ' {' + chr(10) + '    ').replace('return', 'return '), 'cpp')}"
    more = ENTRY + "# more\n"
    longer = NATIVE.model_copy(update={"files": NATIVE.files | {"kernels.cpp": f"// all of it\n{KERNEL}"}})
    read = parse_reply(f"### program.py\n{fence(more)}{manifest}{body}", base=longer)
    assert read.files == longer.files | {"program.py": more}
    assert read.manifest == NATIVE.manifest


@pytest.mark.parametrize("heading", ["# Why program.py: slow", "**program.py** (its kernel)"])
def test_an_edit_under_a_heading_about_another_file_goes_where_it_matches(heading: str) -> None:
    edited = parse_edits(f"{heading}\n<<<<<<< SEARCH\nint b;\n=======\nlong b;\n>>>>>>> REPLACE\n", BASE)
    assert edited.files == BASE.files | {"kernels.cpp": BASE.files["kernels.cpp"].replace("int b;", "long b;")}


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
