"""Print a reduction over everything as CUDA C++: blocks walk over tiles or rows, the last one joins their totals.

Sums do not depend on which block is first: a thread's terms, a block's threads and the blocks' totals are each added
in an order of their own, and no total is added by an atomic operation.
"""

from __future__ import annotations

import re

from stitchcuda.recipes.emit_cpu import decode
from stitchcuda.recipes.emit_cuda import COMBINE, INITIAL, THREADS, Printer, Rows
from stitchcuda.recipes.full_kernel import IDENTITY, FullKernel
from stitchcuda.recipes.scalar import Reduction, Value

RESIDENT = 2048
"""Threads of a multiprocessor."""
WAVES = 2
"""How often the device is filled: blocks of the second round even out what the first leaves."""
LOADED_BYTES = 160
"""Of a thread, on their way at once: more would cost registers that other threads need."""
FUNCTOR = {"sum": "own::Sum()", "max": "own::Max()", "min": "own::Min()"}

HELPERS = """
namespace own {

// The reduction over a block in thread 0, in the same order each time; all threads must call it.
template <int COUNT, class Op> __device__ __forceinline__ double ordered(double value, double* scratch, Op op) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  scratch[thread] = value;
  __syncthreads();
#pragma unroll 1
  for (int half = COUNT / 2; half > 0; half /= 2) {
    if (thread < half) scratch[thread] = op(scratch[thread], scratch[thread + half]);
    __syncthreads();
  }
  return scratch[0];
}

}  // namespace own
"""


class Blocks:
    """How many there are, and what they end with; common to tiles and rows."""

    def __init__(self, full: FullKernel, count: int, threads: int) -> None:
        self.full = full
        self.count = count
        self.threads = threads

    def parameters(self) -> tuple[list[str], list[str]]:
        """Types with names, and names, in the launcher's order."""
        full = self.full
        pairs = [(f"const {b.storage}* __restrict__", b.name) for b in full.kernel.buffers]
        pairs += [(f"const {load.buffer.storage}* __restrict__", load.buffer.name) for load in full.scalars]
        pairs += [(f"{store.buffer.storage}* __restrict__", store.buffer.name) for store in full.results]
        pairs += [("double*", "partials"), ("int*", "done")]
        return [f"{kind} {name}" for kind, name in pairs], [name for _, name in pairs]

    def text(self, body: list[str]) -> str:
        """The kernel and its launcher; ``body`` leaves each thread's share in ``whole0``, ``whole1``, ..."""
        name, kinds = self.full.kernel.name, self.full.kinds
        typed, names = (", ".join(each) for each in self.parameters())
        lines = [f"__global__ void __launch_bounds__({self.threads}) {name}_kernel({typed}) {{"]
        inside = [f"__shared__ double scratch[{self.threads}];", "__shared__ int last;"]
        inside += [f"double whole{i} = {IDENTITY[kind]};" for i, kind in enumerate(kinds)]
        inside += body
        inside += self._reduced()
        inside.append("if (threadIdx.x == 0) {")
        inside += [f"  partials[{i * self.count} + blockIdx.x] = whole{i};" for i in range(len(kinds))]
        inside += ["  __threadfence();", f"  last = atomicAdd(done, 1) == {self.count - 1};", "}"]
        inside += ["__syncthreads();", "if (!last) return;", "__threadfence();"]
        inside.append("const volatile double* left = partials;")
        inside += [f"whole{i} = {IDENTITY[kind]};" for i, kind in enumerate(kinds)]
        inside.append(f"for (int block = threadIdx.x; block < {self.count}; block += {self.threads}) {{")
        for i, kind in enumerate(kinds):
            inside.append(f"  const double left{i} = left[{i * self.count} + block];")
            inside.append("  " + COMBINE[kind].replace("{a}", f"whole{i}").replace("{t}", f"left{i}"))
        inside += ["}", *self._reduced(), "if (threadIdx.x == 0) {"]
        inside += [*(f"  {line}" for line in self.full.tail()), "  *done = 0;", "}"]
        lines += [f"  {line}" if not line.startswith("#") else line for line in inside]
        lines += ["}", "", f'extern "C" int {name}({typed}, void* stream) {{']
        call = f"{name}_kernel<<<{self.count}, {self.threads}, 0, static_cast<cudaStream_t>(stream)>>>({names});"
        return "\n".join([*lines, f"  {call}", "  return static_cast<int>(cudaGetLastError());", "}"])

    def _reduced(self) -> list[str]:
        return [
            f"whole{i} = own::ordered<{self.threads}>(whole{i}, scratch, {FUNCTOR[kind]});"
            for i, kind in enumerate(self.full.kinds)
        ]


def full_cuda(full: FullKernel, multiprocessors: int) -> tuple[str, int]:
    """The source without the prelude, and the number of blocks: ``partials`` has a double for each and each total."""
    blocks, body = _rows(full, multiprocessors) if full.kernel.rows else _tiles(full, multiprocessors)
    return HELPERS + "\n" + blocks.text(body), blocks.count


def _tiles(full: FullKernel, multiprocessors: int) -> tuple[Blocks, list[str]]:
    """No rows: a block takes tiles of packs, several packs a thread, whose loads are on their way together."""
    kernel = full.kernel
    printer = Printer(kernel)
    per_run = kernel.inner // printer.width
    packs = kernel.outer_size * per_run
    loads = sum(printer.width * b.dtype.itemsize for b in kernel.buffers if b.strides[-1] != 0)
    unroll = next(n for n in (4, 2, 1) if n * loads <= LOADED_BYTES or n == 1)
    tile = unroll * THREADS
    tiles = packs // tile
    count = max(1, min(-(-packs // tile), WAVES * multiprocessors * RESIDENT // THREADS))
    number = "uint32_t" if packs + count * THREADS < 2**32 else "uint64_t"
    suffix = "u" if number == "uint32_t" else "ull"

    packed = [buffer for buffer in kernel.buffers if printer.packed(buffer)]

    def place(pack: str) -> list[str]:
        lines = [f"const {number} pack = {pack};"]
        # Packs may be counted in 32 bits where elements are not.
        within = f"pack % {per_run}{suffix}"
        within = within if number == printer.index else f"static_cast<{printer.index}>({within})"
        lines.append(f"const {printer.index} column = {within} * {printer.width}u;")
        if kernel.outer:
            lines.append(f"const {number} row = pack / {per_run}{suffix};")
        return lines + decode("row", kernel.outer, number) + printer.row_pointers()

    def reduced() -> list[str]:
        lines = [printer.element(v).replace("(column + j)", "column") for v in kernel.order if kernel.is_row(v)]
        lines += ["#pragma unroll", f"for (int j = 0; j < {printer.width}; ++j) {{"]
        lines += [f"  {printer.element(value)}" for value in kernel.pass_values(0, set())]
        for i, (kind, term) in _terms(full):
            lines.append("  " + COMBINE[kind].replace("{a}", f"some{i}").replace("{t}", printer.names[id(term)]))
        return [*lines, "}"]

    def pack_of(storage: str) -> str:
        return f"own::Pack<{storage}, {printer.width}>"

    start = [f"{t.ctype} some{i} = {INITIAL[k].replace('{T}', t.ctype)};" for i, (k, t) in _terms(full)]
    join = [COMBINE[k].replace("{a}", f"whole{i}").replace("{t}", f"some{i}") for i, (k, _) in _terms(full)]
    body = []
    if tiles:
        body.append(f"for ({number} tile = blockIdx.x; tile < {tiles}{suffix}; tile += {count}) {{")
        here = place(f"tile * {tile}{suffix} + part * {THREADS} + threadIdx.x")
        each = ["#pragma unroll", f"for (int part = 0; part < {unroll}; ++part) {{"]
        ahead = [f"{pack_of(b.storage)} ahead_{b.name}[{unroll}];" for b in packed]
        loads_ahead = [
            f"ahead_{b.name}[part] = *reinterpret_cast<const {pack_of(b.storage)}*>(row_{b.name} + column);"
            for b in packed
        ]
        taken = [f"const {pack_of(b.storage)} p_{b.name} = ahead_{b.name}[part];" for b in packed]
        # All loads first: branches in the arithmetic would keep them apart.
        if packed:
            body += _in([*ahead, *each, *_in([*_needed(here, loads_ahead), *loads_ahead]), "}"])
        inside = [*taken, *reduced()]
        body += _in([*start, *each, *_in([*_needed(here, inside), *inside]), "}", *join])
        body.append("}")
    if tiles * tile < packs:
        first = f"{tiles * tile}{suffix} + blockIdx.x * {THREADS}u + threadIdx.x"
        body.append(f"for ({number} rest = {first}; rest < {packs}{suffix}; rest += {count * THREADS}u) {{")
        inside = [*(line for buffer in packed for line in printer.fetch(buffer)), *reduced()]
        body += [*_in([*start, *_needed(place("rest"), inside), *inside, *join]), "}"]
    return Blocks(full, count, THREADS), body


def _rows(full: FullKernel, multiprocessors: int) -> tuple[Blocks, list[str]]:
    """A warp or a block takes one row after another; its first thread adds the rows' terms."""
    printer = _FullRows(full)
    kernel, shape = full.kernel, printer.shape
    threads = shape.lanes * shape.per_block
    count = max(1, min(-(-kernel.outer_size // shape.per_block), WAVES * multiprocessors * RESIDENT // threads))
    first, lane = "blockIdx.x", "threadIdx.x"
    if shape.per_block > 1:
        first = f"blockIdx.x * {shape.per_block}u + threadIdx.x / {shape.lanes}u"
        lane = f"threadIdx.x % {shape.lanes}u"
    step = count * shape.per_block
    body = [f"const {printer.index} lane = {lane};", "#pragma unroll 1"]
    body.append(f"for ({printer.index} row = {first}; row < {kernel.outer_size}u; row += {step}u) {{")
    return Blocks(full, count, threads), [*body, *_in(printer.row()), "}"]


class _FullRows(Rows):
    def __init__(self, full: FullKernel) -> None:
        super().__init__(full.kernel)
        self.full = full

    def row_results(self) -> list[str]:
        """A row's terms join the totals of the row's first thread."""
        lines = []
        for i, (kind, term) in _terms(self.full):
            lines.append("  " + COMBINE[kind].replace("{a}", f"whole{i}").replace("{t}", self.names[id(term)]))
        return ["if (lane == 0) {", *lines, "}"]


def _terms(full: FullKernel) -> list[tuple[int, tuple[Reduction, Value]]]:
    return list(enumerate(zip(full.kinds, full.terms, strict=True)))


def _needed(declarations: list[str], users: list[str]) -> list[str]:
    """The declarations that ``users``, or later ones that are needed, read: compilers warn of others."""
    kept: list[str] = []
    words = set(re.findall(r"\w+", " ".join(users)))
    for line in reversed(declarations):
        name, _, value = line.partition(" = ")
        if name.split()[-1] in words:
            kept.insert(0, line)
            words |= set(re.findall(r"\w+", value))
    return kept


def _in(lines: list[str], levels: int = 1) -> list[str]:
    return [line if line.startswith("#") else "  " * levels + line for line in lines]
