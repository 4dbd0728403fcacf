"""The shipped notes keep their format, their code compiles, and they are found without any set-up."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

from stitchcuda.knowledge.index import open_index
from stitchcuda.knowledge.notes_loader import Fragment, Note, load_notes, parse_note, sync_notes
from stitchcuda.knowledge.search import Searcher
from stitchcuda.knowledge.store import Store

NOTES = load_notes()
COMPILED = [(note, n, f) for note in NOTES for n, f in enumerate(note.fragments) if f.check == "compile"]
NVCC = shutil.which("nvcc")
CUTLASS = Path(sysconfig.get_paths()["purelib"]) / "cutlass_library" / "source" / "include"


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.name)
def test_a_note_keeps_the_format(note: Note) -> None:
    assert 150 <= note.words <= 600
    assert note.sources
    assert "\n## " in note.body


@pytest.mark.parametrize(
    ("note", "fragment"),
    [pytest.param(note, f, id=f"{note.name}-{n}") for note, n, f in COMPILED if f.language in ("cuda", "cpp")],
)
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
def test_a_code_fragment_compiles(note: Note, fragment: Fragment, tmp_path: Path) -> None:
    assert NVCC is not None
    source = tmp_path / "fragment.cu"
    source.write_text(fragment.code)
    arch = fragment.options.get("arch", "sm_90a")
    # Device code to the end; host code is read and checked by nvcc's front end too, and g++ need not compile it.
    target = "-ptx" if fragment.options.get("to") == "ptx" else "-cubin"
    command = [NVCC, f"-arch={arch}", "-std=c++17", target, str(source), "-o", str(tmp_path / "fragment.o")]
    if fragment.options.get("with") == "cutlass":
        assert (CUTLASS / "cutlass" / "cutlass.h").is_file(), "pip install -e '.[dev]' brings CUTLASS's headers"
        command += ["-w", "-isystem", str(CUTLASS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{note.name}: {result.stderr[:2000]}"


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.name)
def test_no_code_is_left_uncompiled(note: Note) -> None:
    fences = re.findall(r"^```(.+)$", note.body, re.MULTILINE)
    assert len(fences) == len(note.fragments)
    for fragment in note.fragments:
        if fragment.check != "compile":
            assert fragment.language in ("text", "sh"), f"{fragment.code[:60]!r} is not compiled"
            assert not re.search(r"^\s*#include|__global__|^def ", fragment.code, re.M)


@pytest.mark.parametrize(
    "fragment", [pytest.param(f, id=f"{note.name}-{n}") for note, n, f in COMPILED if f.language == "python"]
)
def test_a_python_fragment_parses(fragment: Fragment) -> None:
    compile(fragment.code, "fragment", "exec")


def _run(name: str) -> dict[str, Any]:
    """The names that the Python fragment of a note defines."""
    (code,) = (f.code for note, _, f in COMPILED if note.name == name and f.language == "python")
    names: dict[str, Any] = {}
    exec(compile(code, name, "exec"), names)
    return names


@pytest.mark.parametrize("gelu", [False, True])
def test_the_fused_linear_of_its_note_is_a_linear_layer_and_its_activation(gelu: bool) -> None:
    linear = torch.nn.Linear(16, 24)
    x = torch.randn(2, 5, 16)
    found = _run("cublaslt_epilogues.md")["FusedLinear"](linear, gelu)(x)
    expected = torch.nn.functional.gelu(linear(x)) if gelu else linear(x).relu()
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_fused_convolution_of_its_note_is_a_convolution_with_its_residual_and_relu() -> None:
    conv = torch.nn.Conv2d(16, 32, 3, padding=1).half().cuda()
    x = torch.randn(2, 16, 8, 8, device="cuda", dtype=torch.half)
    residual = torch.randn(2, 32, 8, 8, device="cuda", dtype=torch.half)
    fused = _run("cudnn_graph_api.md")["FusedConv"](conv)
    torch.testing.assert_close(fused(x), conv(x).relu(), atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(fused(x, residual), (conv(x) + residual).relu(), atol=1e-2, rtol=1e-2)


def test_torch_has_the_fused_convolutions_that_the_note_names() -> None:
    for name in ("cudnn_convolution_relu", "cudnn_convolution_add_relu"):
        assert callable(getattr(torch, name))


@pytest.mark.parametrize(
    "text",
    [
        "no front matter",
        "+++\ntitle = \n+++\nbody",
        '+++\ntitle = "t"\narch = []\nlibraries = []\nsources = []\n+++\nbody',
        '+++\ntitle = "t"\narch = ["gtx"]\nlibraries = []\nsources = ["s"]\n+++\nbody',
        '+++\ntitle = "t"\narch = []\nlibraries = []\nsources = ["s"]\nmore = 1\n+++\nbody',
    ],
)
def test_a_note_that_breaks_the_format_is_named(text: str) -> None:
    from stitchcuda.errors import KnowledgeError

    with pytest.raises(KnowledgeError, match=r"broken\.md"):
        parse_note("broken.md", text)


def test_notes_are_found_without_set_up(tmp_path: Path) -> None:
    store = open_index(tmp_path / "not" / "yet" / "there.sqlite")
    found = Searcher(store).search("bank conflicts in a transpose", arch=["sm_90"])
    assert found[0].source.startswith("notes/")
    store.close()


def test_opening_again_does_not_index_again(tmp_path: Path) -> None:
    store = open_index(tmp_path / "i.sqlite")
    assert not sync_notes(store)
    store.set_meta("notes", "of another release")
    assert sync_notes(store)
    assert [s.uri for s in store.sources()] == ["notes"]
    store.close()


def test_notes_are_served_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = open_index(tmp_path / "file" / "knowledge.sqlite")
    assert store.path is None
    assert Searcher(store).search("coalesced access")
    store.close()


def test_an_index_that_cannot_be_written_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "i.sqlite"
    open_index(path).close()
    store = Store(path, read_only=True)
    assert Searcher(store).search("coalesced access")
    store.close()


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="mounts of its own are not allowed here",
)
@pytest.mark.parametrize("there", [True, False])
def test_a_read_only_file_system_still_answers(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    if there:
        open_index(folder / "knowledge.sqlite").close()
    script = (
        'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && STITCHCUDA_CACHE="$1" '
        f"{sys.executable} -m stitchcuda.cli.main knowledge search coalesced access --json"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passages"][0]["source"].startswith("notes/")
