"""Nsight Systems: found on the machine, its command lines, and what its messages mean. It starts nothing itself but
``--version``; running it in the confinement is ``profiling.capture``, reading what it wrote ``profiling.nsys_db``.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stitchcuda.errors import ToolMissing

SETTING = "STITCHCUDA_NSYS"
"""Environment variable: path of nsys, or 'off' to do without it."""
LIBRARIES = "STITCHCUDA_NSYS_LIBRARIES"
"""Environment variable: folders, separated by colons, with libraries that nsys needs and the system lacks (libdw)."""
FOLDERS = (
    "/usr/local/cuda/bin",
    "/opt/nvidia/nsight-systems/*/bin",
    "/opt/nvidia/nsight-systems/*/target-linux-*",
    "/opt/nvidia/nsight-systems-cli/*/target-linux-*",
    "/usr/local/cuda-*/bin",
    "/opt/nvidia/nsight-compute/*/host/target-linux-*",
    "/usr/local/cuda*/nsight-compute-*/host/target-linux-*",
    "/usr/local/cuda*/nsight-systems-*/target-linux-*",
    "/usr/lib/nsight-systems/target-linux-*",
    "/usr/lib/*/nsight-systems/target-linux-*",
)
"""Where installers put it; Nsight Compute carries a copy of its own."""
NEEDED = re.compile(r"(lib[\w.+-]+\.so[\w.]*)(?:: cannot open shared object file|[^\n]*not found)")
_VERSION = re.compile(r"version (\d[\d.]*)")


@dataclass(frozen=True)
class Nsys:
    """The tool: where it is, its version, and folders that go onto its library path."""

    path: Path
    version: str = ""
    libraries: tuple[str, ...] = ()

    @property
    def readable(self) -> list[str]:
        """Folders that it must be able to read: its own, its importer's beside it, and its libraries'."""
        real = self.path.resolve()
        return [str(real.parent), str(real.parent.parent), *self.libraries]

    @property
    def environment(self) -> dict[str, str]:
        """What it needs in its environment."""
        if not self.libraries:
            return {}
        known = os.environ.get("LD_LIBRARY_PATH", "")
        return {"LD_LIBRARY_PATH": os.pathsep.join([*self.libraries, *filter(None, [known])])}


def find_nsys() -> Nsys:
    """The tool by $STITCHCUDA_NSYS, PATH or installers' folders, Nsight Compute's included. Raises ToolMissing."""
    given = os.environ.get(SETTING, "")
    if given == "off":
        raise ToolMissing(f"Nsight Systems is switched off by {SETTING}=off")
    libraries = tuple(folder for folder in os.environ.get(LIBRARIES, "").split(os.pathsep) if folder)
    if given:
        if not os.access(given, os.X_OK):
            raise ToolMissing(f"{SETTING} is {given}, which is no program; give the path of Nsight Systems' nsys")
        return Nsys(Path(given), _version(given), libraries)
    found = shutil.which("nsys")
    for folder in FOLDERS if found is None else ():
        for place in sorted(glob.glob(folder), reverse=True):
            if found is None and os.access(f"{place}/nsys", os.X_OK):
                found = f"{place}/nsys"
    if found is None:
        raise ToolMissing(
            "Nsight Systems (nsys) is not on this machine (looked on PATH, in /usr/local/cuda, /opt/nvidia and Nsight"
            f" Compute's folder); install it with the CUDA toolkit, or set {SETTING} to its path"
        )
    return Nsys(Path(found), _version(found), libraries)


@lru_cache(maxsize=8)
def _version(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _VERSION.search(done.stdout)
    return match[1] if match else ""


def profile_command(
    tool: Nsys, program: Sequence[str], report: str, *, traces: str = "cuda,nvtx", ranged: bool = True
) -> list[str]:
    """``nsys profile`` of ``program`` into ``report``.nsys-rep, sampling nothing and reading no other process.

    ``ranged``: record between cudaProfilerStart and cudaProfilerStop only, so that nothing before is slowed down.
    """
    words = [str(tool.path), "profile", f"--trace={traces}", "--sample=none", "--cpuctxsw=none"]
    words += ["--force-overwrite=true", "--show-output=true"]
    if "cuda" in traces.split(","):
        words += ["--cuda-graph-trace=node"]
    if ranged:
        words += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    return [*words, "--output", report, *program]


def export_command(tool: Nsys, report: str, database: str) -> list[str]:
    """``nsys export`` of ``report``.nsys-rep to an SQLite file."""
    return [
        str(tool.path),
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        "--quiet=true",
        f"--output={database}",
        f"{report}.nsys-rep",
    ]


def explain(printed: str) -> str:
    """What the tool's messages mean and what to do; its last line where they tell no known story."""
    if match := NEEDED.search(printed):
        return _library(match[1])
    if "importer" in printed.lower() and ("status" in printed or "not found" in printed):
        return (
            "nsys recorded but could not import its recording: its importer (QdstrmImporter) is missing or lacks a"
            f" library, most often libdw.so.1. {_FIX}"
        )
    if "no such option" in printed.lower() or "unrecognised option" in printed.lower():
        return "this version of nsys does not know an option that is used here; 2023.4 or newer is expected"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if re.search(r"error|fail|denied|refus", line, re.I)), None)
    return f"nsys says: {(told or (lines or ['nothing'])[-1])[:300]}"


_FIX = (
    "Install it (Debian, Ubuntu: 'apt-get install libdw1 libelf1'), or without root unpack both packages with"
    f" 'dpkg -x' and set {LIBRARIES} to the folder with libdw.so.1"
)


def _library(name: str) -> str:
    if name.startswith(("libdw", "libelf")):
        return f"nsys needs {name}, which is not on this machine. {_FIX}"
    return f"nsys needs {name}, which is not on this machine; install it, or set {LIBRARIES} to the folder that has it"


def missing_library(tool: Nsys) -> str:
    """The libdw or libelf that the importer needs and the system does not have, by ldd; '' where they are there."""
    ldd, real = shutil.which("ldd"), tool.path.resolve()
    if ldd is None:
        return ""
    importers = [real.parent / "QdstrmImporter", *real.parent.parent.glob("*linux-*/QdstrmImporter")]
    for importer in importers:
        if not importer.is_file():
            continue
        path = os.pathsep.join([*tool.libraries, str(importer.parent), str(real.parent)])
        done = subprocess.run(
            [ldd, str(importer)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={"LD_LIBRARY_PATH": path, "PATH": os.environ.get("PATH", "")},
        )
        # Others may be for features that are not used here.
        if match := re.search(r"(lib(?:dw|elf)\S*) => not found", done.stdout):
            return match[1]
    return ""
