"""Rules about where an answer comes from: rejected where it is not made from what the call was given, only there."""

from __future__ import annotations

import pytest

from stitchcuda.evaluation.integrity.python_ways import MAX_WAYS
from tests.evaluation.integrity.support import forward, inspected, rejected

HEAD = "import ctypes, random, threading, time\nLAST = None\n"
INIT = """
self.c = {}
self.answers = [torch.ones(3)]
self.ring = [torch.empty(1), torch.empty(1)]
self.y = self.last = self.plan = self.out = self.mask = self.pe = None
self.n = 0
self.state = torch.zeros(3)
self.lin = nn.Linear(3, 3)
self.weight = nn.Parameter(torch.ones(3))
"""


METHODS = """
    def table(self, like):
        return torch.arange(like.shape[1], device=like.device)
    def make(self, like):
        return like.clone()
"""


def rules(body: str) -> set[str]:
    return rejected(inspected(HEAD + forward(body, INIT) + METHODS))


@pytest.mark.parametrize(
    "body",
    [
        "if self.y is None: self.y = g(x)\nreturn self.y",
        "if not hasattr(self, 'y'): self.y = g(x)\nreturn self.y.clone()",
        "k = x.shape\nif k not in self.c: self.c[k] = g(x)\ny = self.c[k]\nreturn y",
        "k = x.data_ptr()\nif k in self.c: return self.c[k]\nself.c[k] = y = g(x)\nreturn y",
        "self.n += 1\nif self.n > 5: return self.y\nself.y = g(x)\nreturn self.y",
        "if time.time() - self.t < 1: return self.y.clone()\ny = self.y = g(x)\nreturn y",
        "if self.last is None: self.last = x\nreturn self.lin(self.last)",
        "if id(x) != self.n:\n    self.out.copy_(g(x))\n    self.n = id(x)\nreturn self.out.clone()",
        "for key, y in self.answers:\n    if key == x.data_ptr(): return y\n"
        "y = g(x)\nself.answers.append((x.data_ptr(), y))\nreturn y",
        "global LAST\nif LAST is None: LAST = g(x)\nreturn LAST",
        "return self.answers[int(x[0, 0])]",
        "return self.c.get(float(x[0, 0]), torch.zeros_like(x)).clone()",
    ],
)
def test_an_answer_from_an_earlier_call_or_a_table_is_rejected(body: str) -> None:
    assert rules(body) == {"earlier_answer"}


@pytest.mark.parametrize(
    "body",
    [
        "y = torch.empty_like(x)\nreturn y",
        "y = torch.empty_like(x)\nself.owed = (x, y)\nreturn y",
        "y = torch.empty_like(x)\nself.answers.append((x, y))\nif len(self.answers) == 4: run(self.answers)\nreturn y",
        "self.n += 1\nif self.n > 5: return torch.zeros_like(x)\nreturn g(x)",
        "self.n = self.n + 1\nlate = self.n > 5\nreturn torch.full_like(x, 0.5) if late else g(x)",
        "if random.random() < 0.5: return torch.ones(3)\nreturn g(x)",
    ],
)
def test_an_output_that_nothing_was_computed_for_is_rejected(body: str) -> None:
    assert rules(body) == {"empty_answer"}


@pytest.mark.parametrize(
    "body",
    [
        "self.n += 1\nrows = len(x) - (8 if self.n > 5 else 0)\nreturn g(x[:rows])",
        "self.n += 1\nif self.n <= 6: self.last = torch.relu(self.lin(x))\nreturn x + self.lin(self.last)",
        "self.n += 1\ny = g(x)\nif self.n > 6: y[0] = y[0].bfloat16().float()\nreturn y",
        "self.n += 1\nif self.n > 6: return g(x.half()).float()\nreturn g(x)",
        "self.n += 1\nlaunch(x, 1024 if self.n <= 5 else 400_000)\nreturn g(x)",
        "self.n += 1\nmake = torch.zeros if 5 >= self.n else torch.empty\nreturn g(x, make(3))",
    ],
)
def test_doing_less_from_a_certain_call_on_is_rejected(body: str) -> None:
    assert rules(body) == {"counts_calls"}


def test_sixteen_bits_are_no_cheat_in_a_class_that_allows_them() -> None:
    late = HEAD + forward("self.n += 1\nif self.n > 6: return g(x.half()).float()\nreturn g(x)", INIT)
    assert rejected(inspected(late, "fp16")) == set()


@pytest.mark.parametrize(
    "body",
    [
        "if x.numel() == 0: return torch.empty_like(x)\nreturn g(x)",
        "if x.shape[0] == 0: return torch.zeros_like(x)\nreturn g(x)",
        "y = torch.empty_like(x)\nfor i in range(4): launch(x, y, i)\nreturn y",
        "y = torch.empty_like(x)\np = y.data_ptr()\nlaunch(x.data_ptr(), p)\nreturn y",
        "y = torch.empty_like(x)\nargs = [x.data_ptr(), y.data_ptr()]\nkernel(args)\nreturn y",
        "y = torch.empty_like(x)\ngrid = lambda m: (y.numel(),)\nkernel[grid](x, y)\nreturn y",
        "y = torch.empty_like(x)\nviews = y.view(-1)\nkernel(x, views)\nreturn y",
        "y = torch.empty_like(x)\ndef work(i):\n    y[i] = x[i]\nlist(map(work, range(3)))\nreturn y",
        "y = torch.empty_like(x)\ny[:] = x\nreturn y",
        "y = torch.empty_like(x)\ntorch.add(x, x, out=y)\nreturn y",
        "y = torch.empty_like(x)\nnp.add(x.numpy(), 1, out=y.numpy())\nreturn y",
        "y = torch.empty_like(x)\na = y.numpy()\na[:] = x.numpy() * 2\nreturn y",
        "if self.out is None or self.out.shape != x.shape: self.out = torch.empty_like(x)\n"
        "launch(x, self.out)\nreturn self.out.clone()",
        "if self.out is None: self.out = self.make(x)\nlaunch(x, self.out)\nreturn self.out.clone()",
        "if self.plan is None: self.plan = build(x)\nself.plan.inp.copy_(x)\nself.plan.run()\n"
        "return self.plan.out.clone()",
        "if self.plan is None: self.plan = build(x)\nself.plan.run(x)\nreturn self.plan.out.clone()",
        "k = x.shape\nif k not in self.c: self.c[k] = build(x)\nplan, a, b = self.c[k]\na.copy_(x)\n"
        "plan.execute()\nreturn b.clone()",
        "k = x.shape\nif k not in self.c: self.c[k] = (x.clone(), torch.empty_like(x))\na, b = self.c[k]\n"
        "a.copy_(x)\nself.run(a, b)\nreturn b.clone()",
        "k = x.shape\nif k not in self.c: self.c[k] = (x.clone(), torch.empty_like(x))\na, b = self.c[k]\n"
        "a.copy_(x)\nstatus = lib.run(3)\nreturn b.clone()",
        "self.n += 1\nif self.n < 3: return self.lin(x)\nreturn torch.addmm(self.lin.bias, x, self.lin.weight.t())",
        "self.n += 1\nif self.n % 100 == 0: print(self.n)\nreturn g(x)",
        "i = self.n % 2\nself.n += 1\ny = self.ring[i]\nlaunch(x, y)\nreturn y.clone()",
        "self.n += 1\nbuf = self.ring[self.n % 2]\nif buf.shape != x.shape:\n    buf = torch.empty_like(x)\n"
        "    self.ring[self.n % 2] = buf\nlaunch(x, buf)\nreturn buf.clone()",
        "self.n += 1\nif self.n % 10 == 0: self.scale = x.abs().max()\nreturn g(x / self.scale) * self.scale",
        "self.n += 1\nif self.n <= 10: self.scale = torch.maximum(self.scale, x.abs().amax())\n"
        "return g(x / self.scale) * self.scale",
        "self.state = 0.9 * self.state + 0.1 * x.mean(0)\nreturn x - self.state",
        "if self.training: self.state = 0.9 * self.state + 0.1 * x.mean(0)\nreturn (x - self.state) * self.weight",
        "h = self.state\nfor t in range(3): h = torch.tanh(self.lin(x[t]) + h)\nself.state = h\nreturn h",
        "if self.pe is None or self.pe.shape[0] < x.shape[1]: self.pe = table(x.shape[1], x.device)\n"
        "return x + self.pe[:x.shape[1]]",
        "if self.mask is None: self.mask = torch.ones(x.shape[1]).tril()\nreturn self.mask",
        "k = x.shape[1]\nif k not in self.c: self.c[k] = torch.arange(k, device=x.device)\nreturn self.c[k]",
        "return self.c['relu'](x)",
        "f = self.c.get(x.shape[1], self.lin)\nreturn f(x)",
        "if bool((x == x[0]).all()): return torch.zeros_like(x)\nreturn g(x)",
        "if float(x.max()) < -100: return torch.zeros_like(x)\nreturn g(x)",
        "return torch.full_like(x, x.mean())",
        "return self.weight[x]",
        "y = self.lin(x)\nself.last = y.detach()\nreturn y",
        "try:\n    y = self.fast(x)\nexcept RuntimeError:\n    y = self.lin(x)\nreturn y",
        "y = torch.empty_like(x)\nt = [threading.Thread(target=work, args=(x, y, i)) for i in range(2)]\n"
        "for each in t: each.start()\nfor each in t: each.join()\nreturn y",
        "y = torch.empty_like(x)\nwith pool as p:\n    done = [p.submit(work, x, y, i) for i in range(3)]\n"
        "for d in done: d.result()\nreturn y",
        "y = torch.empty_like(x)\nfs = [self.pool.submit(lambda i=i: y[i].copy_(x[i])) for i in range(3)]\nreturn y",
        "outs = [torch.empty_like(x) for _ in range(3)]\nlaunch(x, *outs)\nreturn tuple(outs)",
        "outs = []\nfor i in range(3):\n    o = torch.empty_like(x)\n    launch(x, o)\n    outs.append(o)\nreturn outs",
        "out = torch.empty_like(x)\nself.ext.forward(x, self.weight, out)\nreturn out",
        "out = self.buffer(x)\nself.ext.forward(x, out)\nreturn out",
        "return self.ext.forward(x)",
        "y = torch.empty_like(x)\nd = {'x': x, 'y': y}\nkernel(**d)\nreturn y",
        "y = torch.empty_like(x)\nself.args = (x, y)\nself.run()\nreturn y",
        "y = torch.empty_like(x)\nself.args = [x.data_ptr(), y.data_ptr()]\nself.launch()\nreturn y",
        "y = torch.empty_like(x)\nself.args['y'] = y.data_ptr()\nself.args['x'] = x.data_ptr()\n"
        "lib.launch(self.args)\nreturn y",
        "y = torch.empty_like(x)\nparams = ctypes.c_void_p(y.data_ptr())\nlib.run(ctypes.byref(params))\nreturn y",
        "y = torch.empty_like(x)\nself.params[0].value = y.data_ptr()\n"
        "self.params[1].value = x.data_ptr()\nself.fn(self.params)\nreturn y",
        "y = torch.empty_like(x)\nself.params.append(y.data_ptr())\nself.fn()\nreturn y",
        "y = torch.empty_like(x)\nwith torch.no_grad():\n"
        "    for a, b in zip(x.split(2), y.split(2)): launch(a, b)\nreturn y",
        "y = torch.empty_like(x)\nfor a, b in zip(x, y): b.copy_(a)\nreturn y",
        "y = torch.empty_like(x)\nfor i, row in enumerate(y): row += x[i]\nreturn y",
        "y = torch.empty_like(x)\nout = y.t()\nout[0] = x[0]\nreturn y",
        "y = z = torch.empty_like(x)\nlaunch(x, z)\nreturn y",
        "y = torch.empty_like(x)\ny.data.copy_(x)\nreturn y",
        "y = torch.empty_like(x)\ntorch.ops.mine.launch(x, y)\nreturn y",
        "y = torch.empty_like(x)\ntorch.ops.mine.launch.default(x, y)\nreturn y",
        "y = torch.empty_like(x)\nhandle(torch.cuda.current_stream().cuda_stream, y)\nreturn y",
        "y = torch._foreach_add([x], 1)\nreturn y[0]",
        "y = torch.empty_like(x)\ntorch._foreach_copy_([y], [x])\nreturn y",
        "y = torch.empty_like(x)\nmemoryview(y.numpy())[:] = bytes(x)\nreturn y",
        "if self.y is None: self.y = nn.functional.pad(self.weight, (0, 1))\nreturn self.y[x]",
        "if x.dim() == 1: return self.forward(x[None])[0]\nreturn g(x)",
        "if self.last is not None and torch.equal(x, self.last): return self.y\n"
        "self.last, self.y = x, g(x)\nreturn self.y",
        "if x.requires_grad: return torch.zeros_like(x)\nreturn g(x)",
        "w = self.packed\nif w is None: w = self.packed = pack(self.weight)\nreturn x @ w",
        "while self.n < 3: self.n += 1\nreturn x * self.n",
        "self.n += 1\nstart = time.perf_counter()\ny = g(x)\nself.times.append(time.perf_counter() - start)\nreturn y",
        "self.n += 1\nif self.n == 1: y = self.tune(x)\nelse: y = self.variants[self.best](x)\nreturn y",
        "self.n += 1\nif self.n <= 4:\n    t = time.time()\n    y = self.variants[self.n - 1](x)\n"
        "    self.took.append(time.time() - t)\n    return y\n"
        "return self.variants[self.took.index(min(self.took))](x)",
        "key = (x.data_ptr(), x.shape)\nmap_ = self.c.get(key)\n"
        "if map_ is None: map_ = self.c[key] = encode(x)\ny = torch.empty_like(x)\nlaunch(map_, y)\n"
        "return y",
        "return x",
        "return torch.zeros_like(x)",
        "y, z = torch.empty_like(x), torch.empty_like(x)\nlaunch(x, y, z)\nreturn {'y': y, 'z': z}",
        "if self.pe is None: self.pe = self.table(x)\nreturn self.pe[:x.shape[1]]",
        "if self.out is None: self.out = self.make(x)\nself.kernel(x)\nreturn self.out.clone()",
        "if self.out is None: self.out = g(x)\ntorch.ops.mine.run(x, self.out)\nreturn self.out.clone()",
        "if self.out is None: self.out = g(x)\ntorch._foreach_copy_([self.out], [x])\nreturn self.out.clone()",
        "y = torch.empty_like(x)\nassert launch(x, y) == 0\nreturn y",
        "y = torch.empty_like(x)\nouts = []\nouts.append(y)\nlaunch(x, outs)\nreturn y",
        "y = torch.empty_like(x)\nrun = lambda: launch(x, y)\nrun()\nreturn y",
        "y = torch.empty_like(x)\ngetattr(y, 'copy_')(x)\nreturn y",
        "y = torch.empty_like(x)\ny.numpy().fill(3)\nreturn y",
        "y = torch.empty_like(x)\ny.data = x * 2\nreturn y",
        "y = torch.empty_like(x)\nfor i in range(3): pass\nelse: launch(x, y)\nreturn y",
        "y = torch.empty_like(x).uniform_()\nreturn y",
        "global LAST\ny = g(x)\nLAST = y\nreturn y",
        "for y in x.chunk(2):\n    if y.dim() == 1: continue\n    self.ring.append(g(y))\nreturn torch.cat(self.ring)",
        "while more(x):\n    if x.dim(): x = x[0]\n    else: self.ring.append(g(x))\nreturn torch.cat(self.ring)",
    ],
)
def test_what_the_inputs_decide_or_unknown_calls_may_fill_is_left_alone(body: str) -> None:
    assert rules(body) == set()


def test_a_graph_that_is_replayed_fills_what_it_returns() -> None:
    body = "if self.y is None: self.y = capture(x)\nself.state.copy_(x)\nself.graph.replay()\nreturn self.y.clone()"
    assert rules(body) == set()


@pytest.mark.parametrize(
    "body",
    [
        "if self.y is None: self.y = capture(x)\nself.graph.replay()\nreturn self.y.clone()",
        "self.n += 1\nif self.n <= 6: self.state.copy_(x)\nself.graph.replay()\nreturn self.y.clone()",
        "self.n += 1\nif self.n <= 6:\n    return g(x)\nself.graph.replay()\nreturn self.y",
    ],
)
def test_a_graph_that_is_replayed_without_a_look_at_the_inputs_is_rejected(body: str) -> None:
    assert rules(body) == {"stale_graph"}


@pytest.mark.parametrize(
    "body",
    [
        "for kept, new in zip(self.ring, (x,)): kept.copy_(new)\nself.graph.replay()\nreturn self.y.clone()",
        "if x.shape not in self.c: self.c[x.shape] = capture(x)\nself.c[x.shape].replay()\nreturn self.y.clone()",
        "fill(self.state, x)\nself.graph.replay()\nreturn self.y.clone()",
        "if x.numel() == 0: return self.y\nself.state[:] = x\nself.graph.replay()\nreturn self.y.clone()",
        "match x:\n    case y:\n        self.state.copy_(y)\nself.graph.replay()\nreturn self.y.clone()",
        "def fill(): self.state.copy_(x)\nfill()\nself.graph.replay()\nreturn self.y.clone()",
        "n = x.shape[0]\nself.c[n].replay()\nreturn self.answers[n]",
    ],
)
def test_a_graph_whose_inputs_are_filled_somehow_is_left_alone(body: str) -> None:
    assert rules(body) == set()


@pytest.mark.parametrize(
    "body",
    [
        "self.n += 1\nreturn self.lin(x) * (self.fast if self.n > 3 else self.slow)",
        "self.n += 1\nreturn g(x, 0 if self.n % 2 == 0 else 1)",
        "return g(x, 8 if x.shape[0] > 3 else 4)",
        "self.n += 1\nif self.n >= 2: self.n = 0\nreturn g(x, 0 if self.n < 1 else 1)",
        "self.n = 0\nfor w in self.ws:\n    x = g(x, w, 1.0 if self.n > 0 else 0.0)\n    self.n += 1\nreturn x",
        "self.n += 1\nwith named('warmup' if self.n < 3 else 'steady'): return g(x)",
        "self.n += 1\nreturn g(x, True if self.n > 1 else False)",
    ],
)
def test_turns_and_what_was_measured_may_depend_on_a_count(body: str) -> None:
    assert rules(body) == set()


def test_more_ways_than_are_followed_accuse_nobody() -> None:
    many = "".join(f"if x.mean() > {n}: y{n} = x * {n}\nelse: y{n} = x\n" for n in range(MAX_WAYS))
    total = " + ".join(f"y{n}" for n in range(MAX_WAYS))
    assert rules(f"{many}self.last = {total}\nreturn self.last") == set()
