"""Why an output is wrong, when it is the right answer to another question: the call before's, or that of other weights.
Looked at only once an output has been judged wrong; oracle only."""

from __future__ import annotations

from typing import Any

import torch

from stitchcuda.evaluation import compare
from stitchcuda.evaluation.judging import Judge, Round, output_leaves

PREVIOUS = "it is the answer to the call before: every call must compute from its own inputs"
STALE = (
    "it is the answer under the weights of before: what is derived from weights belongs in prepare(), which is called "
    "again whenever they change"
)
CHANGED = "the weights changed before this call: what is derived from them belongs in prepare(), which was called again"
UNSET = "it is the answer under the constructor's weights: read weights at each call, or pack them in prepare()"


def explain(
    judge: Judge,
    this: Round,
    names: list[str],
    values: list[Any],
    expected: list[torch.Tensor],
    previous: list[torch.Tensor],
    weights: dict[str, torch.Tensor] | None,
) -> tuple[str, str]:
    """The layer that the failure belongs to and a half sentence, both empty when nothing was recognised.

    ``expected``: eager's answers, one for each name; ``previous``: the reference's outputs for the call before;
    ``weights``: the state before the last change of weights.
    """
    outputs = [at for at, name in enumerate(names) if not name.startswith("state:")]
    names = [names[at] for at in outputs]
    values, expected = [values[at] for at in outputs], [expected[at] for at in outputs]

    def same(answers: list[torch.Tensor]) -> bool:
        if len(answers) != len(values) or any(not value.is_floating_point() for value in values):
            return False
        floor = compare.Budget(judge.tolerance["floor"], judge.tolerance["element_floor"])
        another = False
        for name, value, right, answer in zip(names, values, expected, answers, strict=True):
            limit = judge.budgets.get((this.key, name)) or judge.budgets.get((str(this.case), name)) or floor
            if value.shape != answer.shape or compare.distance(value, answer).relative > 2 * limit.relative:
                return False
            another = another or compare.distance(right, answer).relative > 4 * limit.relative
        return another

    if same(previous):
        return "memory", PREVIOUS
    expectation = judge.expectation
    for state, text in ((weights, STALE), (expectation.pristine, UNSET)):
        if state is None or state is expectation.current:
            continue
        with expectation.under(state):
            answers = output_leaves(expectation.eager(this.inputs, this.seed)[0])
        if same(answers):
            return "state", text
    return "", ""
