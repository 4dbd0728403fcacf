"""Running a Task once shows what it is, or ends in a sentence.

What cannot harm this process is run in it, to save the seconds that importing torch takes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.errors import TaskError
from stitchcuda.task import probe
from stitchcuda.task.inspect import available_bytes, inspect_task, interpret
from stitchcuda.task.loader import load_task
from stitchcuda.task.model import TaskFacts, TensorFacts
from tests.task.test_loader import CPU, GOOD, write

TEMPLATE = """
import os, random, sys, time
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, k=2):
        {forward}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


def source(forward: str, init: str = "pass", inputs: str = "torch.randn(4, 8)") -> str:
    return TEMPLATE.format(init=init, forward=forward, inputs=inputs)


def look(folder: Path, text: str) -> TaskFacts:
    """As ``inspect_task`` does, in this process."""
    task = load_task(write(folder, text), target=CPU)
    limit = available_bytes("cpu")
    return interpret(task, probe.look(task, limit), limit)


def look_apart(folder: Path, text: str, *, timeout_s: float = 60) -> TaskFacts:
    return inspect_task(load_task(write(folder, text), target=CPU), timeout_s=timeout_s)


def test_facts_of_a_plain_model(tmp_path: Path) -> None:
    facts = look_apart(tmp_path, GOOD)
    tensor = TensorFacts(shape=(4, 8), dtype="float32")
    assert facts.inputs == [tensor]
    assert facts.outputs == [tensor]
    assert (facts.parameters, facts.training, facts.stochastic, facts.mutates_state) == (144, True, False, False)
    assert 0 < facts.eager_seconds < 1


def test_scalars_in_and_nested_outputs_are_fine(tmp_path: Path) -> None:
    text = source('return {"a": (x.sum(), [x.argmax()]), "n": 3, "none": None}, x * k', inputs="torch.randn(4, 8), 3")
    facts = look(tmp_path, text)
    assert facts.inputs[1] == "3"
    assert [(fact.shape, fact.dtype) for fact in facts.outputs] == [((), "float32"), ((), "int64"), ((4, 8), "float32")]


@pytest.mark.parametrize(
    ("forward", "stochastic", "seedable"),
    [
        ("return torch.nn.functional.dropout(x, 0.5)", True, True),
        ("return x + random.random()", True, True),
        ("return x + torch.tensor(int.from_bytes(os.urandom(2), 'little'))", True, False),
        ("torch.rand(3); return x", False, False),
    ],
)
def test_random_numbers_are_recognised(tmp_path: Path, forward: str, stochastic: bool, seedable: bool) -> None:
    facts = look(tmp_path, source(forward))
    assert (facts.stochastic, facts.seedable) == (stochastic, seedable)


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        ("self.norm = torch.nn.BatchNorm1d(8)", "return self.norm(x)"),
        ("self.cache = torch.zeros(1)", "self.cache += 1; return x"),
    ],
)
def test_a_call_that_changes_state_is_recognised(tmp_path: Path, init: str, forward: str) -> None:
    assert look(tmp_path, source(forward, init)).mutates_state


def test_the_mode_is_the_sources(tmp_path: Path) -> None:
    text = source("return self.norm(x)", "self.norm = torch.nn.BatchNorm1d(8)") + 'MODE = "eval"\n'
    facts = look(tmp_path, text)
    assert (facts.training, facts.mutates_state) == (False, False)


def test_input_cases_are_run_and_named(tmp_path: Path) -> None:
    pair = '("small", 1, [torch.ones(1, 8)]), ("large", 3, lambda: [torch.ones(9, 8)])'
    cases = f"\ndef get_input_cases():\n    return [{pair}]\n"
    assert look(tmp_path, GOOD + cases).cases == ["small", "large"]
    with pytest.raises(TaskError, match="forward on input case 'large' raised RuntimeError"):
        look(tmp_path, GOOD + cases.replace("9, 8", "9, 7"))


def test_half_precision_casts_weights_and_inputs(tmp_path: Path) -> None:
    facts = look(tmp_path, GOOD + 'PRECISION = "bf16"\n')
    assert facts.outputs == [TensorFacts(shape=(4, 8), dtype="bfloat16")]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (source("return x @ x"), r"forward raised RuntimeError at line 11 \(return x @ x\): mat1 and mat2"),
        (source("return 3"), "returned int that holds no tensor"),
        (source("return [None, {}]"), "returned list that holds no tensor"),
        (source("return x", "raise KeyError('weights')"), "constructing Model raised KeyError at line 8"),
        (source("return x", inputs="undefined"), "get_inputs.. raised NameError"),
        ("import not_there\n" + GOOD, "running the source raised ModuleNotFoundError at line 1"),
        (source("sys.exit(3)"), "forward raised SystemExit"),
        (
            GOOD + "\ndef get_inputs():\n    return torch.ones(4, 8)\n",
            "get_inputs.. gave an object of type Tensor; it must be",
        ),
        (GOOD + "\ndef get_inputs():\n    return {'x': 1}\n", "get_inputs.. gave an object of type dict"),
        (GOOD + "\ndef get_init_inputs():\n    return None\n", "get_init_inputs.. gave an object of type NoneType"),
        (GOOD + "\ndef get_input_cases():\n    return [('a', [1])]\n", "must return a list of .name, weight, inputs."),
        (GOOD + "\ndef Model(width):\n    return 3\n", "no torch.nn.Module: calling it gave an object of type int"),
    ],
)
def test_a_model_that_does_not_run_ends_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(TaskError, match=sentence):
        look(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (source("os._exit(0)"), "ended its own trial run with exit code 0"),
        (source("os.abort()"), "died in its trial run by SIGABRT"),
        (source("return x + torch.zeros(2**42)"), "ran out of memory in forward at line 11"),
    ],
)
def test_a_model_that_ends_its_process_ends_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(TaskError, match=sentence):
        look_apart(tmp_path, text)


def test_a_model_larger_than_memory_is_refused_before_it_is_built(tmp_path: Path) -> None:
    text = source("return self.linear(x)", "self.linear = torch.nn.Linear(2**22, 2**20)")
    with pytest.raises(TaskError, match=r"needs at least 3\d{4}\.\d GiB .* but [\d.]+ GiB is available"):
        look(tmp_path, text)


def test_a_model_that_never_ends_is_stopped_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="did not finish its trial run within 6 s"):
        look_apart(tmp_path, source("time.sleep(100)", "os.system('sleep 100 &')"), timeout_s=6)


def test_printing_a_lot_does_no_harm(tmp_path: Path) -> None:
    assert look_apart(tmp_path, source("print('x' * 10**7); return x")).outputs


def test_a_part_of_a_model_is_inspected_like_any_other_task(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD), target=CPU, submodule="inner")
    assert inspect_task(task).inputs == [TensorFacts(shape=(4, 8), dtype="float32")]
