"""Programs for tasks without a model: honest ones with any schedule, partial cheats, and faulty ones. The cold start is
made of them, and the best of the honest ones is what speed is held against. Whether they work is for ``evaluate``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from coder_experiment.language import Lib, Node, Own, Program, Refused, parse
from coder_experiment.operators import ADDITIVE, BINARY, LAYOUT, REDUCTIONS, ROW, Step, literal, wrap
from coder_experiment.tasks import Task

THREADS = (64, 128, 256, 512, 1024)
ROW_ALIAS = {"a": "ar[c]", "b": "br[c]", "c": "cr[c]", "u": "ur[c]", "y": "yr[c]"}


@dataclass(frozen=True)
class Schedule:
    """How a kernel is launched and written: ``group`` for rows, ``nested`` expressions or one statement an operator,
    ``tiled`` transposes."""

    group: str = "warp"
    threads: int = 256
    vector: int = 1
    nested: bool = True
    tiled: bool = True


def any_schedule(draw: random.Random) -> Schedule:
    """A schedule at random: many are slow."""
    return Schedule(
        draw.choice(("thread", "warp", "block")),
        draw.choice(THREADS),
        draw.choice((1, 4)),
        draw.random() < 0.6,
        draw.random() < 0.6,
    )


def good_schedules() -> list[Schedule]:
    """Candidates for the best: the reference for speed is the fastest of them."""
    rows = [("warp", 256), ("warp", 128), ("block", 128), ("block", 256), ("block", 512), ("thread", 128)]
    return [
        Schedule(group, threads, vector) for group, threads in rows for vector in ((4,) if group == "warp" else (1,))
    ]


def own_program(task: Task, schedule: Schedule) -> Program:
    """All operators in kernels of its own: one, or two where a row operator precedes a tiled transpose."""
    return Program(tuple(_own_nodes(task.chain, schedule, "a", "y")))


def stock_program(task: Task) -> Program:
    """All operators by stock kernels: what a framework would do, and the baseline of speed."""
    return Program(tuple(_lib_nodes(task.chain, "a", "y")))


def mixed_program(task: Task, schedule: Schedule, draw: random.Random) -> Program | None:
    """A part of the operators by stock kernels, the others by its own; None for a single operator."""
    if len(task.chain) < 2:
        return None
    cut = draw.randint(1, len(task.chain) - 1)
    first, rest = task.chain[:cut], task.chain[cut:]
    # Behind a transpose or a reduction, scratch has another shape than kernels of rows expect.
    if any(s.name == "transpose" or s.name in REDUCTIONS for s in first):
        plain = all(s.operator.kind not in (ROW, LAYOUT) for s in rest)
        if not plain or any(s.name in REDUCTIONS for s in first):
            return None
    if draw.random() < 0.7 or any(s.name == "transpose" for s in first):
        nodes = _lib_nodes(first, "a", "u") + _own_nodes(rest, schedule, "u", "y")
    else:
        nodes = _own_nodes(first, schedule, "a", "u") + _lib_nodes(rest, "u", "y")
    return Program(tuple(nodes))


def shortcut_program(task: Task, schedule: Schedule, draw: random.Random) -> Program | None:
    """One that usual inputs do not tell from a right one: a wide clamp left out, a softmax without its maximum, a norm
    without its epsilon. None where the task has none of these."""
    wide = [
        at for at, s in enumerate(task.chain) if s.name == "clamp" and isinstance(s.operand, float) and s.operand > 2
    ]
    text = own_program(task, schedule).text
    choices = []
    if wide:
        at = draw.choice(wide)
        shorter = Task(task.chain[:at] + task.chain[at + 1 :], task.cols, task.family)
        if shorter.chain:
            choices.append(own_program(shorter, schedule).text)
    if " + 1e-5f" in text:
        choices.append(text.replace(" + 1e-5f", ""))
    match = re.search(r"float (m\d) = -1e30f;\neach \1 = .*;\n\1 = all_max\(\1\);\n", text)
    if match and f" - {match[1]})" in text:
        choices.append(text.replace(match[0], "").replace(f" - {match[1]})", ")"))
    return parse(draw.choice(choices)) if choices else None


def faulty_program(task: Task, schedule: Schedule, draw: random.Random) -> Program | None:
    """An honest program with a fault in it: an operator lost or exchanged, a constant changed, a reduction not
    combined, a name misspelt. None where the draw changes nothing."""
    program = own_program(task, schedule)
    text = program.text
    kind = draw.randrange(5)
    if kind == 0 and len(task.chain) > 1:
        at = draw.randrange(len(task.chain))
        step = task.chain[at]
        if step.operator.kind not in (ROW, LAYOUT):
            return own_program(Task(task.chain[:at] + task.chain[at + 1 :], task.cols, task.family), schedule)
    if kind == 1:
        text = re.sub(
            r"\b(\d+\.\d+)f", lambda m: f"{float(m[1]) * 2:g}.f" if float(m[1]).is_integer() else "2.f", text, count=1
        )
    if kind == 2:
        text = re.sub(r"\b(\w+) = all_(?:sum|max)\(\1\);\n", "", text, count=1)
    if kind == 3:
        swaps = [("fmaxf", "fminf"), (" + ", " - "), ("gelu(", "silu("), (" * ", " + "), ("tanhf(", "sigmoid(")]
        old, new = draw.choice(swaps)
        head, _, tail = text.partition("\n")
        text = head + "\n" + tail.replace(old, new, 1)
    if kind == 4:
        text = re.sub(r"\b(sigmoid|gelu|silu|tanhf|fabsf)\(", lambda m: m[1][:-1] + "(", text, count=1)
    try:
        changed = parse(text)
    except Refused:
        return None
    return changed if changed.digest != program.digest else None


def _code(step: Step, value: str, additive: bool, places: dict[str, str]) -> tuple[str, bool]:
    """The expression after a pointwise step, and whether it is a sum."""
    operand = literal(step.operand) if isinstance(step.operand, float) else places.get(step.operand or "", "")
    written = wrap(value, step, additive=additive)
    return step.operator.code.format(v=written, o=operand), step.name in ADDITIVE


class _Value:
    """The value so far as an expression; pointwise steps are nested into it, or written as statements."""

    def __init__(self, text: str, nested: bool, names: list[str]) -> None:
        self.text, self.additive, self.nested, self.names = text, False, nested, names

    def apply(self, steps: Sequence[Step], places: dict[str, str]) -> list[str]:
        """Statements that come before the value can be used."""
        lines: list[str] = []
        variable = ""
        for at, step in enumerate(steps):
            self.text, self.additive = _code(step, self.text, self.additive, places)
            if not self.nested and at + 1 < len(steps):
                if not variable:
                    variable = f"v{len(self.names)}"
                    self.names.append(variable)
                    lines.append(f"float {variable} = {self.text};")
                else:
                    lines.append(f"{variable} = {self.text};")
                self.text, self.additive = variable, False
        return lines


def _own_nodes(chain: Sequence[Step], schedule: Schedule, source: str, target: str) -> list[Node]:
    at = next((k for k, s in enumerate(chain) if s.name == "transpose"), None)
    has_row = any(s.operator.kind == ROW for s in chain)
    if at is None:
        return [_row_node(chain, schedule, source, target) if has_row else _elem_node(chain, schedule, source, target)]
    before, after = chain[:at], chain[at + 1 :]
    if not has_row:
        if schedule.tiled:
            return [_tile_node(before, after, source, target)]
        return [_scatter_node(before, after, schedule, source, target)]
    if not schedule.tiled:
        return [_row_node(before, schedule, source, target, transposed=after)]
    scratch = "w" if target != "w" else "u"
    return [_row_node(before, schedule, source, scratch), _tile_node((), after, scratch, target)]


def _elem_node(chain: Sequence[Step], schedule: Schedule, source: str, target: str) -> Own:
    used = [source] + [s.operand for s in chain if isinstance(s.operand, str)]
    names = list(dict.fromkeys(used))
    if schedule.vector == 4:
        loads = " ".join(f"ld(p{name}, {name});" for name in names)
        value = _Value(f"p{source}[j]", True, [])
        value.apply(chain, {name: f"p{name}[j]" for name in names})
        body = f"{loads}\nfor (int j = 0; j < V; j++) p{source}[j] = {value.text};\nst({target}, p{source});"
        return Own("elem", schedule.threads, 4, body)
    value = _Value(f"{source}[i]", schedule.nested, [])
    lines = value.apply(chain, {name: f"{name}[i]" for name in names})
    last = f"{target}[i] = {value.text};"
    if lines:
        return Own("elem", schedule.threads, 1, "if (i < n) {\n" + "\n".join([*lines, last]) + "\n}")
    return Own("elem", schedule.threads, 1, f"if (i < n) {last}")


def _scatter_node(before: Sequence[Step], after: Sequence[Step], schedule: Schedule, source: str, target: str) -> Own:
    value = _Value(f"{source}[i]", True, [])
    value.apply([*before, *after], {name: f"{name}[i]" for name in ("a", "b", "c", "u")})
    return Own("elem", schedule.threads, 1, f"if (i < n) {target}[i % C * R + i / C] = {value.text};")


def _tile_node(before: Sequence[Step], after: Sequence[Step], source: str, target: str) -> Own:
    first, last = _Value(f"{source}[at]", True, []), _Value("v", True, [])
    first.apply(before, {name: f"{name}[at]" for name in ("a", "b", "c", "u")})
    last.apply(after, {})
    return Own("tile", 256, 1, f"FILL({first.text});\nDRAIN({target}[to] = {last.text});")


def _row_node(
    chain: Sequence[Step], schedule: Schedule, source: str, target: str, transposed: Sequence[Step] | None = None
) -> Own:
    """Kernels of rows: loops of ``each``, with what every row operator needs before its value can be used."""
    value = _Value(ROW_ALIAS[source], True, [])
    lines: list[str] = []
    count = 0
    reduced = False
    # What is kept between loops must not lie where other rows' results do.
    apart = transposed is not None or any(s.name in REDUCTIONS for s in chain)
    scratch = "wr[c]" if apart else f"{target}r[c]"
    for step in chain:
        if step.operator.kind != ROW:
            value.apply([step], {} if reduced else ROW_ALIAS)
            continue
        x = value.text
        if not schedule.nested and count == 0 and len(x) > 14:
            lines.append(f"each {scratch} = {x};")
            x = value.text = scratch
        k = count
        count += 1
        if step.name in ("softmax", "rowmax"):
            lines += [f"float m{k} = -1e30f;", f"each m{k} = fmaxf(m{k}, {x});", f"m{k} = all_max(m{k});"]
        plain = f"({x})" if value.additive else x
        if step.name == "softmax":
            lines += [f"float s{k} = 0.f;", f"each s{k} += expf({x} - m{k});", f"s{k} = all_sum(s{k});"]
            value.text, value.additive = f"expf({x} - m{k}) / s{k}", False
        elif step.name == "rowmax":
            value.text, value.additive, reduced = f"m{k}", False, True
        elif step.name == "rmsnorm":
            lines += [f"float s{k} = 0.f;", f"each s{k} += sq({x});", f"s{k} = all_sum(s{k});"]
            value.text, value.additive = f"{plain} * rsqrtf(s{k} / C + 1e-5f)", False
        elif step.name == "center":
            lines += [f"float s{k} = 0.f;", f"each s{k} += {x};", f"s{k} = all_sum(s{k});"]
            value.text, value.additive = f"{x} - s{k} / C", True
        else:
            lines += [f"float s{k} = 0.f;", f"each s{k} += {x};", f"s{k} = all_sum(s{k});"]
            value.text, value.additive, reduced = f"s{k}", False, True
    if reduced:
        lines.append(f"if (lane == 0) {target}[r] = {value.text};")
    elif transposed is not None:
        value.apply(transposed, {})
        lines.append(f"each {target}[c * R + r] = {value.text};")
    else:
        lines.append(f"each {target}r[c] = {value.text};")
    return Own(schedule.group, schedule.threads, 1, "\n".join(lines))


def _lib_nodes(chain: Sequence[Step], source: str, target: str) -> list[Node]:
    """Stock kernels one after the other. A gate takes one of its own, as in a framework that fuses it."""
    nodes: list[Node] = []
    held = source
    usual, other = ("w", "u") if target == "u" else ("u", "w")
    for at, step in enumerate(chain):
        into = target if at + 1 == len(chain) else usual
        if step.operator.kind == LAYOUT and into == held:
            into = other
        nodes.append(Lib(step.name, held, step.operand, into))
        held = into
    return nodes


def uses_lib_for(program: Program) -> list[str]:
    """Operators that a program leaves to stock kernels."""
    return [node.operator for node in program.lib]


def binary_operands(chain: Sequence[Step]) -> list[str]:
    """Inputs that a chain reads beside its first."""
    return [s.operand for s in chain if s.operator.kind == BINARY and isinstance(s.operand, str)]
