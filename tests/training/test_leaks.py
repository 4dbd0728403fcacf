"""Test tasks in training data are found however they are reworded, and honest tasks are let through."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from typer.testing import CliRunner

from stitchcuda.benchmark.split import TEST
from stitchcuda.cli.main import app, register_verbs
from stitchcuda.errors import StitchError
from stitchcuda.training.leaks import check
from stitchcuda.training.leaks_graph import graph_marks
from stitchcuda.training.leaks_samples import Sample, TestTask, held_back, training_samples
from stitchcuda.training.leaks_source import source_marks
from stitchcuda.training.leaks_text import found_in

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "split_marks.py"
BLOCK = '''
import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 4
width = 24

class Model(nn.Module):
    """A gated block."""
    def __init__(self, width):
        super(Model, self).__init__()
        self.up = nn.Linear(width, 48)  # wider
        self.down = nn.Linear(48, width, bias=False)

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)

    def forward(self, x):
        """Computes it."""
        hidden = self.up(x)
        left = F.relu(hidden)
        right = self.gate(hidden)
        return self.down(left * right) + x

def get_inputs():
    return [torch.randn(batch_size, width)]

def get_init_inputs():
    return [width]
'''

REWORDED = """
from torch import nn
import torch
from torch.nn import functional as fn


class FeedForward(nn.Module):
    def nonlinearity(self, value):
        return torch.sigmoid(value)

    def forward(self, tokens):
        projected = self.first(tokens)
        g = self.nonlinearity(projected)
        r = fn.relu(projected)
        return self.second(r * g) + tokens

    def __init__(self, d):
        super().__init__()
        self.second = nn.Linear(48, d, bias=False)
        self.first = nn.Linear(d, 48)


Model = FeedForward
d_model = 24
n = 4


def get_init_inputs():
    return [d_model]


def get_inputs():
    # random tokens
    return [torch.randn(n, d_model)]
"""

RENAMED = REWORDED.replace("FeedForward", "Model").replace("Model = Model\n", "")

OTHER_SPELLING = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"a": nn.Linear(24, 48), "b": nn.Linear(48, 24, bias=False)})
        self.act = nn.ReLU()

    def forward(self, x):
        h = torch.nn.functional.linear(x, self.layers["a"].weight, self.layers["a"].bias)
        return x + self.layers["b"](h.sigmoid() * self.act(h))

def get_inputs():
    return [torch.randn(4, 24)]

def get_init_inputs():
    return []
"""

HONEST = [
    BLOCK.replace("F.relu", "F.gelu"),
    BLOCK.replace("left * right", "left + right"),
    BLOCK.replace("+ x", "- x"),
    BLOCK.replace("bias=False", "bias=True"),
    BLOCK.replace("self.gate(hidden)", "self.gate(left)"),
    BLOCK.replace("self.down(left * right)", "self.down(left * left)"),
]
LARGER = BLOCK.replace("batch_size = 4", "batch_size = 64")
TESTS = [TestTask("GatedBlock", 3, BLOCK, (source_marks(BLOCK),))]


def sample(source: str, **told: Any) -> Sample:
    return Sample("row", (source,), **told)


def test_marks_survive_names_comments_annotations_imports_and_order() -> None:
    assert source_marks(RENAMED) == source_marks(BLOCK)


@pytest.mark.parametrize("source", HONEST)
def test_marks_tell_other_models_apart(source: str) -> None:
    assert source_marks(source).whole != source_marks(BLOCK).whole


def test_an_order_that_matters_is_kept() -> None:
    one = "def f(x):\n    x = x + 1\n    x = x * 2\n    return x\n"
    two = "def f(x):\n    x = x * 2\n    x = x + 1\n    return x\n"
    assert source_marks(one).whole != source_marks(two).whole
    early = "def f(x):\n    if x.sum() > 0:\n        return x\n    y = x + 1\n    return y\n"
    assert source_marks(early).whole != source_marks(early.replace("        return x\n", "        pass\n")).whole


def test_other_sizes_are_a_near_leak_and_not_refused() -> None:
    report = check([sample(LARGER)], TESTS, graphs=False)
    assert [leak.way for leak in report.leaks] == ["sizes"]
    assert not report.refused


def test_sizes_of_an_earlier_release_of_the_test_task_are_refused() -> None:
    released_twice = [TestTask("GatedBlock", 3, BLOCK, (source_marks(BLOCK), source_marks(LARGER)))]
    report = check([sample(LARGER)], released_twice, graphs=False)
    assert [(leak.way, leak.refused) for leak in report.leaks] == [("source", True)]
    assert report.test_tasks == 1


def test_a_computation_in_other_spelling_is_found_by_its_graph() -> None:
    report = check([sample(OTHER_SPELLING), sample(LARGER), sample(HONEST[0])], TESTS, lanes=0)
    assert [(leak.way, leak.refused) for leak in report.leaks] == [("graph", True), ("sizes", False)]
    assert report.graphs == 3


def test_graphs_tell_apart_what_differs_only_in_which_input_goes_where() -> None:
    head = (
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def forward(self, x, y):\n        return {}\n"
    )
    tail = (
        "def get_inputs():\n    return [torch.randn(4, 8), torch.randn(4, 8)]\ndef get_init_inputs():\n    return []\n"
    )

    def mark(forward: str) -> str:
        return graph_marks(head.format(forward) + tail).whole

    squared, mixed = mark("torch.relu(x) * torch.relu(x)"), mark("torch.relu(x) * torch.relu(y)")
    assert squared != mixed
    assert mark("torch.relu(y) * x.relu()") == mixed  # neither order nor spelling
    assert mark("torch.relu(x) - torch.relu(y)") != mixed


def test_a_source_that_does_not_run_is_compared_by_text_and_named() -> None:
    broken = HONEST[0].replace("F.gelu", "F.missing")
    report = check([sample(broken)], TESTS, lanes=0)
    assert not report.leaks
    assert "missing" in next(iter(report.without_graph.values()))


def improvement_row(source: str, name: str = "", level: int | None = None) -> dict[str, Any]:
    """A row of the second skill as public data sets have them: the reference hides in a side column, and the prompt
    shows an earlier program alone."""
    previous = "class ModelNew(nn.Module):\n    def forward(self, x):\n        return relu_cuda(x)\n"
    return {
        "data_source": "Improvement",
        "prompt": [{"role": "user", "content": f"Improve this:\n```python\n{previous}```\n"}],
        "extra_info": {"answer": source, "task_name": name, "level": level, "next_correct": True},
    }


def parquet_of(rows: list[dict[str, Any]], path: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_second_skill_rows_of_test_tasks_are_found_in_foreign_data(tmp_path: Path) -> None:
    path = parquet_of(
        [improvement_row(RENAMED), improvement_row(HONEST[0]), improvement_row(BLOCK)], tmp_path / "d.parquet"
    )
    report = check(training_samples(path), TESTS, graphs=False)
    assert [(leak.where, leak.way) for leak in report.leaks] == [("d.parquet:0", "source"), ("d.parquet:2", "source")]
    assert report.leaks[0].skill == "Improvement"
    assert "**Refused**: 2 rows hold 1 test tasks" in report.page()


def test_a_name_refuses_where_the_row_says_its_level_and_only_warns_where_it_does_not(tmp_path: Path) -> None:
    rows = [improvement_row(HONEST[0], "19_MobileNetV1", 3), improvement_row(HONEST[1], "MobileNetV1")]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = check(training_samples(tmp_path), held_back("kernelbench"), graphs=False)
    assert [leak.way for leak in report.leaks] == ["name", "same_name"]
    assert report.refused


BEFORE = "It's your task (read on):\n\nfrom the code you can see what it does.\n"
BEHIND = "Now write it in CUDA; don't change a name.\nDone\nNote: code only\n"
FORMS = {
    "fence": f"```python\n{BLOCK}```\n",
    "tildes": f"~~~python\n{BLOCK}~~~\n",
    "indented fence": indent(f"```python\n{BLOCK}```\n", "    "),
    "fence that is never closed": f"```python\n{BLOCK}",
    "text": f"{BLOCK}{BEHIND}",
    "indented text": indent(BLOCK, "    "),
    "quote": indent(BLOCK, "> ", lambda line: True),
    "tags": f"<reference>{BLOCK.strip()}</reference>\n",
    "behind another": f"class ModelNew:\n    pass\n\nThe task:\n{BLOCK}",
    "before its program": f"<a>\n{BLOCK}</a>\n<b>\nclass ModelNew:\n    pass\n</b>\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_reference_is_found_in_a_prompt_in_whatever_form(form: str) -> None:
    found = found_in([{"content": f"{BEFORE}\n{FORMS[form]}{'' if 'never' in form else BEHIND}"}])
    assert [source_marks(source) for source in found.sources] == [source_marks(BLOCK)]
    assert not found.unread


def test_every_reference_of_a_row_is_found_but_programs_are_none() -> None:
    text = f"The architecture:\n```python\n{BLOCK}```\nAnd its program:\n```python\nclass ModelNew:\n    pass\n```\n"
    second = HONEST[0].strip()
    found = found_in({"a": [text, {"b": f"{BLOCK}And:\n{second}\n"}]})
    assert [source.strip() for source in found.sources] == [BLOCK.strip(), second]
    assert found_in(BLOCK.replace("(nn.Module)", "(mixed(nn.Module))")).sources
    assert found_in("Write the class ModelNew: it stands in for class Model, whose forward is slow.").unread == 0


UNREADABLE = {
    "escaped": BLOCK.replace("\n", "\\n"),
    "difference": indent(BLOCK, "+"),
    "cut short": BLOCK.replace("    def forward(self, x):\n", "    ... and so on\n    def forward(self, x):\n"),
    "no Python": BLOCK.replace("return self.down(", "return self.down(("),
}


@pytest.mark.parametrize("form", UNREADABLE)
def test_nothing_is_called_clean_on_account_of_a_model_that_cannot_be_read(form: str, tmp_path: Path) -> None:
    rows = [{"prompt": f"{BEFORE}\n{UNREADABLE[form]}\n{BEHIND}"}, improvement_row(HONEST[0])]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = check(training_samples(tmp_path), TESTS, graphs=False)
    assert (report.unread, report.refused, report.clean) == (["d.jsonl:0"], False, False)
    assert "**Undecided**" in report.page()
    assert "1 rows" in report.page()
    assert "d.jsonl:0" in report.page()


def test_a_long_prompt_is_read_in_bounded_time() -> None:
    prose = "It's a line; nothing in it begins like code.\n" * 50_000
    (source,) = found_in(f"{prose}{BLOCK}{prose}").sources
    assert source_marks(source) == source_marks(BLOCK)
    misleading = "import nothing at all\nfrom here to there\n" * 20_000
    began = time.process_time()
    assert found_in(f"{misleading}{BLOCK}{misleading}" * 10).unread == 10
    assert time.process_time() - began < 30


def test_the_default_split_is_known_without_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELBENCH_ROOT", raising=False)
    tests = held_back("kernelbench")
    assert [sum(test.level == level for test in tests) for level in (1, 2, 3)] == [20, 20, 10]
    assert {test.name for test in tests} == {name for names in TEST.values() for name in names}
    relu = """import torch
from torch import nn
class Model(nn.Module):
    def forward(self, values):
        result = torch.relu(values)
        return result
rows = 4096
columns = 393216
def get_inputs():
    return [torch.rand(rows, columns)]
def get_init_inputs():
    return []
"""
    first_release = relu.replace("4096", "16").replace("393216", "16384").replace("torch.rand(", "torch.randn(")
    report = check([sample(relu), sample(first_release), sample(relu.replace("4096", "4"))], tests, graphs=False)
    assert [(leak.test, leak.way) for leak in report.leaks] == [
        ("level 1 ReLU", "source"),
        ("level 1 ReLU", "source"),
        ("level 1 ReLU", "sizes"),
    ]


def test_marks_are_made_of_every_version_in_the_benchmarks_history(tmp_path: Path) -> None:
    clone, out = tmp_path / "clone", tmp_path / "marks.json"
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    for version in (LARGER, BLOCK, RENAMED):
        for level, names in TEST.items():
            folder = clone / "KernelBench" / f"level{level}"
            folder.mkdir(parents=True, exist_ok=True)
            for number, name in enumerate([*names, "NotOfTheSplit"]):
                (folder / f"{number}_{name}.py").write_text(version)
        for words in (["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a version"]):
            subprocess.run(["git", "-C", str(clone), *words], check=True)
    subprocess.run([sys.executable, str(SCRIPT), str(clone), "--out", str(out)], check=True)
    marks = json.loads(out.read_text())["tasks"]
    assert len(marks) == 50
    assert marks["1/relu"] == [vars(source_marks(BLOCK)), vars(source_marks(LARGER))], "newest first, each once"


def test_a_split_of_ones_own_is_a_file_of_tasks(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BLOCK)
    (tmp_path / "split.txt").write_text("# held back\nmine.py\n")
    tests = held_back(str(tmp_path / "split.txt"))
    assert [(test.name, test.source) for test in tests] == [("mine", BLOCK)]
    with pytest.raises(StitchError, match="name kernelbench, or a file"):
        held_back("nowhere.txt")


def test_the_command_refuses_with_exit_code_1(tmp_path: Path) -> None:
    register_verbs()
    (tmp_path / "split").mkdir()
    (tmp_path / "split" / "mine.py").write_text(BLOCK)
    unread = HONEST[0].replace("return [width]", "return [width")
    for name, source, leaks, code in (("leaky", RENAMED, 1, 1), ("clean", HONEST[0], 0, 0), ("unread", unread, 0, 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.py").write_text(source)
        split = ["--test-split", str(tmp_path / "split"), "--no-graphs", "--json"]
        done = CliRunner().invoke(app, ["dataset", "check", str(tmp_path / name), *split])
        assert done.exit_code == code, done.output
        assert len(json.loads(done.output)["leaks"]) == leaks
