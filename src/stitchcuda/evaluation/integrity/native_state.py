"""Static rules about what C++ and CUDA sources keep between calls: pointers, counts of calls, threads let go.

Works on the tokens that ``static_native`` reads, macros expanded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from stitchcuda.evaluation.integrity.native_tokens import Token
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.words import words

_ADDRESSES = frozenset({"uintptr_t", "intptr_t", "CUdeviceptr"})
_INTEGERS = words("int long unsigned size_t int64_t uint64_t uint32_t atomic int32_t short")
_ASSIGNS = frozenset({"=", "+=", "-=", "*=", "/=", "%="})
_ORDERS = frozenset({"<", ">", "<=", ">="})
_COPIES = words("memcpy cudaMemcpyAsync cudaMemcpy copy copy_n")
_REACH = 4000
"""Tokens in which a closing bracket is looked for."""


def behind(tokens: Sequence[Token], index: int) -> int:
    """The index behind the bracket that closes the one at ``index``."""
    pairs = {"(": ")", "{": "}"}
    opening = tokens[index].text if index < len(tokens) else ""
    depth = 0
    for at in range(index, min(len(tokens), index + _REACH)):
        if tokens[at].kind == "mark":
            depth += {opening: 1, pairs.get(opening, ""): -1}.get(tokens[at].text, 0)
            if depth == 0:
                return at + 1
    return len(tokens)


def detached(tokens: Sequence[Token], index: int, defined: Mapping[str, int]) -> bool:
    """Whether the ``std::thread`` at ``index`` is given an array of its function and let go: ``thread(f, y).detach()``,
    or by the name it is bound to. A worker that waits for orders is given none."""
    after = index + 1
    name = tokens[after].text if after < len(tokens) and tokens[after].kind == "name" else ""
    after += bool(name)
    if after >= len(tokens) or tokens[after].text not in ("(", "{"):
        return False
    end = behind(tokens, after)
    arrays = {each for at in defined.values() for each in _parameters(tokens, at, arrays=True)}
    if not arrays & {token.text for token in tokens[after:end] if token.kind == "name"}:
        return False
    places = [at + 1 for at, token in enumerate(tokens) if token.text == name] if name else [end]
    return any([token.text for token in tokens[at : at + 2]] == [".", "detach"] for at in places)


def state_hits(path: str, tokens: Sequence[Token], defined: Mapping[str, int]) -> Iterator[Hit]:
    """Static and global variables that hold a pointer which is compared, or a count which is asked. ``defined`` has
    the functions of the text with the index of each one's name."""
    pointers, counts = _variables(tokens)
    for index, token in enumerate(tokens[1:-1], 1):
        if token.text in ("==", "!=") and token.kind == "mark":
            left, right = tokens[index - 1], tokens[index + 1]
            names = {left.text, right.text}
            if names & pointers and not names & {"nullptr", "NULL", "0"}:
                what = f"{left.text} {token.text} {right.text} with a pointer kept from an earlier call"
                yield Hit("keyed_cache", path, token.line, what[:100])
    raised = {
        tokens[index + offset].text
        for index, token in enumerate(tokens[1:-1], 1)
        if token.text in ("++", "+=")
        for offset in ((-1, 1) if token.text == "++" else (-1,))
    }
    given = {name for index in defined.values() for name in _parameters(tokens, index)}
    stepped = raised - {
        token.text
        for token, step, by in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if step.text == "+=" and by.text != "1"
    }
    for index, token in enumerate(tokens):
        if token.text == "if" and token.kind == "name":
            end = behind(tokens, index + 1)
            asked = {part.text for part in tokens[index:end]} & counts & raised
            for name in sorted(asked):
                yield Hit("call_counter", path, token.line, f"{name} is counted and asked")
            asked &= stepped
            if asked and _threshold(tokens[index:end]) and (what := _changes(tokens, end, pointers, given)):
                yield Hit("counts_calls", path, token.line, f"{min(asked)} is counted, and then {what}"[:100])


def _threshold(condition: Sequence[Token]) -> bool:
    """Whether something is compared with a number that says "some calls later"."""
    ordered = any(part.kind == "mark" and part.text in _ORDERS for part in condition)
    return ordered and any(part.kind == "number" and part.text.isdigit() and int(part.text) > 1 for part in condition)


def _changes(tokens: Sequence[Token], start: int, pointers: set[str], given: set[str]) -> str:
    """What the branch that starts at ``start`` does with what the function was given; empty for nothing such."""
    if start >= len(tokens):
        return ""
    end = behind(tokens, start) if tokens[start].text == "{" else _statement_end(tokens, start)
    branch = tokens[start:end]
    for at, token in enumerate(branch[:-2]):
        before = branch[at - 1].text if at else "{"
        if token.kind != "name" or branch[at + 1].text not in _ASSIGNS or before not in ("{", "}", ";", ")"):
            continue
        if token.text in given:
            return f"{token.text} is changed"
        if token.text in pointers and branch[at + 2].text in given:
            return f"{token.text} keeps {branch[at + 2].text}"
    names = {token.text for token in branch if token.kind == "name"}
    return "something kept is copied and the call is over" if names & _COPIES and "return" in names else ""


def _statement_end(tokens: Sequence[Token], start: int) -> int:
    return next((at + 1 for at in range(start, len(tokens)) if tokens[at].text == ";"), len(tokens))


def _parameters(tokens: Sequence[Token], index: int, *, arrays: bool = False) -> set[str]:
    """Names of the parameters of the function whose name stands at ``index``; only those of pointers if asked."""
    inside = tokens[index + 2 : behind(tokens, index + 1)]
    found: set[str] = set()
    pointer = False
    for part, following in itertools.pairwise(inside):
        pointer = (pointer or part.text == "*") and part.text != ","
        if part.kind == "name" and following.text in (",", ")", "=", "[") and (pointer or not arrays):
            found.add(part.text)
    return found


def _variables(tokens: Sequence[Token]) -> tuple[set[str], set[str]]:
    """Static and global variables: those that hold addresses, and those that hold integers."""
    pointers: set[str] = set()
    counts: set[str] = set()
    depth, start, openings = 0, 0, []
    for index, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text == "{":
            lead = [part.text for part in tokens[start:index]]
            transparent = "namespace" in lead or (lead[:1] == ["extern"] and len(lead) == 2)
            openings.append(transparent)
            depth += not transparent
            start = index + 1
        elif token.text == "}":
            if openings:
                depth -= not openings.pop()
            start = index + 1
        elif token.text == ";":
            _variable(tokens[start:index], depth, pointers, counts)
            start = index + 1
    return pointers, counts


def _variable(statement: Sequence[Token], depth: int, pointers: set[str], counts: set[str]) -> None:
    said = [part.text for part in statement]
    kept = "static" in said[:4] or "thread_local" in said[:4] or (depth == 0 and "extern" not in said[:1])
    head = said[: said.index("=")] if "=" in said else said
    head = head[: head.index("[")] if "[" in head else head
    if not kept or "(" in head or len(head) < 2 or "using" in head or "typedef" in head:
        return
    if "*" in head or set(head) & _ADDRESSES:
        pointers.add(head[-1])
    elif set(head) & _INTEGERS:
        counts.add(head[-1])
