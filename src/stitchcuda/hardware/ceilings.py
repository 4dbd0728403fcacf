"""What the device can do at most, measured here once and cached: copy bandwidth and matrix product rates."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic import ValidationError

from stitchcuda.errors import InfrastructureError
from stitchcuda.hardware.detect import torch_version
from stitchcuda.hardware.model import Ceilings, Device


def measure(device: Device, cache: Path, *, timeout_s: float = 180) -> Ceilings:
    """The ceilings of ``device``, from the cache where the same device, driver and torch were measured before.

    Takes about 10 seconds otherwise, in a process of its own. Raises InfrastructureError when that fails.
    """
    path = cache / "ceilings" / f"{_key(device)}.json"
    with contextlib.suppress(OSError, ValidationError):
        return Ceilings.model_validate_json(path.read_text(encoding="utf-8"))
    command = [
        sys.executable,
        "-m",
        "stitchcuda.hardware.measure_ceilings",
        device.target.kind,
        str(device.cache_bytes),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"measuring the device took longer than {timeout_s:g} s; is it busy?") from None
    try:
        ceilings = Ceilings.model_validate_json(done.stdout)
    except ValidationError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InfrastructureError(f"measuring the device failed: {last}") from None
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(ceilings.model_dump_json(indent=2))
        os.replace(aside, path)
    return ceilings


def _key(device: Device) -> str:
    facts = [device.target.model_dump(), device.name, device.multiprocessors, device.driver, torch_version()]
    if device.target.kind == "cuda":
        facts.append("with the L2")
    facts.append(os.environ.get("OMP_NUM_THREADS", "") if device.target.kind == "cpu" else "")
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
