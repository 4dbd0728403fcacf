"""The Verifier without a model: rules over an Evaluation and the two Profiles."""

from __future__ import annotations

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.roles import VerifyRequest
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.program.model import Program

NOISE = 0.02
"""Speedups closer than this are not told apart."""
NEAR_BOUND = 0.9
"""Fraction of speed of light at which nothing more is to be gained."""

SUGGESTIONS = {
    "build_failed": "Leave out the launchers that do not compile.",
    "wrong_output": "Leave out half of the launchers to find the wrong one.",
    "crashed": "Leave out the launchers that the message names, or the CUDA graph.",
    "timed_out": "Leave out half of the launchers to find the one that does not end.",
    "out_of_memory": "Leave out the CUDA graph, whose private pool keeps memory.",
}


class RecipeVerifier:
    """Routes by status first, then by what the timings and profiles show."""

    def verify(self, request: VerifyRequest) -> Feedback:
        """Retry what failed, replan what is refuted, go on with what is correct, stop at the hardware's bound."""
        evaluation = request.evaluation
        if not evaluation.passed:
            return self._failed(evaluation, request.program)
        evidence = _figures(request)
        if evaluation.sol is not None and evaluation.sol.fraction >= NEAR_BOUND:
            bound = f"{evaluation.sol.fraction:.0%} of the {evaluation.sol.binds} bound"
            return Feedback(
                route="stop",
                diagnosis=f"The program runs at {bound}.",
                evidence=evidence,
                suggestion="Keep it: the hardware allows no more.",
            )
        eager = evaluation.speedup.get("eager", 0.0)
        if request.last_step and eager and eager < 1 - NOISE:
            return Feedback(
                route="replan",
                diagnosis="The idea makes the program slower than eager.",
                evidence=evidence,
                suggestion="Try another idea.",
            )
        return Feedback(
            route="next",
            diagnosis=_diagnosis(request),
            evidence=evidence,
            suggestion=_suggestion(request),
        )

    def _failed(self, evaluation: Evaluation, program: Program) -> Feedback:
        evidence = (evaluation.log or evaluation.message)[:2000]
        # What is left in the program is part of the mark: leaving out the other half is another try.
        mark = f"{evaluation.status}:{_first_launcher(evidence) or evaluation.message[:80]}:{program.notes}"
        if evaluation.status in SUGGESTIONS:
            return Feedback(
                route="retry",
                diagnosis=evaluation.message or evaluation.status,
                evidence=evidence,
                suggestion=SUGGESTIONS[evaluation.status],
                fingerprint=mark,
            )
        rules = ", ".join(finding.rule for finding in evaluation.findings if finding.severity == "reject")
        return Feedback(
            route="replan",
            diagnosis=evaluation.message or evaluation.status,
            evidence=f"{evaluation.status} {rules}".strip(),
            suggestion="Try another idea.",
            fingerprint=mark,
        )


def _first_launcher(text: str) -> str:
    return next((word.strip("'\"():,") for word in text.split() if word.startswith(("fused_", "'fused_"))), "")


def _figures(request: VerifyRequest) -> str:
    evaluation = request.evaluation
    parts = [f"{factor:.2f}x {name.replace('_', ' ')}" for name, factor in sorted(evaluation.speedup.items())]
    program = evaluation.timings.get("program")
    if program is not None:
        parts.insert(0, f"median {program.median * 1e3:.3f} ms")
    if evaluation.census is not None:
        parts.append(f"{evaluation.census.own:.0%} of the time in own kernels")
    before, after = request.reference_profile, request.profile
    if before is not None and after is not None:
        parts.append(f"launches {before.timeline.launches} to {after.timeline.launches}")
    return "; ".join(parts)


def _diagnosis(request: VerifyRequest) -> str:
    over = request.evaluation.speedup.get("over_best", 0.0)
    if request.profile is not None:
        return f"Correct, {over:.2f}x the best stock option; now {request.profile.bottleneck}."
    return f"Correct, {over:.2f}x the best stock option."


def _suggestion(request: VerifyRequest) -> str:
    if not request.last_step:
        return "Go on with the next step."
    if request.profile is not None and request.profile.suggestion:
        return request.profile.suggestion
    return "This idea is done; measure the next one."
