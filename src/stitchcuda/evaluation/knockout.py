"""Does a Program need its own kernels? It is run once more with launchers that do nothing: an answer that is still
right was computed by something else, and the kernels are for show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation.runner_client import Failure

if TYPE_CHECKING:
    from stitchcuda.evaluation.trial import Trial

SUSPECT = {"cpu": 0.8, "cuda": 0.1}
"""Programs whose kernels take less than this share of the time are knocked out in every tier; a kernel for show that
takes more costs its Program more than it could gain. On cpu a call of a kernel that does next to nothing takes as long
as a small operator, so that shares are told less well."""


def wanted(trial: Trial) -> bool:
    """Whether to look: before publishing, in exhaustive mode, and where own kernels hardly take any time."""
    manifest = trial.program.manifest
    if manifest is None or not manifest.launchers or not trial.settings.defences:
        return False
    census = trial.census_taken()
    return (
        trial.tier == "publish"
        or trial.settings.exhaustive
        or (census is not None and census.own <= SUSPECT[trial.evaluator.kind])
    )


def knock_out(trial: Trial, folder: Path) -> None:
    """Refuse the trial when the answers to every input case are right without its kernels; not where the error budget
    is so wide, or the task so poor, that other answers than the right one count as right too."""
    if trial.checks.labels & {"ill_conditioned", "non_discriminating"}:
        return
    evaluator = trial.evaluator
    session = evaluator.program_session()
    trial.opened.append(session)
    try:
        session.open()
        session.load(folder, knocked_out=True)
        for case in evaluator.plan["cases"]:
            for _, _, verdict in evaluator.calls.play(
                [session], f"knockout-{case}", case, patience=trial.settings.call_timeout_s
            ):
                if not verdict["ok"]:
                    return
    except (Failure, InfrastructureError):
        # It cannot do without them, or the machine could not start another process: no evidence either way.
        return
    finally:
        evaluator.close_all([session])
    launchers = ", ".join(launcher.name for launcher in trial.program.manifest.launchers[:5])  # type: ignore[union-attr]
    message = f"the outputs are the same when its own kernels ({launchers}) do nothing: something else computes them"
    trial.refuse(Failure("dishonest", message, rule="decoy", layer="census"))
