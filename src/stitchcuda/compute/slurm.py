"""An sbatch script whose tasks are workers on a spool. Submitting it is left to sbatch."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.errors import StitchError, ToolMissing

_PLAIN = re.compile(r"[A-Za-z0-9_.:,@+/-]*")
"""What may stand in an #SBATCH line: a blank or a line's end would begin another option."""
GRACE_SECONDS = 60
"""Between SIGTERM, at which a worker puts its job back, and the end of its time."""


class Slurm(BaseModel):
    """What each worker asks of the cluster."""

    model_config = ConfigDict(frozen=True)

    spool: Path
    workers: int = Field(default=1, ge=1, description="size of the job array")
    gpus: int = Field(default=1, ge=0)
    gpu_kind: str = ""
    cpus: int = Field(default=8, ge=1)
    memory: str = "64G"
    time: str = "04:00:00"
    idle: int = Field(
        default=1800, ge=1, description="seconds without a job after which a worker ends; a run's rounds lie apart"
    )
    partition: str = ""
    account: str = ""
    setup: str = Field(default="", description="a shell line run first")
    python: str = Field(default="", description="of the nodes; empty: this one")
    unhidden: bool = Field(default=False, description="work also where the spool cannot be hidden from programs")

    def script(self) -> str:
        """The script. Raises StitchError for a value that no #SBATCH line can hold."""
        options = {
            "job-name": "stitchcuda-worker",
            "array": f"0-{self.workers - 1}",
            "cpus-per-task": str(self.cpus),
            "mem": self.memory,
            "time": self.time,
            "signal": f"B:TERM@{GRACE_SECONDS}",
            "output": "stitchcuda-worker-%A_%a.log",
        }
        if self.gpus:
            options["gres"] = f"gpu:{self.gpu_kind}:{self.gpus}" if self.gpu_kind else f"gpu:{self.gpus}"
        if self.partition:
            options["partition"] = self.partition
        if self.account:
            options["account"] = self.account
        for name, value in options.items():
            if name != "output" and not _PLAIN.fullmatch(value):
                raise StitchError(
                    f"--{name} {value!r} is no value for an #SBATCH line; use letters, digits and .:,@+/-"
                )
        lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in options.items()), "set -e"]
        if self.setup:
            lines.append(self.setup)
        device = "cuda" if self.gpus else "cpu"
        spool, python = shlex.quote(str(self.spool)), shlex.quote(self.python or sys.executable)
        more = " --unhidden" if self.unhidden else ""
        lines += [
            "# exec: the worker itself gets SIGTERM before the time is up, and puts its job back.",
            f"exec {python} -m stitchcuda.cli.main worker --spool {spool} --device {device} --idle {self.idle}{more}",
        ]
        return "\n".join(lines) + "\n"


def submit_script(script: str) -> str:
    """Hand a script to Slurm, and give its answer. Raises ToolMissing without sbatch."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise ToolMissing("sbatch is not on this machine; write the script with --out, and submit it where it is")
    with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as file:
        file.write(script)
        file.flush()
        done = subprocess.run([sbatch, file.name], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise StitchError(f"sbatch refused the script: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()
