"""What a C++ statement declares, read from its text: names of functions, types and variables.

Used by ``readers.header``, which finds the statements.
"""

from __future__ import annotations

import re

from stitchcuda.knowledge.vocabulary import words

TYPE = re.compile(r"\b(namespace|class|struct|union|enum(?:\s+(?:class|struct))?)\b")
NAME = re.compile(r"[A-Za-z_]\w*")
_NOT_NAMES = words(
    "if for while switch return sizeof alignas alignof decltype noexcept requires throw defined static_assert "
    "__declspec __attribute__ __launch_bounds__ __align__ __cluster_dims__ explicit enable_if_t _CCCL_REQUIRES "
    "template typename operator const void int float"
)
_FUNCTION = re.compile(r"(?:(?P<operator>operator\s*(?:\(\)|[^\s(]+))|(?P<name>~?[A-Za-z_]\w*))\s*\(")
_MEMBER_INIT = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:)[^;]*(?<!\))[\w>]$")
"""The end of a constructor's head where a member's braces, not the body's, come next."""


def template_free(statement: str) -> str:
    """``statement`` without its leading ``template <...>`` clauses."""
    text = statement.lstrip()
    while text.startswith("template"):
        depth, i = 0, text.find("<")
        if i < 0:
            return text
        while i < len(text):
            depth += {"<": 1, ">": -1}.get(text[i], 0)
            i += 1
            if depth == 0:
                break
        text = text[i:].lstrip()
    return text


def function_name(statement: str) -> str:
    """The name that a function declaration declares, or nothing when there is none."""
    text = template_free(statement)
    for match in _FUNCTION.finditer(text):
        if match.group("operator"):
            return re.sub(r"\s+", "", match.group("operator"))
        name = match.group("name")
        if name not in _NOT_NAMES and not (name.isupper() and match.start() == 0):
            return name
    return ""


def type_name(head: str, keyword_end: int) -> str:
    """The declared name after ``class``/``struct``/``enum``, past attributes and macros."""
    rest = re.split(r"[:{]|\bfinal\b", re.sub(r"\((?:[^()]|\([^()]*\))*\)|\[\[.*?\]\]", " ", head[keyword_end:]))[0]
    names = NAME.findall(re.sub(r"<.*", "", rest, flags=re.DOTALL))
    return names[-1] if names else ""


def is_initializer(statement: str) -> bool:
    """True when a brace after ``statement`` opens a value (``T{}``, ``= {``, ``: member{``), not a body or a scope."""
    text = statement.rstrip()
    if text.count("(") > text.count(")") or text.endswith(("=", "return")):
        return True
    if re.match(r"\s*(?:template\s*<[^;]*>\s*)?using\b", text):
        return True
    if text and "(" not in text and not TYPE.search(text) and not text.lstrip().startswith("extern"):
        return True
    return bool(_MEMBER_INIT.search(text))


def declared_name(text: str) -> str:
    """The name that a statement at declaration scope declares: an alias, a function, a variable; or nothing."""
    if text.startswith("using ") and "=" in text:
        return text[6:].split("=")[0].strip()
    if text.startswith("typedef "):
        pointer = re.search(r"\(\s*\w*\s*\*\s*(\w+)\s*\)", text)
        names = NAME.findall(re.sub(r"\[[^\]]*\]", "", text))
        return str(pointer.group(1)) if pointer else names[-1]
    if "(" in text:
        return function_name(text)
    plain = re.sub(r"=.*|\[[^\]]*\]|:\s*\d+\s*$", "", template_free(text), flags=re.DOTALL)
    names = NAME.findall(plain)
    return names[-1] if names else ""
