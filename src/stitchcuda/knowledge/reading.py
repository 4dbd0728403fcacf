"""The reading process: files of unknown origin are parsed apart, under limits, never in the caller.

A broken PDF or a page built to exhaust a parser costs its own file, with a reason, and nothing else: the child
has bounded memory and a time per file, and a dead or late child is replaced. ``python -m`` runs the child's side.
Tokens are made there too, so that reading and storing use a core each.
"""

from __future__ import annotations

import json
import os
import queue
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from stitchcuda.knowledge.model import Chunk, Tags
from stitchcuda.knowledge.readers import Unreadable, read_bytes
from stitchcuda.knowledge.tokens import index_tokens, symbol_forms

SECONDS_PER_FILE = 60.0
MEMORY_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Prepared:
    """A chunk with its index tokens, as three space-separated strings, and the names its symbols go by."""

    chunk: Chunk
    title_tokens: str
    symbol_tokens: str
    body_tokens: str
    forms: tuple[str, ...]
    length: int


def prepare(chunk: Chunk) -> Prepared:
    """Make the index tokens of ``chunk``."""
    body = index_tokens(chunk.text)
    forms = dict.fromkeys(form for symbol in chunk.symbols for form in symbol_forms(symbol))
    return Prepared(
        chunk,
        " ".join(index_tokens("\n".join((*chunk.title, chunk.lead)))),
        " ".join(index_tokens("\n".join(chunk.symbols))),
        " ".join(body),
        tuple(forms),
        len(body),
    )


@dataclass(frozen=True, slots=True)
class ReadFile:
    """What reading one file gave: its title and prepared chunks."""

    title: str
    chunks: list[Prepared]


def _send(stream: IO[bytes], *parts: bytes) -> None:
    for part in parts:
        stream.write(struct.pack("<Q", len(part)))
        stream.write(part)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    head = stream.read(8)
    if len(head) < 8:
        return None
    (length,) = struct.unpack("<Q", head)
    body = stream.read(length)
    return body if len(body) == length else None


def _encode(prepared: Prepared) -> list[Any]:
    c = prepared.chunk
    return [
        c.title, c.text, c.kind, c.symbols, c.tags.arch, c.tags.libraries, c.anchor,
        prepared.title_tokens, prepared.symbol_tokens, prepared.body_tokens, prepared.forms, prepared.length,
    ]  # fmt: skip


def _decode(row: list[Any]) -> Prepared:
    tags = Tags(tuple(row[4]), tuple(row[5]))
    chunk = Chunk(tuple(row[0]), row[1], row[2], tuple(row[3]), tags, row[6])
    return Prepared(chunk, row[7], row[8], row[9], tuple(row[10]), row[11])


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """The child's loop: a name and a file's bytes in, a JSON answer out, until the input ends."""
    while (name := _receive(source)) is not None and (data := _receive(source)) is not None:
        answer: dict[str, Any]
        try:
            document = read_bytes(data, name.decode())
            answer = {"title": document.title, "chunks": [_encode(prepare(chunk)) for chunk in document.chunks]}
        except Unreadable as error:
            answer = {"refused": str(error)}
        except (MemoryError, RecursionError) as error:
            answer = {"refused": f"exhausts the reader ({type(error).__name__}); it is built to, or broken"}
        except Exception as error:
            answer = {"refused": f"cannot be read ({type(error).__name__}: {str(error)[:120]})"}
        _send(sink, json.dumps(answer, separators=(",", ":")).encode())


class Reader:
    """Reads files one by one in a confined child; a context manager. Not for several threads at once."""

    def __init__(self, *, seconds_per_file: float = SECONDS_PER_FILE, memory_bytes: int = MEMORY_BYTES) -> None:
        self._seconds, self._memory = seconds_per_file, memory_bytes
        self._child: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[bytes | None] = queue.Queue()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    def submit(self, name: str, data: bytes) -> None:
        """Start reading one file; its outcome is what the next ``collect`` returns."""
        child = self._child
        if child is None or child.poll() is not None:
            child = self._start()
        assert child.stdin is not None
        try:
            _send(child.stdin, name.encode(), data)
        except OSError:
            self._end()

    def collect(self) -> ReadFile:
        """The outcome of the file submitted last. Raises ``Unreadable`` with the reason for a refused one."""
        if self._child is None:
            raise Unreadable("ended its reader before it was read whole; it is built to, or broken")
        try:
            raw = self._answers.get(timeout=self._seconds)
        except queue.Empty:
            self._end()
            raise Unreadable(f"took longer than {self._seconds:.0f} s to read; it is built to, or broken") from None
        if raw is None:
            self._end()
            raise Unreadable("ended its reader (out of memory or crashed); it is built to, or broken")
        answer = json.loads(raw)
        if "refused" in answer:
            raise Unreadable(answer["refused"])
        return ReadFile(answer["title"], [_decode(row) for row in answer["chunks"]])

    def read(self, name: str, data: bytes) -> ReadFile:
        """Read one file and wait for it. Raises ``Unreadable``."""
        self.submit(name, data)
        return self.collect()

    def _start(self) -> subprocess.Popen[bytes]:
        self._end()
        child = subprocess.Popen(
            [sys.executable, "-m", "stitchcuda.knowledge.reading", str(self._memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        answers: queue.Queue[bytes | None] = queue.Queue()
        stdout = child.stdout
        assert stdout is not None

        def pump() -> None:
            try:
                while (raw := _receive(stdout)) is not None:
                    answers.put(raw)
            except (OSError, ValueError):
                pass
            answers.put(None)

        threading.Thread(target=pump, daemon=True).start()
        self._child, self._answers = child, answers
        return child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        assert child.stdout is not None
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            try:
                stream.close()
            except OSError:
                continue


def _confine(memory_bytes: int) -> None:
    """Bound this process's memory; no core dumps. Best effort where the platform has no such limits."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    except (ImportError, ValueError, OSError):
        return


if __name__ == "__main__":
    _confine(int(sys.argv[1]))
    serve(sys.stdin.buffer, sys.stdout.buffer)
