"""What a right answer does not show is looked for before a Program is published."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.sanitizer import verdict
from tests.evaluation.conftest import DEVICE, QUICK, make_facts
from tests.evaluation.test_defences import CALL, KERNEL, TASK, native

PUBLISH = QUICK.model_copy(update={"publish_processes": 1, "publish_calls": 5})


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    cache = tmp_path_factory.mktemp("sanitizer")
    with Evaluator(TASK, make_facts(), DEVICE, cache=cache, settings=PUBLISH) as opened:
        yield opened


def test_an_honest_kernel_is_clean(evaluator: Evaluator) -> None:
    evaluation = evaluator.evaluate(native(CALL), "publish")
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.provenance["sanitizer"] == "clean"


def test_a_write_behind_the_output_is_found(evaluator: Evaluator) -> None:
    program = native(CALL)
    kernel = KERNEL.replace("return RESULT", "y[rows * width] = 0; return 0")
    spoiled = program.model_copy(update={"files": program.files | {"kernels.cpp": kernel}})
    evaluation = evaluator.evaluate(spoiled, "publish")
    assert evaluation.status == "crashed", evaluation.message + str(evaluation.provenance["sanitizer"])
    assert "heap-buffer-overflow in scaled, kernels.cpp:" in evaluation.message


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", ""),
        ("all is well\n", ""),
        (
            "==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1 at pc 0x2\nWRITE of size 4\n"
            "    #0 0x7f01 in scaled src/kernels.cpp:4\n",
            "heap-buffer-overflow in scaled, kernels.cpp:4",
        ),
        (
            "src/k.cpp:3:14: runtime error: signed integer overflow: 1 + 2\n",
            "signed integer overflow: 1 + 2 at src/k.cpp:3:14",
        ),
        (
            "========= Invalid __global__ write of size 4 bytes\n=========     at scaled(float *)+0x70\n",
            "Invalid __global__ write of size 4 bytes",
        ),
        ("========= ERROR SUMMARY: 0 errors\n", ""),
    ],
)
def test_the_first_complaint_is_a_line(log: str, said: str) -> None:
    assert verdict(log) == said


def test_reports_about_the_kernels_of_others_are_not_the_programs() -> None:
    theirs = (
        "========= Uninitialized __global__ memory read of size 4 bytes\n=========     at void cudnn_kernel<int>()\n"
    )
    mine = "========= Invalid __global__ write of size 8 bytes\n=========     at scaled(float *)+0x70\n"
    between = "=========     Host Frame: somewhere\n" * 20
    own = frozenset({"scaled"})
    assert verdict(theirs, own) == ""
    assert verdict(theirs + between + mine, own) == "Invalid __global__ write of size 8 bytes"
    assert verdict(theirs).startswith("Uninitialized")
