"""The trusted process that knows the answers: it makes inputs from the secret nonce, owns the shared buffers,
and compares what a runner exported with the reference. It never imports a Program. It answers length-prefixed
JSON requests of the supervisor over one socket; ``oracle_client`` is the other end.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stitchcuda.evaluation import buffers, compare, layout, wire
from stitchcuda.evaluation.channel import receive, send
from stitchcuda.evaluation.compare import Budget, Distance
from stitchcuda.evaluation.expectation import Expectation, derive

EARLIER_ELEMENTS = 1 << 26
"""Answers of an earlier call are kept for comparison up to this size."""


class Unsupported(Exception):
    """The task itself cannot be evaluated."""


@dataclass
class Session:
    """One runner's shared memory and what was asked of it."""

    arena: wire.Arena
    memory: Any
    view: memoryview
    data: dict[str, torch.Tensor]
    device: buffers.DeviceBuffers | None = None
    held: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Round:
    """Inputs handed out, with the answers as far as they were computed."""

    label: str
    case: str | None
    inputs: list[Any]
    seed: int
    sessions: set[int]
    eager: tuple[Any, dict[str, torch.Tensor]] | None = None


class Oracle:
    """State of the process between requests."""

    def __init__(self) -> None:
        self.expectation: Expectation
        self.sessions: dict[int, Session] = {}
        self.rounds: dict[int, Round] = {}
        self.tolerance: dict[str, float] = {}
        self.nonce = b""
        self.budgets: dict[tuple[str, str], Budget] = {}
        self.moved: dict[tuple[str, str], Distance] = {}
        self.earlier: list[torch.Tensor] = []
        self.labels: set[str] = set()

    def init(self, m: dict[str, Any]) -> dict[str, Any]:
        """Load the task; returns the sizes a session's arena needs, and the work one call is."""
        task = SimpleNamespace(**m["task"])
        task.target = SimpleNamespace(**m["task"]["target"])
        self.kind = task.target.kind
        self.expectation = Expectation(task, m["training"], m["stochastic"], m["seedable"])
        self.expectation.observe()
        self.tolerance = m["tolerance"]
        self.cases: list[str | None] = [*self.expectation.reference.cases()] or [None]
        inputs = outputs = before = 0
        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        for case in self.cases:
            values = self.expectation.reference.inputs(3, case)
            self._rebuildable(values, "input")
            result, after = self.expectation.eager(values, 0)
            self._rebuildable(result, "output")
            inputs = max(inputs, layout.needed(values))
            outputs = max(outputs, layout.needed({"out": result, "state": after}))
        entries = [tensor for _, _, tensor in self.expectation.state_entries()]
        state = max(layout.needed(entries), layout.needed(self.expectation.init_inputs))
        work = self.expectation.work(self.expectation.reference.inputs(4, self.cases[0]))
        peak = torch.cuda.max_memory_allocated() - before if self.kind == "cuda" else 0
        self._give_back_memory()
        free = torch.cuda.mem_get_info()[0] if self.kind == "cuda" else 0
        return {
            "inputs": inputs,
            "outputs": outputs,
            "state": state,
            "descriptions": (1 << 16) + 1024 * len(entries),
            "cases": self.cases,
            "weights": self.expectation.reference.weights(),
            "host_inputs": self.expectation.on_host,
            "fixed_inputs": self.expectation.fixed_inputs,
            "watch": self.expectation.watch,
            "work": work,
            "peak": peak,
            "device_free": free,
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "",
        }

    @staticmethod
    def _rebuildable(value: Any, what: str) -> None:
        for path, leaf in layout.paths(layout.describe(value, [])):
            if leaf["kind"] == "opaque":
                raise Unsupported(f"{what} {path} has type {leaf['type']}, which cannot be checked")

    def renew(self, m: dict[str, Any]) -> dict[str, Any]:
        """A new secret nonce: new state, new inputs, no memory of earlier answers."""
        self.nonce = bytes.fromhex(m["nonce"])
        self.expectation.baseline_precision()
        self.expectation.renew(self.nonce)
        self.budgets, self.moved, self.earlier, self.labels = {}, {}, [], set()
        self.rounds.clear()
        self._give_back_memory()
        return {}

    def attach(self, m: dict[str, Any], fd: int) -> dict[str, Any]:
        """Map a session's arena, make device buffers if asked, and write its set-up."""
        arena = wire.Arena(**m["arena"])
        memory = buffers.map_arena(fd, arena.total)
        os.close(fd)
        session = Session(arena, memory, memoryview(memory), {})
        self._give_back_memory()
        handles: dict[str, Any] = {}
        if m["ipc"]:
            session.device = buffers.DeviceBuffers()
        for region in ("inputs", "outputs", "state"):
            offset, size = arena.offsets[region]
            if region in m["ipc"]:
                assert session.device is not None
                tensor, handle = session.device.allocate(region, m["ipc"][region])
                handles[region] = {"handle": handle.hex(), "size": m["ipc"][region]}
                session.data[region] = tensor
            else:
                session.data[region] = buffers.host_buffer(memory, offset, size)
        init = self.expectation.init_inputs
        setup = {
            "precision": self.expectation.precision,
            "training": self.expectation.training,
            "host_inputs": self.expectation.on_host or self.kind == "cpu",
            "init": layout.pack(init, session.data["state"], keep_strides=True),
            "init_keywords": len(init) == 1 and isinstance(init[0], dict),
            "watch": self.expectation.watch,
            "flush_bytes": m["flush_bytes"],
            "handles": handles,
        }
        self._sync()
        wire.put_text(session.view, arena, "setup", json.dumps(setup))
        self.sessions[m["session"]] = session
        return {}

    def detach(self, m: dict[str, Any]) -> dict[str, Any]:
        """Forget a session and free its buffers."""
        session = self.sessions.pop(m["session"], None)
        self.rounds = {call: old for call, old in self.rounds.items() if old.sessions != {m["session"]}}
        if session is not None:
            session.data.clear()
            if session.device is not None:
                session.device.close()
            session.view.release()
        return {}

    def state(self, m: dict[str, Any]) -> dict[str, Any]:
        """Write the current state into a session."""
        session = self.sessions[m["session"]]
        entries = self.expectation.state_entries()
        packed = layout.pack([tensor for _, _, tensor in entries], session.data["state"], keep_strides=True)
        packed["entries"] = [{"name": name, "required": required} for name, required, _ in entries]
        del packed["structure"]
        wire.put_text(session.view, session.arena, "structure", json.dumps(packed))
        self._sync()
        return {}

    def reseed(self, m: dict[str, Any]) -> dict[str, Any]:
        """Build the reference anew under a seed that the runner is then told too."""
        seed = derive(self.nonce, "weights")
        self.expectation.reseed(seed)
        return {"seed": seed}

    def fill(self, m: dict[str, Any]) -> dict[str, Any]:
        """Make fresh inputs and hand them to one or several sessions."""
        case, sessions = m["case"], set(m["sessions"])
        self.rounds = {call: old for call, old in self.rounds.items() if not old.sessions & sessions}
        inputs = self.expectation.inputs(self.nonce, m["label"], case)
        seed = derive(self.nonce, f"draw:{m['label']}") if self.expectation.stochastic else -1
        for number in m["sessions"]:
            session = self.sessions[number]
            packed = layout.pack(inputs, session.data["inputs"], keep_strides=True)
            if any(entry["offset"] < 0 for entry in packed["tensors"]):
                raise Unsupported("get_inputs() gave larger tensors than when the task was inspected")
            wire.put_text(session.view, session.arena, "structure", json.dumps(packed))
        self._sync()
        self.rounds[m["call"]] = Round(m["label"], case, inputs, seed, sessions)
        return {"seed": seed}

    def check(self, m: dict[str, Any]) -> dict[str, Any]:
        """Judge what a session exported for a call: ``full`` against fp64, otherwise against eager."""
        session, this = self.sessions[m["session"]], self.rounds[m["call"]]
        if this.eager is None:
            this.eager = self.expectation.eager(this.inputs, this.seed)
        outputs, after = this.eager
        wanted: list[torch.Tensor] = []
        spec = layout.describe(outputs, wanted)
        try:
            got_spec, entries, got, state = self._exported(session)
            described = layout.pack(outputs, torch.empty(0, dtype=torch.uint8), keep_strides=False)["tensors"]
            error = compare.structure_error(spec, got_spec, described, entries, "0")
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RuntimeError) as problem:
            return self._refuse(f"the exported outputs could not be read ({problem})")
        if error:
            return self._refuse(error)
        names = [path for path, leaf in layout.paths(spec) if leaf["kind"] == "tensor"]
        values = [got[leaf["at"]] for _, leaf in layout.paths(got_spec) if leaf["kind"] == "tensor"]
        expected = [wanted[leaf["at"]] for _, leaf in layout.paths(spec) if leaf["kind"] == "tensor"]
        if m["hold"]:
            session.held.append(self._fingerprint(session))
        if self.expectation.stochastic and not self.expectation.seedable:
            return self._statistics(names, values, expected)
        missing: list[str] = []
        if m["state"]:
            for name in self.expectation.watch:
                if not self._updated(state.get(name), self.expectation.current[name], after[name]):
                    missing.append(name)
                else:
                    names.append(f"state:{name}")
                    values.append(state[name])
                    expected.append(after[name])
        if m["full"]:
            verdict = self._against_exact(this, names, values, expected)
        else:
            verdict = self._against_eager(this, names, values, expected)
        reference = "eager" if self.expectation.stochastic else self.expectation.exact_note
        return verdict | {"missing_state": missing, "labels": sorted(self.labels), "reference": reference}

    @staticmethod
    def _updated(got: torch.Tensor | None, before: torch.Tensor, after: torch.Tensor) -> bool:
        """Whether a call did something to a piece of state, where the reference does; right or wrong."""
        if got is None or got.shape != after.shape:
            return False
        return torch.equal(before, after) or compare.distance(got, before).max_abs > 0

    def _exported(self, session: Session) -> tuple[Any, list[Any], list[torch.Tensor], dict[str, torch.Tensor]]:
        report = json.loads(wire.get_text(session.view, session.arena, "report"))
        structure, entries = report["structure"], report["tensors"]
        fields = dict(zip([key["value"] for key in structure["keys"]], structure["items"], strict=True))
        placeholder = torch.empty(0)
        tensors = [
            layout.unpack_tensor(e, session.data["outputs"], None) if e["offset"] >= 0 else placeholder for e in entries
        ]
        state: dict[str, torch.Tensor] = {}
        if "state" in fields:
            keys = [key["value"] for key in fields["state"]["keys"]]
            state = {k: tensors[i["at"]] for k, i in zip(keys, fields["state"]["items"], strict=True)}
        return fields["out"], entries, tensors, state

    def _fingerprint(self, session: Session) -> torch.Tensor:
        return session.data["outputs"].clone()

    @staticmethod
    def _refuse(message: str) -> dict[str, Any]:
        return {"ok": False, "message": message, "outputs": [], "missing_state": [], "labels": []}

    def _statistics(self, names: list[str], values: list[Any], expected: list[Any]) -> dict[str, Any]:
        for name, value, want in zip(names, values, expected, strict=True):
            problem = compare.statistics_differ(value, want)
            if problem:
                return self._refuse(f"output {name} has other statistics than the reference: {problem}")
        return {"ok": True, "message": "", "outputs": [], "missing_state": [], "labels": []}

    def _against_exact(self, this: Round, names: list[str], values: list[Any], eager: list[Any]) -> dict[str, Any]:
        exact = self.expectation.exact(this.inputs)
        truth = eager
        if exact is not None:
            leaves = [t for t in pytree.tree_leaves(exact[0]) if isinstance(t, torch.Tensor)]
            states = [exact[1][name.removeprefix("state:")] for name in names if name.startswith("state:")]
            if [list(t.shape) for t in leaves + states] == [list(t.shape) for t in eager]:
                truth = [
                    t.to(e.device) if e.is_floating_point() or e.is_complex() else e
                    for t, e in zip(leaves + states, eager, strict=True)
                ]
        self._condition(this, names, eager)
        outputs = []
        for name, value, want, near in zip(names, values, truth, eager, strict=True):
            own = compare.distance(near, want)
            off = compare.distance(value, want)
            if near.is_floating_point() or near.is_complex():
                allowed = compare.budget(self.tolerance, own, self.moved.get((str(this.case), name), compare.ZERO))
            else:
                allowed = Budget(0.0, 0.0)
            key = (str(this.case), name)
            self.budgets[key] = allowed.widest(self.budgets.get(key))
            if allowed.relative > 5e-2:
                self.labels.add("ill_conditioned")
            outputs.append(self._verdict(name, this, off, own, allowed, value, want))
        self._discriminates(names, truth)
        return self._summed(outputs)

    def _against_eager(self, this: Round, names: list[str], values: list[Any], eager: list[Any]) -> dict[str, Any]:
        outputs = []
        for name, value, near in zip(names, values, eager, strict=True):
            allowed = self.budgets.get((str(this.case), name))
            if allowed is None:
                floor, elements = self.tolerance["floor"], self.tolerance["element_floor"]
                scale = float(near.abs().max()) if near.is_floating_point() and near.numel() else 0.0
                allowed = Budget(floor, elements * scale) if near.is_floating_point() else Budget(0.0, 0.0)
            off = compare.distance(value, near)
            outputs.append(self._verdict(name, this, off, compare.ZERO, allowed.twice(), value, near))
        return self._summed(outputs)

    @staticmethod
    def _verdict(
        name: str, this: Round, off: Distance, own: Distance, allowed: Budget, value: Any, want: Any
    ) -> dict[str, Any]:
        ok = allowed.allows(off)
        return {
            "output": name,
            "case": f"{this.case or 'default'}/{this.label}",
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
        message = ""
        if bad is not None:
            message = (
                f"output {bad['output']} is off by {bad['relative_norm']:.2e} in relative norm, allowed is "
                f"{bad['budget']:.2e} (eager: {bad['eager_relative_norm']:.2e}); {bad['detail']}"
            )
        return {"ok": bad is None, "message": message, "outputs": outputs}

    def _condition(self, this: Round, names: list[str], eager: list[Any]) -> None:
        """Measure once per case how far eager moves under noise."""
        if (str(this.case), "") in self.moved:
            return
        self.moved[(str(this.case), "")] = compare.ZERO
        noisy = self.expectation.noisy(this.inputs, this.seed, self.tolerance["noise"])
        leaves = [t for t in pytree.tree_leaves(noisy) if isinstance(t, torch.Tensor)]
        plain = [(n, e) for n, e in zip(names, eager, strict=True) if not n.startswith("state:")]
        for (name, near), other in zip(plain, leaves, strict=True):
            if near.shape == other.shape:
                self.moved[(str(this.case), name)] = compare.distance(other, near)

    def _discriminates(self, names: list[str], truth: list[torch.Tensor]) -> None:
        """Label tasks whose budget a trivial answer would meet: zeros, the mean, another call's output."""
        pairs = [(n, t) for n, t in zip(names, truth, strict=True) if not n.startswith("state:") and t.numel()]
        tensors = [t for _, t in pairs]
        limits = [
            max((b for (_, n), b in self.budgets.items() if n == name), key=lambda b: b.relative) for name, _ in pairs
        ]

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

    def check_held(self, m: dict[str, Any]) -> dict[str, Any]:
        """Whether an output kept by the runner still is what it was when first exported."""
        session = self.sessions[m["session"]]
        before = session.held[m["index"]]
        try:
            _, entries, _, _ = self._exported(session)
            size = max((e["offset"] + e["size"] for e in entries), default=0)
            same = torch.equal(before[:size], session.data["outputs"][:size])
        except (ValueError, KeyError, TypeError, IndexError, RuntimeError) as problem:
            return self._refuse(f"the kept outputs could not be read ({problem})")
        if same:
            return {"ok": True, "message": ""}
        return self._refuse(
            f"the outputs of call {m['index'] + 1} changed during later calls: outputs must outlive later calls, "
            "so return fresh tensors rather than a reused buffer"
        )

    def _give_back_memory(self) -> None:
        """Runners share the device: what this process only caches is theirs."""
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    def _sync(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize()


def serve(channel: socket.socket) -> None:
    """Answer requests until the supervisor closes the socket."""
    oracle = Oracle()
    while True:
        data, fds = receive(channel)
        if data is None:
            return
        request = json.loads(data)
        try:
            handler = getattr(oracle, request.pop("op"))
            answer = handler(request, *fds) if fds else handler(request)
            answer = {"answer": answer}
        except Unsupported as error:
            answer = {"error": str(error), "kind": "task"}
        except MemoryError as error:
            answer = {"error": f"not enough memory: {error}", "kind": "memory"}
        except Exception as error:
            kind = "memory" if "memory" in str(error).lower() else "error"
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:2000], "kind": kind}
        send(channel, json.dumps(answer).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
