"""Fused kernels compute what eager computes, as accurately, for the layouts and operators that programs use."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from tests.recipes.support import assert_accurate, loaded, make_task, model_source, twins, written

FUSION = ("pointwise", "row_reduction", "epilogue", "concat", "pool_first")


def check(cache: Path, forward: str, shapes: list[tuple[int, ...]], init: str = "pass", launchers: int = 1) -> None:
    task = make_task(model_source(forward, shapes, init))
    program = written(task, FUSION)
    assert program.manifest is not None
    assert len(program.manifest.launchers) == launchers
    assert_accurate(task, program, cache)


@pytest.mark.parametrize(
    "expression",
    [
        "F.gelu(a) * b",
        "F.gelu(a, approximate='tanh') + b",
        "F.silu(a) * b + 1.5",
        "torch.sigmoid(a) * torch.tanh(b)",
        "F.relu6(a + 3) / 6 * b",
        "F.hardswish(a) + F.hardsigmoid(b)",
        "torch.exp(-a.abs()) * torch.log(b * b + 0.1)",
        "torch.rsqrt(a * a + 1) - torch.sqrt(b.abs())",
        "(a ** 2 + b.pow(3)) * 0.5",
        "torch.where(a > b, a, 0.1 * b)",
        "torch.clamp(a, -0.5, 0.5) + b.clamp(min=0)",
        "a.masked_fill(b > 0.5, float('-inf')).exp()",
        "F.softplus(a) - F.elu(b) + F.leaky_relu(a, 0.2)",
        "F.mish(a) * F.selu(b)",
        "torch.maximum(a, b) - torch.minimum(a, b)",
        "torch.addcmul(a, a, b, value=0.3) / 1.7",
        "a.sub(b, alpha=2).neg().reciprocal()",
        "F.logsigmoid(a) + torch.erf(b)",
        "torch.lerp(a, b, 0.3) * 2",
        "((a > 0) & (b < 0)).float() * a",
    ],
)
def test_pointwise_operators_are_as_accurate_as_eager(cache: Path, expression: str) -> None:
    check(cache, f"return {expression}", [(33, 70), (33, 70)])


def test_broadcast_strided_and_offset_inputs_are_read_in_place(cache: Path) -> None:
    check(
        cache,
        "return torch.relu(a.transpose(1, 2) * b + c[:, :, 1:]) * d",
        [(3, 20, 12), (12, 1), (3, 12, 21), (20,)],
    )


def test_channels_last_results_keep_their_layout(cache: Path) -> None:
    task = make_task(
        model_source(
            "x = a.contiguous(memory_format=torch.channels_last)\nreturn (x * 2 + b).relu()", [(2, 5, 6, 7), (5, 1, 1)]
        )
    )
    assert_accurate(task, written(task, FUSION), cache)


def test_several_results_come_from_one_kernel(cache: Path) -> None:
    check(cache, "x = a + b\ny = x * 2\nreturn {'x': x, 'rest': (y.sigmoid(), y)}", [(17, 9), (17, 9)])


def test_not_a_number_and_infinity_pass_through(cache: Path) -> None:
    forward = """
    x = torch.where(b > 1, float('nan'), a)
    x = torch.where(b < -1, float('inf'), x)
    return F.relu(x) + 1, torch.tanh(x) * 2, torch.clamp(x, -1, 1) * 3, torch.exp(-x) * 2
    """
    check(cache, forward, [(40, 40), (40, 40)])


@pytest.mark.parametrize(
    "forward",
    [
        "return F.softmax(a * 0.3 + b, dim=-1)",
        "return F.log_softmax(a + b, dim=-1) * 2",
        "return F.layer_norm(a + b, (a.shape[-1],)) * 2",
        "x = a + b\nreturn x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)",
        "x = (a - a.mean(-1, keepdim=True)) / (a.std(-1, keepdim=True) + 1e-3)\nreturn x * b",
        "return F.normalize(a * b, dim=-1)",
        "x = a * b\nreturn x.amax(-1), x.sum(-1, keepdim=True), x",
        "return torch.logsumexp(a * 2 + b, dim=-1)",
        "return F.softmax(F.layer_norm(a, (a.shape[-1],)) * b, -1)",
        "return F.softmax((a * 2).masked_fill(b > 0, float('-inf')), -1)",
    ],
)
@pytest.mark.parametrize("width", [5, 64, 3000])
def test_row_reductions_join_their_neighbours(cache: Path, forward: str, width: int) -> None:
    check(cache, forward, [(6, 7, width), (6, 7, width)])


def test_means_over_trailing_planes_join_the_activation(cache: Path) -> None:
    check(cache, "return F.adaptive_avg_pool2d(F.relu(a + b), 1).flatten(1)", [(3, 8, 7, 9), (8, 1, 1)])


def test_a_layer_norm_with_weights_takes_the_residual_along(cache: Path) -> None:
    check(
        cache,
        "return self.norm(a + self.layer(b))",
        [(4, 5, 32), (4, 5, 16)],
        "self.norm = nn.LayerNorm(32)\nself.layer = nn.Linear(16, 32)",
    )


def test_concatenated_parts_are_written_into_their_slices(cache: Path) -> None:
    check(
        cache,
        "return torch.cat([F.relu(self.one(a)), F.relu(self.three(a))], 1) * 2",
        [(2, 4, 8, 8)],
        "self.one = nn.Conv2d(4, 6, 1)\nself.three = nn.Conv2d(4, 10, 3, padding=1)",
        launchers=2,
    )


def test_pooling_before_the_activation_is_exact(cache: Path) -> None:
    task = make_task(
        model_source(
            "return F.max_pool2d(F.relu(self.conv(a)), 3, 2, ceil_mode=True)",
            [(2, 3, 17, 17)],
            "self.conv = nn.Conv2d(3, 8, 3)",
        )
    )
    program = written(task, FUSION)
    text = program.files["program.py"]
    assert text.index("max_pool2d") < text.index("relu_")
    assert_accurate(task, program, cache)


def test_truth_values_are_read_and_written_in_vector_code(cache: Path) -> None:
    forward = """
    x = torch.tanh(a / 7).masked_fill(self.later, float("-inf"))
    return F.softmax(x, -1), (x > 0) & (b < 0)
    """
    init = "self.register_buffer('later', torch.ones(40, 40).triu(1).bool())"
    task = make_task(model_source(forward, [(3, 40, 40), (3, 40, 40)], init))
    program = written(task, FUSION)
    assert program.manifest is not None
    assert "bool* __restrict__ row" not in program.files["fused.cpp"]
    assert_accurate(task, program, cache)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bit_types_are_computed_in_single_precision(cache: Path, precision: str) -> None:
    forward = "x = F.gelu(a) * b + 0.5\nreturn F.layer_norm(x, (48,)) * 2"
    task = make_task(model_source(forward, [(20, 48), (20, 48)]), precision=precision)  # type: ignore[arg-type]
    assert_accurate(task, written(task, FUSION), cache, factor=1.1, floor=0.0)


def test_casts_to_sixteen_bits_and_back_round(cache: Path) -> None:
    forward = """
    x = (a * 3).half()
    y = (x * b.half()).float() - 1
    return (a * 300).bfloat16().float() * 2 + b, x + 1, y * 2, (x * 100).int() + 1
    """
    task = make_task(model_source(forward, [(20, 48), (20, 48)]))
    program = written(task, FUSION)
    assert program.manifest is not None
    with loaded(program, task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        inputs = reference.inputs(seed=3)
        for mine, eager in zip(new(*inputs), model(*inputs), strict=True):
            torch.testing.assert_close(mine, eager)


def test_a_lone_operator_is_left_to_eager() -> None:
    for forward in ("return a.relu()", "return a.softmax(-1)", "return (a @ b).tanh()"):
        assert written(make_task(model_source(forward, [(8, 8), (8, 8)])), FUSION).manifest is None


def test_random_graphs_are_as_accurate_as_eager(cache: Path) -> None:
    generator = random.Random(11)
    for case in range(8):
        task = make_task(model_source(random_forward(generator), [(4, 6, 24), (24,), (4, 1, 24)]))
        program = written(task, FUSION)
        assert program.manifest is not None, case
        assert_accurate(task, program, cache, factor=6.0, floor=1e-6)


def random_forward(generator: random.Random) -> str:
    """A small DAG of operators over one iteration space with broadcasts, views and reductions."""
    unary = [
        "torch.tanh({x})",
        "F.gelu({x})",
        "F.silu({x})",
        "({x} * 0.5)",
        "torch.sigmoid({x})",
        "F.relu({x})",
        "-{x}",
    ]
    binary = [
        "({x} + {y})",
        "({x} * {y})",
        "torch.maximum({x}, {y})",
        "torch.where({x} > {y}, {x}, {y})",
        "({x} - {y})",
    ]
    rows = [
        "F.softmax({x}, -1)",
        "F.layer_norm({x}, (24,))",
        "({x} - {x}.mean(-1, keepdim=True))",
        "({x} / ({x}.pow(2).sum(-1, keepdim=True) + 1).sqrt())",
    ]
    names = ["a", "(a + b)", "(c * a)"]
    lines = []
    for i in range(generator.randint(4, 9)):
        pattern = generator.choice(unary + binary * 2 + rows)
        x, y = generator.choice(names), generator.choice([*names, "b", "c"])
        lines.append(f"v{i} = {pattern.format(x=x, y=y)}")
        names.append(f"v{i}")
    kept = generator.sample(names[3:], 2)
    return "\n".join([*lines, f"return {kept[0]}, {kept[1]}, {names[-1]}"])


def test_memory_of_inputs_and_earlier_results_is_never_overwritten(cache: Path) -> None:
    forward = "x = self.layer(a)\ny = F.gelu(x) * 2 + a\nreturn y, x"
    task = make_task(model_source(forward, [(9, 16)], "self.layer = nn.Linear(16, 16)"))
    with loaded(written(task, FUSION), task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        a = reference.inputs(seed=0)[0]
        before = a.clone()
        first = [value.clone() for value in new(a)]
        kept = new(a)
        new(torch.randn_like(a))
        assert torch.equal(a, before)
        for value, copy, expected in zip(kept, first, model(a), strict=True):
            assert torch.equal(value, copy)
            torch.testing.assert_close(value, expected)


VIEWS = [
    "torch.broadcast_tensors(a, b)[0]",
    "a.broadcast_to((5, 7))",
    "a.moveaxis(0, 1)",
    "a.reshape_as(b)",
    "torch.atleast_3d(a)",
    "torch.einsum('ij->ji', a)",
    "torch.meshgrid((a + 1)[0, :1], b[0], indexing='ij')[1]",
    "a.mH",
]


@pytest.mark.parametrize("view", VIEWS)
def test_inputs_are_not_overwritten_through_views_of_any_name(cache: Path, view: str) -> None:
    task = make_task(model_source(f"return torch.relu({view}) * 2", [(5, 7), (5, 7)]))
    with loaded(written(task, FUSION), task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        inputs = reference.inputs(seed=1)
        kept = [value.clone() for value in inputs]
        torch.testing.assert_close(new(*inputs), model(*kept))
        assert all(torch.equal(value, before) for value, before in zip(inputs, kept, strict=True))


@pytest.mark.parametrize("view", VIEWS)
def test_results_are_not_overwritten_through_views_of_any_name(cache: Path, view: str) -> None:
    forward = f"x = a\na = torch.relu(x) + 1\nreturn a, torch.tanh({view}) * 2"
    task = make_task(model_source(forward, [(5, 7), (5, 7)]))
    with loaded(written(task, FUSION), task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        inputs = reference.inputs(seed=1)
        torch.testing.assert_close(new(*inputs), model(*inputs))


@pytest.mark.parametrize("view", ["h.moveaxis(0, 1)", "h.mH"])
def test_what_is_written_through_a_view_of_any_name_is_read_afterwards(cache: Path, view: str) -> None:
    forward = f"h = a * 2\nh.add_(1)\nz = {view}\nz.mul_(3)\nreturn h + 1, h.sum(1)"
    task = make_task(model_source(forward, [(5, 7)]))
    with loaded(written(task, FUSION), task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        inputs = reference.inputs(seed=1)
        torch.testing.assert_close(new(*inputs), model(*inputs))


@pytest.mark.parametrize(
    "forward",
    [
        "return F.mse_loss(a.t(), b.t()), F.mse_loss(a, b)",
        "return F.mse_loss(a, b), F.mse_loss(a.t(), b.t())",
        "return (a.t() * b.t()).relu(), (a * b).relu()",
        "return (a * b).relu(), (a.t() * b.t()).relu()",
    ],
)
def test_one_kernel_over_several_layouts_is_declared_for_each(cache: Path, forward: str) -> None:
    task = make_task(model_source(forward, [(64, 48), (64, 48)]))
    program = written(task, [*FUSION, "full_reduction"])
    assert program.manifest is not None
    first, second = program.manifest.launchers
    assert second.name.startswith(f"{first.name}_")
    assert_accurate(task, program, cache)


def test_one_kernel_over_one_layout_is_declared_once(cache: Path) -> None:
    forward = "return (a.t() * b.t()).relu(), (b.t() * a.t()).relu(), (a * b).relu(), (b * a).relu()"
    program = written(make_task(model_source(forward, [(64, 48), (64, 48)])), ["pointwise"])
    assert program.manifest is not None
    assert len(program.manifest.launchers) == 2
