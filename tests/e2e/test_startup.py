"""The command line starts fast because help imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "pydantic", "pydantic_ai", "jinja2", "numpy", "httpx", "openai", "anthropic")

LOADED = f"""
import json, sys
sys.argv = ["stitchcuda", *sys.argv[1:]]
from stitchcuda.cli.main import main
try:
    main()
except SystemExit as end:
    code = end.code
print("\\n" + json.dumps([code, [name for name in {HEAVY!r} if name in sys.modules]]))
"""


def verbs() -> list[str]:
    """The verbs that the command registers."""
    code = (
        "import typer.main\nfrom stitchcuda.cli.main import app, register_verbs\nregister_verbs()\n"
        "print(*getattr(typer.main.get_command(app), 'commands', {}))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in verbs())], ids=" ".join)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, timeout=60)
    code, loaded = json.loads(done.stdout.splitlines()[-1])
    assert code in (0, None), done.stderr
    assert loaded == []
