"""Recipe: GRU and LSTM layers as persistent kernels that keep their weights on chip for the whole sequence."""

from __future__ import annotations

import hashlib
import operator
import re
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import Gain, New, Recipe, Rewriter, TargetKind, Workspace, argument
from stitchcuda.recipes.normalise import is_impure, op_name, tensor
from stitchcuda.recipes.recurrent_kernel import Cost, Stack, Tiling, arguments, source, tilings

aten = torch.ops.aten

CLOCK_HZ = 1.755e9
"""SM clock under load that predictions assume."""

STOCK_STEP_SECONDS = 2.7e-6
"""A step of one direction of a layer in the library: two launches at the rate of CUDA graph nodes."""


class Recurrent(Recipe):
    """Applies to float32 GRU and LSTM without projections or active dropout whose weights fit the device's SMs.

    The input projection of a layer is one matrix product over all steps. The steps themselves run in one launch a
    layer, both directions side by side, or, for a stack in one direction, in one launch for all layers, which then
    run as a wavefront.
    """

    name: ClassVar[str] = "recurrent"
    title: ClassVar[str] = "Run recurrent layers as persistent kernels with their weights on chip"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 12
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every recurrent layer that fits."""
        for node in list(rewriter.graph.nodes):
            if op_name(node) not in ("gru", "lstm") or getattr(node.target, "_overloadname", "") != "input":
                continue
            stack = stack_of(node)
            if stack is None:
                continue
            best = _best(stack, rewriter)
            if best is not None:
                _rewrite(rewriter, node, stack, best)


def stack_of(node: fx.Node) -> Stack | None:
    """The Stack that an ``aten.gru.input`` or ``aten.lstm.input`` node computes; None if it is not one."""
    x, hx, params, bias, layers, dropout, training, bidirectional, batch_first = _spread(node)
    states = hx if isinstance(hx, list | tuple) else [hx]
    given, hidden = tensor(x), tensor(states[0])
    if given is None or hidden is None or given.dim() != 3 or hidden.dim() != 3 or (dropout and training):
        return None
    values = [tensor(value) for value in [x, *states, *params]]
    if any(value is None or value.dtype != torch.float32 for value in values):
        return None
    if any(value is None or not value.is_contiguous() for value in values[1:]):
        return None
    steps, batch = (given.shape[1], given.shape[0]) if batch_first else (given.shape[0], given.shape[1])
    directions = 2 if bidirectional else 1
    if len(params) != layers * directions * (4 if bias else 2) or hidden.shape[0] != layers * directions:
        return None
    return Stack(
        "gru" if op_name(node) == "gru" else "lstm",
        steps,
        batch,
        given.shape[2],
        hidden.shape[2],
        layers,
        bool(bidirectional),
        bool(bias),
    )


def _spread(node: fx.Node) -> list[Any]:
    """All nine arguments of the operator, in order."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return list(node.args) + [node.kwargs[name] for name in names[len(node.args) :]]


def _seconds(stack: Stack, tiling: Tiling) -> float:
    launches = 1 if tiling.wavefront else stack.layers
    steps = stack.steps + (stack.layers if tiling.wavefront else 0)
    return launches * (steps * Cost(stack, tiling).clocks_per_step / CLOCK_HZ + 8e-6)


def _best(stack: Stack, rewriter: Rewriter) -> Tiling | None:
    device = rewriter.device
    found: list[Tiling] = []
    for wavefront, cluster in ((True, False), (False, False), (False, True)):
        if cluster and not has_clusters(device.target.arch):
            continue
        fitting = tilings(
            stack,
            wavefront=wavefront,
            cluster=cluster,
            multiprocessors=device.multiprocessors,
            shared_memory=device.shared_memory_per_block,
        )
        found += [tiling for tiling in fitting[:1] if _name(stack, tiling) not in rewriter.disabled]
    return min(found, key=lambda tiling: _seconds(stack, tiling), default=None)


def has_clusters(arch: str) -> bool:
    """Whether an architecture such as sm_90a has thread block clusters."""
    digits = re.sub(r"\D", "", arch)
    return digits != "" and int(digits) >= 90


def _name(stack: Stack, tiling: Tiling) -> str:
    key = hashlib.sha256(f"{stack}{tiling}".encode()).hexdigest()[:6]
    how = "stack" if tiling.wavefront else "cluster" if tiling.cluster else "layer"
    return f"{stack.kind}_{how}_{key}"


def _launcher(stack: Stack, tiling: Tiling) -> Launcher:
    name = _name(stack, tiling)
    declared = []
    for given, role in arguments(stack, tiling):
        kept = given == "work"
        wide = kept or given == "out"
        declared.append(
            argument(
                given,
                role="inout" if kept else "output" if role == "output" else "input",
                alignment=16 if wide else 4,
            )
        )
    return Launcher(name=name, source=f"{name}.cu", arguments=declared)


def _rewrite(rewriter: Rewriter, node: fx.Node, stack: Stack, tiling: Tiling) -> None:
    x, hx, params, *_, batch_first = _spread(node)
    states: list[fx.Node] = list(hx) if isinstance(hx, list | tuple) else [hx]
    per = 4 if stack.bias else 2
    weights = [params[i : i + per] for i in range(0, len(params), per)]
    last = _last_steps(node, stack, batch_first=batch_first)
    singles = [replace(stack, layers=1, bidirectional=False, steps=steps) for steps in (stack.steps, 1)]
    if any(_best(single, rewriter) is None for single in singles):
        last = []
    current = x
    if batch_first:
        swapped = rewriter.aten(aten.transpose.int, x, 0, 1, before=node)
        current = rewriter.aten(aten.contiguous.default, swapped, before=node)
    if tiling.wavefront:
        results = _run(rewriter, node, stack, tiling, current, weights, states)
        if batch_first:
            results[0] = rewriter.aten(aten.transpose.int, results[0], 0, 1, before=node)
        _hand_over(rewriter, node, results)
        _record(rewriter, stack, tiling)
        return
    finals: list[list[fx.Node]] = [[] for _ in states]
    for layer in range(stack.layers):
        first, end = layer * stack.directions, (layer + 1) * stack.directions
        mine = [_rows(rewriter, state, first, end, node) for state in states]
        if last and layer == stack.layers - 1:
            step = _last_step(rewriter, node, singles, current, weights[first:end], mine)
            for user in last:
                rewriter.replace(user, step)
            finals = []
            break
        current, *after = _run(rewriter, node, stack, tiling, current, weights[first:end], mine)
        for final, result in zip(finals, after, strict=True):
            final.append(result)
    output = rewriter.aten(aten.transpose.int, current, 0, 1, before=node) if batch_first else current
    _hand_over(rewriter, node, [output, *(_stacked(rewriter, final, node) for final in finals)])
    _record(rewriter, stack, tiling)


def _run(
    rewriter: Rewriter,
    before: fx.Node,
    stack: Stack,
    tiling: Tiling,
    current: fx.Node,
    weights: list[list[fx.Node]],
    states: list[fx.Node],
) -> list[fx.Node]:
    """One launch over ``current``, time first; ``weights`` and ``states`` are those of its chains.

    Returns the output sequence and the final states.
    """
    launcher = _launcher(stack, tiling)
    rewriter.add_source(launcher.source, source(stack, tiling, launcher.name))
    sequence = (stack.steps, stack.batch, stack.directions * stack.hidden)
    joined = _joined(rewriter, weights[: stack.directions], before)
    projected = rewriter.aten(aten.linear.default, current, *joined, before=before)
    values: dict[str, Any] = {"x": projected, "out": New(sequence)}
    for chain, parts in enumerate(weights):
        keys = ("w_ih", "w_hh", "b_ih", "b_hh")
        values |= {f"{key}_{chain}": part for key, part in zip(keys, parts, strict=False)}
    for name, state in zip(("h", "c"), states, strict=False):
        values[f"{name}0"] = state
        values[f"{name}_n"] = New((len(weights), stack.batch, stack.hidden))
    if tiling.wavefront:
        values["work"] = Workspace((stack.layers - 1, *sequence))
    given = [values[declared.name] for declared in launcher.arguments]
    return rewriter.launch(launcher, given, before=before, name=launcher.name)


def _last_steps(node: fx.Node, stack: Stack, *, batch_first: bool) -> list[fx.Node]:
    """The nodes that take the last step of a bidirectional layer, if nothing else of its results is read."""
    time = 1 if batch_first else 0
    if not stack.bidirectional:
        return []
    found: list[fx.Node] = []
    pending = list(node.users)
    while pending:
        user = pending.pop()
        name, value = op_name(user), tensor(user)
        if user.target is operator.getitem:
            if user.args[1] != 0 and user.users:
                return []
            pending += user.users
        elif name == "slice" and value is not None and value.shape == node.meta["val"][0].shape:
            pending += user.users
        elif name == "select" and user.args[1:] in ((time, -1), (time, stack.steps - 1)):
            found.append(user)
        else:
            return []
    return found


def _last_step(
    rewriter: Rewriter,
    node: fx.Node,
    singles: list[Stack],
    current: fx.Node,
    weights: list[list[fx.Node]],
    states: list[fx.Node],
) -> fx.Node:
    """Both directions' output at the last step of a layer: all steps forward, the first one in reverse."""
    parts = []
    for direction, single in enumerate(singles):
        tiling = _best(single, rewriter)
        assert tiling is not None
        read = current if direction == 0 else rewriter.aten(aten.slice.Tensor, current, 0, -1, 2**62, before=node)
        mine = [_rows(rewriter, state, direction, direction + 1, node) for state in states]
        out = _run(rewriter, node, single, tiling, read, [weights[direction]], mine)[0]
        parts.append(rewriter.aten(aten.select.int, out, 0, -1, before=node))
    return rewriter.aten(aten.cat.default, parts, 1, before=node)


def _rows(rewriter: Rewriter, state: fx.Node, first: int, end: int, before: fx.Node) -> fx.Node:
    value = tensor(state)
    assert value is not None
    if (first, end) == (0, value.shape[0]):
        return state
    return rewriter.aten(aten.slice.Tensor, state, 0, first, end, before=before)


def _joined(rewriter: Rewriter, chains: list[list[fx.Node]], before: fx.Node) -> list[fx.Node | None]:
    """W_ih and b_ih of a layer, of both directions on top of each other; constant, so it is done once."""
    weights = [parts[0] for parts in chains]
    biases = [parts[2] for parts in chains] if len(chains[0]) == 4 else []
    if len(chains) == 1:
        return [weights[0], biases[0] if biases else None]
    joined = [rewriter.aten(aten.cat.default, part, 0, before=before) for part in (weights, biases) if part]
    return [*joined, None][:2]


def _stacked(rewriter: Rewriter, parts: list[fx.Node], before: fx.Node) -> fx.Node:
    return parts[0] if len(parts) == 1 else rewriter.aten(aten.cat.default, parts, 0, before=before)


def _hand_over(rewriter: Rewriter, node: fx.Node, results: list[fx.Node]) -> None:
    for user in list(node.users):
        assert user.target is operator.getitem
        if user.users:
            rewriter.replace(user, results[int(str(user.args[1]))])
    rewriter.graph.eliminate_dead_code(is_impure_node=is_impure)


def _record(rewriter: Rewriter, stack: Stack, tiling: Tiling) -> None:
    steps = stack.steps * stack.layers * stack.directions
    saved = steps * STOCK_STEP_SECONDS - _seconds(stack, tiling)
    what = f"{stack.kind.upper()} of {stack.layers} layers as " + (
        "one persistent kernel" if tiling.wavefront else "one persistent kernel a layer"
    )
    launches = 2 * steps - (1 if tiling.wavefront else stack.layers)
    rewriter.add_gain(Gain(Recurrent.name, what, max(saved, 0.0), launches, 0, (stack.kind,)))
