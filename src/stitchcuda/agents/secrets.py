"""Keys of model providers: where they come from, and keeping them out of everything that is written."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit, urlunsplit

PLACEHOLDER = "no-key-needed"
"""Sent to a server of the user's own when no key is set."""

KEY_VARIABLES: dict[str, tuple[str, ...]] = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}
"""Environment variables by provider, the first one set counts."""

_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$")
_SHORTEST = 8
"""Shorter values ('none', 'test') are no secrets, and words that ordinary text may hold."""


def key_for(provider: str) -> str | None:
    """The key of ``provider`` from the environment, or None."""
    for variable in KEY_VARIABLES[provider]:
        if value := os.environ.get(variable, "").strip():
            return value
    return None


def scrub(text: str) -> str:
    """``text`` with every secret value of the environment, and anything that looks like a bearer, masked."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _SECRET_NAME.search(name.upper()) and value in text:
            text = text.replace(value, f"[{name}]")
    return re.sub(r"(?i)\b(bearer\s+|sk-)[A-Za-z0-9_\-.]{8,}", r"\1[hidden]", text)


def public_url(url: str) -> str:
    """``url`` without user, password, query and fragment."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.port is not None:
        host = f"{host}:{parts.port}"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
