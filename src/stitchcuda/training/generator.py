"""Tasks by the thousand: compositions of operators, each distinct, written as KernelBench writes its own.

A task has three sets of sizes: ``full`` for a GPU, ``cpu`` for a few cores, and ``audit``, small enough to look for
degenerate ones by the thousand (``generator_audit``). No random number is drawn but from the seed, so that equal seeds
give equal tasks.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.task.model import Target, Task
from stitchcuda.training.generator_families import FAMILIES, Family
from stitchcuda.training.generator_values import Draft

SizeSet = Literal["full", "cpu", "audit"]

HELD_OUT_PERCENT = 8
"""Of compositions, kept for evaluating the trained."""


class GeneratedTask(BaseModel):
    """One composition: source with its sizes left open, and the sizes."""

    model_config = ConfigDict(frozen=True)

    name: str
    family: str
    expression: str = Field(description="the composition without sizes, constants and names")
    body: str = Field(description="the source below its sizes")
    sizes: dict[SizeSet, dict[str, int]]
    mode: str | None = None
    residence: str | None = None

    @property
    def held_out(self) -> bool:
        """Whether it is for evaluation: told from the composition alone, so that no size of it is trained on."""
        digest = hashlib.sha256(self.expression.encode()).digest()
        return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT

    def source(self, which: SizeSet = "full") -> str:
        """The task file."""
        settings = [f'MODE = "{self.mode}"'] if self.mode else []
        settings += [f'RESIDENCE = "{self.residence}"'] if self.residence else []
        sizes = [f"{name} = {number}" for name, number in self.sizes[which].items() if name in self.body]
        head = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
        return "\n".join([head, *settings, *sizes, "", self.body])

    def task(self, target: Target, which: SizeSet = "full") -> Task:
        """As the rest of the house takes it."""
        return Task.model_validate(
            {
                "name": self.name,
                "origin": f"generated:{self.name}",
                "source": self.source(which),
                "target": target,
                "mode": self.mode,
                "residence": self.residence or "device",
            }
        )


def generate(seed: int) -> Iterator[GeneratedTask]:
    """Distinct tasks without end, family by family in their shares."""
    rng = random.Random(f"tasks:{seed}")
    seen: set[str] = set()
    number = 0
    while True:
        family = rng.choices(FAMILIES, weights=[family.share for family in FAMILIES])[0]
        task = compose(family, rng, number)
        if task.expression not in seen:
            seen.add(task.expression)
            number += 1
            yield task


def compose(family: Family, rng: random.Random, number: int) -> GeneratedTask:
    """One task of a family."""
    draft = Draft(rng)
    value = family.compose(draft)
    sizes = family.sizes(draft)
    mode = family.mode(draft)
    expression = value.expression + (f" in {mode} mode" if mode else "") + (" from host" if family.residence else "")
    return GeneratedTask(
        name=f"g{number:05d}_{family.name}",
        family=family.name,
        expression=expression,
        body=_body(draft, value.name),
        sizes=sizes,
        mode=mode,
        residence=family.residence,
    )


def _body(draft: Draft, result: str) -> str:
    names = ", ".join(name for name, _ in draft.inputs)
    made = ", ".join(f"torch.randn({', '.join(shape)})" for _, shape in draft.inputs)
    lines = ["class Model(nn.Module):"]
    if draft.constructor:
        lines += ["    def __init__(self):", "        super().__init__()"]
        lines += [f"        {line}" for line in draft.constructor]
        lines.append("")
    lines.append(f"    def forward(self, {names}):")
    lines += [f"        {line}" for line in draft.forward]
    lines += [f"        return {result}", "", "", "def get_inputs():", f"    return [{made}]", "", ""]
    lines += ["def get_init_inputs():", "    return []", ""]
    return "\n".join(lines)
