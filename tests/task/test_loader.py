"""A reference becomes a Task, or a sentence that says what its text lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.errors import TaskError
from stitchcuda.task.kernelbench import ids
from stitchcuda.task.loader import load_task
from stitchcuda.task.model import Target

CPU = Target(kind="cpu", arch="native")
GOOD = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super(Model, self).__init__()
        self.linear = torch.nn.Linear(width, width)
        self.inner = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU())

    def forward(self, x):
        return self.inner(self.linear(x) + 1)

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return [8]
"""


def write(folder: Path, source: str, name: str = "small.py") -> str:
    path = folder / name
    path.write_text(source)
    return str(path)


def test_a_file_becomes_a_task(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD), target=CPU)
    assert (task.name, task.source, task.precision, task.mode, task.residence) == (
        "small",
        GOOD,
        "fp32",
        None,
        "device",
    )
    assert task.search_path is None


def test_settings_in_the_source_are_honoured(tmp_path: Path) -> None:
    source = GOOD + 'MODE = "eval"\nRESIDENCE = "host"\nPRECISION = "bf16"\n'
    task = load_task(write(tmp_path, source), target=CPU)
    assert (task.mode, task.residence, task.precision) == ("eval", "host", "bf16")
    assert load_task(write(tmp_path, source), target=CPU, precision="fp16").precision == "fp16"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def broken(:\n    pass\n", "not valid Python: invalid syntax in line 1: def broken"),
        ("import torch\n", r"does not define Model .*, nor get_init_inputs\(\).*, nor get_inputs\(\)"),
        (GOOD.replace("class Model(", "class Net("), "does not define Model "),
        (GOOD + 'MODE = "training"\n', "MODE is 'training'; it must be one of train, eval"),
        (GOOD + "MODE = str(1)\n", r"MODE \(line \d+\) must be set to a literal string"),
    ],
)
def test_what_the_text_lacks_is_named(tmp_path: Path, source: str, sentence: str) -> None:
    with pytest.raises(TaskError, match=sentence):
        load_task(write(tmp_path, source), target=CPU)


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("nowhere.py", "no task file 'nowhere.py'"),
        ("model.onnx", "neither a .py file nor kernelbench:LEVEL/ID"),
        ("kernelbench:three", "is not kernelbench:LEVEL/ID"),
    ],
)
def test_a_reference_to_nothing_is_refused(reference: str, sentence: str) -> None:
    with pytest.raises(TaskError, match=sentence):
        load_task(reference, target=CPU, root=Path())


def test_a_neighbour_module_makes_the_folder_importable(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text("WIDTH = 8\n")
    task = load_task(write(tmp_path, "from parts import WIDTH\n" + GOOD), target=CPU)
    assert task.search_path == str(tmp_path)


@pytest.mark.parametrize("layout", ["KernelBench/level3", "level3"])
def test_kernelbench_is_read_from_a_checkout(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / layout
    folder.mkdir(parents=True)
    write(folder, GOOD, "19_MobileNetV1.py")
    write(folder, GOOD, "1_MLP.py")
    assert load_task("kernelbench:3/19", target=CPU, root=tmp_path).name == "kb3_019_MobileNetV1"
    monkeypatch.setenv("KERNELBENCH_ROOT", str(tmp_path))
    assert load_task("kernelbench:3/1", target=CPU).name == "kb3_001_MLP"
    assert ids(3) == [1, 19]
    with pytest.raises(TaskError, match=r"has no task 9 in .*; it has 1, 19"):
        load_task("kernelbench:3/9", target=CPU)


def test_kernelbench_without_a_root_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELBENCH_ROOT", raising=False)
    with pytest.raises(TaskError, match="give --root"):
        load_task("kernelbench:3/1", target=CPU)


def test_kernelbench_is_read_from_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"code": [GOOD, GOOD], "level": [3, 3], "name": ["19_MobileNetV1", "2_X"], "problem_id": [19, 2]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "level_3-00000-of-00001.parquet")
    task = load_task("kernelbench:3/19", target=CPU, root=tmp_path)
    assert (task.name, task.source) == ("kb3_019_MobileNetV1", GOOD)
    assert ids(3, tmp_path) == [2, 19]
    with pytest.raises(TaskError, match="no task 3/7"):
        load_task("kernelbench:3/7", target=CPU, root=tmp_path)
