"""What is profiled runs confined, without the caller's secrets, for a bounded time; and a profile comes of it."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path

import pytest

import stitchcuda.evaluation
from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.hardware.model import Device
from stitchcuda.profiling import capture
from stitchcuda.profiling.capture import Subject, record
from stitchcuda.profiling.chrome_trace import chrome_trace
from stitchcuda.profiling.confinement import PERFMON, SYS_ADMIN, WORK, run_confined
from stitchcuda.profiling.measure import measure
from stitchcuda.profiling.nsys import SETTING, explain, export_command, find_nsys, profile_command
from stitchcuda.profiling.nsys_db import read
from stitchcuda.profiling.recording import CALL, Recording
from stitchcuda.task.model import Target, Task, TaskFacts, TensorFacts

SOURCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)
    def forward(self, x):
        return torch.relu(self.layer(x))
def get_inputs():
    return [torch.randn(32, 64)]
def get_init_inputs():
    return [64]
"""
CPU = Device(
    target=Target(kind="cpu", arch="native"), name="a CPU", multiprocessors=2, memory_bytes=1 << 30, cache_bytes=1 << 20
)
FACTS = TaskFacts(
    inputs=[TensorFacts(shape=(32, 64), dtype="float32")],
    outputs=[TensorFacts(shape=(32, 64), dtype="float32")],
    parameters=64 * 65,
    stochastic=False,
    seedable=True,
    training=True,
    mutates_state=False,
    eager_seconds=1e-4,
)


def subject(source: str = SOURCE, kind: str = "cpu") -> Subject:
    target = Target(kind="cuda", arch="sm_90") if kind == "cuda" else Target(kind="cpu", arch="native")
    return Subject(Task(name="small", origin="here", source=source, target=target), FACTS)


def shell(script: str, *outputs: str, timeout_s: float = 20) -> tuple[dict[str, bytes], list[int | None], str]:
    done = run_confined(
        [["/bin/sh", "-c", f"cd {WORK}; {script}"]], {"in.txt": b"given"}, outputs, level="full", timeout_s=timeout_s
    )
    return done.files, done.codes, done.printed


def test_files_go_in_and_out_and_the_callers_secrets_stay_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-secret-0123456789")
    files, codes, printed = shell("env > env.txt; cp in.txt out.txt; echo hello", "env.txt", "out.txt", "none.txt")
    assert codes == [0]
    assert files["out.txt"] == b"given"
    assert b"PATH=" in files["env.txt"]
    assert b"planted" not in files["env.txt"]
    assert b"MY_API_KEY" not in files["env.txt"]
    assert "none.txt" not in files
    assert "hello" in printed


def test_a_confined_command_writes_nothing_outside_and_is_stopped_in_time(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    files, codes, _ = shell(
        f"echo x > {tmp_path}/made; echo y > /tmp/made; sleep 60; echo z > late", "late", timeout_s=2
    )
    assert codes == [None]
    assert files == {}
    assert not (tmp_path / "made").exists()
    assert not Path("/tmp/made").exists()


def test_no_profiler_is_reachable_from_where_verdicts_are_made() -> None:
    """Evaluations cannot be changed by what they never call."""
    for path in Path(stitchcuda.evaluation.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.startswith("stitchcuda.profiling") for name in names), path


def test_a_reference_is_recorded_and_made_a_profile() -> None:
    found = measure(subject(), CPU, keep=True, counters=1)
    profile = found.profile
    assert profile.device == CPU.name
    if profile.processor is None:
        assert [remark for remark in profile.remarks if remark.startswith("without counters: ")]
    else:  # this machine has perf, and lets it count
        assert profile.processor.calls >= 3
        assert 0 < profile.processor.core_seconds < profile.processor.wall_seconds * (os.cpu_count() or 1) * 1.1
    assert (profile.source, profile.subject) == ("kineto", "reference")
    assert len(found.recording.windows(CALL)) == 3
    assert {"aten::addmm", "aten::clamp_min"} & {kernel.name for kernel in profile.kernels}
    assert profile.timeline.wall_seconds > 0
    assert profile.timeline.busy_seconds <= profile.timeline.wall_seconds * 1.001
    assert found.work.flops == pytest.approx(2 * 32 * 64 * 64)
    assert found.work.bytes == 4 * (2 * 32 * 64 + 64 * 65)
    assert json.loads(found.files["trace.json"])["traceEvents"]
    drawn = json.loads(chrome_trace(found.recording, title="small"))
    spans = [event for event in drawn["traceEvents"] if event["ph"] == "X"]
    assert {"name", "ts", "dur", "pid", "tid"} <= set(spans[0])
    assert min(event["ts"] for event in spans) >= 0
    assert sum(event["cat"] == "call" for event in spans) == 3


def test_a_subject_that_fails_is_told_by_its_own_error() -> None:
    broken = SOURCE.replace("torch.relu(self.layer(x))", "self.layer(x) + torch.ones(7)")
    with pytest.raises(ProfilerError, match="RuntimeError: The size of tensor"):
        record(subject(broken))


def test_without_nsys_the_fall_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "off")
    asked: list[str] = []

    def by_kineto(subject: Subject, timeout_s: float) -> capture.Taken:
        asked.append("kineto")
        return capture.Taken(Recording("kineto"), 1.0)

    monkeypatch.setattr(capture, "_by_kineto", by_kineto)
    taken = record(subject(kind="cuda"))
    assert asked == ["kineto"]
    assert "switched off" in taken.remarks[0]
    with pytest.raises(ToolMissing):
        record(subject(kind="cuda"), "nsys")
    with pytest.raises(ProfilerError, match="cpu target"):
        record(subject(), "nsys")


def test_the_real_nsight_systems_records_in_the_confinement(tmp_path: Path) -> None:
    """Without a GPU there is nothing to see, but everything has to work: sockets, semaphores, the importer."""
    try:
        tool = find_nsys()
    except ToolMissing as error:
        pytest.skip(str(error))
    script = b"import time; time.sleep(0.2)"
    commands = [
        profile_command(tool, [sys.executable, f"{WORK}/t.py"], f"{WORK}/rep", traces="nvtx", ranged=False),
        export_command(tool, f"{WORK}/rep", f"{WORK}/rep.sqlite"),
    ]
    done = run_confined(
        commands,
        {"t.py": script},
        ["rep.nsys-rep", "rep.sqlite"],
        level="full",
        timeout_s=60,
        environment=tool.environment,
        readable=tool.readable,
    )
    if "importer" in done.printed.lower():
        pytest.skip(explain(done.printed))
    assert done.ok, done.printed
    path = tmp_path / "rep.sqlite"
    path.write_bytes(done.files["rep.sqlite"])
    assert "no kernel" in read(path).remarks[0]


PEEK = b"""
import json, os, socket
from pathlib import Path
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
try:
    socket.create_connection(("192.0.2.1", 80), timeout=2)
    outside = "reached"
except OSError as error:
    outside = error.strerror
def closed(path):
    try:
        os.close(os.open(path, os.O_WRONLY))
        return not os.path.exists(path)
    except OSError:
        return True
settings = [closed("/proc/sys/kernel/core_pattern"), closed("/proc/sysrq-trigger"), closed("/etc/hostname")]
status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
seen = {"outside": outside, "uid": os.getuid(), "caps": int(status["CapEff"], 16), "filter": status["Seccomp"]}
Path("seen.json").write_text(json.dumps(seen | {"closed": all(settings)}))
"""


@pytest.mark.parametrize(("level", "counters"), [("full", False), ("full", True), ("same_user", True)])
def test_profilers_have_a_loopback_and_no_more_rights_than_they_need(level: str, counters: bool) -> None:
    done = run_confined(
        [[sys.executable, "-I", f"{WORK}/peek.py"]],
        {"peek.py": PEEK},
        ["seen.json"],
        level=level,
        timeout_s=30,
        counters=counters,
    )
    assert done.codes == [0], done.printed
    seen = json.loads(done.files["seen.json"])
    assert seen["outside"] == "Network is unreachable"
    assert seen["filter"] == "2"
    assert seen["closed"], "the kernel's settings and the disk are read-only, for root too"
    if os.geteuid() == 0:
        assert (seen["uid"] == 0) == counters
        assert seen["caps"] == ((1 << SYS_ADMIN | 1 << PERFMON) if counters else 0)
