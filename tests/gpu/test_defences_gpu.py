"""What the defences do on a real GPU: honest CUDA graphs, writes behind the export, memory that runs short, several
input cases, stock options that fail beside a Program."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from stitchcuda.evaluation import exported, wire
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.expectation import Expectation
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.stock_options import StockOptions
from stitchcuda.hardware.detect import detect
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task
from tests.evaluation.conftest import HEAD, program
from tests.evaluation.test_defences import INTO_THE_BUFFER, SLOW
from tests.evaluation.test_evaluator import FRAGILE, GREEDY
from tests.gpu.test_evaluation_gpu import HONEST, KERNEL, MANIFEST, SOURCE, facts, python, show

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

ALONE = EvaluationSettings(static_rules=False, baselines=False)
"""Without stock options."""

GRAPH = """
import torch
from torch import nn
from bindings import launch_finish

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.graphs = {}
    def compute(self, x):
        y = self.linear(x)
        out = torch.empty_like(y)
        launch_finish(y, out, y.numel())
        return out
    def capture(self, x):
        given, side = x.clone(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.compute(given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = self.compute(given)
        self.graphs[x.shape] = graph, given, result
    def forward(self, x):
        if x.shape not in self.graphs:
            self.capture(x)
        graph, given, result = self.graphs[x.shape]
        given.copy_(x)
        graph.replay()
        return result.clone()
"""

CASES = """
def get_input_cases():
    return [("few", 1.0, [torch.randn(64, 1024)]), ("many", 1.0, [torch.randn(512, 1024)])]
"""


def on_gpu(source: str) -> Task:
    """A task from source text for the device of this machine."""
    return Task(name="defended", origin="test", source=source, target=detect("cuda").target)


@contextlib.contextmanager
def opened(source: str, cache: Path, settings: EvaluationSettings = ALONE) -> Iterator[Evaluator]:
    """An Evaluator of a small task."""
    task = on_gpu(source)
    with Evaluator(task, facts(task), detect("cuda"), cache=cache, settings=settings) as evaluator:
        yield evaluator


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """The device gives this process no more than a few small tensors."""
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (4 << 20)) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_launchers_that_a_graph_captured_once_are_no_kernels_for_show(tmp_path: Path) -> None:
    with opened(SOURCE, tmp_path) as evaluator:
        evaluation = evaluator.evaluate(Program(files={"program.py": GRAPH, "kernels.cu": KERNEL}, manifest=MANIFEST))
    show(evaluation)
    assert evaluation.status == "correct", evaluation.message + evaluation.log
    assert "traced_only" not in [finding.rule for finding in evaluation.findings]
    assert evaluation.census is not None
    assert evaluation.census.own > 0


def test_what_a_thread_writes_after_the_export_is_not_judged(tmp_path: Path) -> None:
    """The answer comes into the shared device buffer after the export, before the reference's is known."""
    settings = ALONE.model_copy(update={"late_share": 0.0, "held_outputs": 0})
    with opened(SLOW.source, tmp_path, settings) as evaluator:
        evaluation = evaluator.evaluate(program(INTO_THE_BUFFER))
    show(evaluation)
    assert evaluation.status == "wrong_output", evaluation.message
    assert "all zeros" in evaluation.message


def test_every_input_case_is_checked_and_timed(tmp_path: Path) -> None:
    with opened(SOURCE + CASES, tmp_path) as evaluator:
        right = evaluator.evaluate(python(HONEST))
        wrong = evaluator.evaluate(python(f"if x.shape[0] == 64: return torch.zeros_like(x)\n{HONEST}"))
    show(right)
    assert right.status == "correct", right.message
    assert right.timings["program"].n >= 2 * ALONE.screen_min_calls
    assert wrong.status == "wrong_output", wrong.message


def test_a_stock_option_that_fails_beside_a_program_in_a_publish_is_timed_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StockOptions, "names", lambda self: ["eager", "compile"])
    changes = {"baselines": True, "publish_processes": 1, "publish_calls": 8, "sanitizer": False}
    source = HEAD + FRAGILE.replace("ALWAYS", "crowded()")
    with opened(source, tmp_path, ALONE.model_copy(update=changes)) as evaluator:
        evaluation = evaluator.evaluate(program(GREEDY), "publish")
    show(evaluation)
    assert evaluation.status == "correct", evaluation.message
    assert {"program", "eager", "compile"} <= evaluation.timings.keys()
    assert "fails_others" in [finding.rule for finding in evaluation.findings]


def frozen(session: exported.Session) -> torch.Tensor:
    """The copy of what was exported."""
    session.freeze()
    assert session.exported is not None
    return session.exported.data


def test_outputs_are_copied_to_the_host_where_the_device_has_no_room() -> None:
    arena = wire.Arena(setup=4096, structure=4096, report=4096, inputs=0, outputs=0, state=0)
    memory = mmap.mmap(-1, arena.total)
    live = torch.randint(0, 256, (64 << 20,), dtype=torch.uint8, device="cuda")
    session = exported.Session(arena, memory, memoryview(memory), {"outputs": live})
    assert frozen(session).is_cuda
    session.exported = None
    with no_room():
        kept = frozen(session)
        assert kept.device.type == "cpu"
        # The comparison needs no room on the device either.
        assert exported.same_bytes(kept, live)
        live[-1] ^= 1
        assert not exported.same_bytes(kept, live)


def test_a_timed_check_without_room_for_fp64_leaves_the_first_checks_where_they_were() -> None:
    task = SimpleNamespace(**on_gpu(SOURCE.replace("512, 1024", "8192, 1024")).model_dump())
    task.target = SimpleNamespace(**task.target)
    expectation = Expectation(task, True, False, False)
    expectation.observe()
    expectation.renew(b"nonce")
    inputs = expectation.inputs(b"nonce", "call", None)
    for _ in range(2):  # the first builds the model in fp64, too
        assert expectation.exact(inputs) is not None
    quick = [expectation.exact_at_once]
    assert quick[0], f"{expectation.exact_seconds} s"
    assert expectation.exact_or_none(inputs) is not None
    with no_room():
        assert expectation.exact_or_none(inputs) is None
    assert (expectation.exact_device, expectation.exact_pieces, expectation.exact_note) == ("cuda", 1, "fp64")
    quick.append(expectation.exact_at_once)
    for _ in range(2):
        assert expectation.exact(inputs) is not None
    assert expectation.exact_note == "fp64"
    expectation.renew(b"another")
    quick.append(expectation.exact_at_once)
    assert quick == [True, False, True]
