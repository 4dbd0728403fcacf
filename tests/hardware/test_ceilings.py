"""Ceilings: which rate meets a precision class, and how passes disturbed by others are outvoted."""

from __future__ import annotations

from stitchcuda.hardware.measure_ceilings import agreed
from stitchcuda.hardware.model import Ceilings


def ceilings(**rates: float) -> Ceilings:
    return Ceilings(copy_bytes_per_second=1e12, flops_per_second=rates, measured_on="2026-01-01")


def test_fp32_may_use_three_fp16_products() -> None:
    assert ceilings(fp32=50e12, fp16=750e12).rate("fp32") == 250e12
    assert ceilings(fp32=50e12, fp16=60e12).rate("fp32") == 50e12
    assert ceilings(fp32=50e12).rate("fp32") == 50e12


def test_other_classes_have_their_own_rate_or_none() -> None:
    assert ceilings(fp32=50e12, fp16=750e12).rate("fp16") == 750e12
    assert ceilings(fp32=50e12, fp16=750e12).rate("bf16") == 0.0


def test_a_disturbed_pass_is_outvoted() -> None:
    passes = iter([{"copy": 1.0, "fp32": 10.0}, {"copy": 2.0, "fp32": 9.9}, {"copy": 1.9, "fp32": 5.0}])
    assert agreed(lambda: next(passes), pause_s=0) == {"copy": 2.0, "fp32": 10.0}


def test_two_passes_that_agree_are_enough() -> None:
    passes = iter([{"copy": 1.0}, {"copy": 1.02}])
    assert agreed(lambda: next(passes), pause_s=0) == {"copy": 1.02}
