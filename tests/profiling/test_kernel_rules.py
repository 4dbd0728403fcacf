"""Each cause follows from its counters, worse faults come before milder ones, and nothing is said of nothing."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcuda.hardware.model import Ceilings, Device
from stitchcuda.profiling import rules, thresholds
from stitchcuda.profiling.diagnosis import diagnose, rank, spelling
from stitchcuda.profiling.kernel_rules import causes, is_matrix
from stitchcuda.profiling.metrics import NAMES, Facts
from stitchcuda.profiling.model import Cause, KernelCounters, KernelTime
from stitchcuda.profiling.remedies import FIRST
from stitchcuda.profiling.roofline import LARGEST_GAIN, amdahl, point, use
from stitchcuda.profiling.rules import BOTTLENECK_OF
from stitchcuda.profiling.sass import parse
from stitchcuda.task.model import Target
from tests.profiling.counters import counters

CEILINGS = Ceilings(
    copy_bytes_per_second=4e12,
    flops_per_second={"fp32": 50e12, "fp16": 700e12, "tf32": 350e12},
    measured_on="2026-11-29",
)
WAITING: Any = {"stall_long_scoreboard": 20.0, "issue": 10.0}

CASES: dict[Cause, KernelCounters] = {
    "dram_bandwidth": counters(dram=90, l2=70, l1=65, stall_long_scoreboard=30),
    "l2_bandwidth": counters(dram=3, l2=66, l1=45, l2_hit=98, stall_long_scoreboard=15),
    "l1_bandwidth": counters(l1=92, l1_data=92, l1_wavefronts=1e6, shared_wavefronts=1e6, stall_mio_throttle=6),
    "uncoalesced": counters(dram=85, l2=60, load_sectors=3.2e7, load_bytes_per_sector=4, stall_long_scoreboard=30),
    "bank_conflicts": counters(
        l1=90, dram=40, l1_wavefronts=1e6, shared_wavefronts=9e5, shared_conflicts=8.5e5, stall_short_scoreboard=12
    ),
    "spilling": counters(
        l1=70, local_load_sectors=5e6, local_store_sectors=5e6, load_sectors=1e6, load_bytes_per_sector=32, registers=32
    ),
    "atomics": counters(l2=40, load_requests=1e6, reduction_requests=1e6, stall_lg_throttle=30),
    "fma_pipe": counters(pipe_fma=92, issue=93, ffma=3e7),
    "no_tensor_cores": counters(
        pipe_fma=75, issue=80, l1=55, ffma=2.6e7, shared_load_wavefronts=3e5, shared_wavefronts=3e5, l1_wavefronts=4e5
    ),
    "tensor_pipe": counters(pipe_tensor=62, tensor_fp16=1e12, issue=20, stall_math_pipe_throttle=9),
    "fp64_pipe": counters(pipe_fp64=95, issue=48),
    "sfu_pipe": counters(pipe_xu=98, issue=13),
    "integer_pipe": counters(pipe_alu=96, issue=60),
    "divergence": counters(pipe_fma=90, issue=92, lanes=2, ffma=2e6),
    "occupancy_registers": counters(
        **WAITING, grid=1056, waves=8, registers=216, limit_registers=1, occupancy_limit=12.5, occupancy=12
    ),
    "occupancy_shared_memory": counters(
        **WAITING,
        grid=2112,
        block=128,
        waves=16,
        limit_shared=1,
        occupancy_limit=6.25,
        occupancy=6,
        shared_dynamic=204800,
    ),
    "occupancy_block_size": counters(
        **WAITING,
        grid=33792,
        block=32,
        waves=8,
        limit_registers=64,
        limit_shared=32,  # as an H200 says of a kernel without any: the system keeps 1 KiB for each block
        limit_blocks=32,
        limit_warps=64,
        occupancy_limit=50,
    ),
    "global_latency": counters(**WAITING, dram=20, l2=15),
    "shared_latency": counters(stall_short_scoreboard=20, shared_wavefronts=1e6, l1_wavefronts=1e6, l1=25, issue=4),
    "dependency": counters(stall_wait=3, issue=25, pipe_fma=25, ffma=3e7, occupancy=6, grid=132, waves=0.06),
    "barrier": counters(stall_barrier=25, stall_wait=2, issue=8, grid=264, block=1024, waves=1),
    "few_blocks": counters(grid=4, sm_active=3e4, dram=4, stall_long_scoreboard=20),
    "tail": counters(grid=133, waves=133 / 132, sm_active=5.05e5, limit_shared=1),
    "imbalance": counters(grid=1056, waves=1.0, sm_active=6e4),
}


@pytest.mark.parametrize("cause", CASES)
def test_cause_bottleneck_and_first_suggestion_follow_from_the_counters(cause: Cause) -> None:
    said = diagnose(CASES[cause])
    assert said.cause == cause
    assert said.bottleneck == BOTTLENECK_OF[cause]
    assert (said.remedy, said.suggestion) == FIRST[cause]
    assert said.evidence
    assert said.counters
    assert 1.0 < said.kernel_gain <= LARGEST_GAIN


def test_every_kernel_level_cause_has_a_case_and_every_cause_a_remedy() -> None:
    whole_calls = {"launch_overhead", "host_sync", "pageable_copies", "host_copies", "allocation", "host_work", "none"}
    assert set(CASES) == set(get_args(Cause)) - whole_calls
    assert set(FIRST) == set(BOTTLENECK_OF) == set(get_args(Cause))


def test_without_counters_nothing_is_said_and_what_is_missing_is_named() -> None:
    empty = KernelCounters(name="k", grid=(1, 1, 1), block=(1, 1, 1), metrics={}, missing=["sm__cycles_active.avg"])
    said = diagnose(empty)
    assert (said.cause, said.bottleneck, said.program_gain) == ("none", "unknown", 1.0)
    assert "sm__cycles_active.avg" in said.evidence


@given(
    st.dictionaries(
        st.sampled_from(sorted(NAMES)),
        st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 1e9)),
        max_size=40,
    ),
    st.integers(1, 10**6),
)
def test_any_numbers_give_an_answer(numbers: dict[str, float], grid: int) -> None:
    metrics = {NAMES[key][0]: value for key, value in numbers.items()}
    said = diagnose(KernelCounters(name="k", grid=(grid, 1, 1), block=(64, 1, 1), metrics=metrics), share=0.5)
    assert said.remedy == FIRST[said.cause][0]
    assert 1.0 <= said.program_gain <= 2.0


def test_copies_to_shared_memory_are_no_waste() -> None:
    """The count of bytes a sector leaves cp.async out and says 0.0 where there is nothing else."""
    copied = counters(pipe_tensor=63, l1=50, l2=58, dram=1, load_sectors=3.5e7, load_bytes_per_sector=0.0)
    assert Facts(copied).sector_efficiency is None
    assert diagnose(copied).cause == "tensor_pipe"


def test_pointer_chasing_over_scattered_words_is_latency_not_bad_layout() -> None:
    said = diagnose(counters(**WAITING, dram=20, l2=25, load_sectors=1e6, load_bytes_per_sector=4))
    assert said.cause == "global_latency"


def test_a_short_kernel_is_not_blamed_for_the_launch() -> None:
    assert diagnose(counters(seconds=4e-6, sm_active=4e5, dram=80)).cause == "dram_bandwidth"


def test_device_memory_is_judged_by_the_measured_ceiling() -> None:
    streaming = counters(dram=70, dram_read=1.7e9, dram_written=1.7e9, seconds=1e-3)
    assert use(Facts(streaming))["dram"] == pytest.approx(0.7)
    assert use(Facts(streaming), CEILINGS)["dram"] == pytest.approx(0.85)


def test_gain_ends_where_the_next_unit_binds() -> None:
    (first, *_) = causes(
        Facts(counters(dram=80, l2=50, load_sectors=1e7, load_bytes_per_sector=8, pipe_fma=50, ffma=1e7))
    )
    assert first.cause == "uncoalesced"
    assert first.gain == pytest.approx(1 / 0.49, rel=0.02)  # not 4 times: the fp32 pipe is half used already


def test_matrix_products_are_known_by_name_operator_or_by_what_they_execute() -> None:
    plain = counters(pipe_fma=80, ffma=3e7)
    assert not is_matrix(Facts(plain))
    assert is_matrix(Facts(plain), operator="aten::mm")
    assert is_matrix(Facts(plain.model_copy(update={"name": "sgemm_128x64"})))
    assert is_matrix(Facts(CASES["no_tensor_cores"]))
    assert not is_matrix(Facts(counters(pipe_fma=80, ffma=3e7, pipe_tensor=20)))


def test_point_on_the_roofline_counts_tensor_and_fp32_operations() -> None:
    spot = point(Facts(counters(seconds=1e-3, dram_read=1e9, ffma=1e9, tensor_fp16=3e9)), CEILINGS)
    assert spot is not None
    assert spot.flops_per_byte == pytest.approx(5.0)
    assert spot.least_seconds == pytest.approx(0.25e-3)
    assert point(Facts(counters(dram_read=0))) is None


def test_diagnoses_are_ranked_by_the_gain_of_the_whole_call() -> None:
    large, small = (
        CASES["dram_bandwidth"],
        CASES["few_blocks"].model_copy(update={"name": "void n::<unnamed>::few(int)"}),
    )
    times = [
        KernelTime(name="kernel", seconds=9e-3, share=0.9, calls=9, origin="own"),
        KernelTime(name="n::(anonymous namespace)::few(int)", seconds=1e-4, share=0.01, calls=1, origin="own"),
    ]
    ranked = rank([small, large], times, 10e-3)
    assert [d.cause for d in ranked] == ["dram_bandwidth", "few_blocks"]
    assert ranked[1].kernel_gain > ranked[0].kernel_gain
    assert ranked[1].program_gain < 1.02


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void a::(anonymous namespace)::k<int, 4>(float *)", "void a::<unnamed>::k<int,4>(float*)"),
        (
            "void elemWiseRNNcell<float, (cudnnRNNMode_t)2, (unsigned long)3, (bool)1>(int, T1 *)",
            "void elemWiseRNNcell<float, 2, 3, 1>(int, const T1 *)",
        ),
        (
            "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::impl<at::native::Add<float>>"
            "(at::TensorIteratorBase &)::[lambda(int) (instance 1)]>(int, T3)",
            "void at::elementwise_kernel<128, 2, void at::impl<at::Add<float>>"
            "(at::TensorIteratorBase &)::[lambda(int) (instance 1)]>(int, T3)",
        ),
        ("void at::k<(bool)0>(int)", "void at::native::k<false>(int)"),
        (
            "void at::e<2, at::f(at::Base&)::{lambda(int)#1}>(int)",
            "void at::native::e<(int)2, at::f(at::Base &)::[lambda(int) (instance 1)]>(int)",
        ),
    ],
)
def test_names_agree_between_tools(one: str, other: str) -> None:
    assert spelling(one) == spelling(other)


def test_instances_of_one_template_are_different_kernels() -> None:
    relu = "void at::native::elementwise<(int)4, at::native::clamp(at::Base &)::[lambda()]>(int, T2)"
    assert spelling(relu) != spelling(relu.replace("clamp", "add"))
    assert spelling(relu) != spelling(relu.replace("(int)4", "(int)2"))


def test_a_kernel_that_two_tools_spell_differently_and_two_operators_launch_counts_whole() -> None:
    counted = CASES["dram_bandwidth"].model_copy(update={"name": "void at::k<4, 1>(int)"})
    spelled = "void at::native::k<(int)4, (bool)1>(int)"
    times = [
        KernelTime(name=spelled, seconds=6e-3, share=0.6, calls=3000, origin="framework", operator="aten::add"),
        KernelTime(name=spelled, seconds=2e-3, share=0.2, calls=1000, origin="framework", operator="aten::mul"),
    ]
    found = rank([counted], times, 10e-3)[0]
    assert found.program_gain == pytest.approx(amdahl(0.8, found.kernel_gain))


def test_hostile_names_take_no_time() -> None:
    began = time.monotonic()
    for name in ("(" * 20_000, "(" + "a " * 10_000, "a" * 20_000, "<" * 20_000 + ")" * 20_000, "::" * 10_000):
        spelling(name)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("share", "gain", "whole"), [(0.5, 2.0, 4 / 3), (1.0, 4.0, 4.0), (0.0, 9.0, 1.0), (2.0, 2.0, 2.0)]
)
def test_amdahl(share: float, gain: float, whole: float) -> None:
    assert amdahl(share, gain) == pytest.approx(whole)


def test_wide_accesses_that_count_as_conflicts_are_none() -> None:
    busy = {"l1": 92.0, "l1_wavefronts": 1e6, "shared_wavefronts": 1e6, "shared_conflicts": 7.5e5}
    numbers: Any = busy | {"shared_bytes_per_wavefront": 128.0, "stall_mio_throttle": 6.0}
    assert diagnose(counters(**numbers)).cause == "l1_bandwidth"
    assert diagnose(counters(**(numbers | {"shared_bytes_per_wavefront": 7.8}))).cause == "bank_conflicts"


def test_uneven_blocks_are_told_from_a_last_wave_also_where_both_idle() -> None:
    waves = {"grid": 1056, "waves": 8 / 7, "sm_active": 1.7e5}
    assert diagnose(counters(**waves)).cause == "imbalance"  # type: ignore[arg-type]
    assert diagnose(counters(**(waves | {"sm_active": 5.7e5}))).cause == "tail"  # type: ignore[arg-type]


def test_machine_code_adds_to_the_evidence_and_never_decides() -> None:
    listing = "\tFunction : k\n        /*0010*/                   STL [R1], R4 ;   /* 0x0 */\n"
    resources = " Function k:\n  REG:32 STACK:304 SHARED:0 LOCAL:0"
    (sass,) = parse(listing, resources)
    plain, proven = diagnose(CASES["spilling"]), diagnose(CASES["spilling"], sass=sass)
    assert plain.cause == proven.cause
    assert "304 bytes of stack" in proven.evidence
    assert diagnose(CASES["fma_pipe"], sass=sass).cause == "fma_pipe"
    named = CASES["spilling"].model_copy(update={"name": "void k<int>(float *)"})
    assert "304 bytes of stack" in rank([named], [], 1.0, sass=[sass])[0].evidence


def test_occupancy_and_waves_follow_from_the_limits_where_a_version_does_not_tell_them() -> None:
    whole = CASES["occupancy_shared_memory"]
    untold = (NAMES["occupancy_limit"][0], NAMES["waves"][0])
    bare = whole.model_copy(update={"metrics": {k: v for k, v in whole.metrics.items() if k not in untold}})
    assert Facts(bare).theoretical_occupancy == pytest.approx(4 / 64)
    assert Facts(bare).waves == pytest.approx(16)
    assert diagnose(bare).cause == "occupancy_shared_memory"


def test_the_page_on_bottlenecks_tells_the_thresholds_of_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "bottlenecks.md").read_text()
    told = re.findall(r"^\| `([A-Z_0-9]+)` \| (\S+) \|", text, re.MULTILINE)
    assert len(told) >= 20
    for name, value in told:
        assert float(value) == getattr(thresholds, name, None) or float(value) == getattr(rules, name)


def test_scattered_accesses_that_the_cache_puts_together_are_not_blamed_for_device_memory() -> None:
    # Structures of three floats, read a float at a time: three times the sectors at L1, each byte once from memory.
    pieces = {"dram": 90, "l1": 50, "load_sectors": 1.2e7, "load_bytes_per_sector": 10.7, "dram_read": 1.3e8}
    assert diagnose(counters(**pieces, l2_sectors=4e6)).cause == "dram_bandwidth"  # type: ignore[arg-type]
    spread = pieces | {"dram_read": 3.8e8}
    assert diagnose(counters(**spread, l2_sectors=1.2e7)).cause == "uncoalesced"  # type: ignore[arg-type]


def test_the_l2_is_judged_by_its_measured_rate_where_there_is_one() -> None:
    rereading = counters(dram=3, l2=30, l2_sectors=4.5e6 / 32 * 1000, seconds=1e-3, stall_long_scoreboard=20)
    assert diagnose(rereading).cause == "global_latency"
    device = Device(
        target=Target(kind="cuda", arch="sm_90"),
        name="H200",
        multiprocessors=132,
        memory_bytes=1,
        cache_bytes=1,
        ceilings=CEILINGS.model_copy(update={"l2_bytes_per_second": 5e12}),
    )
    assert diagnose(rereading, device=device).cause == "l2_bandwidth"


def test_integer_products_and_packed_halves_are_told_apart_on_the_multiply_add_pipe() -> None:
    products = counters(pipe_fma=90, issue=90, ffma=1e6)
    assert diagnose(products).cause == "integer_pipe"
    assert diagnose(counters(pipe_fma=90, issue=90, ffma=1e6, pipe_fma_fp16=88)).cause == "fma_pipe"
