"""``stitchcuda profile TASK [PROGRAM]``: where the time of a reference, or of a Program, goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stitchcuda.cli._session import Session
    from stitchcuda.profiling.capture import Source
    from stitchcuda.profiling.measure import Profiled
    from stitchcuda.profiling.model import Profile
    from stitchcuda.program.model import Program


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("profile")(profile)


def profile(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A .py file, or kernelbench:LEVEL/ID.")],
    program: Annotated[
        Path | None, typer.Argument(metavar="PROGRAM", help="A .py file or a folder with program.py; none: the task.")
    ] = None,
    target: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    root: Annotated[Path | None, typer.Option(help="KernelBench's checkout or Parquet folder.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32, fp16 or bf16; default: the task's own, else fp32.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=20, help="Kernels shown.")] = 12,
    source: Annotated[
        str, typer.Option(help="auto, nsys or kineto: auto is Nsight Systems where it is there, on cuda.")
    ] = "auto",
    counters: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=20,
            help="cuda: so many of the longest kernels are also read by Nsight Compute; default: none. cpu: 0 leaves"
            " out perf's counters and the compiler's report on loops.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that each recording may take.")] = 240.0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Profile the task too, and say what the program changed.")
    ] = False,
    before: Annotated[
        Path | None, typer.Option(help="Compare with this Profile, as --json printed it.", dir_okay=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the Profile as one JSON object.")] = False,
    digest: Annotated[bool, typer.Option("--digest", help="Print it for an agent: a few hundred tokens.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with timeline and roofline here.", dir_okay=False)
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace here that Perfetto (ui.perfetto.dev) opens.", dir_okay=False)
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the tools' own reports in this folder.", file_okay=False)
    ] = None,
) -> None:
    """Show where the time of a task, or of a program for it, goes, and what binds it.

    A few calls in a confined process of its own, under Nsight Systems
    or torch.profiler: busy time, gaps and their cause, copies, the
    critical path, the longest kernels (on cpu: operators, what perf
    counts, and the loops that the compiler vectorised), the bottleneck
    with its evidence, and the change with the largest predicted gain. Nothing here changes what an evaluation says.
    """
    from stitchcuda.cli._session import open_session
    from stitchcuda.errors import StitchError
    from stitchcuda.program.files import load_program

    if source not in ("auto", "nsys", "kineto"):
        raise StitchError(f"unknown source '{source}'; use auto, nsys or kineto")
    if compare and program is None:
        raise StitchError("--compare needs a PROGRAM to compare with the task; give one, or use --before FILE")
    if compare and before is not None:
        raise StitchError("--compare and --before FILE both say what to compare with; give one of them")
    if as_json and digest:
        raise StitchError("--json and --digest are two forms of one answer; give one of them")
    written = load_program(program) if program is not None else None
    earlier = _read(before) if before is not None else None
    title = task + (f" with {program}" if program is not None else "")
    with open_session(task, target=target, root=root, precision=precision) as session:
        if compare:
            earlier = _measure(session, None, source, 0, timeout, keep=False).profile
        found = _measure(session, written, source, counters, timeout, keep=keep is not None)
        if html is not None:
            from stitchcuda.report.profile_html import page

            text = page(
                found.profile,
                found.recording,
                title=title,
                device=session.device,
                work=found.work,
                precision=session.task.precision,
            )
            _write(html, text)
    if trace is not None:
        from stitchcuda.profiling.chrome_trace import chrome_trace

        _write(trace, chrome_trace(found.recording, title=title))
    if keep is not None:
        from stitchcuda.profiling.measure import keep_files

        stem = "program" if written is not None else "reference"
        for path in keep_files({f"{stem}.{name.removeprefix('rep.')}": d for name, d in found.files.items()}, keep):
            typer.echo(f"kept {path}", err=True)
    _print(found.profile, earlier, title, as_json=as_json, as_digest=digest, top=top)


def _measure(
    session: Session, program: Program | None, source: str, counters: int | None, timeout_s: float, *, keep: bool
) -> Profiled:
    from typing import cast

    from stitchcuda.compute.folders import data_folder
    from stitchcuda.errors import ProgramError
    from stitchcuda.evaluation.build import build
    from stitchcuda.profiling.capture import Subject
    from stitchcuda.profiling.measure import measure

    folder, flops, kernels = None, 0.0, tuple[str, ...]()
    if program is not None:
        built = build(program, session.task.target, cache=data_folder(), precision=session.task.precision)
        if not built.ok or built.folder is None:
            raise ProgramError(f"the program does not build: {built.log[:500]}")
        folder, flops, kernels = built.folder, session.evaluator.plan["work"]["flops"], built.kernels
    return measure(
        Subject(session.task, session.facts, folder),
        session.device,
        program=program,
        kernels=kernels,
        source=cast("Source", source),
        counters=int(session.device.target.kind == "cpu") if counters is None else counters,
        flops=flops,
        keep=keep,
        timeout_s=timeout_s,
    )


def _read(path: Path) -> Profile:
    from pydantic import ValidationError

    from stitchcuda.errors import StitchError
    from stitchcuda.profiling.model import Profile

    try:
        return Profile.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        first = " ".join(str(error).splitlines()[:3])
        raise StitchError(f"{path} is no Profile ({first}); make one with 'stitchcuda profile TASK --json'") from None


def _write(path: Path, text: str) -> None:
    """Write a file that may be shown to others: refused where it holds a secret."""
    from stitchcuda.profiling.measure import keep_files

    for written in keep_files({path.name: text.encode()}, path.parent):
        typer.echo(f"wrote {written}", err=True)


def _print(found: Profile, earlier: Profile | None, title: str, *, as_json: bool, as_digest: bool, top: int) -> None:
    from stitchcuda.profiling.compare import compare

    comparison = compare(earlier, found) if earlier is not None else None
    if as_json:
        import json

        document = found.model_dump(mode="json")
        if comparison is not None:
            document["comparison"] = comparison.model_dump(mode="json") | {"speedup": comparison.speedup}
        typer.echo(json.dumps(document, indent=2))
        return
    from stitchcuda.profiling.digest import changes, digest

    if as_digest:
        typer.echo(digest(found))
    else:
        from stitchcuda.profiling.table import show
        from stitchcuda.report.terminal import new_console

        show(found, console=new_console(), title=title, top=top)
    if comparison is not None:
        typer.echo("\n" + changes(comparison))
