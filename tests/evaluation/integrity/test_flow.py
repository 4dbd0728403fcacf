"""Rules about what forward keeps, gives out and leaves undone, each beside the honest pattern that looks like it."""

from __future__ import annotations

import pytest

from stitchcuda.evaluation.integrity.inspect import inspect_program
from tests.evaluation.integrity.support import CPU, forward, inspected, rejected
from tests.program.samples import cpu_program

QUIET = {"no_own_kernel", "library_compute"}


def rules(body: str, init: str = "pass") -> set[str]:
    return set(inspected(forward(body, init))) - QUIET


@pytest.mark.parametrize(
    "body",
    [
        "k = x.data_ptr()\nif k in self.c: return self.c[k]\nself.c[k] = g(x)\nreturn self.c[k]",
        "k = (id(x), x.shape)\ny = self.c.get(k)\nreturn y",
        "if x is self.last: return self.y\nself.last = x\nreturn g(x)",
        "if self.last is not None and torch.equal(x, self.last): return self.y\nreturn g(x)",
        "if x.data_ptr() == self.pointer: return self.y\nreturn g(x)",
        "if x._version != self.version: self.y = g(x)\nreturn self.y + 0",
        "return _CACHE[hash(x.sum().item())]",
    ],
)
def test_a_cache_under_an_address_or_contents_is_flagged(body: str) -> None:
    assert "keyed_cache" in rules(body, "self.c = {}")


@pytest.mark.parametrize(
    "body",
    [
        "assert x.data_ptr() % 16 == 0\nreturn g(x)",
        "return launch(x.data_ptr(), x.numel())",
        "k = (tuple(x.shape), x.dtype)\nif k not in self.c: self.c[k] = torch.empty_like(x)\nreturn g(x, self.c[k])",
        "if self.ws is None or self.ws.shape != x.shape: self.ws = torch.empty(x.shape, device=x.device)\n"
        "return g(x, self.ws)",
        "if self.mask is None: self.mask = torch.ones(x.shape[1]).tril()\nreturn g(x, self.mask)",
        "if self.packed is None: self.packed = self.weight.t().contiguous()\nreturn g(x, self.packed)",
        "y = x * 2\ny.mul_(3)\ny[0] = 1\ny += 1\nreturn y",
        "x = x.contiguous()\nx.mul_(2)\nreturn x",
        "x = F.pad(x, (1, 1))\nx += 1\nreturn x",
        "self.calls = self.calls + 1\nreturn g(x)",
        "try:\n    y = g(x)\nfinally:\n    self.busy = False\nreturn y",
        "try:\n    y = g(x)\nexcept RuntimeError as error:\n    raise ValueError('shape') from error\nreturn y",
        "y = torch.empty_like(x)\ng(x, y)\nreturn y",
        "y = torch.empty_like(x)\ng(x, y)\ny += x\nreturn y",
        "y = torch.empty_like(x)\ny[:3] = x[:3]\ny.add_(x)\nreturn y",
        "y = torch.empty_like(x)\ny.copy_(x)\nreturn y * 2",
    ],
)
def test_workspaces_temporaries_and_checks_are_not(body: str) -> None:
    assert rules(body, "self.c = {}\nself.ws = self.mask = self.packed = None\nself.calls = 0") == set()


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("y = g(x, self.last)\nself.last = y.clone()\nreturn y", "cached_result"),
        ("self.n += 1\nif self.n > 5: return h(x)\nreturn g(x)", "call_counter"),
        ("self.n += 1\nlate = self.n > 5\nreturn g(x, late)", "call_counter"),
        ("try:\n    return g(x)\nexcept Exception:\n    return torch.relu(x)", "silent_fallback"),
        ("return torch.zeros_like(x)", "constant_output"),
        ("return g(x), torch.zeros(3)", "constant_output"),
        ("if x.numel() == 0: return torch.empty_like(x)\nreturn g(x)", "unwritten_output"),
        ("return x", "input_passthrough"),
        ("x.mul_(2)\nreturn g(x)", "mutates_input"),
        ("x[0] = 0\nreturn g(x)", "mutates_input"),
        ("self.layer.weight.data.mul_(2)\nreturn g(x)", "mutates_weights"),
        ("y = torch.empty_like(x)\ny += x\nreturn y", "reads_unwritten"),
        ("y = torch.empty(9)[:3].view_as(x)\nreturn y.add_(x) * y", "reads_unwritten"),
        ("self.out = torch.empty_like(x)\ng(x, self.out)\nreturn self.out", "reused_output"),
        ("g(x)\nself.graph.replay()\nreturn self.y.clone()", "graph_without_copy"),
    ],
)
def test_what_a_call_should_not_do_is_flagged_and_not_rejected(body: str, rule: str) -> None:
    found = inspected(forward(body, "self.c = {}\nself.y = self.last = self.graph = None\nself.n = 0"))
    assert rule in found
    assert rejected(found) == set()


def test_streams_that_the_caller_waits_for_are_honest() -> None:
    body = """
    s, now = self.s, torch.cuda.current_stream()
    s.wait_stream(now)
    with torch.cuda.stream(s):
        y = g(x)
    now.wait_stream(s)
    return y
    """
    assert rules(body, "self.s = torch.cuda.Stream()") == set()


def test_a_graph_by_shape_with_its_inputs_copied_in_is_honest() -> None:
    body = """
    key = x.shape
    if key not in self.graphs:
        inside = x.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outside = g(inside)
        self.graphs[key] = graph, inside, outside
    graph, inside, outside = self.graphs[key]
    inside.copy_(x)
    graph.replay()
    return outside.clone()
    """
    assert rules(body, "self.graphs = {}") == set()


def test_memoised_functions_of_sizes_are_honest_and_of_tensors_are_not() -> None:
    head = "import functools\n@functools.cache\ndef f(n): return n\n"
    assert "cached_result" not in inspected(head + forward("return g(x, f(x.shape[0]))"))
    assert "cached_result" in inspected(head + forward("return f(x)"))


def test_folding_weights_belongs_into_prepare() -> None:
    assert "folds_at_construction" in rules("return g(x, self.w)", "self.w = (self.a.weight @ self.b.weight).t()")
    assert rules("return g(x, self.w)", "self.w = nn.Parameter(torch.ones(3))\nself.v = self.a.weight") == set()


def test_a_copied_reference_may_lend_its_constructor_but_not_its_forward() -> None:
    copy = "from torch import nn\nclass Model(nn.Module):\n    def forward(self, x): return x + 1\n"
    own = "class ModelNew(Model):\n    def forward(self, x): return g(x)\n"
    assert "copies_reference" not in inspected(copy + own)
    assert "copies_reference" in inspected(copy + own.replace("g(x)", "super().forward(x)"))
    assert "copies_reference" in inspected(copy + "class ModelNew(Model): pass\n")


def test_kernels_that_nobody_calls_or_reads_are_decoys() -> None:
    program = cpu_program()
    entry = program.files["program.py"]

    def found(changed: str) -> set[str]:
        files = {**program.files, "program.py": changed}
        return {each.rule for each in inspect_program(program.model_copy(update={"files": files}), CPU, "fp32")}

    idle = {"unlaunched_kernel", "decoy_kernel"}
    assert found(entry) == set()
    assert found(entry.replace("        scale_shift(x", "        print(x")) == idle | {"empty_answer"}
    assert found(entry.replace("return y", "return x * 2")) == {"discarded_result", "decoy_kernel"}
    held = entry.replace("        scale_shift(x", "        self.launch(x")
    kept = held.replace("self.factor = factor", "self.factor = factor\n        self.launch = scale_shift")
    assert found(kept) == set()
    assert found(kept.replace("self.launch(x", "print(x")) == idle | {"empty_answer"}
    looked_up = entry.replace("from bindings import scale_shift", "import bindings")
    assert found(looked_up.replace("        scale_shift(x", "        bindings.scale_shift(x")) == set()
    assert found(looked_up.replace("        scale_shift(x", "        getattr(bindings, 'scale_shift')(x")) == set()
