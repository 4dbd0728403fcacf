"""The data of a Program: a set of files with an entry that defines ``ModelNew``, and its manifest of launchers.

Parsing a reply is in ``program.parse``, paths and sizes are checked in ``program.validate``.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ENTRY = "program.py"
MANIFEST = "manifest.json"

Dtype = Literal["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"]


class Argument(BaseModel):
    """One argument of a launcher, in C order."""

    model_config = ConfigDict(frozen=True)

    name: str
    kind: Literal["tensor", "scalar"] = "tensor"
    dtype: Dtype = Field(description="tensor element type, or the C type of a scalar (float32: float)")
    role: Literal["input", "output", "inout"] = "input"
    layout: Literal["contiguous", "channels_last", "any"] = "contiguous"
    alignment: int = Field(default=4, description="bytes the data pointer must be a multiple of")
    optional: bool = Field(default=False, description="None is allowed and arrives as a null pointer")


class Launcher(BaseModel):
    """One C function ``extern "C" int NAME(ARGUMENTS..., void* stream)``; returns 0 or an error code.

    On ``cuda`` it only enqueues work on ``stream`` (a cudaStream_t) and returns cudaGetLastError();
    on ``cpu`` ``stream`` is null. Outputs are allocated by the caller and passed like inputs.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    source: str = Field(description="file of the Program that defines it")
    arguments: list[Argument]


class Manifest(BaseModel):
    """What the native sources of a Program offer to its Python side.

    The build step writes a module ``bindings`` next to ``program.py`` from this; ``from bindings import NAME``
    gives a checked Python function per launcher taking the arguments in order, without the stream.
    """

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = 1
    target: Literal["cuda", "cpu"]
    launchers: list[Launcher]
    libraries: list[Literal["cublas", "cublasLt"]] = Field(default_factory=list)


class Program(BaseModel):
    """Files by relative POSIX path; always holds ``program.py``. Native form when ``manifest`` is set."""

    model_config = ConfigDict(frozen=True)

    files: dict[str, str]
    manifest: Manifest | None = None
    notes: str = Field(default="", description="what its author says about it; never read by the evaluation")

    @property
    def digest(self) -> str:
        """SHA-256 over paths, contents and manifest."""
        h = hashlib.sha256()
        for path in sorted(self.files):
            h.update(path.encode() + b"\0" + self.files[path].encode() + b"\0")
        if self.manifest is not None:
            h.update(self.manifest.model_dump_json().encode())
        return h.hexdigest()
