"""The ways through ``ModelNew.forward``, and where what each of them returns comes from: this call's inputs, what an
earlier call left, a table, memory that nothing wrote, or how often it was called.

A small interpreter that runs nothing: it follows branches, takes every loop's body once, and where it does not know
what a call does, supposes that the call uses and fills everything that it is given. Rules are in ``python_answers``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from stitchcuda.evaluation.integrity.python_memory import containers, counters
from stitchcuda.evaluation.integrity.python_view import (
    ALLOCATORS,
    FACTS,
    UNWRITTEN,
    Function,
    View,
    arguments,
    base,
    called_name,
    kept,
    parameters,
    place,
)
from stitchcuda.evaluation.integrity.python_ways import (
    BEAT,
    CHANCE,
    CHOSEN,
    CLOCK,
    CONSTANT,
    COUNT,
    EARLIER,
    FACT,
    FRESH,
    HIDDEN,
    INPUT,
    NARROW,
    NOTHING,
    Answer,
    Sources,
    Way,
    bounded,
    fresh,
    from_earlier,
)
from stitchcuda.evaluation.integrity.trees import walk
from stitchcuda.evaluation.integrity.words import words

_PURE = words(
    """
    abs all any append bool dict dim discard element_size enumerate extend float format frozenset get getattr hasattr
    hash id insert int is_contiguous isinstance items keys len list map max min next numel ord print range repr
    reversed round set setdefault size sorted str stride sum tuple type values zip data_ptr clone contiguous cpu cuda
    detach double expand flatten half bfloat16 item numpy permute reshape split squeeze t to tolist transpose unsqueeze
    view view_as
    """
)
"""Calls that fill nothing they are given."""
_STORES = words("append appendleft extend insert setdefault update")
_CLOCKS = words("time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time clock_gettime")
_OTHERS = ("torch.ops.", "torch._C.", "torch.classes.")
"""Under these lie operators that somebody else brought."""
_NARROWING = words("half bfloat16")
_NARROW_TYPES = frozenset({"torch.float16", "torch.bfloat16", "torch.half"})
_STATIC = (
    "torch.",
    "math.",
    "operator.",
    "numpy.",
    "functools.",
    "itertools.",
    "builtins.",
    "time.",
    "random.",
    "signal.",
)


class Paths:
    """All ways through one function."""

    def __init__(self, view: View, function: Function) -> None:
        self.view = view
        self.answers: list[Answer] = []
        self.filled: dict[str, list[ast.AST]] = {}
        """Names that outlive a call and get data of its inputs, with the expressions that they get."""
        self.cut: list[ast.AST] = []
        """Where a count of calls decides how much of an input is read."""
        self.compares = False
        """Whether whole inputs are compared with what was kept."""
        self.given = parameters(function)
        outer = {n for each in walk(function) if isinstance(each, (ast.Global, ast.Nonlocal)) for n in each.names}
        stored = {node.id for node in walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        self.local = (stored | self.given | {"self", "cls"}) - outer
        self.counters = counters(function, self._outlives)
        self.containers = containers(self.view.tree)
        self._block(function.body, [Way({name: frozenset({INPUT}) for name in self.given})])

    def _outlives(self, name: str | None) -> bool:
        """Whether a place is not the call's own: an attribute, an item of one, or a variable of the file."""
        if name is None or kept(name):
            return name is not None
        return base(name) not in self.local and bool(self.view.names.values(base(name)))

    # Statements.

    def _block(self, body: Iterable[ast.stmt], ways: list[Way]) -> list[Way]:
        for statement in body:
            if not ways:
                break
            ways = bounded([after for way in ways for after in self._statement(statement, way)])
        return ways

    def _statement(self, node: ast.stmt, way: Way) -> list[Way]:
        if isinstance(node, ast.Return):
            self._returns(node, node.value, way)
            return []
        if isinstance(node, (ast.Raise, ast.Continue, ast.Break)):
            return [] if isinstance(node, ast.Raise) else [way]
        if isinstance(node, ast.If):
            way = self._effects(node.test, way)
            way = replace(way, asked=way.asked | self._sources(node.test, way))
            return self._block(node.body, [way]) + self._block(node.orelse, [way])
        if isinstance(node, (ast.For, ast.AsyncFor)):
            way = self._effects(node.iter, way)
            ways = self._block(node.body, [self._bind(node.target, self._sources(node.iter, way), node.iter, way)])
            return self._block(node.orelse, self._looped(ways))
        if isinstance(node, ast.While):
            way = self._effects(node.test, way)
            way = replace(way, asked=way.asked | self._sources(node.test, way))
            return self._looped(self._block(node.body, [way]))
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                way = self._effects(item.context_expr, way)
            return self._block(node.body, [way])
        if isinstance(node, ast.Try):
            return self._tried(node, way)
        if isinstance(node, ast.Match):
            way = self._effects(node.subject, way)
            return [after for case in node.cases for after in self._block(case.body, [way])]
        return self._simple(node, way)

    def _looped(self, ways: list[Way]) -> list[Way]:
        """After a loop: what one turn of it collects is there whichever way the last one went."""
        collected: dict[str, Sources] = {}
        for way in ways:
            for name, held in way.names.items():
                if INPUT in held and base(name) in self.containers:
                    collected[name] = collected.get(name, NOTHING) | held
        return [
            replace(way, names=way.names | {n: held | way.names.get(n, NOTHING) for n, held in collected.items()})
            for way in ways
        ]

    def _tried(self, node: ast.Try, way: Way) -> list[Way]:
        after = self._block(node.body, [way])
        # A handler starts after any part of the body: what the body may have filled counts as filled.
        started = after or [self._effects(node, way)]
        ways = self._block(node.orelse, after)
        for handler in node.handlers:
            ways += self._block(handler.body, started)
        return self._block(node.finalbody, ways)

    def _simple(self, node: ast.stmt, way: Way) -> list[Way]:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node.value, ast.IfExp):
                return self._either(node.value, way, targets)
            way = self._effects(node.value, way)
            for target in targets:
                way = self._bind(target, self._sources(node.value, way), node.value, way)
            return [way]
        if isinstance(node, ast.AugAssign):
            way = self._effects(node.value, way)
            way = replace(way, read=way.read or INPUT in self._sources(node.target, way))
            return [self._add(node.target, self._sources(node.value, way), node.value, way)]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return [self._closure(node, way)]
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and self._unknown(call) and INPUT in self._all(call, way):
            way = replace(way, stirred=True)  # nobody takes its result: it fills something
        return [self._effects(node, way)]

    def _closure(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, way: Way) -> Way:
        """A function inside uses, and may fill, all that it mentions."""
        mentioned = [self._name(part, way) for part in walk(node) if isinstance(part, (ast.Name, ast.Attribute))]
        held = frozenset(token for each in mentioned for token in each)
        names = way.names | {node.name: held}
        return replace(way, names=names, written=way.written | fresh(held), read=way.read or INPUT in held)

    def _either(self, value: ast.IfExp, way: Way, targets: list[ast.expr]) -> list[Way]:
        """``y = a if t else b`` is two ways."""
        way = self._effects(value, way)
        asked = self._sources(value.test, way)
        way = replace(way, asked=way.asked | asked)
        ways = []
        for part in (value.body, value.orelse):
            each = way
            for target in targets:
                each = self._bind(target, self._sources(part, way) | (asked & HIDDEN), part, each)
            ways.append(each)
        return ways

    def _returns(self, node: ast.Return, value: ast.expr | None, way: Way) -> None:
        if value is None:
            return
        if isinstance(value, ast.IfExp):
            way = self._effects(value.test, way)
            way = replace(way, asked=way.asked | self._sources(value.test, way))
            self._returns(node, value.body, way)
            self._returns(node, value.orelse, way)
            return
        way = self._effects(value, way)
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
        outputs = [self._sources(part, way) for part in parts]
        self.answers.append(Answer(node, tuple(self._seen(each, way) for each in outputs), way.asked, way.read))

    def _seen(self, sources: Sources, way: Way) -> Sources:
        """Memory that something may have written counts as made of inputs."""
        written = sources & way.written
        stirred = way.stirred and from_earlier(sources)
        return (sources - written) | {INPUT} if written or stirred else sources

    # Names.

    def _name(self, node: ast.AST, way: Way) -> Sources:
        name = place(node)
        if name is None:
            return NOTHING
        if name in way.names:
            return way.names[name]
        if not self._outlives(name):
            return NOTHING
        return frozenset({EARLIER + name})

    def _bind(self, target: ast.expr, held: Sources, value: ast.AST, way: Way) -> Way:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            for number, each in enumerate(target.elts):
                fitting = len(parts) == len(target.elts)
                way = self._bind(
                    each,
                    self._sources(parts[number], way) if fitting else held,
                    parts[number] if fitting else value,
                    way,
                )
            return way
        if isinstance(target, ast.Starred):
            return self._bind(target.value, held, value, way)
        if isinstance(target, ast.Subscript):
            return self._add(target.value, held, value, way)
        name = place(target)
        if name is None:
            return self._add(target, held, value, way)
        self._fills(name, held, value)
        return self._held(name, held, way)

    def _add(self, target: ast.expr, held: Sources, value: ast.AST | None, way: Way) -> Way:
        """What is under a name gets something more; memory under it is written. ``value`` is None where that is not
        known, only possible."""
        before, name = self._sources(target, way), place(target)
        if name is None or base(name) not in self.containers:
            way = replace(way, written=way.written | fresh(before))
        if name is None and isinstance(target, (ast.Attribute, ast.Subscript)):
            return self._add(target.value, held, value, way)
        if name is None and isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            return self._add(target.func.value, held, value, way)
        if name is None or name in self.counters:
            return way
        if isinstance(target, ast.Subscript):
            return self._add(target.value, held, value, way)
        if value is not None:
            self._fills(name, held, value)
        return self._held(name, before | held, way)

    def _held(self, name: str, held: Sources, way: Way) -> Way:
        """A name holds something; what is kept for later, somebody else may write."""
        lent = way.lent | fresh(held) if self._outlives(name) else way.lent
        return replace(way, names=way.names | {name: held}, lent=lent)

    def _fills(self, name: str, held: Sources, value: ast.AST) -> None:
        if INPUT in held and self._outlives(name):
            self.filled.setdefault(base(name), []).append(value)

    # Expressions.

    def _sources(self, node: ast.AST, way: Way) -> Sources:
        """What the value of an expression is made of."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._read(node, way)
        if isinstance(node, ast.Call):
            return self._called(node, way)
        if isinstance(node, ast.Subscript):
            return self._item(node.value, [node.slice], way, node)
        if isinstance(node, ast.Compare):
            held = self._all(node, way)
            return held | {COUNT} if self._counts(node) else held
        if isinstance(node, ast.BinOp):
            held = self._all(node, way)
            return held | {BEAT} if isinstance(node.op, ast.Mod) and self._counts(node) else held
        if isinstance(node, ast.Constant):
            return frozenset({CONSTANT})
        return self._all(node, way)

    def _counts(self, node: ast.AST) -> bool:
        return any(place(part) in self.counters for part in walk(node) if isinstance(part, (ast.Name, ast.Attribute)))

    def _all(self, node: ast.AST, way: Way) -> Sources:
        found: set[str] = set()
        for part in ast.iter_child_nodes(node):
            found |= self._sources(part, way)
        return frozenset(found)

    def _read(self, node: ast.Name | ast.Attribute, way: Way) -> Sources:
        if (name := place(node)) is not None and (name in way.names or self._outlives(name)):
            return self._name(node, way)
        if isinstance(node, ast.Attribute):
            if self.view.names.resolve(node) & _NARROW_TYPES:
                return frozenset({NARROW})
            held = self._sources(node.value, way)
            return (held - {INPUT}) | {FACT} if node.attr in FACTS and INPUT in held else held
        return NOTHING

    def _item(self, owner: ast.expr, keys: list[ast.expr], way: Way, node: ast.AST) -> Sources:
        """An item of something: of a table, the key says which one and not what it is."""
        held = self._sources(owner, way)
        picked = frozenset(token for key in keys for token in self._sources(key, way))
        name = place(owner)
        if name is not None and base(name) in self.containers and self._outlives(name):
            chosen = INPUT in picked and EARLIER + name in held
            return held | (picked & {FACT}) | ({CHOSEN + name} if chosen else set())
        # A slice says how much is read; an index, which slot.
        sliced = any(isinstance(part, ast.Slice) for key in keys for part in walk(key))
        if INPUT in held and picked & {COUNT} and sliced:
            self.cut.append(node)
        return held | (picked - {COUNT, BEAT})

    def _called(self, node: ast.Call, way: Way) -> Sources:
        name, paths = called_name(node), self.view.names.resolve(node.func)
        if name in ALLOCATORS:
            if name in UNWRITTEN:
                return frozenset({f"{FRESH}{node.lineno}:{node.col_offset}"})
            values = node.args[1:] if name.startswith(("full", "new_full")) else []
            values += [each.value for each in node.keywords if each.arg == "fill_value"]
            return frozenset({CONSTANT}).union(*(self._sources(each, way) - {FACT} for each in values))
        if any(path.startswith("time.") for path in paths) and name in _CLOCKS:
            return frozenset({CLOCK})
        if any(path.startswith("random.") for path in paths):
            return frozenset({CHANCE})
        parts = arguments(node)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name == "get" and owner is not None and node.args and self._outlives(place(owner)):
            default = self._sources(node.args[1], way) if len(node.args) > 1 else NOTHING
            return self._item(owner, [node.args[0]], way, node) | default
        found: set[str] = set()
        for part, asked_for in zip(parts, self._asked_for(node), strict=True):
            held = self._sources(part, way)
            found |= held if asked_for or INPUT not in held else (held - {INPUT}) | {FACT}
        if owner is not None and not self._static(node):
            found |= self._sources(owner, way)
        elif owner is None:
            found |= self._sources(node.func, way)
        if (name in FACTS or name in ("len", "isinstance", "type")) and INPUT in found:
            asked = owner if owner is not None else parts[0] if parts else node
            found = (found - {INPUT}) | (set() if self._outlives(place(asked)) else {FACT})
        if name in _NARROWING and not node.args:
            found.add(NARROW)
        if self._own(node) and any(INPUT in held for place_, held in way.names.items() if self._outlives(place_)):
            found.add(INPUT)
        return frozenset(found)

    def _asked_for(self, node: ast.Call) -> list[bool]:
        """For each argument, whether its data may be used: a function of the file may ask for its shape alone."""
        name, parts = called_name(node), arguments(node)
        callee = self.view.method("ModelNew", name) if self._own(node) else None
        if isinstance(node.func, ast.Name):
            callee = self.view.functions.get(name)
        if callee is None or node.keywords or callee.args.vararg:
            return [True] * len(parts)
        names = [each.arg for each in callee.args.args if each.arg not in ("self", "cls")]
        known = {
            id(part.value): part.attr in FACTS
            for part in walk(callee)
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
        }
        used = {part.id for part in walk(callee) if isinstance(part, ast.Name) and not known.get(id(part), False)}
        return [number >= len(names) or names[number] in used for number in range(len(parts))]

    def _own(self, node: ast.Call) -> bool:
        """A call of a method that the file defines: it may use what lies under the object's own names."""
        func = node.func
        if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name) or func.value.id != "self":
            return False
        return self.view.method("ModelNew", func.attr) is not None

    def _effects(self, node: ast.AST, way: Way) -> Way:
        """What the calls in an expression fill, and whether it looks at inputs."""
        if not way.read and self._looks(node, way):
            way = replace(way, read=True)
        for call in walk(node):
            if isinstance(call, ast.NamedExpr):
                way = self._bind(call.target, self._sources(call.value, way), call.value, way)
            if not isinstance(call, ast.Call):
                continue
            name = called_name(call)
            given = frozenset(token for part in arguments(call) for token in self._sources(part, way))
            if name in ("equal", "array_equal", "allclose"):
                self.compares = self.compares or INPUT in given
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            if name in _STORES and owner is not None and not self._static(call):
                way = self._add(owner, given, call, way)
            elif name not in _PURE and name not in ALLOCATORS:
                held = given | self._sources(call.func, way)
                way = replace(way, written=way.written | fresh(held))
                if owner is not None and _in_place(name) and not self._static(call):
                    way = self._add(owner, given, call, way)
                elif self._unknown(call):
                    way = self._touched(call, given, way)
        return way

    def _looks(self, node: ast.AST, way: Way) -> bool:
        """Whether an expression reads more of an input than its shape and kind."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            if isinstance(node, ast.Attribute) and node.attr in FACTS:
                return False
            if INPUT in self._name(node, way) and isinstance(node.ctx, ast.Load):
                return True
        if isinstance(node, ast.Call) and called_name(node) in ("len", "isinstance", "type"):
            return False
        return any(self._looks(part, way) for part in ast.iter_child_nodes(node))

    def _static(self, call: ast.Call) -> bool:
        """Whether a call is of one of a library's functions, not a method of an object or an operator of somebody's."""
        paths = self.view.names.resolve(call.func)
        return any(path.startswith(_STATIC) and "()" not in path and not path.startswith(_OTHERS) for path in paths)

    def _unknown(self, call: ast.Call) -> bool:
        """Whether a call may fill what it is given, or what it knows by itself."""
        name = called_name(call)
        if name in _PURE or name in _STORES or name in ALLOCATORS:
            return False
        return not self._static(call) or _in_place(name) or any(each.arg == "out" for each in call.keywords)

    def _touched(self, call: ast.Call, given: Sources, way: Way) -> Way:
        """A call that is not known may fill whatever it is given, and what lies where inputs were put."""
        used = any(INPUT in held and (self._outlives(name) or from_earlier(held)) for name, held in way.names.items())
        way = replace(way, stirred=way.stirred or used, written=way.written | way.lent)
        if INPUT not in given:
            return way
        owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        for argument in [*owner, *arguments(call)]:
            for part in walk(argument):
                if isinstance(part, (ast.Name, ast.Attribute)) and self._outlives(place(part)):
                    way = self._add(part, frozenset({INPUT}), None, way)
        return way


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")
