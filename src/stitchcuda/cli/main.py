"""The ``stitchcuda`` command: registers the verbs; each verb's file imports its rooms when it runs."""

from __future__ import annotations

import sys

import typer

from stitchcuda import __version__

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


def main() -> None:
    """Entry point: user-facing errors become one sentence on stderr and the contract's exit code."""
    from stitchcuda.errors import StitchError

    try:
        app()
    except StitchError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
