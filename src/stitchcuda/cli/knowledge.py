"""``stitchcuda knowledge``: add, search, list and remove what the agents can look up."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from stitchcuda.knowledge.model import AddReport, Passage

knowledge = typer.Typer(help="Documents, headers and notes that the agents look up.", no_args_is_help=True)

_INDEX = typer.Option(None, "--index", help="Index file; default: knowledge.sqlite in the cache folder.")
_JSON = typer.Option(False, "--json", help="Print one JSON object.")
_EMBEDDER = typer.Option(
    None,
    "--embedder",
    envvar="STITCHCUDA_EMBEDDER",
    help="Vectors beside the words: a sentence-transformers folder, or the base URL of an OpenAI-compatible endpoint.",
)
_EMBEDDING_MODEL = typer.Option(
    None, "--embedding-model", envvar="STITCHCUDA_EMBEDDING_MODEL", help="The model's name at the endpoint."
)


def _architectures(names: list[str]) -> tuple[str, ...]:
    from stitchcuda.knowledge.tagging import normalize_arch

    try:
        return normalize_arch(names)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--arch") from error


@knowledge.command()
def add(
    sources: list[str] = typer.Argument(None, help="Files, folders, archives (zip, tar, whl) or http(s) URLs."),
    from_toolkit: bool = typer.Option(
        False, "--from-toolkit", help="Add what is installed of CUDA, cuBLAS, cuDNN, CUTLASS, CUB and Nsight."
    ),
    run: list[Path] = typer.Option([], "--run", help="Add the best program of a finished run, with its measured gain."),
    version: str = typer.Option("", "--version", help="Version of the documents, shown in citations."),
    arch: list[str] = typer.Option([], "--arch", help="Architecture the documents are about (sm_90, hopper, sm_80+)."),
    library: list[str] = typer.Option([], "--library", help="Library the documents are about (cublas, cutlass, ...)."),
    embedder: str | None = _EMBEDDER,
    embedding_model: str | None = _EMBEDDING_MODEL,
    index: Path | None = _INDEX,
    as_json: bool = _JSON,
) -> None:
    """Read documents into the index. Adding again refreshes what changed; nothing is fetched unless named here."""
    from stitchcuda.errors import KnowledgeError
    from stitchcuda.knowledge.embedding import embed_missing, embedder_from
    from stitchcuda.knowledge.index import open_index
    from stitchcuda.knowledge.ingest import add_source
    from stitchcuda.knowledge.model import Tags
    from stitchcuda.knowledge.snippets import add_run
    from stitchcuda.knowledge.toolkit import files_of, installed_parts

    if not sources and not from_toolkit and not run:
        raise typer.BadParameter("name a file, folder, archive or URL, or use --from-toolkit or --run")
    tags = Tags(_architectures(arch), tuple(name.lower() for name in library))
    vectors = embedder_from(embedder, embedding_model)
    store = open_index(index, writable=True)
    reports: list[AddReport] = []
    failed: list[str] = []
    for source in sources or []:
        try:
            reports.append(add_source(store, source, version=version, tags=tags))
        except KnowledgeError as error:
            failed.append(str(error))
    if from_toolkit:
        for part in installed_parts():
            reports.append(
                add_source(
                    store,
                    part.name,
                    uri=f"toolkit:{part.name}",
                    files=files_of(part),
                    version=version or part.version,
                    tags=tags,
                )
            )
    reports.extend(add_run(store, folder) for folder in run)
    embedded = embed_missing(store, vectors) if vectors is not None else 0
    if as_json:
        typer.echo(json.dumps({"sources": [asdict(r) for r in reports], "failed": failed, "embedded": embedded}))
    else:
        for report in reports:
            _print_report(report)
        for message in failed:
            typer.echo(f"refused: {message}", err=True)
        if vectors is not None:
            typer.echo(f"{embedded} passages embedded by {vectors.name}")
    nothing = not any(r.added + r.replaced + r.unchanged for r in reports)
    if failed or (nothing and any(r.refused for r in reports)):
        raise typer.Exit(1)


def _print_report(report: AddReport) -> None:
    typer.echo(
        f"{report.uri}: {report.added} added, {report.replaced} replaced, {report.unchanged} unchanged, "
        f"{report.removed} removed; {report.chunks} passages in {report.seconds:.1f} s"
        + (f"; {report.skipped} files of other kinds skipped" if report.skipped else "")
    )
    for refusal in report.refused[:20]:
        typer.echo(f"  refused: {refusal.name} {refusal.reason}", err=True)
    if len(report.refused) > 20:
        typer.echo(f"  ... and {len(report.refused) - 20} more refused", err=True)


@knowledge.command()
def search(
    query: list[str] = typer.Argument(help="Words, symbols or an error message."),
    arch: list[str] = typer.Option([], "--arch", help="Only what holds for this architecture (sm_90, hopper)."),
    library: list[str] = typer.Option([], "--library", help="Only what is about this library."),
    limit: int = typer.Option(5, "--limit", "-n", min=1, max=100, help="Passages at most."),
    embedder: str | None = _EMBEDDER,
    embedding_model: str | None = _EMBEDDING_MODEL,
    index: Path | None = _INDEX,
    as_json: bool = _JSON,
) -> None:
    """Print the best passages with title, source and score. Exit 1 when there is none."""
    from stitchcuda.knowledge.embedding import embedder_from
    from stitchcuda.knowledge.index import open_index
    from stitchcuda.knowledge.search import Searcher

    store = open_index(index)
    searcher = Searcher(store, embedder_from(embedder, embedding_model))
    passages = searcher.search(" ".join(query), limit=limit, arch=_architectures(arch), libraries=library)
    if as_json:
        typer.echo(json.dumps({"query": " ".join(query), "passages": [asdict(p) for p in passages]}))
    else:
        for number, passage in enumerate(passages, 1):
            _print_passage(number, passage)
        if not passages:
            typer.echo("nothing found; try other words, or fewer filters", err=True)
    if not passages:
        raise typer.Exit(1)


def _print_passage(number: int, passage: Passage) -> None:
    tags = " ".join((*passage.arch, *passage.libraries))
    typer.secho(f"{number}. {passage.title}", bold=True)
    version = f" {passage.version}" if passage.version else ""
    typer.secho(f"   {passage.source}{version}  score {passage.score:.3g}" + (f"  [{tags}]" if tags else ""), dim=True)
    typer.echo("\n".join(f"   {line}".rstrip() for line in passage.text.split("\n")) + "\n")


@knowledge.command("list")
def list_sources(index: Path | None = _INDEX, as_json: bool = _JSON) -> None:
    """Print what is in the index."""
    from stitchcuda.knowledge.index import open_index

    store = open_index(index)
    sources = store.sources()
    if as_json:
        where = str(store.path) if store.path is not None else None
        typer.echo(json.dumps({"index": where, "sources": [asdict(s) for s in sources]}))
        return
    for source in sources:
        version = f" {source.version}" if source.version else ""
        typer.echo(
            f"{source.uri}{version}: {source.documents} documents, {source.chunks} passages, added {source.added}"
        )


@knowledge.command()
def remove(
    sources: list[str] = typer.Argument(
        help="Sources as 'knowledge list' prints them, or the paths they were added by."
    ),
    index: Path | None = _INDEX,
    as_json: bool = _JSON,
) -> None:
    """Take sources out of the index."""
    from stitchcuda.knowledge.index import open_index
    from stitchcuda.knowledge.sources import uri_of

    store = open_index(index, writable=True)
    known = {source.uri for source in store.sources()}
    removed = {}
    for source in sources:
        uri = source if source in known else uri_of(source)
        removed[uri] = store.remove_source(uri if uri in known else source)
    if as_json:
        typer.echo(json.dumps({"removed": removed}))
        return
    for uri, documents in removed.items():
        typer.echo(f"{uri}: {documents} documents removed")


def register(app: typer.Typer) -> None:
    """Add the sub-commands to the ``stitchcuda`` command."""
    app.add_typer(knowledge, name="knowledge")
