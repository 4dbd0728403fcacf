"""Word lists as readable text: the tables of the static and build rules are written with these."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def by_name(**names: str) -> dict[str, str]:
    """From ``rule="name name ..."`` to a rule for each name."""
    return {name: rule for rule, text in names.items() for name in text.split()}
