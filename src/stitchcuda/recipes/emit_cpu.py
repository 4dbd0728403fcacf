"""Print a fused kernel as C++ with OpenMP threads over runs and SIMD inside a run."""

from __future__ import annotations

from stitchcuda.recipes.kernel import Buffer, Kernel
from stitchcuda.recipes.scalar import Value

CHUNK = 4096
"""Elements of a run that one thread takes at a time in a kernel without reductions."""
SERIAL_BELOW = 16384
"""Elements below which starting threads costs more than it saves."""
BLOCK = 1024
"""Elements of a row that are summed in single precision before they join the row's double total."""
KEEP_BYTES = 128 * 1024
"""Row values kept between passes on the stack."""
BYTE = "uint8_t"
"""How a loop reads and writes truth values: loops over ``bool`` are not turned into vector code."""

INITIAL = {
    "sum": "{T}(0)",
    "max": "-std::numeric_limits<{T}>::infinity()",
    "min": "std::numeric_limits<{T}>::infinity()",
}


def emit_cpu(kernel: Kernel) -> str:
    """The C++ function; it needs the cpu prelude before it."""
    return Printer(kernel).function()


class Printer:
    """The statements of a kernel's runs, pass by pass."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names = {id(value): f"v{i}" for i, value in enumerate(kernel.order)}
        frontier = [value for value in kernel.frontier() if self._worth_keeping(value)]
        if len(frontier) * kernel.inner * 8 > KEEP_BYTES:
            frontier = []
        self.kept = {id(value) for value in frontier}
        self.frontier = frontier
        self.available: set[int] = set()
        """Kept values that a printed pass has computed."""

    def _worth_keeping(self, value: Value) -> bool:
        """A load is read again from memory, and arithmetic is cheaper than a trip through the stack."""
        return self.kernel.load(value) is None and self._cost(value) >= 8

    def _cost(self, value: Value) -> int:
        if self.kernel.is_row(value) or self.kernel.load(value) is not None:
            return 0
        return value.weight + sum(self._cost(argument) for argument in value.args)

    def function(self) -> str:
        kernel = self.kernel
        parameters = ", ".join(_parameter(buffer) for buffer in kernel.buffers)
        lines = [f'extern "C" int {kernel.name}({parameters}, void*) {{']
        chunks = 1 if kernel.rows else -(-kernel.inner // CHUNK)
        tasks = kernel.outer_size * chunks
        if tasks > 1 and kernel.outer_size * kernel.inner >= SERIAL_BELOW:
            lines.append("#pragma omp parallel for schedule(static)")
        lines.append(f"  for (int64_t task = 0; task < {tasks}; ++task) {{")
        body = self._run(chunks)
        lines += [f"    {line}" if not line.startswith("#") else line for line in body]
        lines += ["  }", "  return 0;", "}"]
        return "\n".join(lines)

    def _run(self, chunks: int) -> list[str]:
        kernel = self.kernel
        lines = []
        if chunks > 1:
            lines += [
                f"const int64_t row = task / {chunks};",
                f"const int64_t begin = task % {chunks} * {CHUNK};",
                f"const int64_t end = begin + {CHUNK} < {kernel.inner} ? begin + {CHUNK} : {kernel.inner};",
            ]
        return lines + self.run("task" if chunks == 1 else "row", chunks)

    def run(self, row: str, chunks: int) -> list[str]:
        """Statements for the run whose number the variable ``row`` holds."""
        kernel = self.kernel
        lines = decode(row, kernel.outer, "int64_t")
        lines += [row_pointer(buffer) for buffer in kernel.buffers]
        for value in self.frontier:
            lines.append(f"alignas(64) {value.ctype} keep_{self.names[id(value)]}[{kernel.inner}];")
        for stage in range(kernel.stages):
            lines += self._row_values(stage)
            lines += self._pass(stage, chunks)
        return lines + self._row_values(kernel.stages) + self.row_results()

    def row_results(self) -> list[str]:
        """Statements that take a run's results out."""
        return [
            f"row_{store.buffer.name}[0] = {_stored(store.buffer, self.names[id(store.value)])};"
            for store in self.kernel.row_stores()
        ]

    def _row_values(self, stage: int) -> list[str]:
        lines = []
        for value in self.kernel.order:
            if not self.kernel.is_row(value) or value.reduction is not None or self.kernel.stage(value) != stage:
                continue
            lines.append(self.define(value, "0"))
        return lines

    def define(self, value: Value, index: str) -> str:
        """The definition of one value at a place of the run."""
        load = self.kernel.load(value)
        if load is not None:
            text = f"own::load(row_{load.buffer.name}[{_index(load.buffer, index)}])"
            if load.buffer.storage == "bool":
                text += " != 0"
        else:
            text = value.text.format(*(self.names[id(argument)] for argument in value.args))
        return f"const {value.ctype} {self.names[id(value)]} = {text};"

    def _pass(self, stage: int, chunks: int) -> list[str]:
        kernel = self.kernel
        stores = kernel.element_stores(stage)
        reductions = kernel.reductions(stage)
        if not stores and not reductions:
            return []
        values = kernel.pass_values(stage, self.available)
        sums = [value for value in reductions if value.reduction == "sum"]
        extremes = [value for value in reductions if value.reduction != "sum"]
        blocked = bool(sums) and kernel.inner > 2 * BLOCK
        lines = []
        for value in extremes + ([] if blocked else sums):
            assert value.reduction is not None
            start = INITIAL[value.reduction].replace("{T}", value.ctype)
            lines.append(f"{value.ctype} {self.names[id(value)]} = {start};")
        clauses = self._clauses(reductions)
        body = [self._element(value) for value in values]
        for value in values:
            if id(value) in self.kept - self.available:
                body.append(f"keep_{self.names[id(value)]}[i] = {self.names[id(value)]};")
        self.available |= self.kept & {id(value) for value in values}
        for value in reductions:
            accumulator = ("part_" if blocked and value.reduction == "sum" else "") + self.names[id(value)]
            term = self.names[id(value.args[0])]
            if value.reduction == "sum":
                body.append(f"{accumulator} += {term};")
            else:
                sign = ">" if value.reduction == "max" else "<"
                body.append(f"{accumulator} = {term} {sign} {accumulator} ? {term} : {accumulator};")
        for store in stores:
            index = _index(store.buffer, "i")
            body.append(f"row_{store.buffer.name}[{index}] = {_stored(store.buffer, self.names[id(store.value)])};")
        begin, end = ("begin", "end") if chunks > 1 else ("0", str(kernel.inner))
        if not blocked:
            return [*lines, *_loop(begin, end, clauses, body)]
        for value in sums:
            lines.append(f"double total_{self.names[id(value)]} = 0.0;")
        lines.append(f"for (int64_t block = 0; block < {kernel.inner}; block += {BLOCK}) {{")
        lines.append(f"  const int64_t stop = block + {BLOCK} < {kernel.inner} ? block + {BLOCK} : {kernel.inner};")
        for value in sums:
            lines.append(f"  {value.ctype} part_{self.names[id(value)]} = 0;")
        blocked_clauses = clauses
        for value in sums:
            name = self.names[id(value)]
            blocked_clauses = blocked_clauses.replace(f"reduction(+ : {name})", f"reduction(+ : part_{name})")
        inner = _loop("block", "stop", blocked_clauses, body)
        lines += [f"  {line}" if not line.startswith("#") else line for line in inner]
        for value in sums:
            name = self.names[id(value)]
            lines.append(f"  total_{name} += part_{name};")
        lines.append("}")
        for value in sums:
            name = self.names[id(value)]
            lines.append(f"const {value.ctype} {name} = static_cast<{value.ctype}>(total_{name});")
        return lines

    def _element(self, value: Value) -> str:
        if id(value) in self.available:
            name = self.names[id(value)]
            return f"const {value.ctype} {name} = keep_{name}[i];"
        return self.define(value, "i")

    def _clauses(self, reductions: list[Value]) -> str:
        operators = {"sum": "+", "max": "max", "min": "min"}
        parts = [f" reduction({operators[str(v.reduction)]} : {self.names[id(v)]})" for v in reductions]
        return "".join(parts)


def _loop(begin: str, end: str, clauses: str, body: list[str]) -> list[str]:
    lines = [f"#pragma omp simd{clauses}", f"for (int64_t i = {begin}; i < {end}; ++i) {{"]
    return [*lines, *(f"  {line}" for line in body), "}"]


def _parameter(buffer: Buffer) -> str:
    const = "const " if buffer.role == "input" else ""
    return f"{const}{buffer.storage}* __restrict__ {buffer.name}"


def decode(index: str, outer: tuple[int, ...], ctype: str) -> list[str]:
    """Statements that split a run's number into one index per outer dimension, ``i0`` the slowest."""
    if not outer:
        return []
    lines = []
    rest = index
    for dim in range(len(outer) - 1, 0, -1):
        lines.append(f"const {ctype} i{dim} = {rest} % {outer[dim]};")
        lines.append(f"const {ctype} q{dim} = {rest} / {outer[dim]};")
        rest = f"q{dim}"
    lines.append(f"const {ctype} i0 = {rest};")
    return lines


def offset(buffer: Buffer, ctype: str) -> str:
    """Where a run starts in a buffer, in elements, from the indices that ``decode`` defines."""
    terms = [
        f"i{dim}" if stride == 1 else f"i{dim} * {ctype}({stride})"
        for dim, stride in enumerate(buffer.strides[:-1])
        if stride != 0
    ]
    return " + ".join(terms) or "0"


def row_pointer(buffer: Buffer) -> str:
    """The definition of where a run starts in a buffer, from the indices that ``decode`` defines."""
    const = "const " if buffer.role == "input" else ""
    start = f"{buffer.name} + {offset(buffer, 'int64_t')}"
    if buffer.storage == "bool":
        start = f"reinterpret_cast<{const}{BYTE}*>({start})"
    return f"{const}{_walked(buffer)}* __restrict__ row_{buffer.name} = {start};"


def _index(buffer: Buffer, index: str) -> str:
    stride = buffer.strides[-1]
    if stride == 0 or index == "0":
        return "0"
    return index if stride == 1 else f"{index} * {stride}"


def _stored(buffer: Buffer, name: str) -> str:
    return f"own::store<{_walked(buffer)}>({name})"


def _walked(buffer: Buffer) -> str:
    return BYTE if buffer.storage == "bool" else buffer.storage
