"""The ``stitchcuda`` command: registers the verbs; each verb's file imports its rooms when it runs."""

from __future__ import annotations

import importlib
import pkgutil
import signal
import sys
from types import FrameType
from typing import NoReturn

import typer

from stitchcuda import __version__, cli

ORDER = ("init", "optimize", "evaluate", "profile", "baseline", "runs", "knowledge", "doctor")
"""Verbs in the order that ``--help`` shows them; others follow by name."""

app = typer.Typer(
    name="stitchcuda",
    help="A PyTorch program in, a faster one in CUDA C++ out: proven correct, measured honestly, explained.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    """Options before the verb."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def register_verbs() -> None:
    """Let every file of this package add its verb; each imports nothing heavy until the verb runs."""
    names = {info.name for info in pkgutil.iter_modules(cli.__path__)} - {"main"}
    for name in [*(n for n in ORDER if n in names), *sorted(names - set(ORDER))]:
        module = importlib.import_module(f"stitchcuda.cli.{name}")
        if hasattr(module, "register"):
            module.register(app)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Leave in order, so that every process that a verb started is ended on the way out."""
    sys.exit(128 + signal.SIGTERM)


def _not_raised(problem: sys.UnraisableHookArgs) -> None:
    """Leave a moment later where the signal came in a place that no exception leaves, such as a finalizer."""
    if problem.exc_type is SystemExit:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
    else:
        sys.__unraisablehook__(problem)


def main() -> None:
    """Entry point: user-facing errors become one sentence on stderr and the contract's exit code."""
    from stitchcuda.errors import StitchError

    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _end)
    sys.unraisablehook = _not_raised
    register_verbs()
    try:
        app()
    except StitchError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"error: {error.filename}: {error.strerror}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
