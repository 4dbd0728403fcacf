"""A native Program from sources to numbers on this machine: baselines, census, tiers, traces, bounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stitchcuda.errors import TaskError
from stitchcuda.evaluation import post_checks
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.model import Evaluation, Tier
from stitchcuda.evaluation.publish import Crowded, Publication
from stitchcuda.evaluation.runner_client import Failure
from stitchcuda.evaluation.session import Session
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.stock_options import StockOptions
from stitchcuda.evaluation.timing import Sample, TimingPlan
from stitchcuda.evaluation.trial import Trial
from stitchcuda.hardware.model import Ceilings
from stitchcuda.program.model import Argument, Launcher, Manifest, Program
from tests.evaluation.conftest import DEVICE, HEAD, QUICK, make_facts, make_task, program

TASK = make_task("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(512))
    def forward(self, x):
        return torch.tanh(x) * torch.sigmoid(x) * self.scale + x * x - 0.5 * x
def get_inputs():
    return [torch.randn(512, 512)]
def get_init_inputs():
    return []
""")

KERNEL = r"""
#include <cmath>
extern "C" int fused(const float* x, const float* scale, float* y, long long rows, long long width, void*) {
    for (long long i = 0; i < rows; ++i)
        for (long long j = 0; j < width; ++j) {
            const float v = x[i * width + j];
            y[i * width + j] = std::tanh(v) / (1.0f + std::exp(-v)) * scale[j] + v * v - 0.5f * v;
        }
    return 0;
}
"""

ENTRY = (
    HEAD
    + """
from bindings import fused

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(512))
    def forward(self, x):
        y = torch.empty_like(x)
        fused(x, self.scale, y, x.shape[0], x.shape[1])
        return y
"""
)

NATIVE = Program(
    files={"program.py": ENTRY, "kernels.cpp": KERNEL},
    manifest=Manifest(
        target="cpu",
        launchers=[
            Launcher(
                name="fused",
                source="kernels.cpp",
                arguments=[
                    Argument(name="x", dtype="float32"),
                    Argument(name="scale", dtype="float32"),
                    Argument(name="y", dtype="float32", role="output"),
                    Argument(name="rows", kind="scalar", dtype="int64"),
                    Argument(name="width", kind="scalar", dtype="int64"),
                ],
            )
        ],
    ),
)

SETTINGS = QUICK.model_copy(
    update={"baselines": True, "trace_program": True, "publish_processes": 2, "publish_calls": 8}
)


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    with Evaluator(TASK, make_facts(), DEVICE, cache=tmp_path_factory.mktemp("cache"), settings=SETTINGS) as opened:
        yield opened


@pytest.fixture(scope="module")
def screened(evaluator: Evaluator) -> Evaluation:
    return evaluator.evaluate(NATIVE)


def test_a_native_program_is_timed_beside_the_stock_options(screened: Evaluation) -> None:
    assert screened.status == "correct", screened.message + screened.log
    assert set(screened.timings) == {"program", "eager", "compile"}
    assert set(screened.speedup) == {"eager", "compile", "over_best"}
    assert screened.speedup["over_best"] == min(screened.speedup["eager"], screened.speedup["compile"])


def test_the_census_knows_the_launchers(screened: Evaluation) -> None:
    assert screened.census is not None
    assert screened.census.label in ("pure", "hybrid")
    assert screened.census.own > 0.5


def test_an_evaluation_says_where_it_comes_from(screened: Evaluation) -> None:
    assert screened.provenance["program"] == NATIVE.digest
    assert len(str(screened.provenance["nonce"])) == 32
    assert screened.provenance["confinement"]
    assert screened.provenance["torch"]


def test_publish_uses_fresh_processes_and_measures_anew(evaluator: Evaluator) -> None:
    evaluation = evaluator.evaluate(NATIVE, "publish")
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.tier == "publish"
    assert evaluation.timings["program"].n >= SETTINGS.publish_calls
    # Where other load held eager up, its calls after the Program's end count instead: no fewer.
    assert evaluation.timings["eager"].n >= SETTINGS.publish_calls


def test_cached_baselines_are_read_back(evaluator: Evaluator) -> None:
    first = evaluator.baselines()
    assert set(first) == {"eager", "compile"}
    assert evaluator.baselines() == first


def test_a_source_that_does_not_compile_is_build_failed(evaluator: Evaluator) -> None:
    broken = Program(files=NATIVE.files | {"kernels.cpp": "int fused( { return 0; }"}, manifest=NATIVE.manifest)
    evaluation = evaluator.evaluate(broken)
    assert evaluation.status == "build_failed"
    assert "error" in evaluation.log
    assert len(evaluation.log) <= 2000


def test_the_reference_can_be_traced(evaluator: Evaluator) -> None:
    trace = evaluator.trace(None)
    assert trace.subject == "reference"
    assert trace.launches >= 5
    assert {row.name for row in trace.rows} >= {"aten::tanh", "aten::mul"}
    assert trace.busy_seconds > 0


def test_faster_than_memory_is_impossible(evaluator: Evaluator) -> None:
    slow = Ceilings(
        copy_bytes_per_second=1e6, flops_per_second={"fp32": 1e9}, measured_on=datetime.now(UTC).isoformat()
    )
    device = DEVICE.model_copy(update={"ceilings": slow, "cache_bytes": 0})
    settings = EvaluationSettings(baselines=False, trace_program=False, screen_calls=5, screen_min_calls=3)
    with Evaluator(TASK, make_facts(), device, cache=evaluator.cache, settings=settings) as opened:
        evaluation = opened.evaluate(NATIVE)
    assert evaluation.status == "impossible"
    assert [f.rule for f in evaluation.findings if f.severity == "reject"] == ["impossible"]


def test_a_task_whose_output_cannot_be_checked_is_refused(evaluator: Evaluator) -> None:
    task = make_task("""
class Model(nn.Module):
    def forward(self, x):
        return object()
def get_inputs():
    return [torch.randn(4)]
def get_init_inputs():
    return []
""")
    with (
        Evaluator(task, make_facts(), DEVICE, cache=evaluator.cache, settings=QUICK) as opened,
        pytest.raises(TaskError, match="cannot be checked"),
    ):
        opened.evaluate(program("class ModelNew(nn.Module): pass"))


def test_stock_options_held_up_by_a_program_are_timed_after_its_end(evaluator: Evaluator) -> None:
    eager = next(session for session in evaluator.stocks.beside() if session.subject.name == "eager")
    evaluator.calls.time([eager], TimingPlan(5, 5, 60))
    trial, plan = Trial(evaluator, NATIVE, "screen"), TimingPlan(20, 20, 60)
    assert post_checks.slowed(trial, [eager], {"eager": scaled(eager, 0.1)}, plan) == {}
    assert trial.findings == []
    slow = scaled(eager, 100)
    counted = post_checks.slowed(trial, [eager], {"eager": slow}, plan)["eager"]
    assert len(counted) == 20 + post_checks.SLOWED_CALLS
    assert evaluator.summarise(counted).median < 0.5 * evaluator.summarise(slow).median
    assert [(finding.rule, finding.severity) for finding in trial.findings] == [("slows_others", "flag")]


FRAGILE = """
import glob
def crowded():
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            if open(path).read().strip() == "greedy-program":
                return True
        except OSError:
            pass
    return False
class Model(nn.Module):
    def forward(self, x):
        if __name__ == "stitchcuda_reference" and ALWAYS:
            raise RuntimeError("there is no room")
        return torch.relu(x)
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""

GREEDY = """
import ctypes
ctypes.CDLL(None).prctl(15, b"greedy-program", 0, 0, 0)
class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""


@pytest.mark.parametrize("tier", ["screen", "publish"])
def test_a_stock_option_that_fails_beside_a_program_is_timed_after_its_end(evaluator: Evaluator, tier: Tier) -> None:
    task = make_task(FRAGILE.replace("ALWAYS", "crowded()"))
    settings = QUICK.model_copy(update={"baselines": True, "publish_calls": 5, "publish_processes": 1})
    with Evaluator(task, make_facts(), DEVICE, cache=evaluator.cache, settings=settings) as opened:
        evaluation = opened.evaluate(program(GREEDY), tier)
    assert evaluation.status == "correct", evaluation.message
    assert {"eager", "compile"} <= evaluation.timings.keys()
    assert [finding.rule for finding in evaluation.findings if finding.rule == "fails_others"]


def test_what_failed_beside_a_program_counts_once_all_are_timed_alone(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Publication._together

    def short(publication: Publication, rounds: Sequence[int]) -> None:
        if rounds[0]:
            raise Crowded
        together(publication, rounds)

    monkeypatch.setattr(Publication, "_together", short)
    task = make_task(FRAGILE.replace("ALWAYS", "crowded()"))
    settings = QUICK.model_copy(update={"baselines": True, "publish_calls": 6, "publish_processes": 2})
    with Evaluator(task, make_facts(), DEVICE, cache=evaluator.cache, settings=settings) as opened:
        evaluation = opened.evaluate(program(GREEDY), "publish")
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.timings.keys() == {"program", "eager", "compile"}
    assert not [name for name in evaluation.provenance if name.startswith("baseline:")]


def test_one_that_fails_alone_too_is_left_out_and_said_to_do_so(evaluator: Evaluator) -> None:
    task = make_task(FRAGILE.replace("ALWAYS", "True"))
    with Evaluator(task, make_facts(), DEVICE, cache=evaluator.cache, settings=QUICK) as opened:
        opened.settings = QUICK.model_copy(update={"baselines": True})
        evaluation = opened.evaluate(program(GREEDY))
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.timings.keys() == {"program"}
    assert "by itself too" in str(evaluation.provenance["baseline:eager"])
    assert not evaluation.findings


def test_the_next_programs_process_gets_ready_while_no_clock_counts(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluator, "spares", lambda self: True)
    with evaluator.gate.hold("clock"):
        evaluator.prepare()
        spare = evaluator._spare
        assert spare is not None
        time.sleep(0.2)
        assert spare.runner is None, "it starts while a clock counts"
    evaluator._warmed()
    assert spare.live.commands == 1
    assert evaluator.program_session() is spare
    evaluator.close_all([spare])


def test_nobody_waits_at_the_end_for_a_process_that_gets_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evaluator, "spares", lambda self: True)
    begun, given_up = threading.Event(), threading.Event()
    real = Session.wake

    def wake(session: Session) -> None:
        begun.set()
        time.sleep(0.5)
        with pytest.raises(Failure):
            real(session)
        given_up.set()

    monkeypatch.setattr(Session, "wake", wake)
    with Evaluator(TASK, make_facts(), DEVICE, cache=tmp_path, settings=SETTINGS) as opened:
        _ = opened.oracle
        opened.prepare()
        assert begun.wait(60)
        assert opened._spare is not None
        runner = opened._spare.live
    assert not runner.alive(), "it outlives its Evaluator"
    assert given_up.is_set()


def scaled(session: Session, factor: float) -> list[tuple[str, Sample]]:
    """A session's samples, were its calls so many times as long."""
    return [(case, replace(sample, wall=factor * sample.wall)) for case, sample in session.samples]


def test_stock_options_are_timed_alone_where_memory_does_not_hold_them(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluator, "room", lambda self, count, programs=0: False)
    monkeypatch.setattr(StockOptions, "names", lambda self: ["eager"])
    evaluator.settings = SETTINGS.model_copy(update={"publish_processes": 1})
    evaluation = evaluator.evaluate(NATIVE, "publish")
    evaluator.settings = SETTINGS
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.provenance["interleaved"] is False
    assert set(evaluation.timings) == {"program", "eager"}


def test_what_an_evaluation_traced_is_not_traced_again(evaluator: Evaluator, screened: Evaluation) -> None:
    assert screened.census is not None
    assert evaluator.trace(NATIVE) is evaluator.trace(NATIVE)


def test_a_stock_option_that_failed_beside_a_program_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StockOptions, "names", lambda self: ["eager"])
    with Evaluator(TASK, make_facts(), DEVICE, cache=tmp_path, settings=SETTINGS) as opened:
        (eager,) = opened.stocks.beside()
        eager.failure = Failure("crashed", "the Program ended it")
        eager.close()
        assert opened.baselines()["eager"].n


def test_a_stock_option_that_fails_is_left_out_and_named(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    warm = StockOptions.warm

    def noted(stocks: StockOptions, session: Session, label: str = "", settled: threading.Event | None = None) -> None:
        started.append(label)
        warm(stocks, session, label, settled)

    monkeypatch.setattr(StockOptions, "warm", noted)
    task = make_task("""
import gc
@torch.compiler.disable
def refuse_compilers():
    if any(type(thing).__name__ == "OptimizedModule" for thing in gc.get_objects()):
        raise ValueError("not under a compiler")
class Model(nn.Module):
    def forward(self, x):
        refuse_compilers()
        return torch.relu(x)
def get_inputs():
    return [torch.randn(8)]
def get_init_inputs():
    return []
""")
    plain = program("class ModelNew(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n")
    settings = SETTINGS.model_copy(update={"publish_processes": 1})
    with Evaluator(task, make_facts(), DEVICE, cache=evaluator.cache, settings=settings) as opened:
        timings = opened.baselines()
        evaluations = [opened.evaluate(plain, "screen"), opened.evaluate(plain, "publish")]
    assert timings["eager"].n
    assert timings["compile"].n == 0
    assert "not under a compiler" in timings["compile"].note
    assert not [label for label in started if label.startswith("alone")], "it is known to fail by itself"
    for evaluation in evaluations:
        assert evaluation.status == "correct", evaluation.message
        assert set(evaluation.speedup) == {"eager", "over_best"}
        assert "not under a compiler" in str(evaluation.provenance["baseline:compile"])
