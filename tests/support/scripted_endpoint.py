"""A real HTTP endpoint on loopback that answers like a model provider, by script. For tests only.

It speaks OpenAI chat completions, Anthropic messages and Gemini generateContent, answers from a sequence,
a list of rules or a Python function, and can fail in every way a provider does: statuses, garbage, half a
body, dropped connections, delays. Every request is counted and, on request, logged to a JSON Lines file,
so that another process can count what was asked.

In a test::

    with ScriptedEndpoint([text("hello"), status(429, headers={"Retry-After": "0"})]) as endpoint:
        ...  # endpoint.base_url, endpoint.requests, endpoint.count

In its own process (prints its base URL, then serves until killed)::

    python -m tests.support.scripted_endpoint --script script.json --log requests.jsonl --port 0

The script file is a JSON list of answers (a sequence), or ``{"rules": [...]}``. An answer is an object with
one of ``text``, ``tool`` (the arguments of the offered tool), ``status``, ``garbage``, ``drop``, and optionally
``delay_s``, ``finish`` (finish reason), ``headers``, ``body``, ``name`` (which tool), ``tokens`` ([in, out]).
A rule is ``{"contains": "words in the request" or [..], "tool": "offered tool's name", "plain": true,
"answers": [...]}``; the first rule that matches answers. Within a rule an equal request always gets the equal
answer, a new request the next one, and the last answer repeats; faults are used up once each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

Answer = dict[str, Any]
Script = Sequence[Answer] | dict[str, Any] | Callable[["Request", int], Answer]


def text(content: str, *, finish: str = "stop", **more: Any) -> Answer:
    """A plain-text reply; ``finish='length'`` makes it a truncated one."""
    return {"text": content, "finish": finish, **more}


def tool(arguments: dict[str, Any] | str, *, name: str | None = None, **more: Any) -> Answer:
    """A call of the offered tool with these arguments (a string is sent as it is, valid JSON or not)."""
    return {"tool": arguments, **({"name": name} if name else {}), **more}


def status(code: int, body: Any = None, *, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    """An HTTP error status."""
    return {"status": code, "body": body, "headers": headers or {}, **more}


def garbage(body: str = "<html>not json", *, content_type: str = "application/json", **more: Any) -> Answer:
    """Status 200 and a body that is no reply."""
    return {"garbage": body, "content_type": content_type, **more}


def drop(**more: Any) -> Answer:
    """The connection is reset before an answer."""
    return {"drop": True, **more}


class Request:
    """One request as received."""

    def __init__(self, number: int, path: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.number = number
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def digest(self) -> str:
        """SHA-256 of the body with sorted keys."""
        return hashlib.sha256(json.dumps(self.body, sort_keys=True).encode()).hexdigest()

    @property
    def text(self) -> str:
        """Every string in the request, joined by newlines."""
        found: list[str] = []

        def walk(node: Any) -> None:
            if isinstance(node, str):
                found.append(node)
            elif isinstance(node, dict):
                for value in node.values():
                    walk(value)
            elif isinstance(node, list):
                for value in node:
                    walk(value)

        walk(self.body)
        return "\n".join(found)

    @property
    def tools(self) -> list[str]:
        """Names of the tools that the request offers, whatever the dialect."""
        names: list[str] = []
        for entry in self.body.get("tools") or []:
            if "function" in entry:
                names.append(entry["function"]["name"])
            elif "name" in entry:
                names.append(entry["name"])
            for declared in entry.get("functionDeclarations") or entry.get("function_declarations") or []:
                names.append(declared["name"])
        return names


class ScriptedEndpoint:
    """Serves on a free loopback port in a thread of its own; a context manager."""

    def __init__(self, script: Script, *, port: int = 0, log: Path | None = None) -> None:
        self.requests: list[Request] = []
        """In the order received; faults and repeats included."""
        self._script = script
        self._log = log
        self._lock = threading.Lock()
        self._memory: dict[tuple[int, str], Answer] = {}
        self._used: dict[int, int] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        self._server.daemon_threads = True
        self._server.endpoint = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    @property
    def base_url(self) -> str:
        """For OpenAI-compatible clients."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def root_url(self) -> str:
        """Without a path, for Anthropic and Google clients."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def count(self) -> int:
        """How many requests came in."""
        return len(self.requests)

    def __enter__(self) -> ScriptedEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; later connections are refused."""
        self._server.shutdown()
        self._server.server_close()

    def serve(self) -> None:
        """Serve in the foreground until interrupted."""
        self._server.serve_forever(poll_interval=0.05)

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[Request, Answer]:
        """Count and log one request and choose its answer."""
        with self._lock:
            request = Request(len(self.requests), path, headers, body)
            self.requests.append(request)
            chosen = self._choose(request)
            self._write(
                {
                    "n": request.number,
                    "time": time.time(),
                    "path": path,
                    "model": body.get("model"),
                    "digest": request.digest,
                    "tools": request.tools,
                    "answer": next((k for k in ("text", "tool", "status", "garbage", "drop") if k in chosen), "?"),
                }
            )
        return request, chosen

    def delivered(self, request: Request) -> None:
        """Log that the whole answer was written to the client."""
        with self._lock:
            self._write({"n": request.number, "delivered": True})

    def _write(self, entry: dict[str, Any]) -> None:
        if self._log is not None:
            with self._log.open("a") as out:
                out.write(json.dumps(entry) + "\n")

    def _choose(self, request: Request) -> Answer:
        if callable(self._script):
            return self._script(request, request.number)
        if isinstance(self._script, dict):
            for index, rule in enumerate(self._script["rules"]):
                if _matches(rule, request):
                    return self._by_rule(index, list(rule["answers"]), request)
            return status(500, {"error": {"message": "no rule of the script matches this request"}})
        if request.number < len(self._script):
            return self._script[request.number]
        return status(500, {"error": {"message": f"the script has only {len(self._script)} answers"}})

    def _by_rule(self, index: int, answers: list[Answer], request: Request) -> Answer:
        key = (index, request.digest)
        if key not in self._memory:
            place = min(self._used.get(index, 0), len(answers) - 1)
            self._used[index] = place + 1
            chosen = answers[place]
            if "text" not in chosen and "tool" not in chosen:
                return chosen
            self._memory[key] = chosen
        return self._memory[key]


def read_log(path: Path) -> list[dict[str, Any]]:
    """Requests as logged, in order, each with ``delivered`` True or False."""
    requests: dict[int, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        entry = json.loads(line)
        if entry.get("delivered"):
            requests[entry["n"]]["delivered"] = True
        else:
            requests[entry["n"]] = {**entry, "delivered": False}
    return [requests[n] for n in sorted(requests)]


def _matches(rule: dict[str, Any], request: Request) -> bool:
    wanted = rule.get("contains", [])
    words = [wanted] if isinstance(wanted, str) else wanted
    if any(word not in request.text for word in words):
        return False
    if "tool" in rule and rule["tool"] not in request.tools:
        return False
    return not (rule.get("plain") and request.tools)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the endpoint keeps its own log."""

    def do_GET(self) -> None:
        self._send(200, json.dumps({"object": "list", "data": [{"id": "scripted", "object": "model"}]}).encode())

    def do_POST(self) -> None:
        endpoint: ScriptedEndpoint = self.server.endpoint  # type: ignore[attr-defined]
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request, answer = endpoint.answer(self.path, headers, json.loads(raw or b"{}"))
        time.sleep(float(answer.get("delay_s", 0.0)))
        try:
            self._reply(request, answer)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
            return
        endpoint.delivered(request)

    def _reply(self, request: Request, answer: Answer) -> None:
        if answer.get("drop"):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            raise ConnectionResetError
        if "status" in answer:
            body = answer.get("body") or {"error": {"message": f"scripted status {answer['status']}"}}
            raw = (body if isinstance(body, str) else json.dumps(body)).encode()
            self._send(int(answer["status"]), raw, headers=answer.get("headers"))
        elif "garbage" in answer:
            self._send(200, str(answer["garbage"]).encode(), kind=answer.get("content_type", "application/json"))
        else:
            self._send(200, json.dumps(_dialect(request, answer)).encode(), headers=answer.get("headers"))

    def _send(
        self, code: int, raw: bytes, *, kind: str = "application/json", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)
        self.wfile.flush()


def _dialect(request: Request, answer: Answer) -> dict[str, Any]:
    """The reply in the provider's form that the request's path asks for."""
    tokens_in, tokens_out = answer.get("tokens") or (len(request.text) // 4, len(json.dumps(answer)) // 4)
    arguments = answer.get("tool")
    name = answer.get("name") or (request.tools[0] if request.tools else "")
    truncated = answer.get("finish") == "length"
    if arguments is not None and not request.tools:
        answer, arguments = {**answer, "text": _json(arguments)}, None
    if request.path.split("?")[0].endswith("/messages"):
        block = (
            {"type": "tool_use", "id": f"toolu_{request.number}", "name": name, "input": arguments}
            if arguments is not None
            else {"type": "text", "text": answer["text"]}
        )
        stop = "max_tokens" if truncated else ("tool_use" if arguments is not None else "end_turn")
        return {
            "id": f"msg_{request.number}",
            "type": "message",
            "role": "assistant",
            "model": request.body.get("model", "scripted"),
            "content": [block],
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {"input_tokens": tokens_in, "output_tokens": tokens_out},
        }
    if "generateContent" in request.path:
        part = (
            {"functionCall": {"name": name, "args": arguments}} if arguments is not None else {"text": answer["text"]}
        )
        return {
            "candidates": [
                {
                    "content": {"role": "model", "parts": [part]},
                    "finishReason": "MAX_TOKENS" if truncated else "STOP",
                    "index": 0,
                }
            ],
            "usageMetadata": {
                "promptTokenCount": tokens_in,
                "candidatesTokenCount": tokens_out,
                "totalTokenCount": tokens_in + tokens_out,
            },
            "modelVersion": "scripted",
        }
    message: dict[str, Any] = {"role": "assistant", "content": answer.get("text")}
    finish = answer.get("finish", "stop")
    if arguments is not None:
        call = {"name": name, "arguments": _json(arguments)}
        message["tool_calls"] = [{"id": f"call_{request.number}", "type": "function", "function": call}]
        finish = answer.get("finish", "tool_calls")
    return {
        "id": f"scripted-{request.number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.body.get("model", "scripted"),
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        },
    }


def _json(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def main() -> None:
    """Serve a script file in this process."""
    parser = argparse.ArgumentParser(description="Answer model requests on loopback by script.")
    parser.add_argument("--script", required=True, type=Path, help="JSON: a list of answers, or an object with rules")
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free one")
    parser.add_argument("--log", type=Path, help="JSON Lines file to which every request is appended")
    options = parser.parse_args()
    endpoint = ScriptedEndpoint(json.loads(options.script.read_text()), port=options.port, log=options.log)
    print(endpoint.base_url, flush=True)
    try:
        endpoint.serve()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
