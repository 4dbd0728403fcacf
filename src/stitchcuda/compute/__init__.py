"""Where evaluations run: this machine's devices, a folder that GPU nodes take jobs from, or a Ray cluster, all behind
one interface."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stitchcuda.compute.model import Compute

WHERE = "local, spool:DIR, ray or ray:ADDRESS"


def check_where(where: str) -> str:
    """``where`` with a spool's folder made absolute; raises StitchError when it names no place."""
    from stitchcuda.errors import StitchError

    name, _, rest = where.partition(":")
    if where != "local" and name != "ray" and not (name == "spool" and rest):
        raise StitchError(f"unknown compute '{where}'; use {WHERE}")
    return f"spool:{Path(rest).absolute()}" if name == "spool" else where


def open_compute(where: str, *, cache: Path | None = None) -> Compute:
    """The place that ``where`` names: 'local', 'spool:DIR', 'ray' or 'ray:ADDRESS'. Close it after use.

    ``cache`` is where local workers keep builds and baselines; by default the user's.
    Raises StitchError for other words, ToolMissing where Ray is not installed.
    """
    from stitchcuda.compute.folders import data_folder

    name, _, rest = check_where(where).partition(":")
    if name == "spool":
        from stitchcuda.compute.spool import SpoolCompute

        return SpoolCompute(Path(rest))
    if name == "ray":
        from stitchcuda.compute.ray_cluster import RayCompute

        return RayCompute(rest or None, cache=cache)
    from stitchcuda.compute.local import LocalCompute

    return LocalCompute(cache=cache or data_folder())
