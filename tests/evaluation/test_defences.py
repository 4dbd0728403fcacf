"""What a Program finds around its calls, and what becomes of one that works outside of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stitchcuda.evaluation import post_checks
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.integrity.inspect import inspect_program
from stitchcuda.program.model import Argument, Launcher, Manifest, Program
from tests.evaluation.conftest import DEVICE, HEAD, QUICK, Judge, make_facts, make_task

TASK = make_task("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(64) + 0.5)
    def forward(self, x):
        return torch.relu(x) * self.scale
def get_inputs():
    return [torch.randn(256, 64)]
def get_init_inputs():
    return []
""")

TASK_OF_ITEMS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(64) + 0.5)
    def forward(self, x):
        return [torch.relu(x) * self.scale]
def get_inputs():
    return [torch.randn(256, 64)]
def get_init_inputs():
    return []
"""

MODULE = """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(64) + 0.5)
"""


def forward(body: str, before: str = "") -> str:
    """A Program whose forward runs ``body`` and then answers rightly."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return f"{before}{MODULE}    def forward(self, x):\n{lines}        return torch.relu(x) * self.scale\n"


def test_the_same_address_gets_new_contents_and_others_are_used_too(judge: Judge) -> None:
    body = """
self.seen = getattr(self, "seen", [])
self.seen.append(x.data_ptr())
if len(self.seen) == 9:
    pairs = list(zip(self.seen, self.seen[1:]))
    assert any(a == b for a, b in pairs) and any(a != b for a, b in pairs), self.seen"""
    settings = QUICK.model_copy(update={"reused_share": 0.5, "screen_calls": 30, "screen_min_calls": 30})
    evaluation = judge(TASK, forward(body), settings=settings)
    assert evaluation.status == "correct", evaluation.message


def test_a_cache_by_address_and_version_is_wrong(judge: Judge) -> None:
    body = """
key = (x.data_ptr(), x._version)
self.kept = getattr(self, "kept", {})
if key not in self.kept:
    self.kept[key] = torch.relu(x) * self.scale
return self.kept[key].clone()"""
    assert judge(TASK, forward(body)).status == "wrong_output"


def test_fresh_memory_is_neither_zero_nor_an_answer(judge: Judge) -> None:
    body = "y = torch.empty_like(x)\nreturn torch.relu(x) * self.scale + y * 0.5"
    assert judge(TASK, forward(body)).status == "wrong_output"


def test_reading_behind_an_input_gives_nan(judge: Judge) -> None:
    body = """
more = torch.empty(0).set_(x.untyped_storage(), x.numel(), (1,), (1,))
return torch.relu(x) * self.scale + 0 * more"""
    evaluation = judge(TASK, forward(body))
    assert evaluation.status == "wrong_output", evaluation.message
    assert "nan" in evaluation.message.lower()


def test_an_output_written_after_the_call_is_found(judge: Judge) -> None:
    body = """
import threading, time
y = torch.relu(x) * self.scale
threading.Thread(target=lambda: (time.sleep(0.003), y.add_(1))).start()
return y"""
    settings = QUICK.model_copy(update={"late_seconds": 0.02, "late_share": 1.0, "exhaustive": True, "held_outputs": 0})
    evaluation = judge(TASK, forward(body), settings=settings)
    assert evaluation.status in ("wrong_output", "dishonest")
    assert "late_write" in [finding.rule for finding in evaluation.findings]


SLOW = make_task("""
import time
class Model(nn.Module):
    def forward(self, x):
        time.sleep(0.03)
        return torch.relu(x)
def get_inputs():
    return [torch.randn(256, 64)]
def get_init_inputs():
    return []
""")

INTO_THE_BUFFER = """
import sys, threading, time
runner = sys.modules["stitchcuda_runner"].Runner
plain = runner.export
def export(self, outputs, with_state):
    plain(self, outputs, with_state)
    shared = self.data["outputs"][: outputs.numel() * 4].view(torch.float32)
    answer = torch.relu(self.inputs.values[0]).reshape(-1)
    threading.Thread(target=lambda: (time.sleep(0.01), shared.copy_(answer))).start()
runner.export = export
class ModelNew(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)
"""


def test_what_is_written_while_the_oracle_computes_is_not_judged(judge: Judge) -> None:
    """The answer comes into the shared buffer after the export, before the reference's is known."""
    settings = QUICK.model_copy(update={"late_share": 0.0, "held_outputs": 0})
    evaluation = judge(SLOW, INTO_THE_BUFFER, settings=settings)
    assert evaluation.status == "wrong_output", evaluation.message
    assert "all zeros" in evaluation.message


DEFERRED = """
import sys
def slow(tensor):
    for _ in range(200):
        tensor = tensor + torch.randn(256, 256).sum() * 0
    return tensor
"""


def test_work_put_off_until_the_export_is_found(judge: Judge) -> None:
    """The Program replaces the runner's own export, so that nothing in its process is left to tell."""
    before = (
        DEFERRED
        + """
runner = sys.modules["stitchcuda_runner"].Runner
plain = runner.export
def export(self, outputs, with_state):
    plain(self, slow(outputs), with_state)
runner.export = export
"""
    )
    evaluation = judge(TASK, forward("pass", before), settings=QUICK.model_copy(update={"exhaustive": True}))
    assert evaluation.status == "dishonest"
    assert {"work_outside_call"} <= {f.rule for f in evaluation.findings if f.layer == "clocks"}


def test_a_runner_that_sleeps_before_the_export_is_found(judge: Judge) -> None:
    """Whom it waits for may be gone when processes are counted; it has something to do itself, and does not."""
    before = """
import sys, time
runner = sys.modules["stitchcuda_runner"].Runner
plain = runner.export
def export(self, *arguments):
    time.sleep(0.02)
    plain(self, *arguments)
runner.export = export
"""
    evaluation = judge(TASK, forward("pass", before))
    assert evaluation.status == "dishonest", evaluation.message
    assert [finding.rule for finding in evaluation.findings] == ["work_outside_call"]


def test_a_clock_that_is_replaced_for_timed_calls_alone_is_told(judge: Judge) -> None:
    before = "import time\nown = time.perf_counter_ns\n"
    body = "time.perf_counter_ns = own if torch.empty(64, dtype=torch.uint8)[7] == 0x7F else lambda: own()"
    evaluation = judge(TASK, forward(body, before))
    assert evaluation.status == "dishonest", evaluation.message
    assert [finding.rule for finding in evaluation.findings] == ["patched"]


def test_a_buffer_that_is_reused_after_the_first_calls_is_found(judge: Judge) -> None:
    body = """
self.made = getattr(self, "made", [])
if len(self.made) < 6:
    self.made.append(torch.empty_like(x))
return self.made[-1].copy_(torch.relu(x) * self.scale)"""
    evaluation = judge(TASK, forward(body))
    assert evaluation.status == "wrong_output", evaluation.message
    assert "outlive later calls" in evaluation.message


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("y = torch.relu(x) * self.scale\ny.detach = lambda: y.data\nreturn y", "lazy_output"),
        ("return torch._neg_view(torch.relu(x) * -self.scale)", "lazy_output"),
        ("import sys; sys.setprofile(lambda *_: None)", "lazy_output"),
        ("import gc; gc.callbacks.append(lambda *_: None)", "work_outside_call"),
        ("import signal; signal.setitimer(signal.ITIMER_REAL, 99)", "work_outside_call"),
        ("import threading; threading.Timer(0.2, int).start()", "work_outside_call"),
        ("torch.Tensor.detach = lambda t: t.data", "patched"),
        ("self.scale.data.neg_(); return torch.relu(x) * self.scale.abs()", "weight_mutation"),
        ("import os, time; os.fork() or time.sleep(60)", "child_process"),
    ],
)
def test_tricks_in_python_are_told(judge: Judge, body: str, rule: str) -> None:
    evaluation = judge(TASK, forward(body))
    assert evaluation.status == "dishonest", evaluation.message
    assert rule in [finding.rule for finding in evaluation.findings]


PRETENDER = """
answer = torch.relu(x) * self.scale
def late(kind, function, types, args=(), kwargs=None):
    with torch._C.DisableTorchFunctionSubclass():
        return function(*args, **(kwargs or {}))
made = {"__module__": "torch", "__torch_function__": classmethod(late)}
return answer.as_subclass(type("Tensor", (torch.Tensor,), made))"""


def test_a_class_of_tensors_named_like_torchs_is_refused(judge: Judge) -> None:
    evaluation = judge(TASK, forward(PRETENDER.strip()))
    assert evaluation.status == "wrong_output", evaluation.message
    assert "has type torch.Tensor subclass, expected torch.Tensor" in evaluation.message


LEFT_OUT = """
import sys, types
layout = sys.modules['stitchcuda_layout']
if not hasattr(layout, 'whole'):
    layout.whole = types.FunctionType(layout.pack.__code__, vars(layout))
    def pack(value, into, *, keep_strides):
        made = whole(value, into, keep_strides=keep_strides)
        made['tensors'][0]['offset'] = -1
        return made
    layout.pack.__code__ = pack.__code__
return torch.zeros_like(x)"""


def test_outputs_that_are_left_out_of_an_export_are_not_right(judge: Judge) -> None:
    evaluation = judge(TASK, forward(LEFT_OUT.strip()))
    assert evaluation.status == "wrong_output", evaluation.message
    assert "left out" in evaluation.message


CONTAINER = """
class Items(list):
    def __iter__(self):
        return iter([torch.relu(self[0]) * self.scale])
"""


def test_what_a_container_does_when_it_is_gone_through_is_no_answer(judge: Judge) -> None:
    body = "items = Items([x]); items.scale = self.scale; return items"
    source = forward(body, CONTAINER)
    evaluation = judge(make_task(TASK_OF_ITEMS), source)
    assert evaluation.status == "wrong_output", evaluation.message


KERNEL = """
extern "C" int scaled(const float* x, const float* s, float* y, long long rows, long long width, void*) {
    for (long long i = 0; i < rows * width; ++i) y[i] = (x[i] > 0 ? x[i] : 0) * s[i % width];
    return RESULT;
}
"""

ARGUMENTS = [
    Argument(name="x", dtype="float32"),
    Argument(name="s", dtype="float32"),
    Argument(name="y", dtype="float32", role="output"),
    Argument(name="rows", kind="scalar", dtype="int64"),
    Argument(name="width", kind="scalar", dtype="int64"),
]


def native(body: str, result: str = "0") -> Program:
    """A Program with one kernel; ``body`` computes y."""
    entry = HEAD + "from bindings import scaled\n" + MODULE + "    def forward(self, x):\n"
    entry += "".join(f"        {line}\n" for line in ["y = torch.empty_like(x)", *body.splitlines(), "return y"])
    launcher = Launcher(name="scaled", source="kernels.cpp", arguments=ARGUMENTS)
    files = {"program.py": entry, "kernels.cpp": KERNEL.replace("RESULT", result)}
    return Program(files=files, manifest=Manifest(target="cpu", launchers=[launcher]))


CALL = "scaled(x, self.scale, y, x.shape[0], x.shape[1])"
STOCK = "y = torch.relu(x) * self.scale"


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    settings = QUICK.model_copy(update={"trace_program": True})
    cache = tmp_path_factory.mktemp("native")
    with Evaluator(TASK, make_facts(), DEVICE, cache=cache, settings=settings) as opened:
        yield opened


@pytest.mark.parametrize(
    ("body", "result", "rules"),
    [
        (CALL, "0", []),
        (STOCK, "0", ["decoy_kernel", "decoy"]),
        (f"{CALL.replace('x.shape[0]', '1')}\n{STOCK}", "0", ["decoy"]),
        (f"try:\n    {CALL}\nexcept RuntimeError:\n    {STOCK}", "3", ["kernel_fails"]),
    ],
    ids=["honest", "never-launched", "thrown-away", "falls-back"],
)
def test_kernels_for_show_are_found(evaluator: Evaluator, body: str, result: str, rules: list[str]) -> None:
    evaluation = evaluator.evaluate(native(body, result))
    assert evaluation.status == ("dishonest" if rules else "correct"), evaluation.message
    seen = [finding.rule for finding in evaluation.findings]
    assert set(rules) <= set(seen)
    assert rules or not seen


SHY = "if torch.autograd._profiler_enabled(): raise RuntimeError"


@pytest.mark.parametrize("look", [SHY, "from bindings import PROFILE"])
def test_who_looks_for_the_profiler_is_refused(look: str) -> None:
    findings = inspect_program(native(f"{look}\n{CALL}"), TASK.target, "fp32")
    assert [(found.rule, found.severity) for found in findings] == [("replaces_measuring", "reject")]


@pytest.mark.parametrize(
    ("body", "result", "status", "rules"),
    [
        (CALL, "0", "correct", ["no_trace"]),
        (STOCK, "0", "dishonest", ["no_trace", "decoy"]),
        (f"try:\n    {CALL}\nexcept RuntimeError:\n    {STOCK}", "3", "dishonest", ["no_trace", "kernel_fails"]),
    ],
    ids=["honest", "never-launched", "falls-back"],
)
def test_kernels_for_show_are_found_without_a_trace_too(
    evaluator: Evaluator, body: str, result: str, status: str, rules: list[str]
) -> None:
    evaluation = evaluator.evaluate(native(f"{SHY}\n{body}", result))
    assert (evaluation.status, [finding.rule for finding in evaluation.findings]) == (status, rules)


AFTER_A_PAUSE = f"""
import time
idle, self.ended = time.monotonic() - getattr(self, "ended", 0.0), 0.0
if idle > 0.4 or torch.autograd._profiler_enabled():
    {CALL}
else:
    {STOCK}
self.ended = time.monotonic()
""".strip()

WATCHFUL = f"""
import bindings
kind, self.kind = type(bindings._c_scaled), getattr(self, "kind", type(bindings._c_scaled))
if kind is not self.kind and not torch.autograd._profiler_enabled():
    raise RuntimeError("somebody counts")
{CALL}
""".strip()


def test_launches_after_a_pause_are_no_excuse(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_checks, "LEAST_PAUSE_S", {"cpu": 0.5, "cuda": 0.5})
    before, evaluator.settings = evaluator.settings, evaluator.settings.model_copy(update={"exhaustive": True})
    evaluation = evaluator.evaluate(native(AFTER_A_PAUSE))
    evaluator.settings = before
    assert "traced_only" in [finding.rule for finding in evaluation.findings], evaluation.message


def test_a_program_sees_no_difference_where_its_launches_are_counted(evaluator: Evaluator) -> None:
    evaluation = evaluator.evaluate(native(WATCHFUL))
    assert evaluation.status == "correct", evaluation.message


SPOILT = {
    "none": "plain(view, arena, region, '[]')",
    "length": "at, _ = arena.offsets[region]; view[at : at + 8] = bytes([255]) * 8",
    "number": "plain(view, arena, region, '{\"rows\": [], \"launches\": 1, \"wall_seconds\": 1' + '0' * 4000 + '}')",
}


@pytest.mark.parametrize("spoilt", SPOILT.values(), ids=SPOILT)
def test_a_trace_that_cannot_be_read_is_told(judge: Judge, spoilt: str) -> None:
    before = f"""
import sys
wire = sys.modules["stitchcuda_wire"]
plain = wire.put_text
def put(view, arena, region, text):
    {spoilt}
"""
    body = "if torch.autograd._profiler_enabled(): wire.put_text = put"
    evaluation = judge(TASK, forward(body, before), settings=QUICK.model_copy(update={"trace_program": True}))
    assert evaluation.census is None
    assert "no_trace" in [finding.rule for finding in evaluation.findings]
