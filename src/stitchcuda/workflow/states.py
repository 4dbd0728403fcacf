"""The states of a run, what may follow what, and their names in words.

What each does is in ``machine``; code, evaluate, profile and verify are the states of a turn, in ``turn``.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a run is."""

    PREPARE = "prepare"
    BASELINES = "baselines"
    REFERENCE = "reference"
    BASE = "base"
    PLAN = "plan"
    APPROVE = "approve"
    SELECT = "select"
    TURNS = "turns"
    CODE = "code"
    EVALUATE = "evaluate"
    PROFILE = "profile"
    VERIFY = "verify"
    CONFIRM = "confirm"
    REPORT = "report"
    DONE = "done"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.PREPARE: frozenset({State.BASELINES}),
    State.BASELINES: frozenset({State.REFERENCE}),
    State.REFERENCE: frozenset({State.BASE}),
    State.BASE: frozenset({State.PLAN, State.CONFIRM}),
    State.PLAN: frozenset({State.APPROVE, State.SELECT, State.CONFIRM}),
    State.APPROVE: frozenset({State.SELECT, State.CONFIRM}),
    State.SELECT: frozenset({State.TURNS, State.PLAN, State.SELECT, State.CONFIRM}),
    State.TURNS: frozenset({State.CODE, State.SELECT, State.CONFIRM}),
    State.CODE: frozenset({State.EVALUATE, State.VERIFY, State.SELECT, State.CONFIRM}),
    State.EVALUATE: frozenset({State.PROFILE, State.VERIFY}),
    State.PROFILE: frozenset({State.VERIFY}),
    State.VERIFY: frozenset({State.CODE, State.SELECT, State.CONFIRM}),
    State.CONFIRM: frozenset({State.REPORT}),
    State.REPORT: frozenset({State.DONE}),
    State.DONE: frozenset({State.PLAN, State.SELECT}),
}
"""What may follow what, as one turn passes through it. A run that is done goes on only with a larger budget."""

OF_A_TURN = frozenset({State.CODE, State.EVALUATE, State.PROFILE, State.VERIFY})
"""What a turn passes through; several may at a time."""

TITLES: dict[State, str] = {
    State.PREPARE: "running the reference once",
    State.BASELINES: "timing the stock options",
    State.REFERENCE: "profiling the reference",
    State.BASE: "evaluating the program to start from",
    State.PLAN: "planning",
    State.APPROVE: "waiting for the plan's approval",
    State.SELECT: "choosing what to try",
    State.TURNS: "trying",
    State.CODE: "writing",
    State.EVALUATE: "evaluating",
    State.PROFILE: "profiling",
    State.VERIFY: "judging",
    State.CONFIRM: "confirming the best in fresh processes",
    State.REPORT: "summing up",
    State.DONE: "done",
}
"""States in words."""
