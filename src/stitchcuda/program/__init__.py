"""Programs: parse from a reply, validate, write, export."""

from stitchcuda.program.model import ENTRY, MANIFEST, Argument, Dtype, Launcher, Manifest, Program

__all__ = ["ENTRY", "MANIFEST", "Argument", "Dtype", "Launcher", "Manifest", "Program"]
