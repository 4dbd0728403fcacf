"""The recipes' CUDA programs on a GPU: as accurate as eager, graphs and state included."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from stitchcuda.recipes.write import write_program
from tests.recipes.emulation import gpu
from tests.recipes.support import assert_accurate, errors, loaded, make_task, model_source, twins, written
from tests.recipes.test_fusion import random_forward

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

FUSION = ("pointwise", "row_reduction", "epilogue", "concat", "pool_first", "batch_norm_folding")
NET = "self.conv = nn.Conv2d(3, 6, 3)\nself.norm = nn.BatchNorm2d(6)\nself.head = nn.Linear(6, 5)"
FORWARD = "x = F.silu(self.norm(self.conv(a))) * 2\nreturn self.head(x.mean((2, 3)))"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("graph", [False, True])
def test_random_graphs_are_as_accurate_as_eager(cache: Path, seed: int, graph: bool) -> None:
    source = model_source(random_forward(random.Random(seed)), [(4, 6, 24), (24,), (4, 1, 24)])
    task = make_task(source, "cuda")
    assert_accurate(task, written(task, (*FUSION, "cuda_graph") if graph else FUSION), cache, factor=6.0, floor=1e-6)


@pytest.mark.parametrize("width", [5, 64, 3000, 9001, 40000])
@pytest.mark.parametrize("rows", [3, 4000])
def test_rows_of_every_width_and_number(cache: Path, width: int, rows: int) -> None:
    forward = (
        "x = a * b\nreturn F.softmax(x, -1), F.layer_norm(x + 1, (a.shape[-1],)), x.amax(-1), torch.logsumexp(x, -1)"
    )
    task = make_task(model_source(forward, [(rows, width), (width,)]), "cuda")
    assert_accurate(task, written(task, FUSION), cache, factor=6.0, floor=1e-6)


def test_strided_broadcast_and_offset_inputs(cache: Path) -> None:
    forward = "return torch.relu(a.transpose(1, 2) * b + c[:, :, 1:]) * d"
    task = make_task(model_source(forward, [(3, 20, 12), (12, 1), (3, 12, 21), (20,)]), "cuda")
    assert_accurate(task, written(task, FUSION), cache)


def test_concatenation_bias_and_pooling(cache: Path) -> None:
    forward = """
    x = F.max_pool2d(F.relu(self.stem(a)), 3, 2)
    x = torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)
    return F.adaptive_avg_pool2d(F.relu(self.last(x)), 1).flatten(1)
    """
    init = """
    self.stem = nn.Conv2d(3, 8, 3)
    self.one = nn.Conv2d(8, 6, 1)
    self.three = nn.Conv2d(8, 10, 3, padding=1)
    self.last = nn.Conv2d(16, 7, 1)
    """
    task = make_task(model_source(forward, [(4, 3, 33, 33)], init), "cuda")
    assert_accurate(task, written(task, FUSION), cache, factor=6.0, floor=1e-6)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bit_types(cache: Path, precision: str) -> None:
    forward = "x = F.gelu(a) * b + 0.5\nreturn F.layer_norm(x, (48,)) * 2"
    task = make_task(model_source(forward, [(20, 48), (20, 48)]), "cuda", precision=precision)  # type: ignore[arg-type]
    assert_accurate(task, written(task, FUSION), cache, factor=1.1, floor=0.0)


@pytest.mark.parametrize("graph", [False, True])
def test_a_transformer_over_two_tokens(cache: Path, graph: bool) -> None:
    init = """
    self.patch = nn.Linear(8192, 128)
    layers = [nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(2)]
    self.layers = nn.Sequential(*layers)
    self.head = nn.Linear(128, 1000)
    """
    forward = "x = torch.stack((self.patch(a), self.patch(b)), 1)\nreturn self.head(self.layers(x)[:, 0])"
    task = make_task(model_source(forward, [(10, 8192), (10, 8192)], init), "cuda")
    recipes = (*FUSION, "skinny_linear", "small_attention", *(["cuda_graph"] if graph else []))
    program = written(task, recipes)
    assert "small_attention" in program.files["program.py"]
    for seed in range(3):
        for mine, eager in errors(task, program, cache, seed=seed):
            assert mine <= max(1e-6, 4 * eager)


def test_a_graph_updates_state_once_a_call_and_its_results_outlive_the_next(cache: Path) -> None:
    task = make_task(model_source(FORWARD, [(2, 3, 9, 9)], NET), "cuda")
    with loaded(written(task, (*FUSION, "cuda_graph")), task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        results = []
        for seed in range(3):
            (a,) = reference.inputs(seed=seed)
            results.append((new(a), model(a)))
        for mine, expected in results:
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(new.state_dict()[name], value)


def test_host_inputs_go_through_pinned_memory(cache: Path) -> None:
    source = model_source(
        "x = a.to(self.w.device)\nreturn (x * self.w).tanh() + 1",
        [(3000, 700)],
        "self.w = nn.Parameter(torch.randn(700))",
    )
    task = make_task(source, "cuda").model_copy(update={"residence": "host"})
    program = written(task, (*FUSION, "host_overlap", "cuda_graph"))
    assert "_send(self" in program.files["program.py"]
    with loaded(program, task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        for seed in range(3):
            (a,) = reference.inputs(seed=seed)
            assert a.device.type == "cpu"
            torch.testing.assert_close(new(a), model(a), rtol=1e-5, atol=1e-6)


PRODUCTS: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "tails": ("return a @ b", [(333, 1027), (1027, 517)]),
    "long sums": ("return a @ b", [(256, 40000), (40000, 256)]),
    "transposed": ("return a.T @ b.T", [(1024, 384), (640, 1024)]),
    "batches": ("return torch.bmm(a, b)", [(7, 200, 320), (7, 320, 264)]),
    "one matrix for all": ("return torch.matmul(a, b), torch.einsum('bij,jk->bik', a, b)", [(5, 130, 512), (512, 768)]),
    "lower": ("return torch.tril(a.tril() @ b.tril()), a @ b.triu()", [(1500, 1500), (1500, 1500)]),
    "upper": ("return torch.triu(a.triu() @ b.triu(), 5)", [(1500, 1500), (1500, 1500)]),
    "positive": ("return a.abs() @ b.abs()", [(1024, 8192), (8192, 1024)]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_on_the_tensor_cores_are_as_accurate_as_eager(
    cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("stitchcuda.recipes.split_matmul.WORTH", 0.0)
    task = make_task(model_source(*PRODUCTS[name]), "cuda")
    program = write_program(task, gpu(), ["split_matmul"])
    assert "split_matmul" in program.files["program.py"]
    assert_accurate(task, program, cache, factor=1.5, floor=6e-7)


def test_products_with_values_that_are_not_finite(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.recipes.split_matmul.WORTH", 0.0)
    task = make_task(model_source("return a @ b", [(300, 400), (400, 500)]), "cuda")
    with loaded(write_program(task, gpu(), ["split_matmul"]), task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        a, b = reference.inputs(seed=1)
        a[3, 7], a[5, 9], b[11, 13] = float("inf"), float("nan"), float("-inf")
        torch.testing.assert_close(new(a, b), model(a, b), rtol=1e-4, atol=1e-4, equal_nan=True)


def test_layers_on_the_tensor_cores_with_what_follows_them(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module_name in ("split_gemm", "split_gemm_tail"):
        monkeypatch.setattr(f"stitchcuda.recipes.{module_name}.WORTH", 0.0)
    init = (
        "self.one, self.two = nn.Linear(1024, 640), nn.Linear(640, 512)\nself.limit = nn.Parameter(torch.tensor(0.1))"
    )
    forward = """
    x = torch.min(F.hardtanh(self.one(a) * 0.5), self.limit) - self.limit
    y = self.two(x)
    return y * torch.sigmoid(y) / 3
    """
    task = make_task(model_source(forward, [(200, 1024)], init), "cuda")
    program = write_program(task, gpu(), ["split_gemm", "split_gemm_tail"])
    assert "_aten" not in program.files["program.py"].split("def forward")[1]
    assert_accurate(task, program, cache, factor=1.5, floor=1e-6)


MEMORY_BOUND: dict[str, tuple[str, str, list[tuple[int, ...]]]] = {
    "conv_mean": (
        "self.conv = nn.ConvTranspose2d(64, 128, 3, stride=2, padding=1, output_padding=1)",
        "return (self.conv(a) * 0.5).mean((2, 3), keepdim=True) + 1",
        [(8, 64, 128, 128)],
    ),
    "conv_mean in depth": (
        "self.conv = nn.ConvTranspose3d(16, 64, 3, padding=1)",
        "return self.conv(a).mean(2, keepdim=True) + 1",
        [(4, 16, 32, 64, 64)],
    ),
    "conv_depthwise_planes": (
        "self.conv = nn.Conv2d(64, 64, 3, groups=64)",
        "return self.conv(a)",
        [(8, 64, 256, 512)],
    ),
    "conv_depthwise_planes wide": (
        "self.conv = nn.Conv2d(64, 64, (3, 7), padding=(0, 3), groups=64)",
        "return self.conv(a)",
        [(8, 64, 127, 254)],
    ),
    "group_norm of instances": ("self.norm = nn.InstanceNorm2d(64)", "return self.norm(a)", [(8, 64, 512, 512)]),
    "group_norm": ("self.norm = nn.GroupNorm(8, 64)", "return self.norm(a)", [(5, 64, 512, 512)]),
    "group_norm with a chain": (
        "self.norm = nn.GroupNorm(8, 32)\nself.bias = nn.Parameter(torch.randn(32, 1, 1))",
        "return F.relu(self.norm(torch.sigmoid(a + self.bias)) - 0.5)",
        [(64, 32, 254, 254)],
    ),
    "group_norm with a mean": (
        "self.norm = nn.GroupNorm(8, 24)",
        "return F.relu(self.norm(a)).mean([1, 2, 3, 4])",
        [(64, 24, 22, 30, 30)],
    ),
    "group_norm_pool": (
        "self.norm = nn.GroupNorm(16, 64)\nself.scale = nn.Parameter(torch.randn(64, 1, 1))",
        "return torch.clamp(F.max_pool2d(self.norm(a + 3) * self.scale, 4), 0.0, 1.0)",
        [(64, 64, 126, 126)],
    ),
    "group_norm_pool of instances": (
        "self.norm = nn.InstanceNorm2d(24)",
        "return F.avg_pool2d(self.norm(a * 5 + 50), 3)",
        [(64, 24, 189, 200)],
    ),
    "softmax_pool": (
        "self.conv = nn.Conv3d(3, 16, 3)",
        "return F.max_pool3d(F.max_pool3d(torch.softmax(self.conv(a), 1), 2), 2)",
        [(32, 3, 16, 32, 32)],
    ),
    "channel_softmax": (
        "self.bias = nn.Parameter(torch.randn(64, 1, 1))",
        "return torch.tanh(torch.softmax(a + self.bias, 1)) * 2",
        [(16, 64, 128, 128)],
    ),
    "masked_scan": ("", "return torch.cumsum(a * (b > 0), 1)", [(2048, 32768), (2048, 32768)]),
    "column_reduction": ("", "return a.mean(1), a.sum(1, keepdim=True), a.argmax(1)", [(64, 1024, 1023)]),
}


@pytest.mark.parametrize("name", MEMORY_BOUND)
def test_kernels_bound_by_memory(cache: Path, name: str) -> None:
    init, forward, shapes = MEMORY_BOUND[name]
    task = make_task(model_source(forward, shapes, init or "pass"), "cuda")
    device = gpu(torch.cuda.get_device_properties(0).multi_processor_count)
    program = write_program(task, device, [name.split()[0]])
    assert program.manifest is not None
    for seed in range(2):
        for mine, eager in errors(task, program, cache, seed=seed):
            assert mine <= max(1e-6, 4 * eager)


FULL: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "hinge": ("return torch.mean(torch.clamp(1 - a * b, min=0))", [(4096, 16384), (16384,)]),
    "squares and more": (
        "return F.mse_loss(a, b), F.smooth_l1_loss(a, b) * 2, (a - b).abs().max(), F.soft_margin_loss(a, b)",
        [(3000, 4100), (3000, 4100)],
    ),
    "divergence": ("return F.kl_div(torch.log(a.abs()), F.softmax(b, -1), reduction='sum')", [(2048, 8192)] * 2),
    "triplets": ("return F.triplet_margin_loss(a * 0.5, b, c)", [(5000, 8192)] * 3),
    "triplets of short rows": ("return F.triplet_margin_loss(a * 0.5, b, c, swap=True)", [(50000, 96)] * 3),
    "cosines": (
        "return F.cosine_embedding_loss(a, b, torch.sign(c), margin=0.1)",
        [(9000, 1030)] * 2 + [(9000,)],
    ),
    "divergence of softmaxes": (
        "return F.kl_div(F.log_softmax(a, -1), F.softmax(b, -1), reduction='batchmean')",
        [(4096, 4096)] * 2,
    ),
}
LOSSES = ("full_reduction", "row_losses")


@pytest.mark.parametrize("name", FULL)
def test_losses_and_reductions_over_everything_in_one_kernel(cache: Path, name: str) -> None:
    task = make_task(model_source(*FULL[name]), "cuda")
    program = write_program(task, gpu(), LOSSES)
    assert program.manifest is not None
    for seed in range(2):
        for mine, eager in errors(task, program, cache, seed=seed):
            assert mine <= max(1e-6, 4 * eager)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_losses_of_sixteen_bit_types(cache: Path, precision: str) -> None:
    forward = "return F.mse_loss(a, b), F.triplet_margin_loss(a, b, a * b)"
    task = make_task(model_source(forward, [(3000, 1032)] * 2), "cuda", precision=precision)  # type: ignore[arg-type]
    assert_accurate(task, write_program(task, gpu(), LOSSES), cache, factor=1.5, floor=4e-3)


def test_sums_over_everything_are_the_same_at_every_call_and_in_a_graph(cache: Path) -> None:
    task = make_task(model_source("return ((a - b) ** 2).sum() * 0.5", [(3001, 4099), (4099,)]), "cuda")
    found = []
    for recipes in (LOSSES, (*LOSSES, "cuda_graph")):
        with loaded(write_program(task, gpu(), recipes), task, cache) as module, torch.no_grad():
            _, new, reference = twins(module, task)
            inputs = reference.inputs(seed=4)
            found += [new(*inputs).clone() for _ in range(20)]
    assert all(torch.equal(value, found[0]) for value in found)


def test_a_loss_with_ignored_rows(cache: Path) -> None:
    forward = "target = (b.abs() * 1000).long()\nreturn F.cross_entropy(a, torch.where(b > 1, -100, target))"
    task = make_task(model_source(forward, [(8192, 4096), (8192,)]), "cuda")
    program = write_program(task, gpu(), ["cross_entropy"])
    assert program.manifest is not None
    for seed in range(2):
        for mine, eager in errors(task, program, cache, seed=seed):
            assert mine <= max(1e-6, 4 * eager)
