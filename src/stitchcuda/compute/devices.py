"""The devices of this machine, one by one: what a process needs in its environment to see just that one."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stitchcuda.errors import DeviceError
from stitchcuda.hardware.detect import detect
from stitchcuda.hardware.model import Device

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES would name each GPU that this process may use; empty without any."""
    given = os.environ.get(VISIBLE)
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        # Containers may have the driver and not its tools.
        nodes = sorted(int(path.name[6:]) for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit())
        return [str(place) for place in range(len(nodes))]
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def find_devices(wanted: str = "auto") -> list[tuple[Device, dict[str, str]]]:
    """The devices that ``wanted`` names, each with the environment in which it is the only one: 'cpu', 'cuda' (all
    GPUs), 'cuda:N' (the N-th visible one), or 'auto' (all GPUs, else the CPU).

    Raises DeviceError where there is no such device, or one does not answer.
    """
    kind, _, number = wanted.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and (kind != "cuda" or not number.isdigit())):
        raise DeviceError(f"unknown device '{wanted}'; use auto, cpu, cuda or cuda:N")
    gpus = visible_gpus() if kind != "cpu" else []
    if kind == "cuda" and not gpus:
        raise DeviceError("no NVIDIA GPU is visible here; use --device cpu, or look at nvidia-smi")
    if number:
        if int(number) >= len(gpus):
            raise DeviceError(f"there is no GPU {number}: {len(gpus)} visible, counted from 0")
        gpus = [gpus[int(number)]]
    if gpus:
        try:
            with ThreadPoolExecutor(len(gpus)) as pool:
                return list(pool.map(_alone, gpus))
        except DeviceError:
            if kind == "cuda":
                raise
    return [(detect("cpu"), {})]


def _alone(gpu: str) -> tuple[Device, dict[str, str]]:
    environment = {VISIBLE: gpu}
    try:
        return detect("cuda", environment), environment
    except DeviceError as error:
        raise DeviceError(f"GPU {gpu}: {error}") from None
