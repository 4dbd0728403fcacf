"""Honest programs that came near a rule about streams, graphs or counts of calls, and are left alone."""

from __future__ import annotations

import pytest

from tests.evaluation.integrity.support import forward, inspected, rejected

SIDE = "self.side = torch.cuda.Stream()\nself.lanes = [self.side]"
FORK = "self.side.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(self.side):\n    y = g(x)\n"


@pytest.mark.parametrize(
    ("join", "before", "init"),
    [
        ("synchronize()", "from torch.cuda import synchronize\n", ""),
        ("self.sync()", "", "self.sync = torch.cuda.synchronize"),
        ("list(map(torch.cuda.current_stream().wait_stream, self.lanes))", "", ""),
        ("join = torch.cuda.current_stream().wait_stream\njoin(self.side)", "", ""),
        ("stack.callback(torch.cuda.current_stream().wait_stream, self.side)", "", ""),
        ("getattr(torch.cuda.current_stream(), 'wait_stream')(self.side)", "", ""),
        ("torch.cuda.Stream.wait_stream(torch.cuda.current_stream(), self.side)", "", ""),
        ("cudaStreamSynchronize(self.raw)", "from cuda.bindings.runtime import cudaStreamSynchronize\n", ""),
        ("with torch.cuda.stream(self.side): n = x.nonzero()", "", ""),
        ("with torch.cuda.stream(self.side): n = int(y.sum())", "", ""),
        ("with torch.cuda.stream(self.side): n = y.sum().to('cpu')", "", ""),
        (
            "order(torch.cuda.current_stream(), self.side)",
            "def order(s, other): s.wait_stream(other)\n",
            "s = self.side",
        ),
    ],
)
def test_every_way_to_join_a_stream(join: str, before: str, init: str) -> None:
    assert rejected(inspected(before + forward(f"{FORK}{join}\nreturn y", f"{SIDE}\n{init}"))) == set()


@pytest.mark.parametrize(
    "body",
    [
        "with torch.cuda.stream(torch.cuda.default_stream()):\n    return g(x)",
        f"{FORK}cudaGraphLaunch(e, raw)\nreturn y",
    ],
)
def test_what_is_entered_may_be_the_callers_own_stream_or_a_captures(body: str) -> None:
    assert rejected(inspected(forward(body, SIDE))) == set()


def test_another_file_may_join_the_stream() -> None:
    fork = "from overlap import join\n" + forward(f"{FORK}join(self.side)\nreturn y", SIDE)
    text = "import torch\ndef join(side):\n    torch.cuda.current_stream().wait_stream(side)\n"
    assert rejected(inspected(fork, overlap_py=text)) == set()
    assert rejected(inspected(fork, overlap_py="block = 3\n")) == {"unjoined_stream"}


@pytest.mark.parametrize(
    "body",
    [
        "ns = [0] * 8\nfor e in experts(x): ns[e] += 1\nreturn g(x, [128 if ns[e] <= 64 else 256 for e in range(8)])",
        "n = x.shape[0]\nself.seen[n] += 1\nreturn g(x, 4 if self.seen[n] > 3 else 1)",
        "self.n += 1\ny = g(x, 128 if self.n < 3 else 256)\nself.ms = start.elapsed_time(end)\nreturn y",
        "half = 0 if self.n < 2 else 1\nself.n += 1\nif self.n == 4: self.n = 0\nreturn g(x, self.ws[half])",
    ],
)
def test_counts_of_other_things_than_calls_and_settings_that_are_measured(body: str) -> None:
    assert rejected(inspected(forward(body, "self.n = 0\nself.seen = {}\nself.ws = [1, 2]"))) == set()


@pytest.mark.parametrize(
    "body",
    [
        "self.graph.replay()\nreturn self.y.clone()",
        "if self.kv is None: return torch.zeros(x.shape)\nself.state.copy_(x)\nself.graph.replay()\nreturn self.y",
    ],
    ids=["filled by a hook", "nothing that a graph fills"],
)
def test_a_graph_whose_inputs_come_another_way(body: str) -> None:
    assert rejected(inspected(forward(body, "self.y = self.kv = None"))) == set()
