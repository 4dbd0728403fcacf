"""The kernel census: which share of the time is a Program's own work. Read from the trace of what ran."""

from __future__ import annotations

from typing import Literal

from stitchcuda.evaluation.model import Census
from stitchcuda.evaluation.telemetry import Trace

PURE, HYBRID = 0.95, 0.10


def take_census(trace: Trace) -> Census:
    """Shares of busy time by origin, and the label.

    ``pure`` from 95 % own time, ``hybrid`` from 10 %; below that ``library`` when vendor libraries take the larger
    part of the time, else ``host_only``. A Program without any kernel of its own is ``host_only`` too, unless most of
    the libraries' time is in routines that it calls itself: PyTorch only would have reached the rest as well.
    """
    busy = sum(row.seconds for row in trace.rows)
    own = sum(row.seconds for row in trace.rows if row.origin == "own")
    library = sum(row.seconds for row in trace.rows if row.origin == "library")
    if busy <= 0:
        return Census(own=0, library=0, framework=0, label="host_only", source=trace.source)
    label: Literal["pure", "hybrid", "library", "host_only"]
    if own >= PURE * busy:
        label = "pure"
    elif own >= HYBRID * busy:
        label = "hybrid"
    elif library > 0.5 * busy and (own > 0 or _called_directly(trace) > 0.5 * library):
        label = "library"
    else:
        label = "host_only"
    return Census(
        own=own / busy,
        library=library / busy,
        framework=(busy - own - library) / busy,
        label=label,
        source=trace.source,
    )


def _called_directly(trace: Trace) -> float:
    """Seconds in library routines that the Program names itself. Told on cpu alone, where rows are operators: PyTorch's
    own dispatch reaches every library through an ``aten::`` operator."""
    if trace.target != "cpu":
        return 0.0
    return sum(row.seconds for row in trace.rows if row.origin == "library" and not row.name.startswith("aten::"))
