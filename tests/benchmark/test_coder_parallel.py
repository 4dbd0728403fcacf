"""GRPO of the training experiment in several processes: the update is that of one, and the comparison is a command."""

from __future__ import annotations

import importlib
import json
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FOLDER = BENCHMARKS / "coder_experiment"

UPDATE = """
import json, sys
import torch
sys.path.insert(0, sys.argv[1])
from coder_experiment import llama, train
from coder_experiment.generate import Generator, Sample
from coder_experiment.operators import Step
from coder_experiment.prompts import Row, prompt
from coder_experiment.ranks import Ranks
from coder_experiment.rewards import Request
from coder_experiment.tasks import Task
from coder_experiment.tokens import Characters

out, rank, world, port = sys.argv[2], *map(int, sys.argv[3:])
device = torch.device("cpu")
ranks = Ranks.join(rank, world, port, device) if world > 1 else Ranks()
model, tokens = llama.Llama(llama.TINY, 8, device, torch.float32), Characters()
model.randomise(0)
model.begin(8, 1)
generator = Generator(model, tokens.end, rows=4, prompt=400, answer=40)
bench = train.Bench(model, tokens, generator, None, {})
request = Request(Task((Step("scale", 2.0),), 48, "E"), "scratch")
texts = ["own elem 64 1", "y[i] = a[i];", "lib scale a 2.0 -> y", "nothing at all"]
found = [
    train.Rollout(Row(request, prompt(request)), Sample(tokens.encode(text), at % 2 == 0), text, None)
    for at, text in enumerate(texts)
]
# The second process has nothing to learn from in the last step, and must take part in it all the same.
steps = [[1.0, -1.0, 0.5, -0.5], [0.0, 2.0, -2.0, 0.0], [1.0, -1.0, 0.0, 0.0]]
settings = train.Grpo(prompts=2, group=2, lr=1e-2, warmup=1, micro=2)
adam = train.optimiser(model, 1e-2)
told = [
    train._update(bench, adam, ranks.part(found), ranks.part(weights), settings, 1e-2, ranks) for weights in steps
]
changes = {name: value.detach().flatten()[:64].tolist() for name, value in model.changes().items()}
with open(f"{out}-{rank}", "w") as file:
    json.dump([told, changes], file)
ranks.leave()
"""


def test_an_update_of_two_processes_is_that_of_one(tmp_path: Path) -> None:
    from torch.testing import assert_close

    script = tmp_path / "update.py"
    script.write_text(textwrap.dedent(UPDATE))

    def start(name: str, rank: int, world: int, port: int) -> subprocess.Popen[str]:
        words = [sys.executable, script, BENCHMARKS, tmp_path / name, rank, world, port]
        return subprocess.Popen([*map(str, words)], stderr=subprocess.PIPE, text=True)

    processes = [start("one", 0, 1, 0), *(start("two", rank, 2, _free_port_once()) for rank in range(2))]
    for process in processes:
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 0, errors
    one, first, second = (json.loads((tmp_path / name).read_text()) for name in ("one-0", "two-0", "two-1"))
    assert first == second, "the processes do not hold the same model"
    assert [step["gradient"] > 0 for step in one[0]] == [True] * 3
    assert_close(first, one, rtol=1e-3, atol=1e-5)


_PORTS: list[int] = []


def _free_port_once() -> int:
    """One port for all that ask in this process."""
    import socket

    if not _PORTS:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            _PORTS.append(free.getsockname()[1])
    return _PORTS[0]


SMALL = shlex.split(
    "--model tiny --backend cpu --minutes 4 --prompts 2 --group 2 --micro 4 --prompt-tokens 700 --answer-tokens 300 "
    "--test-samples 2 --sft-epochs 1 --tasks 4 --validation 1 --test 2 --answers 4 --improve 2"
)


@pytest.fixture(scope="module")
def cold_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has its cold start."""
    state = tmp_path_factory.mktemp("coder") / "state"
    command = [sys.executable, FOLDER / "run.py", "slice", "--state", state, "--only", "sft", *SMALL]
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return state


def parallel(state: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FOLDER / "parallel.py", "run", "--state", state, "--out", out, "--steps", "2", *more]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=280)


def test_one_process_and_two_are_compared_over_the_same_prompts(cold_start: Path, tmp_path: Path) -> None:
    ended = parallel(cold_start, tmp_path, *SMALL)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((tmp_path / "grpo_parallel.json").read_text())
    assert {name: len(records) for name, records in report["runs"].items()} == {"one-0": 2, "one-1": 2, "all": 2}
    steps = {name: seconds["step"] for name, seconds in report["seconds"].items()}
    assert report["speedup"] == pytest.approx((steps["one-0"] + steps["one-1"]) / 2 / steps["all"], abs=2e-3)
    assert "2 GPUs" in (tmp_path / "grpo_parallel.md").read_text()
    assert not (cold_start / "arms" / "parallel").exists()


def test_a_process_that_fails_ends_the_others_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    wait = importlib.import_module("coder_experiment.parallel").wait
    endless = subprocess.Popen(["sleep", "600"], start_new_session=True)
    crashed = subprocess.Popen(["sh", "-c", "sleep 0.3; kill -SEGV $$"], start_new_session=True)
    with pytest.raises(RuntimeError, match="process 1 ended with status -11"):
        wait([endless, crashed])
    assert endless.returncode == -9


def test_prompts_that_cannot_be_shared_out_are_refused_at_once(cold_start: Path, tmp_path: Path) -> None:
    ended = parallel(cold_start, tmp_path, *SMALL, "--prompts", "3")
    assert ended.returncode == 1
    assert "3 prompts of a step cannot be shared out equally among 2 processes" in ended.stdout


def test_without_a_cold_start_it_says_how_to_get_one(tmp_path: Path) -> None:
    ended = parallel(tmp_path / "nothing", tmp_path)
    assert ended.returncode == 1
    assert "slice --only sft" in ended.stdout
