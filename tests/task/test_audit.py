"""An audit of tasks: one worker for many, what it says, and that it survives tasks which do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stitchcuda.errors import TaskError
from stitchcuda.task.audit import Auditor, Entry, expand, keep, known, labels, load, page, save
from stitchcuda.task.model import Target, Task

SOURCE = """
import os, time, torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(32, 8)
    def forward(self, x):
        return {forward}
def get_inputs():
    return [torch.rand(16, 32)]
def get_init_inputs():
    return []
"""


def task(forward: str, name: str = "t") -> Task:
    """A cpu task whose forward returns an expression."""
    source = SOURCE.format(forward=forward)
    return Task(name=name, origin=f"kernelbench:2/{len(name)}", source=source, target=Target(kind="cpu", arch="native"))


@pytest.fixture(scope="module")
def auditor() -> Iterator[Auditor]:
    with Auditor("cpu", timeout_s=60) as opened:
        yield opened


@pytest.fixture(scope="module")
def plain(auditor: Auditor) -> Entry:
    return auditor.audit(task("self.l(x)", "plain"), seconds=20)


def test_a_plain_layer_is_told_apart_from_trivial_answers(plain: Entry) -> None:
    assert "error" not in plain
    assert plain["battery"]["ours"] == []
    assert labels(plain) == []
    [output] = plain["outputs"]
    assert output["shape"] == [16, 8]
    assert output["min"] <= output["mean"] <= output["max"]
    assert plain["eager_seconds"] > 0


def test_one_worker_serves_many_tasks(auditor: Auditor, plain: Entry) -> None:
    assert auditor.process is not None
    before = auditor.process.pid
    zero = auditor.audit(task("torch.relu(self.l(x) - 99)", "zero"), seconds=20)
    drawn = auditor.audit(task("self.l(x) + torch.rand(8)", "drawn"), seconds=20)
    assert auditor.process.pid == before
    assert "zeros" in zero["battery"]["ours"]
    assert labels(zero) == ["non_discriminating"]
    assert "stochastic" in labels(drawn)


@pytest.mark.parametrize(
    ("forward", "sentence"),
    [
        ("undefined", "does not run: forward raised NameError"),
        ("os._exit(7)", "exit code 7"),
        ("time.sleep(99)", "no answer within"),
    ],
)
def test_a_task_that_breaks_is_named_and_the_next_is_audited(
    auditor: Auditor, plain: Entry, forward: str, sentence: str
) -> None:
    auditor.timeout_s = 3 if "sleep" in forward else 60
    entry = auditor.audit(task(forward, "broken"), seconds=20)
    auditor.timeout_s = 60
    assert sentence in entry["error"]


def test_results_are_kept_by_the_task_and_shown_as_a_page(plain: Entry, tmp_path: Path) -> None:
    document = load(tmp_path / "none.json")
    failed = {name: plain[name] for name in ("version", "task", "origin", "digest", "precision", "target")}
    keep(document, failed | {"error": "no answer"})
    assert known(document, task("self.l(x)", "plain")) is None
    keep(document, plain)
    keep(document, failed | {"task": "other", "error": "it broke"})
    save(tmp_path / "audit.json", document)
    assert known(load(tmp_path / "audit.json"), task("self.l(x)", "plain")) == json.loads(json.dumps(plain))
    assert known(document, task("self.l(x) * 2", "plain")) is None
    text = (tmp_path / "audit.md").read_text()
    assert text == page(document)
    assert "| level 2 | 1 | 0 |" in text
    assert "- other: it broke" in text


def test_a_level_stands_for_its_tasks(tmp_path: Path) -> None:
    (tmp_path / "level2").mkdir()
    for number in (3, 11):
        (tmp_path / "level2" / f"{number}_Some.py").write_text(SOURCE)
    assert expand(["a.py", "kernelbench:2", "kernelbench:2/3"], tmp_path) == [
        "a.py",
        "kernelbench:2/3",
        "kernelbench:2/11",
    ]
    with pytest.raises(TaskError, match="no level 4"):
        expand(["kernelbench:4"], tmp_path)


def test_the_command_refuses_a_foreign_result_file(tmp_path: Path) -> None:
    from stitchcuda.cli import main

    (tmp_path / "other.json").write_text("{}")
    main.register_verbs()
    answer = CliRunner().invoke(
        main.app, ["task", "audit", "x.py", "--target", "cpu", "--out", str(tmp_path / "other.json")]
    )
    assert isinstance(answer.exception, TaskError)
    assert "not a result file" in str(answer.exception)
