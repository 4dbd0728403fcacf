"""What a forward changes in place stays between the operators before and behind it: recipes that move work see it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stitchcuda.recipes.write import write_program
from tests.recipes.emulation import gpu
from tests.recipes.support import make_task, model_source, written


@pytest.mark.parametrize(
    ("recipe", "forward"),
    [
        ("plain_maxima", "x = F.max_pool1d(a.unsqueeze(1), 2)\na.add_(1)\nreturn x.squeeze(1).sum(1)"),
        ("pool_first", "x = F.relu(a)\na.add_(1)\nreturn F.max_pool1d(x, 2)"),
    ],
)
def test_what_is_pooled_is_read_before_it_changes(recipe: str, forward: str) -> None:
    task = make_task(model_source(forward, [(5, 66)]))
    own: dict[str, Any] = {}
    reference: dict[str, Any] = {}
    exec(written(task, [recipe]).files["program.py"], own)
    exec(task.source, reference)
    a = torch.randn(5, 66)
    mine, theirs = a.clone(), a.clone()
    torch.testing.assert_close(own["ModelNew"]()(mine), reference["Model"]()(theirs))
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("recipe", "last"),
    [
        ("group_norm", "self.norm(x)"),
        ("softmax_pool", "F.max_pool2d(F.softmax(x, 1), 2)"),
        ("pool_first", "F.max_pool2d(F.relu(x), 2)"),
    ],
)
@pytest.mark.parametrize("changes", [False, True])
def test_a_bias_joins_a_kernel_unless_it_changes_before(recipe: str, last: str, changes: bool) -> None:
    init = "self.conv, self.norm = nn.Conv2d(2, 16, 3), nn.GroupNorm(8, 16)"
    middle = "self.conv.bias.add_(1)\n" if changes else ""
    task = make_task(model_source(f"x = self.conv(a)\n{middle}return {last}", [(16, 2, 258, 258)], init), "cuda")
    body = write_program(task, gpu(), [recipe]).files["program.py"].split("def forward")[1]
    assert ("conv2d.default(a, p_conv_weight, p_conv_bias)" in body) == changes
