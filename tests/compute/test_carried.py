"""A sweep for a GPU that only a carried spool leads to: its orchestrator learns from there what the device is, writes
for it, and takes every number from there."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from stitchcuda.benchmark.governor import Governor
from stitchcuda.benchmark.measuring import Place
from stitchcuda.benchmark.model import SweepConfig
from stitchcuda.benchmark.score import score_item
from stitchcuda.benchmark.sweep import start
from stitchcuda.compute.model import Job, Outcome
from stitchcuda.compute.spool_bundle import pack, unpack
from stitchcuda.compute.spool_folder import SpoolFolder
from stitchcuda.evaluation.model import Evaluation, Timing
from stitchcuda.hardware.model import Ceilings, Device
from stitchcuda.profiling.model import Profile, Timeline
from stitchcuda.task.model import Target, TaskFacts, TensorFacts
from stitchcuda.workflow.bench import shared_compute

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.{}(torch.relu(x) * 2 + 1) * x

def get_inputs():
    return [torch.randn(4096, 4096)]

def get_init_inputs():
    return []
"""

GPU = Device(
    target=Target(kind="cuda", arch="sm_90"),
    name="NVIDIA H200",
    multiprocessors=132,
    memory_bytes=139 << 30,
    cache_bytes=60 << 20,
    shared_memory_per_block=227 << 10,
    ceilings=Ceilings(copy_bytes_per_second=4.3e12, flops_per_second={"fp32": 5.2e13}, measured_on="2026-01-01"),
)
X = TensorFacts(shape=(4096, 4096), dtype="float32")
FACTS = TaskFacts(
    inputs=[X],
    outputs=[X],
    parameters=0,
    stochastic=False,
    seedable=False,
    training=True,
    mutates_state=False,
    eager_seconds=1e-4,
)


def took(seconds: float) -> Timing:
    return Timing(median=seconds, p10=seconds, p90=seconds, n=20)


def answer(job: Job) -> Outcome:
    """As the machine with the GPU would, which is not here: the words are real, the numbers are made up."""
    said = Outcome(job=job.id, kind=job.kind, device=GPU, run_seconds=1.0)
    match job.kind:
        case "ceilings":
            return said
        case "inspect":
            return said.model_copy(update={"facts": FACTS})
        case "baselines":
            return said.model_copy(update={"baselines": {"eager": took(1e-4), "compile": took(6e-5)}})
        case "profile":
            timeline = Timeline(wall_seconds=1e-4, busy_seconds=9e-5, gap_seconds=1e-5, copy_seconds=0, launches=5)
            profile = Profile(
                subject="program" if job.program else "reference",
                source="kineto",
                timeline=timeline,
                kernels=[],
                bottleneck="memory_bound",
                evidence="five passes over 64 MiB",
            )
            return said.model_copy(update={"profile": profile})
    timings = {"program": took(4e-5), "eager": took(1e-4), "compile": took(6e-5)}
    evaluation = Evaluation(
        status="correct",
        message="all outputs are right",
        tier=job.tier,
        precision="fp32",
        timings=timings,
        speedup={"eager": 2.5, "compile": 1.5, "over_best": 1.5},
        provenance={"device": GPU.name},
    )
    return said.model_copy(update={"evaluation": evaluation})


class Carrier(threading.Thread):
    """Carries jobs to where the GPU is, and results back, until it is told to stop."""

    def __init__(self, here: Path, folder: Path) -> None:
        super().__init__(daemon=True)
        self.here, self.away, self.bundle = here, SpoolFolder(folder / "away"), folder / "bundle.tar.gz"
        self.seen: list[Job] = []
        self.stop = threading.Event()

    def run(self) -> None:
        here = SpoolFolder(self.here)
        while not self.stop.wait(0.05):
            if not pack(here, self.bundle, results=False)[0]:
                continue
            unpack(self.bundle, self.away)
            for entry in self.away.listed("jobs"):
                assert entry.suits(GPU)
                claim = self.away.claim(entry, "there")
                assert claim is not None
                job = self.away.read(claim)
                self.seen.append(job)
                self.away.finish(answer(job), claim)
            pack(self.away, self.bundle)
            unpack(self.bundle, here)


@pytest.mark.timeout(300)
def test_a_sweep_for_a_gpu_needs_none_where_it_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks").mkdir()
    for name in ("tanh", "sigmoid"):
        (tmp_path / "tasks" / f"{name}.py").write_text(SOURCE.format(name))
    monkeypatch.chdir(tmp_path)
    where = {"compute": "spool:spool", "target": "cuda", "jobs": 2}
    config = SweepConfig.checked(suite="folder", folder=str(tmp_path / "tasks"), **where)
    carrier = Carrier(tmp_path / "spool", tmp_path)
    carrier.start()
    sweep = start(config, tmp_path / "sweep", tell=lambda line: None)
    carrier.stop.set()
    carrier.join()
    assert [(record.task, record.status) for record in sweep.records] == [("sigmoid", "correct"), ("tanh", "correct")]
    assert {record.provenance["device"] for record in sweep.records} == {"NVIDIA H200"}
    assert {record.provenance["target"] for record in sweep.records} == {"sm_90"}
    kinds = Counter(job.kind for job in carrier.seen)
    assert kinds["ceilings"] == 1, "what the device is, is asked once"
    assert len({job.id for job in carrier.seen}) == len(carrier.seen), "nothing is measured twice"
    measured = [job for job in carrier.seen if job.kind == "evaluate"]
    assert {job.wanted.name for job in measured} == {"NVIDIA H200"}
    assert all(job.device == GPU for job in measured), "with its ceilings"
    for job in measured:
        assert job.program is not None
        assert job.program.manifest is not None
        assert any(name.endswith(".cu") for name in job.program.files)


@pytest.mark.timeout(300)
def test_a_score_that_died_finds_on_the_spool_what_was_done_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("tasks", "programs", "sweep"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tasks" / "tanh.py").write_text(SOURCE.format("tanh"))
    (tmp_path / "programs" / "tanh.py").write_text(SOURCE.format("tanh").replace("Model(", "ModelNew("))
    monkeypatch.chdir(tmp_path)
    folders = {"folder": str(tmp_path / "tasks"), "programs": str(tmp_path / "programs")}
    config = SweepConfig.checked(suite="score", compute="spool:spool", target="cuda", **folders)
    carrier = Carrier(tmp_path / "spool", tmp_path)
    carrier.start()
    first = start(config, tmp_path / "sweep", tell=lambda line: None)
    measured = [job.id for job in carrier.seen if job.kind != "ceilings"]
    (item,) = first.items
    with Place(config, Governor()) as place:
        again = score_item(item, config, tmp_path / "sweep", measuring=place)
    carrier.stop.set()
    carrier.join()
    assert again.status == first.records[0].status == "correct"
    assert [job.id for job in carrier.seen if job.kind != "ceilings"] == measured


def test_a_spool_is_one_place_however_its_folder_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with shared_compute("spool:spool") as one, shared_compute(f"spool:{tmp_path / 'spool'}") as two:
        assert one is two
