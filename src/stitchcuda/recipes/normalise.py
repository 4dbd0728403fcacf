"""Make a captured graph functional and plain: in-place operators on temporaries become functional, no-ops go.

What must stay in place (updates of state or inputs, writes through views) is kept and divides the graph into
segments (``meta["segment"]``); recipes never move work across a segment's border.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from stitchcuda.recipes.capture import Captured

aten = torch.ops.aten

VIEWS = {
    "view", "_unsafe_view", "reshape", "transpose", "permute", "t", "expand", "expand_as", "unsqueeze", "squeeze",
    "select", "slice", "narrow", "split", "split_with_sizes", "chunk", "unbind", "unflatten", "flatten", "movedim",
    "alias", "detach", "as_strided", "diagonal", "unfold", "view_as", "swapaxes", "contiguous", "to", "_reshape_alias",
    "numpy_T", "mT", "adjoint", "real", "imag", "view_as_real", "tensor_split", "lift_fresh", "lift", "dropout",
    "squeeze_", "hsplit", "vsplit", "ravel", "type_as", "positive", "feature_dropout", "alpha_dropout",
}  # fmt: skip
"""Operators whose result may share storage with their first argument."""

RANDOM = {
    "rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "bernoulli", "bernoulli_", "normal",
    "normal_", "uniform_", "multinomial", "randperm", "exponential_", "rrelu", "native_dropout", "poisson",
    "random_", "dropout_", "feature_alpha_dropout",
}  # fmt: skip


LAYOUT_VARIES = {
    "scaled_dot_product_attention", "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "gru", "lstm", "rnn_tanh", "rnn_relu", "matmul", "linear", "bmm",
    "baddbmm", "einsum", "bilinear", "tensordot", "batch_norm", "instance_norm", "group_norm", "max_pool2d",
    "avg_pool2d", "adaptive_avg_pool2d", "interpolate", "multi_head_attention_forward",
}  # fmt: skip
"""Operators whose result's strides depend on the device, its library and its version, not on the graph alone."""

MODAL = {"batch_norm", "instance_norm", "dropout", "feature_dropout", "alpha_dropout", "dropout_", "rrelu"}
"""Operators that differ between train and eval mode."""


def layout_varies(root: fx.Node) -> bool:
    """The node's result may lie in memory differently from how it was captured."""
    return op_name(root) in LAYOUT_VARIES or getattr(root.target, "namespace", "") == "mkldnn"


def _is_modal(node: fx.Node) -> bool:
    """A dropout of probability 0 is the identity in both modes."""
    return op_name(node) in MODAL and not ("dropout" in op_name(node) and node.args[1] == 0)


def op_name(node: fx.Node) -> str:
    """The ATen operator's base name, e.g. 'add_' for ``aten.add_.Tensor``; empty for other nodes."""
    if node.op != "call_function":
        return ""
    packet = getattr(node.target, "overloadpacket", None)
    if packet is None or getattr(node.target, "namespace", "") != "aten":
        return ""
    return str(packet.__name__)


def tensor(node: Any) -> torch.Tensor | None:
    """The fake tensor of a node, None for anything that is not one tensor."""
    if not isinstance(node, fx.Node):
        return None
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def normalise(captured: Captured) -> None:
    """Rewrite ``captured`` in place as the module says; sets its ``mutated`` and ``draws_random``."""
    graph = captured.graph
    captured.mode_matters = any(_is_modal(node) for node in graph.nodes)
    _drop_checks(graph)
    _expand_broadcasts(graph)
    _mark_views(graph)
    _functionalise(captured)
    _drop_noops(graph)
    _canonical_batch_norm(graph)
    graph.eliminate_dead_code(is_impure_node=lambda node: is_impure(node))
    _number_segments(captured)
    captured.draws_random = any(_draws_random(node) for node in graph.nodes)
    graph.lint()


def is_impure(node: fx.Node) -> bool:
    """True for nodes that must stay although nobody reads their result."""
    if node.op in ("placeholder", "output"):
        return True
    return bool(writes(node)) or _draws_random(node)


def writes(node: fx.Node) -> list[fx.Node]:
    """The argument nodes that ``node`` changes: by schema, by a launcher's contract, or batch_norm's statistics."""
    if node.op != "call_function":
        return []
    declared: list[fx.Node] | None = node.meta.get("writes")
    if declared is not None:
        return declared
    name = op_name(node)
    if name in ("batch_norm", "instance_norm") and len(node.args) > 5 and node.args[5]:
        return [arg for arg in node.args[3:5] if isinstance(arg, fx.Node)]
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    found = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        values = value if isinstance(value, list | tuple) else [value]
        found += [item for item in values if isinstance(item, fx.Node)]
    return found


def _draws_random(node: fx.Node) -> bool:
    name = op_name(node)
    if name in RANDOM:
        return True
    if name == "dropout":
        return bool(node.args[1]) and bool(node.args[2])
    if name == "scaled_dot_product_attention":
        return (len(node.args) > 4 and bool(node.args[4])) or bool(node.kwargs.get("dropout_p"))
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu") and name in str(node.target):
        numbers = [arg for arg in node.args if isinstance(arg, float)]
        return bool(numbers and numbers[0]) and True in node.args[-3:]
    return False


def _drop_checks(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        text = str(node.target)
        if node.op == "call_function" and ("_assert" in text or "sym_constrain" in text) and not node.users:
            graph.erase_node(node)


def _expand_broadcasts(graph: fx.Graph) -> None:
    """Each result of ``broadcast_tensors`` as the view of one tensor that it is: storage is followed by views."""
    for node in list(graph.nodes):
        first = node.args[0] if node.target is operator.getitem else None
        value = tensor(node)
        if isinstance(first, fx.Node) and op_name(first) == "broadcast_tensors" and value is not None:
            source = first.args[0][node.args[1]]  # type: ignore[index]
            node.target, node.args = aten.expand.default, (source, list(value.shape))


def storage_roots(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For each node the node whose storage its result may share: itself for a fresh result."""
    roots: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        roots[node] = node
        if node.op != "call_function":
            continue
        first = node.args[0] if node.args else None
        name = op_name(node)
        shares = (
            name in VIEWS
            or node.target is operator.getitem
            or _is_joined(node)
            or (name.endswith("_") and not name.startswith("__"))
        )
        if shares and isinstance(first, fx.Node):
            roots[node] = roots[_shared(node, first)]
        elif not shares and "shares" in node.meta:
            roots[node] = roots[_operands(node)[node.meta["shares"]]]
    return roots


def _mark_views(graph: fx.Graph) -> None:
    """Note on each node as ``meta["shares"]`` which operand's storage its result had when the reference was read.

    Operators return views that their names do not tell of. Values do not tell later: what takes an operand's place
    has a value of its own. The result of an operator with several is marked with an operand of that operator.
    """
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        first = node.args[0] if node.target is operator.getitem else node
        for i, source in enumerate(_operands(first) if isinstance(first, fx.Node) else []):
            if _storages(node) & _storages(source):
                node.meta["shares"] = i
                break


def _operands(node: fx.Node) -> list[fx.Node]:
    """The nodes among a node's arguments, each as often as it is given, so that their places outlast replacement."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def _storages(node: fx.Node) -> set[int]:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return {each.untyped_storage()._cdata for each in values if isinstance(each, torch.Tensor)}


def _is_joined(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "joined"


def _shared(node: fx.Node, first: fx.Node) -> fx.Node:
    """What a view is a view of: for a launcher's result the argument it was written to, or itself."""
    call = first.meta.get("call")
    if node.target is not operator.getitem:
        return first
    if call is None:
        return _operands(first)[node.meta["shares"]] if "shares" in node.meta else first
    index = getattr(call.results[int(str(node.args[1]))], "index", None)
    if index is None:
        return node
    argument = first.args[index]
    assert isinstance(argument, fx.Node)
    return argument


def _functionalise(captured: Captured) -> None:
    """Turn ``op_(a, ...)`` into ``op(a, ...)`` where no other view of a's storage is read afterwards."""
    graph = captured.graph
    roots = storage_roots(graph)
    order = {node: i for i, node in enumerate(graph.nodes)}
    members: dict[fx.Node, list[fx.Node]] = {}
    for node, root in roots.items():
        members.setdefault(root, []).append(node)
    for node in list(graph.nodes):
        name = op_name(node)
        if not name.endswith("_") or name.startswith("__") or not node.args:
            continue
        target = node.args[0]
        if not isinstance(target, fx.Node):
            continue
        root = roots[target]
        if root.op in ("placeholder", "get_attr"):
            continue
        packet = getattr(aten, name[:-1], None)
        overload = getattr(packet, node.target._overloadname, None) if packet is not None else None
        value, before = tensor(node), tensor(target)
        if overload is None or value is None or before is None or value.dtype != before.dtype:
            continue
        later = [
            alias
            for alias in members[root]
            if alias not in (node, target) and any(order[user] > order[node] for user in alias.users)
        ]
        descends = {node}
        for alias in members[root]:
            if alias.args and alias.args[0] in descends:
                descends.add(alias)
        if any(alias not in descends for alias in later):
            continue
        node.target = overload
        node.meta.pop("shares", None)
        for user in list(target.users):
            if order[user] > order[node]:
                user.replace_input_with(target, node)


def _drop_noops(graph: fx.Graph) -> None:
    roots = storage_roots(graph)
    for node in list(graph.nodes):
        name = op_name(node)
        source = node.args[0] if node.args else None
        value, before = tensor(node), tensor(source)
        if not isinstance(source, fx.Node) or value is None or before is None:
            continue
        same = value.shape == before.shape and value.dtype == before.dtype and value.device == before.device
        idle = name in ("alias", "detach", "lift_fresh", "lift", "positive") or (
            name in ("dropout", "feature_dropout", "alpha_dropout") and not (node.args[1] and node.args[2])
        )
        if name in ("contiguous", "to", "view", "reshape", "expand", "flatten", "_unsafe_view", "type_as", "expand_as"):
            idle = same and value.stride() == before.stride() and not _copies(node)
            idle = idle and not (name == "contiguous" and layout_varies(roots[node]))
        if idle and same and all(user.op != "output" or not _is_owned(source) for user in node.users):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _copies(node: fx.Node) -> bool:
    """``to(..., copy=True)`` must stay a copy."""
    return op_name(node) == "to" and (True in node.args[3:] or bool(node.kwargs.get("copy")))


def _is_owned(node: fx.Node) -> bool:
    return node.op in ("placeholder", "get_attr")


def _canonical_batch_norm(graph: fx.Graph) -> None:
    """One form of batch_norm: nine positional arguments, as ``aten.batch_norm.default`` declares them."""
    for node in graph.nodes:
        if op_name(node) == "batch_norm" and node.kwargs:
            names = [argument.name for argument in node.target._schema.arguments]
            full = list(node.args) + [node.kwargs[name] for name in names[len(node.args) :]]
            node.args, node.kwargs = tuple(full), {}


def _number_segments(captured: Captured) -> None:
    """Number nodes by the writes before them, where what is written is read elsewhere too."""
    graph = captured.graph
    roots = storage_roots(graph)
    readers: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            readers.setdefault(roots[source], set()).add(node)
    segment = 0
    for node in graph.nodes:
        node.meta["segment"] = segment
        targets = {roots[target] for target in writes(node)}
        captured.mutated |= targets & captured.states.keys()
        captured.mutates_inputs |= any(root in captured.inputs for root in targets)
        if any(readers[root] - {node} for root in targets):
            node.meta["segment"] = segment + 1
            segment += 2
