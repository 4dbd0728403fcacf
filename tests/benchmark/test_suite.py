"""From what was asked to the items of a sweep."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from stitchcuda.benchmark.model import SweepConfig
from stitchcuda.benchmark.split import TEST
from stitchcuda.benchmark.suite import absent_of, answers_to, items_of, numbers
from stitchcuda.errors import StitchError, TaskError
from stitchcuda.knowledge.retriever import Retriever
from stitchcuda.knowledge.search import Searcher
from stitchcuda.knowledge.snippets import add_run
from stitchcuda.knowledge.store import Store
from tests.knowledge.test_snippets import LINEAR_GELU, MLP, make_run

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.{0}(x)

def get_inputs():
    return [torch.randn(8)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with a level 1 of three tasks and a whole test split of level 3 among others."""
    for level, names in ((1, ["1_relu", "2_tanh", "10_sigmoid"]), (3, [f"{i}_{n}" for i, n in enumerate(TEST[3], 40)])):
        folder = tmp_path / "KernelBench" / f"level{level}"
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}.py").write_text(SOURCE.format(name.partition("_")[2]))
    (tmp_path / "KernelBench" / "level3" / "1_MLP.py").write_text(SOURCE.format("exp"))
    return tmp_path


def asked(root: Path, **more: object) -> SweepConfig:
    return SweepConfig.checked(**({"suite": "kernelbench", "root": str(root)} | more))


def test_a_level_is_taken_in_the_order_of_its_numbers(root: Path) -> None:
    items = items_of(asked(root, levels=[1]))
    assert [item.task for item in items] == ["kernelbench:1/1", "kernelbench:1/2", "kernelbench:1/10"]
    assert {item.group for item in items} == {"level 1"}


def test_ids_choose_within_a_level(root: Path) -> None:
    assert [item.task for item in items_of(asked(root, levels=[1], ids="10,1"))] == [
        "kernelbench:1/10",
        "kernelbench:1/1",
    ]
    with pytest.raises(TaskError, match="no task 3"):
        items_of(asked(root, levels=[1], ids="3"))
    with pytest.raises(StitchError, match="one --level"):
        items_of(asked(root, levels=[1, 3], ids="1"))


def test_the_test_split_goes_by_names_whatever_the_numbers(root: Path) -> None:
    items = items_of(asked(root, levels=[3], split="test"))
    assert [re.sub(r"kb3_\d+_", "", item.name) for item in items] == list(TEST[3])


def test_a_checkout_without_some_of_the_split_is_refused(root: Path) -> None:
    (root / "KernelBench" / "level3" / "40_ShallowWideMLP.py").unlink()
    with pytest.raises(TaskError, match="lacks 1 of its 10 test tasks"):
        items_of(asked(root, levels=[3], split="test"))
    with pytest.raises(TaskError, match="lacks"):
        items_of(asked(root, levels=[1], split="test"))


def test_the_split_has_twenty_twenty_and_ten_tasks() -> None:
    assert {level: len(set(names)) for level, names in TEST.items()} == {1: 20, 2: 20, 3: 10}


def test_repetitions_come_after_every_task_was_begun(root: Path) -> None:
    items = items_of(asked(root, levels=[1], seeds=2))
    assert [item.seed for item in items] == [0, 0, 0, 1, 1, 1]
    assert len({item.id for item in items}) == 6


def test_a_folder_of_tasks_with_its_subfolders_as_groups(tmp_path: Path) -> None:
    (tmp_path / "conv").mkdir()
    (tmp_path / "conv" / "b.py").write_text(SOURCE.format("relu"))
    (tmp_path / "a.py").write_text(SOURCE.format("tanh"))
    (tmp_path / "_helper.py").write_text("VALUE = 1\n")
    (tmp_path / "c.py").mkdir()
    items = items_of(SweepConfig.checked(suite="folder", folder=str(tmp_path)))
    assert [(item.name, item.group) for item in items] == [("a", ""), ("conv_b", "conv")]


def test_a_file_that_is_no_task_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("VALUE = 1\n")
    with pytest.raises(TaskError, match=r"a\.py does not define Model.*left out where its name begins with _"):
        items_of(SweepConfig.checked(suite="folder", folder=str(tmp_path)))
    (tmp_path / "a.py").write_bytes(b"\xff\x00")
    with pytest.raises(TaskError, match=r"a\.py cannot be read"):
        items_of(SweepConfig.checked(suite="folder", folder=str(tmp_path)))


def test_generations_of_kernelbench_are_scored_by_their_names(root: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs" / "mine"
    runs.mkdir(parents=True)
    for name in ("level_1_problem_2_sample_0", "level_1_problem_2_sample_1", "level_1_problem_10_sample_0"):
        (runs / f"{name}_kernel.py").write_text("")
    items = items_of(SweepConfig.checked(suite="score", root=str(root), programs=str(runs)))
    assert [(item.task, item.seed) for item in items] == [
        ("kernelbench:1/2", 0),
        ("kernelbench:1/2", 1),
        ("kernelbench:1/10", 0),
    ]
    assert items[0].program == str(runs / "level_1_problem_2_sample_0_kernel.py")


def test_programs_are_found_by_the_names_of_their_tasks(root: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    (programs / "level1" / "10_sigmoid").mkdir(parents=True)
    (programs / "level1" / "10_sigmoid" / "program.py").write_text("")
    (programs / "2_tanh.py").write_text("")
    asked = SweepConfig.checked(suite="score", root=str(root), levels=[1], programs=str(programs))
    items = items_of(asked)
    assert [item.task for item in items] == ["kernelbench:1/2", "kernelbench:1/10"]
    (absent,) = absent_of(asked, items)
    assert "relu" in absent
    (tmp_path / "runs").mkdir()
    with pytest.raises(StitchError, match="has a task's name"):
        items_of(SweepConfig.checked(suite="score", root=str(root), levels=[1], programs=str(tmp_path / "runs")))


def test_a_bare_number_names_a_task_of_one_level_only(root: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    (programs / "level3").mkdir(parents=True)
    (programs / "1.py").write_text("")
    one = SweepConfig.checked(suite="score", root=str(root), levels=[1], programs=str(programs))
    assert [item.task for item in items_of(one)] == ["kernelbench:1/1"]
    two = one.model_copy(update={"levels": [1, 3]})
    with pytest.raises(StitchError, match="has a task's name"):
        items_of(two)
    (programs / "level3" / "1.py").write_text("")
    assert [item.task for item in items_of(two)] == ["kernelbench:3/1"]


def test_a_sweep_is_never_shown_what_won_on_its_own_tasks(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mlp.py").write_text(MLP)
    items = items_of(SweepConfig.checked(suite="folder", folder=str(tmp_path / "tasks")))
    with contextlib.closing(Store(tmp_path / "index" / "knowledge.sqlite")) as store:
        add_run(store, make_run(tmp_path / "run", "# found again\n" + MLP.replace("512", "1024")))
        assert Retriever(Searcher(store)).snippets(LINEAR_GELU)
        assert Retriever(Searcher(store), excluded_tasks=answers_to(items)).snippets(LINEAR_GELU) == []


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2"])
def test_ids_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(StitchError, match="--ids"):
        numbers(text)


def test_settings_that_make_no_sense_are_refused_before_any_work(root: Path) -> None:
    with pytest.raises(StitchError, match="seeds"):
        asked(root, levels=[1], seeds=0)
    with pytest.raises(StitchError, match="no effect on recipes"):
        asked(root, levels=[1], base_url="http://localhost/v1")
    with pytest.raises(StitchError, match="which level"):
        items_of(asked(root))
