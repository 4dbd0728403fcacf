"""Symbol-aware tokens: what is written into the full-text index and what a query is turned into.

``cp.async.bulk.tensor``, ``cublasLtMatmulDescSetAttribute`` and ``__shfl_xor_sync`` stay whole and are found by
their parts too: dotted prefixes (``cp.async``), words between underscores, camel-case words. Prose words are
stemmed. Not for ranking, which is in ``knowledge.search``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from stitchcuda.knowledge.vocabulary import ALIASES, STOP, WORD_ALIASES

VERSION = 1
"""Part of the index's schema: a change of tokens asks for a new index."""

FTS_TOKENIZER = "ascii tokenchars '._:'"
"""The SQLite tokenizer that leaves our tokens alone: they are separated by spaces and hold nothing else."""

_TOKEN = re.compile(r"[A-Za-z_0-9]+(?:(?:\.|::|->)[A-Za-z_0-9]+)*|[^\W_]+")
_PART = re.compile(r"[A-Z]+[0-9]*(?![a-z])|[A-Z]?[a-z]+[0-9]*|[0-9]+[a-z]*")
_SEPARATOR = re.compile(r"\.|::|->")
_MAX_TOKEN = 120


@lru_cache(maxsize=1 << 17)
def stem(word: str) -> str:
    """A light English stem of a lower-case word: plural, -ed, -ing, -ly, -er/-ion families. Deterministic."""
    if len(word) < 4 or not word.isalpha():
        return word
    w = word
    if w.endswith("ies") and len(w) > 4:
        w = w[:-3] + "y"
    elif w.endswith(("sses", "shes", "ches", "xes", "zes")):
        w = w[:-2]
    elif w.endswith("s") and not w.endswith(("ss", "us", "is")):
        w = w[:-1]
    for suffix in ("izations", "ization", "isation", "izing", "ising", "ized", "ised", "ize", "ise"):
        if w.endswith(suffix) and len(w) - len(suffix) >= 4:
            return w[: -len(suffix)] + "iz"
    for suffix in ("ations", "ation", "ating", "ated", "ators", "ator", "ate"):
        if w.endswith(suffix) and len(w) - len(suffix) >= 3:
            return w[: -len(suffix)] + "at"
    if w.endswith("ction") and len(w) >= 9:
        return w[:-4]
    for suffix in ("ing", "ed"):
        if w.endswith(suffix) and len(w) - len(suffix) >= 3 and re.search("[aeiouy]", w[: -len(suffix)]):
            w = w[: -len(suffix)]
            if len(w) > 3 and w[-1] == w[-2] and w[-1] not in "lsz":
                w = w[:-1]
            break
    else:
        if w.endswith("ly") and len(w) > 5:
            w = w[:-2]
    if w.endswith("e") and len(w) > 3:
        w = w[:-1]
    if w.endswith("y") and len(w) > 3 and w[-2] not in "aeiou":
        w = w[:-1] + "i"
    return w


def is_symbol(raw: str) -> bool:
    """True for what only code writes so: an underscore, a dot or ``::`` within, inner capitals, or digits mixed in."""
    if "_" in raw or "." in raw or ":" in raw or "->" in raw:
        return any(c.isalpha() for c in raw)
    has_alpha = any(c.isalpha() for c in raw)
    if has_alpha and any(c.isdigit() for c in raw):
        return True
    return any(c.isupper() for c in raw[1:]) and any(c.islower() for c in raw)


@lru_cache(maxsize=1 << 17)
def _expand(raw: str) -> tuple[str, ...]:
    """All index tokens of one raw token, the whole first."""
    if len(raw) > _MAX_TOKEN:
        return ()
    lower = raw.lower()
    if lower in STOP:
        return ()
    if not is_symbol(raw):
        word = stem(lower)
        extra = (*ALIASES.get(lower, ()), *WORD_ALIASES.get(lower, ()))
        return (word, *(stem(e) for e in extra if stem(e) != word)) if extra else (word,)
    whole = lower.replace("->", ".")
    out: dict[str, None] = {whole: None}
    components = _SEPARATOR.split(raw)
    if len(components) > 1:
        for separator in list(_SEPARATOR.finditer(raw))[1:5]:
            out[lower[: separator.start()]] = None
        if "::" in raw:
            out[components[-1].lower()] = None
    for component in components:
        stripped = component.strip("_")
        if not stripped:
            continue
        if "_" in stripped or component != stripped:
            out[stripped.lower()] = None
            out.update((word.lower(), None) for word in stripped.split("_") if is_symbol(word))
        parts = _PART.findall(stripped)
        if len(parts) > 1 and parts[0].lower() == "cu":
            out[(parts[0] + parts[1]).lower()] = None
        for part in parts:
            low = part.lower()
            if len(low) == 1 and len(parts) > 1:
                continue
            out[stem(low)] = None
            for extra_word in ALIASES.get(low, ()):
                out[stem(extra_word)] = None
    return tuple(out)


def index_tokens(text: str) -> list[str]:
    """Tokens of ``text`` as they are stored, in order, wholes followed by their parts."""
    out: list[str] = []
    for raw in _TOKEN.findall(text):
        out.extend(_expand(raw))
    return out


def query_tokens(text: str) -> dict[str, float]:
    """Tokens of a query with weights: 1 for words and whole symbols, less for a symbol's parts and for aliases."""
    weights: dict[str, float] = {}
    for raw in _TOKEN.findall(text):
        expanded = _expand(raw)
        for position, token in enumerate(expanded):
            weight = 1.0 if position == 0 else (0.35 if is_symbol(raw) else 0.4)
            weights[token] = max(weights.get(token, 0.0), weight)
    return weights


def query_symbols(text: str) -> list[str]:
    """The symbols that a query names, lower case, as they are stored in the symbol table."""
    out: dict[str, None] = {}
    for raw in _TOKEN.findall(text):
        if is_symbol(raw):
            for form in symbol_forms(raw):
                out[form] = None
    return list(out)


def symbol_forms(symbol: str) -> list[str]:
    """Under which names a declared symbol is looked up: whole, and the last component of a qualified name."""
    lower = symbol.lower().replace("->", ".")
    forms = [lower]
    if "::" in lower:
        forms.append(lower.rsplit("::", 1)[1])
    return [f for f in forms if f]
