"""What a trace says of operators on cpu, whatever else the machine does meanwhile."""

from __future__ import annotations

import time

import torch
from torch.profiler import record_function

from stitchcuda.evaluation.collect import collect


def test_what_takes_the_core_away_from_an_operator_in_one_call_is_not_its_work() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        with record_function("own::tiny"):
            if calls == 6:  # one untimed call, three timed, the second of three recorded
                time.sleep(0.05)
        for _ in range(4):
            torch.ones(20_000).exp_()

    told = collect(call, 3, cuda=False)
    assert calls == 7
    rows = {row["name"]: row for row in told["rows"]}
    assert rows["own::tiny"]["seconds"] < 5e-3
    assert rows["own::tiny"]["calls"] == 1
    assert rows["aten::exp_"]["calls"] == 4
