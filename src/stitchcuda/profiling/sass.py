"""What a kernel is made of, read from its machine code: so that a claimed technique is proven present, or not.

Reads cuobjdump's listings of a library, cubin or object; runs on any machine, without a GPU. Which of it is *executed*,
and how often, is for counters (``profiling.ncu``).
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.evaluation.jail import jail

Technique = Literal["tensor_cores", "wgmma", "vector_loads", "async_copy", "tma", "no_spills", "warp_shuffles"]

FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda-*/bin")
TIMEOUT_S = 120
MOST_TEXT = 1 << 28
"""Bytes of a listing that are read."""

_FUNCTION = re.compile(r"^\s*Function : (\S+)\s*$")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P[0-9T]+)\s+)?([A-Z][A-Za-z0-9_.]*)")
_RESOURCES = re.compile(r"Function (\S+?):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_MATRIX = re.compile(r"^(?:UTC)?([HIDBQO]G?MMA)\.")
_WIDTH = re.compile(r"\.(8|16|32|64|128|256|[US]8|[US]16)(?=\.|$)")
_SPACES = {
    "LDG": "global load",
    "STG": "global store",
    "LDS": "shared load",
    "STS": "shared store",
    "LDL": "local load",
    "STL": "local store",
    "LD": "generic load",
    "ST": "generic store",
}
_ASYNC = ("LDGSTS", "UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED")
_NARROW = {"U8": 8, "S8": 8, "U16": 16, "S16": 16}


class KernelSass(BaseModel):
    """One kernel's machine code in numbers. Counts are instructions as written, not as executed."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="mangled, as in the binary")
    instructions: int
    matrix: dict[str, int] = Field(description="tensor core instructions by operand precision: fp16, bf16, tf32, ...")
    matrix_opcodes: dict[str, int] = Field(description="the same by opcode, such as HMMA.16816.F32.BF16")
    accesses: dict[str, dict[int, int]] = Field(
        description="loads and stores by space ('global load', ...) and width in bits a thread"
    )
    async_copies: dict[str, int] = Field(description="LDGSTS (cp.async), UTMALDG and UBLKCP (TMA), by opcode")
    barriers: int = Field(description="block-wide barriers (BAR)")
    shuffles: int
    atomics: int = Field(description="atomics and reductions on global or generic memory")
    special: int = Field(description="special functions (MUFU)")
    ffma: int
    fp64: int
    predicated: float = Field(description="share of instructions under a predicate, branches and exits apart")
    registers: int = Field(default=0, description="a thread; 0 where resources were not read")
    stack_bytes: int = Field(default=0, description="local memory a thread: spills and indexed arrays")
    shared_bytes: int = Field(default=0, description="static, a block")

    @property
    def function(self) -> str:
        """The bare function's name, as ``ncu.function_name`` gives it."""
        return bare_name(self.name)

    @property
    def local_accesses(self) -> int:
        """Loads and stores of local memory: spilled registers or arrays that are indexed."""
        return sum(sum(self.accesses.get(space, {}).values()) for space in ("local load", "local store"))

    def widest(self, space: str) -> int:
        """Bits a thread of the widest access to a space; 0 without one."""
        return max(self.accesses.get(space, {}), default=0)

    def shows(self, technique: Technique) -> bool:
        """Whether the code holds what the technique needs."""
        match technique:
            case "tensor_cores":
                return bool(self.matrix)
            case "wgmma":
                return any("GMMA" in opcode for opcode in self.matrix_opcodes)
            case "vector_loads":
                wide = any(_width(opcode) >= 128 for opcode in self.async_copies)
                return wide or max(self.widest("global load"), self.widest("generic load")) >= 128
            case "async_copy":
                return bool(self.async_copies)
            case "tma":
                return any(not opcode.startswith("LDGSTS") for opcode in self.async_copies)
            case "no_spills":
                return self.local_accesses == 0
            case "warp_shuffles":
                return self.shuffles > 0


def find_cuobjdump() -> Path:
    """cuobjdump on PATH, beside nvcc, in a CUDA toolkit, or in NVIDIA's Python wheels. Raises ToolMissing."""
    if found := shutil.which("cuobjdump"):
        return Path(found)
    places: list[str] = []
    if nvcc := shutil.which("nvcc"):
        places.append(os.path.dirname(os.path.realpath(nvcc)))
    places += [f"{home}/bin" for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if home]
    for folder in FOLDERS:
        places += sorted(glob.glob(folder), reverse=True)
    specification = importlib.util.find_spec("nvidia")
    for folder in (specification.submodule_search_locations or []) if specification else []:
        places += sorted(glob.glob(f"{folder}/*/bin"), reverse=True)
    for place in places:
        if os.access(f"{place}/cuobjdump", os.X_OK):
            return Path(place) / "cuobjdump"
    raise ToolMissing(
        "cuobjdump is not on this machine; install the CUDA toolkit, or pip install nvidia-cuda-cuobjdump"
        " nvidia-cuda-nvdisasm"
    )


def read(binary: Path, cuobjdump: Path | None = None) -> list[KernelSass]:
    """Every kernel in a library, cubin or object, in the order of the binary.

    Raises ToolMissing without cuobjdump or nvdisasm, ProfilerError when the file holds no machine code it can read.
    """
    tool = cuobjdump or find_cuobjdump()
    with tempfile.TemporaryDirectory(prefix="stitchcuda-sass-") as folder:
        copy = Path(folder).resolve() / "binary"
        try:
            shutil.copyfile(binary, copy)
        except OSError as error:
            raise ProfilerError(f"{binary} cannot be read: {error.strerror}") from None
        listing = _run(tool, "-sass", copy, binary)
        kernels = parse(listing, _run(tool, "-res-usage", copy, binary))
    if not kernels:
        raise ProfilerError(f"{binary} holds no machine code of a GPU; build it with -arch=sm_NN, not as PTX alone")
    return kernels


def parse(listing: str, resources: str = "") -> list[KernelSass]:
    """The same from the texts that ``cuobjdump -sass`` and ``-res-usage`` print."""
    used = {m[1]: (int(m[2]), int(m[3]), int(m[4])) for m in _RESOURCES.finditer(resources)}
    kernels: dict[str, KernelSass] = {}
    for name, instructions in _functions(listing):
        registers, stack, shared = used.get(name, (0, 0, 0))
        kernels[name] = _kernel(name, instructions).model_copy(
            update={"registers": registers, "stack_bytes": stack, "shared_bytes": shared}
        )
    return list(kernels.values())


def unproven(kernels: Sequence[KernelSass], claimed: Sequence[Technique]) -> list[Technique]:
    """Those of the claimed techniques that no kernel shows; 'no_spills' that some kernel lacks."""
    return [
        technique
        for technique in claimed
        if not (all if technique == "no_spills" else any)(kernel.shows(technique) for kernel in kernels)
    ]


def bare_name(mangled: str) -> str:
    """The function in an Itanium-mangled name, without namespaces, template arguments and parameters."""
    match = re.match(r"_Z(?:N[KVr]*)?L?", mangled)
    if match is None:
        return mangled
    place, name = match.end(), mangled
    while number := re.match(r"L?(\d+)", mangled[place:]):
        place += number.end()
        name = mangled[place : place + int(number[1])]
        place += int(number[1])
    return name


def precision(opcode: str) -> str:
    """Operand precision of a tensor core instruction, from its modifiers: fp16 where none says otherwise."""
    parts = opcode.split(".")
    for part, name in (("BF16", "bf16"), ("TF32", "tf32"), ("E4M3", "fp8"), ("E5M2", "fp8")):
        if part in parts:
            return name
    kind = _MATRIX.match(opcode)
    letter = kind[1][0] if kind else "H"
    if letter == "I":
        return "int4" if any(part in ("S4", "U4") for part in parts) else "int8"
    return {"D": "fp64", "B": "int1", "Q": "fp8", "O": "fp4"}.get(letter, "fp16")


def _functions(listing: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each function's name with its (predicate, opcode) pairs; padding is left out."""
    name, instructions = "", list[tuple[str, str]]()
    for line in listing.splitlines():
        if function := _FUNCTION.match(line):
            if name:
                yield name, instructions
            name, instructions = function[1], []
        elif name and (instruction := _INSTRUCTION.match(line)) and instruction[2] != "NOP":
            instructions.append((instruction[1] or "", instruction[2]))
    if name:
        yield name, instructions


def _kernel(name: str, instructions: Sequence[tuple[str, str]]) -> KernelSass:
    opcodes = Counter(opcode for _, opcode in instructions)
    matrix: Counter[str] = Counter()
    matrix_opcodes: Counter[str] = Counter()
    accesses: dict[str, Counter[int]] = {}
    async_copies: Counter[str] = Counter()
    for opcode, times in opcodes.items():
        first = opcode.split(".", 1)[0]
        if _MATRIX.match(opcode):
            matrix[precision(opcode)] += times
            matrix_opcodes[opcode] += times
        elif first in _SPACES:
            accesses.setdefault(_SPACES[first], Counter())[_width(opcode)] += times
        elif first in _ASYNC:
            async_copies[opcode] += times
    plain = [predicate for predicate, opcode in instructions if opcode.split(".", 1)[0] not in ("BRA", "EXIT", "RET")]
    under = sum(1 for predicate in plain if predicate.lstrip("!") not in ("", "PT", "UPT"))

    def count(*names: str) -> int:
        return sum(number for opcode, number in opcodes.items() if opcode.split(".", 1)[0] in names)

    return KernelSass(
        name=name,
        instructions=len(instructions),
        matrix=dict(sorted(matrix.items())),
        matrix_opcodes=dict(sorted(matrix_opcodes.items())),
        accesses={space: dict(sorted(widths.items())) for space, widths in sorted(accesses.items())},
        async_copies=dict(sorted(async_copies.items())),
        barriers=count("BAR"),
        shuffles=count("SHFL"),
        atomics=count("ATOM", "ATOMG", "RED", "REDG"),
        special=count("MUFU"),
        ffma=count("FFMA", "FFMA2"),
        fp64=count("DFMA", "DADD", "DMUL"),
        predicated=under / len(plain) if plain else 0.0,
    )


def _width(opcode: str) -> int:
    """Bits a thread; 32 where the opcode does not say."""
    found = _WIDTH.findall(opcode)
    return _NARROW.get(found[-1], 0) or int(found[-1]) if found else 32


def _run(tool: Path, option: str, copy: Path, binary: Path) -> str:
    """What the tool prints of ``copy``, confined as compilers are: whoever wrote a Program wrote what is in it.

    ``binary`` is its name for people.
    """
    places = (str(tool.resolve().parent), str(tool.parent))
    work = copy.parent
    confined = jail().command(
        [str(tool), option, str(copy)], work=work, cwd=work, roots=(*places, *(str(Path(p).parent) for p in places))
    )
    environment = {
        "PATH": os.pathsep.join((*places, os.environ.get("PATH", os.defpath))),
        "LANG": "C.UTF-8",
        "HOME": str(work),
        "TMPDIR": str(work),
    }
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                confined,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolMissing(f"{tool} cannot be started: {error}") from None
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ProfilerError(f"cuobjdump took longer than {TIMEOUT_S} s over {binary}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        said = output.read(MOST_TEXT).decode("utf-8", "replace")
    if code:
        if "nvdisasm" in said:
            raise ToolMissing(
                "cuobjdump needs nvdisasm beside it; pip install nvidia-cuda-nvdisasm or the CUDA toolkit"
            )
        raise ProfilerError(f"cuobjdump cannot read {binary}: {said.strip()[-300:] or f'exit code {code}'}")
    return said
