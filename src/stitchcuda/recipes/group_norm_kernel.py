"""Writes the group normalisation whose rows stay on chip: how blocks share rows, and the CUDA source.

For ``recipes.group_norm``, which decides where it applies. Standard library only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

TEMPLATE = Path(__file__).parent / "templates" / "group_norm.cu"
THREADS = 512
MAX_ITEMS = 16
"""float4 of a thread: 64 of its 128 registers."""
BLOCK_RATE = 3e10
"""Bytes a second of a block: an H200's bandwidth shared by its multiprocessors."""
ROUND_SECONDS = 2.5e-6
"""What a row costs a team besides memory: its statistics and waiting for each other."""


@dataclass(frozen=True)
class Chain:
    """Pointwise operators around the normalisation, for one element ``x`` of a channel."""

    operands: tuple[str, ...]
    """C names of the tensors read."""
    per_channel: tuple[bool, ...]
    """Whether an operand has an element for each channel, or one in all."""
    lines: tuple[str, ...]
    """C++ statements over ``x`` and the operands' values."""
    result: str
    """The C++ expression of the value."""


@dataclass(frozen=True)
class GroupNormPlan:
    """``rows`` groups of ``row`` elements each, normalised by teams of blocks."""

    rows: int
    groups: int
    """Groups of a sample."""
    group_channels: int
    area: int
    """Elements of a channel; a multiple of 4."""
    eps: float
    team: int
    """Blocks that share a row."""
    teams: int
    items: int
    """float4 of a thread."""
    gamma: bool
    beta: bool
    sums: bool
    """The result is each block's sum of its values, [rows, team], instead of the values."""
    before: Chain
    after: Chain

    @property
    def row(self) -> int:
        """Elements of a group."""
        return self.group_channels * self.area

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the tensors besides input, weight and bias."""
        return self.before.operands + self.after.operands

    @property
    def launcher(self) -> str:
        """The launcher's name: equal kernels have the same."""
        return f"group_norm_{hashlib.sha256(repr(self).encode()).hexdigest()[:6]}"

    def source(self, prelude: str) -> str:
        """The CUDA source of ``(x, gamma, beta, out, partials, counters, operands..., stream)``.

        ``partials`` has 4 * teams * team floats, ``counters`` an int64 for each team, zero at first. ``prelude`` are
        the scalar functions that the chains call.
        """
        config = {
            "ROWS": self.rows,
            "ROW": self.row,
            "AREA": self.area,
            "GROUPS": self.groups,
            "GROUP_CHANNELS": self.group_channels,
            "TEAM": self.team,
            "TEAMS": self.teams,
            "ITEMS": self.items,
            "THREADS": THREADS,
        }
        flags = {"GAMMA": self.gamma, "BETA": self.beta, "SUMS": self.sums}
        lines = [f"constexpr int {name} = {value};" for name, value in config.items()]
        lines += [f"constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()]
        lines.append(f"constexpr float EPSILON = {self.eps!r}f;")
        members = "".join(f"  const float* {name};\n" for name in self.operands)
        operands = f"struct Operands {{\n{members}}};\n\n" + chain_function("before", "Before", self.before)
        operands += "\n" + chain_function("after", "After", self.after)
        text = prelude + "\n" + TEMPLATE.read_text().replace("// @CONFIG@", "\n".join(lines))
        text = text.replace("// @OPERANDS@", operands).replace("@NAME@", self.launcher)
        text = text.replace("@PARAMETERS@", "".join(f", const float* {name}" for name in self.operands))
        return text.replace("@NAMES@", ", ".join(self.operands))


def chain_function(name: str, struct: str, chain: Chain) -> str:
    """The values of a chain's operands for a channel, and the chain for an element."""
    members = "".join(f"  float {operand};\n" for operand in chain.operands)
    loads = [
        f"given.{operand}[{'channel' if each else '0'}]"
        for operand, each in zip(chain.operands, chain.per_channel, strict=True)
    ]
    unpacked = [f"  const float {operand} = values.{operand};" for operand in chain.operands]
    body = [*unpacked, *(f"  {line}" for line in chain.lines), f"  return {chain.result};"]
    return "\n".join(
        [
            f"struct {struct} {{\n{members}}};",
            f"static __device__ __forceinline__ {struct} {name}_of(const Operands& given, int channel) {{",
            f"  return {{{', '.join(loads)}}};",
            "}",
            f"static __device__ __forceinline__ float {name}(float x, const {struct}& values) {{",
            *body,
            "}",
            "",
        ]
    )


def teams_of(rows: int, row: int, multiprocessors: int, shared_memory: int) -> tuple[int, int, int] | None:
    """Blocks of a team, teams and float4 of a thread that keep most of the device's registers in use.

    One block is resident on each multiprocessor. None when a row does not fit the device.
    """
    packs = row // 4
    best: tuple[float, int, int, int] | None = None
    for items in range(2, MAX_ITEMS + 1):
        if 16 * items * THREADS + 4096 > shared_memory:
            break
        team = -(-packs // (items * THREADS))
        teams = min(multiprocessors // team, rows)
        if teams < 1:
            continue
        predicted = seconds(rows, row, team, teams)
        if best is None or predicted <= best[0]:
            best = (predicted, team, teams, items)
    return best[1:] if best is not None else None


def seconds(rows: int, row: int, team: int, teams: int, rate: float = BLOCK_RATE) -> float:
    """Predicted time of ``teams`` teams of ``team`` blocks over ``rows`` groups of ``row`` elements.

    A block moves its part in and out at its share of the bandwidth, ``rate`` bytes a second, one group after another.
    """
    part = 32 * -(-(row // 4) // team) / rate
    return -(-rows // teams) * (part + (ROUND_SECONDS if team > 1 else ROUND_SECONDS / 3))
