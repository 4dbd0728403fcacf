"""Whatever a Program does, it ends in a status and a sentence, and the next one is judged as if nothing had been."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from stitchcuda.evaluation import sandbox
from stitchcuda.evaluation.evaluator import Evaluator
from tests.evaluation.conftest import DEVICE, QUICK, Judge, make_facts, make_task, program

TASK = make_task("""
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x):
        return torch.relu(self.linear(x))
def get_inputs():
    return [torch.randn(64, 32)]
def get_init_inputs():
    return [32]
""")

GOOD = """
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x):
        BODY
        return torch.relu(self.linear(x))
"""


def with_body(text: str) -> str:
    """The good program with a statement put into its forward."""
    return GOOD.replace("BODY", text)


def test_good_program_is_correct(judge: Judge) -> None:
    evaluation = judge(TASK, with_body("pass"))
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.correctness is not None
    assert evaluation.correctness.ok
    assert evaluation.timings["program"].n >= QUICK.screen_calls


def test_endless_loop_is_timed_out(judge: Judge) -> None:
    settings = QUICK.model_copy(update={"call_timeout_s": 1.0})
    evaluation = judge(TASK, with_body("\n        while True: pass"), settings=settings)
    assert evaluation.status == "timed_out"
    assert "longer than 1 s" in evaluation.message


def test_endless_loop_at_import_is_timed_out(judge: Judge) -> None:
    settings = QUICK.model_copy(update={"load_timeout_s": 5.0})
    evaluation = judge(TASK, "while True: pass\nclass ModelNew: pass", settings=settings)
    assert evaluation.status == "timed_out"
    assert "loading" in evaluation.message


def test_printing_a_hundred_megabytes_neither_blocks_nor_fills_memory(judge: Judge) -> None:
    noisy = with_body("""
        import os
        if not hasattr(self, 'said'):
            self.said = [os.write(1, b'x' * 1_000_000) for _ in range(100)]
""")
    evaluation = judge(TASK, noisy)
    assert evaluation.status == "correct", evaluation.message
    failing = "import os\nfor _ in range(100): os.write(2, b'y' * 1_000_000)\nos._exit(7)\nclass ModelNew: pass"
    evaluation = judge(TASK, failing)
    assert evaluation.status == "crashed"
    assert "exit code 7" in evaluation.message
    assert len(evaluation.log) <= 4000


def test_forked_children_die_with_their_program(judge: Judge, tmp_path: Path) -> None:
    forks = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
""" + with_body("import os; os.fork() or __import__('time').sleep(600)")
    assert judge(TASK, with_body("pass")).status == "correct"
    before = processes()
    evaluation = judge(TASK, forks, settings=QUICK.model_copy(update={"call_timeout_s": 3.0}))
    assert evaluation.status in ("correct", "timed_out", "crashed", "dishonest")
    until = time.monotonic() + 10
    while processes() - before and time.monotonic() < until:
        time.sleep(0.05)
    assert processes() <= before


def processes() -> set[int]:
    """Everything below this process, and runners that were left to init."""
    found = set(sandbox.descendants(os.getpid()))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == 1 and b"stitchcuda/nursery.py" in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
    return found


def test_segfault_is_a_crash_with_its_signal(judge: Judge) -> None:
    evaluation = judge(TASK, with_body("import ctypes; ctypes.string_at(0)"))
    assert evaluation.status == "crashed"
    assert "SIGSEGV" in evaluation.message


@pytest.mark.parametrize("place", ["import", "call"])
def test_exit_zero_is_a_crash_not_a_pass(judge: Judge, place: str) -> None:
    leave = "import os; os._exit(0)"
    source = f"{leave}\nclass ModelNew: pass" if place == "import" else with_body(leave)
    evaluation = judge(TASK, source)
    assert evaluation.status == "crashed"
    assert "exit code 0" in evaluation.message


def test_system_exit_is_a_crash(judge: Judge) -> None:
    evaluation = judge(TASK, with_body("raise SystemExit(0)"))
    assert evaluation.status == "crashed"


def test_error_at_import_is_told_in_a_sentence(judge: Judge) -> None:
    evaluation = judge(TASK, "raise ValueError('no such kernel')\nclass ModelNew: pass")
    assert evaluation.status == "crashed"
    assert "loading the program raised ValueError: no such kernel" in evaluation.message
    assert "program.py" in evaluation.log


def test_error_in_a_call_is_told_in_a_sentence(judge: Judge) -> None:
    evaluation = judge(TASK, with_body("raise KeyError('tile')"))
    assert evaluation.status == "crashed"
    assert "a call raised KeyError: 'tile'" in evaluation.message


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return torch.relu(self.linear(x))[:, :31]", "has shape [64, 31], expected [64, 32]"),
        ("return torch.relu(self.linear(x)).double()", "has dtype float64, expected float32"),
        ("return (torch.relu(self.linear(x)),)", "is a tuple"),
        ("return None", "is a none"),
        ("return nn.Parameter(torch.relu(self.linear(x)))", "has type torch.nn.parameter.Parameter"),
    ],
)
def test_wrong_kind_of_output_is_named(judge: Judge, body: str, says: str) -> None:
    evaluation = judge(TASK, with_body(body))
    assert evaluation.status == "wrong_output"
    assert says in evaluation.message


def test_filling_the_disk_hurts_the_program_alone(judge: Judge) -> None:
    settings = QUICK.model_copy(update={"disk_bytes": 32 << 20})
    fills = "\n        for i in range(100): open(f'f{i}', 'wb').write(b'0' * 4_000_000)"
    evaluation = judge(TASK, with_body(fills), settings=settings)
    assert evaluation.status == "crashed"
    assert "No space left" in evaluation.message or "File too large" in evaluation.message


def test_files_elsewhere_cannot_be_written(judge: Judge, tmp_path: Path) -> None:
    evaluation = judge(TASK, with_body(f"open({str(tmp_path / 'x')!r}, 'w')"))
    assert evaluation.status == "crashed"
    assert not (tmp_path / "x").exists()


def test_allocating_too_much_is_out_of_memory(judge: Judge) -> None:
    evaluation = judge(TASK, with_body("torch.empty(1 << 46, dtype=torch.uint8)"))
    assert evaluation.status == "out_of_memory"
    settings = QUICK.model_copy(update={"memory_bytes": 6 << 30, "call_timeout_s": 60})  # all of it is filled
    greedy = with_body("\n        keep = [torch.empty(1 << 30, dtype=torch.uint8) for _ in range(64)]")
    assert judge(TASK, greedy, settings=settings).status == "out_of_memory"


def test_network_is_out_of_reach(judge: Judge) -> None:
    evaluation = judge(TASK, with_body("import socket; socket.create_connection(('127.0.0.1', 9), timeout=1)"))
    assert evaluation.status == "crashed"


def test_keys_do_not_reach_the_program(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    body = "import os; assert not [k for k in os.environ if 'KEY' in k], 'a key is here'"
    assert judge(TASK, with_body(body)).status == "correct"
    body = "assert b'KEY' not in open('/proc/self/environ', 'rb').read(), 'a key was here'"
    assert judge(TASK, with_body(body)).status == "correct"


def test_the_parent_cannot_be_killed_or_seen(judge: Judge) -> None:
    body = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    evaluation = judge(TASK, with_body(body))
    assert evaluation.status in ("crashed", "out_of_memory", "correct")
    body = "import os; seen = [p for p in os.listdir('/proc') if p.isdigit()]; assert len(seen) < 10, seen"
    assert judge(TASK, with_body(body)).status == "correct"


def test_forged_reply_is_dishonest(judge: Judge) -> None:
    forge = """
        import os, struct
        for fd in range(3, 64):
            try:
                os.write(fd, bytes(64))
            except OSError:
                pass
"""
    evaluation = judge(TASK, with_body(forge))
    assert evaluation.status == "dishonest"
    assert "forged" in evaluation.message


@pytest.mark.parametrize(
    "report",
    ["'[' * 60000", "text.replace('\"offset\": 0', '\"offset\": Infinity')", "text.replace('\"at\": 0', '\"at\": {}')"],
    ids=["nested", "infinite", "no number"],
)
def test_a_report_that_nobody_can_read_is_the_programs_fault(judge: Judge, report: str) -> None:
    before = f"""
import sys
wire = sys.modules["stitchcuda_wire"]
plain = wire.put_text
def put(view, arena, region, text):
    plain(view, arena, region, {report} if "tensors" in text else text)
wire.put_text = put
"""
    evaluation = judge(TASK, before + with_body("pass"))
    assert evaluation.status == "wrong_output", evaluation.message
    assert "could not be read" in evaluation.message


def test_dead_oracle_is_infrastructure_and_is_replaced(tmp_path: Path) -> None:
    with Evaluator(TASK, make_facts(), DEVICE, cache=tmp_path, settings=QUICK) as evaluator:
        _ = evaluator.plan
        evaluator.oracle.process.kill()
        evaluation = evaluator.evaluate(program(with_body("pass")))
        assert evaluation.status == "infrastructure_error"
        assert "oracle" in evaluation.message
        assert evaluator.evaluate(program(with_body("pass"))).status == "correct"


def test_state_that_does_not_match_is_seeded_alike(judge: Judge) -> None:
    source = """
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
    def forward(self, x):
        return torch.relu(self.inner(x))
"""
    evaluation = judge(TASK, source)
    assert evaluation.status == "correct", evaluation.message
    assert "seeded_weights" in evaluation.labels
    assert "seeded_weights" not in judge(TASK, with_body("pass")).labels


NORMED = make_task("""
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
    def forward(self, x):
        return self.norm(self.linear(x))
def get_inputs():
    return [torch.randn(64, 96)]
def get_init_inputs():
    return [96]
""")
OTHER_NAMES = """
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = {state}
    def forward(self, x):
        return {value}
"""
BATCH_NORM = "nn.BatchNorm1d(width)"
OTHERWISE = {
    "kept": (BATCH_NORM, "self.second(self.first(x))", "correct", ""),
    "left out": ("None", "self.first(x)", "wrong_output", "no parameter or buffer named norm.bias, norm.running_mean"),
    "for show": (BATCH_NORM, "self.first(x)", "wrong_output", "is off by"),
    "in part": (
        BATCH_NORM,
        "torch.addcdiv(self.second.bias, self.first(x), (self.second.running_var + 1e-5).sqrt())",
        "wrong_output",
        "is off by",
    ),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_a_constructor_makes_constant_counts_under_other_names_too(judge: Judge, name: str) -> None:
    state, value, status, words = OTHERWISE[name]
    evaluation = judge(NORMED, OTHER_NAMES.format(state=state, value=value), facts=make_facts(training=False))
    assert evaluation.status == status, evaluation.message
    assert words in evaluation.message
    assert "seeded_weights" in evaluation.labels or name == "left out"


def test_statistics_that_no_output_depends_on_may_be_missing(judge: Judge) -> None:
    source = """
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width, track_running_stats=False)
    def forward(self, x):
        return self.norm(self.linear(x))
"""
    evaluation = judge(NORMED, source)
    assert evaluation.status == "correct", evaluation.message
    assert [finding.rule for finding in evaluation.findings] == ["state_update"]
    assert "norm.running_mean" in judge(NORMED, source, facts=make_facts(training=False)).message


def test_tensors_of_a_programs_own_are_not_taken_for_state(judge: Judge) -> None:
    own = f"{BATCH_NORM}; self.zeros = torch.zeros(width); self.sparse = torch.eye(8).to_sparse()"
    source = OTHER_NAMES.format(state=own, value="self.second(self.first(x)) + self.zeros")
    evaluation = judge(NORMED, source, facts=make_facts(training=False))
    assert evaluation.status == "correct", evaluation.message


TIED = make_task("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(40, 24)
        self.out = nn.Linear(24, 40, bias=False)
        self.out.weight = self.tokens.weight
        self.turn = nn.Linear(24, 24, bias=False)
        nn.init.eye_(self.turn.weight)
        self.scale = nn.Parameter(torch.ones(24, 1, 1))
    def forward(self, x):
        return self.out(self.turn(self.tokens(x)) * self.scale.flatten())
def get_inputs():
    return [torch.randint(0, 40, (16, 8))]
def get_init_inputs():
    return []
""")
UNTIED = """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(40, 24)
        self.turned = nn.Linear(24, 24, bias=False)
        nn.init.eye_(self.turned.weight)
        self.scale = nn.Parameter(torch.ones(24))
    def forward(self, x):
        return F.linear(self.turned(self.tokens(x)) * self.scale, self.tokens.weight)
"""


def test_a_tied_weight_counts_under_one_of_its_names_and_dimensions_of_one_do_not(judge: Judge) -> None:
    evaluation = judge(TIED, UNTIED)
    assert evaluation.status == "correct", evaluation.message


def test_what_every_seed_makes_the_same_may_not_be_left_out(judge: Judge) -> None:
    source = UNTIED.replace("self.turned(self.tokens(x))", "self.tokens(x)")
    for text in (source.replace("self.turned", "turned"), source):
        evaluation = judge(TIED, text)
        assert evaluation.status == "wrong_output", evaluation.message
