"""Jobs and Outcomes: what travels is what was sent, and what cannot be done is refused before it travels."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from stitchcuda.compute import check_where
from stitchcuda.compute.model import Job, JobFailure, Outcome, Versions, Wanted
from stitchcuda.errors import StitchError, TaskError
from stitchcuda.evaluation.model import Correctness, Evaluation, OutputError
from tests.compute.support import CPU, evaluation_of, probe, task_of


def test_a_job_arrives_as_it_was_sent() -> None:
    job = evaluation_of("relu", id="sweep.item-3", priority=7)
    assert Job.decode(job.encode()) == job


def test_not_a_number_and_infinity_survive_the_way() -> None:
    error = OutputError(
        output="0",
        case="",
        relative_norm=math.inf,
        eager_relative_norm=0.0,
        max_abs=math.nan,
        eager_max_abs=0.0,
        budget=0.1,
        ok=False,
    )
    evaluation = Evaluation(
        status="wrong_output",
        message="",
        tier="screen",
        precision="fp32",
        correctness=Correctness(ok=False, calls_checked=1, outputs=[error]),
    )
    back = Outcome.decode(Outcome(job="a", kind="evaluate", evaluation=evaluation).encode()).evaluation
    assert back is not None
    assert back.correctness is not None
    assert back.correctness.outputs[0].relative_norm == math.inf
    assert math.isnan(back.correctness.outputs[0].max_abs)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a~b", "x" * 101, "a\nb"])
def test_an_id_is_safe_as_a_part_of_a_file_name(name: str) -> None:
    with pytest.raises(ValidationError, match="id"):
        probe(id=name)


def test_a_job_that_cannot_be_done_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs a program"):
        Job(kind="evaluate", wanted=CPU, task=task_of("relu"))
    with pytest.raises(ValidationError, match="needs a task"):
        Job(kind="baselines", wanted=CPU)
    with pytest.raises(ValidationError, match="wants cuda"):
        Job(kind="inspect", wanted=Wanted(kind="cuda"), task=task_of("relu"))


def test_equal_work_has_an_equal_digest_whatever_its_id() -> None:
    assert evaluation_of("relu", id="a").digest == evaluation_of("relu", id="b", attempts=1).digest
    assert evaluation_of("relu").digest != evaluation_of("relu", tier="publish").digest


def test_versions_go_together_within_a_series() -> None:
    here = Versions(stitchcuda="0.4.1")
    assert here.goes_with(Versions(stitchcuda="0.4.9", torch="2.6.0", python="3.13.0"))
    assert not here.goes_with(Versions(stitchcuda="0.5.0"))
    assert not here.goes_with(Versions(stitchcuda="0.4.1", protocol=99))


def test_a_failure_of_the_place_is_never_put_on_the_program() -> None:
    job = evaluation_of("relu")
    lost = Outcome(job=job.id, kind="evaluate", failure=JobFailure(reason="worker_lost", message="gone"))
    assert lost.evaluated(job).status == "infrastructure_error"
    bad = Outcome(job=job.id, kind="evaluate", failure=JobFailure(reason="task", message="no Model"))
    with pytest.raises(TaskError, match="no Model"):
        bad.evaluated(job)


def test_places_have_names() -> None:
    assert check_where("local") == "local"
    assert check_where("ray:auto") == "ray:auto"
    assert check_where("spool:/x/y") == "spool:/x/y"
    for wrong in ("", "spool:", "spool", "slurm", "local:1x"):
        with pytest.raises(StitchError, match="spool:DIR"):
            check_where(wrong)


def test_what_has_to_be_compiled_first_shows_in_the_sources() -> None:
    job = evaluation_of("linear")
    assert job.program is not None
    plain = job.program.model_copy(update={"manifest": None, "files": {"program.py": "import torch\n"}})
    inline = plain.model_copy(update={"files": {"program.py": "from torch.utils.cpp_extension import load_inline\n"}})
    assert [job.model_copy(update={"program": program}).builds for program in (plain, inline, None)] == [
        False,
        True,
        False,
    ]
