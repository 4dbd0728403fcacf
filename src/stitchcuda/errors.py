"""Every error a user can meet, in one place: the class name is the diagnosis, the message says
what was found, what was expected and what to do next.

An error that is a *verdict* on a Program (it crashed, it is wrong) is not here: that is an Evaluation.
"""

from __future__ import annotations


class StitchError(Exception):
    """Base of all errors with a user-facing sentence; the command line prints it without a traceback.

    ``exit_code`` follows the command line's contract: 1 the answer is no, 2 wrong use.
    """

    exit_code = 2


class TaskError(StitchError):
    """The task file cannot be used: syntax error, missing name, a model that does not run, no tensor output."""


class ProgramError(StitchError):
    """A program cannot be parsed, validated or written (bad path, too large, no entry, broken manifest)."""


class ToolMissing(StitchError):
    """A compiler, profiler or library that this step needs is not on the machine."""


class ProfilerError(StitchError):
    """A profiler is there but refused, failed or was stopped, or what it wrote cannot be read."""

    exit_code = 1


class DeviceError(StitchError):
    """The target asked for is not on this machine."""


class ModelAccessError(StitchError):
    """The language model could not be reached or did not give a usable answer."""

    exit_code = 1


class KeyMissing(ModelAccessError):
    """A model was named that needs an API key, and none is set: wrong use, found before any work."""

    exit_code = 2


class BudgetExceeded(StitchError):
    """A limit the user set (seconds, dollars, iterations, tokens) was reached."""

    exit_code = 1


class SweepSpent(StitchError):
    """The dollars of a whole sweep are used. Unlike a run's own limit it ends no run: that can be gone on with."""

    exit_code = 1


class KnowledgeError(StitchError):
    """A knowledge source or index cannot be used: not there, not reachable, of another schema, or refused."""


class RunError(StitchError):
    """A run folder is missing, locked by another process, or its journal is damaged."""


class InfrastructureError(StitchError):
    """The machine failed (disk full, no memory for the oracle, a tool died): never the Program's fault."""

    exit_code = 1


class NotMeasured(InfrastructureError):
    """The place that measures was closed, as when a run is interrupted, or took no job: nothing is known of what was
    to be measured."""


class ComputeError(StitchError):
    """A place where evaluations run cannot be used: no spool, one of another format, a cluster that does not answer."""


class RewardError(StitchError):
    """A reward cannot be computed: a number is missing or invalid, or two measurements do not belong together."""

    exit_code = 1


class TrainingError(StitchError):
    """A training cannot start or go on: settings that contradict each other, data or a model that does not fit."""


class RecordMissing(StitchError):
    """A recorded evaluation was asked for, and nothing is recorded of this program."""

    exit_code = 1
