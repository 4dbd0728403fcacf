"""Programs that fit the task's own inputs or weights alone are found out; honest ones stand every family."""

from __future__ import annotations

import pytest

from stitchcuda.task.model import Precision
from tests.evaluation.conftest import QUICK, Judge, make_task

EVERY = QUICK.model_copy(update={"correctness_seeds": 7})
"""All families in one screen, as a publish has them."""


def task_source(forward: str, inputs: str, init: str = "pass") -> str:
    """A task whose forward returns an expression."""
    return f"""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x, y=None):
        return {forward}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""


def program(body: str, init: str = "pass", extra: str = "") -> str:
    """A Program whose forward has a body."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return f"""{extra}
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x, y=None):
{lines}"""


LAYER = "self.l = nn.Linear(96, 40); self.n = nn.BatchNorm1d(40)"
LAYERED = task_source("torch.softmax(self.n(F.gelu(self.l(x))), -1)", "torch.rand(48, 96)", LAYER)
CUT = """
def tf32(t):
    return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
"""


@pytest.mark.parametrize(
    ("precision", "product"),
    [
        ("fp32", "sum(x[:, i::3] @ self.l.weight[:, i::3].T for i in range(3)) + self.l.bias"),
        ("tf32", "tf32(x) @ tf32(self.l.weight).T + self.l.bias"),
        ("bf16", "(x.float() @ self.l.weight.float().T + self.l.bias.float()).bfloat16()"),
        ("fp16", "(x.float() @ self.l.weight.float().T + self.l.bias.float()).half()"),
    ],
)
def test_honest_arithmetic_of_each_class_stands_every_family(judge: Judge, precision: Precision, product: str) -> None:
    source = program(f"h = {product}\nreturn torch.softmax(self.n(F.gelu(h)), -1)", LAYER, CUT)
    evaluation = judge(make_task(LAYERED, precision=precision), source, settings=EVERY)
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.correctness is not None
    checked = {name for name, how in evaluation.correctness.families.items() if how == "checked"}
    assert checked >= {"signed", "offset", "spikes", "sparse", "permuted", "probe"}


def test_low_precision_hides_in_inputs_of_one_sign_but_not_in_signed_ones(judge: Judge) -> None:
    inputs = "torch.rand(8, 4096), torch.rand(4096, 8)"
    evaluation = judge(make_task(task_source("x @ y", inputs)), program("return tf32(x) @ tf32(y)", extra=CUT))
    assert evaluation.status == "wrong_output"


NORM = "x / x.norm(dim=1, keepdim=True)"
CHEATS = {
    "identity for relu": ("torch.relu(x)", "torch.rand(64, 64)", "return x.clone()"),
    "no maximum in a softmax": (
        "torch.softmax(x, -1)",
        "torch.rand(16, 64)",
        "e = x.exp()\nreturn e / e.sum(-1, True)",
    ),
    "a sample for a mean": (
        "x.mean()",
        "torch.randn(512, 512)",
        "return x[::64].mean() if x.abs().max() < 20 else x.mean()",
    ),
    "a constant norm": (
        NORM,
        "torch.rand(16, 4096)",
        f"return x / (4096 / 3) ** 0.5 if x.min() >= 0 and x.max() <= 1 else {NORM}",
    ),
}


@pytest.mark.parametrize(("forward", "inputs", "body"), CHEATS.values(), ids=CHEATS)
def test_answers_that_fit_the_distribution_alone_are_wrong(judge: Judge, forward: str, inputs: str, body: str) -> None:
    evaluation = judge(make_task(task_source(forward, inputs)), program(body), settings=EVERY)
    assert evaluation.status == "wrong_output", evaluation.message


CACHE = """
self.kept = getattr(self, 'kept', {})
key = KEY
if key not in self.kept:
    self.kept[key] = torch.tanh(x) + 1
return self.kept[key].clone()
"""


@pytest.mark.parametrize(
    "key",
    ["float(x.double().sum().round(decimals=4))", "tuple(x.reshape(-1)[::32].tolist())", "x.data_ptr()", "0"],
    ids=["sum", "sample", "address", "nothing"],
)
def test_answers_kept_by_what_the_inputs_look_like_are_found(judge: Judge, key: str) -> None:
    source = program(CACHE.replace("KEY", key).strip())
    evaluation = judge(make_task(task_source("torch.tanh(x) + 1", "torch.rand(64, 64)")), source, settings=EVERY)
    assert evaluation.status == "wrong_output", evaluation.message


MATRIX = task_source("self.l(x)", "torch.rand(16, 64)", "self.l = nn.Linear(64, 32)")


def test_weights_packed_at_the_first_call_are_stale_later(judge: Judge) -> None:
    lazy = program(
        "if not hasattr(self, 'packed'):\n    self.packed = self.l.weight.T.contiguous()\n"
        "return x @ self.packed + self.l.bias",
        "self.l = nn.Linear(64, 32)",
    )
    evaluation = judge(make_task(MATRIX), lazy)
    assert evaluation.status == "wrong_output"
    assert "prepare()" in evaluation.message
    packing = program("return x @ self.packed + self.l.bias", "self.l = nn.Linear(64, 32)")
    packing += "    def prepare(self):\n        self.packed = self.l.weight.T.contiguous()\n"
    assert judge(make_task(MATRIX), packing).status == "correct"


def test_prepare_may_give_up_the_weights_it_has_packed(judge: Judge) -> None:
    source = program("return x @ self.packed + self.bias", "self.l = nn.Linear(64, 32)")
    source += (
        "    def prepare(self):\n        self.packed, self.bias = self.l.weight.T.contiguous(), self.l.bias.clone()\n"
        "        del self.l\n"
    )
    evaluation = judge(make_task(MATRIX), source)
    assert evaluation.status == "correct", evaluation.message


def test_a_busy_machine_leaves_out_no_family(judge: Judge) -> None:
    busy = QUICK.model_copy(update={"family_seconds": 1e-9})
    evaluation = judge(make_task(MATRIX), program("return self.l(x)", "self.l = nn.Linear(64, 32)"), settings=busy)
    assert evaluation.correctness is not None
    checked = {name for name, how in evaluation.correctness.families.items() if how == "checked"}
    assert checked == {"signed", "offset", "spikes", "sparse", "permuted", "probe"}


def test_families_that_the_reference_does_not_stand_are_named(judge: Judge) -> None:
    task = make_task(task_source("x.log() + x.sqrt()", "torch.rand(32, 32) + 0.5"))
    evaluation = judge(task, program("return x.log() + x.sqrt()"), settings=EVERY)
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.correctness is not None
    families = evaluation.correctness.families
    assert "NaN or infinity" in families["signed"]
    assert families["permuted"] == "checked"


def test_ties_that_rounding_decides_may_fall_otherwise(judge: Judge) -> None:
    task = make_task(task_source("(x @ y).argmax(-1)", "torch.rand(32, 2048).round(decimals=1), torch.ones(2048, 64)"))
    evaluation = judge(task, program("return (x @ y).argmax(-1)"))
    assert evaluation.status == "correct", evaluation.message
    plain = make_task(task_source("x.argmax(-1)", "torch.rand(32, 512)"))
    wrong = program("i = x.argmax(-1)\ni[3] = (i[3] + 1) % 512\nreturn i")
    assert judge(plain, wrong).status == "wrong_output"


def test_a_program_must_leave_its_weights_as_they_are(judge: Judge) -> None:
    init = "self.a = nn.Linear(64, 32, bias=False); self.b = nn.Linear(32, 16)"
    task = make_task(task_source("self.b(self.a(x))", "torch.rand(16, 64)", init))
    drifting = program("self.a.weight.mul_(2)\nself.b.weight.mul_(0.5)\nreturn self.b(self.a(x))", init)
    evaluation = judge(task, drifting)
    assert evaluation.status == "dishonest", evaluation.message
    assert ("weight_mutation", "state") in [(finding.rule, finding.layer) for finding in evaluation.findings]
    folding = program("return F.linear(x, self.a.weight, self.b.bias)", init)
    folding += (
        "    def prepare(self):\n"
        "        self.a.weight.data = (self.b.weight.double() @ self.a.weight.double()).float()\n"
    )
    assert judge(task, folding).status == "correct"
