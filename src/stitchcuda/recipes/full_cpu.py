"""Print a reduction over everything as C++: parts of the space side by side, their totals added in one order."""

from __future__ import annotations

from stitchcuda.recipes.emit_cpu import BLOCK, INITIAL, SERIAL_BELOW, Printer, decode, row_pointer
from stitchcuda.recipes.full_kernel import IDENTITY, FullKernel

PARTS = 128
"""Parts of the space, whatever the number of threads: the totals are the same on every machine of one kind."""
JOIN = {"sum": "{a} += {t};", "max": "{a} = {t} > {a} ? {t} : {a};", "min": "{a} = {t} < {a} ? {t} : {a};"}
CLAUSE = {"sum": "+", "max": "max", "min": "min"}


def full_cpu(full: FullKernel) -> str:
    """The C++ function; it needs the cpu prelude before it."""
    return _Full(full).function()


class _Full(Printer):
    def __init__(self, full: FullKernel) -> None:
        super().__init__(full.kernel)
        self.full = full

    def function(self) -> str:
        full, kernel = self.full, self.kernel
        chunks = 1 if kernel.rows else -(-kernel.inner // BLOCK)
        units = kernel.outer_size * chunks
        parts = min(PARTS, units)
        buffers = [*kernel.buffers, *(load.buffer for load in full.scalars)]
        inputs = [f"const {buffer.storage}* __restrict__ {buffer.name}" for buffer in buffers]
        outputs = [f"{store.buffer.storage}* __restrict__ {store.buffer.name}" for store in full.results]
        count = len(full.kinds)
        lines = [f'extern "C" int {kernel.name}({", ".join([*inputs, *outputs])}, void*) {{']
        lines.append(f"  double kept[{count}][{parts}];")
        if parts > 1 and kernel.outer_size * kernel.inner >= SERIAL_BELOW:
            lines.append("#pragma omp parallel for schedule(static)")
        lines.append(f"  for (int64_t part = 0; part < {parts}; ++part) {{")
        lines += [f"    double whole{i} = {IDENTITY[kind]};" for i, kind in enumerate(full.kinds)]
        bounds = f"int64_t unit = part * {units} / {parts}; unit < (part + 1) * {units} / {parts}; ++unit"
        lines.append(f"    for ({bounds}) {{")
        body = self.run("unit", 1) if kernel.rows else self._chunk(chunks)
        lines += [f"      {line}" if not line.startswith("#") else line for line in body]
        lines.append("    }")
        lines += [f"    kept[{i}][part] = whole{i};" for i in range(count)]
        lines.append("  }")
        for i, kind in enumerate(full.kinds):
            joined = JOIN[kind].replace("{a}", f"whole{i}").replace("{t}", f"kept[{i}][part]")
            lines.append(f"  double whole{i} = {IDENTITY[kind]};")
            lines.append(f"  for (int64_t part = 0; part < {parts}; ++part) {joined}")
        return "\n".join([*lines, *(f"  {line}" for line in full.tail()), "  return 0;", "}"])

    def row_results(self) -> list[str]:
        """A row's terms join the part's totals."""
        names = [self.names[id(term)] for term in self.full.terms]
        return self._joined(names)

    def _joined(self, names: list[str]) -> list[str]:
        return [
            JOIN[kind].replace("{a}", f"whole{i}").replace("{t}", name)
            for i, (kind, name) in enumerate(zip(self.full.kinds, names, strict=True))
        ]

    def _chunk(self, chunks: int) -> list[str]:
        """A few elements of a run, summed in their own precision before they join the doubles."""
        full, kernel = self.full, self.kernel
        lines = decode("unit" if chunks == 1 else "row", kernel.outer, "int64_t")
        begin, end = "0", str(kernel.inner)
        if chunks > 1:
            begin, end = "begin", "end"
            lines = [
                *([f"const int64_t row = unit / {chunks};"] if kernel.outer else []),
                f"const int64_t begin = unit % {chunks} * {BLOCK};",
                f"const int64_t end = begin + {BLOCK} < {kernel.inner} ? begin + {BLOCK} : {kernel.inner};",
                *lines,
            ]
        lines += [row_pointer(buffer) for buffer in kernel.buffers]
        lines += [self.define(value, "0") for value in kernel.order if kernel.is_row(value)]
        clauses, sums = "", []
        for i, (kind, term) in enumerate(zip(full.kinds, full.terms, strict=True)):
            lines.append(f"{term.ctype} some{i} = {INITIAL[kind].replace('{T}', term.ctype)};")
            clauses += f" reduction({CLAUSE[kind]} : some{i})"
            sums.append(JOIN[kind].replace("{a}", f"some{i}").replace("{t}", self.names[id(term)]))
        lines.append(f"#pragma omp simd{clauses}")
        lines.append(f"for (int64_t i = {begin}; i < {end}; ++i) {{")
        lines += [f"  {self.define(value, 'i')}" for value in kernel.pass_values(0, set())]
        lines += [*(f"  {line}" for line in sums), "}"]
        return lines + self._joined([f"some{i}" for i in range(len(full.kinds))])
