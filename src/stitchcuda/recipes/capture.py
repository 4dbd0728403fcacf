"""Read a task's reference as a flat ATen graph with shapes, without allocating its weights or inputs.

The graph is in torch.export's training IR: linear, convolution, batch_norm, layer_norm, recurrent layers and
attention stay whole. Each tensor node carries a fake tensor in ``meta["val"]``. Nothing here rewrites for speed;
``normalise`` makes the graph functional, recipes rewrite it.
"""

from __future__ import annotations

import inspect
import re
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from stitchcuda.errors import StitchError
from stitchcuda.recipes.rnn_shapes import quick_shapes
from stitchcuda.task.model import Task

StateKind = Literal["parameter", "buffer", "attribute", "literal"]

_tracing = threading.Lock()
"""One reference is read at a time: export's flags and modes, the random state and the warning filters belong to the
whole process, and two readings that overlap put each other's values back when they end."""


class CaptureError(StitchError):
    """The reference cannot be read as a graph (data-dependent control flow, custom autograd code, odd containers)."""


@dataclass(frozen=True)
class State:
    """A tensor that the model owns: ``path`` is its dotted name; a literal has a value instead."""

    kind: StateKind
    path: str
    value: torch.Tensor | None = None


@dataclass
class Captured:
    """One reference as a graph, with what is needed to print it as Python again.

    ``states`` and ``inputs`` map placeholder nodes. An input slot without a node is a constant (a Python scalar)
    that the graph was specialised on. ``parameters`` are the names of forward's arguments; ``in_spec`` unflattens
    the slots to them and ``out_spec`` unflattens the output node's values.
    """

    module: fx.GraphModule
    states: dict[fx.Node, State]
    inputs: list[fx.Node | None]
    constants: list[Any]
    """The specialised value for each input slot; None for tensors."""
    in_spec: Any
    out_spec: Any
    parameters: list[str]
    training: bool
    device: str
    """Where the fake tensors lie: 'cpu' also for cuda tasks; device arguments are rewritten when printed."""
    how: str = "export"
    mutated: set[fx.Node] = field(default_factory=set)
    """State placeholders that a call changes (BatchNorm statistics)."""
    mutates_inputs: bool = False
    draws_random: bool = False
    mode_matters: bool = False
    """Train and eval mode give different graphs."""

    @property
    def graph(self) -> fx.Graph:
        """The graph that recipes rewrite."""
        return self.module.graph

    def copy(self) -> Captured:
        """A copy whose graph can be rewritten without changing this one."""
        graph = fx.Graph()
        mapping: dict[fx.Node, fx.Node] = {}
        graph.output(graph.graph_copy(self.graph, mapping))
        for old, new in mapping.items():
            new.meta = dict(old.meta)
        next(iter(reversed(graph.nodes))).meta = dict(next(iter(reversed(self.graph.nodes))).meta)
        return replace(
            self,
            module=fx.GraphModule(self.module, graph),
            states={mapping[node]: state for node, state in self.states.items() if node in mapping},
            inputs=[mapping[node] if node is not None else None for node in self.inputs],
            mutated={mapping[node] for node in self.mutated},
        )


def capture(task: Task) -> Captured:
    """The task's reference as a normalised graph.

    The model is built under a fake tensor mode (no memory for weights or inputs), and really where its constructor
    or a constant needs values. Threads take turns. Raises CaptureError when neither
    torch.export nor make_fx can read it.
    """
    with _tracing:
        return _capture(task)


def _capture(task: Task) -> Captured:
    from stitchcuda.recipes.normalise import normalise

    case = _one_shape(task)
    problems = []
    for fake in (True, False):
        for trace in (_export, _make_fx):
            try:
                captured = _build(task, fake, trace, case)
                normalise(captured)
            except Exception as error:
                first = str(error).strip().splitlines() or [""]
                problems.append(f"{trace.__name__.strip('_')}: {type(error).__name__}: {first[0][:200]}")
            else:
                return captured
    raise CaptureError(
        f"the model's forward cannot be read as a graph ({problems[0]}); only host orchestration applies to it"
    )


Trace = Callable[[nn.Module, list[Any], str], Captured]


def _build(task: Task, fake: bool, trace: Trace, case: str | None) -> Captured:
    from stitchcuda.task.reference import Reference, cast_and_move

    device = "cuda" if task.residence == "host" and task.target.kind == "cuda" else "cpu"
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        with mode:
            reference = Reference(_on_host(task))
            model = reference.construct("Model", reference.init_inputs())
            _place(model, device, reference.dtype)
            if task.mode is not None:
                model.train(task.mode == "train")
            inputs = cast_and_move(reference.inputs(seed=0, case=case), dtype=reference.dtype, device=None)
        before = {path: id(value) for path, value in _attributes(model)}
        with quick_shapes(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            captured = trace(model, inputs, device)
    _refuse_assignments(model, before, [str(warning.message) for warning in caught])
    return captured


def _on_host(task: Task) -> Task:
    return task.model_copy(update={"target": task.target.model_copy(update={"kind": "cpu"})})


def _one_shape(task: Task) -> str | None:
    """The input case to read the program with; None where ``get_inputs`` gives the only one.

    Raises CaptureError when the cases' tensors differ in shape, dtype or layout, or their other values differ: a
    graph is read for one of each.
    """
    from stitchcuda.task.reference import Reference

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        reference = Reference(_on_host(task))
        cases = reference.cases()
        found: dict[str, str] = {}
        for case in cases if len(cases) > 1 else ():
            found.setdefault(_described(reference.inputs(seed=0, case=case)), case)
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise CaptureError(
            f"the input cases {first!r} ({one}) and {second!r} ({other}) differ, and a graph is read for one shape of "
            "each input; give each its own task"
        )
    return cases[0] if cases else None


def _described(inputs: list[Any]) -> str:
    from torch.utils import _pytree as pytree

    def describe(leaf: Any) -> str:
        if not isinstance(leaf, torch.Tensor):
            return repr(leaf)
        layout = "" if leaf.is_contiguous() else f" with strides {leaf.stride()}"
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{layout}"

    return ", ".join(describe(leaf) for leaf in pytree.tree_leaves(inputs))


def _refuse_assignments(model: nn.Module, before: dict[str, int], warned: list[str]) -> None:
    """A forward that replaces a tensor kept as a plain attribute has state that no graph shows."""
    replaced = {path for path, value in _attributes(model) if before.get(path) != id(value)}
    for text in warned:
        if "assigned during export" in text:
            replaced |= set(re.findall(r"self\.([\w.]+)", text.split("were assigned")[0].split("was assigned")[0]))
    replaced = {path for path in replaced if "_flat_weights" not in path}
    if replaced:
        raise CaptureError(
            f"forward replaces self.{min(replaced)}, a tensor kept as a plain attribute; "
            "register it as a buffer to have it treated as state"
        )


def _place(model: nn.Module, device: str, dtype: torch.dtype | None) -> None:
    """Put every tensor of a model on a device and in the precision class, ties kept.

    ``nn.Module.to`` cannot do that to fake tensors.
    """
    placed: dict[int, torch.Tensor] = {}

    def place(value: torch.Tensor) -> torch.Tensor:
        wanted = dtype if dtype is not None and value.dtype in (torch.float32, torch.float64) else value.dtype
        if value.device.type == device and value.dtype == wanted:
            return value
        if id(value) not in placed:
            there = value.detach().to(device=device, dtype=wanted)
            is_parameter = isinstance(value, nn.Parameter)
            placed[id(value)] = nn.Parameter(there, requires_grad=value.requires_grad) if is_parameter else there
        return placed[id(value)]

    for module in model.modules():
        tables: list[dict[str, Any]] = [module._parameters, module._buffers, vars(module)]
        for owned in tables:
            for name, value in list(owned.items()):
                if isinstance(value, torch.Tensor):
                    owned[name] = place(value)


def _forward_parameters(model: nn.Module, count: int) -> list[str]:
    names: list[str] = []
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{i}" for i in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names[:count]


def _tensor_attributes(model: nn.Module) -> dict[int, str]:
    """Dotted names of tensors kept as plain attributes, by identity."""
    return {id(value): path for path, value in _attributes(model)}


def _attributes(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Tensors kept as plain attributes, with their dotted names."""
    return [
        (f"{prefix}.{name}" if prefix else name, value)
        for prefix, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    ]


def _export(model: nn.Module, inputs: list[Any], device: str) -> Captured:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    export: Callable[..., Any] = torch.export.export
    if version < (2, 8):
        export = getattr(torch.export, "export_for_training", export)
    program = export(model, tuple(inputs), strict=False)
    graph: fx.Graph = program.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    attributes = _tensor_attributes(model)
    states: dict[fx.Node, State] = {}
    slots: list[fx.Node | None] = []
    constants: list[Any] = []
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        match spec.kind.name:
            case "PARAMETER":
                states[node] = State("parameter", spec.target)
            case "BUFFER":
                states[node] = State("buffer", spec.target)
            case "CONSTANT_TENSOR":
                states[node] = _constant(program.constants[spec.target], attributes, spec.target, model)
            case "USER_INPUT":
                value = getattr(spec.arg, "value", None)
                is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
                slots.append(node if is_tensor else None)
                constants.append(None if is_tensor else value)
            case other:
                raise CaptureError(f"the graph has an input of kind {other}, which cannot be printed")
    return Captured(
        module=fx.GraphModule(nn.Module(), graph),
        states=_rekey(states, graph),
        inputs=slots,
        constants=constants,
        in_spec=program.call_spec.in_spec,
        out_spec=program.call_spec.out_spec,
        parameters=_forward_parameters(model, len(inputs)),
        training=model.training,
        device=device,
    )


def _constant(value: Any, attributes: dict[int, str], target: str, model: nn.Module) -> State:
    if id(value) in attributes:
        return State("attribute", attributes[id(value)])
    if isinstance(_lookup(model, target), torch.Tensor):
        return State("attribute", target)
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        raise CaptureError("the graph holds a constant whose values are not known without running the constructor")
    if value.numel() > 4096:
        raise CaptureError(f"the graph holds a constant of {value.numel()} elements; expected at most 4,096")
    return State("literal", target, value.detach().cpu())


def _lookup(model: nn.Module, path: str) -> Any:
    here: Any = model
    for part in path.split("."):
        here = getattr(here, part, None)
    return here


def _rekey(states: dict[fx.Node, State], graph: fx.Graph) -> dict[fx.Node, State]:
    """The same states for nodes of ``graph``, which GraphModule keeps as they are."""
    names = {node.name: node for node in graph.nodes}
    return {names[node.name]: state for node, state in states.items()}


def _make_fx(model: nn.Module, inputs: list[Any], device: str) -> Captured:
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    flat, in_spec = pytree.tree_flatten((tuple(inputs), {}))
    tensors = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
    owned: dict[str, tuple[StateKind, torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        owned[name] = ("parameter", parameter)
    for name, buffer in model.named_buffers():
        owned[name] = ("buffer", buffer)
    structure: list[Any] = []

    def call(state: list[torch.Tensor], arguments: list[torch.Tensor]) -> list[Any]:
        rest = iter(arguments)
        leaves = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
        args, kwargs = pytree.tree_unflatten(leaves, in_spec)
        result = torch.func.functional_call(model, dict(zip(owned, state, strict=True)), args, kwargs)
        leaves, spec = pytree.tree_flatten(result)
        structure.append(spec)
        return leaves

    traced = make_fx(call, tracing_mode="fake", pre_dispatch=True)([value for _, value in owned.values()], tensors)
    graph: fx.Graph = traced.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    states = {node: State(kind, name) for node, (name, (kind, _)) in zip(placeholders, owned.items(), strict=False)}
    attributes = _tensor_attributes(model)
    for node in list(graph.nodes):
        if node.op == "get_attr":
            value = getattr(traced, str(node.target))
            states[node] = _constant(value, attributes, str(node.target), model)
            node.meta.setdefault("val", value)
    rest = iter(placeholders[len(owned) :])
    is_tensor = [isinstance(leaf, torch.Tensor) for leaf in flat]
    return Captured(
        module=traced,
        states=states,
        inputs=[next(rest) if tensor else None for tensor in is_tensor],
        constants=[None if tensor else leaf for tensor, leaf in zip(is_tensor, flat, strict=True)],
        in_spec=in_spec,
        out_spec=structure[-1],
        parameters=_forward_parameters(model, len(inputs)),
        training=model.training,
        device=device,
        how="make_fx",
    )
