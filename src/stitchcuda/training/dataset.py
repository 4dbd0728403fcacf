"""From runs and tasks to rows: what the Coder was or would be asked, with verified answers, and what is left out.

Filters, in this order: *unsolved* (the answer is not correct), *no_gain* (an optimisation that made nothing faster),
*flagged* (an integrity finding), *non_discriminating* (a trivial answer passes the task), *test_task* (a task of the
test split), *secret*, *unreadable* (no reply stands for the answer), *too_long*, *duplicate* (an equal request and
answer but for layout and names).
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from stitchcuda.agents.prompting import coder_prompt, coder_purpose
from stitchcuda.agents.roles import CodeRequest
from stitchcuda.agents.secrets import scrub
from stitchcuda.agents.spending import CHARACTERS_PER_TOKEN
from stitchcuda.benchmark.split import in_test_split, plain
from stitchcuda.errors import ProgramError, StitchError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task
from stitchcuda.training.dataset_worsened import examples, gain
from stitchcuda.training.generator import HELD_OUT_PERCENT
from stitchcuda.training.leaks_samples import TestTask, held_back
from stitchcuda.training.model import Bounds, Built, Origin, Part, Row
from stitchcuda.training.reply import reply_of
from stitchcuda.training.rows import marks_of_source
from stitchcuda.workflow.bench import Bench
from stitchcuda.workflow.result import NOISE

DESCRIPTIVE = frozenset({"library_compute", "no_own_kernel"})
"""Findings that say what kind of program it is: leaving a convolution to a library is honest."""
_LEVEL = re.compile(r"^(?:kernelbench:|kb)(\d+)[/_]")
_SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bhf_[A-Za-z0-9]{30,}\b"
    r"|\bxox[baprs]-[A-Za-z0-9-]{10,}|\bAIza[0-9A-Za-z_-]{35}\b"
)


@dataclass
class Collector:
    """Takes requests with their answers, keeps those that pass the filters, and counts the rest."""

    bounds: Bounds = field(default_factory=Bounds)
    tests: list[TestTask] = field(default_factory=lambda: held_back("kernelbench"))
    rows: list[Row] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    found: int = 0
    _seen: set[str] = field(default_factory=set)

    def take(
        self,
        request: CodeRequest,
        answer: Program,
        evaluation: Evaluation,
        *,
        source: Origin,
        mind: str = "recipes",
        run: str = "",
        fault: str = "",
        part: Part | None = None,
    ) -> Row | None:
        """One request with its answer; the row, or None where a filter left it out."""
        self.found += 1
        made = self._row(request, answer, evaluation, source, mind, run, fault, part)
        if isinstance(made, str):
            self.dropped[made] += 1
            return None
        self.rows.append(made)
        return made

    def _row(
        self,
        request: CodeRequest,
        answer: Program,
        evaluation: Evaluation,
        source: Origin,
        mind: str,
        run: str,
        fault: str,
        part: Part | None,
    ) -> Row | str:
        """The row, or the name of the filter that leaves it out."""
        purpose, previous = coder_purpose(request)
        before = request.evaluation if previous is not None and purpose != "draft" else None
        if not evaluation.passed:
            return "unsolved"
        if purpose == "optimise" and before is not None and gain(before, evaluation) <= 1 + NOISE:
            return "no_gain"
        if told := [finding.rule for finding in evaluation.findings if finding.rule not in DESCRIPTIVE]:
            return f"flagged {told[0]}"
        if "non_discriminating" in evaluation.labels:
            return "non_discriminating"
        if self._is_test(request.task):
            return "test_task"
        prompt = coder_prompt(request)
        try:
            completion = reply_of(answer, previous, request.task.target.kind)
        except ProgramError:
            return "unreadable"
        text = prompt.instructions + prompt.message + completion
        if _SECRETS.search(text) or scrub(text) != text:
            return "secret"
        row = Row(
            task=request.task,
            facts=request.facts,
            skill="scratch" if purpose == "draft" else "improve",
            purpose=purpose,
            source=source,
            fault=fault,
            run=run,
            mind=mind,
            step=request.step,
            instructions=prompt.instructions,
            message=prompt.message,
            completion=completion,
            answer=answer,
            evaluation=evaluation,
            previous=previous,
            previous_evaluation=before,
            feedback=request.feedback if previous is not None and purpose != "draft" else None,
            part=part or part_of(request.task),
        )
        characters = [count / CHARACTERS_PER_TOKEN for count in row.characters]
        if characters[0] > self.bounds.prompt or characters[1] > self.bounds.completion:
            return "too_long"
        key = _key(row)
        if key in self._seen:
            return "duplicate"
        self._seen.add(key)
        return row

    def _is_test(self, task: Task) -> bool:
        """By name and by source; graphs are compared by ``dataset check``."""
        level = _LEVEL.match(task.name) or _LEVEL.match(task.origin)
        if level is not None and plain(task.name) in in_test_split(int(level[1])):
            return True
        mark = marks_of_source(task.source).whole
        return any(version.whole == mark for test in self.tests for version in test.marks)

    def built(self) -> Built:
        """Counts of all that was taken."""
        by = Counter[str]()
        for row in self.rows:
            by.update([f"skill {row.skill}", f"purpose {row.purpose}", f"origin {row.source}", f"part {row.part}"])
            by.update([f"fault {row.fault}"] if row.fault else [])
        prompts = [round(row.characters[0] / CHARACTERS_PER_TOKEN) for row in self.rows]
        answers = [round(row.characters[1] / CHARACTERS_PER_TOKEN) for row in self.rows]
        return Built(
            rows=len(self.rows),
            by=dict(sorted(by.items())),
            tasks=len({row.task.digest for row in self.rows}),
            found=self.found,
            dropped=dict(sorted(self.dropped.items())),
            skipped=self.skipped,
            prompt_tokens=[int(statistics.median(prompts)), max(prompts)] if prompts else [],
            completion_tokens=[int(statistics.median(answers)), max(answers)] if answers else [],
        )


def part_of(task: Task) -> Part:
    """Which part a task belongs to, told from its model alone, so that no size of a held-out one is trained on."""
    mark = marks_of_source(task.source).shapeless
    return "held_out" if int(mark[:8], 16) % 100 < HELD_OUT_PERCENT else "train"


def _key(row: Row) -> str:
    """Equal for rows that teach the same: task, purpose, and both programs without comments and layout."""
    parts = [marks_of_source(row.task.source).whole, row.purpose, _plain(row.answer)]
    parts.append(_plain(row.previous) if row.previous is not None else "")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _plain(program: Program) -> str:
    text = "\n".join(program.files[path] for path in sorted(program.files))
    text = re.sub(
        r"/\*.*?\*/|//[^\n]*|(?m:^\s*#(?!\s*(?:include|define|pragma|if|else|endif|undef)\b)[^\n]*)", "", text
    )
    # Recipes name kernels after a hash of their code.
    return re.sub(r"\s+", "", re.sub(r"\b(fused_\w+?)_[0-9a-f]{6}\b", r"\1", text))


def from_runs(collector: Collector, paths: Iterable[Path]) -> None:
    """Rows from every run in or below ``paths``; runs that cannot be read are named in ``skipped``."""
    from stitchcuda.training.dataset_replay import askings, run_folders

    for path in paths:
        runs = list(run_folders(path))
        if not runs:
            raise StitchError(f"{path} holds no run: no folder with a journal.jsonl and a config.toml")
        for run in runs:
            try:
                asked = askings(run)
            except StitchError as error:
                collector.skipped[run.name] = str(error)
                continue
            if not asked:
                collector.skipped[run.name] = "it wrote no program"
            for one in asked:
                collector.take(
                    one.request,
                    one.outcome.program.model_copy(update={"notes": ""}),
                    one.outcome.evaluation,
                    source="journal",
                    mind=one.mind,
                    run=one.run,
                )


def from_tasks(
    collector: Collector,
    tasks: Iterable[tuple[Task, Part | None]],
    device: Device,
    bench: Callable[[], AbstractContextManager[Bench]],
    *,
    faults: int,
    tell: Callable[[Task, int], None] = lambda task, rows: None,
) -> None:
    """Rows from verified programs of recipes and from worse ones; ``bench`` opens one for each task. Tasks that give
    nothing are named in ``skipped``."""
    for task, part in tasks:
        before = len(collector.rows)
        try:
            with bench() as measures:
                for one in examples(task, device, measures, faults=faults):
                    collector.take(
                        one.request,
                        one.answer,
                        one.evaluation,
                        source="worsened" if one.fault else "recipes",
                        fault=one.fault,
                        part=part,
                    )
        except StitchError as error:
            collector.skipped[task.name] = str(error)
        else:
            if len(collector.rows) == before:
                collector.skipped.setdefault(task.name, "no recipe gave a correct program that passed the filters")
        tell(task, len(collector.rows) - before)


def task_files(folder: Path) -> Iterator[tuple[Path, Part | None]]:
    """Task files in KernelBench's form in or below a folder; those of generated tasks know their part."""
    parts: dict[str, Part] = {"train": "train", "held_out": "held_out"}
    files = [folder] if folder.suffix == ".py" else sorted(folder.rglob("*.py"))
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        if "class Model" in text and ("get_inputs" in text or "get_input_cases" in text):
            yield path, parts.get(path.parent.name)
