"""What the integrity tests share: programs from snippets, and the rules that fire on them."""

from __future__ import annotations

import textwrap

from stitchcuda.evaluation.integrity.inspect import inspect_program
from stitchcuda.evaluation.model import Finding
from stitchcuda.program.model import Program
from stitchcuda.task.model import Precision, Target

CPU = Target(kind="cpu", arch="native")


def inspected(source: str, precision: Precision = "fp32", **files: str) -> dict[str, Finding]:
    """Findings by rule for a ``program.py`` and further files (``kernels_cpp`` is ``kernels.cpp``)."""
    named = {name[::-1].replace("_", ".", 1)[::-1]: textwrap.dedent(text) for name, text in files.items()}
    program = Program(files={"program.py": textwrap.dedent(source), **named})
    return {finding.rule: finding for finding in inspect_program(program, CPU, precision)}


def rejected(found: dict[str, Finding]) -> set[str]:
    """Rules that reject."""
    return {rule for rule, finding in found.items() if finding.severity == "reject"}


def forward(body: str, init: str = "pass") -> str:
    """A program whose ``ModelNew.forward(self, x)`` is ``body``."""
    return (
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\nclass ModelNew(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        + textwrap.indent(textwrap.dedent(init).strip(), " " * 8)
        + "\n\n    def forward(self, x):\n"
        + textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
        + "\n"
    )
