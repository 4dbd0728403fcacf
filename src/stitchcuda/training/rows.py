"""Rows on disk: Parquet with one column a fact, models inside as JSON; beside it the recorded Evaluations.

``prompt`` is a list of messages (system, user) and ``completion`` one of an assistant, as trainers take them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stitchcuda.agents.spending import CHARACTERS_PER_TOKEN
from stitchcuda.errors import StitchError, ToolMissing
from stitchcuda.knowledge.fingerprint import fingerprint_of
from stitchcuda.reward.score import Item
from stitchcuda.training.leaks_source import SourceMarks, source_marks
from stitchcuda.training.model import Built, Part, Row

VERSION = 1
EVALUATIONS = "evaluations.jsonl"
REPORT = "report.json"
_WHOLE = ("task", "facts", "step", "answer", "evaluation", "previous", "previous_evaluation", "feedback")
"""Fields that are models: their columns hold JSON."""


def flat(row: Row) -> dict[str, Any]:
    """A row as the columns of the file."""
    prompt, completion = row.characters
    marks = marks_of_source(row.task.source)
    return {
        "version": VERSION,
        "skill": row.skill,
        "purpose": row.purpose,
        "source": row.source,
        "fault": row.fault,
        "run": row.run,
        "mind": row.mind,
        "prompt": [
            {"role": "system", "content": row.instructions},
            {"role": "user", "content": row.message},
        ],
        "completion": [{"role": "assistant", "content": row.completion}],
        "task_name": row.task.name,
        "task_origin": row.task.origin,
        "task_digest": row.task.digest,
        "task_fingerprint": fingerprint_of(row.task.source),
        "source_mark": marks.whole,
        "shapeless_mark": marks.shapeless,
        "program_digest": row.answer.digest,
        "previous_digest": row.previous.digest if row.previous else "",
        "target": row.task.target.kind,
        "precision": row.task.precision,
        "speedup_eager": row.evaluation.speedup.get("eager"),
        "speedup_over_best": row.evaluation.speedup.get("over_best"),
        "prompt_tokens": round(prompt / CHARACTERS_PER_TOKEN),
        "completion_tokens": round(completion / CHARACTERS_PER_TOKEN),
        **{name: _json(getattr(row, name)) for name in _WHOLE},
    }


@cache
def marks_of_source(source: str) -> SourceMarks:
    """``source_marks``, kept: many rows have one task."""
    return source_marks(source)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value.model_dump(mode="json"))


def unflat(columns: dict[str, Any], part: Part) -> Row:
    """A row from the columns of the file. Raises StitchError for columns of another version."""
    if columns.get("version") != VERSION:
        raise StitchError(f"a row has version {columns.get('version')}, expected {VERSION}; build the data set anew")
    told = {name: json.loads(columns[name]) for name in _WHOLE if columns[name] is not None}
    plain = {name: columns[name] for name in ("skill", "purpose", "source", "fault", "run", "mind")}
    system, user = columns["prompt"]
    try:
        return Row.model_validate(
            {
                **plain,
                **told,
                "instructions": system["content"],
                "message": user["content"],
                "completion": columns["completion"][0]["content"],
                "part": part,
            }
        )
    except ValidationError as error:
        raise StitchError(f"a row is not valid: {error.errors()[0]['msg']}; build the data set anew") from None


def item_of(row: Row, completion: str) -> Item:
    """What the reward service scores: a completion of this row's prompt."""
    return Item(
        task=row.task,
        completion=completion,
        skill=row.skill,
        previous=row.previous,
        feedback=row.feedback,
        step=row.step,
    )


def write_dataset(rows: Iterable[Row], built: Built, folder: Path) -> None:
    """``train.parquet``, ``held_out.parquet``, ``evaluations.jsonl`` and ``report.json``. Raises ToolMissing without
    pyarrow."""
    from stitchcuda.reward.service_backends import Recorded

    pa, parquet = _pyarrow()
    folder.mkdir(parents=True, exist_ok=True)
    every = list(rows)
    recorded: dict[tuple[str, str], str] = {}
    parts: tuple[Part, ...] = ("train", "held_out")
    for part in parts:
        chosen = [flat(row) for row in every if row.part == part]
        table = pa.Table.from_pylist(chosen, schema=_schema(pa))
        scratch = folder / f".{part}.parquet"
        parquet.write_table(table, scratch, compression="zstd")
        scratch.replace(folder / f"{part}.parquet")
    for row in every:
        for program, evaluation in ((row.answer, row.evaluation), (row.previous, row.previous_evaluation)):
            if program is not None and evaluation is not None:
                line = Recorded(task=row.task.digest, program=program.digest, evaluation=evaluation)
                recorded[row.task.digest, program.digest] = json.dumps(line.model_dump(mode="json"))
    (folder / EVALUATIONS).write_text("".join(f"{line}\n" for line in recorded.values()), encoding="utf-8")
    (folder / REPORT).write_text(built.model_dump_json(indent=1) + "\n", encoding="utf-8")


def read_dataset(folder: Path, part: Part) -> Iterator[Row]:
    """Rows of a part. Raises StitchError when the folder is no data set, ToolMissing without pyarrow."""
    path = folder / f"{part}.parquet"
    if not path.is_file():
        raise StitchError(f"{folder} is no data set: it has no {path.name}; `stitchcuda dataset build` makes one")
    _, parquet = _pyarrow()
    for batch in parquet.ParquetFile(path).iter_batches(256):
        for columns in batch.to_pylist():
            yield unflat(columns, part)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ToolMissing("data sets are Parquet files, which need pyarrow; install stitchcuda[train]") from None
    return pyarrow, parquet


def _schema(pa: Any) -> Any:
    message = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    text = [
        "skill", "purpose", "source", "fault", "run", "mind", "task_name", "task_origin", "task_digest",
        "task_fingerprint", "source_mark", "shapeless_mark", "program_digest", "previous_digest", "target", "precision",
        *_WHOLE,
    ]  # fmt: skip
    return pa.schema(
        [("version", pa.int64()), ("prompt", message), ("completion", message)]
        + [(name, pa.string()) for name in text]
        + [(name, pa.float64()) for name in ("speedup_eager", "speedup_over_best")]
        + [(name, pa.int64()) for name in ("prompt_tokens", "completion_tokens")]
    )
