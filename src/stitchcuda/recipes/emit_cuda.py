"""Print a fused kernel as CUDA C++: one pack of elements per thread, or one row per warp or block."""

from __future__ import annotations

from dataclasses import dataclass

from stitchcuda.recipes.emit_cpu import decode, offset
from stitchcuda.recipes.kernel import Buffer, Kernel, Store
from stitchcuda.recipes.scalar import Value

THREADS = 256
KEEP_ELEMENTS = 48
"""Values per thread that stay in registers between passes over a row."""
MANY_ROWS = 2048
"""Rows from which on the device is full with one warp a row."""

INITIAL = {"sum": "{T}(0)", "max": "-{T}(INFINITY)", "min": "{T}(INFINITY)"}
FUNCTOR = {"sum": "own::Sum()", "max": "own::Max()", "min": "own::Min()"}
COMBINE = {"sum": "{a} += {t};", "max": "{a} = {t} > {a} ? {t} : {a};", "min": "{a} = {t} < {a} ? {t} : {a};"}


def emit_cuda(kernel: Kernel) -> str:
    """The __global__ function and its launcher; they need the cuda prelude before them."""
    printer = Rows(kernel) if kernel.rows else Elements(kernel)
    return printer.text()


@dataclass(frozen=True)
class Shape:
    """Launch configuration: ``lanes`` threads work on one row, ``per_block`` rows share a block."""

    lanes: int
    per_block: int
    items: int
    """Packs per thread."""


class Printer:
    """What kernels with and without rows have in common: names, packs and pointers."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.width = kernel.vector
        self.names = {id(value): f"v{i}" for i, value in enumerate(kernel.order)}
        total = kernel.outer_size * kernel.inner
        reach = max(
            sum(abs(stride) * (size - 1) for stride, size in zip(b.strides, (*kernel.outer, kernel.inner), strict=True))
            for b in kernel.buffers
        )
        self.index = "uint32_t" if max(total, reach) < 2**31 - 2**20 else "uint64_t"

    def parameters(self) -> str:
        return ", ".join(_parameter(buffer) for buffer in self.kernel.buffers)

    def launcher(self, blocks: int, threads: int) -> str:
        kernel = self.kernel
        names = ", ".join(buffer.name for buffer in kernel.buffers)
        return "\n".join(
            [
                f'extern "C" int {kernel.name}({self.parameters()}, void* stream) {{',
                f"  {kernel.name}_kernel<<<{blocks}, {threads}, 0, static_cast<cudaStream_t>(stream)>>>({names});",
                "  return static_cast<int>(cudaGetLastError());",
                "}",
            ]
        )

    def packed(self, buffer: Buffer) -> bool:
        """The buffer moves in packs of ``width`` elements."""
        return self.width > 1 and buffer.strides[-1] == 1

    def fetch(self, buffer: Buffer) -> list[str]:
        """Load a pack at ``column`` into ``p_NAME``."""
        if not self.packed(buffer):
            return []
        pack = f"own::Pack<{buffer.storage}, {self.width}>"
        return [f"const {pack} p_{buffer.name} = *reinterpret_cast<const {pack}*>(row_{buffer.name} + column);"]

    def element(self, value: Value) -> str:
        """The definition of one value for element ``j`` of the pack at ``column``."""
        load = self.kernel.load(value)
        if load is not None:
            buffer = load.buffer
            if buffer.strides[-1] == 0:
                place = f"row_{buffer.name}[0]"
            elif self.packed(buffer):
                place = f"p_{buffer.name}.at[j]"
            else:
                place = f"row_{buffer.name}[{_times('(column + j)', buffer.strides[-1])}]"
            text = f"own::load({place})"
        else:
            text = value.text.format(*(self.names[id(argument)] for argument in value.args))
        return f"const {value.ctype} {self.names[id(value)]} = {text};"

    def open_stores(self, stores: list[Store]) -> list[str]:
        return [
            f"own::Pack<{store.buffer.storage}, {self.width}> o_{store.buffer.name};"
            for store in stores
            if self.packed(store.buffer)
        ]

    def put(self, store: Store) -> str:
        buffer = store.buffer
        value = f"own::store<{buffer.storage}>({self.names[id(store.value)]})"
        if self.packed(buffer):
            return f"o_{buffer.name}.at[j] = {value};"
        return f"row_{buffer.name}[{_times('(column + j)', buffer.strides[-1])}] = {value};"

    def close_stores(self, stores: list[Store]) -> list[str]:
        return [
            f"*reinterpret_cast<own::Pack<{s.buffer.storage}, {self.width}>*>(row_{s.buffer.name} + column)"
            f" = o_{s.buffer.name};"
            for s in stores
            if self.packed(s.buffer)
        ]

    def row_pointers(self) -> list[str]:
        lines = []
        for buffer in self.kernel.buffers:
            const = "const " if buffer.role == "input" else ""
            start = f"{buffer.name} + {offset(buffer, self.index)}"
            lines.append(f"{const}{buffer.storage}* __restrict__ row_{buffer.name} = {start};")
        return lines


class Elements(Printer):
    """No reductions: one pack per thread."""

    def text(self) -> str:
        kernel = self.kernel
        per_run = kernel.inner // self.width
        packs = kernel.outer_size * per_run
        lines = [
            f"__global__ void __launch_bounds__({THREADS}) {kernel.name}_kernel({self.parameters()}) {{",
            f"  const {self.index} pack = static_cast<{self.index}>(blockIdx.x) * {THREADS}u + threadIdx.x;",
            f"  if (pack >= {packs}u) return;",
            f"  const {self.index} column = pack % {per_run}u * {self.width}u;",
        ]
        if kernel.outer:
            lines.append(f"  const {self.index} row = pack / {per_run}u;")
        body = decode("row", kernel.outer, self.index) + self.row_pointers()
        rows = [value for value in kernel.order if kernel.is_row(value)]
        body += [self.element(value).replace("(column + j)", "column") for value in rows]
        values = kernel.pass_values(0, set())
        used = {id(load.buffer) for load in kernel.loads if any(load.value is value for value in values)}
        for buffer in kernel.buffers:
            if id(buffer) in used:
                body += self.fetch(buffer)
        body += self.open_stores(kernel.stores)
        body += ["#pragma unroll", f"for (int j = 0; j < {self.width}; ++j) {{"]
        body += [f"  {self.element(value)}" for value in values]
        body += [f"  {self.put(store)}" for store in kernel.stores]
        body += ["}", *self.close_stores(kernel.stores)]
        lines += [f"  {line}" if not line.startswith("#") else line for line in body]
        lines += ["}", "", self.launcher(-(-packs // THREADS), THREADS)]
        return "\n".join(lines)


class Rows(Printer):
    """Reductions over the inner dimension."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.shape = self._shape()
        frontier = kernel.frontier()
        per_thread = self.shape.items * self.width
        self.keep = frontier if len(frontier) * per_thread <= KEEP_ELEMENTS else []
        self.kept = {id(value) for value in self.keep}
        self.available: set[int] = set()
        """Kept values that a printed pass has computed."""

    def _shape(self) -> Shape:
        packs = -(-self.kernel.inner // self.width)
        few_rows = self.kernel.outer_size < MANY_ROWS
        if packs <= (64 if few_rows else 256):
            return Shape(lanes=32, per_block=1 if few_rows else 8, items=-(-packs // 32))
        for lanes in (128, 256, 512):
            if packs <= lanes * (2 if few_rows else 8):
                return Shape(lanes=lanes, per_block=1, items=-(-packs // lanes))
        return Shape(lanes=1024, per_block=1, items=-(-packs // 1024))

    def text(self) -> str:
        kernel, shape = self.kernel, self.shape
        threads = shape.lanes * shape.per_block
        lines = [
            f"__global__ void __launch_bounds__({threads}) {kernel.name}_kernel({self.parameters()}) {{",
        ]
        body = []
        if shape.per_block > 1:
            body += [
                f"const {self.index} row = blockIdx.x * {shape.per_block}u + threadIdx.x / {shape.lanes}u;",
                f"if (row >= {kernel.outer_size}u) return;",
                f"const {self.index} lane = threadIdx.x % {shape.lanes}u;",
            ]
        else:
            body += [f"const {self.index} row = blockIdx.x;", f"const {self.index} lane = threadIdx.x;"]
        body += self.row()
        lines += [f"  {line}" if not line.startswith("#") else line for line in body]
        blocks = -(-kernel.outer_size // shape.per_block)
        lines += ["}", "", self.launcher(blocks, threads)]
        return "\n".join(lines)

    def row(self) -> list[str]:
        """Statements for the row number ``row``, of which a thread is number ``lane``."""
        kernel = self.kernel
        body = decode("row", kernel.outer, self.index) + self.row_pointers()
        for value in self.keep:
            body.append(f"{value.ctype} keep_{self.names[id(value)]}[{self.shape.items}][{self.width}];")
        for stage in range(kernel.stages):
            body += self._row_values(stage)
            body += self._pass(stage)
        return body + self._row_values(kernel.stages) + self.row_results()

    def row_results(self) -> list[str]:
        """Statements that take a row's results out."""
        stores = self.kernel.row_stores()
        if not stores:
            return []
        lines = []
        for store in stores:
            buffer = store.buffer
            lines.append(f"  row_{buffer.name}[0] = own::store<{buffer.storage}>({self.names[id(store.value)]});")
        return ["if (lane == 0) {", *lines, "}"]

    def _row_values(self, stage: int) -> list[str]:
        kernel = self.kernel
        return [
            self.element(value)
            for value in kernel.order
            if kernel.is_row(value) and value.reduction is None and kernel.stage(value) == stage
        ]

    def _pass(self, stage: int) -> list[str]:
        kernel, shape = self.kernel, self.shape
        stores, reductions = kernel.element_stores(stage), kernel.reductions(stage)
        if not stores and not reductions:
            return []
        values = kernel.pass_values(stage, self.available)
        lines = []
        for value in reductions:
            start = INITIAL[str(value.reduction)].replace("{T}", value.ctype)
            lines.append(f"{value.ctype} part_{self.names[id(value)]} = {start};")
        lines.append("#pragma unroll" if self.kept or shape.items <= 4 else "#pragma unroll 2")
        lines.append(f"for (int item = 0; item < {shape.items}; ++item) {{")
        inner = []
        used = {
            id(load.buffer)
            for load in kernel.loads
            if any(load.value is value and id(value) not in self.available for value in values)
        }
        for buffer in kernel.buffers:
            if id(buffer) in used:
                inner += self.fetch(buffer)
        inner += self.open_stores(stores)
        inner += ["#pragma unroll", f"for (int j = 0; j < {self.width}; ++j) {{"]
        for value in values:
            name = self.names[id(value)]
            if id(value) in self.available:
                inner.append(f"  const {value.ctype} {name} = keep_{name}[item][j];")
            else:
                inner.append(f"  {self.element(value)}")
        for value in values:
            if id(value) in self.kept - self.available:
                inner.append(f"  keep_{self.names[id(value)]}[item][j] = {self.names[id(value)]};")
        self.available |= self.kept & {id(value) for value in values}
        for value in reductions:
            a, t = f"part_{self.names[id(value)]}", self.names[id(value.args[0])]
            inner.append("  " + COMBINE[str(value.reduction)].replace("{a}", a).replace("{t}", t))
        inner += [f"  {self.put(store)}" for store in stores]
        inner += ["}", *self.close_stores(stores)]
        if shape.items * shape.lanes * self.width != kernel.inner:
            inner = [f"if (column < {kernel.inner}u) {{", *inner, "}"]
        if any("column" in line for line in inner):
            lines.append(f"  const {self.index} column = (lane + item * {shape.lanes}u) * {self.width}u;")
        lines += [f"  {line}" if not line.startswith("#") else line for line in inner]
        lines.append("}")
        for value in reductions:
            name, functor = self.names[id(value)], FUNCTOR[str(value.reduction)]
            if shape.lanes == 32:
                call = f"own::warp_reduce(part_{name}, {functor})"
            else:
                call = f"own::block_reduce<{shape.lanes // 32}>(part_{name}, {functor})"
            lines.append(f"const {value.ctype} {name} = {call};")
        return lines


def _parameter(buffer: Buffer) -> str:
    const = "const " if buffer.role == "input" else ""
    return f"{const}{buffer.storage}* __restrict__ {buffer.name}"


def _times(index: str, stride: int) -> str:
    return index if stride == 1 else f"{index} * {stride}"
