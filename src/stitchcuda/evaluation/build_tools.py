"""The compilers: which they are, and the command lines that turn a source into an object and objects into a library.
Where they are says ``program.compilers``; running them is ``evaluation.build``."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from stitchcuda.errors import ToolMissing
from stitchcuda.program.compilers import cpu_features, look_for_cxx, look_for_nvcc, openmp_link, torch_openmp
from stitchcuda.program.flags import CXX_FLAGS, NVCC_FLAGS, NVCC_LINK_FLAGS


@dataclass(frozen=True)
class Toolchain:
    """One compiler and its flags. ``identity`` changes with anything that changes the object code; ``suffix`` is that
    of its sources; ``roots`` are the folders that the compiler and its headers and libraries are installed in."""

    compiler: str
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    identity: str
    suffix: str = ".cpp"
    roots: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """Part of a cache key: the identity and all flags."""
        return json.dumps([self.identity, self.compile_flags, self.link_flags])

    def compile(self, source: str, output: str) -> list[str]:
        """Command line for one source to one object; the files that were read are listed in ``OUTPUT.d``."""
        return [self.compiler, *self.compile_flags, "-MD", "-MF", f"{output}.d", "-c", source, "-o", output]

    def link(self, objects: list[str], output: str) -> list[str]:
        """Command line for objects to one shared library without undefined symbols."""
        return [self.compiler, "-shared", *objects, *self.link_flags, "-o", output]


def cuda_toolchain(arch: str, libraries: tuple[str, ...] = ()) -> Toolchain:
    """nvcc for an architecture such as ``sm_90``. Raises ToolMissing when there is no nvcc."""
    nvcc = find_nvcc()
    number = arch_number(arch)
    gencode = f"-gencode=arch=compute_{number},code=sm_{number}"
    link = (gencode, *NVCC_LINK_FLAGS, "-Xlinker", "-z", "-Xlinker", "defs", *(f"-l{name}" for name in libraries))
    cxx = find_cxx()
    roots = (*cuda_roots(nvcc), installed_in(cxx))
    identity = f"{version_of(nvcc)} {version_of(cxx)}"
    return Toolchain(nvcc, (*NVCC_FLAGS, gencode), link, identity, ".cu", tuple(dict.fromkeys(roots)))


def cpu_toolchain(arch: str) -> Toolchain:
    """g++ for ``-march=ARCH``. Raises ToolMissing when there is no g++."""
    cxx = find_cxx()
    features = cpu_features() if arch == "native" else ""
    runtime = torch_openmp()
    link = ("-Wl,-z,defs", *openmp_link())
    roots = ("/usr", installed_in(cxx), *([str(runtime.parent)] if runtime is not None else []))
    identity = f"{version_of(cxx)} {features}"
    return Toolchain(cxx, (*CXX_FLAGS, f"-march={arch}"), link, identity, ".cpp", tuple(dict.fromkeys(roots)))


SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize=alignment,vptr", "-fno-sanitize-recover=all")


def sanitized(toolchain: Toolchain) -> Toolchain:
    """The same compiler, for code that ends its process at the first access out of bounds or undefined operation."""
    return replace(
        toolchain,
        compile_flags=(*toolchain.compile_flags, *SANITIZERS, "-g", "-fno-omit-frame-pointer"),
        link_flags=(*toolchain.link_flags, SANITIZERS[0]),
    )


def arch_number(arch: str) -> str:
    """``90a`` for ``sm_90``: the architecture-specific variant where there is one, so that wgmma and the like work."""
    match = re.fullmatch(r"(?:sm_|compute_)?(\d{2,3})([af]?)", arch)
    if match is None:
        raise ToolMissing(f"CUDA architecture {arch!r} is not known; expected sm_NN such as sm_80 or sm_90")
    number, suffix = match.groups()
    return number + (suffix or ("a" if int(number) >= 90 else ""))


def find_nvcc() -> str:
    """Path of nvcc, where ``program.compilers`` looks. Raises ToolMissing."""
    if found := look_for_nvcc():
        return found
    raise ToolMissing(
        "nvcc is not on this machine (looked on PATH, in CUDA_HOME and /usr/local/cuda); install the CUDA toolkit, "
        "or run with --target cpu"
    )


def find_cxx() -> str:
    """Path of the C++ compiler, where ``program.compilers`` looks. Raises ToolMissing."""
    if found := look_for_cxx():
        return found
    raise ToolMissing("no C++ compiler is on this machine; install g++ (Debian and Ubuntu: apt install g++)")


def installed_in(tool: str) -> str:
    """The folder above ``bin`` that a tool is installed in, links followed: ``/usr`` for ``/usr/bin/g++``."""
    return str(Path(os.path.realpath(tool)).parent.parent)


@functools.cache
def cuda_roots(nvcc: str) -> tuple[str, ...]:
    """Folders of the CUDA toolkit that ``nvcc`` belongs to, as nvcc itself says, also behind a wrapper script."""
    roots = ["/usr", installed_in(nvcc), str(Path(nvcc).absolute().parent.parent)]
    command = [nvcc, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return tuple(roots)
    for match in re.finditer(r"^#\$ TOP=(.+)$", done.stderr + done.stdout, re.MULTILINE):
        roots += [os.path.normpath(match[1].strip()), os.path.realpath(match[1].strip())]
    return tuple(dict.fromkeys(roots))


def version_of(compiler: str) -> str:
    """The compiler's own version text; asked once per file on disk."""
    stat = os.stat(compiler)
    return _version(compiler, stat.st_mtime_ns, stat.st_size)


@functools.cache
def _version(compiler: str, mtime_ns: int, size: int) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissing(f"{compiler} does not run ({error}); repair or reinstall it") from None
    return done.stdout.strip()
