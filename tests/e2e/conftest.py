"""The wheel, an environment with it alone, and the demo run there once: what the tests of this folder look at."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SMALLEST = "postprocess"
"""The example that is bound by memory, which must gain."""


@dataclass(frozen=True)
class Demo:
    """One example, taken through the demo of an installed wheel."""

    python: Path
    folder: Path
    run: Path
    printed: str


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(CHECKOUT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; its dependencies come from this one's site-packages."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    # Paths that a .pth file adds are not searched for further .pth files, so the editable install stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def outside() -> dict[str, str]:
    """An environment in which nothing points at the checkout."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture(scope="session")
def demo(installed: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The smallest example, optimised outside the checkout."""
    folder = tmp_path_factory.mktemp("demo")
    command = [str(installed), "-m", "stitchcuda.demo", SMALLEST, "--target", "cpu", "--out", str(folder / "runs")]
    environment = outside() | {"STITCHCUDA_CACHE": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=560)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "runs").iterdir()
    return Demo(installed, folder, run, done.stdout)
