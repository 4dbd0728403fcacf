"""1x1 convolutions as matrix products: the right ones, with their biases, and the same results."""

from __future__ import annotations

import pytest
import torch

from stitchcuda.recipes.capture import capture
from stitchcuda.recipes.conv_pointwise import ConvPointwise, is_pointwise_convolution, pays
from stitchcuda.recipes.write import write_program
from tests.recipes.emulation import gpu, task_of
from tests.recipes.support import HEADER, model_source


def source(convolution: str, shape: tuple[int, ...]) -> str:
    """A task around one convolution and a ReLU."""
    return HEADER + model_source("return F.relu(self.conv(a))", [shape], f"self.conv = nn.{convolution}")


@pytest.mark.parametrize("bias", [True, False])
def test_the_program_computes_what_the_convolution_does(bias: bool) -> None:
    text = source(f"Conv2d(5, 7, 1, bias={bias})", (2, 5, 6, 6))
    program = write_program(task_of(text), gpu(), [ConvPointwise.name])
    assert "bmm" in program.files["program.py"]
    assert "conv2d" not in program.files["program.py"].split("class ModelNew")[1]
    scope: dict[str, object] = {}
    exec(compile(program.files["program.py"].replace("'cuda'", "'cpu'"), "program", "exec"), scope)
    torch.manual_seed(0)
    own = scope["ModelNew"]()  # type: ignore[operator]
    torch.manual_seed(0)
    reference = scope["Model"]()  # type: ignore[operator]
    x = torch.randn(2, 5, 6, 6)
    exact = own(x)
    torch.testing.assert_close(exact, torch.relu(reference.conv(x)), rtol=1e-5, atol=1e-6)


SQUEEZE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(6, 4, 1), nn.Conv2d(4, 6, 1, bias=False)

    def forward(self, x):
        y = F.adaptive_avg_pool2d(F.adaptive_avg_pool2d(x, 1), 1)
        return x * torch.sigmoid(self.excite(F.relu(self.squeeze(y))))

def get_inputs():
    return [torch.randn(2, 6, 5, 5)]

def get_init_inputs():
    return []
"""


def test_on_planes_of_one_pixel_they_are_linear_layers_with_their_activations() -> None:
    program = write_program(task_of(HEADER + SQUEEZE), gpu(), [ConvPointwise.name])
    body = program.files["program.py"].split("class ModelNew")[1]
    assert body.count("_aten.linear") == 2
    assert body.count("_aten.adaptive_avg_pool2d") == 1
    scope: dict[str, object] = {}
    exec(compile(program.files["program.py"].replace("'cuda'", "'cpu'"), "program", "exec"), scope)
    torch.manual_seed(0)
    own = scope["ModelNew"]()  # type: ignore[operator]
    original: dict[str, object] = {}
    exec(compile(HEADER + SQUEEZE, "task", "exec"), original)
    torch.manual_seed(0)
    reference = original["Model"]()  # type: ignore[operator]
    x = torch.randn(2, 6, 5, 5)
    torch.testing.assert_close(own(x), reference(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "convolution",
    [
        "Conv2d(8, 8, 3, padding=1)",
        "Conv2d(8, 8, 1, stride=2)",
        "Conv2d(8, 8, 1, groups=2)",
        "Conv2d(8, 8, 1, padding=1)",
        "Conv2d(8, 8, 1, dtype=torch.float64)",
    ],
)
def test_other_convolutions_stay(convolution: str) -> None:
    text = source(convolution, (2, 8, 6, 6))
    if "float64" in convolution:
        text = text.replace("self.conv(a)", "self.conv(a.double())")
    graph = capture(task_of(text)).graph
    assert not any(is_pointwise_convolution(node) for node in graph.nodes)


@pytest.mark.parametrize(
    ("channels", "out", "side", "wins"),
    [
        (32, 64, 112, True),
        (128, 128, 56, True),
        (24, 144, 56, True),
        (512, 512, 14, False),
        (112, 672, 14, True),
        (1152, 192, 7, True),
        (320, 1280, 7, True),
        (112, 672, 224, True),
    ],
)
def test_the_rule_agrees_with_what_was_measured(channels: int, out: int, side: int, wins: bool) -> None:
    graph = capture(task_of(source(f"Conv2d({channels}, {out}, 1)", (10, channels, side, side)))).graph
    (node,) = [node for node in graph.nodes if is_pointwise_convolution(node)]
    assert pays(node) is wins
