"""The command line starts fast because help imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "pydantic", "pydantic_ai", "jinja2", "numpy", "httpx", "openai", "anthropic")
LIGHT = ("stitchcuda.cli", "stitchcuda.errors")
"""What of the package itself the command may import to print help."""

LOADED = f"""
import json, sys
sys.argv = ["stitchcuda", *sys.argv[1:]]
from stitchcuda.cli.main import main
try:
    main()
except SystemExit as end:
    code = end.code
rooms = [name for name in sys.modules if name.startswith("stitchcuda.") and not name.startswith({LIGHT!r})]
print("\\n" + json.dumps([code, [name for name in {HEAVY!r} if name in sys.modules], rooms]))
"""


def verbs() -> list[str]:
    """The verbs that the command registers."""
    code = (
        "import typer.main\nfrom stitchcuda.cli.main import app, register_verbs\nregister_verbs()\n"
        "print(*getattr(typer.main.get_command(app), 'commands', {}))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def help_of(*verb: str) -> tuple[set[str], list[str]]:
    """Heavy modules and rooms of the package that ``stitchcuda VERB --help`` imports."""
    command = [sys.executable, "-c", LOADED, *verb, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    code, heavy, rooms = json.loads(done.stdout.splitlines()[-1])
    assert code in (0, None), done.stderr
    return set(heavy), rooms


def test_help_imports_nothing_heavy() -> None:
    assert help_of() == (set(), [])


@pytest.mark.parametrize("verb", verbs())
def test_the_help_of_a_verb_imports_none_of_its_rooms(verb: str) -> None:
    heavy, rooms = help_of(verb)
    # Recent versions of typer read options with pydantic.
    assert heavy <= {"pydantic"}
    assert rooms == []
