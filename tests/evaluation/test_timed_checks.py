"""What a check between calls that a clock counts may cost: time, memory, and what it leaves behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.expectation import Expectation
from stitchcuda.evaluation.judging import Judge, Round
from stitchcuda.evaluation.levels import LEAST
from stitchcuda.evaluation.oracle_client import OracleClient
from stitchcuda.evaluation.settings import TOLERANCES
from tests.evaluation.conftest import DEVICE, QUICK, make_facts, make_task, program

SOURCE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 32)
    def forward(self, x):
        return self.linear(x)
def get_inputs():
    return [torch.randn(16, 64)]
def get_init_inputs():
    return []
"""


class Checked:
    """The judge of a small task, and how often fp64 was computed, where."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, source: str = SOURCE) -> None:
        task = SimpleNamespace(**make_task(source).model_dump())
        task.target = SimpleNamespace(**task.target)
        self.expectation = Expectation(task, True, False, False)
        self.expectation.observe()
        self.expectation.renew(b"nonce")
        self.judge = Judge(self.expectation, TOLERANCES["fp32"].model_dump())
        self.short = False
        """Whether there is no room for fp64."""
        self.computed: list[str] = []
        real = Expectation._exact

        def exact(expectation: Expectation, inputs: list[Any], device: str) -> Any:
            self.computed.append(device)
            if self.short:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return real(expectation, inputs, device)

        monkeypatch.setattr(Expectation, "_exact", exact)

    def check(
        self, family: str = "", values: str = "", *, full: bool = False, timed: bool = False, error: float = 0.0
    ) -> dict[str, Any]:
        """The verdict on eager's own answer, off by a relative ``error``."""
        inputs = self.expectation.inputs(b"nonce", f"{family}{len(self.computed)}", None)
        this = Round("one", None, inputs, [], -1, set(), family=family, values=values)
        right = self.expectation.eager(inputs, -1)[0]
        return self.judge.judge(this, ["0"], [right * (1 + error)], [right], full=full, timed=timed)


def test_a_timed_check_without_room_for_fp64_compares_with_eager_and_tries_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = Checked(monkeypatch)
    assert checked.check(full=True)["full"]
    checked.computed.clear()
    checked.short = True
    verdict = checked.check(full=True, timed=True)
    assert verdict["ok"]
    assert not verdict["full"]
    assert checked.computed == ["cpu"]
    assert not checked.check(full=True, timed=True, error=1e-3)["ok"]
    assert checked.computed == ["cpu"]
    checked.short = False
    assert (checked.expectation.exact_note, checked.expectation.exact_pieces) == ("fp64", 1)
    assert checked.check(full=True)["full"]
    checked.expectation.renew(b"another")
    assert checked.check(full=True, timed=True)["full"]


def test_a_shortage_of_memory_is_forgotten_with_the_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Checked(monkeypatch)
    checked.short = True
    assert checked.check(full=True)["reference"] == "eager"
    checked.short = False
    assert checked.check(full=True)["reference"] == "eager"
    checked.expectation.renew(b"another")
    assert checked.check(full=True)["reference"] == "fp64"


def test_how_noise_moves_a_family_is_measured_under_one_nonce_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, noisy = Checked(monkeypatch), []
    real = Expectation.noisy

    def count(expectation: Expectation, *arguments: Any) -> Any:
        noisy.append(arguments)
        return real(expectation, *arguments)

    monkeypatch.setattr(Expectation, "noisy", count)
    assert checked.check("signed", "signed", full=True)["ok"]
    assert len(noisy) == 1
    first = checked.judge
    checked.expectation.renew(b"another")
    checked.judge = Judge(checked.expectation, TOLERANCES["fp32"].model_dump(), first.conditions)
    assert checked.check("signed", "signed", full=True)["ok"]
    assert len(noisy) == 1
    key = ("None+signed", "0")
    own = checked.judge.scales[key] / first.scales[key]
    budgets = [judge.budgets[key].max_abs for judge in (first, checked.judge)]
    assert budgets[1] == pytest.approx(budgets[0] * own, rel=0.5), "in proportion to the elements of this nonce"
    checked.check(full=True)
    assert len(noisy) == 2, "the Task's own inputs are measured under each"


@pytest.mark.parametrize("full", [True, False])
def test_nobody_is_refused_by_what_noise_did_under_another_nonce(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Checked(monkeypatch)
    assert checked.check("signed", "signed", full=True)["ok"]
    conditions, key = checked.judge.conditions, ("None+signed", "0")
    conditions.moved[key] = replace(conditions.moved[key], relative=0.0, max_abs=0.0)
    checked.expectation.renew(b"another")
    checked.judge = Judge(checked.expectation, TOLERANCES["fp32"].model_dump(), conditions)
    checked.expectation.noisy = lambda inputs, seed, noise, draw: (  # type: ignore[method-assign]
        checked.expectation.eager(inputs, seed)[0] * (1 + 1e-5),
        {},
    )
    assert checked.check("signed", "signed", full=True)["ok"]
    assert checked.check("signed", "signed", full=full, error=2e-5)["ok"], "noise of this nonce allows it"
    assert not checked.check("signed", "signed", full=full, error=1e-2)["ok"]


def test_a_family_is_compared_with_eager_under_later_nonces_and_with_fp64_where_that_is_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = Checked(monkeypatch)
    for family in ("spikes", "signed"):
        assert checked.check(family, family, full=True)["full"]
    conditions = checked.judge.conditions
    checked.expectation.renew(b"another")
    checked.judge = Judge(checked.expectation, TOLERANCES["fp32"].model_dump(), conditions)
    checked.computed.clear()
    near = checked.check("spikes", "spikes", full=True, error=1e-7)
    assert (near["ok"], near["full"], checked.computed) == (True, False, [])
    allowed = near["outputs"][0]["budget"]
    beside = checked.check("spikes", "spikes", full=True, error=allowed * 0.999)
    assert (beside["full"], checked.computed) == (True, ["cpu"]), "what eager itself errs by counts too"
    far = checked.check("spikes", "spikes", full=True, error=1e-3)
    assert (far["ok"], far["full"], checked.computed) == (False, True, ["cpu"] * 2)
    assert checked.check("signed", "signed", full=True)["full"], "it tells precision classes apart"
    checked.computed.clear()
    checked.judge = Judge(checked.expectation, TOLERANCES["fp32"].model_dump(), conditions)
    timed = checked.check("spikes", "spikes", timed=True, error=1.5 * allowed)
    assert (timed["ok"], timed["full"], checked.computed) == (False, True, ["cpu"]), "once the budget, not twice"


def test_timed_checks_try_no_trivial_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(Judge, "_discriminates", lambda self, key, names, truth: tried.append(key))
    checked = Checked(monkeypatch)
    checked.check(full=True)
    assert tried == ["None"]
    assert checked.check(full=True, timed=True)["full"]
    assert tried == ["None"]


@pytest.mark.parametrize(("family", "values"), [("permuted", "signed"), ("probe", "signed"), ("permuted", "")])
def test_where_fp64_is_slow_a_family_of_timed_calls_goes_without(
    monkeypatch: pytest.MonkeyPatch, family: str, values: str
) -> None:
    checked = Checked(monkeypatch)
    checked.check(full=True)
    checked.check("signed", "signed", full=True)
    checked.computed.clear()
    checked.expectation.exact_seconds = 60.0
    verdict = checked.check(family, values, timed=True)
    assert verdict["ok"]
    assert not verdict["full"]
    assert not checked.check(family, values, timed=True, error=1e-3)["ok"]
    assert checked.computed == []
    checked.expectation.exact_seconds = 0.0
    assert checked.check(family, values + "offset", timed=True)["full"]


CASES = """
def get_input_cases():
    return [(name, 1.0, [torch.randn(rows, 64)]) for name, rows in (("few", 4), ("some", 16), ("many", 64))]
"""


def test_calls_of_every_input_case_are_compared_with_fp64_and_none_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: dict[int, str] = {}
    paused: set[int] = set()
    deep: Counter[str] = Counter()
    asked: list[dict[str, Any]] = []
    real = OracleClient.ask

    def ask(client: OracleClient, op: str, **request: Any) -> Any:
        if op == "fill":
            cases[request["call"]] = request["case"]
            paused.update({request["call"]} if request["label"].startswith("pause") else ())
        if op == "check":
            asked.append(request)
        return real(client, op, **request)

    monkeypatch.setattr(OracleClient, "ask", ask)
    settings = QUICK.model_copy(update={"screen_calls": 16, "screen_min_calls": 16})
    with Evaluator(make_task(SOURCE + CASES), make_facts(), DEVICE, cache=tmp_path, settings=settings) as opened:
        evaluation = opened.evaluate(
            program(SOURCE.split("def get_inputs", maxsplit=1)[0].replace("Model(", "ModelNew("))
        )
    assert evaluation.status == "correct", evaluation.message
    for request in asked:
        if request["deep"]:
            assert request["call"] not in paused
            deep[cases[request["call"]]] += 1
    assert paused
    assert len(deep) == len({"few", "some", "many"})
    assert min(deep.values()) >= LEAST


def test_of_large_outputs_one_is_kept_for_all_input_cases(tmp_path: Path) -> None:
    with Evaluator(make_task(SOURCE), make_facts(), DEVICE, cache=tmp_path, settings=QUICK) as opened:
        assert opened.calls.held_calls(first=True) == QUICK.held_outputs
        assert opened.calls.held_calls(first=False) == 1
        opened.plan["outputs"] = 1 << 30
        assert opened.calls.held_calls(first=True) == 1
        assert opened.calls.held_calls(first=False) == 0


def test_the_copies_that_the_oracle_makes_take_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.evaluation.evaluator.free_memory", lambda: 1 << 40)
    with Evaluator(make_task(SOURCE), make_facts(), DEVICE, cache=tmp_path, settings=QUICK) as opened:
        gib = 1 << 30
        opened.plan.update(inputs=0, outputs=8 * gib, state=0, peak=0)
        monkeypatch.setattr(opened, "kind", "cuda")
        for free, fits in ((33, False), (35, True)):
            opened.plan["device_free"] = free * gib
            assert opened.room(2) is fits
        monkeypatch.undo()
