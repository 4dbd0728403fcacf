"""The scorecard is complete, and a task's own rubric asks for what its profile shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from stitchcuda.errors import RewardError
from stitchcuda.evaluation.model import SpeedOfLight
from stitchcuda.hardware.model import Ceilings, Device
from stitchcuda.reward.model import DIMENSIONS, Skill
from stitchcuda.reward.rubric import Rubric, load
from stitchcuda.reward.task_rubric import make, place, store, stored
from stitchcuda.task.model import Target, Task
from tests.reward.samples import kernel, profile
from tests.reward.test_evidence import REFERENCE

TASK = Task(name="mlp", origin="mlp.py", source="", target=Target(kind="cuda", arch="sm_90"))
DEVICE = Device(
    target=TASK.target, name="NVIDIA H200", multiprocessors=132, memory_bytes=141 << 30, cache_bytes=60 << 20
)
BOUND = SpeedOfLight(fraction=0.1, bound_seconds=1e-3, binds="memory")


@pytest.mark.parametrize("skill", ["scratch", "improve"])
def test_each_skill_has_four_dimensions_with_five_anchors(skill: Skill) -> None:
    rubric = load(skill)
    assert rubric.skill == skill
    for dimension in DIMENSIONS:
        anchors = [rubric.anchor(dimension, score) for score in range(1, 6)]
        assert len(set(anchors)) == 5


def test_a_rubric_without_a_dimension_is_refused() -> None:
    document = load("scratch").model_dump()
    with pytest.raises(ValidationError, match="exactly these dimensions"):
        Rubric.model_validate(document | {"criteria": document["criteria"][1:]})


def test_a_task_rubric_names_dominant_operators_and_what_a_good_program_would_do() -> None:
    rubric = make(TASK, REFERENCE, DEVICE, BOUND)
    assert [d.operator for d in rubric.dominant] == ["aten::addmm", "aten::relu"]
    assert rubric.dominant[0].share == pytest.approx(0.6)
    text = " | ".join(ask.text for ask in rubric.asks)
    assert "aten::addmm" in text
    assert "as accurate as fp32" in text
    assert "aten::relu" in text
    assert "replay a graph" in text
    assert "1 ms" in text
    assert [ask.gain for ask in rubric.asks] == sorted((ask.gain for ask in rubric.asks), reverse=True)


def test_a_task_rubric_holds_the_ceilings_of_the_device_where_they_were_measured() -> None:
    assert make(TASK, REFERENCE, DEVICE).copy_bytes_per_second is None
    measured = Ceilings(copy_bytes_per_second=4e12, flops_per_second={"fp32": 5e13}, measured_on="2026-11-29")
    rubric = make(TASK, REFERENCE, DEVICE.model_copy(update={"ceilings": measured}))
    assert (rubric.copy_bytes_per_second, rubric.flops_per_second) == (4e12, 5e13)


def test_graphs_are_asked_for_on_cuda_and_a_bound_only_where_it_is_far() -> None:
    target = Target(kind="cpu", arch="native")
    near = BOUND.model_copy(update={"bound_seconds": 8e-3})
    rubric = make(TASK, REFERENCE, DEVICE.model_copy(update={"target": target}), near)
    text = " | ".join(ask.text for ask in rubric.asks)
    assert "graph" not in text
    assert "call fewer operators" in text
    assert "bound of" not in text


def test_a_recurrent_reference_is_asked_to_keep_its_weights_on_the_chip() -> None:
    rubric = make(TASK, profile([kernel("LSTM_elementWise", 5, "library", 100, "aten::lstm")]), DEVICE)
    assert "keeps the weights on the chip" in rubric.asks[0].text


def test_a_profile_without_work_asks_for_nothing() -> None:
    empty = REFERENCE.model_copy(update={"kernels": []})
    with pytest.raises(RewardError, match="no work"):
        make(TASK, empty, DEVICE)


def test_it_is_kept_by_the_hash_of_its_task(tmp_path: Path) -> None:
    rubric = make(TASK, REFERENCE, DEVICE, BOUND)
    path = place(tmp_path, TASK, DEVICE)
    assert stored(path, TASK) is None
    store(rubric, path)
    assert stored(path, TASK) == rubric
    other = TASK.model_copy(update={"precision": "bf16"})
    assert place(tmp_path, other, DEVICE) != path
    with pytest.raises(RewardError, match="another task"):
        stored(path, other)


def test_a_damaged_rubric_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rubric.json"
    path.write_text('{"task": "mlp"}')
    with pytest.raises(RewardError, match="no rubric of a task"):
        stored(path, TASK)
