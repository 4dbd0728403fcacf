"""The built wheel carries everything: the demo runs from it, installed outside the checkout."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.e2e.conftest import CHECKOUT, SMALLEST, Demo, outside

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]


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


def test_the_demo_runs_from_the_wheel(demo: Demo) -> None:
    where = [str(demo.python), "-c", "import stitchcuda; print(stitchcuda.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=demo.folder, env=outside(), check=True).stdout
    assert str(demo.python.parent.parent) in found
    assert f"{SMALLEST} " in demo.printed
    assert json.loads((demo.run / "summary.json").read_text())["status"] == "correct"
