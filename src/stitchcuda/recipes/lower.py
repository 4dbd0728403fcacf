"""Turn a group of nodes into a kernel and replace them by a launcher call."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import CallArgument, New, Rewriter, argument
from stitchcuda.recipes.emit_cpu import emit_cpu
from stitchcuda.recipes.emit_cuda import emit_cuda
from stitchcuda.recipes.kernel import Buffer, Kernel, Load, Store, collapse
from stitchcuda.recipes.normalise import op_name, storage_roots, tensor
from stitchcuda.recipes.reuse import fixed_nodes, shares_layout, storage_is_free
from stitchcuda.recipes.rowwise import row_length, rowwise, trailing
from stitchcuda.recipes.scalar import CTYPES, Expressions, Value

SOURCE = {"cuda": "fused.cu", "cpu": "fused.cpp"}


def prelude(target: str) -> str:
    """The scalar functions that generated kernels call."""
    name = "prelude_cuda.cuh" if target == "cuda" else "prelude_cpu.hpp"
    return files("stitchcuda.recipes").joinpath("templates", name).read_text()


def lower(rewriter: Rewriter, nodes: list[fx.Node], shape: tuple[int, ...], inner: int | None) -> bool:
    """Replace ``nodes`` (in graph order) by one launcher call; False when the kernel cannot be written.

    ``shape`` is the iteration space; the last ``inner`` dimensions are what reductions run over.
    """
    lowering = _Lowering(rewriter, nodes, shape, inner)
    kernel = lowering.kernel()
    if kernel is None:
        return False
    launcher = lowering.launcher(kernel)
    if launcher is None:
        return False
    lowering.replace(launcher)
    return True


class _Lowering:
    def __init__(self, rewriter: Rewriter, nodes: list[fx.Node], shape: tuple[int, ...], inner: int | None) -> None:
        self.rewriter = rewriter
        self.nodes = nodes
        self.members = set(nodes)
        self.shape = shape
        self.inner = inner
        self.values: dict[fx.Node, Value] = {}
        self.loads: dict[fx.Node, Value] = {}
        self.write = Expressions(self._resolve)
        self.results = [node for node in nodes if any(user not in self.members for user in node.users)]
        self.inout: dict[fx.Node, fx.Node] = {}
        """Result nodes that overwrite an argument."""

    def _resolve(self, node: fx.Node) -> Value:
        if node in self.members:
            return self.values[node]
        if node not in self.loads:
            value = tensor(node)
            assert value is not None
            self.loads[node] = Value(CTYPES[value.dtype], source=node, weight=0)
        return self.loads[node]

    def kernel(self) -> Kernel | None:
        """The kernel without a name; None when its memory cannot be walked in one space."""
        for node in self.nodes:
            if trailing(node) is not None and self.inner is not None:
                self.values[node] = rowwise(node, self.write, row_length(self.shape, self.inner))
            else:
                self.values[node] = self.write.pointwise(node)
        strides: dict[fx.Node, tuple[int, ...]] = {}
        for node in (*self.loads, *self.results):
            found = self._strides(node)
            if found is None:
                return None
            strides[node] = found
        self._choose_inout()
        order = [*self.loads, *(node for node in self.results if node not in self.inout)]
        shape, walk = self._sorted_space([strides[node] for node in order])
        collapsed = collapse(shape, walk, self.inner)
        if collapsed is None:
            return None
        space, steps = collapsed
        buffers = {node: self._buffer(node, i, steps[i]) for i, node in enumerate(order)}
        for result, source in self.inout.items():
            buffers[source].role = "inout"
            buffers[result] = buffers[source]
        self.order = order
        self.buffers = buffers
        rows = self.inner is not None
        kernel = Kernel(
            name="KERNEL",
            outer=space[:-1],
            inner=space[-1],
            rows=rows,
            buffers=[buffers[node] for node in order],
            loads=[Load(buffers[node], value) for node, value in self.loads.items()],
            stores=[Store(buffers[node], self.values[node]) for node in self.results],
        )
        return kernel if self._inout_is_safe(kernel) else None

    def _inout_is_safe(self, kernel: Kernel) -> bool:
        """What is overwritten is overwritten by the last pass, so that no pass reads it afterwards."""
        shared = {id(self.buffers[result]) for result in self.inout}
        return all(
            kernel.stage(store.value) == kernel.stages - 1 for store in kernel.stores if id(store.buffer) in shared
        )

    def _sorted_space(self, strides: list[tuple[int, ...]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """Without reductions, dimensions in the order in which the first full tensor lies in memory."""
        if self.inner is not None:
            return self.shape, strides
        lead = next(
            (s for s in reversed(strides) if all(x or n == 1 for x, n in zip(s, self.shape, strict=True))), None
        )
        if lead is None:
            return self.shape, strides
        dims = sorted(range(len(self.shape)), key=lambda dim: (-lead[dim], dim))
        return tuple(self.shape[dim] for dim in dims), [tuple(s[dim] for dim in dims) for s in strides]

    def _strides(self, node: fx.Node) -> tuple[int, ...] | None:
        """Strides of a tensor over the iteration space, 0 where it is broadcast."""
        value = tensor(node.args[0]) if op_name(node) == "copy_" and node in self.members else tensor(node)
        assert value is not None
        shape, stride = tuple(value.shape), tuple(value.stride())
        if (
            self.inner is not None
            and trailing(node) is not None
            and node in self.members
            and len(shape) != len(self.shape)
        ):
            shape, stride = shape + (1,) * self.inner, stride + (0,) * self.inner
        missing = len(self.shape) - len(shape)
        if missing < 0:
            return None
        found = [0] * missing
        for size, step, full in zip(shape, stride, self.shape[missing:], strict=True):
            if size != full and size != 1:
                return None
            found.append(0 if size == 1 else step)
        return tuple(found)

    def _choose_inout(self) -> None:
        roots = storage_roots(self.rewriter.graph)
        fixed = fixed_nodes(self.rewriter)
        taken: set[fx.Node] = set()
        for result in self.results:
            out = tensor(result)
            assert out is not None
            if op_name(result) == "copy_":
                target = result.args[0]
                assert isinstance(target, fx.Node)
                continue
            for source in self.loads:
                value = tensor(source)
                assert value is not None
                root = roots[source]
                if root in taken or not shares_layout(value, out) or not _dense(value):
                    continue
                if any(other is not source and roots[other] is root for other in self.loads):
                    continue
                if storage_is_free(source, self.members, roots, fixed):
                    self.inout[result] = source
                    taken.add(root)
                    break
        if self.inner is not None and self.inout and self._stores_early():
            self.inout = {}

    def _stores_early(self) -> bool:
        """Some overwriting result is finished before the last pass."""
        loads = [Load(Buffer("x", torch.float32, "input", (1,), True, True), value) for value in self.loads.values()]
        stores = [
            Store(load.buffer, self.values[n]) for n, load in zip(self.results, loads * len(self.results), strict=False)
        ]
        probe = Kernel("probe", (), 2, True, [], loads, stores)
        return any(probe.stage(self.values[result]) != probe.stages - 1 for result in self.inout)

    def _buffer(self, node: fx.Node, index: int, steps: tuple[int, ...]) -> Buffer:
        is_result = node in self.members
        target = node.args[0] if is_result and op_name(node) == "copy_" else node
        value = tensor(target)
        assert value is not None
        fresh = is_result and target is node
        offset = 0 if fresh else int(value.storage_offset())
        return Buffer(
            name=f"{'out' if is_result else 'in'}{index}",
            dtype=value.dtype,
            role="output" if is_result else "input",
            strides=steps,
            contiguous=value.is_contiguous(),
            aligned=offset * value.dtype.itemsize % 16 == 0,
        )

    def launcher(self, kernel: Kernel) -> Launcher | None:
        """The manifest entry; the kernel's text is added to the program, or found there. None when disabled."""
        kernel.name = "KERNEL"
        text = emit_cuda(kernel) if self.rewriter.target == "cuda" else emit_cpu(kernel)
        path = SOURCE[self.rewriter.target]
        so_far = self.rewriter.sources.get(path, prelude(self.rewriter.target))
        width = kernel.vector if self.rewriter.target == "cuda" else 1
        arguments = [
            argument(
                buffer.name,
                buffer.dtype,
                buffer.role,
                layout="contiguous" if buffer.contiguous else "any",
                alignment=min(16, width * buffer.dtype.itemsize) if buffer.strides[-1] == 1 else None,
            )
            for buffer in kernel.buffers
        ]
        texts = self.rewriter.texts
        key = f"{text}\n{arguments}"
        name = texts.get(key)
        if name is None:
            name = self.rewriter.launcher_name(self._name(text), arguments)
            texts[key] = name
        if name in self.rewriter.disabled:
            return None
        if name not in self.rewriter.launchers:
            self.rewriter.sources[path] = so_far + "\n" + text.replace("KERNEL", name) + "\n"
        return Launcher(name=name, source=path, arguments=arguments)

    def _name(self, text: str) -> str:
        """Operators and a digest of the text: the same kernel has the same name in every program."""
        names = [op_name(node).strip("_") for node in self.nodes]
        kept: list[str] = []
        for name in names:
            short = re.sub(r"[^a-z0-9]", "", name)
            if short not in kept and short not in ("copy", "to", "tocopy"):
                kept.append(short)
        return "_".join(["fused", *kept[:4], hashlib.sha256(text.encode()).hexdigest()[:6]])

    def replace(self, launcher: Launcher) -> None:
        """Put the call into the graph and let users of the results read its outputs."""
        arguments: list[CallArgument] = []
        for node in self.order:
            value = tensor(node)
            assert value is not None
            if node not in self.members:
                arguments.append(node)
            elif op_name(node) == "copy_":
                target = node.args[0]
                assert isinstance(target, fx.Node)
                arguments.append(target)
            else:
                stride = None if value.is_contiguous() else tuple(value.stride())
                arguments.append(New(tuple(value.shape), value.dtype, stride))
        outputs = self.rewriter.launch(launcher, arguments, before=self.nodes[-1], name=launcher.name)
        produced = [node for node in self.order if self.buffers[node].role != "input"]
        by_buffer = {id(self.buffers[node]): item for node, item in zip(produced, outputs, strict=True)}
        for node in self.results:
            item = by_buffer[id(self.buffers[node])]
            node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in self.members)
        for node in reversed(self.nodes):
            self.rewriter.graph.erase_node(node)


def _dense(value: torch.Tensor) -> bool:
    """No two indices share an element and none is skipped."""
    dims = sorted((s, n) for s, n in zip(value.stride(), value.shape, strict=True) if n != 1)
    expected = 1
    for stride, size in dims:
        if stride != expected:
            return False
        expected *= size
    return True
