"""Launch plans: integer expressions of sizes, and launches that a device can take."""

from __future__ import annotations

from typing import Any

import pytest

from stitchcuda.errors import ProgramError
from stitchcuda.evaluation.nvrtc import KernelSource
from stitchcuda.evaluation.nvrtc_plan import KernelProgram, evaluate, resolve

SIZES = {"n": 1000, "B": 256}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (7, 7),
        ("n", 1000),
        ("ceil_div(n, B)", 4),
        ("(n + B - 1) // B * 2", 8),
        ("-(-n // B) % 3", 1),
        ("min(n, 65535, B)", 256),
        ("max(1, n - 2000)", 1),
        ("next_power_of_two(n)", 1024),
        ("2 if n > B else 1", 2),
    ],
)
def test_expressions_are_evaluated(expression: int | str, value: int) -> None:
    assert evaluate(expression, SIZES) == value


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("m + 1", "names m; known are B, n"),
        ("n // (B - 256)", "divides by zero"),
        ("n / 2", "no integer expression"),
        ("1.5", "no integer expression"),
        ("True", "no integer expression"),
        ("__import__('os')", "no integer expression"),
        ("n.real", "no integer expression"),
        ("2 ** 10", "no integer expression"),
        ("n +", "no integer expression"),
        ("ceil_div(n)", "calls ceil_div with 1 arguments"),
        ("*".join(["n"] * 30), "beyond 2^62"),
        ("n" + " + 1" * 200, "characters"),
    ],
)
def test_everything_else_is_refused_in_a_sentence(expression: str, sentence: str) -> None:
    with pytest.raises(ProgramError, match=sentence.replace("^", r"\^")):
        evaluate(expression, SIZES)


def plan(**launch: Any) -> KernelProgram:
    fields = {
        "kernel": "scale",
        "grid": ("ceil_div(n, BLOCK)", 1, 1),
        "block": ("BLOCK", 1, 1),
        "arguments": ({"buffer": "x"}, {"buffer": "y"}, {"value": "n", "dtype": "int64"}),
    }
    return KernelProgram.model_validate(
        {
            "code": KernelSource(source="", kernels=("scale",), defines={"BLOCK": 128}),
            "plan": {
                "buffers": {
                    "x": {"elements": "n", "role": "input"},
                    "y": {"elements": "2 * n", "dtype": "float16", "role": "output"},
                },
                "launches": [fields | launch],
            },
        }
    )


def test_a_plan_is_resolved_for_sizes_and_macros() -> None:
    resolved = resolve(plan(), {"n": 1000})
    assert resolved.buffers == {"x": (4000, "input"), "y": (4000, "output")}
    (launch,) = resolved.launches
    assert (launch.grid, launch.block) == ((8, 1, 1), (128, 1, 1))
    assert launch.arguments == (("buffer", "x"), ("buffer", "y"), ("int64", 1000))


@pytest.mark.parametrize(
    ("launch", "sentence"),
    [
        ({"kernel": "other"}, "launches other"),
        ({"block": (1024, 2, 1)}, "1 to 1024 threads"),
        ({"block": (0, 1, 1)}, "1 to 1024 threads"),
        ({"grid": (1, 70000, 1)}, "blocks are possible"),
        ({"grid": ("n - 1000", 1, 1)}, "blocks are possible"),
        ({"shared_bytes": 1 << 20}, "shared memory"),
        ({"arguments": ({"buffer": "z"},)}, "takes the buffer z"),
        ({"arguments": ({"value": "n * n * n * n", "dtype": "int32"},)}, "does not hold it"),
        ({"arguments": ({"value": -1, "dtype": "uint32"},)}, "does not hold it"),
        ({"arguments": ({"value": 1.5, "dtype": "int32"},)}, "is an integer"),
    ],
)
def test_launches_that_no_device_takes_are_refused(launch: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ProgramError, match=sentence):
        resolve(plan(**launch), {"n": 1000})


def test_a_buffer_of_nothing_is_refused() -> None:
    with pytest.raises(ProgramError, match="buffer x has 0 elements"):
        resolve(plan(), {"n": 0})
