"""``stitchcuda profile`` prints, draws, keeps and compares; nothing that it writes holds a key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.world import GOOD, in_turn, stitchcuda


@pytest.mark.slow
def test_one_profile_in_all_its_forms_and_compared_with_the_task(home: Path, cache: Path) -> None:
    (home / "good.py").write_text(GOOD)
    done = stitchcuda(
        *("profile", "small.py", "good.py", "--target", "cpu", "--json", "--compare", "--html", "page.html"),
        *("--trace", "trace.json", "--keep", "kept"),
        cache=cache,
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["subject"], found["source"]) == ("program", "kineto")
    assert found["comparison"]["before_launches"] > found["comparison"]["after_launches"]
    assert found["comparison"]["speedup"] > 0
    assert found["processor"] or any(remark.startswith("without counters: ") for remark in found["remarks"])
    assert "<svg" in (home / "page.html").read_text()
    assert json.loads((home / "trace.json").read_text())["traceEvents"]
    assert (home / "kept" / "program.trace.json").stat().st_size > 1000

    (home / "before.json").write_text(json.dumps({k: v for k, v in found.items() if k != "comparison"}))
    done = stitchcuda(
        *("profile", "small.py", "--target", "cpu", "--counters", "0", "--digest", "--before", "before.json"),
        cache=cache,
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    assert "Profile of the reference by kineto" in done.stdout
    assert "launches" in done.stdout.splitlines()[-2] or "Wall" in done.stdout


WRONG_USE = {
    ("small.py", "--source", "perf"): "unknown source 'perf'",
    ("small.py", "--compare"): "needs a PROGRAM",
    ("small.py", "good.py", "--compare", "--before", "small.py"): "give one of them",
    ("small.py", "--json", "--digest"): "two forms of one answer",
    ("small.py", "--before", "small.py"): "is no Profile",
    ("small.py", "--before", "binary"): "binary is no Profile",
}


def test_wrong_use_is_a_sentence(home: Path, cache: Path) -> None:
    (home / "binary").write_bytes(b"\x7fELF\xff\xfe")
    lines = [("profile", *words, "--target", "cpu") for words in WRONG_USE]
    for done, says in zip(in_turn(*lines, cache=cache, cwd=home), WRONG_USE.values(), strict=True):
        assert done.returncode == 2, done
        assert says in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def test_what_holds_a_key_is_not_written(home: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-secret-0123456789")
    text = (home / "small.py").read_text()
    planted = "torch.autograd.profiler.record_function('own::planted-secret-0123456789')"
    (home / "small.py").write_text(text.replace("        y = x\n", f"        y = x\n        {planted}.__enter__()\n"))
    words = ("--target", "cpu", "--counters", "0", "--trace", "trace.json")
    done = stitchcuda("profile", "small.py", *words, cache=cache, cwd=home)
    assert done.returncode == 2
    assert "MY_API_KEY" in done.stderr
    assert "planted-secret" not in done.stderr
    assert not (home / "trace.json").exists()
