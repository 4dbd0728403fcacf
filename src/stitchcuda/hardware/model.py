"""The data of a device: facts that never change during a run, and measured ceilings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.task.model import Precision, Target


class Ceilings(BaseModel):
    """Measured, not from a datasheet."""

    model_config = ConfigDict(frozen=True)

    copy_bytes_per_second: float = Field(description="device copy, bytes read plus bytes written")
    l2_bytes_per_second: float = Field(
        default=0.0, description="the same of data that stays in the L2; 0.0 where it was not measured, and on cpu"
    )
    flops_per_second: dict[str, float] = Field(description="matrix product rate by precision class, FLOP/s")
    measured_on: str = Field(description="date, ISO 8601")

    def rate(self, precision: Precision) -> float:
        """The fastest matrix rate, FLOP/s, that can meet a precision class; 0.0 where none was measured.

        For fp32 that may be a third of the fp16 rate: with each factor split into two fp16 parts, three fp16 products
        accumulated in fp32 are as accurate as one fp32 product.
        """
        own = self.flops_per_second.get(precision, 0.0)
        return max(own, self.flops_per_second.get("fp16", 0.0) / 3) if precision == "fp32" else own


class Device(BaseModel):
    """What the target is."""

    model_config = ConfigDict(frozen=True)

    target: Target
    name: str
    multiprocessors: int = Field(description="SMs, or CPU cores usable by this process")
    memory_bytes: int
    cache_bytes: int = Field(description="L2 on cuda, last-level on cpu")
    shared_memory_per_block: int = Field(default=0, description="opt-in maximum, bytes; cuda only")
    features: list[str] = Field(default_factory=list, description="cpu: avx2, avx512f, ...; cuda: empty")
    driver: str = ""
    runtime: str = Field(default="", description="CUDA version torch uses; empty on cpu")
    ceilings: Ceilings | None = None
