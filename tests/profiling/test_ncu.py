"""Nsight Compute is started with a clean environment, within its time, and its refusals come with a fix."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import sys
import time
from pathlib import Path

import pytest

from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.profiling.metrics import SECTIONS, WANTED
from stitchcuda.profiling.ncu import clean_environment, collect, command, explain, find_ncu, function_name, longest, top
from tests.profiling.counters import counters

NCU = Path("/opt/ncu")


def tool(folder: Path, body: str) -> Path:
    """A program that stands where ncu would, for what no machine without a GPU can make the real one do."""
    path = folder / "ncu"
    path.write_text(
        f"#!{sys.executable}\nimport os, sys, time\n"
        "if sys.argv[1] in ('--version', '--query-metrics-mode'):\n    sys.exit()\n"
        f"log = sys.argv[sys.argv.index('--log-file') + 1]\n{body}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def ends(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process is gone, or dead and not yet collected, before the time is up."""
    limit = time.monotonic() + within_s
    while time.monotonic() < limit:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


TABLE = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","gpu__time_duration.sum"\\n"","","","","","","","","","","","ns"\\n'
    '"0","1","x","h","f()","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0","1000"\\n'
)


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


def test_sections_are_those_of_the_question() -> None:
    words = command(NCU, ["x"], log=Path("log"), questions=["stalls"], metrics=())
    sections = [b for a, b in itertools.pairwise(words) if a == "--section"]
    assert sections == [*SECTIONS["limits"], "SchedulerStats", "WarpStateStats"]


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


def test_no_key_reaches_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    environment = clean_environment(tmp_path)
    assert "sk-planted" not in environment.values()
    assert environment["CUDA_VISIBLE_DEVICES"] == "0"
    seen = tool(
        tmp_path, f"open(log, 'w').write('{TABLE}')\nopen({str(tmp_path / 'env')!r}, 'w').write(str(dict(os.environ)))"
    )
    collect(["true"], ncu=seen)
    assert "sk-planted" not in (tmp_path / "env").read_text()


def test_missing_tool_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("stitchcuda.profiling.ncu.FOLDERS", ("/nowhere/*",))
    monkeypatch.delenv("STITCHCUDA_NCU", raising=False)
    with pytest.raises(ToolMissing, match="STITCHCUDA_NCU"):
        find_ncu()


def test_refused_permission_is_explained(tmp_path: Path) -> None:
    refusing = tool(
        tmp_path, "open(log, 'w').write('==ERROR== ERR_NVGPUCTRPERM - The user does not have permission')\nsys.exit(1)"
    )
    with pytest.raises(ProfilerError, match="NVreg_RestrictProfilingToAdminUsers=0"):
        collect(["true"], ncu=refusing)


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


def test_time_limit_ends_the_tool_and_what_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    hanging = tool(
        tmp_path,
        "import subprocess\np = subprocess.Popen(['sleep', '100'])\n"
        f"open({str(child)!r}, 'w').write(str(p.pid))\ntime.sleep(100)",
    )
    start = time.monotonic()
    with pytest.raises(ProfilerError, match="stopped after"):
        collect(["true"], ncu=hanging, timeout_s=2)
    assert time.monotonic() - start < 20
    assert ends(int(child.read_text()))


def test_counters_that_this_version_does_not_know_are_left_out_and_named(tmp_path: Path) -> None:
    picky = tool(
        tmp_path,
        "if 'gone__metric.sum' in ' '.join(sys.argv):\n"
        "    open(log, 'w').write('==ERROR== Failed to find metric gone__metric.sum')\n    sys.exit(1)\n"
        f"open(log, 'w').write('{TABLE}')",
    )
    got = collect(["true"], ncu=picky, metrics=["gone__metric.sum", "gpu__time_duration.sum"])
    assert got.left_out == ["gone__metric.sum"]
    assert got.kernels[0].seconds == pytest.approx(1e-6)


def test_longest_launch_of_each_kernel_first() -> None:
    launches = [counters(name="a", seconds=1), counters(name="b", seconds=5), counters(name="a", seconds=3)]
    assert [(k.name, k.seconds) for k in longest(launches, 5)] == [("b", 5), ("a", 3)]
    assert len(longest(launches, 1)) == 1


def test_a_kernel_that_the_others_crowded_out_is_asked_for_again(tmp_path: Path) -> None:
    crowded = tool(
        tmp_path,
        "name = sys.argv[sys.argv.index('--kernel-name') + 1]\n"
        f"table = '{TABLE}'\n"
        "open(log, 'w').write(table if '|' in name else table.replace('f()', name[8:-2] + '()'))",
    )
    got = top(["true"], ["void f<int>(int)", "rare(int)"], ncu=crowded)
    assert sorted(kernel.name for kernel in got.kernels) == ["f()", "rare()"]


def test_where_every_counter_is_refused_the_tools_own_sections_are_asked_for(tmp_path: Path) -> None:
    refusing = tool(
        tmp_path,
        "if '--metrics' in sys.argv:\n"
        "    asked = sys.argv[sys.argv.index('--metrics') + 1].split(',')\n"
        "    open(log, 'w').write('==ERROR== Failed to find metric ' + asked[0])\n    sys.exit(1)\n"
        f"assert 'WarpStateStats' in sys.argv\nopen(log, 'w').write('{TABLE}')",
    )
    got = collect(["true"], ncu=refusing, metrics=["a__b.sum", "c__d.sum", "e__f.sum", "g__h.sum"])
    assert got.left_out == ["a__b.sum", "c__d.sum", "e__f.sum", "g__h.sum"]
    assert len(got.kernels) == 1


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("ncu") is None, reason="ncu is not here")
def test_counters_of_a_real_kernel() -> None:
    program = "import torch; x = torch.ones(1 << 26, device='cuda'); x.add_(1); torch.cuda.synchronize()"
    if os.system(f'{sys.executable} -c "import torch, sys; sys.exit(not torch.cuda.is_available())"'):
        pytest.skip("no GPU")
    got = collect([sys.executable, "-c", program], timeout_s=240)
    assert got.kernels
    assert longest(got.kernels, 1)[0].metrics["launch__sm_count"] > 0
