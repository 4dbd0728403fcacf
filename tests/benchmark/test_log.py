"""The journal of a sweep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stitchcuda.benchmark.log import NAME, Log, read_log
from stitchcuda.errors import RunError
from stitchcuda.workflow.lock import is_running


def test_what_was_added_is_read_again(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.add("begun", {"items": []})
        log.add("record", {"item": "a.0"})
    entries, length = read_log(tmp_path / NAME)
    assert [(entry.kind, entry.data) for entry in entries] == [("begun", {"items": []}), ("record", {"item": "a.0"})]
    assert length == (tmp_path / NAME).stat().st_size


def test_a_line_that_was_cut_at_any_byte_is_dropped_and_the_next_goes_on(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.add("begun", {"items": []})
        whole = (tmp_path / NAME).stat().st_size
        log.add("record", {"item": "a.0"})
    content = (tmp_path / NAME).read_bytes()
    for cut in range(whole, len(content)):
        (tmp_path / NAME).write_bytes(content[:cut])
        with Log(tmp_path) as log:
            assert [entry.kind for entry in log.entries] == ["begun"]
            log.add("ended", {})
        assert [entry.kind for entry in read_log(tmp_path / NAME)[0]] == ["begun", "ended"]


def test_an_edited_line_is_damage(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.add("record", {"item": "a.0"})
        log.add("record", {"item": "b.0"})
    path = tmp_path / NAME
    path.write_text(path.read_text().replace("a.0", "c.0"))
    with pytest.raises(RunError, match="damaged at line 1"):
        Log(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Log(tmp_path):
        assert is_running(tmp_path)
        with pytest.raises(RunError, match="in use by another"):
            Log(tmp_path)
    assert not is_running(tmp_path)


def test_a_line_whose_writing_was_interrupted_spoils_none_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def interrupted(handle: int) -> None:
        real(handle)
        monkeypatch.setattr(os, "fsync", real)
        raise KeyboardInterrupt

    with Log(tmp_path) as log:
        log.add("begun", {})
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.add("record", {"item": "a.0"})
        log.add("stopped", {"reason": "asked to"})
    assert [entry.kind for entry in read_log(tmp_path / NAME)[0]] == ["begun", "stopped"]
