"""Audit of Tasks: does a trivial answer pass, is the arithmetic well-conditioned, is there work that nobody needs?
Starts the trusted worker, watches its limits, keeps results, and prints the table; what is looked at is in
``evaluation.audit_worker``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stitchcuda.errors import TaskError
from stitchcuda.task.inspect import PR_SET_PDEATHSIG, available_bytes, interpret
from stitchcuda.task.kernelbench import ids
from stitchcuda.task.model import Task

VERSION = 1
"""Of what an entry holds and how it is found; entries of another version are audited anew."""

NO_TIME = "no time was left"
"""Why an answer or a family was not tried, as ``evaluation.battery`` says it."""

Entry = dict[str, Any]


def expand(references: Sequence[str], root: Path | None) -> list[str]:
    """Task references with each ``kernelbench:LEVEL`` replaced by its tasks. Raises TaskError for a level without."""
    found: list[str] = []
    for reference in references:
        level = re.fullmatch(r"kernelbench:(\d+)", reference)
        if level is None:
            found.append(reference)
            continue
        numbers = ids(int(level[1]), root)
        if not numbers:
            raise TaskError(f"KernelBench has no level {level[1]} where --root or KERNELBENCH_ROOT says")
        found += [f"kernelbench:{level[1]}/{number}" for number in numbers]
    return list(dict.fromkeys(found))


class Auditor:
    """One worker process at a time; a context manager. Its Tasks are trusted code: they share the process."""

    def __init__(
        self,
        kind: str,
        *,
        timeout_s: float = 120.0,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``timeout_s``: one Task's wall time; ``prefix`` and ``environment``: how the worker is started."""
        self.kind, self.timeout_s = kind, timeout_s
        self.prefix, self.environment = list(prefix), dict(environment or os.environ)
        self.process: subprocess.Popen[bytes] | None = None
        self.replies = -1
        self.buffer = b""
        self.log = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.log.close()

    def start(self) -> None:
        """Start the worker unless it runs."""
        if self.process is not None and self.process.poll() is None:
            return
        self.stop()
        reading, writing = os.pipe()
        limit = available_bytes("cpu") if self.kind == "cpu" else 0
        libc = ctypes.CDLL(None)

        def confine() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if limit:
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

        self.process = subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "stitchcuda.evaluation.audit_worker", str(writing)],
            pass_fds=[writing],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            env=self.environment,
            start_new_session=True,
            preexec_fn=confine,
        )
        os.close(writing)
        self.replies, self.buffer = reading, b""

    def stop(self) -> None:
        """End the worker and what it started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            if self.process.stdin is not None:
                with contextlib.suppress(OSError):
                    self.process.stdin.close()
            self.process = None
        if self.replies >= 0:
            os.close(self.replies)
            self.replies = -1

    def audit(self, task: Task, *, seconds: float) -> Entry:
        """One Task's entry; ``seconds`` bounds the trivial answers that are tried. A Task that its worker does not
        survive, or not in time, is tried once more without fp64 in a fresh one; ``error`` says why when that fails too.
        """
        from stitchcuda.evaluation.settings import TOLERANCES

        request = {
            "task": task.model_dump(),
            "seconds": seconds,
            "exact": True,
            "tolerance": TOLERANCES[task.precision].model_dump(),
        }
        began = time.monotonic()
        answer = self._ask(request)
        if "error" in answer:
            first = answer["error"]
            answer = self._ask(request | {"exact": False})
            answer.setdefault("note", f"without fp64, because with it: {first}")
        if "problem" in answer:
            try:
                interpret(task, {"error": answer["problem"]}, available_bytes(self.kind))
            except TaskError as error:
                answer = {"error": str(error)}
        head = {
            "version": VERSION,
            "task": task.name,
            "origin": task.origin,
            "digest": task.digest,
            "precision": task.precision,
            "target": task.target.kind,
        }
        return head | answer | {"wall_seconds": round(time.monotonic() - began, 3)}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.start()
        process = self.process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = self._line(time.monotonic() + self.timeout_s)
        except TimeoutError:
            self.stop()
            return {"error": f"no answer within {self.timeout_s:g} s"}
        except OSError:
            line = b""
        if not line:
            code = process.wait()
            self.stop()
            return {"error": f"the worker ended with exit code {code}: {self._last_words()}"}
        return dict(json.loads(line))

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.replies], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(self.replies, 1 << 16)
            if not part:
                return b""
            self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - 1000))
        lines = self.log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else "it printed nothing"


def known(document: dict[str, Any], task: Task) -> Entry | None:
    """The finished entry of this very Task in a result document."""
    for entry in document["items"]:
        same = entry["digest"] == task.digest and entry["version"] == VERSION
        if same and "error" not in entry:
            return dict(entry)
    return None


def keep(document: dict[str, Any], entry: Entry) -> None:
    """Put an entry in, in place of an older one of the same task, class and target."""
    fields = ("task", "precision", "target")
    document["items"] = [old for old in document["items"] if any(old[f] != entry[f] for f in fields)] + [entry]


def load(path: Path) -> dict[str, Any]:
    """A result document, or an empty one. Raises TaskError when the file is something else."""
    if not path.exists():
        return {"items": []}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(document["items"], list)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise TaskError(f"{path} is not a result file of an audit; move it away or name another") from None
    return dict(document)


def save(path: Path, document: dict[str, Any]) -> None:
    """Write the JSON file and the Markdown page beside it; readers never see half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for place, text in ((path, json.dumps(document, indent=1) + "\n"), (path.with_suffix(".md"), page(document))):
        scratch = place.with_name(f".{place.name}.{os.getpid()}")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(place)


def labels(entry: Entry) -> list[str]:
    """What an Evaluation of the Task would be labelled."""
    if "error" in entry:
        return []
    battery = entry["battery"]
    told = [("non_discriminating", bool(battery["ours"])), ("ill_conditioned", battery["ill_conditioned"])]
    return [label for label, holds in [*told, ("stochastic", entry["stochastic"])] if holds]


def page(document: dict[str, Any]) -> str:
    """The document as Markdown: counts, the table, and what could not be audited."""
    entries = sorted(document["items"], key=lambda e: (e["task"], e["precision"]))
    done = [e for e in entries if "error" not in e]
    lines = [f"# {document.get('title') or 'Audit of tasks'}", ""]
    lines += [
        "A trivial answer computes nothing or far too little: zeros, one constant, an input passed through, the answer "
        "to other inputs or other weights, the model on inputs and weights rounded to bf16, the model on the first "
        "hundredth of its inputs repeated. *passes* is judged as programs are, on the task's own inputs and constructor"
        " weights; *whole* also under perturbed weights and every family of inputs (?: as far as time allowed); *1e-4* "
        "and *1e-2* by `allclose` against eager with that absolute and relative tolerance.",
        "",
    ]
    lines += [*_counts(done), ""]
    head = ("task", "passes", "whole", "1e-4", "1e-2", "labels", "output", "dead work", "eager ms", "peak MiB", "s")
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cells(e)) + " |" for e in done]
    failed = [e for e in entries if "error" in e]
    if failed:
        lines += ["", "Not audited:", "", *(f"- {e['task']}: {e['error']}" for e in failed)]
    noted = [f"- {e['task']}: {text}" for e in done for text in _left_out(e)]
    if noted:
        lines += ["", "Left out:", "", *noted]
    lines += ["", *(f"- {line}" for line in document.get("provenance", []))]
    return "\n".join(lines).rstrip() + "\n"


def _counts(done: Sequence[Entry]) -> list[str]:
    groups: dict[str, list[Entry]] = {}
    for entry in done:
        level = re.match(r"kernelbench:(\d+)/", entry["origin"])
        groups.setdefault(f"level {level[1]}" if level else "other", []).append(entry)
    head = ("", "tasks", "non_discriminating", "of these whole", "at 1e-4", "at 1e-2", "ill_conditioned", "stochastic")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, group in sorted(groups.items()):
        batteries = [e["battery"] for e in group]
        counts = [
            len(group),
            sum(bool(b["ours"]) for b in batteries),
            sum(bool(b["whole"]) for b in batteries),
            sum(bool(b["kernelbench"]["1e-4"]) for b in batteries),
            sum(bool(b["kernelbench"]["1e-2"]) for b in batteries),
            sum("ill_conditioned" in labels(e) for e in group),
            sum("stochastic" in labels(e) for e in group),
        ]
        lines.append(f"| {name} | " + " | ".join(map(str, counts)) + " |")
    return lines


def _cells(entry: Entry) -> Iterator[str]:
    battery = entry["battery"]
    yield f"{entry['task']}" + (f" ({entry['precision']})" if entry["precision"] != "fp32" else "")
    late = any(reason == NO_TIME for name, reason in battery["left_out"].items() if name not in battery["tried"])
    yield ", ".join(battery["ours"])
    yield ", ".join(battery["whole"]) + (" ?" if battery["whole"] and late else "")
    yield from (", ".join(battery["kernelbench"][tolerance]) for tolerance in ("1e-4", "1e-2"))
    yield ", ".join(labels(entry))
    yield "; ".join(_output(o) for o in entry["outputs"][:2])
    yield "; ".join(entry["dead_work"]).replace("|", "/")
    yield f"{entry['eager_seconds'] * 1e3:.3g}"
    yield f"{entry['peak_bytes'] / 2**20:.0f}"
    yield f"{entry['seconds']:.1f}"


def _output(told: dict[str, Any]) -> str:
    if "mean" not in told:
        return f"{told['dtype']} {told['shape']}"
    text = f"{told['mean']:.3g} ± {told['std']:.2g} in [{told['min']:.3g}, {told['max']:.3g}]"
    return text + (f", {told['zeros']:.0%} zeros" if told["zeros"] >= 0.005 else "")


def _left_out(entry: Entry) -> list[str]:
    groups: dict[str, list[str]] = {}
    for name, reason in entry["battery"]["left_out"].items():
        groups.setdefault(reason, []).append(name)
    found = [f"{', '.join(names)}: {reason}" for reason, names in groups.items()]
    return found + ([str(entry["note"])] if entry.get("note") else [])
