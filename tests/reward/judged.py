"""A task, a program and what was measured of it, as the Judge's tests show them; and a judge that answers by script."""

from __future__ import annotations

import dataclasses
from typing import Any

from stitchcuda.program.model import Argument, Launcher, Manifest, Program
from stitchcuda.reward.judge_model import JudgeSettings
from stitchcuda.reward.model import DIMENSIONS, Skill
from stitchcuda.reward.observed import Observed
from stitchcuda.task.model import Target, Task
from tests.reward.samples import evaluation, kernel, profile

SOURCE = '''
import torch
from torch import nn


class Model(nn.Module):
    """Softmax of a scaled input."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=-1)


def get_inputs():
    return [torch.randn(64, 128)]


def get_init_inputs():
    return [0.5]
'''

PYTHON = """
import torch
from bindings import softmax_rows
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.label = "rows"

    def forward(self, x):
        # one pass over each row
        y = torch.empty_like(x)
        softmax_rows(x, y, x.shape[0], x.shape[1], self.scale)
        return y
"""

NATIVE = """
#include <cstdint>
#include <cmath>
#include "rows.h"

// Two passes: the maximum, then the sum.
extern "C" int softmax_rows(const float* x, float* y, int64_t rows, int64_t columns, float scale, void*) {
  for (int64_t r = 0; r < rows; ++r) {
    float top = -INFINITY;
    for (int64_t c = 0; c < columns; ++c) top = larger(top, x[r * columns + c] * scale);
    float total = 0;
    for (int64_t c = 0; c < columns; ++c) total += y[r * columns + c] = std::exp(x[r * columns + c] * scale - top);
    for (int64_t c = 0; c < columns; ++c) y[r * columns + c] /= total;
  }
  return 0;
}
"""

HEADER = """
#pragma once
inline float larger(float a, float b) { return a > b ? a : b; }
"""

REFERENCE = profile([kernel("aten::softmax", 6), kernel("aten::mul", 2)], gap_ms=1)


def task() -> Task:
    return Task(name="softmax", origin="softmax.py", source=SOURCE, target=Target(kind="cpu", arch="native"))


def program(
    python: str = PYTHON, native: str = NATIVE, *, header: str = HEADER, name: str = "softmax_rows", **files: str
) -> Program:
    """The honest program, or one with other texts; ``name`` is its launcher's."""
    arguments = [
        Argument(name="x", dtype="float32"),
        Argument(name="y", dtype="float32", role="output"),
        Argument(name="rows", kind="scalar", dtype="int64"),
        Argument(name="columns", kind="scalar", dtype="int64"),
        Argument(name="scale", kind="scalar", dtype="float32"),
    ]
    manifest = Manifest(target="cpu", launchers=[Launcher(name=name, source="rows.cpp", arguments=arguments)])
    texts = {"program.py": python, "rows.cpp": native, "rows.h": header, **files}
    return Program(files=texts, manifest=manifest)


def observed(written: Program | None = None, **changes: Any) -> Observed:
    """An honest program that took everything over in one kernel, unless told otherwise."""
    ran = profile([kernel("softmax_rows", 4, "own")])
    seen = Observed(evaluation(sol=0.5), reference=REFERENCE, profile=ran, program=written or program())
    return dataclasses.replace(seen, **changes)


def verdict(score: int | dict[str, int] = 4, evidence: list[str] | None = None) -> dict[str, Any]:
    """A judge's answer: the same mark everywhere, or by dimension (4 where none is given)."""
    given = {name: score if isinstance(score, int) else score.get(name, 4) for name in DIMENSIONS}
    return {name: {"score": mark, "reason": "as shown", "evidence": evidence or ["E1"]} for name, mark in given.items()}


def settings(base_url: str, **changes: Any) -> JudgeSettings:
    """Of a judge that waits for nothing."""
    quick = {"votes": 3, "attempts": 2, "first_wait_seconds": 0.01, "request_seconds": 10}
    return JudgeSettings(**{"model": "openai:scripted", "base_url": base_url, **quick, **changes})


SKILL: Skill = "scratch"
