"""The benchmark of known bottlenecks is whole: its cases are sound, its words are the code's, its readers read."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from stitchcuda.errors import StitchError
from stitchcuda.profiling import kineto
from stitchcuda.profiling.model import Cause, KernelCounters, Timeline
from stitchcuda.profiling.remedies import FIRST
from stitchcuda.profiling.rules import BOTTLENECK_OF
from tests.profiling.counters import counters

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def truth() -> Iterator[ModuleType]:
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("profile_truth_script", BENCHMARKS / "profile_truth.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["profile_truth_script"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    for name in ("profile_truth_script", "calls", "kernels", "driver", "provenance"):
        sys.modules.pop(name, None)


def test_no_key_reaches_the_tools_and_what_hangs_is_ended(
    truth: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program stands where ncu would, which this machine need not have."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    monkeypatch.setenv("STITCHCUDA_NCU", str(tmp_path / "ncu"))
    (tmp_path / "ncu").write_text(
        f"#!/bin/sh\nenv > {tmp_path}/env\ncase $1 in --version|--query*) exit ;; esac\nexec sleep 100\n"
    )
    (tmp_path / "ncu").chmod(0o755)
    with pytest.raises(StitchError, match="stopped after"):
        truth.collect(["true"], timeout_s=1)
    assert "PATH=" in (tmp_path / "env").read_text()
    assert "sk-planted" not in (tmp_path / "env").read_text()


def test_every_case_is_described_in_words_that_the_code_knows(truth: ModuleType) -> None:
    cases = truth.load(["known", "blind"])
    assert [f"{case.stem}: {case.problems}" for case in cases if case.problems] == []
    known = [case for case in cases if case.folder == "known"]
    assert len(known) >= 16
    labels = {case.facts["labels"][0] for case in known}
    assert labels == set(get_args(Cause)) - {"none"}


def test_the_page_for_authors_lists_the_vocabulary_of_the_code() -> None:
    text = (BENCHMARKS / "profile_truth" / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| .+? \| (.+) \|$", text, re.MULTILINE)
    assert {label: bottleneck for label, bottleneck, _ in rows} == BOTTLENECK_OF
    for label, _, fitting in rows:
        assert FIRST[label][0] in re.findall(r"`(\w+)`", fitting)


def test_what_is_wrong_with_a_case_is_said(truth: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blind").mkdir()
    (tmp_path / "blind" / "ash.cu").write_text('__global__ void other(int* x) {}\nextern "C" int truth_run(void);')
    (tmp_path / "blind" / "ash.toml").write_text(
        'level = "kernels"\nlabels = ["slow"]\nsuggestions = ["coalesce"]\nwhy = "x"'
    )
    monkeypatch.setattr(truth, "CASES", tmp_path)
    (case,) = truth.load(["blind"])
    told = "; ".join(case.problems)
    for part in (
        "truth is missing",
        "level must be",
        "unknown label slow",
        "truth_prepare",
        "kernel other does not begin",
    ):
        assert part in told


def test_a_case_is_judged_by_its_longest_kernel_and_not_by_its_name(truth: ModuleType) -> None:
    case = truth.Case(
        "known", "k", Path("k.cu"), {"labels": ["fma_pipe"], "suggestions": ["compute_less"], "truth": "x"}
    )
    loop = counters(name="sgemm_128x64", pipe_fma=92, issue=93, ffma=3e7, seconds=1e-3)
    case.counters = [counters(dram=90, seconds=1e-4), loop]
    row = truth.judge(case, None)
    assert row["label_right"]
    assert row["suggestion_right"]
    assert row["seconds"] == 1e-3


def test_measurements_are_judged_again_without_a_gpu(
    truth: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streaming = counters(dram=90, stall_long_scoreboard=30, name="k_stream_copy")
    idle = Timeline(
        wall_seconds=1e-2,
        busy_seconds=1e-3,
        gap_seconds=9e-3,
        copy_seconds=0,
        launches=4000,
        idle_seconds={"launch": 9e-3},
    )
    document: dict[str, Any] = {
        "command": "x",
        "seconds": 1.0,
        "provenance": {"gpu": "H200"},
        "device": None,
        "remarks": [],
        "cases": [
            {"case": "k_stream", "error": "", "counters": streaming.model_dump(mode="json")},
            {"case": "k_launches", "error": "", "timelines": {"kineto": idle.model_dump(mode="json")}},
            {"case": "k_tail", "error": "no counters"},
        ],
    }
    assert KernelCounters.model_validate(document["cases"][0]["counters"]) == streaming
    (tmp_path / "in.json").write_text(json.dumps(document))
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["x", "--rejudge", str(tmp_path / "in.json"), "--out", str(out)])
    assert truth.main() == 1
    rows = {row["case"]: row for row in json.loads(out.read_text())["cases"]}
    assert rows["k_stream"]["label"] == "dram_bandwidth"
    assert rows["k_launches"]["label"] == "launch_overhead"
    assert rows["k_launches"]["suggestion_right"]
    assert not rows["k_tail"]["label_right"]
    assert "2 of 3 in all" in out.with_suffix(".md").read_text()


def test_a_chrome_trace_becomes_the_timeline_of_its_calls(truth: ModuleType, tmp_path: Path) -> None:
    def event(cat: str, name: str, ts: float, dur: float, **arguments: object) -> dict[str, object]:
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, "args": arguments}

    events = [event("user_annotation", "truth:k_x", 100.0, 1000.0)]
    for step in range(10):
        events += [
            event("cuda_runtime", "cudaLaunchKernel", 100 + 100 * step, 5, correlation=step),
            event("kernel", "k_x_step", 108 + 100 * step, 10, correlation=step, stream=7),
            event("cuda_runtime", "cudaStreamSynchronize", 105 + 100 * step, 90),
        ]
    events.append(event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 1080, 10, correlation=99))
    (tmp_path / "k_x.trace.json").write_text(json.dumps({"traceEvents": events}))
    line = truth.calls.timeline(kineto.read(tmp_path / "k_x.trace.json"), "k_x")
    assert line.wall_seconds == pytest.approx(1e-3)
    assert line.launches == 10
    assert line.busy_seconds == pytest.approx(110e-6)
    assert line.copy_seconds == line.pageable_seconds == pytest.approx(10e-6)
    assert line.synchronisations == 9
    assert max(line.idle_seconds, key=line.idle_seconds.__getitem__) == "synchronise"
