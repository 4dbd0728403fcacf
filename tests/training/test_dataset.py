"""Rows of training data: the very requests of a run, verified answers, filters with counts, and the file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.prompting import coder_prompt
from stitchcuda.agents.roles import CodeRequest
from stitchcuda.cli.main import app, register_verbs
from stitchcuda.errors import RunError, StitchError
from stitchcuda.evaluation.model import Evaluation, Finding, Timing
from stitchcuda.hardware.detect import detect
from stitchcuda.hardware.model import Ceilings
from stitchcuda.reward.score import read_completion
from stitchcuda.reward.service_backends import RecordedEvaluations
from stitchcuda.task.model import Task
from stitchcuda.training.dataset import Collector, from_runs, from_tasks, part_of, task_files
from stitchcuda.training.dataset_replay import askings, run_folders
from stitchcuda.training.model import Bounds, Row
from stitchcuda.training.rows import item_of, read_dataset, write_dataset
from stitchcuda.workflow.bench import LocalBench
from stitchcuda.workflow.effects import Created
from stitchcuda.workflow.journal import Journal
from tests.evaluation.conftest import QUICK
from tests.workflow.world import DEVICE, FACTS, TARGET, TASK, ToyBench, ToyMind, config, go, idea, new_folder, program

REAL_TASK = Task(
    name="scale",
    origin="scale.py",
    target=TARGET,
    source="""import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
""",
)


def judged(text: str) -> Evaluation:
    """An Evaluation by the toy bench."""
    return ToyBench().evaluate(program(text), "screen")


def asked(failed: str = "", *, optimise: str = "") -> CodeRequest:
    """A request to write, to repair, or to optimise."""
    plan = idea("fuse")
    route = "optimise" if optimise else "retry"
    said = Feedback(route=route, diagnosis="the loop ends early", evidence="x", suggestion="go on to the end")
    return CodeRequest(
        task=REAL_TASK,
        facts=FACTS,
        device=DEVICE,
        idea=plan,
        step=plan.steps[0],
        failed=program(failed) if failed else None,
        program=program(optimise) if optimise else None,
        feedback=said if failed or optimise else None,
        evaluation=judged(failed or optimise) if failed or optimise else None,
    )


def take(collector: Collector, request: CodeRequest, answer: str) -> Row | None:
    return collector.take(request, program(answer), judged(answer), source="recipes")


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, ToyMind]:
    """A run with a repair, an optimisation and a second idea."""
    mind = ToyMind(
        plans=[[idea("a"), idea("b")]],
        programs={"a/one": ["build failed", "correct 1.2", "correct 1.6"], "b/one": ["correct 1.4"]},
        routes={"correct 1.2": "optimise"},
    )
    settings = config()
    folder = new_folder(tmp_path / "runs", settings)
    with Journal.open(folder.path) as journal:
        data = settings.model_dump(mode="json", exclude_none=True)
        created = Created(stitchcuda="test", config=data, task=TASK, device=DEVICE)
        journal.effect("created", Created, lambda: created)
        go(folder, mind, settings=settings, journal=journal)
    return folder.path, mind


def test_replaying_a_run_gives_the_very_requests_that_its_coder_had(run: tuple[Path, ToyMind]) -> None:
    folder, mind = run
    before = sorted(path.name for path in folder.rglob("*"))
    found = askings(folder)
    assert sorted(path.name for path in folder.rglob("*")) == before
    assert len(found) >= 4
    key = CodeRequest.model_dump_json
    assert sorted(key(one.request) for one in found) == sorted(map(key, mind.code_requests))
    assert {one.outcome.evaluation.status for one in found} == {"build_failed", "correct"}


def test_a_run_that_was_killed_gives_what_it_had(run: tuple[Path, ToyMind]) -> None:
    folder, _ = run
    whole = len(askings(folder))
    journal = folder / "journal.jsonl"
    content = journal.read_bytes()
    journal.write_bytes(content[: len(content) // 2])
    assert 0 < len(askings(folder)) < whole
    journal.write_bytes(content[:100] + b"?" + content[101:])
    with pytest.raises(RunError, match="damaged"):
        askings(folder)


def test_rows_of_a_run_have_both_skills_and_the_prompts_of_the_agents(run: tuple[Path, ToyMind]) -> None:
    folder, mind = run
    collector = Collector()
    from_runs(collector, [folder.parent])
    assert list(run_folders(folder.parent)) == [folder]
    assert {row.purpose for row in collector.rows} == {"draft", "repair", "optimise"}
    prompts = {(p.instructions, p.message) for p in map(coder_prompt, mind.code_requests)}
    for row in collector.rows:
        assert (row.instructions, row.message) in prompts
        assert row.skill == ("scratch" if row.purpose == "draft" else "improve")
        assert row.evaluation.passed
        assert (row.previous is None) == (row.feedback is None) == (row.purpose == "draft")
    assert collector.dropped["unsolved"] == 1


def test_runs_that_cannot_be_read_are_named_and_the_others_used(run: tuple[Path, ToyMind], tmp_path: Path) -> None:
    folder, _ = run
    broken = folder.parent / "broken"
    broken.mkdir()
    for name in ("config.toml", "journal.jsonl"):
        (broken / name).write_bytes((folder / name).read_bytes()[:-300] + b"x\n")
    collector = Collector()
    from_runs(collector, [folder.parent])
    assert list(collector.skipped) == ["broken"]
    assert collector.rows
    with pytest.raises(StitchError, match="holds no run"):
        from_runs(collector, [tmp_path / "nothing"])


def test_filters_say_what_they_left_out() -> None:
    collector = Collector(Bounds(prompt=4000))
    assert take(collector, asked(), "correct 1.5") is not None
    assert take(collector, asked(failed="wrong a"), "correct 1.5") is not None
    assert take(collector, asked(), "correct 1.5") is None  # duplicate
    assert take(collector, asked(), "wrong b") is None
    assert take(collector, asked(optimise="correct 1.5"), "correct 1.5") is None
    assert take(collector, asked(), "correct 1.7 ghp_" + "a" * 36) is None
    flagged = judged("correct 2").model_copy(
        update={"findings": [Finding(rule="keyed_cache", severity="flag", evidence="x")]}
    )
    collector.take(asked(), program("correct 2"), flagged, source="recipes")
    trivial = judged("correct 2").model_copy(update={"labels": ["non_discriminating"]})
    collector.take(asked(), program("correct 2"), trivial, source="recipes")
    long = asked().model_copy(update={"task": REAL_TASK.model_copy(update={"source": REAL_TASK.source + "#" * 20_000})})
    take(collector, long, "correct 3")
    built = collector.built()
    assert built.rows == 2
    assert built.found == 9
    assert built.dropped == {
        "duplicate": 1,
        "flagged keyed_cache": 1,
        "no_gain": 1,
        "non_discriminating": 1,
        "secret": 1,
        "too_long": 1,
        "unsolved": 1,
    }


def test_tasks_of_the_test_split_never_become_rows() -> None:
    collector = Collector()
    by_name = REAL_TASK.model_copy(update={"name": "kb3_019_MobileNetV1", "origin": "kernelbench:3/19"})
    relu = REAL_TASK.source.replace("torch.relu(x) * 2.0", "torch.relu(x)").replace("randn(64, 64)", "rand(b, d)")
    by_source = REAL_TASK.model_copy(update={"source": relu + "b = 4096\nd = 393216\n"})
    for task in (by_name, by_source):
        assert take(collector, asked().model_copy(update={"task": task}), "correct 1.5") is None
    assert collector.dropped == {"test_task": 2}


def test_the_held_out_part_does_not_depend_on_sizes() -> None:
    for factor in range(30):
        source = REAL_TASK.source.replace("torch.relu(x)", "torch.relu(" * factor + "x" + ")" * factor)
        one = REAL_TASK.model_copy(update={"source": source})
        other = REAL_TASK.model_copy(update={"source": source.replace("64", "128")})
        assert part_of(one) == part_of(other)


def test_a_data_set_is_read_as_it_was_written_and_its_evaluations_are_recorded(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    collector = Collector()
    take(collector, asked(), "correct 1.5")
    row = take(collector, asked(failed="wrong a"), "correct 1.5")
    assert row is not None
    rows = [one.model_copy(update={"part": "train"}) for one in collector.rows]
    write_dataset(rows, collector.built(), tmp_path)
    assert list(read_dataset(tmp_path, "train")) == rows
    assert list(read_dataset(tmp_path, "held_out")) == []
    recorded = RecordedEvaluations(tmp_path)
    assert row.previous is not None
    for written, seen in ((row.answer, row.evaluation), (row.previous, row.previous_evaluation)):
        assert asyncio.run(recorded.evaluate(row.task, written)) == seen
    item = item_of(row, row.completion)
    assert (item.skill, item.previous, item.step) == ("improve", row.previous, row.step)


def test_the_command_builds_from_runs_and_refuses_to_build_from_nothing(
    run: tuple[Path, ToyMind], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    register_verbs()
    out = str(tmp_path / "data")
    done = CliRunner().invoke(app, ["dataset", "build", "--runs", str(run[0]), "--out", out, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["rows"] == sum(1 for part in ("train", "held_out") for _ in read_dataset(Path(out), part))
    assert told["by"]["skill improve"] >= 1
    assert (tmp_path / "data" / "report.json").is_file()
    none = CliRunner().invoke(app, ["dataset", "build", "--out", out])
    assert isinstance(none.exception, StitchError)
    assert "give --runs, --sweep or --tasks" in str(none.exception)


def test_task_files_are_those_in_kernelbench_form(tmp_path: Path) -> None:
    for place in ("held_out/a.py", "level1/b.py"):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).write_text(REAL_TASK.source)
    (tmp_path / "helper.py").write_text("def f():\n    pass\n")
    assert [(p.name, part) for p, part in task_files(tmp_path)] == [("a.py", "held_out"), ("b.py", None)]


class Unhurried(LocalBench):
    """This machine with a stock option that was timed before: torch.compile alone takes longer than this test."""

    def baselines(self) -> dict[str, Timing]:
        """Eager's."""
        return {"eager": Timing(median=25e-6, p10=25e-6, p90=25e-6, n=20)}


def test_programs_made_worse_are_evaluated_and_have_real_feedback(tmp_path: Path) -> None:
    ceilings = Ceilings(copy_bytes_per_second=2e10, flops_per_second={"fp32": 2e11}, measured_on="2026-01-01")
    device = detect("cpu").model_copy(update={"ceilings": ceilings})
    task = REAL_TASK.model_copy(update={"target": device.target})
    collector = Collector()
    settings = QUICK.model_copy(update={"trace_program": True})
    from_tasks(collector, [(task, "train")], device, lambda: Unhurried(tmp_path, settings), faults=2)
    assert not collector.skipped
    assert all("- to beat: eager, 25 µs a call" in row.message for row in collector.rows)
    first, *worse = collector.rows
    assert (first.skill, first.purpose, first.source) == ("scratch", "draft", "recipes")
    assert "repair" in {row.purpose for row in worse}  # whether another is seen to be slower is the machine's to say
    for row in worse:
        assert row.skill == "improve"
        assert row.fault
        assert row.previous is not None
        assert row.previous_evaluation is not None
        assert row.feedback is not None
        assert row.feedback.diagnosis in row.message
        assert row.answer == first.answer
        assert read_completion(item_of(row, row.completion)).digest == row.answer.digest
        assert row.previous_evaluation.passed == (row.purpose == "optimise")
        assert row.feedback.suggestion in row.message
