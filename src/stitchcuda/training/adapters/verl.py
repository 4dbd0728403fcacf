"""Rows as verl's data set class reads them. The reward function that verl loads is ``reward_file``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stitchcuda.errors import StitchError, ToolMissing
from stitchcuda.training.adapters import reward_file
from stitchcuda.training.adapters.mapping import asked_of
from stitchcuda.training.model import Row

SOURCES = {"scratch": "stitchcuda/scratch", "improve": "stitchcuda/improve"}
"""``data_source`` by skill: verl reports validation by it, so that the skills stand apart."""

REWARD_FILE = "reward.py"


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
    every = [verl_row(row, index) for index, row in enumerate(rows)]
    if not every:
        raise StitchError(f"there are no rows for {path.name}; build a data set with more tasks, or another split")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}")
    parquet.write_table(pa.Table.from_pylist(every, schema=schema), scratch, compression="zstd")
    scratch.replace(path)
    return len(every)


def write_reward_file(folder: Path) -> Path:
    """Put the reward function where every node of a cluster can read it."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / REWARD_FILE
    shutil.copyfile(reward_file.__file__, target)
    return target
