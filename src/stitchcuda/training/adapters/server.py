"""A reward server: the service behind HTTP, for trainers that run in other processes, environments or nodes.

``POST /score`` takes ``{"asked": {columns of a row}, "completion": text}`` and answers ``{"score": number or null,
"parts": {...}, "verdict": text}`` when it is measured; ``GET /health`` says that it lives. Wrong questions are 400, a
wrong token is 401, 503 is for a machine that failed, which clients try again, and 500 is a fault of this package.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stitchcuda.errors import InfrastructureError, StitchError
from stitchcuda.reward.service_blocking import BlockingService
from stitchcuda.training.adapters.mapping import item_of_columns, number, parts, said

QUESTION_BYTES = 64 << 20
SLOW_CLIENT_S = 60.0
"""Longest wait for a client's bytes; a measurement may take longer, for then the client waits."""


class RewardServer:
    """Serves a service on ``host`` and ``port`` (0: a free one) until it is closed.

    ``token`` is what clients must show; with '' anyone who reaches the port may have programs run, so leave it so only
    on a machine of one's own. ``in_thought``: the model's chat template begins its thoughts in the prompt.
    """

    def __init__(
        self,
        service: BlockingService,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        in_thought: bool = False,
        remark: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.service, self.token, self.in_thought, self.remark = service, token, in_thought, remark
        self.scored = 0
        server = self

        class Handler(_Handler):
            rewards = server

        self._http = _Http((host, port), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, name="reward server", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._http.server_address[1])

    def address(self, host: str = "") -> str:
        """Its address as clients on ``host``'s network write it; by default as it was bound."""
        return f"http://{host or self._http.server_address[0]!s}:{self.port}"

    def answer(self, question: Any) -> dict[str, Any]:
        """What a question is answered with. Raises StitchError for one that cannot be."""
        if not isinstance(question, dict) or not isinstance(question.get("asked"), dict):
            raise StitchError("a question is an object with 'asked' (a row's columns) and 'completion'")
        item = item_of_columns(question["asked"], question.get("completion"), in_thought=self.in_thought)
        outcome = self.service.score_all([item])[0]
        self.scored += 1
        return {"score": number(outcome), "parts": parts(outcome), "verdict": said(outcome)}

    def close(self) -> None:
        """Stop listening; the service is its owner's."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024


class _Handler(BaseHTTPRequestHandler):
    rewards: RewardServer
    timeout = SLOW_CLIENT_S

    def do_GET(self) -> None:
        """Health."""
        if self.path != "/health":
            self._say(404, {"error": "unknown path; there are GET /health and POST /score"})
        elif self._trusted():
            self._say(200, {"scored": self.rewards.scored, "stamp": self.rewards.service.service.backend.stamp})

    def do_POST(self) -> None:
        """One completion."""
        if self.path != "/score":
            self._say(404, {"error": "unknown path; there are GET /health and POST /score"})
            return
        if not self._trusted():
            return
        try:
            size = int(self.headers.get("Content-Length", "0"))
            if not 0 < size <= QUESTION_BYTES:
                raise ValueError(f"{size} bytes; expected 1 to {QUESTION_BYTES}")
            question = json.loads(self.rfile.read(size))
        except ValueError as error:
            self._say(400, {"error": f"not a question: {error}"})
            return
        try:
            self._say(200, self.rewards.answer(question))
        except InfrastructureError as error:
            self._say(503, {"error": str(error)})
        except StitchError as error:
            self._say(400, {"error": str(error)})
        except OSError:
            raise
        except Exception as error:
            self.rewards.remark(f"a completion was not scored: {type(error).__name__}: {error}")
            self._say(500, {"error": f"{type(error).__name__}: {error}"})

    def _trusted(self) -> bool:
        shown = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.rewards.token and not hmac.compare_digest(shown.encode(), self.rewards.token.encode()):
            self._say(401, {"error": "the token is missing or wrong; it is in the server's token file"})
            return False
        return True

    def _say(self, status: int, told: dict[str, Any]) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet: a line for each of many thousand completions helps nobody."""


def new_token(path: Path) -> str:
    """A fresh token, in a file that only its owner may read."""
    token = secrets.token_urlsafe(32)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(token + "\n")
    return token


def own_address() -> str:
    """This host's address as other nodes of its network see it; loopback where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it chooses the interface
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
