"""Bad Programs are refused at the door, with a sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.errors import ProgramError
from stitchcuda.program.files import load_program, write_program
from stitchcuda.program.model import Argument, Launcher, Program
from stitchcuda.program.validate import validate
from tests.program.samples import ENTRY, cpu_program


def with_file(path: str, text: str = "x = 1\n") -> Program:
    return Program(files={**cpu_program().files, path: text}, manifest=cpu_program().manifest)


def with_launcher(change: Callable[[Launcher], dict[str, Any]]) -> Program:
    program = cpu_program()
    assert program.manifest is not None
    old = program.manifest.launchers[0]
    manifest = program.manifest.model_copy(update={"launchers": [old.model_copy(update=change(old))]})
    return program.model_copy(update={"manifest": manifest})


def arguments(*extra: Argument) -> Callable[[Launcher], dict[str, Any]]:
    return lambda old: {"arguments": [*old.arguments, *extra]}


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (with_file("/etc/passwd"), "is absolute"),
        (with_file("~/x.py"), "is absolute"),
        (with_file("C:/x.py"), "is absolute"),
        (with_file("a/../../x.py"), "leaves the program's folder"),
        (with_file("a\\b.py"), "backslash"),
        (with_file("a b.py"), "not a plain name"),
        (with_file(".hidden"), "not a plain name"),
        (with_file("a//b.py"), "not a plain name"),
        (with_file("a/" * 8 + "b.py"), "not a plain name"),
        (with_file("bindings.py"), "written by the build step"),
        (with_file("Program.py"), "differ only in case"),
        (with_file("kernels.cpp/x.py"), "both a file and the folder"),
        (with_file("big.txt", "x" * (2**20 + 1)), r"big\.txt has 1,048,577 bytes"),
        (with_file("nul.txt", "a\0b"), "NUL"),
        (with_file("evil.cpp", '#include "/etc/passwd"\n'), "includes '/etc/passwd'"),
        (with_file("evil.cpp", "#include <../../secret.h>\n"), r"includes '\.\./\.\./secret\.h'"),
        (Program(files={f"f{n}.txt": "" for n in range(65)}), "65 files"),
        (Program(files={f"f{n}.txt": "x" * 2**20 for n in range(5)}), "in all"),
        (Program(files={"kernels.cu": ""}), r"no program\.py \(its files: kernels\.cu\)"),
        (Program(files={"program.py": "class Model: pass\n"}), "does not define ModelNew"),
        (Program(files={"program.py": "class ModelNew(:\n"}), "not valid Python"),
        (with_launcher(lambda _: {"name": "9lives"}), "not a free C identifier"),
        (with_launcher(lambda _: {"name": "int"}), "not a free C identifier"),
        (with_launcher(lambda _: {"name": "other"}), "does not define other"),
        (with_launcher(lambda _: {"source": "gone.cpp"}), r"gone\.cpp, which is not there \(sources: kernels\.cpp\)"),
        (with_launcher(lambda _: {"source": "common.h"}), "must end in .cpp"),
        (with_launcher(arguments(Argument(name="x", dtype="float32"))), "listed twice"),
        (with_launcher(arguments(Argument(name="a", dtype="float32", alignment=3))), "power of two"),
        (with_launcher(arguments(Argument(name="a", kind="scalar", dtype="float16"))), "pass it as float32"),
        (with_launcher(arguments(Argument(name="a", kind="scalar", dtype="int64", role="output"))), "cannot have role"),
        (with_launcher(lambda old: {"arguments": old.arguments[:2]}), "writes nothing"),
    ],
)
def test_a_bad_program_is_refused(program: Program, sentence: str) -> None:
    with pytest.raises(ProgramError, match=sentence):
        validate(program)


def test_a_program_survives_the_disk(tmp_path: Path) -> None:
    write_program(cpu_program(), tmp_path / "p")
    assert load_program(tmp_path / "p") == cpu_program()
    assert load_program(tmp_path / "p").digest == cpu_program().digest


def test_a_single_file_is_a_program(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text(ENTRY)
    assert load_program(tmp_path / "answer.py").files == {"program.py": ENTRY}


def test_what_lies_beside_the_sources_is_left_out(tmp_path: Path) -> None:
    write_program(cpu_program(), tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "program.py").write_text("x")
    for name in ("kernels.so", "bindings.py", ".hidden.py"):
        (tmp_path / name).write_text("x")
    assert load_program(tmp_path) == cpu_program()


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    write_program(cpu_program(), tmp_path)
    os.symlink("/etc/passwd", tmp_path / "data.txt")
    with pytest.raises(ProgramError, match=r"data\.txt in .* is a symbolic link"):
        load_program(tmp_path)


@pytest.mark.parametrize("name", ["nothing", "text.txt"])
def test_a_path_that_holds_no_program_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(ProgramError, match="program"):
        load_program(tmp_path / name)


def test_writing_never_follows_a_link_out_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    (tmp_path / "p").mkdir()
    os.symlink(outside, tmp_path / "p" / "program.py")
    write_program(cpu_program(), tmp_path / "p")
    assert outside.read_text() == "mine"
