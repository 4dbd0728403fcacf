"""Text to tokens and back: byte-level byte-pair encoding as the model's file defines it, for ASCII text (all that this
experiment writes). Also a tokenizer of single characters for tests without a model.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from typing import Protocol

_WORDS = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


class Tokenizer(Protocol):
    """What training needs of one."""

    end: int
    size: int

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without the end token."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        ...


class BytePairs:
    """The model's own. ``vocabulary`` in order, ``merges`` as pairs with a space between them."""

    def __init__(self, vocabulary: Sequence[str], merges: Sequence[str], end: int) -> None:
        self.vocabulary, self.end, self.size = list(vocabulary), end, len(vocabulary)
        self.places = {text: at for at, text in enumerate(vocabulary)}
        self.ranks = {tuple(pair.split(" ")): at for at, pair in enumerate(merges)}
        self.letters = _byte_letters()
        self.bytes = {letter: at for at, letter in enumerate(self.letters)}
        self.word = functools.lru_cache(maxsize=1 << 16)(self._word)

    def encode(self, text: str) -> list[int]:
        """Digits stand alone, as this model has them. Raises ValueError for text that is not ASCII."""
        if not text.isascii():
            raise ValueError("only ASCII text is encoded here")
        found: list[int] = []
        # Digits are split off first, each by itself, and only then words: a space before a digit is a token of its own.
        for part in re.split(r"([0-9])", text):
            if len(part) == 1 and part.isdigit():
                found += self.word(part)
            else:
                for match in _WORDS.finditer(part):
                    found += self.word(match[0])
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Special tokens are left out; what is no UTF-8 is replaced."""
        raw = bytearray()
        for token in tokens:
            text = self.vocabulary[token]
            if all(letter in self.bytes for letter in text):
                raw += bytes(self.bytes[letter] for letter in text)
        return raw.decode("utf-8", "replace")

    def _word(self, word: str) -> tuple[int, ...]:
        parts = [self.letters[byte] for byte in word.encode()]
        while len(parts) > 1:
            ranked = [(self.ranks.get(pair, 1 << 30), at) for at, pair in enumerate(itertools.pairwise(parts))]
            rank, at = min(ranked)
            if rank == 1 << 30:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return tuple(self.places[part] for part in parts)


class Characters:
    """One token for each character of ASCII; token 0 ends."""

    end, size = 0, 128

    def encode(self, text: str) -> list[int]:
        """Their numbers."""
        return [ord(letter) for letter in text if 0 < ord(letter) < 128]

    def decode(self, tokens: Sequence[int]) -> str:
        """Their letters."""
        return "".join(chr(token) for token in tokens if token)


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in byte-level vocabularies."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters, extra = [], 0
    for byte in range(256):
        letters.append(chr(byte) if byte in plain else chr(256 + extra))
        extra += byte not in plain
    return letters
