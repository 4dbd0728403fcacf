"""``stitchcuda integrity matrix``: run a corpus of cheating and honest programs and print who caught what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stitchcuda.evaluation.evaluator import Evaluator
    from stitchcuda.evaluation.integrity.matrix import Matrix, Row


def register(app: typer.Typer) -> None:
    """Add the verb and its sub-verb."""
    verb = typer.Typer(help="Test the defences against cheating.", no_args_is_help=True)
    verb.callback()(lambda: None)
    verb.command("matrix")(matrix)
    app.add_typer(verb, name="integrity")


def matrix(
    corpus: Annotated[Path, typer.Option(help="Folder with catalogue*.toml, tasks/ and programs.")],
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    tier: Annotated[str, typer.Option(help="screen or publish.")] = "screen",
    only: Annotated[
        list[str] | None, typer.Option(help="Run programs whose id contains this; may be given several times.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the matrix as JSON.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the matrix as Markdown.")
    ] = None,
) -> None:
    """Evaluate every program of a corpus twice, once so that each layer
    looks however early another rejected, and print program x layer.

    Exit code 0: no exploit passed and every honest program did; 1: not.
    """
    from stitchcuda.cli._session import open_session
    from stitchcuda.errors import StitchError
    from stitchcuda.evaluation.integrity import matrix as rows
    from stitchcuda.evaluation.integrity.corpus import load_corpus
    from stitchcuda.report.terminal import new_console

    if target not in ("cpu", "cuda"):
        raise StitchError(f"unknown target '{target}'; use cpu or cuda")
    if tier not in ("screen", "publish"):
        raise StitchError(f"unknown tier '{tier}'; use screen or publish")
    chosen = load_corpus(corpus)
    console = new_console()

    @contextmanager
    def opener(task: Path) -> Iterator[Evaluator]:
        with open_session(str(task), target=target) as session:
            yield session.evaluator

    def seen(row: Row) -> None:
        mark = "  " if row.as_wanted else "! "
        layers = " ".join(row.found) or "-"
        console.print(f"{mark}{row.specimen.id}: {row.status} [{row.seconds:.1f} s] {layers}", markup=False)

    result = rows.run_matrix(
        chosen,
        "cuda" if target == "cuda" else "cpu",
        opener,
        tier="publish" if tier == "publish" else "screen",
        only=only or (),
        seen=seen,
    )
    if json_file is not None:
        json_file.write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(rows.markdown(result), encoding="utf-8")
    _show(result)
    if result.survivors or result.wronged or not result.rows:
        raise typer.Exit(1)


def _show(result: Matrix) -> None:
    from rich.markup import escape
    from rich.table import Table

    from stitchcuda.evaluation.integrity.matrix import cell, totals, used_layers
    from stitchcuda.report.terminal import new_console

    console = new_console()
    layers = used_layers(result)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("program", *layers, "status"):
        table.add_column(name, overflow="fold")
    for row in result.rows:
        colour = "green" if row.as_wanted else "red"
        cells = [escape(cell(row, layer)) for layer in layers]
        table.add_row(row.specimen.id, *cells, f"[{colour}]{row.status}[/]")
    console.print(table)
    for line in totals(result):
        console.print(escape(line), highlight=False)
