"""Evaluations, profiles and marks that the tests of this room start from."""

from __future__ import annotations

from typing import Literal

from stitchcuda.evaluation.model import Census, Correctness, Evaluation, Finding, SpeedOfLight, Status, Timing
from stitchcuda.profiling.model import Bottleneck, KernelTime, Profile, Timeline
from stitchcuda.reward.model import DIMENSIONS, Mark, RubricScore, Skill

Origin = Literal["own", "library", "framework", "copy"]


def timing(median: float, spread: float | None = None) -> Timing:
    """A Timing of so many seconds; ``spread`` is the half width of its interval as a share of the median."""
    low, high = (None, None) if spread is None else (median * (1 - spread), median * (1 + spread))
    return Timing(median=median, p10=median, p90=median, n=20, low=low, high=high)


def evaluation(
    status: Status = "correct",
    *,
    program: float = 1e-3,
    eager: float = 2e-3,
    compiled: float = 1.5e-3,
    spread: float | None = 0.01,
    findings: tuple[Finding, ...] = (),
    own: float | None = 1.0,
    sol: float | None = 0.5,
) -> Evaluation:
    """Twice as fast as eager and 1.5 times as fast as the best stock option, unless told otherwise."""
    label: Literal["pure", "hybrid", "host_only"] = (
        "host_only" if own is None or own < 0.1 else "pure" if own >= 0.95 else "hybrid"
    )
    census = None if own is None else Census(own=own, library=0.0, framework=1 - own, label=label, source="kineto")
    return Evaluation(
        status=status,
        message="",
        tier="screen",
        precision="fp32",
        findings=list(findings),
        correctness=Correctness(ok=status == "correct", calls_checked=10, outputs=[]),
        timings={
            "program": timing(program, spread),
            "eager": timing(eager, spread),
            "compile": timing(compiled, spread),
        },
        speedup={
            "eager": eager / program,
            "compile": compiled / program,
            "over_best": min(eager, compiled) / program,
        },
        census=census,
        sol=None if sol is None else SpeedOfLight(fraction=sol, bound_seconds=sol * program, binds="memory"),
    )


def flag(rule: str) -> Finding:
    """A finding that informs."""
    return Finding(rule=rule, severity="flag", evidence="program.py:1", layer="static")


def rejection(rule: str) -> Finding:
    """A finding that rejects."""
    return Finding(rule=rule, severity="reject", evidence="program.py:1", layer="static")


def marks(score: float = 3, skill: Skill = "scratch") -> RubricScore:
    """The same mark on all dimensions."""
    return RubricScore(skill=skill, marks={name: Mark(score=score) for name in DIMENSIONS})


def kernel(name: str, ms: float, origin: Origin = "framework", calls: int = 1, operator: str = "") -> KernelTime:
    """A kernel of so many milliseconds a call."""
    return KernelTime(name=name, seconds=ms * 1e-3, share=0.1, calls=calls, origin=origin, operator=operator)


def profile(
    kernels: list[KernelTime], *, gap_ms: float = 0.0, bottleneck: Bottleneck = "memory_bound", graphs: int = 0
) -> Profile:
    """The Profile of a call that runs these kernels one after the other."""
    busy = sum(k.seconds for k in kernels)
    shares = [k.model_copy(update={"share": k.seconds / busy}) for k in kernels]
    return Profile(
        subject="program",
        source="nsys",
        timeline=Timeline(
            wall_seconds=busy + gap_ms * 1e-3,
            busy_seconds=busy,
            gap_seconds=gap_ms * 1e-3,
            copy_seconds=sum(k.seconds for k in kernels if k.origin == "copy"),
            launches=sum(k.calls for k in kernels),
            graph_launches=graphs,
        ),
        kernels=sorted(shares, key=lambda k: -k.seconds),
        bottleneck=bottleneck,
        evidence="2 ms of 3 ms",
    )
