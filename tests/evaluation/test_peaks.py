"""Peak memory: measured for every evaluation, and told in figures when it was not enough."""

from __future__ import annotations

import os

from stitchcuda.evaluation.peaks import amount, figures, free_memory, peak_host_bytes
from tests.evaluation.conftest import QUICK, Judge, make_task

TASK = make_task(
    "class Model(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"
    "def get_inputs():\n    return [torch.randn(64, 64)]\n"
    "def get_init_inputs():\n    return []\n"
)
BODY = "class ModelNew(nn.Module):\n    def forward(self, x):\n        {}\n        return torch.relu(x)\n"
LARGE = 300 << 20


def test_an_evaluation_tells_how_much_memory_its_program_took(judge: Judge) -> None:
    evaluation = judge(TASK, BODY.format(f"torch.zeros({LARGE}, dtype=torch.uint8)"))
    assert evaluation.status == "correct", evaluation.message
    assert LARGE < evaluation.memory["host"] < LARGE + (4 << 30)
    assert evaluation.memory["oracle_host"] > 50 << 20
    assert evaluation.memory["host_free"] > 0


def test_too_little_memory_is_told_in_figures(judge: Judge) -> None:
    settings = QUICK.model_copy(update={"memory_bytes": 6 << 30})
    evaluation = judge(TASK, BODY.format(f"torch.zeros({32 << 30}, dtype=torch.uint8)"), settings=settings)
    assert evaluation.status == "out_of_memory"
    assert str(32 << 30) in evaluation.message
    assert "MiB of host memory at most" in evaluation.message or "GiB of host memory at most" in evaluation.message
    assert "are free now" in evaluation.message


def test_peaks_are_read_from_the_system() -> None:
    assert peak_host_bytes([os.getpid()]) > 10 << 20
    assert peak_host_bytes([2**22 + 1]) == 0
    assert free_memory() > 0


def test_amounts_are_for_people() -> None:
    assert (amount(512 << 20), amount(3.4 * 2**30)) == ("512 MiB", "3.4 GiB")
    memory = {"host": 1 << 30, "device": 20 << 30, "device_free": 22 << 30, "reference_device": 5 << 30}
    assert figures(memory, "cuda") == (
        "the program held 1.0 GiB of host memory at most, 20.0 GiB of the device's, "
        "22.0 GiB of that were free before it, the reference needs 5.0 GiB beside inputs and weights"
    )
