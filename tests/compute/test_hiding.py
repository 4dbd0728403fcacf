"""A spool that is hidden from what is measured: at no confinement level can a program write its own result."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.compute.spool import SpoolCompute
from stitchcuda.program.model import Program
from tests.compute.support import HEAD, PATIENCE, evaluation_of

FORGER = """
def forge():
    for root in ("", *(f"/proc/{pid}/root" for pid in os.listdir("/proc") if pid.isdigit())):
        try:
            open(f"{root}SPOOL/workers/mark", "w").write("forged")
        except OSError:
            pass

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(24, 16)
        forge()

    def forward(self, x):
        return self.layer(x).clamp_min(0)
"""

LOOSEST = """
import sys

class Loosened:
    def find_spec(self, name, path=None, target=None):
        planes = getattr(sys.modules.get("stitchcuda.evaluation.planes"), "Planes", None)
        if planes is not None:
            planes.level = "session"

sys.meta_path.insert(0, Loosened())
"""
"""Makes the machine's confinement the loosest, which leaves a program all that its user may touch."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("unhidden", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_program_that_nothing_else_confines_cannot_write_into_a_spool_that_is_hidden(
    spool: SpoolCompute, tmp_path: Path, unhidden: bool
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LOOSEST)
    program = Program(files={"program.py": "import os\n" + HEAD + FORGER.replace("SPOOL", str(spool.folder.path))})
    future = spool.submit(evaluation_of("relu", id="mine", program=program))
    command = [sys.executable, "-m", "stitchcuda.cli.main", "worker", "--spool", str(spool.folder.path), "--once"]
    command += ["--unhidden"] if unhidden else []
    environment = os.environ | {"STITCHCUDA_CACHE": str(tmp_path), "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--device", "cpu"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    forged = spool.folder.path / "workers" / "mark"
    if unhidden:
        assert forged.read_text() == "forged"  # so this is what hiding keeps from happening
        return
    assert not forged.exists()
    evaluation = future.result(PATIENCE).evaluation
    assert evaluation is not None
    assert evaluation.status == "correct", evaluation.message
    assert "session" in str(evaluation.provenance["confinement"])


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up a right of root's")
def test_where_a_spool_cannot_be_hidden_a_worker_does_not_begin(tmp_path: Path) -> None:
    def without_mounts() -> None:
        ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_ADMIN

    command = [sys.executable, "-m", "stitchcuda.cli.main", "worker", "--spool", str(tmp_path / "spool"), "--once"]
    command += ["--device", "cpu"]
    given: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "preexec_fn": without_mounts}
    refused = subprocess.run(command, **given)
    assert refused.returncode == 2
    assert "cannot hide" in refused.stderr
    assert "--unhidden" in refused.stderr
    assert subprocess.run([*command, "--unhidden"], **given).returncode == 0
