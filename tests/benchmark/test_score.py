"""Programs of others that cannot even be read."""

from __future__ import annotations

from pathlib import Path

from stitchcuda.benchmark.governor import Governor
from stitchcuda.benchmark.measuring import Place
from stitchcuda.benchmark.metrics import summarise
from stitchcuda.benchmark.model import Item, SweepConfig
from stitchcuda.benchmark.score import score_item


def test_a_program_that_cannot_be_read_is_a_failure_that_cost_nothing(tmp_path: Path) -> None:
    program = tmp_path / "a.py"
    program.write_text("def broken(:\n")
    config = SweepConfig.checked(suite="score", programs=str(tmp_path), target="cpu")
    item = Item(task="a.py", name="a", digest="", program=str(program))
    record = score_item(item, config, tmp_path / "sweep", measuring=Place(config, Governor()))
    assert (record.status, record.programs) == ("nothing_correct", {"no_program": 1})
    main = summarise([record]).main
    assert (main.tasks, main.usd_total) == (1, 0.0)
