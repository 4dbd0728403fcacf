"""What is kept stays within its bounds, is whole or absent for every process, and never stands in a reward's way."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from stitchcuda.reward.service_cache import OVERHEAD, Disk, Lru

WRITER = """
import sys
from pathlib import Path
from stitchcuda.reward.service_cache import Disk
disk = Disk(Path(sys.argv[1]), 1 << 24, lambda text: sys.exit(text))
for n in range(200):
    disk.put(f"k{n}", f"{n}:".encode() * 200)
    found = disk.get(f"k{(n * 7) % 200}")
    assert found is None or found == f"{(n * 7) % 200}:".encode() * 200
disk.close()
"""


def test_the_least_recently_used_goes_first() -> None:
    size = 100 + 1 + OVERHEAD
    kept = Lru(3 * size)
    for key in "abc":
        kept.put(key, bytes(100))
    kept.get("a")
    kept.put("d", bytes(100))
    assert [key for key in "abcd" if kept.get(key) is not None] == ["a", "c", "d"]
    assert kept.bytes == 3 * size
    kept.put("e", bytes(4 * size))
    assert kept.get("e") is None
    assert len(kept) == 3
    kept.put("a", bytes(10))
    kept.drop("c")
    assert kept.bytes == 10 + 1 + OVERHEAD + size


def test_values_outlive_their_process_and_can_be_dropped(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "sub" / "cache.db", 1 << 20)
    disk.put("a", b"one" * 1000)
    disk.put("b", b"")
    disk.close()
    again = Disk(tmp_path / "sub" / "cache.db", 1 << 20)
    assert again.get("a") == b"one" * 1000
    assert again.get("b") == b""
    again.drop("a")
    assert again.get("a") is None
    again.close()
    assert again.get("b") is None


def test_the_file_keeps_what_was_used_last_within_its_bound(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "cache.db", 1 << 20)
    for n in range(150):
        disk.put(f"k{n}", os.urandom(10_000))
    assert disk.bytes() <= 1 << 20
    assert disk.get("k0") is None
    assert disk.get("k149") is not None
    disk.close()
    smaller = Disk(tmp_path / "cache.db", 1 << 17)
    assert smaller.bytes() <= 1 << 17
    smaller.close()


def test_several_processes_write_and_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stderr=subprocess.PIPE) for _ in range(3)]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    disk = Disk(path, 1 << 24)
    assert all(disk.get(f"k{n}") == f"{n}:".encode() * 200 for n in range(200))
    disk.close()


def test_a_killed_writer_leaves_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    endless = WRITER.replace("range(200):", "__import__('itertools').count():").replace("disk.close()", "")
    process = subprocess.Popen([sys.executable, "-c", endless, str(path)], stderr=subprocess.DEVNULL)
    while not path.exists() or Disk(path, 1 << 24).bytes() < 1000:
        assert process.poll() is None
    process.kill()
    process.wait()
    disk = Disk(path, 1 << 24)
    with sqlite3.connect(path) as plain:
        keys = [row[0] for row in plain.execute("SELECT key FROM entry")]
    assert keys
    for key in keys:
        assert disk.get(key) == f"{key[1:]}:".encode() * 200
    disk.close()


@pytest.mark.parametrize("how", ["damaged", "another version", "a folder"])
def test_a_file_that_cannot_be_used_is_named_and_left_alone(tmp_path: Path, how: str) -> None:
    path = tmp_path / "cache.db"
    if how == "damaged":
        path.write_bytes(b"SQLite format 3\0" + os.urandom(5000))
    elif how == "a folder":
        path.mkdir()
    else:
        with sqlite3.connect(path) as other:
            other.execute("PRAGMA user_version=99")
    before = path.read_bytes() if path.is_file() else b""
    said: list[str] = []
    disk = Disk(path, 1 << 20, said.append)
    disk.put("a", b"1")
    assert disk.get("a") is None
    assert len(said) == 1
    assert str(path) in said[0]
    assert (path.read_bytes() if path.is_file() else b"")[:5000] == before[:5000]
