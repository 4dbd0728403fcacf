"""Input families: other values, orders and elements, and what each of them leaves valid."""

from __future__ import annotations

import pytest
import torch

from stitchcuda.evaluation.families import VALUES, Family, Input, Nature, change, look, permute, plant
from stitchcuda.evaluation.judging import Round

ROWS = torch.Generator().manual_seed(3)
UNIFORM = torch.rand(256, 128, generator=ROWS)


def looks(*tensors: torch.Tensor, source: str = "") -> list[Input]:
    return [look(tensor, source) for tensor in tensors]


@pytest.mark.parametrize(
    ("tensor", "nature"),
    [
        (UNIFORM, "real"),
        (UNIFORM.half(), "real"),
        (torch.randint(0, 9, (64, 8), generator=ROWS), "values"),
        (UNIFORM > 0.5, "values"),
        ((UNIFORM > 0.5).float(), "values"),
        ((UNIFORM > 0.5).float() * 2 - 1, "values"),
        (UNIFORM.softmax(-1), "rows"),
        (UNIFORM.log_softmax(-1), "rows"),
        (UNIFORM / UNIFORM.norm(dim=-1, keepdim=True), "rows"),
        (torch.tensor(0.7), "fixed"),
        (torch.tensor([0, 3, 7, 12]), "fixed"),
        (torch.linspace(0, 1, 50), "fixed"),
        (UNIFORM.masked_fill(UNIFORM > 0.5, float("-inf")), "fixed"),
        (torch.rand(1, 8).expand(4, 8), "fixed"),
        (torch.randn(4, 4, dtype=torch.complex64), "fixed"),
    ],
    ids=[
        "uniform", "half", "tokens", "bool", "mask", "signs", "softmax", "log-softmax", "unit vectors", "scalar",
        "offsets", "table", "infinite", "expanded", "complex",
    ],
)  # fmt: skip
def test_the_nature_of_an_input_is_told_from_its_values(tensor: torch.Tensor, nature: Nature) -> None:
    assert look(tensor, "").nature == nature


@pytest.mark.parametrize("source", ["F.binary_cross_entropy(x, y)", "torch.bernoulli(x)", "table[(x * 9).long()]"])
def test_numbers_that_the_source_takes_for_probabilities_or_indices_keep_their_values(source: str) -> None:
    assert look(UNIFORM, source).nature == "values"


@pytest.mark.parametrize("family", VALUES)
def test_a_family_changes_real_inputs_alone_and_keeps_shape_dtype_and_strides(family: Family) -> None:
    real, tokens = UNIFORM.clone().t(), torch.randint(0, 9, (64, 8))
    before, strides = tokens.clone(), real.stride()
    assert change(family, [real, tokens], looks(real, tokens), seed=5)
    assert torch.equal(tokens, before)
    assert real.stride() == strides
    assert real.dtype == torch.float32
    assert torch.isfinite(real).all()
    assert not torch.equal(real, UNIFORM.t())


def test_each_family_is_what_its_name_says() -> None:
    made = {}
    for family in VALUES:
        made[family] = UNIFORM.clone()
        change(family, [made[family]], looks(UNIFORM), seed=5)
    spread = float(UNIFORM.std())
    assert abs(float(made["signed"].mean())) < 0.05 * spread
    assert float((made["signed"] < 0).float().mean()) == pytest.approx(0.5, abs=0.05)
    assert abs(float((made["offset"] - UNIFORM).mean())) > 1.5 * spread
    assert float(made["spikes"].abs().max()) > 200 * spread
    assert float((made["sparse"] == 0).float().mean()) > 0.85


def test_the_same_seed_gives_the_same_inputs_and_another_others() -> None:
    one, two, three = UNIFORM.clone(), UNIFORM.clone(), UNIFORM.clone()
    for tensor, seed in ((one, 1), (two, 1), (three, 2)):
        change("signed", [tensor], looks(UNIFORM), seed=seed)
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


@pytest.mark.parametrize("family", VALUES)
def test_structure_stays(family: Family) -> None:
    square = torch.rand(64, 64, generator=ROWS)
    triangle, symmetric = square.triu(), square + square.T
    change(family, [triangle, symmetric], looks(triangle, symmetric), seed=5)
    assert not bool(triangle.tril(-1).any())
    assert torch.equal(symmetric, symmetric.T)
    plant([triangle, symmetric], looks(square.triu(), square + square.T), 5, 1e3)
    assert not bool(triangle.tril(-1).any())
    assert torch.equal(symmetric, symmetric.T)


def test_rows_that_belong_together_are_permuted_together() -> None:
    x, y = UNIFORM.clone(), torch.arange(256).roll(7)
    rows = {tuple(row.tolist()): int(label) for row, label in zip(x, y, strict=True)}
    assert permute([x, y], looks(x, y), seed=4)
    assert not torch.equal(x, UNIFORM)
    assert all(rows[tuple(row.tolist())] == int(label) for row, label in zip(x, y, strict=True))


def test_nothing_is_permuted_beside_a_sorted_table() -> None:
    assert not permute([UNIFORM.clone(), torch.arange(9)], looks(UNIFORM, torch.arange(9)), seed=4)


def test_a_planted_element_is_large_and_alone() -> None:
    x = UNIFORM.clone()
    assert plant([x], looks(UNIFORM), 8, 1e3)
    changed = x != UNIFORM
    assert 1 <= int(changed.sum()) <= 4
    assert float((x - UNIFORM).abs()[changed].min()) > 100


def test_planted_tokens_masks_and_distributions_stay_valid() -> None:
    tokens, mask = torch.randint(0, 50, (64, 8), generator=ROWS), (UNIFORM > 0.5).float()
    chances = UNIFORM.softmax(-1)
    kept = [tokens.clone(), mask.clone(), chances.clone()]
    assert plant([tokens, mask, chances], looks(*kept), 8, 1e3)
    assert int((tokens != kept[0]).sum()) in range(1, 5)
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < 50
    assert set(mask.reshape(-1).tolist()) == {0.0, 1.0}
    assert torch.allclose(chances.sum(-1), torch.ones(256))
    assert not torch.equal(chances, kept[2])


def test_rows_of_indices_into_different_tables_do_not_mix() -> None:
    edges = torch.stack([torch.randint(0, 5, (99,)), torch.randint(1000, 1005, (99,))])
    before = edges.clone()
    assert permute([edges], looks(before), seed=4)
    assert plant([edges], looks(before), 8, 1e3)
    assert not torch.equal(edges, before)
    assert int(edges[0].max()) < 5
    assert int(edges[1].min()) >= 1000


@pytest.mark.parametrize(
    ("family", "values", "strict"),
    [
        ("", "", True),
        ("signed", "signed", True),
        ("permuted", "", True),
        ("permuted", "signed", True),
        ("permuted", "sparse", False),
        ("permuted", "offset", False),
        ("sparse", "sparse", False),
        ("probe", "", False),
    ],
)
def test_reordered_inputs_keep_the_budget_of_their_values(family: str, values: str, strict: bool) -> None:
    this = Round("check", None, [], [], -1, set(), family=family, values=values)
    assert this.strict is strict
    plain = Round("check", None, [], [], -1, set(), family=family)
    assert (this.key == plain.key) is (values in ("", family))
