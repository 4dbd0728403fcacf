"""``stitchcuda dataset ...``: tasks, rows and checks for training a Coder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_JSON = typer.Option("--json", help="Print one JSON object.")
_ROOT = typer.Option(help="KernelBench's checkout or Parquet folder.")


def register(app: typer.Typer) -> None:
    """Add the group of verbs."""
    group = typer.Typer(no_args_is_help=True, help="Make and check data for training a Coder.")

    @group.callback()
    def about() -> None:
        """Make and check data for training a Coder."""

    group.command("build")(build)
    group.command("check")(check)
    group.command("tasks")(tasks)
    app.add_typer(group, name="dataset")


def build(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the data set is written.")],
    runs: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="A run, or a folder of runs; may be given again.")
    ] = None,
    sweep: Annotated[list[Path] | None, typer.Option(metavar="DIR", help="A folder that bench wrote.")] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(help="Task files in KernelBench's form: recipes' programs for them, and the same made worse."),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Of tasks, at most so many; 0: all.")] = 0,
    faults: Annotated[int, typer.Option(min=0, help="Worse programs for each task, at most.")] = 6,
    target: Annotated[str, typer.Option(help="auto, cuda or cpu: what the tasks' programs are for.")] = "auto",
    compute: Annotated[str, typer.Option(help="Where they are evaluated: local, spool:DIR or ray.")] = "local",
    max_prompt: Annotated[int, typer.Option(min=1, help="Longest prompt, tokens (estimated).")] = 8192,
    max_completion: Annotated[int, typer.Option(min=1, help="Longest answer, tokens (estimated).")] = 16384,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Rows of both skills from runs, sweeps and tasks.

    Each row is a request as the loop's Coder gets it, rendered by the
    agents' own templates, with an answer that was verified. Without runs
    of a model, recipes write programs for --tasks, and each is made worse
    in known ways, evaluated, and given the Verifier's Feedback.
    Tasks of KernelBench's test split are left out.
    Exit code 1 when no row passed the filters.
    """
    import contextlib
    from collections.abc import Iterator

    from stitchcuda.compute.folders import data_folder
    from stitchcuda.errors import StitchError
    from stitchcuda.task.loader import load_task
    from stitchcuda.task.model import Task
    from stitchcuda.training.dataset import Collector, from_runs, from_tasks, task_files
    from stitchcuda.training.model import Bounds, Part
    from stitchcuda.training.rows import write_dataset
    from stitchcuda.workflow.bench import Bench, find_device, open_bench

    if target not in ("auto", "cuda", "cpu"):
        raise StitchError(f"unknown target '{target}'; use auto, cuda or cpu")
    if not runs and not sweep and tasks is None:
        raise StitchError("there is nothing to build from: give --runs, --sweep or --tasks")
    collector = Collector(Bounds(prompt=max_prompt, completion=max_completion))
    from_runs(collector, [*(runs or []), *(sweep or [])])
    if tasks is not None:
        files = list(task_files(tasks))
        if not files:
            raise StitchError(f"{tasks} holds no task file: none defines Model and get_inputs")
        device = find_device(compute, target)  # type: ignore[arg-type]

        def bench() -> contextlib.AbstractContextManager[Bench]:
            return open_bench(compute, data_folder(), device.target.kind)

        def loaded() -> Iterator[tuple[Task, Part | None]]:
            for path, part in files[: limit or None]:
                try:
                    yield load_task(str(path), target=device.target), part
                except StitchError as error:
                    collector.skipped[path.name] = str(error)

        def tell(task: Task, rows: int) -> None:
            if not as_json:
                typer.echo(f"{task.name}: {rows} rows", err=True)

        from_tasks(collector, loaded(), device, bench, faults=faults, tell=tell)
    built = collector.built()
    write_dataset(collector.rows, built, out)
    if as_json:
        typer.echo(built.model_dump_json(indent=1))
    else:
        typer.echo(f"{built.rows} rows of {built.tasks} tasks from {built.found} requests, in {out}")
        for title, counts in (("", built.by), ("left out, ", built.dropped)):
            for name, count in counts.items():
                typer.echo(f"  {title}{name}: {count}")
        for name, reason in list(built.skipped.items())[:20]:
            typer.echo(f"  nothing from {name}: {reason}")
    if not built.rows:
        raise typer.Exit(1)


def check(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Training data: Parquet, JSON lines or task files.")],
    test_split: Annotated[
        str,
        typer.Option(help="kernelbench, or a file or folder of tasks that must not be trained on."),
    ] = "kernelbench",
    root: Annotated[Path | None, _ROOT] = None,
    graphs: Annotated[bool, typer.Option(help="Also compare computations; runs the sources' constructors.")] = True,
    part: Annotated[
        str, typer.Option(help="Of a data set that was built: train, held_out or all. Held-out rows are no training.")
    ] = "train",
    lanes: Annotated[int, typer.Option(min=1, help="Worker processes that read graphs.")] = 2,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Refuse training data that holds a task of the test split, however reworded.

    Compared are names, sources without comments, names, layout and order,
    and the computation itself as a graph. The same model at other sizes
    is reported, not refused.
    Exit code 0: clean; 1: refused, or undecided for models that cannot be read; 2: wrong use.
    """
    from stitchcuda.errors import StitchError
    from stitchcuda.training import leaks
    from stitchcuda.training.leaks_samples import held_back, training_samples

    if part not in ("train", "held_out", "all"):
        raise StitchError(f"unknown part '{part}'; use train, held_out or all")
    if not path.exists():
        raise StitchError(f"there is no {path}")
    samples = training_samples(path, part=part)
    report = leaks.check(samples, held_back(test_split, root), graphs=graphs, lanes=lanes)
    typer.echo(report.model_dump_json(indent=1) if as_json else report.page())
    if not report.clean:
        raise typer.Exit(1)


def tasks(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the task files are written.")],
    count: Annotated[int, typer.Option(min=1, help="How many valid tasks.")] = 2000,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal tasks.")] = 1,
    sizes: Annotated[str, typer.Option(help="full (a GPU), cpu (a few cores) or audit (tiny).")] = "full",
    lanes: Annotated[int, typer.Option(min=1, help="Worker processes that audit.")] = 2,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Compose tasks of fused operators and small models, and keep those that are worth training on.

    Each runs, is distinct, well-conditioned and deterministic, holds no
    dead work, and is passed by no trivial answer. Tasks of held-out
    compositions go to a folder of their own. A run that was stopped goes
    on where it was.
    """
    import json

    from stitchcuda.errors import StitchError
    from stitchcuda.training.generator_audit import audited, table, write_tasks

    if sizes not in ("full", "cpu", "audit"):
        raise StitchError(f"unknown sizes '{sizes}'; use full, cpu or audit")
    out.mkdir(parents=True, exist_ok=True)

    def tell(valid: int, tried: int) -> None:
        if tried % 100 == 0 and not as_json:
            typer.echo(f"{valid} of {tried} are valid", err=True)

    found = audited(seed, count, lanes=lanes, memory=out / ".audit.jsonl", tell=tell)
    write_tasks(found, out, sizes)  # type: ignore[arg-type]
    if as_json:
        held = sum(task.held_out for task in found.valid)
        typer.echo(json.dumps({"valid": len(found.valid), "held_out": held, "dropped": found.reasons}, indent=1))
    else:
        typer.echo(table(found))
