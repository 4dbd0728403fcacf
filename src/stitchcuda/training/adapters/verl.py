"""Rows as verl's data set class reads them. What verl loads by its path is ``reward_file`` and ``manager_file``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from stitchcuda.errors import StitchError, ToolMissing
from stitchcuda.training.adapters.mapping import asked_of
from stitchcuda.training.model import Row

SOURCES = {"scratch": "stitchcuda/scratch", "improve": "stitchcuda/improve"}
"""``data_source`` by skill: verl reports validation by it, so that the skills stand apart."""

REWARD_FILE, MANAGER_FILE = "reward.py", "manager.py"
BATCH = 256
"""Rows that are in memory at once while a file is written."""


def verl_row(row: Row, index: int) -> dict[str, Any]:
    """One row in verl's schema; what the reward needs is JSON in ``extra_info.asked``."""
    return {
        "data_source": SOURCES[row.skill],
        "prompt": [
            {"role": "system", "content": row.instructions},
            {"role": "user", "content": row.message},
        ],
        "ability": "cuda" if row.task.target.kind == "cuda" else "cpp",
        "reward_model": {"style": "rule", "ground_truth": row.task.digest},
        "extra_info": {
            "index": index,
            "split": row.part,
            "skill": row.skill,
            "purpose": row.purpose,
            "task_name": row.task.name,
            "asked": json.dumps(asked_of(row)),
        },
    }


def write_verl(rows: Iterable[Row], path: Path) -> int:
    """Write a Parquet file that verl's ``RLHFDataset`` reads; the number of rows.

    Raises ToolMissing without pyarrow, StitchError where there are no rows.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise ToolMissing("verl's data is Parquet, which needs pyarrow; install stitchcuda[train]") from None
    message = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    texts = ("split", "skill", "purpose", "task_name", "asked")
    schema = pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", message),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct([("index", pa.int64()), *((name, pa.string()) for name in texts)])),
        ]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}")
    written = 0
    with parquet.ParquetWriter(scratch, schema, compression="zstd") as file:
        for batch in _batches(rows):
            told = [verl_row(row, written + at) for at, row in enumerate(batch)]
            file.write_table(pa.Table.from_pylist(told, schema=schema))
            written += len(batch)
    if not written:
        scratch.unlink()
        raise StitchError(f"there are no rows for {path.name}; build a data set with more tasks, or another split")
    scratch.replace(path)
    return written


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    every = iter(rows)
    while batch := list(islice(every, BATCH)):
        yield batch


def write_code(folder: Path) -> tuple[Path, Path]:
    """Put the reward function and the reward manager where every node of a cluster can read them."""
    folder.mkdir(parents=True, exist_ok=True)
    reward, manager = folder / REWARD_FILE, folder / MANAGER_FILE
    here = Path(__file__).parent
    shutil.copyfile(here / "reward_file.py", reward)
    shutil.copyfile(here / "manager_file.py", manager)
    return reward, manager
