"""Recipe: the whole forward as one CUDA graph, so that launches cost no host time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import fx

from stitchcuda.recipes.base import Gain, Recipe, Rewriter, TargetKind, is_launch
from stitchcuda.recipes.normalise import VIEWS, op_name, tensor
from stitchcuda.recipes.planner import GRAPH_NODE_SECONDS

if TYPE_CHECKING:
    from stitchcuda.recipes.printer import Printed

SYNCHRONISES = {
    "nonzero", "item", "_local_scalar_dense", "masked_select", "unique", "unique_dim", "_unique2", "index",
    "index_put", "index_put_", "equal", "bincount", "repeat_interleave", "nonzero_numpy", "linalg_eig",
}  # fmt: skip
"""Operators that may read the device from the host, which a capture forbids."""

RUNTIME = '''
class _Graph:
    """A function captured as one CUDA graph with inputs of its own: they are copied in, results are copied out."""

    def __init__(self, function, inputs, changing):
        self.inputs = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
        before = [value.clone() for value in changing]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        for value, saved in zip(changing, before):
            value.copy_(saved)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = function(*self.inputs)

    def __call__(self, *inputs):
        for mine, given in zip(self.inputs, inputs):
            if isinstance(mine, torch.Tensor):
                mine.copy_(given, non_blocking=True)
        self.graph.replay()
        return _copies(self.outputs)


def _copies(value):
    """Results that outlive the next replay."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(_copies(item) for item in value)
    if isinstance(value, dict):
        return {key: _copies(item) for key, item in value.items()}
    return value

'''


class CudaGraph(Recipe):
    """Applies on cuda to a forward that draws no random numbers, reads nothing back and changes no input.

    Captured at the first call, after two warm-up calls on a side stream whose changes of state are undone. Saves
    the host's time between launches; costs a copy of inputs and outputs, which the Planner weighs.
    """

    name: ClassVar[str] = "cuda_graph"
    title: ClassVar[str] = "Capture the whole forward as one CUDA graph"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 90

    def apply(self, rewriter: Rewriter) -> None:
        """Ask for the graph where it can be captured."""
        captured = rewriter.captured
        if captured.draws_random or captured.mutates_inputs:
            return
        if any(op_name(node) in SYNCHRONISES for node in rewriter.graph.nodes):
            return
        on_host = captured.device == "cuda" and any(
            value is not None and value.device.type == "cpu" and node not in rewriter.staged
            for node in rewriter.graph.nodes
            if (value := tensor(node)) is not None and value.dim() > 0
        )
        if on_host or not flat_inputs(rewriter):
            return
        rewriter.orchestration.append(self.name)
        launches = sum(_launches(node) for node in rewriter.graph.nodes)
        output = list(rewriter.graph.nodes)[-1]
        copied = 2 * sum(_size(node) for node in [*captured.inputs, *output.all_input_nodes])
        seconds = launches * (rewriter.launch_seconds - GRAPH_NODE_SECONDS) - copied / rewriter.bandwidth
        rewriter.add_gain(Gain(self.name, "the whole forward as one CUDA graph", seconds, 0, -copied))


def _launches(node: fx.Node) -> int:
    """Kernels that a node launches; a library's recurrent layer launches two for each step, layer and direction."""
    name = op_name(node)
    if node.op != "call_function" or name in VIEWS or not (name or is_launch(node)):
        return 0
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu") and len(node.args) >= 9:
        x, layers, both, batch_first = tensor(node.args[0]), node.args[4], node.args[7], node.args[8]
        if x is not None and x.dim() == 3 and isinstance(layers, int):
            return 2 * x.shape[1 if batch_first else 0] * layers * (2 if both else 1)
    return 1


def _size(node: object) -> int:
    value = tensor(node)
    return 0 if value is None else value.numel() * value.dtype.itemsize


def flat_inputs(rewriter: Rewriter) -> bool:
    """Each tensor is an argument of forward by itself."""
    from stitchcuda.recipes.printer import slot_paths

    captured = rewriter.captured
    paths = slot_paths(captured.in_spec, captured.parameters)
    return all(node is None or path.isidentifier() for node, path in zip(captured.inputs, paths, strict=True))


def graph_methods(rewriter: Rewriter, printed: Printed, signature: str, body: list[str]) -> tuple[str, list[str]]:
    """The runtime class and the methods ``_compute`` and ``forward``."""
    captured = rewriter.captured
    changing = [f'_state(self, "{captured.states[node].path}")' for node in captured.states if node in captured.mutated]
    names = ", ".join(captured.parameters)
    methods = [f"    def _compute({signature}):", *(f"        {line}" for line in body), ""]
    methods += [f"    def forward({signature}):", *(f"        {line}" for line in printed.guard)]
    methods += ["        if self._bound is None:", "            self.prepare()"]
    methods += [f"        {line}" for line in printed.staging]
    methods += ["        if self._graph is None:"]
    methods += [f"            self._graph = _Graph(self._compute, [{names}], [{', '.join(changing)}])"]
    methods += [f"        return self._graph({names})"]
    return RUNTIME, methods
