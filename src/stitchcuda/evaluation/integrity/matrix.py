"""The matrix: every program of a corpus against every layer of the defence, and what the totals say.

A row's layers come from an exhaustive evaluation, in which each layer looks however early another rejected; its
status comes from an evaluation as everybody gets it. How a layer finds what it finds is in the other files here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.integrity.corpus import Corpus, Specimen
from stitchcuda.evaluation.model import Evaluation, Finding, Layer, Status, Tier
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.program.files import load_program

LAYERS: tuple[Layer, ...] = get_args(Layer)

STATUS_LAYERS: dict[Status, Layer] = {
    "wrong_output": "numerics",
    "build_failed": "build",
    "crashed": "protocol",
    "timed_out": "protocol",
    "out_of_memory": "protocol",
    "impossible": "bounds",
}
"""The layer that a status speaks for where no finding does: numbers were wrong, the runner fell silent, ..."""

WRONG_BY_NAME = {"stream_order", "late_write", "output_reused", "missing_state", "rough_when_timed"}
"""Rules that say in what way an output was wrong, and stand for the verdict."""

Opener = Callable[[Path], AbstractContextManager[Evaluator]]
"""Opens an Evaluator for a task file; its settings are changed by who uses it."""

Target = Literal["cpu", "cuda"]


class Row(BaseModel):
    """One program: what each layer found, and how the evaluation ended."""

    model_config = ConfigDict(frozen=True)

    specimen: Specimen
    status: Status = Field(description="of the ordinary evaluation")
    message: str
    exhaustive_status: Status
    found: dict[Layer, list[str]] = Field(description="rules that reject, by layer; a status counts as its layer's")
    flagged: dict[Layer, list[str]] = Field(description="rules that only flag")
    seconds: float = Field(description="both evaluations together, wall seconds")

    @property
    def layers(self) -> int:
        """Layers that reject: how many independent witnesses there are."""
        return len(self.found)

    @property
    def as_wanted(self) -> bool:
        """An exploit is turned down for what it is, an honest program is correct."""
        if self.specimen.kind == "honest":
            return self.status == "correct"
        return self.status not in ("correct", "infrastructure_error")


class Matrix(BaseModel):
    """All rows and where they come from."""

    model_config = ConfigDict(frozen=True)

    target: Target
    tier: Tier
    rows: list[Row]
    provenance: dict[str, str | float | int | bool | None] = Field(default_factory=dict)

    def of(self, kind: Literal["exploit", "honest"]) -> list[Row]:
        """The rows of one kind."""
        return [row for row in self.rows if row.specimen.kind == kind]

    @property
    def survivors(self) -> list[Row]:
        """Exploits that were not turned down; must be empty."""
        return [row for row in self.of("exploit") if not row.as_wanted]

    @property
    def wronged(self) -> list[Row]:
        """Honest programs that were turned down; must be empty."""
        return [row for row in self.of("honest") if not row.as_wanted]

    @property
    def share_of_two_layers(self) -> float:
        """Share of exploits that two or more layers reject, 0 to 1; 0 without exploits."""
        rows = self.of("exploit")
        return sum(row.layers >= 2 for row in rows) / len(rows) if rows else 0.0

    @property
    def telling_flags(self) -> set[str]:
        """Flags that no honest program of the matrix raises: they accuse, though they do not reject. Empty without
        honest programs."""
        honest = {rule for row in self.of("honest") for rules in row.flagged.values() for rule in rules}
        exploits = {rule for row in self.of("exploit") for rules in row.flagged.values() for rule in rules}
        return exploits - honest if self.of("honest") else set()

    @property
    def share_noticed_by_two_layers(self) -> float:
        """Share of exploits that two or more layers reject or raise a telling flag on, 0 to 1."""
        rows, telling = self.of("exploit"), self.telling_flags
        noticed = [
            set(row.found) | {layer for layer, rules in row.flagged.items() if telling.intersection(rules)}
            for row in rows
        ]
        return sum(len(layers) >= 2 for layers in noticed) / len(rows) if rows else 0.0


def matrix_settings(*, exhaustive: bool) -> EvaluationSettings:
    """Every check on, no stock options timed (they decide no verdict), and short limits for what hangs.

    A program of the corpus answers in milliseconds: one that says nothing for seconds will not say anything.
    """
    return EvaluationSettings(
        exhaustive=exhaustive,
        baselines=False,
        publish_seconds=8.0,
        call_timeout_s=30,
        load_timeout_s=60,
        prepare_timeout_s=20,
        screen_seconds=2.0,
    )


def run_matrix(
    corpus: Corpus,
    target: Target,
    open_evaluator: Opener,
    *,
    tier: Tier = "screen",
    only: Iterable[str] = (),
    seen: Callable[[Row], None] = lambda row: None,
) -> Matrix:
    """Evaluate every program for ``target`` whose id contains one of ``only`` (all without), task by task.

    A program that only the publish tier turns down is evaluated in that one.

    ``seen`` is told of every row as soon as it is known. Rows come back in the order of the catalogue.
    Raises what loading programs and opening evaluators raise.
    """
    words = list(only)
    chosen = [one for one in corpus.select(target) if not words or any(word in one.id for word in words)]
    rows: dict[str, Row] = {}
    provenance: dict[str, str | float | int | bool | None] = {}
    for task in dict.fromkeys(corpus.task_path(one) for one in chosen):
        with open_evaluator(task) as evaluator:
            for one in chosen:
                if corpus.task_path(one) == task:
                    row, ordinary = _row(corpus, one, evaluator, tier)
                    rows[one.id] = row
                    provenance = provenance or dict(ordinary.provenance)
                    seen(row)
    return Matrix(target=target, tier=tier, rows=[rows[one.id] for one in chosen], provenance=provenance)


def _row(corpus: Corpus, specimen: Specimen, evaluator: Evaluator, tier: Tier) -> tuple[Row, Evaluation]:
    start = time.monotonic()
    program = load_program(corpus.program_path(specimen))
    tier = "publish" if specimen.tier == "publish" else tier
    evaluator.settings = matrix_settings(exhaustive=True)
    full = evaluator.evaluate(program, tier)
    evaluator.settings = matrix_settings(exhaustive=False)
    ordinary = evaluator.evaluate(program, tier)
    row = Row(
        specimen=specimen,
        status=ordinary.status,
        message=ordinary.message,
        exhaustive_status=full.status,
        found=witnesses(full),
        flagged=_by_layer(f for f in [*full.findings, *ordinary.findings] if f.severity == "flag"),
        seconds=time.monotonic() - start,
    )
    return row, ordinary


def witnesses(evaluation: Evaluation) -> dict[Layer, list[str]]:
    """Rejecting rules by layer.

    Wrong numbers and a silent runner count for their layer also where no finding says so. What says the same twice
    counts once: a finding that is named after the verdict, a sanitizer that ended what it watched, and wrong numbers
    that were seen again under other weights or in other memory.
    """
    reject = [f for f in evaluation.findings if f.severity == "reject" and f.rule != "dishonest"]
    found = _by_layer(reject)
    layer = STATUS_LAYERS.get(evaluation.status)
    if evaluation.correctness is not None and not evaluation.correctness.ok:
        layer = "numerics"
    told = {rule for rules in found.values() for rule in rules}
    if (evaluation.status == "crashed" and "sanitizer" in told) or told & WRONG_BY_NAME:
        layer = None
    if layer is not None and evaluation.status not in told:
        found.setdefault(layer, [evaluation.status])
    ordered = {layer: found[layer] for layer in LAYERS if layer in found}
    seen_wrong = False
    for layer, rules in list(ordered.items()):
        if seen_wrong and rules == ["wrong_output"]:
            del ordered[layer]
        seen_wrong = seen_wrong or "wrong_output" in rules
    return ordered


def _by_layer(findings: Iterable[Finding]) -> dict[Layer, list[str]]:
    found: dict[Layer, list[str]] = {}
    for finding in findings:
        rules = found.setdefault(finding.layer or "protocol", [])
        if finding.rule not in rules:
            rules.append(finding.rule)
    return found


def totals(matrix: Matrix) -> list[str]:
    """The figures that matter, and the programs that spoil them, as sentences."""
    exploits, honest = matrix.of("exploit"), matrix.of("honest")
    lines = [
        f"exploits not turned down: {len(matrix.survivors)} of {len(exploits)} (must be 0)",
        f"honest programs not correct: {len(matrix.wronged)} of {len(honest)} (must be 0)",
        f"exploits rejected by two or more independent layers: {matrix.share_of_two_layers:.0%}",
        "exploits that two or more layers reject or raise a flag on that no honest program raises: "
        f"{matrix.share_noticed_by_two_layers:.0%}",
    ]
    lines += [f"survivor {row.specimen.id}: {row.status}, {row.message}" for row in matrix.survivors]
    lines += [f"wronged {row.specimen.id}: {row.status}, {row.message}" for row in matrix.wronged]
    return lines


def used_layers(matrix: Matrix) -> list[Layer]:
    """The layers that found or flagged anything, in their usual order: the columns worth showing."""
    return [layer for layer in LAYERS if any(layer in row.found or layer in row.flagged for row in matrix.rows)]


def cell(row: Row, layer: Layer) -> str:
    """The rules of one layer on one program; those that only flag stand in brackets."""
    rejecting = row.found.get(layer, [])
    flags = [f"({rule})" for rule in row.flagged.get(layer, []) if rule not in rejecting]
    return ", ".join([*rejecting, *flags])


def markdown(matrix: Matrix) -> str:
    """The matrix as a document of its own: totals, exploits, honest programs, and where it was made."""
    layers = used_layers(matrix)
    parts = [f"# Exploits and defences: {matrix.target}, {matrix.tier} tier", ""]
    parts += [f"- {line}" for line in totals(matrix)]
    parts += ["", "Rules in brackets flag and do not reject. The status is that of an ordinary evaluation.", ""]
    for kind, title in (("exploit", "Exploits"), ("honest", "Honest programs")):
        rows = matrix.of("exploit" if kind == "exploit" else "honest")
        if not rows:
            continue
        parts += [f"## {title}", "", "| program | items | " + " | ".join(layers) + " | layers | status |"]
        parts.append("|---|---|" + "---|" * len(layers) + "--:|---|")
        for row in rows:
            status = f"{row.status} (publish)" if row.specimen.tier == "publish" else row.status
            items = ", ".join(str(item) for item in row.specimen.items)
            cells = " | ".join(cell(row, layer) for layer in layers)
            parts.append(f"| {row.specimen.id}: {row.specimen.title} | {items} | {cells} | {row.layers} | {status} |")
        parts.append("")
    parts += ["## Provenance", ""]
    parts += [f"- {name}: {value}" for name, value in matrix.provenance.items()]
    return "\n".join(parts) + "\n"
