"""A run's folder: its name is its own."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from stitchcuda.errors import RunError
from stitchcuda.workflow.folder import RunFolder
from tests.workflow.world import TASK, config


def test_runs_that_begin_in_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(["0000", "0000", "0001"] * 3)  # three times, since a second may end in between
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(drawn))
    folders = [RunFolder.new(tmp_path, TASK, config()) for _ in range(2)]
    assert len({folder.path for folder in folders}) == 2


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "runs"
    place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunError, match="cannot be kept in"):
        RunFolder.new(place, TASK, config())
