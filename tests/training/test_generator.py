"""Generated tasks: equal for equal seeds, distinct, in KernelBench's form, and only those kept that are worth it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stitchcuda.cli.main import app, register_verbs
from stitchcuda.errors import StitchError
from stitchcuda.task.loader import check_source, load_task
from stitchcuda.task.model import Target
from stitchcuda.training.generator import GeneratedTask, generate
from stitchcuda.training.generator_audit import (
    Memory,
    audited,
    read_tasks,
    table,
    verdict,
    write_tasks,
)
from stitchcuda.training.generator_families import FAMILIES
from stitchcuda.training.leaks_source import source_marks

CPU = Target(kind="cpu", arch="native")
MANY = list(itertools.islice(generate(7), 200))


def by_hand(forward: str, constructor: str = "") -> GeneratedTask:
    """A task as the generator writes one."""
    body = f"class Model(nn.Module):\n{constructor}    def forward(self, x):\n        {forward}\n\n\n"
    body += "def get_inputs():\n    return [torch.randn(ROWS, COLS)]\n\n\ndef get_init_inputs():\n    return []\n"
    sizes = {"ROWS": 24, "COLS": 40}
    return GeneratedTask(
        name="g0", family="hand", expression=forward, body=body, sizes={"full": sizes, "cpu": sizes, "audit": sizes}
    )


def test_equal_seeds_give_equal_tasks_and_others_give_others() -> None:
    again = list(itertools.islice(generate(7), 200))
    other = list(itertools.islice(generate(8), 300))
    assert again == MANY
    assert {task.expression for task in other} != {task.expression for task in MANY}


def test_every_family_is_there_and_every_task_is_in_kernelbench_form() -> None:
    assert {task.family for task in MANY} == {family.name for family in FAMILIES}
    for task in MANY:
        for which in ("full", "cpu", "audit"):
            check_source(task.source(which), task.name)


def test_tasks_are_distinct_in_composition_and_in_what_their_source_computes() -> None:
    assert len({task.expression for task in MANY}) == len(MANY)
    assert len({source_marks(task.source()).whole for task in MANY}) == len(MANY)


def test_the_held_out_part_is_told_from_the_composition_alone() -> None:
    task = next(task for task in MANY if task.held_out)
    larger = task.model_copy(update={"name": "other", "sizes": {**task.sizes, "full": {"ROWS": 1, "COLS": 2}}})
    assert larger.held_out
    assert 0 < sum(task.held_out for task in MANY) < len(MANY) / 5


def test_written_tasks_load_as_tasks_and_are_read_again(tmp_path: Path) -> None:
    chosen = {task.family: task for task in MANY}
    memory = tmp_path / "memory.jsonl"
    for task in MANY:
        Memory(memory).keep(task.task(CPU, "audit").digest, "dead work: x" if task.family == "mlp" else "")
    found = audited(7, 100, memory=memory)  # every verdict is known: nothing is started
    assert [task.name for task in found.valid] == [t.name for t in MANY if t.family != "mlp"][:100]
    assert set(found.reasons) == {"mlp"}
    assert "| mlp |" in table(found)
    write_tasks(found, tmp_path / "tasks", "cpu")
    assert read_tasks(tmp_path / "tasks") == found.valid
    files = sorted((tmp_path / "tasks").rglob("*.py"))
    assert len(files) == 100
    host = chosen["host"]
    loaded = load_task(str(next(p for p in files if p.stem.endswith("_host"))), target=CPU)
    assert loaded.residence == host.task(CPU).residence == "host"


def test_the_command_writes_both_parts_and_says_what_it_dropped(tmp_path: Path) -> None:
    for task in MANY:
        Memory(tmp_path / ".audit.jsonl").keep(task.task(CPU, "audit").digest, "")
    register_verbs()
    words = ["dataset", "tasks", "--out", str(tmp_path), "--count", "80", "--seed", "7", "--sizes", "cpu", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told == {"valid": 80, "held_out": sum(task.held_out for task in MANY[:80]), "dropped": {}}
    assert len(list((tmp_path / "held_out").glob("*.py"))) == told["held_out"]
    assert (tmp_path / "train" / f"{MANY[0].name}.py").read_text() == MANY[0].source("cpu")


def test_an_audit_that_finds_hardly_anything_valid_says_so(tmp_path: Path) -> None:
    memory = tmp_path / "memory.jsonl"
    for task in MANY:
        Memory(memory).keep(task.task(CPU, "audit").digest, "does not run: no module named torch")
    with pytest.raises(StitchError, match=r"only 0 of 50 .* no module named torch"):
        audited(7, 100, memory=memory)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("return torch.relu(x) * torch.sigmoid(x)", ""),
        ("return torch.sum(F.softmax(x, dim=-1), dim=-1)", "non_discriminating"),
        ("return torch.relu(torch.abs(x))", "dead work"),
        ("return torch.log(x)", "not finite"),
    ],
)
def test_what_is_degenerate_is_told_from_what_is_not(forward: str, reason: str) -> None:
    from stitchcuda.evaluation.audit_worker import audit
    from stitchcuda.evaluation.settings import TOLERANCES

    task = by_hand(forward)
    request = {"seconds": 60.0, "exact": True, "tolerance": TOLERANCES["fp32"].model_dump()}
    entry = audit({"task": task.task(CPU, "audit").model_dump(), **request})
    assert verdict(entry, task.body).partition(":")[0] == reason


def test_a_task_that_does_not_run_is_dropped_with_the_reason() -> None:
    assert verdict({"error": "RuntimeError: sizes"}, "") == "does not run: RuntimeError: sizes"
