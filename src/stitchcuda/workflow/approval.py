"""A person's look at the Plan: it is written to the run folder, edited there and read back before it is followed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stitchcuda.agents.plan import Plan
from stitchcuda.errors import RunError
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.machine import Approval, AwaitingApproval

Ask = Callable[[Path, bool, str], bool]
"""Shows a person the plan file; told whether it lay there when the run was resumed, and a problem with it if not
empty. True: it is as they want it. False: they will resume the run later."""


def later(path: Path, waited: bool, problem: str) -> bool:
    """Nobody is there to ask: stop at a fresh plan, and take a plan that waited for the run to be resumed."""
    if problem:
        raise RunError(problem)
    return waited


def approval(folder: RunFolder, *, resumed: bool, ask: Ask) -> Approval:
    """How this run has its plans approved."""

    def approve(plan: Plan, number: int) -> Plan:
        path = folder.plan(number)
        waited = resumed and path.is_file()
        if not waited:
            folder.save_plan(number, plan)
        problem = ""
        while ask(path, waited, problem):
            try:
                return folder.edited_plan(number)
            except RunError as error:
                problem = str(error)
        raise AwaitingApproval(str(path))

    return approve
