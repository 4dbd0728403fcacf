"""Recipe: a large float32 linear layer on the tensor cores with all the pointwise operators behind it in its epilogue.

``split_gemm`` lets a ReLU or GELU join a layer. Where more follows, this recipe writes the layer's kernel anew with an
expression of its own; everything else about the layer is decided and written there.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import Gain, Recipe, Rewriter, TargetKind, argument
from stitchcuda.recipes.lower import prelude
from stitchcuda.recipes.normalise import storage_roots, tensor, writes
from stitchcuda.recipes.scalar import Expressions, Value, is_pointwise
from stitchcuda.recipes.split_gemm import WORTH, Kernels, Layer, launchers, layer_of, rewrite_layer, seconds
from stitchcuda.recipes.split_gemm_kernel import Tiling, source, tiling

MOST_MEMBERS = 12
"""Operators in an epilogue."""


@dataclass(frozen=True)
class Tail:
    """Operators that follow a layer, in graph order; all but the last are read among them alone."""

    members: tuple[fx.Node, ...]
    operands: tuple[fx.Node, ...]
    """Tensors of one value, or of one value a column, that they read besides."""


class SplitGemmTail(Recipe):
    """Applies where ``split_gemm`` would and more pointwise operators follow than it lets join.

    They may read numbers, and state that has one value or one a column. A result passes once through memory.
    """

    name: ClassVar[str] = "split_gemm_tail"
    title: ClassVar[str] = "Run large float32 linear layers on the tensor cores with what follows in their epilogue"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 29

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every layer that should gain, with its tail."""
        if rewriter.precision != "fp32":
            return
        chosen = tiling(rewriter.device.target.arch, rewriter.device.shared_memory_per_block)
        if chosen is None:
            return
        for node in list(rewriter.graph.nodes):
            layer = layer_of(rewriter, node)
            if layer is None:
                continue
            tail = tail_of(rewriter, layer)
            if not tail.members or tail.members[-1] in (layer.node, layer.tail):
                continue
            stock, own = seconds(layer, rewriter.device, chosen)
            if own * WORTH <= stock:
                _rewrite(rewriter, replace(layer, tail=tail.members[-1], activation="none"), tail, chosen, stock - own)


def tail_of(rewriter: Rewriter, layer: Layer) -> Tail:
    """As many operators behind the layer as one expression computes."""
    out = tensor(layer.node)
    assert out is not None
    members: list[fx.Node] = []
    inside = {layer.node}
    best = 0
    node = layer.node.next
    while node.op != "output" and len(members) < MOST_MEMBERS:
        reads = set(node.all_input_nodes)
        if reads & inside and _joins(rewriter, node, reads - inside, layer, out):
            members.append(node)
            inside.add(node)
            value = tensor(node)
            assert value is not None
            # Whole where nothing but the last is read outside.
            whole = all(user in inside for member in inside - {node} for user in member.users)
            best = len(members) if whole and value.dtype == torch.float32 else best
        node = node.next
    found = tuple(members[:best])
    operands = dict.fromkeys(s for member in found for s in member.all_input_nodes if s not in {layer.node, *found})
    return Tail(found, tuple(operands))


def _joins(rewriter: Rewriter, node: fx.Node, others: set[fx.Node], layer: Layer, out: torch.Tensor) -> bool:
    value = tensor(node)
    if value is None or value.dtype not in (torch.float32, torch.bool) or writes(node):
        return False
    same = value.shape == out.shape and value.stride() == out.stride()
    if not same or node.meta.get("segment") != layer.node.meta.get("segment"):
        return False
    if not is_pointwise(node, rewriter.target):
        return False
    roots = storage_roots(rewriter.graph)
    changed = {roots[target] for other in rewriter.graph.nodes for target in writes(other)}
    changed |= {roots[state] for state in rewriter.captured.mutated}
    for other in others:
        operand = tensor(other)
        if other not in rewriter.captured.states or roots[other] in changed or operand is None:
            return False
        if operand.dtype != torch.float32 or tuple(operand.shape) not in ((), (1,), (layer.n,)):
            return False
        if not operand.is_contiguous():
            return False
    return True


def _rewrite(rewriter: Rewriter, layer: Layer, tail: Tail, chosen: Tiling, saved: float) -> None:
    text = expression(layer, tail)
    key = hashlib.sha256(text.encode()).hexdigest()[:6]
    pack, linear = (_renamed(launcher, key, chosen) for launcher in launchers(chosen))
    names = [f"tail_{i}" for i in range(len(tail.operands))]
    if pack.name in rewriter.disabled or linear.name in rewriter.disabled:
        return
    place = next(i for i, declared in enumerate(linear.arguments) if declared.name == "m")
    more = [argument(name, torch.float32) for name in names]
    linear = linear.model_copy(update={"arguments": [*linear.arguments[:place], *more, *linear.arguments[place:]]})
    written = adapted(chosen, text, names, pack.name, linear.name)
    kernels = Kernels(written, pack, linear, dict(zip(names, tail.operands, strict=True)))
    rewrite_layer(rewriter, layer, chosen, kernels)
    for node in (*reversed(tail.members), layer.node):
        rewriter.graph.erase_node(node)
    passes = 8 * layer.m * layer.n * len(tail.members)
    what = "float32 linear layers as split float16 products on the tensor cores, with what follows them"
    saved += passes / rewriter.bandwidth
    rewriter.add_gain(Gain(SplitGemmTail.name, what, saved, len(tail.members) - 1, passes, ("linear",)))


def _renamed(launcher: Launcher, key: str, chosen: Tiling) -> Launcher:
    return launcher.model_copy(update={"name": f"{launcher.name}_{key}", "source": f"split_gemm_{chosen.key}_{key}.cu"})


def expression(layer: Layer, tail: Tail) -> str:
    """C++ statements that return an output of the tail from ``v``, the layer's, at a ``column``."""
    values: dict[fx.Node, Value] = {layer.node: Value("float", "v")}
    for i, node in enumerate(tail.operands):
        operand = tensor(node)
        assert operand is not None
        at = "column" if operand.numel() > 1 else "0"
        values[node] = Value("float", f"p.tail[{i}][{at}]")
    write = Expressions(lambda node: values[node])
    for node in tail.members:
        values[node] = write.pointwise(node)
    lines: list[str] = []
    names: dict[int, str] = {}

    def named(value: Value) -> str:
        if not value.args:
            return value.text
        if id(value) not in names:
            text = value.text.format(*map(named, value.args))
            names[id(value)] = f"v{len(names)}"
            lines.append(f"  const {value.ctype} {names[id(value)]} = {text};")
        return names[id(value)]

    last = named(values[tail.members[-1]])
    return "\n".join([*lines, f"  return {last};"])


def adapted(chosen: Tiling, text: str, names: list[str], pack: str, linear: str) -> str:
    """The layer's kernel with ``text`` in place of its activations; ``names`` are the operands that it reads."""
    functions = [
        line for line in prelude("cuda").splitlines() if re.match(r"__device__ __forceinline__ float \w+\(float", line)
    ]
    called = set(re.findall(r"own::(\w+)\(", text))
    needed = [line for line in functions if re.findall(r"float (\w+)\(", line)[0] in called]
    tail = ["namespace own {", *needed, "}  // namespace own", ""] if needed else []
    tail += [
        "static __device__ __forceinline__ float tail(const Gemm& p, int column, float v) {",
        text,
        "}",
        "",
        "// An output from its sum over K.",
    ]
    given = ", ".join(names) or "nullptr"
    parameters = "".join(f"const float* {name}, " for name in names)
    changes = (
        (
            "int m, n, k, splits, activation;",
            f"int m, n, k, splits, activation;\n  const float* tail[{max(1, len(names))}];",
        ),
        ("// An output from its sum over K.", "\n".join(tail)),
        ("  if (p.activation == RELU) return v < 0.f ? 0.f : v;\n", ""),
        (
            "  if (p.activation == GELU) return 0.5f * v * (1.f + erff(v * 0.70710678118654752f));\n  return v;\n",
            "  return tail(p, column, v);\n",
        ),
        ("float* partials, long long m,", f"float* partials, {parameters}long long m,"),
        ("(int)splits, (int)activation};", f"(int)splits, (int)activation, {{{given}}}}};"),
        (chosen.pack, pack),
        (chosen.linear, linear),
    )
    result = source(chosen)
    for there, here in changes:
        if there not in result:
            raise ValueError(f"the linear layer's kernel no longer says {there.strip()!r}; adapt it anew")
        result = result.replace(there, here)
    return result
