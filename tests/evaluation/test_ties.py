"""Integers may differ from the reference's where rounding decides them, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stitchcuda.evaluation import layout, ties
from stitchcuda.evaluation.expectation import Expectation
from stitchcuda.evaluation.judging import Judge, Round
from stitchcuda.evaluation.settings import TOLERANCES
from tests.evaluation.conftest import make_task

SOURCE = """
class Out(dict):
    pass
class Model(nn.Module):
    def forward(self, x):
        return {answer}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""


def judged(
    answer: str,
    inputs: str,
    guess: Callable[[torch.Tensor], torch.Tensor],
    precision: str = "fp32",
    seen: list[Any] | None = None,
) -> dict[str, Any]:
    """The verdict on what ``guess`` makes of the right answer to a Task that gives one tensor of integers; ``seen``
    gets the draws of noise that were taken for it."""
    task = SimpleNamespace(**make_task(SOURCE.format(answer=answer, inputs=inputs), precision=precision).model_dump())
    task.target = SimpleNamespace(**task.target)
    expectation = Expectation(task, True, False, False)
    expectation.observe()
    expectation.renew(b"nonce")
    values = expectation.inputs(b"nonce", "0", None)
    wanted: list[torch.Tensor] = []
    eager = expectation.eager(values, -1)
    spec = layout.describe(eager[0], wanted)
    names = [path for path, _ in layout.paths(spec)]
    judge = Judge(expectation, TOLERANCES[precision].model_dump())
    if seen is not None:
        noisy = expectation.noisy

        def watched(*given: Any) -> Any:
            seen.append(given)
            return noisy(*given)

        expectation.noisy = watched  # type: ignore[method-assign, assignment]
    this = Round("0", None, values, [], -1, set(), eager)
    return judge.judge(this, names, [guess(wanted[0].clone())], wanted, full=True)


def test_one_of_two_equal_numbers_is_as_right_as_the_other() -> None:
    inputs = "torch.rand(256, 64).repeat(1, 2)"
    assert judged("x.argmax(-1)", inputs, lambda right: (right + 64) % 128)["ok"]
    assert not judged("x.argmax(-1)", inputs, lambda right: (right + 1) % 128)["ok"]


@pytest.mark.parametrize("wrong", [torch.zeros_like, lambda right: right.flip(0)], ids=["zeros", "in another order"])
def test_a_shape_that_noise_changes_excuses_no_value(wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
    answer, inputs = "torch.nonzero(x > 0.5)", "torch.rand(1 << 20)"
    assert judged(answer, inputs, lambda right: right)["ok"]
    assert not judged(answer, inputs, wrong)["ok"]


def test_what_eager_makes_of_it_is_right_where_no_noise_shows_it() -> None:
    coarse = "(x[:4096] * 100 + 1e8 - 1e8 > 50)"
    fine = "x * 8192 % 1 > 0.5"  # as many in fp64, more or fewer under noise
    answer, inputs = f"torch.nonzero(torch.cat([{coarse}, ~{coarse}, {fine}]))", "torch.rand(1 << 16)"
    assert judged(answer, inputs, lambda right: right)["ok"]
    assert not judged(answer, inputs, torch.zeros_like)["ok"]


def test_integers_in_a_container_of_the_tasks_own_class_are_looked_at() -> None:
    answer, inputs = "Out(best=x.argmax(-1))", "torch.rand(256, 64)"
    assert judged(answer, inputs, lambda right: right)["ok"]
    assert not judged(answer, inputs, torch.zeros_like)["ok"]


def test_what_is_wrong_nearly_everywhere_takes_few_draws_and_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ties, "SAMPLE", 1 << 12)
    seen: list[Any] = []
    verdict = judged("x.argmax(-1)", "torch.rand(1 << 14, 8)", lambda right: (right + 1) % 8, seen=seen)
    assert not verdict["ok"]
    assert len(seen) <= ties.EARLY + 2
    assert "16384 of the elements that differ" in verdict["message"]
