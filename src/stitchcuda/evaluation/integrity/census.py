"""The kernel census: which share of the time is a Program's own work. Read from the trace of what ran."""

from __future__ import annotations

from typing import Literal

from stitchcuda.evaluation.model import Census, Finding
from stitchcuda.evaluation.telemetry import Trace

PURE, HYBRID = 0.95, 0.10

DECOY = 0.01
"""Own kernels that take less than this share of the time hardly do the work."""


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


def census_findings(trace: Trace, launchers: int) -> list[Finding]:
    """What is odd about where the time went, for a Program with so many launchers or kernels of its own; flags.

    ``decoy_kernel``: it has kernels, and they take hardly any time. ``library_name``: a kernel of its own is named as a
    library's are; such kernels count as the library's, so that nobody gains by names.
    """
    findings = []
    busy = sum(row.seconds for row in trace.rows)
    own = sum(row.seconds for row in trace.rows if row.origin == "own")
    if launchers and busy > 0 and own < DECOY * busy:
        evidence = f"its own kernels take {100 * own / busy:.1f} % of the time"
        findings.append(Finding(rule="decoy_kernel", severity="flag", evidence=evidence, layer="census"))
    disguised = sorted({row.name[:80] for row in trace.rows if row.disguised})
    if disguised:
        evidence = f"kernels of its own are named as a library's are: {', '.join(disguised[:3])}"
        findings.append(Finding(rule="library_name", severity="flag", evidence=evidence, layer="census"))
    return findings


def _called_directly(trace: Trace) -> float:
    """Seconds in library routines that the Program names itself. Told on cpu alone, where rows are operators: PyTorch's
    own dispatch reaches every library through an ``aten::`` operator."""
    if trace.target != "cpu":
        return 0.0
    return sum(row.seconds for row in trace.rows if row.origin == "library" and not row.name.startswith("aten::"))
