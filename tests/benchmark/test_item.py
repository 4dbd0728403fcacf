"""What a Record says of a finished run."""

from __future__ import annotations

from pathlib import Path

from stitchcuda.benchmark.item import read_record
from stitchcuda.benchmark.model import Item
from stitchcuda.workflow.records import NAME, read_records
from tests.support.scripted_endpoint import Answer, text
from tests.workflow.model_run import plan, run, step


def test_a_refused_step_is_no_unusable_reply(tmp_path: Path) -> None:
    def answer(message: str) -> Answer:
        if "Step 1 of 2" in message:
            return text("NO GAIN\n\nThe adds take 2 % of the call, so 1.02x is the most.")
        return text("no files at all")

    steps = [step("adds", ["add"]), step("more", ["relu"])]
    _, _, folder = run(tmp_path, plans=[plan(one=steps)], programs=answer)
    record = read_record(Item(task="a.py", name="a", digest=""), folder, folder.path.parent)
    replies = [entry.data for entry in read_records(folder.path / NAME)[0] if entry.kind == "program"]
    unusable = sum(bool(reply["problem"]) for reply in replies)
    assert unusable > 0
    assert len(replies) == unusable + 1
    assert record.programs == {"no_program": unusable}
