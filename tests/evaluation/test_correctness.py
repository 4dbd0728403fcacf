"""What counts as computing the same thing: accuracy against fp64, state, structure, and outputs that last."""

from __future__ import annotations

import pytest

from tests.evaluation.conftest import QUICK, Judge, make_facts, make_task

LINEAR = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 64)
        self.norm = nn.LayerNorm(64)
    def forward(self, x):
        return self.norm(self.linear(x))
def get_inputs():
    return [torch.randn(48, 256)]
def get_init_inputs():
    return []
"""

LINEAR_NEW = """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 64)
        self.norm = nn.LayerNorm(64)
    def forward(self, x):
        return BODY
"""


def linear(body: str) -> str:
    """A Program for the LINEAR task whose forward returns ``body``."""
    return LINEAR_NEW.replace("BODY", body)


def test_another_order_of_summation_passes(judge: Judge) -> None:
    halves = (
        "x[:, 128:] @ self.linear.weight[:, 128:].T + (x[:, :128] @ self.linear.weight[:, :128].T + self.linear.bias)"
    )
    body = f"self.norm({halves})"
    evaluation = judge(make_task(LINEAR), linear(body))
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.correctness is not None
    [output] = evaluation.correctness.outputs
    assert output.relative_norm <= output.budget < 2e-5


@pytest.mark.parametrize(
    "body",
    [
        "self.norm(F.linear(tf32(x), tf32(self.linear.weight), self.linear.bias))",
        "self.norm(self.linear.bfloat16()(x.bfloat16()).float())",
        "F.layer_norm(self.linear(x), (64,))",
        "self.norm(F.linear(x, self.linear.weight))",
        "torch.zeros(48, 64)",
        "self.norm(self.linear(x)) * (1 + 1e-4)",
    ],
    ids=["tf32", "bf16", "no-affine", "no-bias", "zeros", "scaled"],
)
def test_less_than_fp32_fails_the_fp32_class(judge: Judge, body: str) -> None:
    cut = "def tf32(t): return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)\n"
    evaluation = judge(make_task(LINEAR), cut + linear(body))
    assert evaluation.status == "wrong_output", evaluation.message
    assert "allowed is" in evaluation.message


@pytest.mark.parametrize(
    ("damage", "pattern"),
    [
        ("out[40:] = 0", "only the tail, from flat index 2560 on"),
        ("out[::3] += 1", "indices 0, 3, 6, ... of dimension 0"),
        ("out[8:16, 16:32] = 7", "only indices 8 to 15 of dimension 0"),
        ("out[3, 5] = float('nan')", "1 of them NaN"),
        ("out.zero_()", "the output is all zeros"),
    ],
)
def test_the_pattern_of_a_mismatch_is_named(judge: Judge, damage: str, pattern: str) -> None:
    source = linear("out").replace(
        "return out", f"out = self.norm(self.linear(x))\n        {damage}\n        return out"
    )
    evaluation = judge(make_task(LINEAR), source)
    assert evaluation.status == "wrong_output"
    assert pattern in evaluation.message


def test_a_reused_output_buffer_is_found(judge: Judge) -> None:
    source = linear("self.buffer").replace(
        "return self.buffer",
        """
        if not hasattr(self, 'buffer'):
            self.buffer = torch.empty(48, 64)
        self.buffer.copy_(self.norm(self.linear(x)))
        return self.buffer""",
    )
    evaluation = judge(make_task(LINEAR), source)
    assert evaluation.status == "wrong_output"
    assert "outlive later calls" in evaluation.message


KEEPS = (
    linear("self.recall(x)")
    + """
    def recall(self, x):
        if not hasattr(self, 'kept'):
            self.kept = self.norm(self.linear(x))
        return self.kept.clone()
"""
)
"""Gives out its first answer for ever. The static rules do not follow a value into another method."""


def test_an_answer_kept_from_the_first_call_is_found(judge: Judge) -> None:
    assert judge(make_task(LINEAR), KEEPS).status == "wrong_output"


def test_honesty_in_checked_calls_alone_is_found(judge: Judge) -> None:
    source = linear("out").replace(
        "return out",
        """
        self.calls = getattr(self, 'calls', 0) + 1
        out = self.norm(self.linear(x))
        return out if self.calls <= 4 else torch.zeros_like(out)""",
    )
    assert judge(make_task(LINEAR), source).status == "wrong_output"


def test_prepare_packs_weights_after_they_were_set(judge: Judge) -> None:
    source = (
        linear("self.norm(x @ self.packed + self.linear.bias)")
        + """
    def prepare(self):
        self.packed = self.linear.weight.T.contiguous()
"""
    )
    evaluation = judge(make_task(LINEAR), source)
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.seconds["prepare"] > 0


BATCH_NORM = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(32)
    def forward(self, x):
        return self.bn(x)
def get_inputs():
    return [torch.randn(64, 32) * 2 + 1]
def get_init_inputs():
    return []
"""


def batch_norm(body: str) -> str:
    """A Program for the BATCH_NORM task."""
    return BATCH_NORM.split("def get_inputs", maxsplit=1)[0].replace("Model(", "ModelNew(").replace("self.bn(x)", body)


def test_state_is_checked_and_a_missing_update_is_flagged(judge: Judge) -> None:
    facts = make_facts(mutates_state=True)
    full = judge(make_task(BATCH_NORM), batch_norm("self.bn(x)"), facts=facts)
    assert full.status == "correct", full.message
    assert not full.findings
    assert full.correctness is not None
    assert {o.output for o in full.correctness.outputs} >= {"0", "state:bn.running_mean", "state:bn.running_var"}
    stale = judge(
        make_task(BATCH_NORM),
        batch_norm("F.batch_norm(x, None, None, self.bn.weight, self.bn.bias, True)"),
        facts=facts,
    )
    assert stale.status == "correct", stale.message
    assert [(f.rule, f.severity) for f in stale.findings] == [("state_update", "flag")]
    wrong = judge(make_task(BATCH_NORM), batch_norm("(self.bn(x), self.bn.running_mean.mul_(2))[0]"), facts=facts)
    assert wrong.status == "wrong_output"
    assert "state:bn.running_mean" in wrong.message


def test_running_statistics_matter_in_eval_mode(judge: Judge) -> None:
    task = make_task(BATCH_NORM, mode="eval")
    facts = make_facts(training=False)
    assert judge(task, batch_norm("self.bn(x)"), facts=facts).status == "correct"
    ignoring = batch_norm("x * self.bn.weight + self.bn.bias")
    assert judge(task, ignoring, facts=facts).status == "wrong_output"


NESTED = """
class Model(nn.Module):
    def forward(self, x, scale, options):
        y = x * scale
        return {"sum": y.sum(), "parts": (y, y.argmax(-1)), "count": 3, "note": None, "flag": y > options["at"][0]}
def get_inputs():
    return [torch.randn(16, 8, 4, 4).to(memory_format=torch.channels_last), 2.5, {"at": [0.25]}]
def get_init_inputs():
    return []
"""


def test_nested_outputs_scalars_and_strides_travel(judge: Judge) -> None:
    task = make_task(NESTED)
    same = NESTED.split("def get_inputs", maxsplit=1)[0].replace("Model(", "ModelNew(")
    strict = same.replace("y = x", "assert x.is_contiguous(memory_format=torch.channels_last); y = x")
    evaluation = judge(task, strict)
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.correctness is not None
    assert {o.output for o in evaluation.correctness.outputs} == {"sum", "parts.0", "parts.1", "flag"}
    off_by_one = judge(task, same.replace("argmax(-1)", "argmax(-1).clamp(max=2)"))
    assert off_by_one.status == "wrong_output"
    assert "parts.1" in off_by_one.message
    missing = judge(task, same.replace('"count": 3, ', ""))
    assert missing.status == "wrong_output"
    assert "keys" in missing.message


CHOSEN = """
class Model(nn.Module):
    def forward(self, x):
        return torch.nonzero(x > 0.9), x[x > 0.9] * 2
def get_inputs():
    return [torch.randn(37, 53)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("chosen", "status"), [("x > 0.9", "correct"), ("x > 0.8", "wrong_output")], ids=["right", "too many"]
)
def test_outputs_may_be_as_large_as_the_inputs_make_them(judge: Judge, chosen: str, status: str) -> None:
    body = f"m = {chosen}\n        return m.nonzero(), x[m] * 2"
    new = f"class ModelNew(nn.Module):\n    def forward(self, x):\n        {body}\n"
    evaluation = judge(make_task(CHOSEN), new)
    assert evaluation.status == status, evaluation.message


def test_inputs_that_ignore_their_seed_are_made_fresh(judge: Judge) -> None:
    source = LINEAR.replace("torch.randn(48, 256)", "torch.linspace(-1, 1, 48 * 256).view(48, 256).cos()")
    evaluation = judge(make_task(source), linear("self.norm(self.linear(x))"))
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.provenance["fixed_inputs"] is True
    assert judge(make_task(source), KEEPS).status == "wrong_output"


DROPOUT = """
class Model(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5)
def get_inputs():
    return [torch.rand(64, 256) + 1]
def get_init_inputs():
    return []
"""


def test_random_tasks_are_seeded_alike_or_judged_by_statistics(judge: Judge) -> None:
    same = DROPOUT.split("def get_inputs", maxsplit=1)[0].replace("Model(", "ModelNew(")
    seedable = make_facts(stochastic=True, seedable=True)
    evaluation = judge(make_task(DROPOUT), same, facts=seedable)
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.labels == ["stochastic"]
    free = make_facts(stochastic=True, seedable=False)
    own_draws = same.replace("F.dropout(x, 0.5)", "x * (torch.rand(64, 256) > 0.5) * 2")
    assert judge(make_task(DROPOUT), own_draws, facts=free).status == "correct"
    assert judge(make_task(DROPOUT), same.replace("0.5", "0.1"), facts=free).status == "wrong_output"


def test_half_precision_class_is_judged_by_its_own_rounding(judge: Judge) -> None:
    task = make_task(LINEAR, precision="bf16")
    evaluation = judge(task, linear("self.norm(self.linear(x))"))
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.precision == "bf16"
    assert judge(task, linear("self.norm(self.linear(x)) * 1.5")).status == "wrong_output"


def test_a_task_that_any_answer_passes_is_labelled(judge: Judge) -> None:
    source = """
class Model(nn.Module):
    def forward(self, x):
        return x.sigmoid().clamp(1, 2)
def get_inputs():
    return [torch.randn(8, 8)]
def get_init_inputs():
    return []
"""
    new = source.split("def get_inputs", maxsplit=1)[0].replace("Model(", "ModelNew(")
    evaluation = judge(make_task(source), new)
    assert evaluation.status == "correct"
    assert "non_discriminating" in evaluation.labels


def test_amplified_rounding_is_labelled_ill_conditioned(judge: Judge) -> None:
    source = """
class Model(nn.Module):
    def forward(self, x):
        for _ in range(6):
            x = (x - x.mean()) * 300
            x = x - x.round()
        return x
def get_inputs():
    return [torch.rand(32)]
def get_init_inputs():
    return []
"""
    new = source.split("def get_inputs", maxsplit=1)[0].replace("Model(", "ModelNew(")
    evaluation = judge(make_task(source), new)
    assert evaluation.status == "correct", evaluation.message
    assert "ill_conditioned" in evaluation.labels


def test_statistics_behind_amplified_rounding_get_the_budget_of_the_amplification(judge: Judge) -> None:
    source = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
    def forward(self, x):
        for _ in range(4):
            x = (x - x.mean()) * 300
            x = x - x.round()
        return self.norm(x)
def get_inputs():
    return [torch.rand(16, 64)]
def get_init_inputs():
    return []
"""
    new = source.split("def get_inputs", maxsplit=1)[0].replace("Model(", "ModelNew(")
    reordered = new.replace("x.mean()", "x.sum(1).sum() / 1024")
    evaluation = judge(make_task(source), reordered)
    assert evaluation.status == "correct", evaluation.message
    assert "ill_conditioned" in evaluation.labels


def test_input_cases_are_all_checked(judge: Judge) -> None:
    source = (
        LINEAR
        + """
def get_input_cases():
    return [("short", 3.0, [torch.randn(4, 256)]), ("long", 1.0, [torch.randn(48, 256)])]
"""
    )
    only_long = linear("self.norm(self.linear(x))").replace(
        "return self", "if x.shape[0] == 4: return torch.ones(4, 64)\n        return self"
    )
    evaluation = judge(make_task(source), only_long)
    assert evaluation.status == "wrong_output"
    good = judge(make_task(source), linear("self.norm(self.linear(x))"))
    assert good.status == "correct", good.message
    assert good.timings["program"].n == 2 * QUICK.screen_calls


def test_a_process_that_times_one_of_two_cases_comes_to_its_end(judge: Judge) -> None:
    source = (
        LINEAR
        + """
def get_input_cases():
    return [("short", 3.0, [torch.randn(5, 256)]), ("long", 1.0, [torch.randn(48, 256)])]
"""
    )
    few = QUICK.model_copy(update={"publish_calls": 5, "publish_processes": 5})
    evaluation = judge(make_task(source), linear("self.norm(self.linear(x))"), settings=few, tier="publish")
    assert evaluation.status == "correct", evaluation.message


def test_a_patched_clock_is_dishonest(judge: Judge) -> None:
    source = """
import sys
runner = next(m for n, m in sys.modules.items() if n == 'stitchcuda_runner')
class Clock:
    now = 0
    def perf_counter_ns(self):
        self.now += 1000
        return self.now
    def __getattr__(self, name):
        import time
        return getattr(time, name)
runner.time = Clock()
""" + linear("self.slow(x)").replace(
        "return self.slow(x)", "import time; time.sleep(0.02)\n        return self.norm(self.linear(x))"
    )
    evaluation = judge(make_task(LINEAR), source)
    assert evaluation.status == "dishonest"
    assert "clocks disagree" in evaluation.message


IN_PLACE = make_task("""
class Model(nn.Module):
    def forward(self, x, others):
        return torch.relu(x) + others["y"].t()
def get_inputs():
    return [torch.randn(8, 16).t(), {"y": torch.randn(8, 16)}]
def get_init_inputs():
    return []
""")


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ("return torch.relu(x) + others['y'].t()", ""),
        ("y = torch.relu(x) + others['y'].t()\n        x.zero_()\n        return y", "0"),
        ("y = torch.relu(x) + others['y'].t()\n        others['y'][3, 5] += 1\n        return y", "1.y"),
        ("y = torch.relu(x) + others['y'].t()\n        x.resize_(1)\n        return y", "0"),
    ],
    ids=["leaves them", "first", "nested", "resized"],
)
def test_inputs_must_be_left_unchanged(judge: Judge, body: str, changed: str) -> None:
    source = f"class ModelNew(nn.Module):\n    def forward(self, x, others):\n        {body}\n"
    evaluation = judge(IN_PLACE, source)
    assert evaluation.status == ("dishonest" if changed else "correct"), evaluation.message
    found = [finding.evidence for finding in evaluation.findings if finding.rule == "input_mutation"]
    assert [f"changes its input {changed}," in evidence for evidence in found] == ([True] if changed else [])


def test_a_reference_that_changes_its_inputs_allows_it(judge: Judge) -> None:
    task = make_task("""
class Model(nn.Module):
    def forward(self, x):
        return x.relu_() * 2
def get_inputs():
    return [torch.randn(8, 16)]
def get_init_inputs():
    return []
""")
    evaluation = judge(task, "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x.relu_() * 2\n")
    assert evaluation.status == "correct", evaluation.message
    assert not evaluation.findings
