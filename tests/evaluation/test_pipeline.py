"""Programs of several tasks on one device at once: every verdict as alone, no clock beside another's work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation.device_gate import Gate
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.evaluation.pipeline import AHEAD, Done, Job, Pipeline, memory_need, short_of_memory
from stitchcuda.evaluation.pipeline_chart import chart, overlap, shares
from stitchcuda.program.model import Argument, Launcher, Manifest, Program
from stitchcuda.task.model import Task, TensorFacts
from tests.evaluation.conftest import DEVICE, HEAD, QUICK, make_facts, make_task, program

TASK = """
class Model(nn.Module):
    def forward(self, x):
        return {}
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""
RELU, DOUBLE = (make_task(TASK.format(body)) for body in ("torch.relu(x)", "x + x"))
SOURCE = """
extern "C" int {name}(const float* x, float* y, long n, void*) {{
  for (long i = 0; i < n; ++i) y[i] = {body};
  return 0;
}}
"""


def native(name: str, body: str) -> Program:
    """A Program of one C++ function."""
    entry = HEAD + (
        f"from bindings import {name}\n"
        "class ModelNew(nn.Module):\n    def forward(self, x):\n        y = torch.empty_like(x)\n"
        f"        {name}(x, y, x.numel())\n        return y\n"
    )
    arguments = [
        Argument(name="x", dtype="float32"),
        Argument(name="y", dtype="float32", role="output"),
        Argument(name="n", kind="scalar", dtype="int64"),
    ]
    launcher = Launcher(name=name, source="k.cpp", arguments=arguments)
    files = {"program.py": entry, "k.cpp": SOURCE.format(name=name, body=body)}
    return Program(files=files, manifest=Manifest(target="cpu", launchers=[launcher]))


def job(name: str, task: Task, what: Program) -> Job:
    return Job(name, task, make_facts(), what)


def python(body: str) -> Program:
    return program(f"class ModelNew(nn.Module):\n    def forward(self, x):\n        return {body}\n")


EXPECTED = {
    "relu native": ("correct", job("relu native", RELU, native("relu", "x[i] > 0 ? x[i] : 0"))),
    "double native": ("correct", job("double native", DOUBLE, native("twice", "2 * x[i]"))),
    "relu wrong": ("wrong_output", job("relu wrong", RELU, native("relu", "x[i]"))),
    "double unbuilt": ("build_failed", job("double unbuilt", DOUBLE, native("twice", "nonsense"))),
    "relu crashed": ("crashed", job("relu crashed", RELU, python("1 / 0"))),
    "double python": ("correct", job("double python", DOUBLE, python("2 * x"))),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pipeline, dict[str, Done]]]:
    """All the Programs above through one pipeline."""
    folder = tmp_path_factory.mktemp("pipeline")
    with Pipeline(DEVICE, cache=folder, settings=QUICK, lanes=2, gate=Gate(folder / "device.lock")) as pipeline:
        yield pipeline, {done.job.name: done for done in pipeline.evaluate_many(each for _, each in EXPECTED.values())}


def test_every_program_gets_the_verdict_that_it_gets_alone(run: tuple[Pipeline, dict[str, Done]]) -> None:
    _, done = run
    told = {name: (each.evaluation.status, each.evaluation.message) for name, each in done.items()}
    assert {name: status for name, (status, _) in told.items()} == {n: s for n, (s, _) in EXPECTED.items()}, told


def test_while_a_clock_counts_nothing_else_holds_the_device(run: tuple[Pipeline, dict[str, Done]]) -> None:
    pipeline, _ = run
    spans = list(pipeline.gate.spans)
    clocks = [(span.begin, span.end) for span in spans if span.hold == "clock"]
    others = [(span.begin, span.end) for span in spans if span.hold != "clock"]
    assert len(clocks) >= 3
    assert overlap(clocks, others) < 1e-6
    assert sum(end - begin for begin, end in clocks) == pytest.approx(overlap(clocks, clocks), abs=1e-6)


def test_a_program_that_does_not_build_takes_no_process(run: tuple[Pipeline, dict[str, Done]]) -> None:
    _, done = run
    held = {span.hold for span in done["double unbuilt"].spans}
    assert held <= {"start"}  # the compiler's own, on cpu
    assert done["double unbuilt"].ended - done["double unbuilt"].built[1] < 5


def test_the_chart_shows_each_program_and_the_shares_add_up(run: tuple[Pipeline, dict[str, Done]]) -> None:
    pipeline, done = run
    text = chart(list(done.values()))
    assert all(name in text for name in EXPECTED)
    assert "C" in text.split("\n", 1)[1]
    begin, end = min(d.queued for d in done.values()), max(d.ended for d in done.values())
    parts = shares(list(pipeline.gate.spans), begin, end)
    assert sum(parts.values()) == pytest.approx(1)
    assert all(-1e-6 <= part <= 1 for part in parts.values())


def test_jobs_are_read_no_further_ahead_than_needed(run: tuple[Pipeline, dict[str, Done]]) -> None:
    pipeline, _ = run
    read = 0

    def jobs() -> Iterator[Job]:
        nonlocal read
        while True:
            read += 1
            yield job(f"{read}", RELU, Program(files={"other.py": ""}))

    results = pipeline.evaluate_many(jobs())
    assert {next(results).evaluation.status for _ in range(3)} == {"build_failed"}
    assert read <= 2 * AHEAD + 3


def test_the_next_process_is_started_while_no_clock_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evaluator, "spares", lambda self: True)
    gate = Gate(tmp_path / "device.lock")
    programs = [python(f"torch.relu(x) + 0 * {number}") for number in range(3)]
    with Pipeline(DEVICE, cache=tmp_path, settings=QUICK, lanes=2, gate=gate) as pipeline:
        jobs = [job(f"{number}", RELU, each) for number, each in enumerate(programs)]
        done = [waited.result() for waited in [pipeline.submit(each) for each in jobs]]
        assert all(seat.evaluator._spare is not None for seat in pipeline._seats)
        list(pipeline.evaluate_many(jobs[:1]))
        assert any(seat.evaluator._spare is None for seat in pipeline._seats), "nothing comes after the last"
    assert [each.evaluation.status for each in done] == ["correct"] * 3, [each.evaluation.message for each in done]
    clocks = [(span.begin, span.end) for span in gate.spans if span.hold == "clock"]
    starts = [(span.begin, span.end) for span in gate.spans if span.hold == "start"]
    assert overlap(clocks, starts) < 1e-6


def test_a_closed_pipeline_drops_what_waits(tmp_path: Path) -> None:
    pipeline = Pipeline(DEVICE, cache=tmp_path, settings=QUICK, lanes=1, gate=Gate(None))
    pipeline.close()
    with pytest.raises(InfrastructureError, match="was closed"):
        pipeline.submit(EXPECTED["double python"][1]).result()


def test_an_error_of_the_user_ends_what_runs_at_once(tmp_path: Path) -> None:
    endless = python("[x for _ in iter(int, 1)] and x")
    settings = QUICK.model_copy(update={"call_timeout_s": 600.0})
    pipeline = Pipeline(DEVICE, cache=tmp_path, settings=settings, lanes=1, gate=Gate(None))
    running = pipeline.submit(job("endless", RELU, endless))
    waiting = pipeline.submit(job("waits", RELU, python("torch.relu(x)")))
    deadline = time.monotonic() + 60
    while not any(seat.evaluator.sessions for seat in pipeline._seats) and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(KeyError), pipeline:
        raise KeyError
    assert running.result(timeout=60).evaluation.status != "correct"
    with pytest.raises(InfrastructureError, match="was closed"):
        waiting.result(timeout=60)


def test_what_a_task_needs_grows_with_its_tensors() -> None:
    large = make_facts(inputs=[TensorFacts(shape=(1 << 20,), dtype="float16")], outputs=[])
    small = make_facts()
    assert memory_need(RELU, large) - memory_need(RELU, small) == 8 << 21


@pytest.mark.parametrize(
    ("status", "message", "short"),
    [
        ("out_of_memory", "a call ran out of memory", True),
        ("infrastructure_error", "the machine ran out of memory for the reference", True),
        ("infrastructure_error", "the disk is full", False),
        ("crashed", "memory", False),
    ],
)
def test_only_a_want_of_memory_is_tried_again_alone(status: str, message: str, short: bool) -> None:
    evaluation = Evaluation.model_validate(
        {"status": status, "message": message, "tier": "screen", "precision": "fp32"}
    )
    assert short_of_memory(evaluation) == short
