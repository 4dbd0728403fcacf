"""The benchmark that holds two profilers to each other says when they disagree, and works through its list."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.hardware.model import Device
from tests.profiling.test_capture import SOURCE

MOST_CHARACTERS = 1800
"""A few hundred tokens: 280 to 600 as identifiers, numbers and signs are counted."""
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "profile_level3.py"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("profile_level3", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    before, path = dict(os.environ), list(sys.path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    os.environ.clear()
    os.environ.update(before)
    sys.path[:] = path
    return module


def one(device: float, busy: float, span: float) -> dict[str, Any]:
    return {"device_seconds": device, "busy_seconds": busy, "traced_event_seconds": span, "event_seconds": span}


@pytest.mark.parametrize(
    ("nsys", "kineto", "agree", "below"),
    [
        (one(1.00, 1.00, 1.1), one(1.04, 1.04, 1.1), True, True),
        (one(1.00, 1.00, 1.1), one(1.07, 1.07, 1.1), False, True),
        (one(1.00, 1.00, 0.9), one(1.00, 1.00, 1.1), True, False),
        (one(1.30, 1.00, 1.1), one(1.30, 1.00, 1.1), True, True),  # overlapping streams: the sum may be larger
        (one(0.00, 0.00, 1.1), one(0.00, 0.00, 1.1), False, False),
    ],
)
def test_disagreement_is_seen(
    benchmark: Any, nsys: dict[str, Any], kineto: dict[str, Any], agree: bool, below: bool
) -> None:
    found = benchmark.agreement(nsys, kineto)
    assert (found["agree"], found["below_event_span"]) == (agree, below)


def test_the_committed_digests_are_what_the_rules_say_of_what_was_measured(benchmark: Any) -> None:
    folder = SCRIPT.parent / "results"
    device = Device.model_validate(json.loads((folder / "profile_truth.json").read_text())["device"])
    document = json.loads((folder / "profile_level3.json").read_text())
    for item in document["items"]:
        assert benchmark.rejudge(item, device)["digest"] == item["digest"]
        assert len(item["digest"]) < MOST_CHARACTERS
        named = item["profile"]["diagnoses"][:3]
        for one in named:
            assert f"{one['cause']}, at most {one['kernel_gain']:.2f}x, {one['program_gain']:.2f}x" in item["digest"]
        assert item["profile"]["suggestion"] in item["digest"]
        if item["profile"]["cause"] == "no_tensor_cores":
            assert "tensor cores: each fp32 operand split" in item["profile"]["suggestion"]
    assert benchmark.page(document) == (folder / "profile_level3.md").read_text()


@pytest.mark.slow
def test_a_slice_is_kept_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SOURCE)
    results = tmp_path / "results.json"
    words = [sys.executable, str(SCRIPT), "small.py", "--target", "cpu", "--no-ceilings", "--results", str(results)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    (item,) = json.loads(results.read_text())["items"]
    assert item["errors"] == []
    assert "Profile of the reference by kineto" in item["digest"]
    assert "| small |" in results.with_suffix(".md").read_text()
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert again.stdout.strip() == "1 of 1 profiled; 0 disagree or failed in part: []"
