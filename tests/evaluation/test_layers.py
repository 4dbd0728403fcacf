"""Every layer of the evaluation names itself, and in exhaustive mode each of them gets to look."""

from __future__ import annotations

from tests.evaluation.conftest import QUICK, Judge, make_task

TASK = make_task("""
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
def get_inputs():
    return [torch.randn(64, 32)]
def get_init_inputs():
    return []
""")

EXHAUSTIVE = QUICK.model_copy(update={"exhaustive": True})


def with_body(text: str) -> str:
    """A Program whose forward runs ``text``, then answers rightly."""
    return f"class ModelNew(nn.Module):\n    def forward(self, x):\n        {text}\n        return torch.relu(x) * 2\n"


WRONG_AND_WRITES = with_body("y = torch.relu(x) * 2.01; x.add_(1); return y")


def test_the_first_rejection_ends_an_evaluation(judge: Judge) -> None:
    evaluation = judge(TASK, WRONG_AND_WRITES)
    assert evaluation.status == "wrong_output"
    assert evaluation.findings == []


def test_exhaustive_mode_hears_all_layers_and_keeps_the_first_status(judge: Judge) -> None:
    evaluation = judge(TASK, WRONG_AND_WRITES, settings=EXHAUSTIVE)
    assert evaluation.status == "wrong_output"
    seen = {(finding.rule, finding.layer) for finding in evaluation.findings}
    assert seen >= {("wrong_output", "numerics"), ("input_mutation", "memory")}


def test_a_reused_output_buffer_is_seen_by_the_memory_layer(judge: Judge) -> None:
    source = """
class ModelNew(nn.Module):
    def forward(self, x):
        if not hasattr(self, "y"):
            self.y = torch.empty_like(x)
        return torch.mul(torch.relu(x), 2, out=self.y)
"""
    evaluation = judge(TASK, source, settings=EXHAUSTIVE)
    assert evaluation.status == "wrong_output"
    assert [(finding.rule, finding.layer) for finding in evaluation.findings] == [("output_reused", "memory")]


def test_a_dead_program_leaves_what_was_seen_before(judge: Judge) -> None:
    body = "self.n = getattr(self, 'n', 0) + 1; assert self.n < 4, 'over'; x.add_(1); return torch.relu(x - 1) * 2"
    evaluation = judge(TASK, with_body(body), settings=EXHAUSTIVE)
    assert evaluation.status == "dishonest"
    seen = [(finding.rule, finding.layer) for finding in evaluation.findings]
    assert seen == [("input_mutation", "memory"), ("crashed", "protocol")]


def test_an_honest_program_has_no_finding(judge: Judge) -> None:
    evaluation = judge(TASK, with_body("pass"), settings=EXHAUSTIVE)
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.findings == []
