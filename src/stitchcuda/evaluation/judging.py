"""Judges the outputs of one call in the oracle: the error budget, the verdict on each output, and what labels a task
deserves. How far two tensors are apart is in ``compare``; where the reference's answers come from, in ``expectation``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from stitchcuda.evaluation import compare, layout, ties
from stitchcuda.evaluation.compare import Budget, Distance, Statistics
from stitchcuda.evaluation.expectation import Expectation, Result, derive

EARLIER_ELEMENTS = 1 << 26
"""Answers of an earlier call are kept for comparison up to this size."""

STRICT_FAMILIES = {"", "signed", "permuted"}
"""Families that tell precision classes apart; the others span so many magnitudes that honest algorithms (Winograd, a
fast exponential of a large argument) lose several bits which eager keeps."""

LOOSE = 8.0
"""How much more those allow whatever eager loses: still far below what a lower precision class loses."""

LOOSEST = 3e-2
"""Where that ends for classes that allow much anyway."""

ILL_CONDITIONED = 5e-2
"""Relative norm that a budget must allow before it says nothing."""

AMPLIFIED = 1e-3
"""Relative norm that noise of the size of rounding moves an output by, above which rounding counts as amplified."""

AMPLIFIED_NOISE = 16
"""The same as a multiple of the noise, for classes whose noise is larger than rounding to fp32."""

DRAWS = 7
"""Draws of a reference that draws random numbers, on the same inputs, that tell how far one is from another."""

Judged = tuple[torch.Tensor, Distance, Budget]
"""What is right for one output, eager's own distance from it, and the budget."""

NOISE_DRAWS = 6
"""Draws of noise where rounding is amplified: the amplification is heavy-tailed, its largest value counts."""


@dataclass
class Conditions:
    """What is known of a Task's families of inputs from earlier nonces, by key and name: that is the Task's own and
    need not be measured for every nonce."""

    moved: dict[tuple[str, str], Distance] = field(default_factory=dict)
    """How far noise moved an output"""
    own: dict[tuple[str, str], Distance] = field(default_factory=dict)
    """How far eager was from fp64, at most"""

    @staticmethod
    def scaled(known: Distance, scale: float) -> Distance:
        """The same where the largest element is ``scale``."""
        largest = known.max_abs * scale / known.scale if known.scale else known.max_abs
        return replace(known, max_abs=largest, scale=scale)


@dataclass
class Round:
    """Inputs handed out, with the answers as far as they were computed."""

    label: str
    case: str | None
    inputs: list[Any]
    entries: list[dict[str, Any]]
    """Where the tensors of the inputs lie in a session's buffer."""
    seed: int
    sessions: set[int]
    eager: tuple[Any, dict[str, torch.Tensor]] | None = None
    family: str = ""
    """What the inputs were made into; empty for the Task's own distribution."""
    values: str = ""
    """The family that the values come from: another than ``family`` where inputs were reordered; empty for the Task's
    own distribution."""

    @property
    def key(self) -> str:
        """What shares one error budget: the input case, the family, and where its values come from."""
        made = [self.family, *([self.values] if self.values != self.family else [])] if self.family else []
        return "+".join([str(self.case), *filter(None, made)])

    @property
    def strict(self) -> bool:
        """Whether its values tell precision classes apart."""
        return {self.family, self.values} <= STRICT_FAMILIES


def refusal(message: str, layer: str = "numerics") -> dict[str, Any]:
    """The verdict on what cannot be compared at all; ``layer`` is the defence that saw it."""
    nothing: dict[str, Any] = {"outputs": [], "missing_state": [], "changed_inputs": [], "labels": []}
    return {"ok": False, "message": message, "layer": layer} | nothing


def output_leaves(outputs: Any) -> list[torch.Tensor]:
    """The tensors of a call's outputs, in the order of their names."""
    return layout.leaves(outputs)


def updated(got: torch.Tensor | None, before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a call did something to a piece of state, where the reference does; right or wrong."""
    if got is None or got.shape != after.shape:
        return False
    return torch.equal(before, after) or not torch.equal(got, before.to(got.device))


class Judge:
    """What is right under one nonce. ``conditions`` come from earlier ones, and are kept up to date."""

    def __init__(
        self, expectation: Expectation, tolerance: dict[str, float], conditions: Conditions | None = None
    ) -> None:
        self.expectation, self.tolerance = expectation, tolerance
        self.conditions = conditions or Conditions()
        floors = {
            name: max(tolerance[name], min(LOOSE * tolerance[name], LOOSEST)) for name in ("floor", "element_floor")
        }
        self.loose = tolerance | floors
        self.budgets: dict[tuple[str, str], Budget] = {}
        self.moved: dict[tuple[str, str], Distance] = {}
        self.remembered: set[tuple[str, str]] = set()
        """Whose distances are those of an earlier nonce"""
        self.scales: dict[tuple[str, str], float] = {}
        """Largest magnitudes that the budgets' elements are meant for."""
        self.drawn: dict[str, list[list[Statistics]]] = {}
        """Of tasks that draw random numbers: the statistics of a few of the reference's draws, by key."""
        self.discrete: set[str] = set()
        """Outputs that are not floating: their distances count elements."""
        self.earlier: list[torch.Tensor] = []
        self.labels: set[str] = set()

    def judge(
        self,
        this: Round,
        names: list[str],
        values: list[Any],
        eager: list[torch.Tensor],
        *,
        full: bool,
        timed: bool = False,
    ) -> dict[str, Any]:
        """``values`` against fp64 (``full``) or against eager's on the same inputs; one of each for every name.
        ``timed``: between calls that a clock counts, where fp64 is used only if that is quick."""
        if self.expectation.stochastic and not self.expectation.seedable:
            return self._statistics(this, names, values, eager)
        # A family whose budget is not known yet has to be checked in full, whatever was asked.
        unknown = bool(this.family) and any((this.key, name) not in self.budgets for name in names)
        full = full or unknown
        verdict = self._near_eager(this, names, values, eager) if full else None
        if verdict is not None:
            full = False
        elif full:
            verdict = (self._at_once if timed else self._against_exact)(this, names, values, eager)
            full = verdict is not None
        if verdict is None:
            verdict = self._estimate(this, names, eager) if unknown else None
            verdict = verdict or self._against_eager(this, names, values, eager)
            if not verdict["ok"] and self._recalled(this, names):
                self._move(this, names, eager, draw=0)
                for name, near in zip(names, eager, strict=True):
                    self.allowed(this, name, near, compare.distance(near, near))
                verdict = self._against_eager(this, names, values, eager)
        reference = "eager" if self.expectation.stochastic else self.expectation.exact_note
        return verdict | {"labels": sorted(self.labels), "reference": reference, "full": full}

    def _near_eager(
        self, this: Round, names: list[str], values: list[Any], eager: list[torch.Tensor]
    ) -> dict[str, Any] | None:
        """The verdict without fp64 on a family that does not tell precision classes apart: well where as far as eager
        was from fp64 under earlier nonces, and as far as the outputs are from eager, is within the floor of the budget
        together, which it never falls below. None where that is not known, or more."""
        known = [self.conditions.own.get((this.key, name)) for name in names]
        real = all(near.is_floating_point() or near.is_complex() for near in eager)
        if not this.family or this.strict or None in known or not real or self.expectation.stochastic:
            return None
        outputs = []
        for name, value, near, own in zip(names, values, eager, filter(None, known), strict=True):
            off = compare.distance(value, near)
            own = self.conditions.scaled(own, off.scale)
            least = compare.budget(self.loose, replace(compare.ZERO, scale=off.scale), compare.ZERO)
            both = replace(off, relative=off.relative + own.relative, max_abs=off.max_abs + own.max_abs)
            outputs.append(self._verdict(name, this, both, own, least, value, near))
            if not outputs[-1]["ok"]:
                return None
        return self._summed(outputs)

    def amplified(self, key: str) -> bool:
        """Whether rounding is amplified so far that one check's own error says little about another's."""
        limit = max(AMPLIFIED, AMPLIFIED_NOISE * self.tolerance["noise"])
        return any(
            moved.relative > limit
            for (where, name), moved in self.moved.items()
            if where == key and name not in self.discrete
        )

    def useless(self, this: Round) -> str:
        """Why a family says nothing about a Program: the reference's rounding is amplified on it, though not on the
        Task's own inputs; empty when it does."""
        if this.family and self.amplified(this.key) and not self.amplified(str(this.case)):
            return "the reference's own rounding is amplified on it"
        return ""

    def _statistics(self, this: Round, names: list[str], values: list[Any], eager: list[Any]) -> dict[str, Any]:
        if this.key not in self.drawn:
            self.drawn[this.key] = [self._draw(this, names, draw) for draw in range(DRAWS)]
        for at, (name, value, near) in enumerate(zip(names, values, eager, strict=True)):
            drawn = [each[at] for each in self.drawn[this.key] if len(each) == len(names)]
            problem = compare.statistics_differ(value, near, drawn)
            if problem:
                return refusal(f"output {name} has other statistics than the reference: {problem}")
        return {"ok": True, "message": "", "outputs": [], "labels": []}

    def _draw(self, this: Round, names: list[str], draw: int) -> list[Statistics]:
        """The statistics of one more draw of the reference on the same inputs."""
        outputs, after = self.expectation.eager(this.inputs, derive(this.label.encode(), f"draw:{draw}"))
        states = [after[name.removeprefix("state:")] for name in names if name.startswith("state:")]
        return [Statistics.of(tensor) for tensor in output_leaves(outputs) + states]

    def truth(self, this: Round, names: list[str], eager: list[torch.Tensor]) -> list[torch.Tensor]:
        """What is right for a call: fp64's answers, or eager's where there are none; one for every name."""
        return self._beside(self.expectation.exact(this.inputs), names, eager)

    @staticmethod
    def _beside(exact: Result | None, names: list[str], eager: list[torch.Tensor]) -> list[torch.Tensor]:
        """What ``truth`` makes of fp64's answers."""
        truth = eager
        if exact is not None:
            leaves = output_leaves(exact[0])
            states = [exact[1][name.removeprefix("state:")] for name in names if name.startswith("state:")]
            if [list(t.shape) for t in leaves + states] == [list(t.shape) for t in eager]:
                truth = [t.to(e.device) for t, e in zip(leaves + states, eager, strict=True)]
        return truth

    def budgets_for(self, this: Round, names: list[str], eager: list[torch.Tensor]) -> list[Judged]:
        """For every name what is right, eager's own distance from it, and the budget."""
        return self._budgets(this, names, eager, self.truth(this, names, eager))

    def _budgets(
        self, this: Round, names: list[str], eager: list[torch.Tensor], truth: list[torch.Tensor]
    ) -> list[Judged]:
        self._condition(this, names, eager)
        found = []
        for name, want, near in zip(names, truth, eager, strict=True):
            own = compare.distance(near, want)
            if this.family and want is not near:
                key = (this.key, name)
                before = self.conditions.own.get(key, compare.ZERO)
                if own.scale and own.relative < math.inf:
                    self.conditions.own[key] = max(own, before, key=lambda d: d.relative)
            found.append((want, own, self.allowed(this, name, near, own)))
        return found

    def _at_once(self, this: Round, names: list[str], values: list[Any], eager: list[Any]) -> dict[str, Any] | None:
        """The verdict by fp64 where that is quick, else None."""
        exact = self.expectation.exact_or_none(this.inputs)
        if exact is None:
            return None
        try:
            return self._by(self._beside(exact, names, eager), this, names, values, eager)[1]
        except torch.OutOfMemoryError as error:
            exact = None
            self.expectation.give_up_exact(error)
            return None

    def _estimate(self, this: Round, names: list[str], eager: list[Any]) -> dict[str, Any] | None:
        """The budget of a family not met before, without fp64: by how far noise moves eager, and at least that of the
        inputs which it was made from. A verdict where the family says nothing."""
        self._condition(this, names, eager)
        if self.useless(this):
            return self._summed([]) | {"useless": self.useless(this)}
        base = "+".join(filter(None, (str(this.case), this.values if this.values != this.family else "")))
        for name, near in zip(names, eager, strict=True):
            own = compare.distance(near, near)
            earlier = (self.conditions.own.get((key, name)) for key in (this.key, base))
            scaled = [self.conditions.scaled(each, own.scale) for each in earlier if each is not None]
            self.allowed(this, name, near, max([own, *scaled], key=lambda d: d.relative))
            known = self.budgets[(this.key, name)]
            self.budgets[(this.key, name)] = known.widest(self.budgets.get((base, name)))
        return None

    def _against_exact(self, this: Round, names: list[str], values: list[Any], eager: list[Any]) -> dict[str, Any]:
        judged, verdict = self._by(self.truth(this, names, eager), this, names, values, eager)
        if not this.family:
            self._discriminates(str(this.case), names, [want for want, _, _ in judged])
        return verdict

    def _by(
        self, truth: list[torch.Tensor], this: Round, names: list[str], values: list[Any], eager: list[Any]
    ) -> tuple[list[Judged], dict[str, Any]]:
        """The budgets and the verdict by what is right. Nobody is refused by what noise did under another nonce."""
        judged = self._budgets(this, names, eager, truth)
        verdict = self._against(judged, this, names, values)
        if not verdict["ok"] and self._recalled(this, names):
            self._move(this, names, eager, draw=0)
            judged = self._budgets(this, names, eager, truth)
            verdict = self._against(judged, this, names, values)
        return judged, verdict

    def _recalled(self, this: Round, names: list[str]) -> bool:
        """Whether a budget rests on what noise did under another nonce."""
        return any((this.key, name) in self.remembered for name in names)

    def _against(self, judged: Sequence[Judged], this: Round, names: list[str], values: list[Any]) -> dict[str, Any]:
        useless = self.useless(this)
        if useless:
            return self._summed([]) | {"useless": useless}
        outputs = []
        for name, value, (want, own, allowed) in zip(names, values, judged, strict=True):
            off = compare.distance(value, want)
            if allowed.relative > ILL_CONDITIONED and not this.family and name not in self.discrete:
                self.labels.add("ill_conditioned")
            outputs.append(self._verdict(name, this, off, own, allowed, value, want))
        self._explain(this, names, values, [want for want, _, _ in judged], outputs)
        return self._summed(outputs)

    def allowed(self, this: Round, name: str, near: torch.Tensor, own: Distance) -> Budget:
        """The budget of one output, given eager's ``own`` distance from fp64; kept for checks against eager."""
        key = this.key
        moved = self.moved.get((key, name), compare.ZERO)
        if (key, name) in self.remembered:
            moved = self.conditions.scaled(moved, own.scale)
        if near.is_floating_point() or near.is_complex():
            allowed = compare.budget(self.tolerance if this.strict else self.loose, own, moved)
        else:
            allowed = compare.tie_budget(self.tolerance, own, moved)
        self.budgets[(key, name)] = allowed.widest(self.budgets.get((key, name)))
        self.scales[(key, name)] = max(own.scale, self.scales.get((key, name), compare.TINY))
        return self.budgets[(key, name)] if self.amplified(key) else allowed

    def _against_eager(self, this: Round, names: list[str], values: list[Any], eager: list[Any]) -> dict[str, Any]:
        outputs = []
        for name, value, near in zip(names, values, eager, strict=True):
            allowed = self.budgets.get((this.key, name))
            if allowed is None:
                floor, elements = self.tolerance["floor"], self.tolerance["element_floor"]
                scale = float(near.abs().max()) if near.is_floating_point() and near.numel() else 0.0
                allowed = Budget(floor, elements * scale) if near.is_floating_point() else Budget(0.0, 0.0)
            off = compare.distance(value, near)
            if off.scale > self.scales.get((this.key, name), off.scale):
                allowed = allowed.stretched(off.scale / self.scales[(this.key, name)])
            outputs.append(self._verdict(name, this, off, compare.ZERO, allowed.twice(), value, near))
        self._explain(this, names, values, eager, outputs)
        return self._summed(outputs)

    def _explain(
        self, this: Round, names: list[str], values: list[Any], wanted: list[Any], outputs: list[dict[str, Any]]
    ) -> None:
        """Integers and booleans may differ where rounding decides them, nowhere else: as often as their budget says, or
        more often where each is what eager or noise makes of it, too."""
        eager = output_leaves(this.eager[0]) if this.eager is not None else wanted
        for at, (name, value, want, told) in enumerate(zip(names, values, wanted, outputs, strict=True)):
            discrete = not want.is_floating_point() and not want.is_complex() and not name.startswith("state:")
            if not discrete or not told["relative_norm"]:
                continue
            noise, strict = self.tolerance["noise"], not told["ok"]
            stray = ties.unexplained(
                self.expectation, (this.inputs, this.seed), at, value, (want, eager[at]), noise, strict=strict
            )
            told["ok"] = not stray
            if stray:
                where = compare.mismatch(value, want, 0)
                told["detail"] = f"{stray} of the elements that differ are not for rounding to decide; {where}"

    @staticmethod
    def _verdict(
        name: str, this: Round, off: Distance, own: Distance, allowed: Budget, value: Any, want: Any
    ) -> dict[str, Any]:
        ok = allowed.allows(off)
        return {
            "output": name,
            "case": f"{this.case or 'default'}/{this.family or this.label}",
            "relative_norm": min(off.relative, 1e300),
            "eager_relative_norm": min(own.relative, 1e300),
            "max_abs": off.max_abs,
            "eager_max_abs": own.max_abs,
            "budget": allowed.relative,
            "ok": ok,
            "detail": "" if ok else compare.mismatch(value, want, allowed.max_abs),
        }

    @staticmethod
    def _summed(outputs: list[dict[str, Any]]) -> dict[str, Any]:
        bad = next((o for o in outputs if not o["ok"]), None)
        message, layer = "", "numerics"
        if bad is not None:
            layer = "state" if bad["output"].startswith("state:") else "numerics"
            message = (
                f"output {bad['output']} is off by {bad['relative_norm']:.2e} in relative norm, allowed is "
                f"{bad['budget']:.2e} (eager: {bad['eager_relative_norm']:.2e}); {bad['detail']}"
            )
        return {"ok": bad is None, "message": message, "layer": layer, "outputs": outputs}

    def _condition(self, this: Round, names: list[str], eager: list[Any]) -> None:
        """Measure how far eager moves under noise, state included: once per case, and where rounding is amplified
        far, over several draws on the inputs of every full check, because what is amplified that far varies as much.
        """
        if (this.key, "") not in self.moved:
            self.moved[(this.key, "")] = compare.ZERO
            if not self._remember(this, names, eager):
                self._move(this, names, eager, draw=0)
        if self.amplified(this.key):
            for draw in range(1, NOISE_DRAWS):
                self._move(this, names, eager, draw)

    def _remember(self, this: Round, names: list[str], eager: list[Any]) -> bool:
        """Take how far noise moves the outputs on a family from an earlier nonce, if that is known. What moved none of
        an output's elements, since all were zero, says nothing."""
        keys = [(this.key, name) for name in names]
        if not this.family or any(key not in self.conditions.moved for key in keys):
            return False
        self.moved |= {key: self.conditions.moved[key] for key in keys}
        self.remembered.update(keys)
        self.discrete.update(
            name
            for name, near in zip(names, eager, strict=True)
            if not near.is_floating_point() and not near.is_complex()
        )
        return True

    def _move(self, this: Round, names: list[str], eager: list[Any], draw: int) -> None:
        outputs, after = self.expectation.noisy(this.inputs, this.seed, self.tolerance["noise"], draw)
        self.remembered.difference_update([(this.key, name) for name in names])
        leaves = output_leaves(outputs)
        leaves += [after[name.removeprefix("state:")] for name in names if name.startswith("state:")]
        for name, near, other in zip(names, eager, leaves, strict=False):
            if not near.is_floating_point() and not near.is_complex():
                self.discrete.add(name)
            if near.shape == other.shape:
                moved = compare.distance(other, near)
                before = self.moved.get((this.key, name), compare.ZERO)
                self.moved[(this.key, name)] = max(before, moved, key=lambda d: d.relative)
                if not draw and (moved.scale or name in self.discrete):
                    self.conditions.moved[(this.key, name)] = moved

    def _discriminates(self, key: str, names: list[str], truth: list[torch.Tensor]) -> None:
        """Label tasks whose budget a trivial answer would meet: zeros, the mean, another call's output."""
        pairs = [(n, t) for n, t in zip(names, truth, strict=True) if not n.startswith("state:") and t.numel()]
        tensors = [t for _, t in pairs]
        limits = [self.budgets[(key, name)] for name, _ in pairs]

        def passes(answers: list[torch.Tensor]) -> bool:
            return all(
                a.shape == t.shape and limit.allows(compare.distance(a, t))
                for a, t, limit in zip(answers, tensors, limits, strict=True)
            )

        if not tensors or any(t.is_complex() for t in tensors):
            return
        means = [torch.full_like(t, t.double().mean().item()) for t in tensors]
        trivial = passes([torch.zeros_like(t) for t in tensors])
        if any(t.numel() > 1 for t in tensors):
            trivial = trivial or passes(means)
        if self.earlier and len(self.earlier) == len(tensors) and not self.expectation.fixed_inputs:
            trivial = trivial or passes(self.earlier)
        self.earlier = tensors if sum(t.numel() for t in tensors) <= EARLIER_ELEMENTS else []
        if trivial:
            self.labels.add("non_discriminating")
