"""``stitchcuda worker --spool DIR``: do the jobs of a spool on this machine; ``worker slurm`` writes a batch script."""

from __future__ import annotations

import json
from pathlib import Path

import typer

worker = typer.Typer(
    help="Do the jobs of a spool on this machine's devices, without a network.", invoke_without_command=True
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.add_typer(worker, name="worker")


@worker.callback()
def run(
    context: typer.Context,
    spool: Path | None = typer.Option(None, help="the folder of `--compute spool:DIR`, made where there is none"),
    device: str = typer.Option("auto", help="auto (all GPUs, else the CPU), cpu, cuda, or cuda:N"),
    once: bool = typer.Option(False, "--once", help="do one job if there is one, and end"),
    until_empty: bool = typer.Option(False, "--until-empty", help="end when nothing is left, here or at other workers"),
    idle: float | None = typer.Option(None, min=0, help="end after so long without a job, seconds"),
    seconds: float | None = typer.Option(None, min=0, help="begin no job after so long, seconds"),
    name: str = typer.Option("", help="of this worker; default: host and process"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="no line for each job"),
    unhidden: bool = typer.Option(
        False, "--unhidden", help="work also where SPOOL cannot be hidden from programs, which could write results then"
    ),
    as_json: bool = typer.Option(False, "--json", help="print what was done as one JSON object at the end"),
) -> None:
    """Claim jobs from SPOOL, do them one at a time on each device, and write what came of them.

    May be killed at any moment: its jobs go to other workers. Needs torch and pydantic only.
    Exit code 1: jobs were left that another version of stitchcuda submitted.
    """
    if context.invoked_subcommand is not None:
        return
    from stitchcuda.compute.devices import find_devices
    from stitchcuda.compute.folders import data_folder
    from stitchcuda.compute.spool_worker import SpoolWorker, Stop
    from stitchcuda.errors import StitchError

    if spool is None:
        raise StitchError("give the folder of jobs: stitchcuda worker --spool DIR")
    if sum((once, until_empty, idle is not None)) > 1:
        raise StitchError("--once, --until-empty and --idle exclude each other")

    def log(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    stop = Stop(once=once, until_empty=until_empty, idle=idle, seconds=seconds)
    working = SpoolWorker(
        spool,
        cache=data_folder(),
        devices=find_devices(device),
        stop=stop,
        name=name,
        log=log,
        hidden=not unhidden,
    )
    log(f"working on {spool} with {', '.join(lane.device.name for lane in working.lanes)}")
    try:
        working.run()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        if as_json:
            typer.echo(json.dumps({"done": working.done, "foreign": working.foreign, "spool": str(spool)}))
        else:
            log(f"{working.done} jobs done")
    if working.foreign:
        typer.echo(
            f"error: {working.foreign} jobs in {spool} were submitted by another version of stitchcuda than this one, "
            "and are left alone; install one version on both sides",
            err=True,
        )
        raise typer.Exit(1)


@worker.command("show")
def show(
    spool: Path = typer.Option(..., help="the folder of jobs"),
    as_json: bool = typer.Option(False, "--json", help="print one JSON object"),
) -> None:
    """Say who works on SPOOL, and how many jobs wait, run, are done and were given up."""
    from stitchcuda.compute.spool_folder import SpoolFolder

    folder = SpoolFolder(spool, create=False)
    workers = folder.workers()
    waiting, running = folder.listed("jobs"), folder.listed("claimed")
    folder.close()
    given_up = sorted(path.name for path in (spool / "failed").glob("*.reason"))
    counts = {
        "waiting": len(waiting),
        "running": len(running),
        "done": sum(1 for _ in folder.results()),
        "failed": len(given_up),
    }
    if as_json:
        at_work = {entry.worker: entry.id for entry in running}
        told = [w.model_dump(mode="json", exclude={"facts"}) | {"job": at_work.get(w.name)} for w in workers]
        typer.echo(json.dumps(counts | {"workers": told}, indent=2))
        return
    typer.echo(", ".join(f"{count} {what}" for what, count in counts.items()))
    for w in workers:
        job = next((entry.id for entry in running if entry.worker == w.name), "idle")
        typer.echo(f"{w.name}: {w.device}, stitchcuda {w.versions.stitchcuda}, torch {w.versions.torch}: {job}")


@worker.command("pack")
def pack(
    spool: Path = typer.Option(..., help="the folder of jobs"),
    out: Path = typer.Option(..., help="the file to write, such as jobs.tar.gz"),
    results: bool = typer.Option(True, "--results/--no-results", help="what was done there goes along"),
) -> None:
    """Write what waits in SPOOL, and what was done, into one file that can be carried to another machine."""
    from stitchcuda.compute.spool_bundle import pack as write
    from stitchcuda.compute.spool_folder import SpoolFolder

    waiting, done = write(SpoolFolder(spool, create=False), out, results=results)
    typer.echo(f"{out}: {waiting} jobs, {done} results", err=True)


@worker.command("unpack")
def unpack(
    source: Path = typer.Argument(metavar="FILE", help="what `worker pack` wrote"),
    spool: Path = typer.Option(..., help="the folder of jobs, made where there is none"),
) -> None:
    """Take the jobs and results of FILE into SPOOL, those that are not there yet."""
    from stitchcuda.compute.spool_bundle import unpack as take
    from stitchcuda.compute.spool_folder import SpoolFolder

    jobs, results = take(source, SpoolFolder(spool))
    typer.echo(f"{spool}: {jobs} new jobs, {results} new results", err=True)


@worker.command("slurm")
def slurm(
    spool: Path = typer.Option(..., help="the folder of jobs, on a file system that the nodes share"),
    out: Path | None = typer.Option(None, help="write the script here; default: print it"),
    workers: int = typer.Option(1, min=1, help="size of the job array"),
    gpus: int = typer.Option(1, min=0, help="GPUs of each; 0: the CPU"),
    gpu_kind: str = typer.Option("", help="such as h200, as the cluster names it"),
    cpus: int = typer.Option(8, min=1, help="cores of each"),
    memory: str = typer.Option("64G", help="memory of each"),
    time: str = typer.Option("04:00:00", help="limit of each, as sbatch takes it"),
    idle: int = typer.Option(1800, min=1, help="each ends after so long without a job, seconds"),
    partition: str = typer.Option("", help="partition"),
    account: str = typer.Option("", help="account"),
    setup: str = typer.Option("", help="a line run first, such as 'source /shared/venv/bin/activate'"),
    python: str = typer.Option("", help="Python with stitchcuda on the nodes; default: this one"),
    unhidden: bool = typer.Option(False, "--unhidden", help="for nodes that cannot hide SPOOL from programs"),
    submit: bool = typer.Option(False, "--submit", help="hand it to sbatch at once"),
) -> None:
    """Write an sbatch script whose tasks are workers on SPOOL; each ends when it has had no job for a while."""
    from stitchcuda.compute.slurm import Slurm, submit_script

    wanted = Slurm(
        spool=spool.absolute(),
        workers=workers,
        gpus=gpus,
        gpu_kind=gpu_kind,
        cpus=cpus,
        memory=memory,
        time=time,
        idle=idle,
        partition=partition,
        account=account,
        setup=setup,
        python=python,
        unhidden=unhidden,
    )
    script = wanted.script()
    if out is not None:
        out.write_text(script, encoding="utf-8")
    if submit:
        typer.echo(submit_script(script))
    elif out is None:
        typer.echo(script, nl=False)
    else:
        typer.echo(f"submit it with: sbatch {out}", err=True)
