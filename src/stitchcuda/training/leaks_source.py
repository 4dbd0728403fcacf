"""A task's source in a form that survives rewording: comments, docstrings, layout, names, and the order of statements
and definitions that do not depend on each other are taken out. Text only; graphs are in ``leaks_graph``.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stitchcuda import syntax

_INTERFACE = frozenset({"get_inputs", "get_init_inputs", "get_input_cases", "forward", "__init__", "self", "super"})
_SETTINGS = frozenset({"MODE", "RESIDENCE", "PRECISION"})
_BUILTINS = frozenset(dir(builtins))
_TERMINAL = (ast.Return, ast.Raise, ast.Break, ast.Continue)


@dataclass(frozen=True)
class SourceMarks:
    """SHA-256 digests of a source's canonical forms."""

    whole: str
    """Everything that is computed, sizes included."""
    shapeless: str
    """The model's classes and functions with every number and string left out: equal at other sizes."""


def source_marks(source: str) -> SourceMarks:
    """The marks of a task's source. Raises SyntaxError for what is no Python, as ``ast.parse`` does."""
    tree = syntax.parse(source)
    body = [node for node in tree.body if _counts(node)]
    model = [n for n in body if not (isinstance(n, ast.FunctionDef) and n.name in _INTERFACE) and _defines(n)]
    return SourceMarks(
        whole=_digest(_Canonical(tree, constants=True).text(body)),
        shapeless=_digest(_Canonical(tree, constants=False).text(model)),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _defines(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef | ast.FunctionDef)


def _counts(node: ast.stmt) -> bool:
    """Whether a statement of the module says anything about what is computed."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return False
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return False
    return not (isinstance(node, ast.If) and "__name__" in ast.dump(node.test))


class _Canonical:
    """Prints a tree with names by first appearance, after independent statements are put in an order of their own."""

    def __init__(self, tree: ast.Module, *, constants: bool) -> None:
        self.constants = constants
        self.imports = _imports(tree)
        self.local = {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef | ast.FunctionDef)}
        self.members = {
            part.attr
            for part in ast.walk(tree)
            if isinstance(part, ast.Attribute) and _of_self(part) and isinstance(part.ctx, ast.Store)
        } | {
            member.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for member in node.body
            if isinstance(member, ast.FunctionDef)
        }
        self.names: dict[str, str] | None = None
        """Of the module; None while names are left out."""
        self.own: dict[str, str] = {}
        """Of members of classes."""
        self.scopes: list[tuple[frozenset[str], dict[str, str]]] = []
        """Names that the functions around bind, and how they are printed: a function's names are its own."""
        self.memo: dict[int, str] = {}

    def text(self, body: Sequence[ast.stmt]) -> str:
        """The canonical text of a module's body."""
        ordered = self._sorted(list(body))
        self.names = {}
        return "\n".join(self._print(node) for node in ordered)

    def _sorted(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Definitions and assignments of a module in an order of their own, each with its inside put in order."""
        for node in body:
            self._arrange(node)
        return sorted(body, key=self._anonymous)

    def _arrange(self, node: ast.AST) -> None:
        if isinstance(node, ast.ClassDef):
            node.body = [part for part in node.body if _counts(part) and not _idle(part)] or [ast.Pass()]
            for part in node.body:
                self._arrange(part)
            node.body.sort(key=self._anonymous)
            return
        if isinstance(node, ast.FunctionDef):
            node.body = _inlined(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                kept = [part for part in block if _counts(part)] or [ast.Pass()]
                for part in kept:
                    self._arrange(part)
                setattr(node, name, self._by_dependence(kept))

    def _by_dependence(self, block: list[ast.stmt]) -> list[ast.stmt]:
        """Statements in the order of their dependences, and among those that are ready by what they look like."""
        uses = [_touched(node) for node in block]
        left = list(range(len(block)))
        order: list[ast.stmt] = []
        while left:
            ready = [
                i
                for at, i in enumerate(left)
                if not any(_conflict(uses[j], uses[i], block[j], block[i]) for j in left[:at])
            ]
            chosen = min(ready, key=lambda i: (self._anonymous(block[i]), i))
            left.remove(chosen)
            order.append(block[chosen])
        return order

    def _anonymous(self, node: ast.AST) -> str:
        """What a node looks like with every local name left out."""
        if id(node) not in self.memo:
            names, self.names = self.names, None
            self.memo[id(node)] = self._print(node)
            self.names = names
        return self.memo[id(node)]

    def _name(self, name: str) -> str:
        if name in self.imports:
            return self.imports[name]
        if name in _INTERFACE or name in _SETTINGS or (name in _BUILTINS and name not in self.local):
            return name
        if self.names is None:
            return "_"
        for bound, printed in reversed(self.scopes):
            if name in bound:
                return printed.setdefault(name, f"a{len(printed)}")
        return self.names.setdefault(name, f"v{len(self.names)}")

    def _member(self, name: str) -> str:
        if name in _INTERFACE:
            return name
        return "_" if self.names is None else self.own.setdefault(name, f"m{len(self.own)}")

    def _print(self, node: object) -> str:
        """Fields that are empty are left out, so that versions of Python agree."""
        match node:
            case ast.Name():
                return self._name(node.id)
            case ast.arg():
                return self._name(node.arg)
            case ast.Constant():
                return self._constant(node.value)
            case ast.Attribute():
                whole = _dotted(node)
                root = whole.partition(".")[0]
                if root in self.imports:
                    return self.imports[root] + whole[len(root) :]
                own = _of_self(node) and node.attr in self.members
                return f"{self._print(node.value)}.{self._member(node.attr) if own else node.attr}"
            case ast.Call(func=ast.Name(id="super")):
                return "super()"
            case ast.Call():
                known = isinstance(node.func, ast.Name) and node.func.id in self.local
                words = [
                    f"{self._name(k.arg) if known and k.arg else k.arg}={self._print(k.value)}" for k in node.keywords
                ]
                values = [self._print(value) for value in node.args]
                return f"{self._print(node.func)}({','.join(values + sorted(words))})"
            case ast.ClassDef():
                inside = [
                    self._function(p, method=True) if isinstance(p, ast.FunctionDef) else self._print(p)
                    for p in node.body
                ]
                bases = ",".join(map(self._print, node.bases))
                return f"class {self._name(node.name)}[{bases}]{{{';'.join(inside)}}}"
            case ast.FunctionDef():
                return self._function(node, method=False)
            case ast.AnnAssign():
                value = self._print(node.value) if node.value is not None else ""
                return f"Assign({self._print(node.target)},{value})"
            case ast.Assign() if len(node.targets) == 1:
                return f"Assign({self._print(node.targets[0])},{self._print(node.value)})"
            case ast.AST():
                fields = [self._print(value) for value in vars_of(node)]
                return f"{type(node).__name__}({','.join(part for part in fields if part)})"
            case list():
                return "[" + ",".join(map(self._print, node)) + "]" if node else ""
            case None:
                return ""
            case _:
                return str(node)

    def _function(self, node: ast.FunctionDef, *, method: bool) -> str:
        name = self._member(node.name) if method else self._name(node.name)
        self.scopes.append((_bound(node), {}))
        text = f"def {name}({self._print(node.args)}){{{';'.join(map(self._print, node.body))}}}"
        self.scopes.pop()
        return text

    def _constant(self, value: object) -> str:
        if self.constants or value is None or isinstance(value, bool):
            return repr(float(value)) if isinstance(value, int) and not isinstance(value, bool) else repr(value)
        return "#"


def _idle(node: ast.stmt) -> bool:
    """A constructor that does nothing but call the base class's."""
    if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
        return False
    body = [part for part in node.body if _counts(part) and not isinstance(part, ast.Pass)]
    return all(_initialises(part) for part in body)


def _inlined(node: ast.FunctionDef) -> list[ast.stmt]:
    """The function's body with variables that are set and read once put where they are read."""
    stores: Counter[str] = Counter(part.arg for part in ast.walk(node) if isinstance(part, ast.arg))
    loads: Counter[str] = Counter()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            (loads if isinstance(part.ctx, ast.Load) else stores)[part.id] += 1
    body = list(node.body)
    for statement in node.body:
        if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
            continue
        target = statement.targets[0]
        if not isinstance(target, ast.Name) or stores[target.id] != 1 or loads[target.id] != 1:
            continue
        if any(stores[part.id] > 1 for part in ast.walk(statement.value) if isinstance(part, ast.Name)):
            continue  # what it is made of changes in between, perhaps
        rest = [part for part in body[body.index(statement) + 1 :] if _reads(part, target.id)]
        if len(rest) == 1 and not isinstance(
            rest[0], ast.For | ast.While | ast.If | ast.With | ast.FunctionDef | ast.Try
        ):
            body.remove(statement)
            _Replace(target.id, statement.value).visit(rest[0])
    return body


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


class _Replace(ast.NodeTransformer):
    """Puts a value where a name is read."""

    def __init__(self, name: str, value: ast.expr) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The value instead of the name."""
        return self.value if node.id == self.name and isinstance(node.ctx, ast.Load) else node


def _bound(node: ast.FunctionDef) -> frozenset[str]:
    """Names that a function binds: its arguments and what it assigns."""
    parts = list(ast.walk(node))
    names = {part.arg for part in parts if isinstance(part, ast.arg)} - {"self"}
    return frozenset(names | {p.id for p in parts if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)})


def vars_of(node: ast.AST) -> Iterator[object]:
    """Values of a node's fields that say what it computes."""
    for name in node._fields:
        if name not in ("ctx", "type_comment", "annotation", "returns", "kind", "type_params"):
            yield getattr(node, name, None)


def _imports(tree: ast.Module) -> dict[str, str]:
    """What imported names stand for, in full."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
    return found


def _dotted(node: ast.Attribute) -> str:
    """``a.b.c`` for names all the way down, else nothing."""
    parts = [node.attr]
    below: ast.expr = node.value
    while isinstance(below, ast.Attribute):
        parts.append(below.attr)
        below = below.value
    return ".".join([below.id, *reversed(parts)]) if isinstance(below, ast.Name) else ""


def _of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _touched(node: ast.stmt) -> tuple[frozenset[str], frozenset[str]]:
    """Names and attributes of self that a statement reads, and those it writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            (writes if isinstance(part.ctx, ast.Store | ast.Del) else reads).add(part.id)
        elif isinstance(part, ast.Attribute) and _of_self(part):
            (writes if isinstance(part.ctx, ast.Store | ast.Del) else reads).add(f"self.{part.attr}")
        if isinstance(part, ast.AugAssign):
            reads |= {n.id for n in ast.walk(part.target) if isinstance(n, ast.Name)}
        if isinstance(part, ast.Subscript | ast.Attribute) and isinstance(part.ctx, ast.Store) and not _of_self(part):
            writes |= {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            base = part.func.value
            if isinstance(base, ast.Name) and (part.func.attr.endswith("_") or part.func.attr in _CHANGES):
                writes.add(base.id)
    reads.discard("self")
    return frozenset(reads), frozenset(writes)


_CHANGES = frozenset({"append", "extend", "insert", "update", "add_module", "pop"})


def _conflict(
    first: tuple[frozenset[str], frozenset[str]],
    second: tuple[frozenset[str], frozenset[str]],
    one: ast.stmt,
    two: ast.stmt,
) -> bool:
    """Whether two statements must stay in their order."""
    if isinstance(one, _TERMINAL) or isinstance(two, _TERMINAL):
        return True
    if _initialises(one) or _initialises(two):
        return True
    return bool(first[1] & (second[0] | second[1]) or first[0] & second[1])


def _initialises(node: ast.stmt) -> bool:
    """A call of the base class's constructor, which stays first."""
    return isinstance(node, ast.Expr) and "super" in ast.dump(node.value)
