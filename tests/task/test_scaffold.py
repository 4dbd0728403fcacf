"""A class of the user's own package becomes a task file that says what is left to fill in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stitchcuda.errors import TaskError
from stitchcuda.task.inspect import inspect_task
from stitchcuda.task.loader import load_task
from stitchcuda.task.scaffold import MARK, scaffold
from tests.task.test_loader import CPU

MODELS = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn
from .parts import WIDTH

@dataclass
class Config:
    width: int = WIDTH

class Block(nn.Module):
    def __init__(self, config: Config, heads: int, scale=1.0):
        super().__init__()
        self.linear = nn.Linear(config.width, config.width)
    def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return self.linear(x) * factor

class Tokens(nn.Module):
    def __init__(self, *, vocab_size, width):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
    def forward(self, ids):
        return self.embedding(ids).sum(-1)

class Opaque(nn.Module):
    def __init__(self, name: str):
        super().__init__()
        raise RuntimeError(name)
    def forward(self, x):
        return x

class Picky(nn.Module):
    def forward(self, x):
        if x.shape != (3, 5, 7):
            raise ValueError("only 3x5x7")
        return x

class Plain:
    pass
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shop" / "nets"
    folder.mkdir(parents=True)
    (tmp_path / "shop" / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("print('noise on stdout')\n")
    (folder / "parts.py").write_text("WIDTH = 24\n")
    (folder / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_can_be_guessed_is_and_the_task_runs_from_anywhere(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scaffold("shop.nets.models:Block")
    (package / "task.py").write_text(made.source)
    monkeypatch.chdir("/")
    task = load_task(str(package / "task.py"), target=CPU)
    facts = inspect_task(task)
    assert facts.inputs[0] != facts.inputs[1] == "1.0"
    assert task.mode == "eval"
    assert made.left == [
        "check the guesses for the constructor: config = Config(), heads = 4",
        "check the guesses for forward: x = torch.randn(8, 24), factor = 1.0",
    ]
    assert made.source.count(MARK) == 4


def test_keyword_only_arguments_are_filled_in_by_a_subclass(package: Path) -> None:
    made = scaffold("shop.nets.models:Tokens")
    (package / "task.py").write_text(made.source)
    facts = inspect_task(load_task(str(package / "task.py"), target=CPU))
    assert "torch.randint(0, 1000, (2, 64))" in made.source
    assert facts.parameters == 1000 * 64


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("Opaque", "fill in name of the constructor"), ("Picky", "no guessed input runs .*only 3x5x7")],
)
def test_what_cannot_be_known_is_marked(package: Path, name: str, sentence: str) -> None:
    import re

    made = scaffold(f"shop.nets.models:{name}")
    assert re.search(sentence, " / ".join(made.left))
    assert "..." in made.source


def test_a_file_serves_as_a_module(package: Path) -> None:
    (package / "alone.py").write_text(MODELS.replace("from .parts import WIDTH", "WIDTH = 8"))
    assert "import alone as package" in scaffold("alone.py:Block").source


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("shop", "is not MODULE:CLASS"),
        ("shop.nothing:Block", "ModuleNotFoundError"),
        ("shop.nets.models:Blok", "has no Blok; its modules are: Block, Tokens, Opaque, Picky"),
        ("shop.nets.models:Plain", "is not a torch.nn.Module class"),
        ("gone.py:Block", "there is no file"),
    ],
)
def test_a_class_that_cannot_be_used_is_told(package: Path, reference: str, sentence: str) -> None:
    with pytest.raises(TaskError, match=sentence):
        scaffold(reference)


def test_the_command_writes_tries_and_reports(package: Path) -> None:
    command = [sys.executable, "-m", "stitchcuda.cli.main", "init", "shop.nets.models:Block", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    outcome = json.loads(done.stdout)
    assert (done.returncode, outcome["runs"], outcome["path"]) == (0, True, "block_task.py")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "block_task.py exists" in again.stderr


def test_a_file_inside_a_package_is_imported_as_its_part(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package / "shop")
    made = scaffold("nets/models.py:Block")
    assert "import shop.nets.models as package" in made.source
    assert f"sys.path.insert(0, {str(package)!r})" in made.source
