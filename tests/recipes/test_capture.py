"""References are read as functional ATen graphs, cheaply, or refused with a reason."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from stitchcuda.recipes.capture import CaptureError, capture
from stitchcuda.recipes.normalise import op_name
from tests.recipes.support import make_task, model_source


def names(forward: str, shapes: list[tuple[int, ...]], init: str = "pass") -> list[str]:
    captured = capture(make_task(model_source(forward, shapes, init)))
    return [op_name(node) for node in captured.graph.nodes if op_name(node)]


def test_layers_stay_whole() -> None:
    found = names(
        "return F.layer_norm(self.norm(self.conv(a)), (6,))",
        [(2, 3, 8, 8)],
        "self.conv = nn.Conv2d(3, 4, 3)\nself.norm = nn.BatchNorm2d(4)",
    )
    assert found == ["conv2d", "add_", "batch_norm", "layer_norm"]


def test_in_place_operators_on_temporaries_become_functional() -> None:
    assert names("x = a + 1\nx.mul_(2).relu_()\nreturn x", [(4,)]) == ["add", "mul", "relu"]


def test_writes_through_views_stay_in_place() -> None:
    assert "mul_" in names("x = a + 1\ny = x[1:]\ny.mul_(2)\nreturn x", [(4,)])


def test_identities_go() -> None:
    assert names("return F.dropout(a.contiguous().view(4), 0.0) * 2", [(4,)]) == ["mul"]


def test_a_model_of_sixty_gigabytes_needs_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = names("return self.layer(a)", [(4, 120000)], "self.layer = nn.Linear(120000, 120000)")
    assert found == ["linear"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 * 2**20


def test_a_recurrent_layer_is_captured_without_stepping_through_time() -> None:
    init = "self.rnn = nn.GRU(4, 8, 2, batch_first=True, bidirectional=True)"
    captured = capture(make_task(model_source("y, h = self.rnn(a)\nreturn y, h", [(3, 100000, 4)], init)))
    (node,) = [node for node in captured.graph.nodes if op_name(node) == "gru"]
    assert [tuple(value.shape) for value in node.meta["val"]] == [(3, 100000, 16), (4, 3, 8)]


def test_state_that_a_call_changes_is_known() -> None:
    task = make_task(
        model_source("self.count += 1\nreturn a * self.count", [(4,)], "self.register_buffer('count', torch.zeros(1))")
    )
    captured = capture(task)
    assert [captured.states[node].path for node in captured.mutated] == ["count"]


def test_a_plain_attribute_that_forward_replaces_is_refused() -> None:
    task = make_task(model_source("self.h = self.h + a\nreturn self.h * 2", [(4,)], "self.h = torch.zeros(4)"))
    with pytest.raises(CaptureError, match=r"replaces self\.h"):
        capture(task)


def test_control_flow_on_values_is_refused() -> None:
    with pytest.raises(CaptureError, match="cannot be read as a graph"):
        capture(make_task(model_source("if a.sum() > 0:\n    return a * 2\nreturn a", [(4,)])))


def test_random_numbers_are_seen() -> None:
    assert capture(make_task(model_source("return F.dropout(a, 0.5)", [(4,)]))).draws_random
    assert not capture(make_task(model_source("return F.dropout(a, 0.0)", [(4,)]))).draws_random


def test_threads_that_read_references_at_once_leave_the_process_as_it_was() -> None:
    """A short reading begins within a long one's forward, and a longer one after that: they end in another order."""
    tasks = [
        make_task(model_source(f"import time\ntime.sleep({seconds})\nreturn a.sin()", [(4,)])) for seconds in (0.2, 0.5)
    ]
    torch.manual_seed(3)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    with ThreadPoolExecutor(2) as pool:
        graphs = list(pool.map(capture, tasks))
    assert [[op_name(node) for node in graph.graph.nodes if op_name(node)] for graph in graphs] == [["sin"], ["sin"]]
    assert not torch.compiler.is_compiling()
    assert not torch.compiler.is_exporting()
    assert torch.equal(torch.rand(1), drawn)
