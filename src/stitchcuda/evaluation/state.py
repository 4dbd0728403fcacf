"""A module's state by name, and how a fresh module is brought to its device and precision class. The same on
both sides: torch and the standard library only, loaded by path in the runner.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections import Counter
from collections.abc import Iterable

import torch
from torch import nn

CAST = {"fp16": torch.float16, "bf16": torch.bfloat16}

RAMP = 1 << 20
"""Elements of a fingerprint's part"""

COARSE = {torch.bfloat16: 0.1}
"""By how much weights are moved where the error budget is wider than two percent."""


def seed_all(seed: int) -> None:
    """Seed every generator that a constructor or a forward may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def settle(model: nn.Module, device: str, precision: str) -> nn.Module:
    """Cast to the precision class and move to ``device``, tensors kept as plain attributes included."""
    dtype = CAST.get(precision)
    if dtype is not None:
        model = model.to(dtype)
    model = model.to(device)
    for part in model.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                if dtype is not None and value.dtype in (torch.float32, torch.float64):
                    value = value.to(dtype)
                setattr(part, name, value.detach().to(device))
    return model


def named_state(model: nn.Module) -> dict[str, tuple[str, torch.Tensor]]:
    """Kind ('parameter', 'buffer', 'attribute') and tensor by dotted name; a tied tensor under each of its names."""
    found = {name: ("parameter", tensor.detach()) for name, tensor in model.named_parameters(remove_duplicate=False)}
    for name, tensor in model.named_buffers(remove_duplicate=False):
        found[name] = ("buffer", tensor)
    for prefix, part in model.named_modules():
        for key, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                found[f"{prefix}.{key}" if prefix else key] = ("attribute", value)
    return found


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the whole state by name."""
    return {name: tensor.detach().clone() for name, (_, tensor) in named_state(model).items()}


@torch.no_grad()
def restore(model: nn.Module, saved: dict[str, torch.Tensor]) -> None:
    """Put a snapshot back in place; names or shapes that have gone are skipped."""
    for name, (_, tensor) in named_state(model).items():
        if name in saved and saved[name].shape == tensor.shape:
            value = saved[name]
            # Converted where it goes: a processor takes seconds for gigabytes.
            tensor.detach().copy_(value.to(tensor.device) if value.dtype != tensor.dtype else value)


@torch.no_grad()
def perturb(model: nn.Module, seed: int) -> set[str]:
    """Move every parameter and the BatchNorm statistics off the values a constructor gives, in place.

    Weights are scaled by 1 + 0.02 n and shifted by 0.01 of their spread, in bf16 by five times as much, since its error
    budget allows two percent; constant ones (norm scales, zero biases) by a fifth of their value or by 0.05, so that
    leaving them out shows. Running variances stay positive. Returns the names that changed.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def noise(like: torch.Tensor) -> torch.Tensor:
        generator = generators.setdefault(like.device, torch.Generator(like.device).manual_seed(seed))
        drawn = torch.randn(like.shape, generator=generator, dtype=torch.float32, device=like.device)
        return drawn.to(like.dtype)

    parameters = dict(model.named_parameters(remove_duplicate=False))
    found = movable(model)
    seen: set[int] = set()
    for name, tensor in found.items():
        if name not in parameters:
            if name.endswith("running_mean"):
                tensor.add_(0.1 * noise(tensor))
            else:
                tensor.mul_(torch.exp(0.3 * noise(tensor)))
            continue
        if tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        spread = float(tensor.float().std()) if tensor.numel() > 1 else 0.0
        level = float(tensor.float().abs().max())
        if spread <= 1e-6 * level or tensor.numel() == 1:
            tensor.add_(noise(tensor) * (0.2 * level if level else 0.05))
        else:
            much = COARSE.get(tensor.dtype, 0.02)
            tensor.mul_(1 + much * noise(tensor)).add_(much / 2 * spread * noise(tensor))
    return set(found)


def movable(model: nn.Module) -> dict[str, torch.Tensor]:
    """What ``perturb`` moves, by name: parameters, and the running statistics of norms, where they are floating."""
    found = {name: tensor for name, (kind, tensor) in named_state(model).items() if kind == "parameter"}
    for prefix, part in model.named_modules():
        for key in ("running_mean", "running_var"):
            value = getattr(part, key, None)
            if isinstance(value, torch.Tensor):
                found[f"{prefix}.{key}".lstrip(".")] = value
    return {name: tensor for name, tensor in found.items() if tensor.is_floating_point() and tensor.numel()}


def is_constant(tensor: torch.Tensor) -> bool:
    """Whether all its elements are the same."""
    return bool(tensor.numel()) and bool((tensor == tensor.reshape(-1)[0]).all())


def fingerprint(tensor: torch.Tensor) -> str:
    """Stands for the ``form`` of a tensor and the bits of every element at its place; the same in every process."""
    bits = _bits(tensor)
    total = 0
    for at in range(0, bits.numel(), RAMP):
        part = bits[at : at + RAMP].to(torch.int64)
        places = torch.arange(1, part.numel() + 1, device=part.device)
        total += int((part * places).sum()) * (2 * (at // RAMP) + 1)
    return f"{form(tensor)}:{total % 2**64:x}"


def form(tensor: torch.Tensor) -> str:
    """dtype, and shape but for dimensions of one."""
    return f"{tensor.dtype}{[size for size in tensor.shape if size != 1]}"


def counterparts(
    state: dict[str, tuple[str, torch.Tensor]], wanted: Iterable[str], taken: set[int]
) -> dict[str, list[torch.Tensor]]:
    """What of a ``named_state`` has each of the ``wanted`` fingerprints, without what lies at the addresses ``taken``.

    Plain attributes count only where there are fewer parameters and buffers than wanted: a helper of a Program's own,
    such as zeros in place of a bias, may look like state.
    """
    counts = Counter(wanted)
    forms = {each.rpartition(":")[0] for each in counts}
    found: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for kind, tensor in state.values():
        # What is sparse, quantized or of a subclass has no bits to compare.
        plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
        plain = plain and not tensor.is_quantized and form(tensor) in forms
        if plain and tensor.data_ptr() not in taken:
            found.setdefault(fingerprint(tensor), ([], []))[kind == "attribute"].append(tensor)
    chosen = {}
    for print_, count in counts.items():
        registered, attributes = found.get(print_, ([], []))
        chosen[print_] = registered if len(registered) >= count else registered + attributes
    return chosen


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    wide = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return flat.view(wide[flat.element_size()]) if flat.numel() else flat.to(torch.int64)


@torch.no_grad()
def perturb_by_value(model: nn.Module, seed: int) -> tuple[set[str], dict[str, str]]:
    """Move the same state as ``perturb``, in place, where only values from before tell what belongs together. Each
    tensor its own way: those of the same shape and values are told apart by their order (see ``shares``).

    Returns the names that changed, and the origin of each: its fingerprint from before, and behind ``#`` the
    how-many-th of these it is.
    """
    found = movable(model)
    origins: dict[str, str] = {}
    places: dict[str, list[int]] = {}
    for name, tensor in found.items():
        print_ = fingerprint(tensor)
        known = places.setdefault(print_, [])
        if tensor.data_ptr() not in known:
            known.append(tensor.data_ptr())
        origins[name] = f"{print_}#{known.index(tensor.data_ptr())}"
    seen: set[int] = set()
    for name, tensor in found.items():
        if tensor.numel() and tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        generator = torch.Generator(tensor.device).manual_seed((seed + zlib.crc32(origins[name].encode())) % 2**63)
        noise = torch.randn(tensor.shape, generator=generator, device=tensor.device).to(tensor.dtype)
        if not is_constant(tensor):
            tensor.mul_(1 + COARSE.get(tensor.dtype, 0.02) * noise)
        elif bool((tensor == 0).all()):
            tensor.add_(0.05 * noise)
        else:
            tensor.mul_(torch.exp(0.2 * noise))
    return set(found), origins


def shares(
    state: dict[str, tuple[str, torch.Tensor]], origins: Iterable[str], taken: set[int]
) -> dict[str, list[torch.Tensor]]:
    """For each of the ``origins`` that have no counterpart by name, the tensors of a Program that get its values: those
    that have its fingerprint. Where several origins share one, each gets one, in the order in which either module has
    them: a Program that uses one for another is wrong then."""
    order: dict[str, list[int]] = {}
    for origin in dict.fromkeys(origins):
        print_, _, number = origin.rpartition("#")
        order.setdefault(print_, []).append(int(number or 0))
    found = counterparts(state, [print_ for print_, numbers in order.items() for _ in numbers], taken)
    shared: dict[str, list[torch.Tensor]] = {}
    for print_, numbers in order.items():
        distinct = list({tensor.data_ptr(): tensor for tensor in found[print_]}.values())
        for at, place in enumerate(sorted(numbers)):
            shared[f"{print_}#{place}"] = distinct if len(numbers) == 1 else distinct[at : at + 1]
    return shared
