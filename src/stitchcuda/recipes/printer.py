"""Print a rewritten graph as statements: what ``prepare()`` computes from weights once, and what ``forward`` runs.

Where these statements stand in a Program, and what is around them, is ``assemble``'s work.
"""

from __future__ import annotations

import cmath
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from stitchcuda.recipes.base import Call, New, Rewriter, Slot, Workspace, is_launch, joined
from stitchcuda.recipes.capture import CaptureError
from stitchcuda.recipes.normalise import is_impure, layout_varies, op_name, storage_roots, tensor, writes


@dataclass
class Printed:
    """The parts of ``ModelNew``."""

    prepare: list[str] = field(default_factory=list)
    bound: list[str] = field(default_factory=list)
    guard: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    staging: list[str] = field(default_factory=list)
    """Statements that move host inputs to the device."""
    returned: str = ""


class Printer:
    """Prints one rewriter's graph."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.captured = rewriter.captured
        self.roots = storage_roots(rewriter.graph)
        self.written = {self.roots[target] for node in rewriter.graph.nodes for target in _written_through(node)}
        """Storage that is changed where it lies, so that a copy would not do."""
        self.names = {node: f"{node.name}_" if node.name in _RESERVED else node.name for node in rewriter.graph.nodes}
        self.out = Printed()
        self.inputs: dict[fx.Node, str] = {}
        self.workspaces = 0

    def print(self) -> Printed:
        """The statements of prepare and forward."""
        nodes = list(self.rewriter.graph.nodes)
        output = nodes[-1]
        self._print_inputs()
        hoisted = self._hoisted(nodes, output)
        needed = {source for node in nodes if node not in hoisted for source in node.all_input_nodes}
        for node in nodes:
            if node in self.captured.states and (node in needed or any(user in hoisted for user in node.users)):
                self.out.prepare.append(f"{self.names[node]} = {self._state(node)}")
            elif node in hoisted:
                self.out.prepare += self._statement(node)
            if node in needed and (node in hoisted or node in self.captured.states):
                self.out.bound.append(self.names[node])
        last = self._last_uses([node for node in nodes if node not in hoisted and node.op == "call_function"])
        for node in nodes:
            if node.op != "call_function" or node in hoisted:
                continue
            self.out.body += self._statement(node)
            done = [self.names[dead] for dead in last.get(node, []) if dead is not node]
            if done:
                self.out.body.append("del " + ", ".join(done))
        self.out.returned = self._returned(output)
        return self.out

    def _print_inputs(self) -> None:
        captured = self.captured
        paths = slot_paths(captured.in_spec, captured.parameters)
        for slot, (node, path) in enumerate(zip(captured.inputs, paths, strict=True)):
            if node is None:
                constant = plain_text(captured.constants[slot])
                # NaN differs from itself.
                differs = f"{path} == {path}" if constant == 'float("nan")' else f"{path} != {constant}"
                message = f"; this program is specialised for {constant}"
                check = [f"if {differs}:", f'    raise ValueError(f"{path} is {{{path}!r}}" + {message!r})']
                self.out.guard += check
                continue
            value = tensor(node)
            assert value is not None
            self.names[node] = path if path.isidentifier() else self.names[node]
            if node in self.rewriter.staged:
                self.out.staging.append(f'{path} = _send(self, "{path}", {path})')
            self.out.guard.append(f'_expect("{path}", {path}, {tuple(value.shape)}, {value.dtype})')
            if not path.isidentifier():
                self.out.body.append(f"{self.names[node]} = {path}")
        if captured.mode_matters:
            mode = "train" if captured.training else "eval"
            self.out.guard += [
                f"if self.training is not {captured.training}:",
                f'    raise ValueError("this program is specialised for {mode} mode; call .{mode}() first")',
            ]

    def _hoisted(self, nodes: list[fx.Node], output: fx.Node) -> set[fx.Node]:
        """Nodes whose value depends on unchanged state alone; results and what is written to stay in forward."""
        returned = {self.roots[node] for node in output.all_input_nodes}
        written = {self.roots[target] for node in nodes for target in writes(node)}
        mutated = {node for node in self.captured.states if self.roots[node] in written}
        hoisted: set[fx.Node] = set()
        fixed = set(self.captured.states) - mutated
        for node in nodes:
            if node.op != "call_function" or is_impure(node):
                continue
            # Each result of a launcher is memory of its own.
            results = {self.roots[user] for user in node.users} if is_launch(node) else {self.roots[node]}
            if results & (returned | written):
                continue
            if all(source in hoisted or source in fixed for source in node.all_input_nodes):
                hoisted.add(node)
        return hoisted

    def _last_uses(self, nodes: list[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
        last: dict[fx.Node, fx.Node] = {}
        for node in nodes:
            last.setdefault(node, node)
            for source in node.all_input_nodes:
                last[source] = node
        printed = set(nodes)
        kept = {node for node in self.rewriter.graph.nodes if any(user.op == "output" for user in node.users)}
        result: dict[fx.Node, list[fx.Node]] = {}
        for dead, at in last.items():
            if dead in printed and dead not in kept and not is_launch(dead):
                result.setdefault(at, []).append(dead)
        return result

    def _statement(self, node: fx.Node) -> list[str]:
        if is_launch(node):
            return self._launch(node)
        left = f"{self.names[node]} = "
        if not node.users:
            left = ""
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            if is_launch(source):
                return []
            return [f"{left}{self.names[source]}[{index}]"]
        if node.target is joined:
            return [f"{left}{self._value(node.args[0])}"]
        function = "_aten.reshape.default" if self._may_copy(node) else _target(node)
        arguments = [self._value(arg) for arg in node.args]
        arguments += [f"{key}={self._value(value)}" for key, value in node.kwargs.items()]
        return [f"{left}{function}({', '.join(arguments)})"]

    def _laid_elsewhere(self, source: fx.Node) -> bool:
        """The library that computed it chose the memory layout, and no launcher has seen it yet."""
        first = source.args[0] if source.target is operator.getitem else None
        seen = isinstance(first, fx.Node) and is_launch(first)
        return layout_varies(self.roots[source]) and not seen

    def _may_copy(self, node: fx.Node) -> bool:
        """A view that need not be one, as no write goes through it; what a library laid out cannot always be viewed."""
        shaped = op_name(node) in ("view", "_unsafe_view") and not isinstance(node.args[1], torch.dtype)
        return shaped and self.roots[node] not in self.written

    def _launch(self, node: fx.Node) -> list[str]:
        """Allocations, the call, and names for its results."""
        call: Call = node.meta["call"]
        items = {user.args[1]: self.names[user] for user in node.users if user.target is operator.getitem}
        lines: list[str] = []
        printed: list[str] = []
        after: list[str] = []
        result = 0
        for declared, given in zip(call.launcher.arguments, call.arguments, strict=True):
            if isinstance(given, Slot):
                source = node.args[given.index]
                assert isinstance(source, fx.Node)
                value = tensor(source)
                name = self.names[source]
                if value is None:
                    printed.append(name)
                elif self._laid_elsewhere(source) and declared.role != "output":
                    lines.append(f"{name} = _laid({name}, {tuple(value.stride())})")
                    printed.append(name)
                else:
                    printed.append(f"_strided({name}, {tuple(value.stride())})" if declared.layout == "any" else name)
                if declared.role != "input":
                    if result in items:
                        after.append(f"{items[result]} = {name}")
                    result += 1
            elif isinstance(given, New):
                name = items.get(result, f"{self.names[node]}_{declared.name}")
                result += 1
                lines.append(f"{name} = {self._allocation(given)}")
                printed.append(name)
            elif isinstance(given, Workspace):
                name = f"scratch_{self.workspaces}"
                self.workspaces += 1
                device = self._device()
                self.out.prepare.append(f"{name} = torch.zeros({given.shape}, dtype={given.dtype}, device={device})")
                self.out.bound.append(name)
                printed.append(name)
            else:
                printed.append(plain_text(given))
        return [*lines, f"{call.launcher.name}({', '.join(printed)})", *after]

    def _allocation(self, new: New) -> str:
        where = f"dtype={new.dtype}, device={self._device()}"
        if new.stride is None:
            return f"torch.empty({new.shape}, {where})"
        return f"torch.empty_strided({new.shape}, {new.stride}, {where})"

    def _device(self) -> str:
        return repr(self.rewriter.target)

    def _state(self, node: fx.Node) -> str:
        state = self.captured.states[node]
        if state.value is None:
            return f'_state(self, "{state.path}")'
        value = tensor(node)
        on_host = self.captured.device != "cpu" and value is not None and value.device.type == "cpu"
        device = "'cpu'" if on_host else self._device()
        return f"torch.tensor({plain_text(state.value.tolist())}, dtype={state.value.dtype}, device={device})"

    def _returned(self, output: fx.Node) -> str:
        leaves = output.args[0]
        values = list(leaves) if isinstance(leaves, list | tuple) else [leaves]
        return _print_tree(
            pytree.tree_unflatten([_Leaf(self._value(value)) for value in values], self.captured.out_spec)
        )

    def _value(self, value: Any) -> str:
        match value:
            case fx.Node():
                return self.names[value]
            case torch.device():
                moved = self.captured.device == "cpu" and value.type == "cpu"
                return self._device() if moved else repr(str(value))
            case list() | tuple():
                inner = ", ".join(self._value(item) for item in value)
                comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
                return f"({inner}{comma})" if isinstance(value, tuple) else f"[{inner}]"
            case None | bool() | int() | float() | str() | complex():
                return plain_text(value)
            case torch.dtype() | torch.layout() | torch.memory_format():
                return str(value)
            case _ if isinstance(value, list | tuple) or hasattr(value, "__iter__"):
                return "[" + ", ".join(self._value(item) for item in value) + "]"
        raise CaptureError(f"the graph holds {value!r} ({type(value).__name__}), which cannot be printed as Python")


def _written_through(node: fx.Node) -> list[fx.Node]:
    """What a node changes and others may read under another name; an inout argument is read from the call alone."""
    call: Call | None = node.meta.get("call")
    if call is None:
        return writes(node)
    pairs = zip(call.launcher.arguments, call.arguments, strict=True)
    places = [given.index for declared, given in pairs if declared.role == "output" and isinstance(given, Slot)]
    return [source for place in places if isinstance(source := node.args[place], fx.Node)]


_RESERVED = {"self", "torch", "super", "float", "complex"}


def plain_text(value: Any) -> str:
    """Numbers, strings and lists of them as Python source; infinities and NaN, which ``repr`` gives no source for, too.

    NaN loses its sign and payload.
    """
    if isinstance(value, list):
        return "[" + ", ".join(plain_text(item) for item in value) + "]"
    if isinstance(value, float | complex) and not cmath.isfinite(value):
        return f'{type(value).__name__}("{value}")'
    return repr(value)


class _Leaf(str):
    """Source text standing for a value in a structure of results."""


def _print_tree(value: Any) -> str:
    match value:
        case _Leaf():
            return str(value)
        case tuple() if type(value) is tuple:
            return "(" + "".join(f"{_print_tree(item)}, " for item in value).rstrip() + ")"
        case list():
            return "[" + ", ".join(_print_tree(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{key!r}: {_print_tree(item)}" for key, item in value.items()) + "}"
        case None | bool() | int() | float() | complex() | str():
            return plain_text(value)
    raise CaptureError(f"forward returns a {type(value).__name__}, which cannot be printed; return tuples or dicts")


def slot_paths(spec: Any, parameters: list[str]) -> list[str]:
    """Python expressions that reach each flattened input from forward's arguments."""
    markers = [_Leaf(i) for i in range(spec.num_leaves)]
    arguments, keywords = pytree.tree_unflatten(markers, spec)
    found: dict[str, str] = {}

    def walk(value: Any, path: str) -> None:
        match value:
            case _Leaf():
                found[str(value)] = path
            case dict():
                for key, item in value.items():
                    walk(item, f"{path}[{key!r}]")
            case list() | tuple():
                for i, item in enumerate(value):
                    walk(item, f"{path}[{i}]")
            case None:
                return
            case _:
                raise CaptureError(f"forward takes a {type(value).__name__}, which cannot be unpacked")

    for name, value in zip(parameters, arguments, strict=True):
        walk(value, name)
    for name, value in keywords.items():
        walk(value, name)
    return [found[str(i)] for i in range(spec.num_leaves)]


def _target(node: fx.Node) -> str:
    target = node.target
    namespace, packet = getattr(target, "namespace", None), getattr(target, "overloadpacket", None)
    if namespace is not None and packet is not None:
        root = "_aten" if namespace == "aten" else f"torch.ops.{namespace}"
        return f"{root}.{packet.__name__}.{target._overloadname}"  # type: ignore[union-attr]
    module = getattr(target, "__module__", "") or ""
    if module in ("_operator", "operator"):
        raise CaptureError(f"the graph computes sizes at run time ({node.name}); expected fixed shapes")
    raise CaptureError(f"the graph calls {target}, which is neither an ATen operator nor a launcher")
