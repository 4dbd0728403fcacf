"""What a Task's reference computes: eager in the Task's precision class, in fp64, and under noise. Trusted;
lives in the oracle. Says nothing about Programs.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import time
import traceback
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from stitchcuda.evaluation.families import INDEX_WORDS, UNIT_WORDS
from stitchcuda.evaluation.state import (
    is_constant,
    movable,
    named_state,
    perturb,
    perturb_by_value,
    restore,
    seed_all,
    snapshot,
)
from stitchcuda.task.reference import Reference, apply_precision

Result = tuple[Any, dict[str, torch.Tensor]]
"""The outputs of one call, and the state it changed, by name."""

LARGE_STATE = 2 << 30
"""Bytes of a model's state from which on the constructor's values are kept on the host."""

LOOKED_UP = (nn.Embedding, nn.EmbeddingBag)
"""Modules whose parameters are read in part only."""

PIECES = (4, 16)
"""Where fp64 does not fit the device at once: parts of the batch, where rows do not depend on each other."""

EXACT_SECONDS = {"cpu": 0.5, "cuda": 0.05}
"""Where fp64 takes longer than this, only the first calls are compared with it: timed calls would be fewer."""

QUICK_SECONDS = {"cpu": 0.5, "cuda": 0.01}
"""And up to this many, more timed calls than the two of each input case that always are."""

INDEPENDENT = 1e-4
"""Relative difference up to which eager on a part of the batch gives the same rows as eager on all of it."""


def derive(nonce: bytes, label: str) -> int:
    """A 62-bit seed that only the nonce's holder can know."""
    return int.from_bytes(hashlib.sha256(nonce + label.encode()).digest()[:8], "little") >> 2


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """torch's default floating dtype, for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def map_floats(value: Any, change: Any) -> Any:
    """``value`` with ``change`` applied to each floating tensor inside."""
    return pytree.tree_map_only(torch.Tensor, lambda t: change(t) if t.is_floating_point() else t, value)


def _same_bits(one: torch.Tensor, two: Any) -> bool:
    return (
        isinstance(two, torch.Tensor)
        and one.shape == two.shape
        and bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(two)))
    )


def split_batch(inputs: list[Any], splits: set[int], count: int) -> Iterator[list[Any]]:
    """``inputs`` in up to ``count`` parts of the batch: the tensors at ``splits`` (counted over all leaves) are cut."""
    flat, structure = pytree.tree_flatten(inputs)
    places = [at for at, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
    chosen = {places[at] for at in splits}
    size = flat[min(chosen)].shape[0]
    step = -(-size // count)
    for start in range(0, size, step):
        part = [leaf[start : start + step] if at in chosen else leaf for at, leaf in enumerate(flat)]
        yield pytree.tree_unflatten(part, structure)


def _short_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is short: cuBLAS and cuDNN say so in words of their own."""
    text, words = str(error).lower(), ("alloc_failed", "allocation_failed", "out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(each in text for each in words)


def _forget_frames(error: BaseException) -> None:
    """Let go of the tensors that an error's frames hold, before memory is asked for again."""
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Expectation:
    """The reference under one secret state. ``task`` needs the attributes of ``task.model.Task`` only."""

    def __init__(self, task: SimpleNamespace, training: bool, stochastic: bool, seedable: bool) -> None:
        self.reference = Reference(task)  # type: ignore[arg-type]
        self.precision: str = task.precision
        self.training, self.stochastic, self.seedable = training, stochastic, seedable
        self.on_host = task.residence == "host"
        self.device: str = task.target.kind
        self.init_inputs: list[Any] = []
        self.model = self._construct(20_240_229)
        self.pristine = snapshot(self.model)
        self.current = self.pristine
        self.perturbed: set[str] = set()
        self.watch: list[str] = []
        self.fixed_inputs = False
        self.changes_inputs = False
        self.exact_model: nn.Module | None = None
        self.exact_device = self.device
        self.exact_pieces = 1
        self.exact_note = "fp64"
        self.exact_seconds = 0.0
        """Of the last answer in fp64"""
        self.exact_failed = False
        """Whether an answer in fp64 at once has failed under this nonce"""
        self.exact_on_host = True
        """Whether fp64 may go to host memory where the device's does not hold it, which can take minutes."""
        self.seeded = False
        self.origins: dict[str, str] = {}
        """Of what was perturbed under a seed, by name: see ``perturb_by_value``."""
        self.unmatched: set[str] = set()
        """Names whose values no Program of this evaluation has shown, by name or by value"""
        self.fixed: set[str] = set()
        """Names of what is constant, or the same under every seed"""
        self.seed = -1
        """Of the last ``reseed``"""

    def _construct(self, seed: int, *, on_device: bool = True) -> nn.Module:
        seed_all(seed)
        self.init_inputs = self.reference.init_inputs()
        model = self.reference.model(seed, on_device=on_device)
        model.train(self.training)
        return model

    def observe(self) -> None:
        """Find out which state a call changes, whether it changes its inputs, and whether inputs ignore their seed."""
        one, two = self.reference.inputs(1, None), self.reference.inputs(2, None)
        leaves = zip(pytree.tree_leaves(one), pytree.tree_leaves(two), strict=False)
        tensors = [(a, b) for a, b in leaves if isinstance(a, torch.Tensor)]
        self.fixed_inputs = bool(tensors) and all(a.shape == b.shape and torch.equal(a, b) for a, b in tensors)
        given = pytree.tree_map_only(torch.Tensor, torch.clone, one)
        with torch.no_grad():
            self.model(*given)
        used = zip(pytree.tree_leaves(one), pytree.tree_leaves(given), strict=False)
        self.changes_inputs = any(isinstance(a, torch.Tensor) and not _same_bits(a, b) for a, b in used)
        self.watch = [
            name
            for name, (_, tensor) in named_state(self.model).items()
            if not torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(self.pristine[name]))
        ]
        restore(self.model, self.pristine)
        if sum(tensor.numel() * tensor.element_size() for tensor in self.pristine.values()) > LARGE_STATE:
            self.pristine = self.current = {name: tensor.cpu() for name, tensor in self.pristine.items()}

    def renew(self, nonce: bytes) -> None:
        """Put the model into the state that ``nonce`` stands for."""
        self.seeded, self.origins, self.unmatched = False, {}, set()
        # The memory that was short under the last nonce may have been a Program's.
        if self.exact_device != self.device:
            self.exact_model = None
        self.exact_device, self.exact_pieces, self.exact_note = self.device, 1, "fp64"
        self.exact_failed = False
        self.reweigh(derive(nonce, "state"))

    def reweigh(self, seed: int) -> None:
        """Perturb the constructor's state anew, another way for every seed."""
        if self.perturbed or self.current is self.pristine:
            restore(self.model, self.pristine)
        self.perturbed = perturb(self.model, seed)
        self.current = snapshot(self.model)
        self._refresh_exact()

    def reseed(self, seed: int, secret: int) -> None:
        """Rebuild the model under ``seed``, as a Program whose state does not match by name is, and perturb it by
        ``secret``; what is ``unmatched`` stays as the constructor left it."""
        otherwise = self.pristine
        self.model = self._construct(seed, on_device=False)
        self.pristine = snapshot(self.model)
        self.perturbed, self.origins = perturb_by_value(self.model, secret)
        if seed != self.seed:
            there = {name: self.pristine[name] for name in self.origins}
            self.fixed = {n for n, t in there.items() if is_constant(t) or _same_bits(t, otherwise[n].to(t.device))}
        self.seed = seed
        self.exact_model = None
        self.seeded = True
        self.leave(self.unmatched)

    def alike(self) -> list[str]:
        """Names of what a seed alone does not tell from something else: a Program with other names has to have these in
        the reference's order."""
        several = {origin.rpartition("#")[0] for origin in self.origins.values() if not origin.endswith("#0")}
        return [name for name, origin in self.origins.items() if origin.rpartition("#")[0] in several]

    def leave(self, names: set[str]) -> list[str]:
        """Put pieces of state that a Program has nowhere, not under the name of a tied one either, back to what the
        constructor made of them. Returns those that every seed makes so: no call can tell whether they are used.
        """
        places = {name: tensor.data_ptr() for name, tensor in movable(self.model).items()}
        held = {place for name, place in places.items() if name not in names}
        self.unmatched = {name for name in names & set(places) if places[name] not in held}
        restore(self.model, {name: self.pristine[name] for name in self.unmatched})
        self.perturbed = set(self.origins) - self.unmatched
        self.current = snapshot(self.model)
        self._refresh_exact()
        return sorted(self.unmatched & self.fixed)

    def depends(self, names: Iterable[str], inputs: list[Any]) -> bool:
        """Whether the outputs of a call, not the state after it, are others when pieces of state are."""
        moved = {name: self.current[name] + torch.rand_like(self.current[name]) for name in names}
        before = pytree.tree_map_only(torch.Tensor, torch.clone, pytree.tree_leaves(self.eager(inputs, 0)[0]))
        with self.under(self.current | moved):
            after = pytree.tree_leaves(self.eager(inputs, 0)[0])
        return not all(_same_bits(a, b) for a, b in zip(before, after, strict=True) if isinstance(a, torch.Tensor))

    @contextlib.contextmanager
    def under(self, state: dict[str, torch.Tensor]) -> Iterator[None]:
        """The model in another state of the same names and shapes, for a while."""
        before = self.current
        try:
            self.bring(state)
            yield
        finally:
            self.bring(before)

    def bring(self, state: dict[str, torch.Tensor]) -> None:
        """Put the model into a state of the same names and shapes; it is not copied, so leave it alone."""
        restore(self.model, state)
        self.current = state
        self._refresh_exact()

    def inputs(self, nonce: bytes, label: str, case: str | None) -> list[Any]:
        """Fresh inputs; where the source ignores the seed, its floats are moved by about one percent."""
        seed = derive(nonce, f"inputs:{label}")
        values = self.reference.inputs(seed, case)
        if self.fixed_inputs:
            torch.manual_seed(seed)
            values = map_floats(values, lambda t: t * (1 + 0.01 * torch.randn_like(t)))
        return list(values)

    def eager(self, inputs: list[Any], seed: int) -> Result:
        """One call in the Task's precision class, from the current state; the state is put back."""
        return self._run(self.model, inputs, seed, self.current)

    def _run(self, model: nn.Module, inputs: list[Any], seed: int, state: dict[str, torch.Tensor]) -> Result:
        arguments = pytree.tree_map_only(torch.Tensor, torch.clone, inputs) if self._copied(inputs) else inputs
        if seed >= 0:
            seed_all(seed)
        with torch.no_grad():
            outputs = model(*arguments)
            after: dict[str, torch.Tensor] = {}
            if self.watch:
                named = named_state(model)
                after = {name: named[name][1].detach().clone() for name in self.watch}
                for name in self.watch:
                    named[name][1].detach().copy_(state[name])
        return outputs, after

    def _copied(self, inputs: list[Any]) -> bool:
        """Whether calls get copies: where the reference changes its inputs, and wherever that costs little."""
        sizes = (t.numel() * t.element_size() for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor))
        return self.changes_inputs or sum(sizes) < 2 << 30

    def exact(self, inputs: list[Any]) -> Result | None:
        """The same call in fp64; None when the reference cannot run in fp64 (or draws random numbers).

        Where the device's memory is short, in parts of the batch if its rows are independent, else on the host.
        """
        if self.stochastic or self.exact_note == "eager":
            return None
        pieces = [count for count in (1, *PIECES) if count >= self.exact_pieces]
        ways = [(self.exact_device, count) for count in pieces]
        hopeless: set[str] = set()
        began = time.monotonic()
        for device, count in ways + ([("cpu", 1)] if self.exact_on_host and self.exact_device != "cpu" else []):
            if device in hopeless:
                continue
            try:
                if count > 1:
                    result = self._exact_in_pieces(inputs, device, count)
                    if result is None:
                        continue
                else:
                    result = self._exact(inputs, device)
            except (RuntimeError, TypeError, ValueError) as error:
                self.exact_model = None
                if not _short_of_memory(error):
                    hopeless.add(device)
                _forget_frames(error)
                continue
            if self.device == "cuda":
                torch.cuda.synchronize()
            self.exact_seconds = time.monotonic() - began
            self.exact_pieces = count
            self.exact_note = "fp64" if device == self.device else "fp64 on the host"
            return result
        self.exact_note = "eager"
        return None

    @property
    def exact_at_once(self) -> bool:
        """Whether fp64 was computed on the Task's device, for a whole batch, the last time, and did not take long."""
        quick = self.exact_seconds <= EXACT_SECONDS.get(self.device, 0.0) and not self.exact_failed
        return quick and self.exact_note == "fp64" and self.exact_pieces == 1 and not self.stochastic

    @property
    def exact_quick(self) -> bool:
        """Whether it took so little that more timed calls can be compared with it."""
        return self.exact_seconds <= QUICK_SECONDS.get(self.device, 0.0)

    def exact_or_none(self, inputs: list[Any]) -> Result | None:
        """As ``exact``, where that is quick, or not at all: nothing else is tried, and the next answer to a first call
        is computed as it would have been without this. For calls between those that a clock counts."""
        if not self.exact_at_once:
            return None
        began = time.monotonic()
        try:
            result = self._exact(inputs, self.device)
            if self.device == "cuda":
                torch.cuda.synchronize()
        except (RuntimeError, TypeError, ValueError) as error:
            self.give_up_exact(error)
            return None
        self.exact_seconds = time.monotonic() - began
        return result

    def give_up_exact(self, error: BaseException) -> None:
        """Leave fp64 to the first calls under this nonce, and free its memory."""
        self.exact_failed, self.exact_model = True, None
        _forget_frames(error)

    def _exact(self, inputs: list[Any], device: str) -> Result:
        if self.exact_model is None or self.exact_device != device:
            self.exact_device = device
            self._build_exact()
        assert self.exact_model is not None
        place = "cpu" if self.on_host else device
        doubled = map_floats(inputs, lambda t: t.double())
        doubled = pytree.tree_map_only(torch.Tensor, lambda t: t.to(place), doubled)
        state = {name: tensor.to(device) for name, tensor in self.current.items() if name in self.watch}
        with default_dtype(torch.float64):
            return self._run(self.exact_model, doubled, -1, state)

    def _exact_in_pieces(self, inputs: list[Any], device: str, count: int) -> Result | None:
        """As ``_exact``, a part of the batch at a time; None where rows are not independent of each other."""
        splits = self._splits(inputs)
        if splits is None or self.watch:
            return None
        parts = [self._exact(part, device)[0] for part in split_batch(inputs, splits, count)]
        flat = [pytree.tree_leaves(part) for part in parts]
        joined = [torch.cat(tensors) for tensors in zip(*flat, strict=True)]
        return pytree.tree_unflatten(joined, pytree.tree_structure(parts[0])), {}

    def _splits(self, inputs: list[Any]) -> set[int] | None:
        """Which input tensors to split along the batch, so that the outputs are split alike; by trying with eager."""
        tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
        batch = next((t.shape[0] for t in tensors if t.dim() and t.shape[0] > 1), 0)
        fits = {at for at, t in enumerate(tensors) if t.dim() and t.shape[0] == batch}
        if not batch:
            return None
        whole = pytree.tree_leaves(self.eager(inputs, 0)[0])
        if not all(isinstance(t, torch.Tensor) and t.dim() and t.shape[0] == batch for t in whole):
            return None
        for splits in (fits, {min(fits)}):
            try:
                start = 0
                for part in split_batch(inputs, splits, 4):
                    rows = pytree.tree_leaves(self.eager(part, 0)[0])
                    size = rows[0].shape[0]
                    for all_rows, some in zip(whole, rows, strict=True):
                        near = all_rows[start : start + size]
                        off = (some.double() - near.double()).norm() if some.shape == near.shape else torch.inf
                        if not off <= INDEPENDENT * float(near.double().norm()) + 1e-30:
                            raise ValueError("rows depend on each other")
                    start += size
                return splits
            except (RuntimeError, TypeError, ValueError) as error:
                _forget_frames(error)
        return None

    def _build_exact(self) -> None:
        with default_dtype(torch.float64):
            model = copy.deepcopy(self.model).double().to(self.exact_device)
            for part in model.modules():
                for name, value in list(vars(part).items()):
                    if isinstance(value, torch.Tensor):
                        value = value.double() if value.is_floating_point() else value
                        setattr(part, name, value.to(self.exact_device))
        self.exact_model = model
        self._refresh_exact()

    def _refresh_exact(self) -> None:
        if self.exact_model is not None:
            restore(self.exact_model, self.current)

    def noisy(self, inputs: list[Any], seed: int, noise: float, draw: int) -> Result:
        """Eager when inputs and parameters get relative noise, the ``draw``-th: how the task amplifies rounding.

        Where the source takes numbers for probabilities or indices, each tensor keeps its range: others would end a
        CUDA context by an assertion.
        """
        generators: dict[torch.device, torch.Generator] = {}
        bounded = any(word in self.reference.task.source for word in UNIT_WORDS + INDEX_WORDS)

        def shake(tensor: torch.Tensor) -> torch.Tensor:
            device = tensor.device
            generator = generators.setdefault(device, torch.Generator(device).manual_seed(99 + draw))
            drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float32, device=device)
            moved = (tensor.float() * (1 + noise * drawn)).to(tensor.dtype)
            return moved.clamp_(*tensor.aminmax()) if bounded and tensor.numel() > 1 else moved

        try:
            with torch.no_grad():
                for _, tensor in named_state(self.model).values():
                    if tensor.is_floating_point():
                        tensor.detach().copy_(shake(tensor))
            return self._run(self.model, map_floats(inputs, shake), seed, self.current)
        finally:
            restore(self.model, self.current)

    def state_entries(self) -> list[tuple[str, bool, torch.Tensor]]:
        """Name, whether a Program must have it, and value of everything that is copied into a Program."""
        return [(name, name in self.perturbed, tensor) for name, (_, tensor) in named_state(self.model).items()]

    def work(self, inputs: list[Any]) -> dict[str, float]:
        """FLOP of one call, and bytes that any implementation must move: inputs and parameters read, outputs
        written."""
        from torch.utils.flop_counter import FlopCounterMode

        flops = 0.0
        try:
            with FlopCounterMode(display=False) as counter:
                outputs, _ = self.eager(inputs, 0)
            flops = float(counter.get_total_flops())
        except Exception:
            outputs, _ = self.eager(inputs, 0)
        looked_up = {
            id(parameter)
            for part in self.model.modules()
            if isinstance(part, LOOKED_UP)
            for parameter in part.parameters(recurse=False)
        }
        parameters = sum(p.numel() * p.element_size() for p in self.model.parameters() if id(p) not in looked_up)

        def size(value: Any) -> int:
            tensors = {t.data_ptr(): t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)}
            return sum(t.untyped_storage().nbytes() for t in tensors.values())

        return {"flops": flops, "read_bytes": float(parameters + size(inputs)), "written_bytes": float(size(outputs))}

    def baseline_precision(self) -> None:
        """Set torch's switches again, in case the reference's source changed them."""
        apply_precision(self.precision)
