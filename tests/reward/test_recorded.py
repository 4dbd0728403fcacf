"""Marks of programs that were measured on an H200: ``data/`` holds their evaluations (strict fp32) and profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stitchcuda.evaluation.model import Census, Evaluation
from stitchcuda.profiling.model import Profile
from stitchcuda.reward import reward
from stitchcuda.reward.evidence import mark
from stitchcuda.reward.observed import Observed

DATA = Path(__file__).parent / "data"


def recorded(name: str) -> Observed:
    """What was seen of one program."""
    document = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return Observed(
        evaluation=Evaluation.model_validate(document["evaluation"]),
        reference=Profile.model_validate(document["reference"]),
        profile=Profile.model_validate(document["program"]),
    )


def stock(name: str, *, graph: bool) -> Observed:
    """The reference itself as a Program: as fast as eager, or as its CUDA graph."""
    seen = recorded(name)
    assert seen.reference is not None
    evaluation, option = seen.evaluation, "cuda_graph" if graph else "eager"
    time = evaluation.timings[option]
    over = {known: value.median / time.median for known, value in evaluation.timings.items() if known != "program"}
    update = {
        "timings": evaluation.timings | {"program": time},
        "speedup": over | {"over_best": min(over.values())},
        "census": Census(own=0.0, library=0.6, framework=0.4, label="host_only", source="kineto"),
    }
    timeline = seen.reference.timeline.model_copy(update={"graph_launches": int(graph)})
    ran = seen.reference.model_copy(update={"timeline": timeline})
    return Observed(evaluation.model_copy(update=update), seen.reference, ran)


@pytest.mark.parametrize(
    ("name", "covered", "what"),
    [
        ("gru", 0.99, "all time steps in one kernel"),
        ("shallow_wide_mlp", 1.0, "its own matrix products"),
        ("mobilenet_v1", 0.42, "all but the convolutions"),
        ("squeezenet", 0.28, "what surrounds the convolutions"),
    ],
)
def test_coverage_is_what_the_program_replaces(name: str, covered: float, what: str) -> None:
    found = recorded(name).coverage
    assert found is not None
    assert found.share == pytest.approx(covered, abs=0.02), what


def test_convolutions_that_stay_with_the_library_are_named() -> None:
    mobile = mark(recorded("mobilenet_v1"), "scratch").marks["operator_coverage"]
    assert mobile.score == 3
    assert "aten::cudnn_convolution (40%)" in mobile.reasons[-1]


def test_more_work_taken_over_nearer_to_the_bound_has_higher_marks() -> None:
    totals = [
        mark(recorded(name), "scratch").total for name in ("squeezenet", "mobilenet_v1", "gru", "shallow_wide_mlp")
    ]
    assert totals == sorted(totals)
    assert totals[-1] == 20


@pytest.mark.parametrize("name", ["gru", "mobilenet_v1", "shallow_wide_mlp", "squeezenet"])
def test_stock_kernels_rank_below_every_program_and_a_graph_between(name: str) -> None:
    passed, graph = (mark(stock(name, graph=graph), "scratch") for graph in (False, True))
    assert passed.total < graph.total < mark(recorded("squeezenet"), "scratch").total
    assert (passed.marks["anti_hacking"].score, graph.marks["anti_hacking"].score) == (2, 3)


def test_a_graph_around_eager_earns_less_than_average_over_the_best_stock_option() -> None:
    seen = stock("gru", graph=True)
    found = reward(seen.evaluation, mark(seen, "scratch"), "scratch")
    assert found.speedup == 1
    assert found.over_eager is not None
    assert found.over_eager > 5
    assert found.value < 1
