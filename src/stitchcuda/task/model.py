"""The data of a Task: what to speed up. Loading and validating one is in ``task.loader``."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
"""fp32 is strict: as accurate against fp64 as eager fp32 within a stated factor. tf32 lets matmul and
convolutions use TF32. fp16 and bf16 run with parameters and floating inputs cast to that type."""

Mode = Literal["train", "eval"]
Residence = Literal["device", "host"]


class Target(BaseModel):
    """What a Program must run on."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["cuda", "cpu"]
    arch: str = Field(description="sm_90 and the like for cuda; the compiler's -march for cpu, normally 'native'")

    @property
    def device(self) -> str:
        """The torch device string, ``cuda`` or ``cpu``."""
        return self.kind


class Task(BaseModel):
    """One thing to speed up; self-contained, so that a worker without the user's folder can run it.

    ``source`` defines ``Model``, ``get_inputs`` and ``get_init_inputs`` as KernelBench does, and may define
    ``MODE``, ``RESIDENCE``, ``PRECISION`` and ``get_input_cases()`` (a list of (name, weight, inputs)).
    """

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="short, file-system safe, e.g. 'decoder_block' or 'kb3_019_MobileNetV1'")
    origin: str = Field(description="where it came from: a path, or kernelbench:LEVEL/ID")
    source: str = Field(description="Python source")
    target: Target
    precision: Precision = "fp32"
    mode: Mode | None = Field(default=None, description="None: as the constructor leaves it (KernelBench's way)")
    residence: Residence = Field(
        default="device", description="host: forward gets its inputs in host memory and copies them itself"
    )
    search_path: str | None = Field(
        default=None, description="folder put on sys.path when the source runs, for tasks about the user's own package"
    )

    @property
    def digest(self) -> str:
        """SHA-256 over everything that changes what is computed or how it is judged."""
        parts = (self.source, self.target.kind, self.precision, str(self.mode), self.residence)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class TensorFacts(BaseModel):
    """Shape, dtype and device of one tensor."""

    model_config = ConfigDict(frozen=True)

    shape: tuple[int, ...]
    dtype: str = Field(description="'float32', 'int64', ... (torch's name without 'torch.')")


class TaskFacts(BaseModel):
    """What validating a Task by running it once showed."""

    model_config = ConfigDict(frozen=True)

    inputs: list[TensorFacts | str] = Field(description="tensors as facts, other values as their repr")
    outputs: list[TensorFacts]
    parameters: int = Field(description="number of parameter elements")
    stochastic: bool = Field(description="forward draws random numbers")
    seedable: bool = Field(description="stochastic, but equal seeds give equal outputs")
    training: bool = Field(description="the mode the model runs in: True for train")
    mutates_state: bool = Field(description="a call changes buffers or parameters (BatchNorm statistics, caches)")
    eager_seconds: float = Field(description="one eager call, seconds, untuned: for cost estimates only")
    cases: list[str] = Field(default_factory=list, description="names of the input cases")
