"""Looks for secrets in what a profiler wrote, before it is kept: reports record environments and command lines whole.

Profilers are started with an environment without keys (``sandbox.scrubbed_environment``); this is the second look.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import zlib
from collections.abc import Iterator, Mapping

SHORTEST = 8
"""Shorter values are no secrets, but words that any file may hold."""
SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|COOKIE|AUTH)(_?\w{0,8})?$")
PATTERNS: dict[str, re.Pattern[bytes]] = {
    "a key of a model provider": re.compile(rb"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{20,}"),
    "a Hugging Face token": re.compile(rb"\bhf_[A-Za-z0-9]{30,}"),
    "a GitHub token": re.compile(rb"\b(?:ghp|gho|ghs|ghu|github_pat)_[A-Za-z0-9_]{30,}"),
    "an AWS key": re.compile(rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a Google key": re.compile(rb"\bAIza[A-Za-z0-9_-]{35}\b"),
    "a private key": re.compile(rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"),
    "a bearer token": re.compile(rb"(?i)\bauthorization: *bearer +[A-Za-z0-9_.-]{16,}"),
}
_ZLIB = re.compile(rb"\x78[\x01\x5e\x9c\xda]")
MOST_STREAMS = 2000
"""Compressed streams that are opened within one file."""
STREAM, MOST_OPENED = 4 << 20, 1 << 30
"""Bytes read of one compressed stream, and bytes opened of all."""


def secrets_of(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Values of the environment whose names say that they are secret, by name."""
    variables = os.environ if environment is None else environment
    return {
        name: value
        for name, value in variables.items()
        if len(value) >= SHORTEST and SECRET_NAME.search(name.upper()) and not os.path.exists(value)
    }


def leaks(data: bytes, environment: Mapping[str, str] | None = None) -> list[str]:
    """What ``data`` gives away: names of secret variables whose values it holds, and kinds of keys by their form.

    Values are looked for as UTF-8, UTF-16 and base64, and in gzip and zlib streams inside the file, too.
    """
    secrets = {name: _forms(value) for name, value in secrets_of(environment).items()}
    found: set[str] = set()
    for text in _texts(data):
        found |= {name for name, forms in secrets.items() if any(form in text for form in forms)}
        found |= {what for what, pattern in PATTERNS.items() if pattern.search(text)}
    return sorted(found)


def _forms(value: str) -> list[bytes]:
    raw = value.encode()
    return [raw, value.encode("utf-16-le"), base64.b64encode(raw).rstrip(b"=")]


def _texts(data: bytes) -> Iterator[bytes]:
    """The data, and what is compressed inside, within bounds."""
    yield data
    if data[:2] == b"\x1f\x8b":
        with contextlib.suppress(OSError, EOFError, zlib.error):
            yield zlib.decompressobj(wbits=31).decompress(data, MOST_OPENED)
    view, left = memoryview(data), MOST_OPENED
    for count, match in enumerate(_ZLIB.finditer(data)):
        if count >= MOST_STREAMS or left <= 0:
            return
        try:
            text = zlib.decompressobj().decompress(view[match.start() : match.start() + STREAM], 4 * STREAM)
        except zlib.error:
            continue
        if len(text) >= SHORTEST:
            left -= len(text)
            yield text
