"""``stitchcuda bench``: many tasks through the loop, or programs of others through the evaluation, in one table."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from stitchcuda.benchmark.folder import Sweep
    from stitchcuda.benchmark.model import SweepConfig

app = typer.Typer(no_args_is_help=True, help="Run a benchmark, resume, compare and show it; score programs of others.")


def register(parent: typer.Typer) -> None:
    """Add the verb."""
    parent.add_typer(app, name="bench")


Root = Annotated[Path | None, typer.Option(help="KernelBench's checkout or Parquet folder.", rich_help_panel="Tasks")]
Level = Annotated[
    list[int] | None, typer.Option(help="KernelBench's level; may be given several times.", rich_help_panel="Tasks")
]
Ids = Annotated[str | None, typer.Option(help="Task numbers of the level, as 2,18,20-25.", rich_help_panel="Tasks")]
Split = Annotated[str, typer.Option(help="all, or test: the 20/20/10 tasks of levels 1 to 3.", rich_help_panel="Tasks")]
Target = Annotated[str, typer.Option(help="auto, cuda or cpu.", rich_help_panel="Tasks")]
PrecisionClass = Annotated[
    str | None,
    typer.Option("--precision", help="fp32, tf32, fp16 or bf16; default: each task's own.", rich_help_panel="Tasks"),
]
TierName = Annotated[
    str, typer.Option("--tier", help="publish, or screen (quicker; not to be published).", rich_help_panel="Tasks")
]
Seeds = Annotated[int, typer.Option(help="Independent runs of each task.", rich_help_panel="Tasks")]
ModelName = Annotated[
    str, typer.Option("--model", help="recipes (no key needed), or PROVIDER:NAME.", rich_help_panel="Mind")
]
BaseUrl = Annotated[str | None, typer.Option(help="An OpenAI-compatible endpoint.", rich_help_panel="Mind")]
MaxOutputTokens = Annotated[
    int | None,
    typer.Option(help="Longest reply, tokens (default: 4,000 to 16,000 by role).", rich_help_panel="Mind"),
]
AgentsName = Annotated[
    str, typer.Option("--agents", help="full, or a comparison system: coder-judge, single.", rich_help_panel="Mind")
]
Ablate = Annotated[
    list[str] | None,
    typer.Option(help="Switch off planner, verifier, profile, knowledge or recipes.", rich_help_panel="Mind"),
]
UseKnowledge = Annotated[
    bool, typer.Option("--knowledge/--no-knowledge", help="Look things up for the model.", rich_help_panel="Mind")
]
BudgetPreset = Annotated[
    str, typer.Option("--budget", help="Limits of each run: quick, standard or deep.", rich_help_panel="Budget")
]
Iterations = Annotated[int | None, typer.Option(help="Candidate programs of each run.", rich_help_panel="Budget")]
Seconds = Annotated[float | None, typer.Option(help="Wall time of each run, seconds.", rich_help_panel="Budget")]
ItemUsd = Annotated[float | None, typer.Option(help="Dollars of each run.", rich_help_panel="Budget")]
BudgetUsd = Annotated[float | None, typer.Option(help="Dollars of the whole sweep.", rich_help_panel="Budget")]
TokensPerMinute = Annotated[
    int | None, typer.Option(help="Tokens a minute of all runs together.", rich_help_panel="Budget")
]
Beam = Annotated[int | None, typer.Option(help="Ideas kept alive in each run.", rich_help_panel="Search")]
Drafts = Annotated[int | None, typer.Option(help="Drafts per idea.", rich_help_panel="Search")]
ComputePlace = Annotated[
    str, typer.Option("--compute", help="local, spool:DIR or ray[:ADDRESS].", rich_help_panel="Search")
]
Stock = Annotated[
    str,
    typer.Option(
        help="Stock options to compare with: usual, or all (channels-last, and max-autotune, which takes minutes).",
        rich_help_panel="Tasks",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Items at work at the same time; default: one for each GPU, four with a model, eight where devices "
        "are elsewhere, two for each worker that is there already.",
        rich_help_panel="Search",
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="The sweep's folder; default: a new one in sweeps/.", rich_help_panel="Output")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before paid work.", rich_help_panel="Budget")]
Json = Annotated[bool, typer.Option("--json", help="Print the results object only.", rich_help_panel="Output")]


@app.command("kernelbench")
def kernelbench(
    context: typer.Context,
    root: Root = None,
    level: Level = None,
    ids: Ids = None,
    split: Split = "all",
    target: Target = "auto",
    precision: PrecisionClass = None,
    tier: TierName = "publish",
    seeds: Seeds = 1,
    model: ModelName = "recipes",
    base_url: BaseUrl = None,
    max_output_tokens: MaxOutputTokens = None,
    agents: AgentsName = "full",
    ablate: Ablate = None,
    knowledge: UseKnowledge = True,
    budget: BudgetPreset = "standard",
    iterations: Iterations = None,
    seconds: Seconds = None,
    item_usd: ItemUsd = None,
    budget_usd: BudgetUsd = None,
    tokens_per_minute: TokensPerMinute = None,
    beam: Beam = None,
    drafts: Drafts = None,
    stock: Stock = "usual",
    compute: ComputePlace = "local",
    jobs: Jobs = None,
    out: Out = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Optimise tasks of KernelBench and print a table that says all it rests on.

    Exit status 1 when an item could not be brought to its end; `bench resume`
    goes on with it.
    """
    _run(_config("kernelbench", context), context, f"kernelbench-{model}")


@app.command("folder")
def folder(
    context: typer.Context,
    tasks: Annotated[Path, typer.Argument(metavar="DIR", help="KernelBench-format task files, also in subfolders.")],
    target: Target = "auto",
    precision: PrecisionClass = None,
    tier: TierName = "publish",
    seeds: Seeds = 1,
    model: ModelName = "recipes",
    base_url: BaseUrl = None,
    max_output_tokens: MaxOutputTokens = None,
    agents: AgentsName = "full",
    ablate: Ablate = None,
    knowledge: UseKnowledge = True,
    budget: BudgetPreset = "standard",
    iterations: Iterations = None,
    seconds: Seconds = None,
    item_usd: ItemUsd = None,
    budget_usd: BudgetUsd = None,
    tokens_per_minute: TokensPerMinute = None,
    beam: Beam = None,
    drafts: Drafts = None,
    stock: Stock = "usual",
    compute: ComputePlace = "local",
    jobs: Jobs = None,
    out: Out = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Optimise all task files of a folder; subfolders are groups of the table."""
    _run(_config("folder", context), context, f"{tasks.resolve().name}-{model}")


@app.command("score")
def score(
    context: typer.Context,
    programs: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Programs named as the tasks (NAME.py or NAME/program.py), or level_L_problem_P_sample_S_kernel.py.",
        ),
    ],
    root: Root = None,
    tasks: Annotated[
        Path | None, typer.Option(help="Folder of task files instead of KernelBench.", rich_help_panel="Tasks")
    ] = None,
    level: Level = None,
    ids: Ids = None,
    split: Split = "all",
    target: Target = "auto",
    precision: PrecisionClass = None,
    tier: TierName = "publish",
    stock: Stock = "usual",
    compute: ComputePlace = "local",
    jobs: Jobs = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Judge and time programs that others made, as strictly as our own."""
    _run(_config("score", context), context, f"score-{programs.resolve().name}")


@app.command("resume")
def resume(
    sweep: Annotated[Path, typer.Argument(metavar="DIR", help="The sweep's folder.")],
    jobs: Annotated[int | None, typer.Option(min=1, help="Items at work at the same time.")] = None,
    budget_usd: Annotated[float | None, typer.Option(help="Dollars of the whole sweep.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Tokens a minute.")] = None,
    compute: Annotated[str | None, typer.Option(help="local, spool:DIR or ray[:ADDRESS].")] = None,
    as_json: Json = False,
) -> None:
    """Go on with a sweep that was stopped or killed; what is done stays done."""
    from stitchcuda.benchmark.sweep import resume as go_on

    given = {"jobs": jobs, "usd": budget_usd, "tokens_per_minute": tokens_per_minute, "compute": compute}
    changed = {name: value for name, value in given.items() if value is not None}
    _watch(lambda tell: go_on(sweep, tell=tell, changed=changed), sweep, as_json)


@app.command("show")
def show(
    sweep: Annotated[Path, typer.Argument(metavar="DIR", help="The sweep's folder, or a results.json.")],
    report: Annotated[Path | None, typer.Option(help="Write the HTML page to this file.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the Markdown table.")] = False,
    as_json: Json = False,
) -> None:
    """Show a sweep, also while it goes on."""
    from stitchcuda.benchmark.folder import load_results
    from stitchcuda.workflow.storage import write_whole

    found = load_results(sweep)
    if report is not None:
        from stitchcuda.benchmark.page import page

        write_whole(report.resolve(), page(found).encode())
    if as_json:
        _print_json(_document(found, sweep))
    elif markdown:
        from stitchcuda.benchmark.table import markdown as table

        typer.echo(table(found), nl=False)
    else:
        from stitchcuda.benchmark.terminal import print_sweep

        print_sweep(found)


@app.command("compare")
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A sweep's folder, or a results.json.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one over the same tasks.")],
    over: Annotated[str, typer.Option(help="Speedup over what: over_best, eager, compile, ...")] = "over_best",
    as_json: Json = False,
) -> None:
    """Compare two sweeps task by task: paired tests and intervals over the tasks that both have."""
    from stitchcuda.benchmark.compare import compare as pair
    from stitchcuda.benchmark.compare import lines
    from stitchcuda.benchmark.folder import load_results

    found = pair(load_results(first), load_results(second), over=over)
    if as_json:
        _print_json(found.model_dump(mode="json"))
    else:
        for line in lines(found):
            typer.echo(line)


def _usual_jobs(model: str, target: str, compute: str) -> int:
    """As many as keep the devices busy: a run with a model mostly waits for it, one for devices elsewhere for those."""
    from stitchcuda.compute.devices import visible_gpus

    if compute != "local":
        return min(max(8, 2 * _workers(compute)), 256)
    gpus = len(visible_gpus()) if target != "cpu" else 0
    return max(1, gpus) if model == "recipes" else max(4, 2 * gpus)


def _workers(compute: str) -> int:
    """Of a spool that is there, those at work on it now; workers may come later, and a cluster is not asked yet."""
    from stitchcuda.compute.spool_folder import SpoolFolder
    from stitchcuda.errors import StitchError

    place, _, folder = compute.partition(":")
    if place != "spool" or not Path(folder).is_dir():
        return 0
    try:
        spool = SpoolFolder(Path(folder), create=False)
    except StitchError:
        return 0  # what is wrong with it is said by what opens it for work
    try:
        return len(spool.workers())
    finally:
        spool.close()


def _agree_to_pay(config: SweepConfig, ask: bool) -> None:
    """Say what a sweep may cost; ask when somebody is there to answer."""
    import sys

    from stitchcuda.agents.budgets import PRESETS
    from stitchcuda.agents.llm import estimate
    from stitchcuda.agents.lookup import REFERENCE_TOKENS
    from stitchcuda.agents.settings import Limits, MindSettings
    from stitchcuda.benchmark.suite import items_of
    from stitchcuda.task.loader import read_source

    items = items_of(config)
    root = Path(config.root) if config.root else None
    lengths = [len(read_source(task, root)) for task in {item.task for item in items}]
    run = config.run_config(items[0])
    limits = run.limits()
    budget = PRESETS[config.budget].model_copy(
        update={"candidates": limits.iterations, "tokens": limits.tokens, "usd": limits.usd, "repairs": run.repairs}
    )
    cost = estimate(
        config.model,
        budget,
        settings=MindSettings(),
        limits=Limits(tokens=limits.tokens, usd=limits.usd),
        source_characters=sum(lengths) // len(lengths),
        reference_tokens=REFERENCE_TOKENS if config.knowledge else 0,
    )
    typer.echo(f"{len(items)} runs with {config.model}, each: {cost.sentence}", err=True)
    if config.usd is not None:
        typer.echo(f"The sweep begins no further request once ${config.usd:.2f} are used.", err=True)
    if ask and sys.stdin.isatty() and not typer.confirm("Go on?", default=True, err=True):
        raise typer.Exit(1)


def _config(suite: str, context: typer.Context) -> SweepConfig:
    """The sweep's settings, of the options as given. Raises StitchError for what cannot be used."""
    from stitchcuda.benchmark.model import SweepConfig

    given = {NAMES.get(name, name): value for name, value in context.params.items() if name not in OF_THE_COMMAND}
    paths = {name: str(Path(given[name]).resolve()) for name in ("root", "folder", "programs") if given.get(name)}
    lists = {name: given[name] or [] for name in ("levels", "ablate") if name in given}
    kept: dict[str, Any] = given | paths | lists
    jobs = kept.pop("jobs") or _usual_jobs(kept.get("model", "recipes"), kept["target"], kept.get("compute", "local"))
    return SweepConfig.checked(suite=suite, jobs=jobs, **kept)


NAMES = {"level": "levels", "tasks": "folder", "budget_usd": "usd"}
"""Of options, where the settings call them otherwise."""
OF_THE_COMMAND = ("context", "out", "yes", "as_json")
"""Options that are no settings of the sweep."""


def _run(config: SweepConfig, context: typer.Context, name: str) -> None:
    """Start a sweep in its folder."""
    import datetime

    from stitchcuda.benchmark.sweep import start
    from stitchcuda.task.loader import safe_name

    out, as_json = context.params["out"], context.params["as_json"]
    if config.suite != "score" and config.model != "recipes":
        _agree_to_pay(config, ask=not (context.params["yes"] or as_json))
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    place = Path(out or Path("sweeps") / f"{stamp}-{safe_name(name)}")
    _watch(lambda tell: start(config, place, tell=tell), place, as_json)


def _watch(run: Callable[[Callable[[str], None]], Sweep], place: Path, as_json: bool) -> None:
    """Do it, say how it goes on stderr, print the table, and exit as it ended."""
    from stitchcuda.errors import StitchError
    from stitchcuda.workflow.interruption import Interrupted

    try:
        sweep = run(lambda line: typer.echo(line, err=True))
    except Interrupted as stopped:
        typer.echo(f"{stopped}; go on with: stitchcuda bench resume {quote(str(place))}", err=True)
        raise typer.Exit(128 + stopped.number) from None
    except StitchError as error:
        if (place / "journal.jsonl").is_file() and "bench resume" not in str(error):
            typer.echo(f"go on with: stitchcuda bench resume {quote(str(place))}", err=True)
        raise
    if as_json:
        _print_json(_document(sweep, place))
    else:
        from stitchcuda.benchmark.terminal import print_sweep

        print_sweep(sweep)
        typer.echo(f"{place}: table.md, results.json, report.html")
    raise typer.Exit(0 if sweep.complete else 1)


def _document(sweep: Sweep, place: Path) -> dict[str, Any]:
    """The results of the sweep in ``place``, with their summary."""
    from stitchcuda.benchmark.folder import public
    from stitchcuda.benchmark.metrics import summarise

    shown = public(sweep, place)
    return shown.model_dump(mode="json") | {"summary": summarise(shown.records).model_dump(mode="json")}


def _print_json(data: Any) -> None:
    import json

    from stitchcuda.workflow.result import finite

    typer.echo(json.dumps(finite(data), indent=1))
