"""The build cache: bounded, shared by processes, and whole whoever is killed or whatever is damaged."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitchcuda.evaluation.build import build
from stitchcuda.evaluation.build_cache import BuildCache, release_leases
from stitchcuda.task.model import Target
from tests.program.samples import CPU_SOURCE, cpu_program

CPU = Target(kind="cpu", arch="native")


@pytest.fixture(autouse=True)
def no_leases() -> Iterator[None]:
    release_leases()
    yield
    release_leases()


def put(cache: BuildCache, key: str, size: int = 1000, text: str = "x") -> Path:
    with cache.aside(key) as folder:
        (folder / "file").write_text(text * size)
        return cache.publish("libraries", key, folder)


def keys(cache: BuildCache) -> set[str]:
    return {path.name for path in (cache.root / "libraries").iterdir()}


def used_at(cache: BuildCache, key: str, when: float) -> None:
    os.utime(cache.root / "locks" / f"libraries-{key}", (when, when))


def test_the_entries_used_longest_ago_go_first(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    for number, key in enumerate("abcd"):
        put(cache, key)
        used_at(cache, key, 1000 + number)
    assert cache.find("libraries", "a") is not None
    release_leases()
    removed = cache.trim(2500)
    assert keys(cache) == {"a", "d"}
    assert removed >= 2000
    assert cache.find("libraries", "b") is None
    assert not list(cache.scratch.iterdir())


def test_what_a_living_process_uses_is_not_removed(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    put(cache, "used")
    release_leases()
    code = (
        "import sys; from pathlib import Path; from stitchcuda.evaluation.build_cache import BuildCache;"
        f"print(BuildCache(Path({str(tmp_path)!r})).find('libraries', 'used'), flush=True); sys.stdin.read()"
    )
    user = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert user.stdout is not None
    assert user.stdout.readline().strip() == str(tmp_path / "libraries" / "used")
    cache.trim(0)
    assert keys(cache) == {"used"}
    user.kill()
    user.wait()
    cache.trim(0)
    assert keys(cache) == set()


def test_a_full_cache_trims_itself(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, limit_bytes=5000)
    for number in range(12):
        put(cache, f"k{number:02}")
        used_at(cache, f"k{number:02}", number)
        release_leases()
    assert len(keys(cache)) <= 5
    assert "k11" in keys(cache)


def test_the_limit_is_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STITCHCUDA_BUILD_CACHE_BYTES", "12345")
    assert BuildCache(tmp_path).limit == 12345


def test_a_changed_file_makes_an_entry_void_and_publishing_replaces_it(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    folder = put(cache, "k")
    (folder / "file").write_text("other")
    assert cache.find("libraries", "k") is None
    assert (put(cache, "k") / "file").read_text() == "x" * 1000
    assert cache.find("libraries", "k") == folder


def test_an_entry_without_its_seal_is_not_there(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    (put(cache, "k") / ".seal").unlink()
    assert cache.find("libraries", "k") is None


def write_many(arguments: tuple[str, int]) -> bool:
    """Publish, find and trim the same few entries as fast as can be; whether all that was found was whole."""
    cache, number = BuildCache(Path(arguments[0])), arguments[1]
    good = True
    for turn in range(40):
        key = f"k{(number + turn) % 3}"
        put(cache, key, text=key[-1])
        found = cache.find("libraries", key)
        if found is not None:
            good = good and (found / "file").read_text() == key[-1] * 1000
        if turn % 10 == number:
            release_leases()
            cache.trim(0)
    return good


def test_many_processes_write_read_and_trim_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert all(pool.map(write_many, [(str(tmp_path), number) for number in range(4)], chunksize=1))
    assert not list((tmp_path / "scratch").iterdir())


def test_of_builders_that_want_the_same_one_compiles_and_the_others_wait(tmp_path: Path) -> None:
    results = []

    def run() -> None:
        results.append(build(cpu_program(), CPU, cache=tmp_path))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result.ok for result in results)
    assert sum(not result.cached for result in results) == 1


def test_a_builder_that_hangs_keeps_nobody_from_building(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    with cache.making("k", time.monotonic() + 60, lambda: False):
        began = time.monotonic()
        with cache.making("k", began + 0.2, lambda: False):
            assert time.monotonic() - began < 30


def test_a_killed_compiler_leaves_nothing_half_written(tmp_path: Path) -> None:
    program = cpu_program("#include <regex>\n" + CPU_SOURCE)
    code = (
        "from pathlib import Path; from stitchcuda.evaluation.build import build;"
        "from tests.evaluation.test_build_cache import CPU, CPU_SOURCE, cpu_program;"
        f"build(cpu_program('#include <regex>\\n' + CPU_SOURCE), CPU, cache=Path({str(tmp_path)!r}))"
    )
    builder = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list((tmp_path).glob("scratch/*/src/kernels.cpp")):
        time.sleep(0.01)
    builder.kill()
    builder.wait()
    assert not list(tmp_path.glob("libraries/*"))
    again = build(program, CPU, cache=tmp_path)
    assert again.ok
    assert not again.cached
