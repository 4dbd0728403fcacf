"""The shipped notes keep their format, their code compiles, and they are found without any set-up."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stitchcuda.knowledge.index import open_index
from stitchcuda.knowledge.notes_loader import Fragment, Note, load_notes, parse_note, sync_notes
from stitchcuda.knowledge.search import Searcher
from stitchcuda.knowledge.store import Store

NOTES = load_notes()
COMPILED = [(note, n, f) for note in NOTES for n, f in enumerate(note.fragments) if f.check == "compile"]
NVCC = shutil.which("nvcc")


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.name)
def test_a_note_keeps_the_format(note: Note) -> None:
    assert 150 <= note.words <= 600
    assert note.sources
    assert "\n## " in note.body
    for fragment in note.fragments:
        if fragment.language in ("cuda", "cpp", "c++"):
            assert fragment.check in ("compile", "fragment"), f"say how {fragment.code[:60]!r} is checked"


@pytest.mark.parametrize(
    ("note", "fragment"),
    [pytest.param(note, f, id=f"{note.name}-{n}") for note, n, f in COMPILED if f.language in ("cuda", "cpp")],
)
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
def test_a_code_fragment_compiles(note: Note, fragment: Fragment, tmp_path: Path) -> None:
    assert NVCC is not None
    source = tmp_path / "fragment.cu"
    needed = fragment.options.get("requires")
    if needed:
        source.write_text(f"#if !__has_include(<{needed}>)\n#error missing\n#endif\n")
        if subprocess.run([NVCC, "-E", str(source)], capture_output=True, check=False).returncode:
            pytest.skip(f"{needed} is not installed")
    source.write_text(fragment.code)
    arch = fragment.options.get("arch", "sm_90a")
    command = [NVCC, f"-arch={arch}", "-std=c++17", "-c", str(source), "-o", str(tmp_path / "fragment.o")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{note.name}: {result.stderr[:2000]}"


@pytest.mark.parametrize(
    "fragment", [pytest.param(f, id=f"{note.name}-{n}") for note, n, f in COMPILED if f.language == "python"]
)
def test_a_python_fragment_parses(fragment: Fragment) -> None:
    compile(fragment.code, "fragment", "exec")


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
