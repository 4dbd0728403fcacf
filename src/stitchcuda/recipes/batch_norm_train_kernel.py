"""Writes the train-mode BatchNorm and depthwise convolution kernels: chooses a variant by shape, prints launchers.

For the recipes ``batch_norm_train`` and ``conv_depthwise``, which decide where they apply. Standard library only, so
that a machine with nothing but a compiler can check the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TEMPLATE = Path(__file__).parent / "templates" / "batch_norm_train.cu"

ACTIVATIONS = {"none": 0, "relu": 1, "relu6": 2, "silu": 3, "hardswish": 4}
"""Codes of the activations that may follow a BatchNorm."""

CHUNK = 256 * 8
NORM = ("weight", "bias", "running_mean", "running_var", "batches")
"""Tensors of one BatchNorm, in launcher order; all optional, the running statistics and the counter are inout."""

Argument = tuple[str, str, str]
"""(name, kind, role): kind is ``float``, ``long`` (scalars), ``float*`` or ``long*`` (tensors)."""


def fit(units: int) -> tuple[int, int]:
    """(threads, units per thread) of one block over ``units`` vectors; (0, 0) when a block cannot hold them."""
    for items in (1, 2, 4, 8, 16):
        if units <= items * (256 if items < 4 else 512):
            return -(-units // (items * 32)) * 32, items
    return 0, 0


def _norm_arguments(suffix: str = "") -> list[Argument]:
    kinds = ("float*", "float*", "float*", "float*", "long*")
    roles = ("input", "input", "inout", "inout", "inout")
    return [(name + suffix, kind, role) for name, kind, role in zip(NORM, kinds, roles, strict=True)]


def _norm_scalars(suffix: str = "") -> list[Argument]:
    return [(f"momentum{suffix}", "float", "input"), (f"eps{suffix}", "float", "input")]


def _norm_literal(suffix: str = "") -> str:
    return "{" + ", ".join(name + suffix for name in (*NORM, "momentum", "eps")) + "}"


def _longs(*names: str) -> list[Argument]:
    return [(name, "long", "input") for name in names]


@dataclass(frozen=True)
class NormPlan:
    """BatchNorm over ``[batch, channels, area]`` with residual and activation."""

    batch: int
    channels: int
    area: int

    @property
    def vector(self) -> int:
        """Floats per access."""
        return 4 if self.area % 4 == 0 else 1

    @property
    def fit(self) -> tuple[int, int]:
        """(threads, items) when a block owns a channel; (0, 0) when it takes three launches."""
        return fit(self.batch * self.area // self.vector)

    @property
    def launcher(self) -> str:
        """Name of the launcher; one serves all shapes of the same variant."""
        items = self.fit[1]
        return f"batch_norm_v{self.vector}_i{items}" if items else f"batch_norm_v{self.vector}_chunks"

    @property
    def workspace(self) -> int:
        """Floats of scratch memory."""
        if self.fit[1]:
            return 0
        return 3 * self.channels * (-(-self.batch * self.area // self.vector // CHUNK) + 1)

    @property
    def arguments(self) -> list[Argument]:
        """The launcher's arguments, without the stream."""
        return [
            ("x", "float*", "input"),
            ("residual", "float*", "input"),
            *_norm_arguments(),
            ("out", "float*", "output"),
            ("workspace", "float*", "inout"),
            *_longs("batch", "channels", "area", "activation", "threads"),
            *_norm_scalars(),
        ]

    @property
    def code(self) -> str:
        """The launcher's definition."""
        sizes = "int(batch), int(channels), int(area), int(activation)"
        common = f"x, residual, out, {_norm_literal()}, {sizes}"
        items = self.fit[1]
        if items:
            return _define(
                self.launcher, self.arguments, f"norm_by_channel<{self.vector}, {items}>({common}, int(threads), on)"
            )
        return _define(self.launcher, self.arguments, f"norm_by_chunks<{self.vector}>({common}, workspace, on)")


@dataclass(frozen=True)
class DepthwisePlan:
    """Depthwise convolution of ``[batch, channels, height, width]``, square kernel, padding (kernel - 1) / 2."""

    batch: int
    channels: int
    height: int
    width: int
    kernel: int
    stride: int

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        return (self.height - 1) // self.stride + 1

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        return (self.width - 1) // self.stride + 1

    @property
    def strips(self) -> int:
        """Groups of four outputs in a row."""
        return -(-self.out_width // 4)

    @property
    def pitch(self) -> int:
        """Floats of a padded input row in shared memory."""
        return -(-max(self.strips * 4 * self.stride + 8, self.width + 4) // 4) * 4

    @property
    def tile_rows(self) -> int:
        """Output rows of a tile when several blocks share a plane."""
        by_memory = (32 * 1024 // 4 // self.pitch - self.kernel) // self.stride + 1
        most = max(1, min(1024 // self.strips, by_memory, self.out_height))
        return -(-self.out_height // -(-self.out_height // most))

    @property
    def tiles(self) -> int:
        """Tiles of a plane."""
        return -(-self.out_height // self.tile_rows)

    @property
    def group(self) -> int:
        """Threads of a tile."""
        strips = self.tile_rows * self.strips
        rows = (self.tile_rows - 1) * self.stride + self.kernel
        if strips <= 128 and self.tiles == 1 and rows * self.pitch <= 2560:
            return 32
        return 128 if strips <= 512 else 256

    @property
    def vector(self) -> int:
        """Floats per input access."""
        return 4 if self.width % 4 == 0 else 2 if self.width % 2 == 0 else 1

    @property
    def supported(self) -> bool:
        """Whether a variant exists for these sizes."""
        return self.kernel in (3, 5) and self.stride in (1, 2) and self.strips <= 1024

    @property
    def launcher(self) -> str:
        """Name of the launcher of the convolution alone."""
        return f"depthwise_k{self.kernel}s{self.stride}_g{self.group}_v{self.vector}"

    @property
    def arguments(self) -> list[Argument]:
        """The launcher's arguments, without the stream."""
        return [
            ("x", "float*", "input"),
            ("filter", "float*", "input"),
            ("bias", "float*", "input"),
            ("out", "float*", "output"),
            *_longs("batch", "channels", "height", "width", "tile_rows"),
        ]

    @property
    def code(self) -> str:
        """The launcher's definition."""
        sizes = "int(batch), int(channels), int(height), int(width), int(tile_rows)"
        variant = f"depthwise_by_tiles<{self.kernel}, {self.stride}, {self.group}, {self.vector}>"
        call = f"{variant}(x, filter, bias, nullptr, NONE, out, nullptr, {sizes}, on)"
        return _define(self.launcher, self.arguments, call)


@dataclass(frozen=True)
class NormDepthwisePlan:
    """BatchNorm, activation, depthwise convolution, BatchNorm, activation; ``shared_memory`` is a block's limit."""

    depthwise: DepthwisePlan
    shared_memory: int

    @property
    def vector(self) -> int:
        """Floats per input access of a row."""
        return self.depthwise.vector

    @property
    def fit(self) -> tuple[int, int]:
        """(threads, items) when a block owns a channel; (0, 0) when it takes five launches."""
        d = self.depthwise
        rows = (d.out_height - 1) * d.stride + d.kernel
        if 4 * d.batch * rows * d.pitch + 1024 > self.shared_memory:
            return 0, 0
        return fit(max(d.batch * d.height * d.width // self.vector, d.batch * d.out_height * d.strips))

    @property
    def _vectors(self) -> tuple[int, int]:
        d = self.depthwise
        return 4 if d.height * d.width % 4 == 0 else 1, 4 if d.out_height * d.out_width % 4 == 0 else 1

    @property
    def launcher(self) -> str:
        """Name of the launcher; one serves all shapes of the same variant."""
        d, items = self.depthwise, self.fit[1]
        stem = f"batch_norm_depthwise_k{d.kernel}s{d.stride}"
        if items:
            return f"{stem}_v{self.vector}_i{items}"
        return f"{stem}_g{d.group}_v{self._vectors[0]}{self.vector}{self._vectors[1]}"

    @property
    def workspace(self) -> int:
        """Floats of scratch memory."""
        if self.fit[1]:
            return 0
        d = self.depthwise
        parts = -(-d.batch * d.height * d.width // self._vectors[0] // CHUNK)
        moments = 3 * d.channels * (parts + d.batch * d.tiles + 2)
        return -(-moments // 4) * 4 + d.batch * d.channels * d.out_height * d.out_width

    @property
    def arguments(self) -> list[Argument]:
        """The launcher's arguments, without the stream; ``launch_size`` is threads or tile rows."""
        return [
            ("x", "float*", "input"),
            *_norm_arguments("_1"),
            ("filter", "float*", "input"),
            *_norm_arguments("_2"),
            ("out", "float*", "output"),
            ("workspace", "float*", "inout"),
            *_longs("batch", "channels", "height", "width", "activation_1", "activation_2", "launch_size"),
            *_norm_scalars("_1"),
            *_norm_scalars("_2"),
        ]

    @property
    def launch_size(self) -> int:
        """What the launcher's last size is."""
        return self.fit[0] or self.depthwise.tile_rows

    @property
    def code(self) -> str:
        """The launcher's definition."""
        d, items = self.depthwise, self.fit[1]
        common = (
            f"x, filter, out, {_norm_literal('_1')}, int(activation_1), {_norm_literal('_2')}, int(activation_2), "
            "int(batch), int(channels), int(height), int(width), int(launch_size)"
        )
        if items:
            call = f"depthwise_by_channel<{d.kernel}, {d.stride}, {self.vector}, {items}>({common}, on)"
        else:
            v, out_v = self._vectors
            variant = f"norm_depthwise_by_chunks<{d.kernel}, {d.stride}, {d.group}, {v}, {self.vector}, {out_v}>"
            call = f"{variant}({common}, workspace, on)"
        return _define(self.launcher, self.arguments, call)


Plan = NormPlan | DepthwisePlan | NormDepthwisePlan


def _define(name: str, arguments: list[Argument], call: str) -> str:
    types = {"float": "float", "long": "long long"}
    parameters = []
    for argument, kind, role in arguments:
        base = types[kind.rstrip("*")]
        constant = "const " if kind.endswith("*") and role == "input" else ""
        parameters.append(f"{constant}{base}{'*' if kind.endswith('*') else ''} {argument}")
    return "\n".join(
        [
            f'extern "C" int {name}({", ".join(parameters)}, void* stream) {{',
            "  const cudaStream_t on = static_cast<cudaStream_t>(stream);",
            f"  return {call};",
            "}",
        ]
    )


def source(plans: list[Plan]) -> str:
    """One CUDA source with the launchers that ``plans`` need; each distinct launcher appears once."""
    launchers = {plan.launcher: plan.code for plan in plans}
    text = TEMPLATE.read_text()
    return text.replace("// @LAUNCHERS@", "\n\n".join(launchers[name] for name in sorted(launchers)))


def cpu_source() -> str:
    """The C++ source of launcher ``batch_norm_train``, with a NormPlan's arguments."""
    return TEMPLATE.with_suffix(".cpp").read_text()
