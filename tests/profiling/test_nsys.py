"""Nsight Systems is found where it may lie, and what it says is explained with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.errors import ToolMissing
from stitchcuda.profiling.nsys import LIBRARIES, SETTING, Nsys, explain, export_command, find_nsys, profile_command


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    path = tmp_path / "nsys"
    path.write_text("#!/bin/sh\necho 'NVIDIA Nsight Systems version 2025.3.2.0-1'\n")
    path.chmod(0o755)
    return path


def test_the_setting_comes_first_and_the_version_is_asked(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, str(tool))
    monkeypatch.setenv(LIBRARIES, "/opt/dw")
    found = find_nsys()
    assert (found.path, found.version, found.libraries) == (tool, "2025.3.2.0", ("/opt/dw",))
    assert found.environment["LD_LIBRARY_PATH"].startswith("/opt/dw")


def test_it_is_found_on_the_path(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setenv("PATH", str(tool.parent))
    assert find_nsys().path == tool


@pytest.mark.parametrize(("value", "told"), [("/no/such/nsys", "no program"), ("off", "switched off")])
def test_a_wrong_setting_is_named(value: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, value)
    with pytest.raises(ToolMissing, match=told):
        find_nsys()


def test_graphs_are_traced_by_node_and_nothing_else_is_sampled() -> None:
    words = profile_command(Nsys(Path("/x/nsys")), ["python", "t.py"], "/w/rep")
    for word in ("--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none", "--capture-range=cudaProfilerApi"):
        assert word in words
    assert words[-2:] == ["python", "t.py"]
    assert export_command(Nsys(Path("/x/nsys")), "/w/rep", "/w/rep.sqlite")[-1] == "/w/rep.nsys-rep"


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("error while loading shared libraries: libdw.so.1: cannot open shared object file", "apt-get install libdw1"),
        ("Importer error status: The importer binary and its dependencies were not found.", LIBRARIES),
        ("libfoo.so.2: cannot open shared object file: No such file", "libfoo.so.2"),
        ("all is well\nError: permission denied on x\n", "permission denied on x"),
        ("", "nothing"),
    ],
)
def test_messages_are_explained_with_the_fix(printed: str, told: str) -> None:
    assert told in explain(printed)
