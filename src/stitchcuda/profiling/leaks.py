"""Looks for secrets in what a profiler wrote, before it is kept: reports record environments and command lines whole.

Profilers are started with an environment without keys (``sandbox.scrubbed_environment``); this is the second look.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Mapping

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
    found: set[str] = set()
    texts = [data, *_streams(data)]
    for name, value in secrets_of(environment).items():
        forms = [value.encode(), value.encode("utf-16-le"), base64.b64encode(value.encode()).rstrip(b"=")]
        if any(form in text for text in texts for form in forms):
            found.add(name)
    for what, pattern in PATTERNS.items():
        if any(pattern.search(text) for text in texts):
            found.add(what)
    return sorted(found)


def _streams(data: bytes) -> list[bytes]:
    """What is compressed inside."""
    found = []
    if data[:2] == b"\x1f\x8b":
        with contextlib.suppress(OSError, EOFError, zlib.error):
            found.append(gzip.decompress(data))
    for count, match in enumerate(_ZLIB.finditer(data)):
        if count >= MOST_STREAMS:
            break
        opened = zlib.decompressobj()
        try:
            text = opened.decompress(data[match.start() :], 64 << 20)
        except zlib.error:
            continue
        if len(text) > 16:
            found.append(text)
    return found
