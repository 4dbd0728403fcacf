"""Writes the persistent GRU/LSTM kernel for one shape and device: chooses the tiling and prints the CUDA source.

For ``recipes.recurrent``, which decides where it applies. Standard library only, so that a machine with nothing but
a compiler can check the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

TEMPLATE = Path(__file__).parent / "templates" / "recurrent.cu"

EXCHANGE_CLOCKS = 1000
"""One store to L2 until a polling reader on another SM holds the value, with the barriers around it."""

ROW_CLOCKS = 180
"""What every batch row of a CTA adds to the exchange: all CTAs of a chain poll the same lines of L2."""

FEWEST_ROWS = 3
"""Batch rows below which the exchange is not taken to get any shorter: fewer were not measured."""

ISSUE_FACTORS = {True: 0.93, False: 2.3}
"""Measured over counted issue slots, by wavefront: one role's few warps do not hide their latencies.

These constants fit 16 tilings measured on an H200 (GRU and LSTM, B 10, H 256) within 7 %."""

CLUSTER_EXCHANGE_CLOCKS = 900
"""The exchange through the shared memory of a cluster with the gates' arithmetic; an estimate."""

CLUSTER_ISSUE_FACTOR = 1.3
"""Measured over counted issue slots within a cluster; an estimate."""

CLUSTER_SIZE = 8
"""CTAs of a cluster that every device with clusters can hold."""


@dataclass(frozen=True)
class Stack:
    """What ``torch.nn.GRU`` or ``torch.nn.LSTM`` computes, time first, without projections or dropout."""

    kind: Literal["gru", "lstm"]
    steps: int
    batch: int
    inputs: int
    hidden: int
    layers: int
    bidirectional: bool = False
    bias: bool = True

    @property
    def gates(self) -> int:
        """Weight rows per hidden unit."""
        return 3 if self.kind == "gru" else 4

    @property
    def directions(self) -> int:
        """2 when bidirectional."""
        return 2 if self.bidirectional else 1


@dataclass(frozen=True)
class Tiling:
    """How one launch is cut: ``wavefront`` runs all layers of a stack in one launch, else one launch a layer."""

    wavefront: bool
    batch_tile: int = field(metadata={"doc": "batch rows of a CTA"})
    batch_step: int = field(metadata={"doc": "batch rows accumulated at once; divides batch_tile"})
    units: int = field(metadata={"doc": "hidden units of a CTA"})
    rows_per_warp: int = field(metadata={"doc": "weight rows a warp keeps in registers"})
    cluster: bool = field(default=False, metadata={"doc": "states go from shared memory to shared memory"})


@dataclass(frozen=True)
class Cost:
    """Resources and predicted time of a Tiling on one Stack."""

    stack: Stack
    tiling: Tiling

    @cached_property
    def chains(self) -> int:
        """Sequences of steps that run side by side in a launch."""
        return self.stack.layers if self.tiling.wavefront else self.stack.directions

    @cached_property
    def ctas(self) -> int:
        """Thread blocks of a launch, all resident at once."""
        return self.chains * -(-self.stack.batch // self.tiling.batch_tile) * -(-self.stack.hidden // self.tiling.units)

    @cached_property
    def role_warps(self) -> int:
        """Warps that multiply by one weight matrix."""
        return -(-self.stack.gates * self.tiling.units // self.tiling.rows_per_warp)

    @cached_property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.role_warps * (2 if self.tiling.wavefront else 1)

    @cached_property
    def registers(self) -> int:
        """Estimated registers of a thread."""
        columns = self.stack.hidden // 32
        t = self.tiling
        pairs = -(-t.units * t.batch_tile // (32 * self.role_warps))
        fetches = -(-t.batch_tile * self.stack.hidden // (128 * self.role_warps))
        working = max(t.rows_per_warp * t.batch_step + 8, 0 if t.cluster else 6 * fetches)
        return t.rows_per_warp * columns + working + pairs * (4 * self.stack.gates + 6) + 36

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""
        t = self.tiling
        state = t.batch_tile * self.stack.hidden
        partials = self.role_warps * t.rows_per_warp * t.batch_tile
        if t.cluster:
            return 4 * (4 + 2 * state + partials)
        return 4 * (2 * state + 3 * partials if t.wavefront else state + partials)

    @cached_property
    def clocks_per_step(self) -> float:
        """Predicted SM clocks of one step of every chain."""
        t = self.tiling
        columns = self.stack.hidden // 32
        rows, values, shuffles, extra = t.rows_per_warp, t.rows_per_warp * t.batch_step, 0, 0
        for _ in range(5):
            half = rows // 2 * t.batch_step if rows % 2 == 0 else -(-values // 2)
            shuffles += half
            extra += half * (1 if rows % 2 == 0 else 3)
            rows = rows // 2 if rows % 2 == 0 else 1
            values = half
        rounds = t.batch_tile / t.batch_step
        multiply = rounds * t.rows_per_warp * t.batch_step * columns
        loads = rounds * t.batch_step * columns
        issue = multiply + loads / 4 + rounds * (shuffles + extra) + 40
        pipe = loads + rounds * shuffles
        busy = max(-(-self.warps // 4) * issue, self.warps * pipe)
        if t.cluster:
            return CLUSTER_ISSUE_FACTOR * busy + CLUSTER_EXCHANGE_CLOCKS
        return ISSUE_FACTORS[t.wavefront] * busy + ROW_CLOCKS * max(t.batch_tile, FEWEST_ROWS) + EXCHANGE_CLOCKS

    def fits(self, multiprocessors: int, shared_memory: int) -> bool:
        """Whether all CTAs are resident at once, one an SM, without spilling."""
        limit = min(255, 65536 // (32 * self.warps) // 8 * 8) if self.warps <= 32 else 0
        clusters = 0.85 if self.tiling.cluster else 1.0  # multiprocessors that whole clusters fill
        return (
            self.ctas <= multiprocessors * clusters and self.registers <= limit and self.shared_bytes <= shared_memory
        )


def supported(stack: Stack) -> bool:
    """Whether the kernel is written for this Stack's sizes, whatever the device."""
    return stack.hidden % 32 == 0 and 32 <= stack.hidden <= 1024 and stack.batch >= 1 and stack.steps >= 1


def tilings(
    stack: Stack, *, wavefront: bool, multiprocessors: int, shared_memory: int, cluster: bool = False
) -> list[Tiling]:
    """All tilings that fit the device, fastest predicted first; with ``cluster`` those of clusters alone."""
    if not supported(stack) or (wavefront and (cluster or stack.bidirectional or stack.layers < 2)):
        return []
    found: list[tuple[float, Tiling]] = []
    for batch_tile in range(1, min(stack.batch, 32) + 1):
        tiles = -(-stack.batch // batch_tile)
        if batch_tile > 1 and tiles == -(-stack.batch // (batch_tile - 1)):
            continue
        step = max(n for n in range(1, min(batch_tile, 6) + 1) if batch_tile % n == 0)
        for units in (2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64):
            if units > stack.hidden or (cluster and (units % 4 or not 2 <= -(-stack.hidden // units) <= CLUSTER_SIZE)):
                continue
            for rows in (2, 3, 4, 6, 8, 12, 16):
                if stack.gates * units % rows:
                    continue
                tiling = Tiling(wavefront, batch_tile, step, units, rows, cluster)
                cost = Cost(stack, tiling)
                if cost.fits(multiprocessors, shared_memory):
                    found.append((cost.clocks_per_step, tiling))
    return [tiling for _, tiling in sorted(found, key=lambda item: item[0])]


def arguments(stack: Stack, tiling: Tiling) -> list[tuple[str, str]]:
    """(name, role) of the launcher's tensors in C order; all float32 and contiguous.

    ``x`` is ``W_ih·input + b_ih`` of the first layer (of the layer): ``[steps, batch, directions * gates * hidden]``;
    ``out`` is ``[steps, batch, directions * hidden]``. ``h0``, ``c0``, ``h_n`` and ``c_n`` hold the chains in order,
    ``[chains, batch, hidden]``. ``work`` holds the outputs of all layers but the last.
    """
    names = [("x", "input")]
    for chain in range(Cost(stack, tiling).chains):
        parts = ["w_hh", "b_hh"] if stack.bias else ["w_hh"]
        if tiling.wavefront and chain > 0:
            parts += ["w_ih", "b_ih"] if stack.bias else ["w_ih"]
        names += [(f"{part}_{chain}", "input") for part in parts]
    names.append(("h0", "input"))
    if stack.kind == "lstm":
        names.append(("c0", "input"))
    if tiling.wavefront:
        names.append(("work", "output"))
    names += [("out", "output"), ("h_n", "output")]
    if stack.kind == "lstm":
        names.append(("c_n", "output"))
    return names


def source(stack: Stack, tiling: Tiling, name: str) -> str:
    """The CUDA source of launcher ``name`` for ``arguments(stack, tiling)`` and a stream."""
    wide = stack.directions * stack.gates * stack.hidden
    row = stack.directions * stack.hidden
    constants = {
        "GATES": stack.gates,
        "HIDDEN": stack.hidden,
        "STEPS": stack.steps,
        "BATCH": stack.batch,
        "CHAINS": Cost(stack, tiling).chains,
        "BATCH_TILE": tiling.batch_tile,
        "BATCH_STEP": tiling.batch_step,
        "BATCH_UNROLL": 1,
        "UNITS": tiling.units,
        "ROWS_PER_WARP": tiling.rows_per_warp,
    }
    lines = [f"constexpr int {key} = {value};" for key, value in constants.items()]
    lines += [
        f"constexpr bool CLUSTER = {str(tiling.cluster).lower()};",
        f"constexpr bool INPUT_INSIDE = {str(tiling.wavefront).lower()};",
        f"constexpr bool BIDIRECTIONAL = {str(stack.bidirectional).lower()};",
        f"constexpr long long X_STEP = {stack.batch * wide}, X_ROW = {wide};",
        f"constexpr long long OUT_STEP = {stack.batch * row}, OUT_ROW = {row};",
    ]
    text = TEMPLATE.read_text()
    return text.replace("// @CONFIG@", "\n".join(lines)).replace("// @LAUNCHER@", _launcher(stack, tiling, name))


def _launcher(stack: Stack, tiling: Tiling, name: str) -> str:
    lstm = stack.kind == "lstm"
    parameters = [f"{'float*' if role == 'output' else 'const float*'} {arg}" for arg, role in arguments(stack, tiling)]
    given = {arg for arg, _ in arguments(stack, tiling)}
    cells = stack.batch * stack.hidden
    sequence = stack.steps * stack.batch * stack.directions * stack.hidden
    chains = Cost(stack, tiling).chains
    lines = [
        f'extern "C" int {name}({", ".join(parameters)}, void* stream) {{',
        "  const cudaStream_t on = static_cast<cudaStream_t>(stream);",
        "  Chains chains;",
    ]
    for i in range(chains):
        if tiling.wavefront:
            x = "x" if i == 0 else "nullptr"
            out = "out" if i == chains - 1 else f"work + {i * sequence}ll"
        else:
            x, out = f"x + {i * stack.gates * stack.hidden}", f"out + {i * stack.hidden}"
        weights = [key if (key := f"{part}_{i}") in given else "nullptr" for part in ("w_ih", "b_ih", "w_hh", "b_hh")]
        at = f" + {i * cells}"
        state = [f"h0{at}", f"c0{at}" if lstm else "nullptr", out, f"h_n{at}", f"c_n{at}" if lstm else "nullptr"]
        lines.append(f"  chains.of[{i}] = {{{', '.join([x, *weights, *state])}}};")
    fills = [] if tiling.cluster else [("out", sequence)]
    if tiling.wavefront:
        fills.append(("work", (stack.layers - 1) * sequence))
    for buffer, floats in fills:
        lines += [
            f"  if (const cudaError_t error = cudaMemsetAsync({buffer}, 0xff, {floats * 4}ull, on)) return int(error);",
        ]
    return "\n".join([*lines, "  return launch(chains, on);", "}"])
