"""What the matrix counts: independent witnesses, survivors and the wronged, and how it is printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from stitchcuda.cli.main import app, register_verbs
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.integrity import matrix as room
from stitchcuda.evaluation.integrity.corpus import Specimen
from stitchcuda.evaluation.integrity.matrix import Matrix, Row, cell, markdown, totals, witnesses
from stitchcuda.evaluation.model import Correctness, Evaluation, Finding
from tests.exploits.corpus import ROOT, load


def evaluation(**changes: Any) -> Evaluation:
    """A correct one, with changes."""
    values: dict[str, Any] = {"status": "correct", "message": "m", "tier": "screen", "precision": "fp32"}
    return Evaluation(**(values | changes))


def row(name: str, kind: str, status: str, **found: list[str]) -> Row:
    """One program as it ended."""
    specimen = Specimen.model_validate(
        {"id": name, "items": [1], "title": "t", "file": "f.py", "task": "t", "target": "cpu", "kind": kind}
    )
    return Row.model_validate(
        {
            "specimen": specimen,
            "status": status,
            "message": "m",
            "exhaustive_status": status,
            "found": found,
            "flagged": {"static": ["reads_clock"]},
            "seconds": 1.0,
        }
    )


TABLE = Matrix(
    target="cpu",
    tier="screen",
    rows=[
        row("caught_twice", "exploit", "dishonest", static=["patches_timer"], clocks=["clock"]),
        row("caught_once", "exploit", "wrong_output", numerics=["wrong_output"]),
        row("survivor", "exploit", "correct"),
        row("machine_failed", "exploit", "infrastructure_error"),
        row("honest", "honest", "correct"),
        row("wronged", "honest", "dishonest", static=["patches_timer"]),
    ],
)


def test_a_rejecting_rule_counts_for_its_layer_and_a_flag_does_not() -> None:
    findings = [
        Finding(rule="patches_timer", severity="reject", evidence="e", layer="static"),
        Finding(rule="less_work", severity="flag", evidence="e", layer="bounds"),
    ]
    assert witnesses(evaluation(findings=findings)) == {"static": ["patches_timer"]}


def test_a_verdict_that_repeats_a_finding_is_no_second_witness() -> None:
    findings = [
        Finding(rule="patches_timer", severity="reject", evidence="e", layer="static"),
        Finding(rule="dishonest", severity="reject", evidence="e", layer="protocol"),
    ]
    assert list(witnesses(evaluation(status="dishonest", findings=findings))) == ["static"]


def test_wrong_numbers_count_once_however_often_they_are_seen() -> None:
    findings = [
        Finding(rule="wrong_output", severity="reject", evidence="e", layer="state"),
        Finding(rule="wrong_output", severity="reject", evidence="e", layer="numerics"),
        Finding(rule="wrong_output", severity="reject", evidence="e", layer="memory"),
        Finding(rule="output_reused", severity="reject", evidence="e", layer="memory"),
    ]
    assert list(witnesses(evaluation(status="wrong_output", findings=findings[:2]))) == ["numerics"]
    assert list(witnesses(evaluation(status="wrong_output", findings=findings[:1]))) == ["state"]
    assert list(witnesses(evaluation(status="wrong_output", findings=findings))) == ["numerics", "memory"]


def test_wrong_numbers_and_a_silent_runner_count_where_no_finding_says_so() -> None:
    wrong = Correctness(ok=False, calls_checked=1, outputs=[])
    assert witnesses(evaluation(status="wrong_output", correctness=wrong)) == {"numerics": ["wrong_output"]}
    assert witnesses(evaluation(status="crashed")) == {"protocol": ["crashed"]}
    late = [Finding(rule="late_write", severity="reject", evidence="e", layer="memory")]
    assert witnesses(evaluation(status="wrong_output", correctness=wrong, findings=late)) == {"memory": ["late_write"]}
    assert witnesses(evaluation()) == {}


def test_a_sanitizer_that_ends_a_program_is_one_witness() -> None:
    seen = [Finding(rule="sanitizer", severity="reject", evidence="e", layer="memory")]
    assert witnesses(evaluation(status="crashed", findings=seen)) == {"memory": ["sanitizer"]}


def test_a_failing_machine_turns_no_exploit_down() -> None:
    assert [one.specimen.id for one in TABLE.survivors] == ["survivor", "machine_failed"]
    assert [one.specimen.id for one in TABLE.wronged] == ["wronged"]
    assert TABLE.share_of_two_layers == 0.25
    assert "exploits not turned down: 2 of 4 (must be 0)" in totals(TABLE)


def test_a_flag_accuses_only_if_it_is_raised_on_no_honest_program() -> None:
    assert TABLE.telling_flags == set()
    innocent = [one.model_copy(update={"flagged": {}}) if one.specimen.kind == "honest" else one for one in TABLE.rows]
    table = TABLE.model_copy(update={"rows": innocent})
    assert table.telling_flags == {"reads_clock"}
    assert (table.share_of_two_layers, table.share_noticed_by_two_layers) == (0.25, 0.5)


def test_flags_stand_in_brackets() -> None:
    assert cell(TABLE.rows[0], "static") == "patches_timer, (reads_clock)"
    text = markdown(TABLE)
    assert "| program | items | static | numerics | clocks | layers | status |" in text
    assert "| caught_twice: t | 1 | patches_timer, (reads_clock) |  | clock | 2 | dishonest |" in text


def test_every_program_is_evaluated_both_ways_task_by_task() -> None:
    asked: list[tuple[str, bool]] = []

    class Recording:
        """Stands where an Evaluator would; says correct to everything."""

        settings: Any = None

        def evaluate(self, program: object, tier: str) -> Evaluation:
            asked.append((tier, self.settings.exhaustive))
            return evaluation()

    opened: list[str] = []

    @contextmanager
    def opener(task: Path) -> Iterator[Evaluator]:
        opened.append(task.stem)
        yield cast("Evaluator", Recording())

    only = ["a05_subclass_of_reference", "a09_hijacks", "a11_finds_expected_by_gc"]
    matrix = room.run_matrix(load(), "cpu", opener, only=only)
    assert [one.specimen.id for one in matrix.rows] == [
        "a05_subclass_of_reference",
        "a09_hijacks_shared_names",
        "a11_finds_expected_by_gc",
    ]
    assert opened == ["mlp", "row_stats"]
    assert asked == 3 * [("screen", True), ("screen", False)]


def test_the_verb_writes_both_files_and_says_no_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "run_matrix", lambda *args, **named: TABLE)
    register_verbs()
    files = ["--json", str(tmp_path / "m.json"), "--markdown", str(tmp_path / "m.md")]
    result = CliRunner().invoke(app, ["integrity", "matrix", "--corpus", str(ROOT), *files])
    assert result.exit_code == 1
    assert "survivor survivor: correct" in result.output
    assert len(json.loads((tmp_path / "m.json").read_text())["rows"]) == 6
    assert (tmp_path / "m.md").read_text() == markdown(TABLE)
