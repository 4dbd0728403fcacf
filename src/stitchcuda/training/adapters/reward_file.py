"""The reward function that verl loads by its path, in processes that need not have this package: Python's library only.

It asks a reward server (``training.adapters.server``) for each completion. A completion that cannot be scored raises:
verl's own trainer then leaves that sample out of its group, where a number would count as a verdict. That holds for the
reward manager ``naive``; ``rate_limited`` turns every failure and time-out into a reward of 0, so the rate is limited
here and at the server instead.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
import weakref
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ANSWER_BYTES = 1 << 24
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0

_slots: weakref.WeakKeyDictionary[Any, asyncio.Semaphore] = weakref.WeakKeyDictionary()


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    endpoint: str,
    token_file: str = "",
    max_concurrent: int = 64,
    patience_s: float = 7200.0,
    **_: Any,
) -> dict[str, Any]:
    """The reward as ``score``, and its parts: numbers, None where one does not exist.

    ``endpoint`` is the server's address, ``token_file`` holds its token, ``max_concurrent`` are requests under way in
    this process, and ``patience_s`` is how long an answer is waited for, and a server that is away tried, seconds.
    Raises RuntimeError when there is no reward.
    """
    asked = (extra_info or {}).get("asked")
    if not asked:
        raise RuntimeError(f"a row of {data_source} has no extra_info.asked; write the files with stitchcuda")
    answer = await ask(
        endpoint,
        {"asked": json.loads(asked), "completion": solution_str},
        token_file=token_file,
        max_concurrent=max_concurrent,
        patience_s=patience_s,
    )
    if answer["score"] is None:
        raise RuntimeError(f"no reward: {answer['verdict']}")
    return {"score": float(answer["score"]), **answer["parts"]}


async def ask(
    endpoint: str,
    question: dict[str, Any],
    *,
    token_file: str = "",
    max_concurrent: int = 64,
    patience_s: float = 7200.0,
) -> dict[str, Any]:
    """A reward server's answer: score, parts, verdict. Asks again while the server is away.

    Raises RuntimeError when the server refuses the question, or none answered within ``patience_s``.
    """
    loop = asyncio.get_running_loop()
    slots = _slots.setdefault(loop, asyncio.Semaphore(max_concurrent))
    token = Path(token_file).read_text(encoding="utf-8").strip() if token_file else ""
    body = json.dumps(question).encode()
    pause, until = FIRST_PAUSE_S, time.monotonic() + patience_s
    async with slots:
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    status, data = await _post(endpoint, token, body)
                if status != 503:
                    break
                problem = f"status {status}: {data[:300].decode(errors='replace')}"
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                problem = str(error) or type(error).__name__
            if time.monotonic() + pause > until:
                raise RuntimeError(
                    f"the reward server at {endpoint} gave no answer within {patience_s:g} s ({problem})"
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)
    if status != 200:
        raise RuntimeError(f"the reward server refused a completion ({status}): {data[:500].decode(errors='replace')}")
    found: dict[str, Any] = json.loads(data)
    return found


async def _post(endpoint: str, token: str, body: bytes) -> tuple[int, bytes]:
    """Status and body of one request on a connection of its own."""
    where = urlsplit(endpoint)
    host, port = where.hostname or "127.0.0.1", where.port or 80
    reader, writer = await asyncio.open_connection(host, port, limit=ANSWER_BYTES)
    try:
        # A server's host that is gone says nothing: the kernel finds out.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        head = [
            "POST /score HTTP/1.0",
            f"Host: {host}:{port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *([f"Authorization: Bearer {token}"] if token else []),
        ]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ", 2)[1])
        lengths = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
        return status, await reader.readexactly(int(lengths[0])) if lengths else b""
    except (IndexError, asyncio.LimitOverrunError) as error:
        raise ValueError(f"what answered is no reward server ({error})") from None
    finally:
        writer.close()
