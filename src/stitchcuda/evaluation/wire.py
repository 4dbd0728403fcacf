"""What passes between supervisor and runner: fixed-size binary records over two pipes, and where things lie in the
shared arena. Standard library only; the runner loads it by path. Never pickle, never text that decides anything.

Every command carries a random token that its reply must echo, so that a reply written in advance is recognised.
"""

from __future__ import annotations

import os
import select
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

COMMAND = struct.Struct("<IHHqQq")
"""magic, operation, flags, call number, token, argument."""

REPLY = struct.Struct("<IHHqQqqqq")
"""magic, operation, code, call number, token, wall ns, device ns, peak device bytes, peak host bytes."""

SIZES = struct.Struct("<6Q")
"""An arena's sizes, in the order of its fields."""

MAGIC = 0x53544344
PAGE = 4096


class Op(IntEnum):
    """What the supervisor asks of a runner."""

    HELLO = 1
    ATTACH = 2
    LOAD = 3
    STATE = 4
    RESEED = 5
    PREPARE_MODEL = 6
    INPUTS = 7
    CALL = 8
    EXPORT = 9
    EXPORT_HELD = 10
    NOOP = 11
    TRACE = 12
    EXIT = 13
    SETTLE = 14


class Code(IntEnum):
    """How it went, in the runner's own words; they may lower a verdict, never raise one."""

    OK = 0
    RAISED = 1
    OUT_OF_MEMORY = 2
    STATE_MISMATCH = 3
    NO_IPC = 4
    NOTHING = 5
    PROTOCOL = 6


HOLD = 1
"""CALL flag: keep the outputs of this call until the end."""
FLUSH = 2
"""INPUTS flag: empty the device's L2 afterwards."""
STATE_OUT = 4
"""EXPORT flag: export the watched state beside the outputs."""

INPUTS_OUT = 8
"""EXPORT flag: write the inputs back as the call has left them."""


REUSE = 16
"""INPUTS flag: put the new contents where the last inputs lie, if they fit; otherwise they get other addresses."""

CONTROL = 32
"""CALL flag: no Program, only an output as large as one's; before LOAD, to see what an exchange costs."""

FILL = 64
"""CALL flag: not timed, so that host memory may be filled when it is allocated."""


KNOCK_OUT = 128
"""LOAD flag: replace the Program's launchers by ones that do nothing."""


BY_VALUE = 256
"""STATE flag: what has no counterpart by name goes where the same values stand; names that have none are reported."""


COUNT = 512
"""CALL flag: count the Program's launches in this call."""

ORDERED = 1024
"""CALL and EXPORT flag: on cuda the inputs are still being made on the current stream when the call comes, and its
outputs are copied on that stream at once, without a device-wide synchronisation before or after it."""


class Closed(Exception):
    """The other side has gone."""


class Late(Exception):
    """No complete record before the deadline."""


@dataclass(frozen=True)
class Command:
    """One request."""

    op: Op
    call: int = 0
    token: int = 0
    flags: int = 0
    argument: int = 0

    def pack(self) -> bytes:
        """The record's bytes."""
        return COMMAND.pack(MAGIC, self.op, self.flags, self.call, self.token, self.argument)

    @staticmethod
    def unpack(data: bytes) -> Command:
        """The record behind the bytes; ValueError if they are none."""
        magic, op, flags, call, token, argument = COMMAND.unpack(data)
        if magic != MAGIC:
            raise ValueError("not a command record")
        return Command(Op(op), call, token, flags, argument)


@dataclass(frozen=True)
class Reply:
    """One answer; times in nanoseconds, memory in bytes."""

    op: Op
    code: Code
    call: int
    token: int
    wall_ns: int = 0
    device_ns: int = 0
    peak_device: int = 0
    peak_host: int = 0

    def pack(self) -> bytes:
        """The record's bytes."""
        return REPLY.pack(
            MAGIC,
            self.op,
            self.code,
            self.call,
            self.token,
            self.wall_ns,
            self.device_ns,
            self.peak_device,
            self.peak_host,
        )

    @staticmethod
    def unpack(data: bytes) -> Reply:
        """The record behind the bytes; ValueError if they are none."""
        magic, op, code, call, token, wall, device, peak_device, peak_host = REPLY.unpack(data)
        if magic != MAGIC:
            raise ValueError("not a reply record")
        return Reply(Op(op), Code(code), call, token, wall, device, peak_device, peak_host)


@dataclass(frozen=True)
class Arena:
    """Where things lie in the shared memory of one session, in bytes; three regions of JSON, three of tensor data.

    The first page holds the six sizes, since a runner is started before they are known. A region of JSON starts with
    its length as eight bytes, little endian. On cuda the data regions may be device buffers instead, and are then empty
    here.
    """

    setup: int
    structure: int
    report: int
    inputs: int
    outputs: int
    state: int

    @property
    def offsets(self) -> dict[str, tuple[int, int]]:
        """Offset and size by region, page-aligned."""
        at, out = PAGE, {}
        for name in ("setup", "structure", "report", "inputs", "outputs", "state"):
            size = getattr(self, name)
            out[name] = (at, size)
            at += -(-size // PAGE) * PAGE
        return out

    @property
    def total(self) -> int:
        """Size of the whole, bytes."""
        offset, size = self.offsets["state"]
        return offset + -(-size // PAGE) * PAGE

    def pack(self) -> bytes:
        """The first page."""
        sizes = (self.setup, self.structure, self.report, self.inputs, self.outputs, self.state)
        return SIZES.pack(*sizes).ljust(PAGE, b"\0")

    @staticmethod
    def unpack(page: bytes) -> Arena:
        """The arena behind a first page."""
        return Arena(*SIZES.unpack_from(page))


def put_text(memory: memoryview, arena: Arena, region: str, text: str) -> None:
    """Write a region of JSON; ValueError when it does not fit."""
    offset, size = arena.offsets[region]
    data = text.encode()
    if len(data) + 8 > size:
        raise ValueError(f"{len(data)} bytes of description do not fit the {region} region of {size} bytes")
    memory[offset : offset + 8] = len(data).to_bytes(8, "little")
    memory[offset + 8 : offset + 8 + len(data)] = data


def get_text(memory: memoryview, arena: Arena, region: str) -> str:
    """Read a region of JSON written by the other side; ValueError when its length is impossible."""
    offset, size = arena.offsets[region]
    length = int.from_bytes(memory[offset : offset + 8], "little")
    if length > size - 8:
        raise ValueError(f"the {region} region claims {length} bytes of {size}")
    return bytes(memory[offset + 8 : offset + 8 + length]).decode("utf-8", "replace")


FILE = struct.Struct("<IQ")
"""Before each file of a program: length of its name, length of its content."""


def put_files(fd: int, files: dict[str, bytes]) -> None:
    """Write a program's files, by relative path, into an empty memory file."""
    with open(fd, "wb", closefd=False) as memory:
        for name, data in files.items():
            path = name.encode()
            memory.write(FILE.pack(len(path), len(data)) + path)
            memory.write(data)


def get_files(fd: int, folder: Path) -> None:
    """Lay a program's files down in ``folder``."""
    with open(fd, "rb", closefd=False) as memory:
        memory.seek(0)
        while head := memory.read(FILE.size):
            path, size = FILE.unpack(head)
            place = folder / memory.read(path).decode()
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(memory.read(size))


def read_exact(fd: int, size: int) -> bytes:
    """Block until ``size`` bytes came; Closed at the end of the stream."""
    data = b""
    while len(data) < size:
        part = os.read(fd, size - len(data))
        if not part:
            raise Closed
        data += part
    return data


def write_all(fd: int, data: bytes) -> None:
    """Write everything; Closed when nobody reads any more."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BrokenPipeError:
            raise Closed from None


def read_before(fd: int, size: int, deadline: float, gone: int) -> bytes:
    """Read ``size`` bytes before ``deadline`` (time.monotonic seconds).

    ``gone`` is a descriptor that turns readable when the process at the other end has ended (a pidfd). Raises Late or
    Closed; what arrived before the process ended is still read.
    """
    data = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(gone, select.POLLIN)
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Late
        ready = dict(poll.poll(min(left, 1.0) * 1000))
        if fd in ready:
            part = os.read(fd, size - len(data))
            if not part:
                raise Closed
            data += part
        elif gone in ready:
            raise Closed
    return data
