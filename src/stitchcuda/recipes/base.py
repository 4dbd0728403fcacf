"""What a recipe is, and the rewriter it works with: how launcher calls get into the graph.

A recipe replaces nodes of a captured graph by launcher calls (and by ATen nodes where a library call stays best),
and hands over the sources behind them. Printing the result as a Program is ``assemble``'s work.
"""

from __future__ import annotations

import hashlib
import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import fx

from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Argument, Dtype, Launcher
from stitchcuda.recipes.capture import Captured
from stitchcuda.task.model import Precision

TargetKind = Literal["cuda", "cpu"]

DTYPES: dict[torch.dtype, Dtype] = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
}
"""The manifest's name of each element type."""


@dataclass(frozen=True)
class New:
    """A result that is allocated at every call (torch.empty); ``stride`` None means contiguous."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    stride: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Workspace:
    """Scratch memory that is allocated once, zeroed once, and never leaves the program.

    Its contents survive between calls; every launcher call has its own.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


Scalar = int | float | bool
CallArgument = fx.Node | New | Workspace | Scalar | None


@dataclass(frozen=True)
class Slot:
    """Position of a node among the call node's ``args``."""

    index: int


@dataclass(frozen=True)
class Call:
    """``meta["call"]`` of a launcher call: the manifest entry and its arguments in C order."""

    launcher: Launcher
    arguments: tuple[Slot | New | Workspace | Scalar | None, ...]
    results: tuple[Slot | New, ...]
    """What ``getitem(call, i)`` is: an argument after the call (inout), or the i-th new tensor."""


@dataclass(frozen=True)
class Gain:
    """What one application of a recipe should save per call."""

    recipe: str
    what: str
    seconds: float
    launches: int = 0
    bytes: int = 0
    operators: tuple[str, ...] = ()


def launch(*arguments: Any) -> Any:
    """Stands for a launcher call in a graph; its contract is in the node's ``meta["call"]``."""
    raise RuntimeError("a launcher call in a graph is printed, never run")


def joined(buffer: Any, *written: Any) -> Any:
    """Stands for ``buffer`` after its parts were written; printed as its name."""
    raise RuntimeError("a joined buffer in a graph is printed, never run")


def is_launch(node: fx.Node) -> bool:
    """True for a node that stands for a launcher call."""
    return node.target is launch


@dataclass
class Rewriter:
    """A captured graph being rewritten for one device."""

    captured: Captured
    device: Device
    sources: dict[str, str] = field(default_factory=dict)
    launchers: dict[str, Launcher] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """Names of generated kernels by their text and arguments, so that equal ones are written once."""
    libraries: set[Literal["cublas", "cublasLt"]] = field(default_factory=set)
    gains: list[Gain] = field(default_factory=list)
    orchestration: list[str] = field(default_factory=list)
    """Host recipes that assemble must honour: 'cuda_graph', 'host_overlap'."""
    staged: set[fx.Node] = field(default_factory=set)
    """Inputs that host code moves to the device before the graph reads them."""
    disabled: frozenset[str] = frozenset()
    """Launchers that an earlier program was wrong with; recipes leave their nodes alone."""
    precision: Precision = "fp32"
    """The task's precision class; ``tf32`` has float32 tensors too."""

    left_out: dict[str, str] = field(default_factory=dict)
    """Recipes that raised and were left out, with what they raised."""

    @property
    def target(self) -> TargetKind:
        """'cuda' or 'cpu'."""
        return self.device.target.kind

    @property
    def graph(self) -> fx.Graph:
        """The graph that is rewritten."""
        return self.captured.graph

    @property
    def bandwidth(self) -> float:
        """Device memory bandwidth, bytes per second (read plus written)."""
        if self.device.ceilings is not None:
            return self.device.ceilings.copy_bytes_per_second
        return 2.0e12 if self.target == "cuda" else 1.0e10

    @property
    def launch_seconds(self) -> float:
        """What one more operator costs: a launch and its gap on cuda, dispatch and a thread barrier on cpu."""
        return 4e-6 if self.target == "cuda" else 6e-6

    owners: dict[str, str] = field(default_factory=dict)
    """The recipe that wrote each launcher."""

    def add_source(self, path: str, text: str) -> None:
        """Add a native source; ``path`` ends in .cu or .cpp. The same path with the same text is added once."""
        known = self.sources.setdefault(path, text)
        if known != text:
            raise ValueError(f"two different sources want to be {path}")

    def launcher_name(self, name: str, arguments: list[Argument]) -> str:
        """``name``, or a longer one where a launcher of that name takes other arguments: those are what is checked.

        The same kernel walks tensors of several layouts, of which a manifest entry declares one.
        """
        known = self.launchers.get(name)
        if known is None or known.arguments == arguments:
            return name
        return f"{name}_{hashlib.sha256(str(arguments).encode()).hexdigest()[:6]}"

    def add_gain(self, gain: Gain) -> None:
        """Record what an application should save."""
        self.gains.append(gain)

    def launch(
        self, launcher: Launcher, arguments: list[CallArgument], *, before: fx.Node, name: str = ""
    ) -> list[fx.Node]:
        """Insert a call of ``launcher`` before a node; its source must be added with ``add_source``.

        ``arguments`` are in the launcher's C order: a node for an input or inout tensor (or an output that is
        written into an existing tensor's view), New for an output, Workspace for scratch, a number for a scalar,
        None for an absent optional tensor. Returns one node for each output and inout tensor that is not a
        workspace, in order: its value after the call.
        """
        if len(arguments) != len(launcher.arguments):
            raise ValueError(f"{launcher.name} takes {len(launcher.arguments)} arguments, got {len(arguments)}")
        self.launchers[launcher.name] = launcher
        nodes: list[fx.Node] = []
        slots: list[Slot | New | Workspace | Scalar | None] = []
        results: list[Slot | New] = []
        values: list[torch.Tensor] = []
        written: list[fx.Node] = []
        for given, declared in zip(arguments, launcher.arguments, strict=True):
            slot: Slot | New | Workspace | Scalar | None
            if isinstance(given, fx.Node):
                slot = Slot(len(nodes))
                nodes.append(given)
                if declared.role != "input":
                    results.append(slot)
                    values.append(meta_of(given))
                    written.append(given)
            else:
                slot = given
                if isinstance(given, New):
                    results.append(given)
                    values.append(meta_tensor(given.shape, given.dtype, given.stride))
            slots.append(slot)
        with self.graph.inserting_before(before):
            call = self.graph.call_function(launch, tuple(nodes))
            if name:
                call.name = self.graph._graph_namespace.create_name(name, None)
            call.meta |= {
                "call": Call(launcher, tuple(slots), tuple(results)),
                "val": tuple(values),
                "writes": written,
                "segment": before.meta.get("segment", 0),
            }
            return [self._item(call, i, value) for i, value in enumerate(values)]

    def _item(self, call: fx.Node, index: int, value: torch.Tensor) -> fx.Node:
        node = self.graph.call_function(operator.getitem, (call, index))
        node.meta |= {"val": value, "segment": call.meta["segment"]}
        return node

    def aten(self, overload: Any, *arguments: Any, before: fx.Node, **keywords: Any) -> fx.Node:
        """Insert an ATen call before a node; shapes are computed on meta tensors."""
        with self.graph.inserting_before(before):
            node = self.graph.call_function(overload, arguments, keywords)
        plain = fx.map_arg(arguments, meta_of)
        node.meta |= {
            "val": overload(*plain, **fx.map_arg(keywords, meta_of)),
            "segment": before.meta.get("segment", 0),
        }
        return node

    def getitem(self, node: fx.Node, index: int) -> fx.Node:
        """The ``index``-th result of an ATen node with several, inserted right after it."""
        with self.graph.inserting_after(node):
            item = self.graph.call_function(operator.getitem, (node, index))
        item.meta |= {"val": node.meta["val"][index], "segment": node.meta.get("segment", 0)}
        return item

    def replace(self, old: fx.Node, new: fx.Node) -> None:
        """Let every user of ``old`` read ``new``; ``old`` goes when nothing needs it."""
        old.replace_all_uses_with(new)
        if not old.users and not old.meta.get("writes"):
            self.graph.erase_node(old)


def meta_tensor(shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...] | None = None) -> torch.Tensor:
    """A tensor without memory that carries shape, stride and dtype."""
    if stride is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _shifted(value: torch.Tensor, offset: int) -> torch.Tensor:
    """The same view, ``offset`` elements into a larger storage: alignment of slices is read from it."""
    if offset == 0:
        return value
    reach = offset + 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    whole = torch.empty(max(reach, offset), dtype=value.dtype, device="meta")
    return whole.as_strided(value.shape, value.stride(), offset)


def meta_of(node: fx.Node) -> Any:
    """The node's value on the meta device."""

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            plain = meta_tensor(tuple(value.shape), value.dtype, tuple(value.stride()))
            return _shifted(plain, int(value.storage_offset()))
        if isinstance(value, list | tuple):
            return type(value)(convert(item) for item in value)
        return value

    return convert(node.meta["val"])


def argument(
    name: str,
    dtype: torch.dtype | Dtype = "float32",
    role: Literal["input", "output", "inout"] = "input",
    *,
    layout: Literal["contiguous", "channels_last", "any"] = "contiguous",
    alignment: int | None = None,
    scalar: bool = False,
    optional: bool = False,
) -> Argument:
    """A manifest argument; alignment defaults to the element size."""
    kind: Dtype = DTYPES[dtype] if isinstance(dtype, torch.dtype) else dtype
    width = getattr(torch, kind).itemsize
    return Argument(
        name=name,
        kind="scalar" if scalar else "tensor",
        dtype=kind,
        role=role,
        layout=layout,
        alignment=alignment or width,
        optional=optional,
    )


class Recipe(ABC):
    """One rewrite. ``apply`` changes the graph where it pays and records a Gain for each application."""

    name: ClassVar[str]
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda", "cpu"})
    order: ClassVar[int] = 50
    """Recipes run in rising order: structural ones (recurrent, batch_norm, convolution: 10 to 40) before generic
    fusion (60), host orchestration last (90)."""
    title: ClassVar[str] = ""
    """For the Planner: what it does, as a to-do."""
    severable: ClassVar[bool] = False
    """Leaves out single launchers that ``Rewriter.disabled`` names; else it is left out as a whole."""
    last_resort: ClassVar[bool] = False
    """Gains nothing, and is tried only where everything else loses."""

    @abstractmethod
    def apply(self, rewriter: Rewriter) -> None:
        """Rewrite ``rewriter.graph`` wherever this recipe applies and is predicted to pay."""


def tidy(rewriter: Rewriter) -> None:
    """Drop nodes that nobody reads and restore topological order within segments."""
    from stitchcuda.recipes.normalise import is_impure

    graph = rewriter.graph
    graph.eliminate_dead_code(is_impure_node=is_impure)
    graph.lint()
