"""Files that are whole or absent, whoever writes them at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stitchcuda.workflow.storage import sweep, write_whole


def test_threads_may_write_one_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write_whole, path, bytes([number]) * 10_000) for number in range(40)]:
            done.result()
    written = path.read_bytes()
    assert len(written) == 10_000
    assert len(set(written)) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".best.1-2.part").mkdir()
    (tmp_path / ".best.json.1-2.part").write_text("{")
    (tmp_path / "best.json").write_text("{}")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["best.json"]
