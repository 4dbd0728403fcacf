"""Work of a reference that its outputs do not need: parameters that no output depends on, results that nothing reads,
and operators that change nothing on the Task's own inputs. A speedup from leaving those out measures reading, not
kernels.
Used by the audit; nothing here judges a Program.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from stitchcuda.evaluation.expectation import Expectation

MOVERS = {
    "alias", "clone", "detach", "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "squeeze",
    "unsqueeze", "slice", "select", "as_strided", "copy_", "_to_copy", "contiguous", "lift_fresh", "repeat", "cat",
    "stack", "split", "chunk", "unbind", "narrow", "flatten", "unfold", "constant_pad_nd", "zeros_like", "ones_like",
    "full_like", "empty_like", "fill_", "zero_", "_reshape_alias", "native_dropout", "dropout", "index_select",
    "empty", "new_empty", "empty_strided",
}  # fmt: skip
"""Operators whose result may equal an argument without that being a waste."""

REPORTED = 8
"""At most so many of each kind are named."""


def dead_work(expectation: Expectation, inputs: list[Any]) -> list[str]:
    """Short descriptions such as 'unused parameters: fc' and 'no-op on these inputs: relu'; empty when none is seen."""
    found = []
    with torch.no_grad():
        noops = _Noops()
        arguments = pytree.tree_map_only(torch.Tensor, torch.clone, inputs) if expectation.changes_inputs else inputs
        with noops:
            expectation.model(*arguments)
        expectation.bring(expectation.current)
    found += [_counted("no-op on these inputs", noops.names)] if noops.names else []
    try:
        unused, unread = _on_meta(expectation, inputs)
    except Exception:
        return found
    if unused:
        found.append(f"no output depends on: {', '.join(unused[:REPORTED])}")
    if unread:
        found.append(_counted("results that nothing reads", unread))
    return found


def _counted(what: str, names: Counter[str]) -> str:
    return f"{what}: " + ", ".join(f"{n} ×{c}" if c > 1 else n for n, c in names.most_common(REPORTED))


def _short(function: Any) -> str:
    return str(function.overloadpacket.__name__)


class _Noops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators whose result equals their first argument bit by bit."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _short(func)
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        before = first.clone() if first is not None and name.endswith("_") and name not in MOVERS else first
        result = func(*args, **(kwargs or {}))
        if name not in MOVERS and isinstance(result, torch.Tensor) and isinstance(before, torch.Tensor):
            alike = result.shape == before.shape and result.dtype == before.dtype and result.numel() > 1
            if alike and result.is_floating_point() and torch.equal(result, before):
                self.names[name] += 1
        return result


class _Readers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which tensors are results of an operator and which are read by a later one; on the meta device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: dict[int, str] = {}
        self.read: set[int] = set()
        self.kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in pytree.tree_leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        self.read.update(_storage(t) for t in given)
        made = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        fresh = {_storage(t) for t in made} - {_storage(t) for t in given}
        if made and _storage(made[0]) in fresh and _short(func) not in MOVERS:
            self.made[_storage(made[0])] = _short(func)
        self.kept += made
        return result


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _on_meta(expectation: Expectation, inputs: list[Any]) -> tuple[list[str], Counter[str]]:
    """Names of parameters that no output depends on, and operators whose result nothing reads."""
    model = copy.deepcopy(expectation.model).to("meta")
    for part in model.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                setattr(part, name, value.to("meta"))
    given = pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), inputs)
    readers = _Readers()
    with torch.device("meta"), torch.no_grad(), readers:
        outputs = model(*pytree.tree_map_only(torch.Tensor, torch.clone, given))
    wanted = {_storage(t) for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)}
    unread = Counter(name for at, name in readers.made.items() if at not in readers.read and at not in wanted)
    parameters = {name: p.requires_grad_(True) for name, p in model.named_parameters() if p.is_floating_point()}
    with torch.device("meta"), torch.enable_grad():
        outputs = model(*given)
    reached = _leaves_behind([t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)])
    if not reached:
        return [], unread
    return [name for name, p in parameters.items() if id(p) not in reached], unread


def _leaves_behind(outputs: list[torch.Tensor]) -> set[int]:
    """Identities of the leaf tensors in the outputs' gradient graph."""
    stack = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen, found = set(stack), set()
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found
