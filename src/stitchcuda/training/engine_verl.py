"""``train grpo`` by verl: the files it needs, a reward server on the benchmark GPUs, and ``verl.trainer.main_ppo``.

verl lives in an environment of its own (its pins contradict those of the trainer that is built in), so it is started as
a process, and nothing of it is imported here.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from stitchcuda.errors import ToolMissing, TrainingError
from stitchcuda.training.adapters.server import RewardServer, new_token, own_address
from stitchcuda.training.adapters.verl import MANAGER_FILE, REWARD_FILE, write_code, write_verl
from stitchcuda.training.config import TrainConfig
from stitchcuda.training.engine_verl_config import (
    VERL,
    VerlFiles,
    hydra_file,
    prompts_needed,
    refuse_what_verl_lacks,
    samplings,
    verl_settings,
)
from stitchcuda.training.engine_verl_settings import VerlSettings
from stitchcuda.training.model import Row
from stitchcuda.training.prompts_rl import PLAIN_TEMPLATE, fitted, held_out_rows, interleaved, opens_thought

NAME = "stitchcuda"
FOLDER = "verl"
LOG_LINES = 30
"""Of verl's output, in the error when it fails."""
ENDING_S = 60.0
"""For verl to end when it is asked to."""


def start(
    config: TrainConfig,
    data: Path,
    out: Path,
    *,
    model: str,
    compute: str = "local",
    target: Literal["auto", "cuda", "cpu"] = "auto",
    dry_run: bool = False,
    tell: Callable[[str], None] = print,
) -> int:
    """Train ``model`` on the rows of ``data``; everything goes to ``out``, which every node that trains must see.

    ``compute`` is where programs are measured: 'ray:ADDRESS' of a Ray cluster of benchmark GPUs, 'spool:DIR', 'local'
    with ``config.verl.benchmark_gpus``, or 'recorded:PATH'. Started again with the same ``out`` it goes on from verl's
    last checkpoint. With ``dry_run`` nothing is written or started: the settings, the command and what verl makes of
    them are told. Returns 0.

    Raises TrainingError for settings or data that do not fit, ToolMissing without transformers, pyarrow or verl, and
    what a compute place raises.
    """
    out = out.absolute()
    refuse_what_verl_lacks(config)
    tokenizer = _tokenizer(model)
    rows, looks = _rows(config, data, tokenizer)
    _refuse_shared_gpus(config, compute, rows)
    files = _files(out, bool(looks))
    if tokenizer.chat_template is None:
        plain = {"actor_rollout_ref.model.custom_chat_template": PLAIN_TEMPLATE}
        verl = config.verl.model_copy(update={"more": plain | config.verl.more})
        config = config.model_copy(update={"verl": verl})
    if dry_run:
        _tell_all(config, model, compute, files, (len(rows), len(looks)), tell)
        return 0
    _find_verl(config.verl)
    in_thought = opens_thought(tokenizer, config.template_options)
    with _rewards(config, compute, target, rows, files, tell, in_thought=in_thought) as (endpoint, prepare):
        order = islice(interleaved(rows, config.grpo.improve_share, config.seed), prompts_needed(config))
        write_verl((prepare(rows[at]) for at in order), files.train)
        if files.held_out is not None:
            write_verl((prepare(row) for row in looks), files.held_out)
        write_code(out / FOLDER)
        text = hydra_file(verl_settings(config, model, files, endpoint))
        (out / FOLDER / f"{NAME}.yaml").write_text(text, encoding="utf-8")
        _run(command(config.verl, out), environment(config.verl, out), out, tell)
    return 0


def _refuse_shared_gpus(config: TrainConfig, compute: str, rows: Sequence[Row]) -> None:
    """Raises TrainingError where programs would be timed on the GPUs that train."""
    here = compute == "local" and not config.verl.endpoint and not config.verl.benchmark_gpus
    if here and any(row.task.target.kind == "cuda" for row in rows):
        raise TrainingError(
            "--compute local would time programs on the GPUs that train; set verl.training_gpus and "
            "verl.benchmark_gpus, or measure elsewhere (--compute ray:ADDRESS or spool:DIR)"
        )


def command(settings: VerlSettings, out: Path, *more: str) -> list[str]:
    """How verl is started."""
    return [
        settings.python,
        "-m",
        "verl.trainer.main_ppo",
        "--config-dir",
        str(out / FOLDER),
        "--config-name",
        NAME,
        f"hydra.run.dir={out / FOLDER / 'hydra'}",
        *more,
    ]


def environment(settings: VerlSettings, out: Path) -> dict[str, str]:
    """What verl sees besides: its GPUs, its cluster, and where its metrics go, a file for each start."""
    found = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_ADDRESS")}
    if settings.training_gpus:
        found["CUDA_VISIBLE_DEVICES"] = settings.training_gpus
    if settings.ray:
        found["RAY_ADDRESS"] = settings.ray
    found["VERL_FILE_LOGGER_PATH"] = str(_next(out / FOLDER, "metrics", "jsonl"))
    return found


def _files(out: Path, looks: bool) -> VerlFiles:
    folder = out / FOLDER
    return VerlFiles(
        out=out,
        train=folder / "train.parquet",
        held_out=folder / "held_out.parquet" if looks else None,
        reward=folder / REWARD_FILE,
        manager=folder / MANAGER_FILE,
        token=folder / "token",
    )


def _tokenizer(model: str) -> Any:
    if any((Path(model) / name).is_file() for name in ("adapter_config.json", "train.json")):
        raise TrainingError(
            f"{model} holds an adapter or a training, and verl starts from a whole model; write one first with "
            f"`stitchcuda train merge {model} --out DIR`"
        )
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ToolMissing(
            "rows are measured with the model's tokenizer, which needs transformers; install stitchcuda[train]"
        ) from None
    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise TrainingError(
            f"{model} has no tokenizer that can be read ({str(error).splitlines()[0]}); give a model's folder or name"
        ) from None


def _rows(config: TrainConfig, data: Path, tokenizer: Any) -> tuple[list[Row], list[Row]]:
    """Rows to train on, and those that are looked at: equal to those of the trainer that is built in."""
    rows = fitted(data, "train", tokenizer, config.lengths, config.template_options, answers=False).rows
    if not rows:
        raise TrainingError(f"{data} has no rows to train on; build a data set with more tasks")
    looks: list[Row] = []
    held = config.held_out
    if held.every or held.at_start or held.at_end:
        found = fitted(data, "held_out", tokenizer, config.lengths, config.template_options, answers=False).rows
        looks = held_out_rows(found, held.rows)
    return rows, looks


@contextmanager
def _rewards(
    config: TrainConfig,
    compute: str,
    target: Literal["auto", "cuda", "cpu"],
    rows: Sequence[Row],
    files: VerlFiles,
    tell: Callable[[str], None],
    *,
    in_thought: bool,
) -> Iterator[tuple[str, Callable[[Row], Row]]]:
    """Where rewards are to be had, and what turns a row into one for the device there."""
    verl = config.verl
    if verl.endpoint:
        yield verl.endpoint, lambda row: row
        return
    from stitchcuda.training.grpo_reward import open_rewards

    if verl.benchmark_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = verl.benchmark_gpus
    alone = verl.nodes == 1 and not verl.ray and not verl.host
    files.token.parent.mkdir(parents=True, exist_ok=True)
    with open_rewards(config, compute, target, rows, files.out) as (service, prepare):
        token = new_token(files.token)
        host = "127.0.0.1" if alone else "0.0.0.0"
        with RewardServer(service, host=host, token=token, in_thought=in_thought, remark=tell) as server:
            address = server.address("" if alone else verl.host or own_address())
            tell(f"rewards at {address}, measured on {compute}")
            yield address, prepare


def _tell_all(
    config: TrainConfig,
    model: str,
    compute: str,
    files: VerlFiles,
    rows: tuple[int, int],
    tell: Callable[[str], None],
) -> None:
    """All that would be written and started, and whether verl takes it."""
    verl = config.verl
    text = hydra_file(verl_settings(config, model, files, verl.endpoint or "http://HOST:PORT"))
    tell(
        f"{rows[0]} rows to train on, {prompts_needed(config)} prompts in {samplings(config)} samplings, "
        f"and {rows[1]} to look at"
    )
    tell(f"rewards: {verl.endpoint or f'a server here, over {compute}'}")
    written = [path.name for path in (files.train, files.held_out, files.reward, files.manager, files.token) if path]
    tell(f"files in {files.out / FOLDER}: {', '.join(written)}, and {NAME}.yaml:")
    tell(text)
    seen = environment(verl, files.out)
    named = ("CUDA_VISIBLE_DEVICES", "RAY_ADDRESS", "VERL_FILE_LOGGER_PATH")
    words = [f"{name}={shlex.quote(seen[name])}" for name in named if name in seen]
    tell(" ".join([*words, shlex.join(command(verl, files.out))]))
    with tempfile.TemporaryDirectory(prefix="stitchcuda-verl-") as scratch:
        folder = Path(scratch) / FOLDER
        folder.mkdir()
        (folder / f"{NAME}.yaml").write_text(text, encoding="utf-8")
        tell(_composed(verl, Path(scratch)))


def _composed(settings: VerlSettings, out: Path) -> str:
    """What verl makes of the settings, in a sentence. Raises TrainingError when it refuses them."""
    if shutil.which(settings.python) is None:
        return f"not composed: there is no {settings.python}; name the interpreter of the environment that has verl"
    asked = [settings.python, "-c", "import importlib.metadata as m; print(m.version('verl'))"]
    version = subprocess.run(asked, capture_output=True, text=True, check=False)
    if version.returncode:
        return (
            f"not composed: {settings.python} has no verl; pip install 'verl[{settings.rollout},fsdp]=={VERL}.*' there"
        )
    told = subprocess.run(
        command(settings, out, "--cfg", "job", "--resolve"),
        capture_output=True,
        text=True,
        check=False,
        cwd=out,
        env=environment(settings, out),
    )
    if told.returncode:
        raise TrainingError(f"verl refuses the settings: {_last(told.stderr)}")
    return f"verl {version.stdout.strip()} composes these settings ({len(told.stdout.splitlines())} lines)"


def _find_verl(settings: VerlSettings) -> None:
    """Raises ToolMissing when there is no verl, TrainingError when it is another version."""
    asked = [settings.python, "-c", "import importlib.metadata as m; print(m.version('verl'))"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        raise ToolMissing(
            f"there is no interpreter {settings.python}; name that of the environment with verl"
        ) from None
    if found.returncode:
        raise ToolMissing(f"{settings.python} has no verl; pip install 'verl[{settings.rollout},fsdp]=={VERL}.*' there")
    version = found.stdout.strip()
    if not version.startswith(f"{VERL}."):
        raise TrainingError(
            f"verl is {version} there, and these settings are for {VERL}; install that, in its own place"
        )


def _run(words: list[str], environment: dict[str, str], out: Path, tell: Callable[[str], None]) -> None:
    """verl, with its output in a file too. Raises TrainingError when it fails."""
    log = _next(out / FOLDER, "log", "txt")
    tell(shlex.join(words))
    last: deque[str] = deque(maxlen=LOG_LINES)
    process = subprocess.Popen(
        words,
        env=environment,
        cwd=out,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        with _terminable(), log.open("w", encoding="utf-8") as file:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                file.flush()
                last.append(line.rstrip())
                tell(line.rstrip())
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    if code:
        raise TrainingError(f"verl ended with {code}; the whole of it is in {log}. Its last words:\n" + "\n".join(last))


@contextmanager
def _terminable() -> Iterator[None]:
    """A signal to terminate ends what is started here too, instead of leaving it behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(process: subprocess.Popen[str]) -> None:
    """End verl and what it started: politely, then not. What runs in the background of a shell or a batch job ignores
    interrupts, and so does all that it starts."""
    polite = signal.SIGTERM if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else signal.SIGINT
    for what, seconds in ((polite, ENDING_S), (signal.SIGKILL, ENDING_S)):
        try:
            os.killpg(process.pid, what)
            process.wait(seconds)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _next(folder: Path, stem: str, ending: str) -> Path:
    """A file that is not there yet, numbered by how often training was started."""
    number = 1
    while (path := folder / f"{stem}-{number:03}.{ending}").exists():
        number += 1
    return path


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])
