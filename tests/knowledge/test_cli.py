"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stitchcuda.cli.knowledge import knowledge


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STITCHCUDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STITCHCUDA_EMBEDDER", raising=False)
    return tmp_path / "cache" / "knowledge.sqlite"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(knowledge, arguments, catch_exceptions=True)


def test_search_prints_title_source_score_and_passage(index: Path) -> None:
    result = call("search", "bank conflicts in a transpose", "--arch", "sm_90")
    assert result.exit_code == 0
    assert "1. " in result.output
    assert "notes/" in result.output
    assert "score" in result.output
    assert "bank conflicts" in result.output
    assert index.is_file()


def test_search_as_json_is_one_object(index: Path) -> None:
    data = json.loads(call("search", "cuda graph capture", "--json", "-n", "2").output)
    assert len(data["passages"]) == 2
    assert {"title", "source", "score", "text", "reference"} <= set(data["passages"][0])


def test_nothing_found_is_exit_1(index: Path) -> None:
    assert call("search", "zzzqqq").exit_code == 1


def test_an_unknown_architecture_is_wrong_use(index: Path) -> None:
    result = call("search", "mma", "--arch", "gtx")
    assert result.exit_code == 2


def test_add_list_remove(index: Path, documents: Path) -> None:
    (documents / "guide.md").write_text("# Our guide\n\nzebrafish tiles\n")
    added = json.loads(call("add", str(documents), "--version", "7", "--library", "CUTLASS", "--json").output)
    assert added["sources"][0]["added"] == 1
    found = json.loads(call("search", "zebrafish", "--library", "cutlass", "--json").output)
    assert found["passages"][0]["version"] == "7"
    listed = call("list")
    assert f"{documents} 7: 1 documents, 1 passages" in listed.output
    assert call("remove", str(documents)).exit_code == 0
    assert call("search", "zebrafish").exit_code == 1


def test_what_cannot_be_added_is_named_and_the_rest_is_added(index: Path, documents: Path) -> None:
    (documents / "guide.md").write_text("# Our guide\n\nzebrafish tiles\n")
    (documents / "bad.md").write_bytes(b"\0\0")
    result = call("add", str(documents / "none"), str(documents))
    assert result.exit_code == 1
    assert "not there" in result.output
    assert "bad.md is binary" in result.output
    assert call("search", "zebrafish").exit_code == 0


def test_add_needs_something_to_add(index: Path) -> None:
    assert call("add").exit_code == 2
