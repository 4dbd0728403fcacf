"""Nsight Compute is asked for one set of counters, confined and within its time; its refusals come with a fix."""

from __future__ import annotations

import itertools
import stat
import sys
from pathlib import Path

import pytest

from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.profiling.counting import count
from stitchcuda.profiling.metrics import SECTIONS, WANTED
from stitchcuda.profiling.ncu import command, explain, find_ncu, function_name, longest
from tests.profiling.counters import counters
from tests.profiling.test_capture import subject

NCU = Path("/opt/ncu")
TABLE = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","gpu__time_duration.sum"\\n"","","","","","","","","","","","ns"\\n'
    '"0","1","x","h","f()","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0","1000"\\n'
)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(tmp_path, monkeypatch)


class StandIn:
    """A program that stands where ncu would, for what no machine without a GPU can make the real one do."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "ncu"
        monkeypatch.setenv("STITCHCUDA_NCU", str(self.path))

    def does(self, body: str) -> None:
        """``log`` is where it writes, ``asked`` the counters by name, ``name`` the filter of kernels, ``TABLE`` an
        answer with one kernel 'f()'."""
        self.path.write_text(
            f"#!{sys.executable}\nimport os, sys, time\nwords, TABLE = sys.argv, '{TABLE}'\n"
            "if words[1] in ('--version', '--query-metrics-mode'):\n    sys.exit()\n"
            "log, name = words[words.index('--log-file') + 1], words[words.index('--kernel-name') + 1]\n"
            f"asked = words[words.index('--metrics') + 1].split(',') if '--metrics' in words else []\n{body}\n"
        )
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)


def test_clocks_are_left_alone_and_only_named_kernels_are_replayed() -> None:
    words = command(
        NCU, ["python", "x.py"], log=Path("log"), kernels=["void a::b<int, (T)2>(float *)", "sgemm_128"], launches=3
    )
    text = " ".join(words)
    assert "--clock-control none" in text
    assert words[words.index("--kernel-name") + 1] == "regex:^(b|sgemm_128)$"
    assert words[words.index("--launch-count") + 1] == "3"
    assert words[-2:] == ["python", "x.py"]
    assert set(words[words.index("--metrics") + 1].split(",")) == set(WANTED)
    assert [b for a, b in itertools.pairwise(words) if a == "--section"] == list(SECTIONS)


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("void at::native::(anonymous namespace)::softmax<float, 4>(float *, int)", "softmax"),
        (
            "void at::<unnamed>::cunn_SoftMaxForwardReg<float, at::X<int>, 4>(T3 *, const T1 *)",
            "cunn_SoftMaxForwardReg",
        ),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("own(float const*, int)", "own"),
    ],
)
def test_function_name_is_what_ncu_filters_by(name: str, bare: str) -> None:
    assert function_name(name) == bare


def test_missing_tool_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("stitchcuda.profiling.ncu.FOLDERS", ("/nowhere/*",))
    monkeypatch.delenv("STITCHCUDA_NCU", raising=False)
    with pytest.raises(ToolMissing, match="STITCHCUDA_NCU"):
        find_ncu()


def test_what_the_tool_counts_comes_out_of_the_confinement_and_no_key_goes_in(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    stand_in.does(
        "seen = any('sk-planted' in value for value in os.environ.values())\n"
        "open(log, 'w').write(TABLE.replace('f()', 'leaked()') if seen else TABLE)"
    )
    (kernel,) = count(subject(kind="cuda"), ["void f<int>(int)"]).kernels
    assert kernel.name == "f()"
    assert kernel.seconds == pytest.approx(1e-6)


def test_refused_permission_is_explained(stand_in: StandIn) -> None:
    stand_in.does("open(log, 'w').write('==ERROR== ERR_NVGPUCTRPERM - The user does not have permission')\nsys.exit(1)")
    with pytest.raises(ProfilerError, match="NVreg_RestrictProfilingToAdminUsers=0"):
        count(subject(kind="cuda"), ["f"])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("==ERROR== Profiling failed because a driver resource was unavailable.", "another profiler"),
        ("No kernels were profiled.", "no kernel that it was asked for"),
        ("The application returned an error code (1).", "without the profiler first"),
        ("Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).", "CUDA driver"),
    ],
)
def test_known_messages_come_with_what_to_do(said: str, told: str) -> None:
    assert told in str(explain(said))


def test_time_limit_ends_the_tool(stand_in: StandIn) -> None:
    stand_in.does("time.sleep(100)")
    with pytest.raises(ProfilerError, match="too long"):
        count(subject(kind="cuda"), ["f"], timeout_s=1)


def test_counters_that_this_version_does_not_know_are_left_out_and_named(stand_in: StandIn) -> None:
    stand_in.does(
        "if 'lts__t_sector_hit_rate.pct' in asked:\n"
        "    open(log, 'w').write('==ERROR== Failed to find metric lts__t_sector_hit_rate.pct')\n    sys.exit(1)\n"
        "open(log, 'w').write(TABLE)"
    )
    got = count(subject(kind="cuda"), ["f"])
    assert got.remarks == ["this version of ncu does not know lts__t_sector_hit_rate.pct"]
    assert got.kernels[0].seconds == pytest.approx(1e-6)


def test_where_every_counter_is_refused_the_tools_own_sections_are_left(stand_in: StandIn) -> None:
    stand_in.does(
        "if asked:\n    open(log, 'w').write('==ERROR== Failed to find metric ' + asked[0])\n    sys.exit(1)\n"
        "assert 'Occupancy' in words\nopen(log, 'w').write(TABLE)"
    )
    got = count(subject(kind="cuda"), ["f"])
    assert len(got.kernels) == 1
    assert got.remarks[0].endswith(f"and {len(WANTED) - 3} more")


def test_longest_launch_of_each_kernel_first() -> None:
    launches = [counters(name="a", seconds=1), counters(name="b", seconds=5), counters(name="a", seconds=3)]
    assert [(k.name, k.seconds) for k in longest(launches, 5)] == [("b", 5), ("a", 3)]
    assert len(longest(launches, 1)) == 1


def test_a_kernel_that_the_others_crowded_out_is_asked_for_again(stand_in: StandIn) -> None:
    stand_in.does("open(log, 'w').write(TABLE if '|' in name else TABLE.replace('f()', name[8:-2] + '()'))")
    got = count(subject(kind="cuda"), ["void f<int>(int)", "rare(int)"])
    assert sorted(kernel.name for kernel in got.kernels) == ["f()", "rare()"]
