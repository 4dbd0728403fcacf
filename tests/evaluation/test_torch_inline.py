"""Calls of ``load_inline`` are read from a Program's text with what they compile and with which flags, and the runner's
stand-in for ``torch.utils.cpp_extension`` answers them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from stitchcuda.evaluation import torch_inline
from stitchcuda.evaluation.torch_calls import inline_calls
from stitchcuda.evaluation.torch_flags import FlagRefused, checked_flags
from stitchcuda.program.model import Program


def test_calls_are_found_however_they_are_written() -> None:
    text = """
import torch.utils.cpp_extension as extension
from torch.utils import cpp_extension
from torch.utils.cpp_extension import load_inline as compile_it

BODY = "int f() { return %d; }" % 3
a = compile_it("a", [BODY], None, functions={"f": "three"}, extra_cflags=[""])
lines = "\\n".join(["x", "y"])
b = cpp_extension.load_inline(name=f"b{id(a)}", cpp_sources="int f();", cuda_sources=lines, verbose=True)
c = extension.load(name="c", sources=["c.cpp"])
"""
    calls = inline_calls(Program(files={"program.py": text}))
    assert [(call.name, call.problem) for call in calls] == [("a", ""), ("", ""), ("", "load() compiles files")]
    first, second = (call.request for call in calls[:2])
    assert first is not None
    assert second is not None
    assert (first["cpp"], first["functions"], first["extra_cflags"]) == (
        ["int f() { return 3; }"],
        {"f": "three"},
        [],
    )
    assert (second["cuda"], second["with_cuda"]) == (["x\ny"], True)


def test_sources_are_known_where_their_names_mean_several_things() -> None:
    text = """
from torch.utils.cpp_extension import load_inline

class First:
    def __init__(self):
        source = "first"
        self.ext = load_inline("a", [source], functions=["f"])

class Second:
    def __init__(self):
        source = "second"
        self.source = source + "!"
        self.kernel = "kernel"
        self.ext = load_inline("b", source, cuda_sources=self.kernel, functions=["f"])

def third(source):
    return load_inline("c", source)
"""
    calls = inline_calls(Program(files={"program.py": text}))
    assert [call.request and (call.request["cpp"], call.request["cuda"]) for call in calls] == [
        (["first"], []),
        (["second"], ["kernel"]),
        None,
    ]


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ({"extra_cflags": ["-O3", "-march=native", "-ffast-math", "-DN=3", "-std=c++17"]}, ""),
        (
            {"extra_cuda_cflags": ["-O3 --use_fast_math", "-Xptxas", "-v", "-gencode", "arch=compute_90a,code=sm_90a"]},
            "",
        ),
        ({"extra_cuda_cflags": ["-arch=sm_80"]}, "another architecture"),
        ({"extra_cflags": ["-include", "/etc/passwd"]}, "-include is not known"),
        ({"extra_cflags": ["-fplugin=x.so"]}, "-fplugin=x.so is not known"),
        ({"extra_ldflags": ["-lcudnn"]}, "-lcudnn is not known"),
        ({"extra_include_paths": ["/usr/include"]}, "include paths"),
    ],
)
def test_flags_are_known_or_refused(flags: dict[str, list[str]], refused: str) -> None:
    wanted = torch_inline.request({"cpp_sources": "", **flags})
    assert wanted is not None
    if not refused:
        assert checked_flags(wanted, "90a").cxx[:1] == (("-O3",) if "extra_cflags" in flags else ())
        return
    with pytest.raises(FlagRefused, match=refused):
        checked_flags(wanted, "90a")


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[ModuleType]:
    """The module that a runner puts in place of torch's, with one call that failed to build."""
    real = sys.modules.get("torch.utils.cpp_extension")
    wanted = torch_inline.request({"cpp_sources": "int f(;", "functions": ["f"]})
    assert wanted is not None
    folder = tmp_path / torch_inline.FOLDER
    folder.mkdir()
    (folder / torch_inline.INDEX).write_text(json.dumps({torch_inline.digest(wanted): {"error": "line 1"}}))
    torch_inline.install(folder)
    import torch.utils.cpp_extension as module

    yield module
    sys.modules.pop("torch.utils.cpp_extension", None)
    if real is not None:
        torch_inline._put_in_place(real)


def test_the_stand_in_is_torchs_module_for_everything_else(stand_in: ModuleType) -> None:
    assert isinstance(stand_in, torch_inline.Extensions)
    assert stand_in.CppExtension.__module__ == "torch.utils.cpp_extension"
    assert sys.modules["torch.utils.cpp_extension"] is stand_in
    assert torch.utils.cpp_extension is stand_in
    with pytest.raises(RuntimeError, match="Error building extension 'f': line 1"):
        stand_in.load_inline("f", "int f(;", functions=["f"], verbose=True)
