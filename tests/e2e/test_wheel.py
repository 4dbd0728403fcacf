"""The built wheel carries everything: the demo runs from it, installed outside the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SMALLEST = "postprocess"

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(CHECKOUT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
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


def test_every_file_of_the_package_and_the_examples_is_in_the_wheel(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = CHECKOUT / "src"
    listed = subprocess.run(["git", "-C", str(CHECKOUT), "ls-files", "src", "examples"], capture_output=True, text=True)
    tracked = [CHECKOUT / line for line in listed.stdout.splitlines() if (CHECKOUT / line).is_file()]
    assert tracked, listed.stderr
    expected = {
        path.relative_to(source).as_posix() if source in path.parents else f"stitchcuda/{path.relative_to(CHECKOUT)}"
        for path in tracked
    }
    assert expected <= packed, sorted(expected - packed)


def test_the_demo_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    where = [str(installed), "-c", "import stitchcuda; print(stitchcuda.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=tmp_path, env=outside(), check=True).stdout
    assert str(installed.parent.parent) in found

    command = [str(installed), "-m", "stitchcuda.demo", SMALLEST, "--target", "cpu", "--out", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=outside(), timeout=560)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SMALLEST} " in done.stdout
    (summary,) = (tmp_path / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["status"] == "correct"
