"""The batch script: a worker for each task of the array, told when its time is up; nothing can be smuggled in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stitchcuda.compute.slurm import Slurm, submit_script
from stitchcuda.errors import StitchError, ToolMissing


def test_each_task_of_the_array_is_a_worker_that_ends_after_half_an_hour_without_a_job() -> None:
    script = Slurm(spool=Path("/shared/my spool"), workers=4, gpus=1, gpu_kind="h200", partition="gpu").script()
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    for line in ("--array=0-3", "--gres=gpu:h200:1", "--partition=gpu", "--signal=B:TERM@60"):
        assert f"#SBATCH {line}\n" in script
    assert script.rstrip().endswith("worker --spool '/shared/my spool' --device cuda --idle 1800")
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_a_setup_may_ask_for_variables_that_are_not_set_as_environments_do(tmp_path: Path) -> None:
    setup = tmp_path / "activate"
    setup.write_text('if [ -z "$CERTAINLY_NOT_SET" ]; then echo ready; fi\n')
    script = Slurm(spool=tmp_path, setup=f"source {setup}", python="true").script()
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ready\n")


def test_the_script_is_written_by_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "worker.sh"
    command = [sys.executable, "-m", "stitchcuda.cli.main", "worker", "slurm", "--spool", str(tmp_path)]
    options = ["--gpus", "0", "--idle", "60", "--unhidden", "--out", str(out)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    assert "--device cpu --idle 60 --unhidden\n" in out.read_text()


@pytest.mark.parametrize("value", ["gpu\n#SBATCH --uid=0", "a b", "$(id)", "x;y"])
def test_a_value_cannot_begin_another_option(value: str) -> None:
    with pytest.raises(StitchError, match="partition"):
        Slurm(spool=Path("/s"), partition=value).script()


def test_submitting_gives_what_sbatch_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Slurm(spool=tmp_path).script()
    if shutil.which("sbatch") is None:
        with pytest.raises(ToolMissing, match="--out"):
            submit_script(script)
    # The cluster's own command, as far as a script sees it: takes a file, answers with a number or a complaint.
    sbatch = tmp_path / "sbatch"
    sbatch.write_text('#!/bin/sh\ngrep -q "stitchcuda.cli.main worker" "$1" && echo "Submitted batch job 7"\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert submit_script(script) == "Submitted batch job 7"
    sbatch.write_text('#!/bin/sh\necho "invalid account" >&2\nexit 1\n')
    with pytest.raises(StitchError, match="invalid account"):
        submit_script(script)
