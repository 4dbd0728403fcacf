"""Several processes train one model: groups are whole though their completions lie in different processes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from stitchcuda.training.checkpoint import latest, read_result
from stitchcuda.training.metrics import read_metrics
from tests.training import tiny

SETTINGS = ("lengths.completion=2", "grpo.prompts=1", "grpo.group=8", "held_out.at_start=true", "held_out.rows=2")


def test_two_processes_share_the_groups_and_write_one_training(tmp_path: Path) -> None:
    out = tmp_path / "out"
    data, model = tiny.write_rows(tmp_path / "data", short=True), tiny.write_model(tmp_path / "model")
    recorded = tiny.write_recorded(tmp_path / "recorded.jsonl")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    verb = ["-m", "stitchcuda.cli.main", "train", "grpo", "--preset", "tiny-cpu", "--compute", f"recorded:{recorded}"]
    paths = ["--data", str(data), "--model", str(model), "--out", str(out)]
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    done = subprocess.run(
        [*launcher, *verb, *paths, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("done at step 3 of 3") == 1
    assert read_result(out) is not None
    assert latest(out, 2) is not None
    lines = read_metrics(out)
    assert [line["step"] for line in lines] == [1, 2, 3]
    halves = [tiny.samples(out, name) for name in ("samples.jsonl", "samples-1.jsonl")]
    for at, line in enumerate(lines):
        rewards = [
            [one["reward"]["value"] for one in half if one["mode"] == "train" and one["step"] == at] for half in halves
        ]
        assert list(map(len, rewards)) == [4, 4]
        assert line["group/deviation"] == pytest.approx(statistics.stdev(rewards[0] + rewards[1]), abs=1e-5)
    assert any(line["group/deviation"] > 0 for line in lines)
