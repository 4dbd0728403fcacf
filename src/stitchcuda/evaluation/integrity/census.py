"""The kernel census: which share of the time is a Program's own work. Read from the trace of what ran."""

from __future__ import annotations

from typing import Literal

from stitchcuda.evaluation.model import Census
from stitchcuda.evaluation.telemetry import Trace

PURE, HYBRID = 0.95, 0.10


def take_census(trace: Trace) -> Census:
    """Shares of busy time by origin, and the label.

    ``pure`` from 95 % own time, ``hybrid`` from 10 %; below that ``library`` when vendor libraries take the larger
    part of the time, else ``host_only``, which also stands for a Program without any kernel of its own.
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
    elif own > 0 and library > 0.5 * busy:
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
