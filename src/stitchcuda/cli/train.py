"""``stitchcuda train ...``: train a Coder on verified answers (sft), then with measured rewards (grpo)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from stitchcuda.training.checkpoint import Result, Started
    from stitchcuda.training.config import Kind, TrainConfig

    Target = Literal["auto", "cuda", "cpu"]

_JSON = typer.Option("--json", help="Print one JSON object.")
_PRESET = typer.Option(help="qwen3-32b-lora, one-gpu or tiny-cpu; `train presets` prints their settings.")
_CONFIG = typer.Option(metavar="FILE", help="TOML or JSON with settings that differ from the preset's.")
_SET = typer.Option("--set", metavar="NAME=VALUE", help="One setting, such as grpo.group=16; may be given again.")
_DATA = typer.Option(metavar="DIR", help="A data set that `stitchcuda dataset build` wrote.")
_MODEL = typer.Option(
    metavar="PATH", help="A model's folder or name, a LoRA adapter's folder, or the folder of an earlier training."
)
_OUT = typer.Option(metavar="DIR", help="Where checkpoints, metrics and the result are written.")
_STEPS = typer.Option(min=1, help="Steps, in place of the settings'.")
_SECONDS = typer.Option(min=1.0, help="End with a checkpoint before a step that would not end in this time.")
_SEED = typer.Option(help="Of sampling, order and new adapters.")


def register(app: typer.Typer) -> None:
    """Add the group of verbs."""
    group = typer.Typer(no_args_is_help=True, help="Train a Coder.")

    @group.callback()
    def about() -> None:
        """Train a Coder: sft, then grpo."""

    group.command("sft")(sft)
    group.command("grpo")(grpo)
    group.command("evaluate")(evaluate)
    group.command("resume")(resume)
    group.command("merge")(merge)
    group.command("presets")(presets)
    app.add_typer(group, name="train")


def sft(
    data: Annotated[Path, _DATA],
    model: Annotated[str, _MODEL],
    out: Annotated[Path, _OUT],
    preset: Annotated[str, _PRESET] = "one-gpu",
    config: Annotated[Path | None, _CONFIG] = None,
    settings: Annotated[list[str] | None, _SET] = None,
    steps: Annotated[int | None, _STEPS] = None,
    seconds: Annotated[float | None, _SECONDS] = None,
    seed: Annotated[int | None, _SEED] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Fine-tune a model on verified answers, the cold start: one that never compiles learns nothing from rewards."""
    chosen = _settings("sft", preset, config, settings, steps, seconds, seed)
    _begin("sft", chosen, data, model, out, "local", "auto", as_json)


def grpo(
    data: Annotated[Path, _DATA],
    model: Annotated[str, _MODEL],
    out: Annotated[Path, _OUT],
    preset: Annotated[str, _PRESET] = "one-gpu",
    config: Annotated[Path | None, _CONFIG] = None,
    settings: Annotated[list[str] | None, _SET] = None,
    steps: Annotated[int | None, _STEPS] = None,
    seconds: Annotated[float | None, _SECONDS] = None,
    seed: Annotated[int | None, _SEED] = None,
    compute: Annotated[
        str,
        typer.Option(
            help="Where programs are measured: local, spool:DIR or ray[:ADDRESS]; recorded:PATH runs nothing."
        ),
    ] = "local",
    target: Annotated[str, typer.Option(help="auto (as the data has it), cuda or cpu.")] = "auto",
    engine: Annotated[str, typer.Option(help="trl, or verl for many GPUs.")] = "trl",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Engine verl: write and print everything, start nothing.")
    ] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Train with measured rewards on both skills, interleaved."""
    from stitchcuda.errors import StitchError

    if target not in ("auto", "cuda", "cpu"):
        raise StitchError(f"unknown target '{target}'; use auto, cuda or cpu")
    if engine not in ("trl", "verl"):
        raise StitchError(f"unknown engine '{engine}'; use trl or verl")
    where = _where(compute)
    chosen = _settings("grpo", preset, config, settings, steps, seconds, seed)
    if engine == "verl":
        _verl(chosen, data, model, out, where, target, dry_run)  # type: ignore[arg-type]
        return
    _begin("grpo", chosen, data, model, out, where, target, as_json)


def evaluate(
    data: Annotated[Path, _DATA],
    model: Annotated[str, _MODEL],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where what was seen is written.")],
    preset: Annotated[str, _PRESET] = "one-gpu",
    config: Annotated[Path | None, _CONFIG] = None,
    settings: Annotated[list[str] | None, _SET] = None,
    seed: Annotated[int | None, _SEED] = None,
    compute: Annotated[
        str, typer.Option(help="Where programs are measured: local, spool:DIR, ray[:ADDRESS] or recorded:PATH.")
    ] = "local",
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Look at held-out rows with a model as it is: its rewards, and how much of it is correct and honest."""
    chosen = _settings("grpo", preset, config, settings, None, None, seed)
    _begin("grpo", chosen, data, model, out, _where(compute), "auto", as_json, only_look=True)


def resume(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a training that was stopped or killed.")],
    seconds: Annotated[float | None, _SECONDS] = None,
    steps: Annotated[int | None, _STEPS] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Go on with a training from its newest whole checkpoint, exactly as if it had not been stopped."""
    from stitchcuda.errors import TrainingError
    from stitchcuda.training.checkpoint import data_digest, held, read_started, rewrite_started
    from stitchcuda.training.config import make_config

    started = read_started(out)
    if data_digest(Path(started.data)) != started.data_digest:
        raise TrainingError(f"the rows in {started.data} are not those that the training began with; restore them")
    with held(out, main=_main()):
        if steps is not None:
            config = make_config(started.config.model_dump(), {started.kind: {"steps": steps}})
            started = started.model_copy(update={"config": config})
            if _main():
                rewrite_started(out, started)
        if seconds is not None:  # of this start alone
            started = started.model_copy(update={"config": started.config.model_copy(update={"seconds": seconds})})
        result = _run(started, out)
    _tell(result, as_json)


def merge(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The folder of a training, or of an adapter.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the model is written.")],
    weights: Annotated[str, typer.Option(help="bf16 or fp32.")] = "bf16",
) -> None:
    """Write a trained adapter and its base as one model, to be served by any server."""
    from stitchcuda.errors import TrainingError
    from stitchcuda.training.checkpoint_model import require_training, write_merged

    if weights not in ("bf16", "fp32"):
        raise TrainingError(f"unknown weights '{weights}'; use bf16 or fp32")
    require_training()
    origin = write_merged(path, out, weights)
    typer.echo(f"{out}: {origin.base} with {len(origin.merged)} adapters added")


def presets(name: Annotated[str, typer.Argument(metavar="[NAME]", help="One of them, whole.")] = "") -> None:
    """The presets, or all settings of one."""
    from stitchcuda.training.config import make_config
    from stitchcuda.training.presets import PRESETS, preset

    if name:
        typer.echo(make_config(preset(name)).model_dump_json(indent=1))
        return
    for each in PRESETS:
        typer.echo(each)


def _where(compute: str) -> str:
    """A place with whole paths. Raises StitchError for other words."""
    from stitchcuda.compute import check_where

    if compute.startswith("recorded:"):
        return f"recorded:{Path(compute.removeprefix('recorded:')).absolute()}"
    return check_where(compute)


def _settings(
    kind: Kind,
    preset: str,
    config: Path | None,
    words: list[str] | None,
    steps: int | None,
    seconds: float | None,
    seed: int | None,
) -> TrainConfig:
    """The settings: preset, file, words and options, later ones over earlier ones."""
    from stitchcuda.training.config import assigned, make_config, read_config
    from stitchcuda.training.presets import preset as named

    options: dict[str, Any] = {}
    if steps is not None:
        options[kind] = {"steps": steps}
    if seconds is not None:
        options["seconds"] = seconds
    if seed is not None:
        options["seed"] = seed
    return make_config(named(preset), read_config(config) if config else {}, assigned(words or []), options)


def _begin(
    kind: Kind,
    config: TrainConfig,
    data: Path,
    model: str,
    out: Path,
    compute: str,
    target: str,
    as_json: bool,
    *,
    only_look: bool = False,
) -> None:
    from stitchcuda.errors import StitchError
    from stitchcuda.training.checkpoint import STARTED, Started, data_digest, held, latest, write_started
    from stitchcuda.training.checkpoint_model import origin_of, require_training

    require_training()
    from stitchcuda.training.start import check_device, processes, versions

    check_device(config)
    origin = origin_of(model)
    started = Started(
        kind=kind,
        config=config,
        base=origin.base,
        merged=list(origin.merged),
        data=str(data.absolute()),
        data_digest=data_digest(data),
        compute=compute,
        target=target,
        versions=versions(),
        only_look=only_look,
    )
    with held(out, main=_main()):
        if _main():
            write_started(out, started)
        try:
            result = _run(started, out)
        except StitchError:
            if _main() and latest(out, processes()) is None:
                (out / STARTED).unlink()  # nothing was trained: the same folder may be tried with other settings
            raise
    _tell(result, as_json)


def _run(started: Started, out: Path) -> Result:
    def tell(text: str) -> None:
        typer.echo(text, err=True)

    from stitchcuda.training.checkpoint_model import require_training

    require_training()
    from stitchcuda.training.start import check_device, quiet

    check_device(started.config)
    quiet()
    if started.kind == "sft":
        from stitchcuda.training.sft import run_sft

        return run_sft(started, out, tell=tell)
    from stitchcuda.training.grpo import run_grpo

    return run_grpo(started, out, tell=tell)


def _verl(config: TrainConfig, data: Path, model: str, out: Path, compute: str, target: Target, dry_run: bool) -> None:
    from stitchcuda.training import engine_verl

    engine_verl.start(config, data, out, model=model, compute=compute, target=target, dry_run=dry_run, tell=typer.echo)


def _main() -> bool:
    """Whether this is the only process, or the first of those that a launcher started."""
    import os

    return os.environ.get("RANK", "0") == "0"


def _tell(result: Result, as_json: bool) -> None:
    """The result, of the first process; exit code 1 where the machine kept failing."""
    if _main():
        if as_json:
            typer.echo(result.model_dump_json(indent=1))
        elif result.stopped == "looked":
            typer.echo(f"{result.rows['held_out']} held-out rows:")
            for name, value in result.held_out.items():
                if name.startswith(("eval_reward", "eval_group/solved", "eval_scratch/", "eval_improve/")):
                    typer.echo(f"  {name.removeprefix('eval_')}: {value:.4g}")
        else:
            typer.echo(f"{result.stopped} at step {result.step} of {result.steps}; the weights are in {result.model}")
            spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in sorted(result.seconds.items()))
            typer.echo(f"  {spent}")
            if result.stopped in ("seconds", "signal"):
                typer.echo("  go on with `stitchcuda train resume`")
    if result.stopped == "unscored":
        raise typer.Exit(1)
