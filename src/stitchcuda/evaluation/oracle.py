"""The trusted process that knows the answers: it makes inputs from the secret nonce, owns the shared buffers,
and has what a runner exported compared with the reference (by ``judging``). It never imports a Program. It answers
length-prefixed JSON requests of the supervisor over one socket; ``oracle_client`` is the other end.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from stitchcuda.evaluation import battery, buffers, compare, diagnosis, layout, wire
from stitchcuda.evaluation.channel import receive, send
from stitchcuda.evaluation.expectation import Expectation, derive
from stitchcuda.evaluation.exported import UNREADABLE, Session
from stitchcuda.evaluation.families import FAMILIES
from stitchcuda.evaluation.judging import EARLIER_ELEMENTS, Conditions, Judge, Round, output_leaves, refusal, updated
from stitchcuda.evaluation.variety import Varied, Variety

STALE = 0xA5
"""Byte that the outputs' buffer is filled with before each call."""


KEPT_WEIGHTS = 2 << 30
"""Earlier weights are kept for telling stale answers up to this size, bytes."""


NOWHERE = torch.empty(0, dtype=torch.uint8)
"""Where nothing is packed that is only to be described."""


class Unsupported(Exception):
    """The task itself cannot be evaluated."""


class Oracle:
    """State of the process between requests."""

    def __init__(self) -> None:
        self.expectation: Expectation
        self.sessions: dict[int, Session] = {}
        self.rounds: dict[int, Round] = {}
        self.tolerance: dict[str, float] = {}
        self.nonce = b""
        self.judge: Judge
        self.variety: Variety
        self.trivial: list[str] | None = None
        """Trivial answers that pass the task; None until they were tried."""
        self.battery_file: Path | None = None
        self.weights: dict[str, torch.Tensor] | None = None
        """The state before the last change of weights."""
        self.reweighed = 0
        self.shared: tuple[buffers.DeviceBuffers, torch.Tensor, dict[str, Any]] | None = None

    def init(self, m: dict[str, Any]) -> dict[str, Any]:
        """Load the task; returns the sizes a session's arena needs, and the work one call is."""
        task = SimpleNamespace(**m["task"])
        task.target = SimpleNamespace(**m["task"]["target"])
        self.kind = task.target.kind
        self.expectation = Expectation(task, m["training"], m["stochastic"], m["seedable"])
        self.expectation.observe()
        self.tolerance = m["tolerance"]
        self.conditions = Conditions()
        self.judge = Judge(self.expectation, self.tolerance, self.conditions)
        self.variety = Variety(self.expectation, task.source)
        self.battery_file = Path(m["battery"]) if m.get("battery") else None
        self.cases: list[str | None] = [*self.expectation.reference.cases()] or [None]
        inputs = outputs = before = 0
        self.forms: list[dict[str, Any]] = []
        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        for case in self.cases:
            values = self.expectation.reference.inputs(3, case)
            self._rebuildable(values, "input")
            result, after = self.expectation.eager(values, 0)
            self._rebuildable(result, "output")
            inputs = max(inputs, layout.needed(values))
            size = layout.needed({"out": result, "state": after})
            self.forms.append(layout.pack(result, NOWHERE, keep_strides=True))
            del values, result
            outputs = max(outputs, size, 0 if self.expectation.fixed_inputs else self._varying(case, size))
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
            "descriptions": (1 << 16) + 1024 * (len(entries) + sum(len(form["tensors"]) for form in self.forms)),
            "cases": self.cases,
            "weights": self.expectation.reference.weights(),
            "families": len(FAMILIES),
            "host_inputs": self.expectation.on_host,
            "fixed_inputs": self.expectation.fixed_inputs,
            "watch": self.expectation.watch,
            "work": work,
            "peak": peak,
            "device_free": free,
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "",
        }

    def _varying(self, case: str | None, known: int) -> int:
        """Bytes of outputs where their sizes depend on what the inputs hold: for every element of the inputs an index
        into each of its dimensions. 0 where another draw has outputs of the same shapes."""
        values = self.expectation.reference.inputs(5, case)
        result, after = self.expectation.eager(values, 0)
        if [list(tensor.shape) for tensor in layout.leaves(result)] == [e["shape"] for e in self.forms[-1]["tensors"]]:
            return 0
        size = layout.needed({"out": result, "state": after})
        tensors = layout.leaves(values)
        indices = sum(tensor.numel() for tensor in tensors) * max((tensor.dim() for tensor in tensors), default=0)
        return 2 * max(size, known) + 8 * indices

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
        self.judge = Judge(self.expectation, self.tolerance, self.conditions)
        self.variety.renew()
        self.weights, self.reweighed = None, 0
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
            if region == "state" and m["ipc"] and m["trusted"] and not self._constructor_tensors():
                session.data[region], handles[region] = self._shared_state(m["ipc"][region])
            elif region in m["ipc"]:
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
            "answers": self.forms,
        }
        self._sync()
        wire.put_text(session.view, arena, "setup", json.dumps(setup))
        self.sessions[m["session"]] = session
        return {}

    def _constructor_tensors(self) -> bool:
        """Whether the constructor's arguments hold tensors, which travel through the state's buffer."""
        return layout.needed(self.expectation.init_inputs) > layout.ALIGNMENT

    def _shared_state(self, size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """One buffer for the state of all trusted sessions, which all read the same: it may be as large as the model.
        Programs never share theirs."""
        if self.shared is None:
            owner = buffers.DeviceBuffers()
            tensor, handle = owner.allocate("state", size)
            self.shared = owner, tensor, {"handle": handle.hex(), "size": size}
        return self.shared[1], self.shared[2]

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
        origins = self.expectation.origins
        packed["entries"] = [
            {"name": name, "required": required, "origin": origins.get(name, "")} for name, required, _ in entries
        ]
        del packed["structure"]
        wire.put_text(session.view, session.arena, "structure", json.dumps(packed))
        self._sync()
        return {}

    def reseed(self, m: dict[str, Any]) -> dict[str, Any]:
        """Build the reference anew under a seed that the runner is then told too."""
        seed = derive(self.nonce, "weights")
        self.expectation.reseed(seed, derive(self.nonce, "state"))
        return {"seed": seed}

    def unmatched(self, m: dict[str, Any]) -> dict[str, Any]:
        """After ``reseed``: names that a Program has nowhere. The answer names those whose use could not be checked,
        unless no output depends on any: statistics that a call only updates may be missing."""
        lost = self.expectation.leave(self.expectation.unmatched | set(m["names"]))
        inputs = (self.expectation.inputs(self.nonce, "unmatched", case) for case in self.cases)
        return {"constant": lost if lost and any(self.expectation.depends(lost, each) for each in inputs) else []}

    def reweigh(self, m: dict[str, Any]) -> dict[str, Any]:
        """Other weights under the same nonce, in the middle of an evaluation: every session then has to take the state
        again (or, where a seed is given, be built anew under it) and prepare again; answers kept by weights are stale.
        """
        self.reweighed += 1
        self.rounds.clear()
        if self.expectation.seeded:
            seed = derive(self.nonce, f"weights:{self.reweighed}")
            self.expectation.reseed(seed, derive(self.nonce, f"state:{self.reweighed}"))
            return {"seed": seed}
        size = sum(tensor.numel() * tensor.element_size() for tensor in self.expectation.current.values())
        self.weights = self.expectation.current if size <= KEPT_WEIGHTS else None
        self.expectation.reweigh(derive(self.nonce, f"state:{self.reweighed}"))
        return {"seed": -1}

    def fill(self, m: dict[str, Any]) -> dict[str, Any]:
        """Make fresh inputs for one or several sessions; ``hand`` gives them to each.

        ``family``: a family of inputs by name, or 'next' for one that this evaluation has not had; empty or missing for
        the Task's own distribution. The answer says which it became (empty: the Task's own) and, for all that the
        reference does not stand, why.
        """
        case, sessions = m["case"], set(m["sessions"])
        seed = derive(self.nonce, f"draw:{m['label']}") if self.expectation.stochastic else -1
        earlier = next((old for old in reversed(self.rounds.values()) if old.sessions == sessions), None)
        self.rounds = {call: old for call, old in self.rounds.items() if not old.sessions & sessions}
        wanted = "" if self.expectation.stochastic and not self.expectation.seedable else m.get("family", "")
        if wanted:
            varied = self.variety.make(wanted, self.nonce, m["label"], case, seed, earlier, self.judge)
        else:
            varied = Varied(self.expectation.inputs(self.nonce, m["label"], case))
        del earlier
        self._sync()
        self.rounds[m["call"]] = Round(
            m["label"], case, varied.inputs, [], seed, sessions, varied.eager, varied.family, varied.values
        )
        return {"seed": seed, "family": varied.family, "skipped": self.variety.skipped.get(str(case), {})}

    def hand(self, m: dict[str, Any]) -> dict[str, Any]:
        """Give one session the inputs of a call, not before its turn: whoever watches the shared buffer must not be
        able to work while others run. What it last exported is gone then."""
        session, this = self.sessions[m["session"]], self.rounds[m["call"]]
        session.data["outputs"].fill_(STALE)
        packed = layout.pack(this.inputs, session.data["inputs"], keep_strides=True)
        if any(entry["offset"] < 0 for entry in packed["tensors"]):
            raise Unsupported("get_inputs() gave larger tensors than when the task was inspected")
        wire.put_text(session.view, session.arena, "structure", json.dumps(packed))
        this.entries = packed["tensors"]
        self._sync()
        return {}

    def freeze(self, m: dict[str, Any]) -> dict[str, Any]:
        """Copy what a session has exported for a call, as soon as it is there: what is judged cannot be written to
        while the reference computes."""
        session = self.sessions[m["session"]]
        session.freeze()
        # Unless the reference, too, changes its inputs.
        looked = m["inputs"] and not self.expectation.changes_inputs
        session.changed = session.changed_inputs(self.rounds[m["call"]]) if looked else []
        self._sync()
        return {}

    def check(self, m: dict[str, Any]) -> dict[str, Any]:
        """Judge what a session exported for a call: ``full`` against fp64, otherwise against eager."""
        session, this = self.sessions[m["session"]], self.rounds[m["call"]]
        # Only what is to be read again outlives the check, whatever comes of it.
        exported, session.exported = session.exported, None
        assert exported is not None
        if m["hold"] or session.keep:
            session.held.append(exported)
        session.keep = False
        session.last = exported if m.get("again") else None
        if this.eager is None:
            this.eager = self.expectation.eager(this.inputs, this.seed)
        outputs, after = this.eager
        wanted: list[torch.Tensor] = []
        spec = layout.describe(outputs, wanted)
        described = layout.pack(outputs, NOWHERE, keep_strides=False)["tensors"]
        try:
            got_spec, entries, got, state = exported.read()
            error = compare.structure_error(spec, got_spec, described, entries, "0")
            places = [leaf["at"] for _, leaf in layout.paths(got_spec) if leaf["kind"] == "tensor"]
            # Those that are too large for the buffer, or said to be, have no bytes.
            left_out = not error and any(entries[at]["offset"] < 0 for at in places)
        except torch.OutOfMemoryError:
            raise
        except UNREADABLE as problem:
            return refusal(f"the exported outputs could not be read ({problem})")
        if error:
            return refusal(error)
        if left_out and layout.needed({"out": outputs, "state": after}) > session.data["outputs"].numel():
            raise RuntimeError("the reference's outputs are larger than when the task was inspected")
        if left_out:
            return refusal("the exported outputs could not be read (a tensor's bytes are left out)")
        names = [path for path, leaf in layout.paths(spec) if leaf["kind"] == "tensor"]
        values = [got[at] for at in places]
        expected = [wanted[leaf["at"]] for _, leaf in layout.paths(spec) if leaf["kind"] == "tensor"]
        missing: list[str] = []
        for name in self.expectation.watch if m["state"] else ():
            if not updated(state.get(name), self.expectation.current[name], after[name]):
                missing.append(name)
            else:
                names.append(f"state:{name}")
                values.append(state[name])
                expected.append(after[name])
        # In some of the timed calls too, where fp64 costs no more than a few calls.
        deep = m.get("deep") and self.expectation.exact_at_once and not self.judge.amplified(this.key)
        deep = deep and (m.get("surely") or self.expectation.exact_quick)
        verdict = self.judge.judge(this, names, values, expected, full=m["full"] or bool(deep), timed=m["timed"])
        if verdict.get("full") and verdict.get("reference") == "fp64":
            for each, want in zip(verdict["outputs"], expected, strict=False):
                name, error, budget = each["output"], each["relative_norm"], each["budget"]
                session.levels.add(this, name, want, error, budget, timed=m["timed"])
        if not verdict["ok"] and not self.expectation.stochastic:
            layer, why = diagnosis.explain(self.judge, this, names, values, expected, session.answers, self.weights)
            if not why and session.weighed < self.reweighed:
                layer, why = "state", diagnosis.CHANGED
            alike = self.expectation.alike() if not why and self.expectation.seeded else []
            if alike:
                why = (
                    f"{', '.join(alike[:6])} start with the same values as others: under other names "
                    "they are told apart by their order, so keep the reference's"
                )
            if why:
                verdict |= {"layer": layer, "message": f"{verdict['message']}; {why}"}
        session.weighed = self.reweighed
        if verdict.get("useless"):
            self.variety.skipped.setdefault(str(this.case), {})[this.family] = verdict["useless"]
        answers = output_leaves(outputs)
        session.answers = answers if sum(t.numel() for t in answers) <= EARLIER_ELEMENTS else []
        if m["full"] and self.trivial is None:
            self.trivial = battery.passing(
                self.expectation, self.tolerance, self.variety, self.cases[0], self.battery_file
            )
            self._give_back_memory()
        if self.trivial:
            verdict["labels"] = sorted({*verdict["labels"], "non_discriminating"})
        families = self.variety.told(this.case, this.family)
        told = {"missing_state": missing, "changed_inputs": session.changed, "families": families}
        told |= {"trivial": self.trivial or [], "family": this.family}
        return {"layer": "numerics"} | verdict | told

    def levels(self, m: dict[str, Any]) -> dict[str, Any]:
        """Whether a session's timed calls err much more than its first."""
        message = self.sessions[m["session"]].levels.risen()
        return {"message": message}

    def answer(self, m: dict[str, Any]) -> dict[str, Any]:
        """What a check costs, for a call without a Program: nothing comes of it."""
        this = self.rounds[m["call"]]
        for leaf in output_leaves(self.expectation.eager(this.inputs, this.seed)[0]):
            compare.distance(leaf, leaf)
        for number in this.sessions:
            self.sessions[number].exported = None
        return {}

    def check_held(self, m: dict[str, Any]) -> dict[str, Any]:
        """Whether an output kept by the runner still is what it was when first exported."""
        session = self.sessions[m["session"]]
        return session.unchanged(
            session.held[m["index"]],
            "the outputs of a call changed during later calls: outputs must outlive later calls, "
            "so return fresh tensors rather than a reused buffer",
        )

    def keep(self, m: dict[str, Any]) -> dict[str, Any]:
        """Remember the outputs that are checked next: the runner keeps them, for ``check_held``."""
        self.sessions[m["session"]].keep = True
        return {}

    def ping(self, m: dict[str, Any]) -> dict[str, Any]:
        """Nothing; the supervisor measures how long an answer takes."""
        return {}

    def recheck(self, m: dict[str, Any]) -> dict[str, Any]:
        """Whether the outputs that were exported again are what the last check saw."""
        session = self.sessions[m["session"]]
        late = "the outputs of a call changed after it had returned and been read: its work was not done by then"
        before, session.last = session.last, None
        return session.unchanged(before, late)

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


def main() -> None:
    """Serve the socket whose number is the last argument."""
    serve(socket.socket(fileno=int(sys.argv[-1])))


if __name__ == "__main__":
    main()
