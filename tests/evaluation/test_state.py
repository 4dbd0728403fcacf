"""State under other names: which tensors of a Program get which of the reference's."""

from __future__ import annotations

import torch
from torch import nn

from stitchcuda.evaluation.state import movable, named_state, perturb, perturb_by_value, shares


class Shifts(nn.Module):
    """Two that start alike, and one that does not."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, nn.Parameter(torch.zeros(4)))
        self.weight = nn.Parameter(torch.arange(4.0))


def test_what_starts_alike_is_moved_each_its_own_way_and_matched_in_order() -> None:
    reference, program = Shifts("left", "right"), Shifts("one", "two")
    _, origins = perturb_by_value(reference, 5)
    assert not torch.equal(reference.get_parameter("left"), reference.get_parameter("right"))
    found = shares(named_state(program), [origins["left"], origins["right"], origins["weight"]], set())
    assert [t.data_ptr() for t in found[origins["left"]]] == [program.get_parameter("one").data_ptr()]
    assert [t.data_ptr() for t in found[origins["right"]]] == [program.get_parameter("two").data_ptr()]
    assert [t.data_ptr() for t in found[origins["weight"]]] == [program.weight.data_ptr()]


def test_the_second_of_two_has_no_counterpart_where_a_program_has_one() -> None:
    _, origins = perturb_by_value(Shifts("left", "right"), 5)
    found = shares(named_state(Shifts("one")), [origins["left"], origins["right"]], set())
    assert [len(found[origins[name]]) for name in ("left", "right")] == [1, 0]


def test_a_tied_tensor_is_one_under_both_names() -> None:
    reference = Shifts("left", "right")
    reference.register_parameter("right", reference.get_parameter("left"))
    _, origins = perturb_by_value(reference, 5)
    assert origins["left"] == origins["right"]
    assert torch.equal(reference.get_parameter("left"), reference.get_parameter("right"))


def test_perturbing_moves_exactly_what_is_movable() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: tensor.detach().clone() for name, tensor in movable(model).items()}
    assert perturb(model, 3) == set(before)
    assert {"1.running_mean", "1.running_var", "0.weight"} <= set(before)
    assert all(not torch.equal(tensor, before[name]) for name, tensor in movable(model).items())
    assert bool((model.get_buffer("1.running_var") > 0).all())


def test_statistics_in_whole_numbers_or_without_elements_stay_as_they_are() -> None:
    for dtype, size in ((torch.int64, 4), (torch.float32, 0)):
        model = nn.Linear(4, 4)
        model.register_buffer("running_mean", torch.ones(size, dtype=dtype))
        model.register_buffer("running_var", torch.ones(size, dtype=dtype))
        for moved in (perturb(model, 3), perturb_by_value(model, 3)[0]):
            assert moved == {"weight", "bias"}
        assert torch.equal(model.get_buffer("running_var"), torch.ones(size, dtype=dtype))
