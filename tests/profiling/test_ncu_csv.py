"""Both pages of ncu's CSV are read, whatever units, versions and odd values they hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.errors import ProfilerError
from stitchcuda.profiling.ncu_csv import base, number, parse

DETAILS = (Path(__file__).parent / "data" / "ncu-softmax-basic.csv").read_text()
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC"'
)
RAW = (
    """==PROF== Connected to process 12 (/usr/bin/python3)
the program's own line, "with, commas"
"""
    + HEAD
    + """,\
"gpu__time_duration.sum","dram__bytes_read.sum","lts__t_sector_hit_rate.pct","sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","{time}","{size}","%","%"
"0","12","python3","127.0.0.1","void f<int>(T1 *, ""x"")","1","7","(256, 1, 1)","(16, 2, 1)","0","9.0",\
"{t}","{b}","n/a","(!) nan"
==PROF== Disconnected from process 12
==WARNING== Note: Running with unmodified GPU clocks.
"""
)


def raw(time: str = "ns", size: str = "byte", t: str = "1,500", b: str = "2,048") -> str:
    return RAW.format(time=time, size=size, t=t, b=b)


def test_a_real_details_page_gives_each_launch_its_numbers() -> None:
    parsed = parse(DETAILS)
    assert len(parsed.kernels) == 7
    softmax = parsed.kernels[-1]
    assert softmax.name.startswith("void at::<unnamed>::cunn_SoftMaxForwardReg")
    assert (softmax.grid, softmax.block) == ((4096, 1, 1), (1024, 1, 1))
    assert softmax.seconds == pytest.approx(91.264e-6)
    assert softmax.metrics["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"] == pytest.approx(25.96)
    assert softmax.metrics["launch__registers_per_thread"] == 30
    assert softmax.metrics["launch__occupancy_limit_registers"] == 2
    assert parsed.warnings == [
        "Note: Running with unmodified GPU clocks. If not controlled otherwise, profiling results may be inconsistent."
    ]


def test_a_raw_page_is_read_among_the_programs_own_output() -> None:
    (kernel,) = parse(raw()).kernels
    assert kernel.name == 'void f<int>(T1 *, "x")'
    assert kernel.grid == (16, 2, 1)
    assert kernel.metrics == {"gpu__time_duration.sum": pytest.approx(1.5e-6), "dram__bytes_read.sum": 2048}


def test_numbers_without_a_value_are_named_not_guessed() -> None:
    (kernel,) = parse(raw()).kernels
    assert kernel.missing == ["lts__t_sector_hit_rate.pct", "sm__warps_active.avg.pct_of_peak_sustained_active"]


@pytest.mark.parametrize(
    ("time", "size"),
    [("nsecond", "byte"), ("us", "Kbyte"), ("usecond", "Mbyte"), ("msecond", "Gbyte"), ("second", "KByte")],
)
def test_units_of_every_version_come_out_in_seconds_and_bytes(time: str, size: str) -> None:
    seconds = {"nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0}[time]
    scale = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "KByte": 1e3}[size]
    (kernel,) = parse(raw(time, size, "2.5", "4")).kernels
    assert kernel.seconds == pytest.approx(2.5 * seconds)
    assert kernel.metrics["dram__bytes_read.sum"] == pytest.approx(4 * scale)


def test_rates_and_ratios_are_not_scaled_by_a_letter_they_begin_with() -> None:
    assert base(5.0, "cycle") == 5.0
    assert base(5.0, "thread") == 5.0
    assert base(5.0, "Ghz") == 5e9
    assert base(5.0, "") == 5.0


@pytest.mark.parametrize("text", ["n/a", "nan", "-nan", "(!) nan", "inf", "", "CachePreferNone"])
def test_what_is_no_number_is_none(text: str) -> None:
    assert number(text) is None


def test_errors_of_the_tool_are_kept() -> None:
    parsed = parse(
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n==WARNING== No kernels were profiled.\n"
    )
    assert parsed.kernels == []
    assert parsed.errors[0].startswith("ERR_NVGPUCTRPERM")


def test_output_cut_off_within_a_row_is_an_error_that_says_so() -> None:
    whole = raw()
    with pytest.raises(ProfilerError, match="stopped while it wrote"):
        parse(whole[: whole.index("n/a")])


@pytest.mark.parametrize("column", ["Kernel Name", "Grid Size", "Block Size"])
def test_a_table_without_what_every_version_prints_is_refused(column: str) -> None:
    with pytest.raises(ProfilerError, match=f"without a column '{column}'"):
        parse(raw().replace(f'"{column}"', '"Other"'))


@pytest.mark.parametrize("column", ["Section Name", "Metric Unit", "Metric Value", "Grid Size"])
def test_so_is_a_details_page(column: str) -> None:
    with pytest.raises(ProfilerError, match=f"without a column '{column}'"):
        parse(DETAILS.replace(f'"{column}"', '"Other"', 1))


def test_a_kernel_name_of_ten_thousand_characters_is_kept() -> None:
    long = "void f<" + "a" * 10_000 + ">()"
    (kernel,) = parse(raw().replace('void f<int>(T1 *, ""x"")', long)).kernels
    assert kernel.name == long


def test_columns_of_ranges_are_no_counters() -> None:
    ranged = raw().replace('"Kernel Name",', '"thread Domain:Push/Pop_Range:PL_Type:Msg","Kernel Name",')
    ranged = ranged.replace('"","","","","",', '"","","","","","",', 1).replace('"127.0.0.1",', '"127.0.0.1","",')
    (kernel,) = parse(ranged).kernels
    assert kernel.seconds == pytest.approx(1.5e-6)
    assert len(kernel.missing) == 2
