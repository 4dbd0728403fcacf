"""Print a rewritten graph as a Program: the reference's source with a straight-line ``forward`` in ``ModelNew``.

The reference's constructor is kept, so that random numbers, names and state match; its ``forward`` is not.
What depends on weights alone is computed in ``prepare()``. Shapes, dtypes and mode are checked at every call.
"""

from __future__ import annotations

from stitchcuda.program.model import ENTRY, Manifest, Program
from stitchcuda.recipes.base import Rewriter, is_launch, tidy
from stitchcuda.recipes.printer import Printed, Printer
from stitchcuda.recipes.reuse import reuse_memory
from stitchcuda.recipes.source import kept_source
from stitchcuda.task.model import Task

HELPERS = '''
def _expect(name, value, shape, dtype):
    """This program is written for one shape: say so instead of computing something else."""
    if not isinstance(value, torch.Tensor) or tuple(value.shape) != shape or value.dtype != dtype:
        found = f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, torch.Tensor) else repr(value)
        raise ValueError(f"{name} is {found}; this program is specialised for {shape} of {dtype}")


def _strided(value, stride):
    """Check the memory layout that a kernel was generated for."""
    if value.stride() != stride:
        raise ValueError(f"a tensor of shape {tuple(value.shape)} has strides {value.stride()}; expected {stride}")
    return value


def _laid(value, stride):
    """The value in the memory layout that a kernel was generated for: itself, or a copy where the library differs."""
    return value if value.stride() == stride else torch.empty_strided(
        value.shape, stride, dtype=value.dtype, device=value.device
    ).copy_(value)


def _state(module, path):
    """The tensor at a dotted path."""
    for part in path.split("."):
        module = getattr(module, part)
    return module.detach()
'''

REBIND = """
    _bound = None

    def _apply(self, *arguments, **keywords):
        self._bound = None
        return super()._apply(*arguments, **keywords)

    def load_state_dict(self, *arguments, **keywords):
        self._bound = None
        return super().load_state_dict(*arguments, **keywords)
"""


WHOLE_GRAPH = '''
class ModelNew(Model):
    """The reference, replayed as one CUDA graph for each set of input shapes."""

    def prepare(self):
        self.__dict__["_graphs"] = {}

    def forward(self, *inputs):
        if "_graphs" not in self.__dict__:
            self.prepare()
        key = tuple((tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else v for v in inputs)
        if key not in self._graphs:
            state = [value.detach() for value in (*self.parameters(), *self.buffers())]
            self._graphs[key] = _Graph(super().forward, inputs, state)
        return self._graphs[key](*inputs)
'''


def assemble(rewriter: Rewriter, task: Task, *, notes: str = "") -> Program:
    """The rewritten graph as a Program in its native form.

    Raises CaptureError when a value in the graph cannot be printed.
    """
    tidy(rewriter)
    reuse_memory(rewriter)
    used = {node.meta["call"].launcher.name for node in rewriter.graph.nodes if is_launch(node)}
    launchers = [launcher for name, launcher in rewriter.launchers.items() if name in used]
    sources = {launcher.source for launcher in launchers}
    files = {path: text for path, text in rewriter.sources.items() if path in sources}
    files[ENTRY] = _program(rewriter, task, sorted(used))
    manifest = None
    if launchers:
        manifest = Manifest(target=rewriter.target, launchers=launchers, libraries=sorted(rewriter.libraries))
    return Program(files=files, manifest=manifest, notes=notes)


def _program(rewriter: Rewriter, task: Task, launchers: list[str]) -> str:
    printed = Printer(rewriter).print()
    done = sorted({gain.what for gain in rewriter.gains})
    lines = ["# Generated from the reference by recipes:", *(f"# - {what}" for what in done)] if done else []
    lines += [kept_source(task.source), "", "import torch"]
    if launchers:
        lines.append("from bindings import " + ", ".join(launchers))
    lines += ["", "_aten = torch.ops.aten", HELPERS]
    extra, methods = orchestration(rewriter, printed)
    lines += [extra, "class ModelNew(Model):"]
    what = "kernels written for it" if launchers else "library calls and host orchestration alone"
    lines += [f'    """The reference with {what}; specialised for its shapes."""', REBIND]
    lines += ["    def prepare(self):"]
    lines += [
        '        """Bind state, fold what depends on it alone, allocate scratch; call again after changing state."""'
    ]
    lines += ["        with torch.no_grad():", *(f"            {line}" for line in printed.prepare)]
    if printed.staging:
        lines.append("            self._host_inputs = {}")
    lines += ["            self._graph = None", f"            self._bound = {_tuple(printed.bound)}", "", *methods, ""]
    return "\n".join(lines)


def whole_graph(task: Task, *, notes: str = "") -> Program:
    """The unchanged reference whose forward is captured as one CUDA graph, for models that cannot be read.

    Warm-up calls must not change state, so the state is saved and restored around them.
    """
    from stitchcuda.recipes.cuda_graph import RUNTIME

    lines = [kept_source(task.source, keep_forward=True), "", "import torch", RUNTIME, WHOLE_GRAPH]
    return Program(files={ENTRY: "\n".join(lines)}, notes=notes)


def orchestration(rewriter: Rewriter, printed: Printed) -> tuple[str, list[str]]:
    """Module-level code and the methods of ``ModelNew`` that run the body, by the host recipes that applied."""
    names = rewriter.captured.parameters
    signature = ", ".join(["self", *names])
    body = [f"{_tuple(printed.bound)} = self._bound"] if printed.bound else []
    body += [*printed.body, f"return {printed.returned}"]
    runtime = ""
    if printed.staging:
        from stitchcuda.recipes.host_overlap import RUNTIME

        runtime = RUNTIME
    if "cuda_graph" in rewriter.orchestration:
        from stitchcuda.recipes.cuda_graph import graph_methods

        more, methods = graph_methods(rewriter, printed, signature, body)
        return runtime + more, methods
    bind = ["if self._bound is None:", "    self.prepare()"]
    lines = printed.guard + bind + printed.staging + body
    return runtime, [f"    def forward({signature}):", *(f"        {line}" for line in lines)]


def _tuple(names: list[str]) -> str:
    return "(" + "".join(f"{name}, " for name in names).rstrip() + ")"
