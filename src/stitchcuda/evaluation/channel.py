"""Length-prefixed messages over a socket between supervisor and oracle, with file descriptors beside them.
Both ends are trusted; the untrusted runner is spoken to through ``wire``."""

from __future__ import annotations

import socket
from collections.abc import Sequence

HEAD = 8


def receive(channel: socket.socket) -> tuple[bytes | None, list[int]]:
    """One message with the descriptors that came with it; None at the end of the stream."""
    head, fds, _, _ = socket.recv_fds(channel, HEAD, 4)
    if not head:
        return None, []
    rest = _exactly(channel, HEAD - len(head))
    if rest is None:
        return None, []
    return _exactly(channel, int.from_bytes(head + rest, "little")), list(fds)


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def send(channel: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send one message, with descriptors if any."""
    head = len(data).to_bytes(HEAD, "little")
    if fds:
        socket.send_fds(channel, [head], list(fds))
        channel.sendall(data)
    else:
        channel.sendall(head + data)
