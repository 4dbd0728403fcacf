"""Where a number comes from, and files that are never half-written: shared by the scripts in this folder.

Standard library only, so that it runs on a GPU machine without an installation.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def commit() -> str:
    """The commit that is measured: STITCHCUDA_COMMIT, a file COMMIT in the checkout, or git; '+changes' when dirty."""
    given = os.environ.get("STITCHCUDA_COMMIT", "").strip()
    if given:
        return given
    recorded = ROOT / "COMMIT"
    if recorded.is_file():
        return recorded.read_text().strip()
    try:
        head = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
        )
        dirty = subprocess.run(
            ["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no", "--", "src"],
            capture_output=True,
            text=True,
        )
    except OSError:
        return "unknown"
    if head.returncode != 0:
        return "unknown"
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def processor() -> str:
    """The CPU's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def host_provenance() -> dict[str, object]:
    """Commit, date, machine and Python; no torch import."""
    return {
        "commit": commit(),
        "date": now(),
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def gpu_provenance() -> dict[str, object]:
    """Host facts plus GPU, driver, torch and CUDA versions; GPU fields are empty where there is none."""
    record = host_provenance()
    record |= {"gpu": "", "driver": ""}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=60)
        if answer.returncode == 0 and answer.stdout.strip():
            name, driver = (part.strip() for part in answer.stdout.splitlines()[0].split(","))
            record |= {"gpu": name, "driver": driver}
    except (OSError, subprocess.TimeoutExpired):
        pass
    return record | torch_versions()


def torch_versions() -> dict[str, object]:
    """torch's version and the CUDA it was built for, read from its files: importing it would take seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {"torch": "", "cuda": ""}
    names: dict[str, object] = {}
    exec((Path(spec.origin).parent / "version.py").read_text(), names)
    return {"torch": str(names.get("__version__", "")), "cuda": str(names.get("cuda") or "")}


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` in one step: readers see the old text or the new, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    scratch.replace(path)


def write_json(path: Path, value: object) -> None:
    """``write_text`` of indented JSON."""
    write_text(path, json.dumps(value, indent=1, sort_keys=False) + "\n")
