"""How an exported package compiles its library: once, on first import, or not at all where that was done before.

A package carries the text below; the standard library alone, as in ``compilers``.
"""

import fcntl
import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable


def gencode(capability: "tuple[int, int]") -> str:
    """nvcc's flag for a compute capability, with what only that architecture has where there is such (wgmma)."""
    major, minor = capability
    number = f"{major}{minor}" + ("a" if major >= 9 else "")
    return f"-gencode=arch=compute_{number},code=sm_{number}"


def built_library(
    here: str,
    look_for_compiler: "Callable[[], str | None]",
    missing: str,
    *,
    files: "list[str]",
    sources: "list[str]",
    flags: "list[str]",
    link: "list[str]",
    machine: str,
) -> str:
    """Path of the library of the package in the folder ``here``.

    It lies in ``build/`` there, or in $STITCHCUDA_BUILD. Where neither holds it and that one cannot be written, as in
    an image or another user's folder, it lies in a folder of this user's among the temporary files. Its name tells the
    texts of ``files``, the flags and the ``machine`` apart, and it is moved into place whole: one that is there is
    used as it is, without a compiler and without a lock. Raises ImportError, which says ``missing`` for no compiler.
    """
    key = hashlib.sha256(repr((flags, [flag for flag in link if not flag.startswith("-L")], machine)).encode())
    for name in files:
        with open(os.path.join(here, name), "rb") as file:
            key.update(file.read())
    name = f"kernels_{key.hexdigest()[:16]}.so"
    shared = os.environ.get("STITCHCUDA_BUILD") or os.path.join(here, "build")
    private = os.path.join(tempfile.gettempdir(), f"stitchcuda_build_{os.getuid()}")
    if os.access(os.path.join(shared, name), os.R_OK):
        return os.path.join(shared, name)
    if os.path.exists(os.path.join(private, name)) and _is_private(private):
        return os.path.join(private, name)
    compiler = look_for_compiler()
    if compiler is None:
        raise ImportError(missing)
    refusals = []
    for folder, mode in ((shared, 0o777), (private, 0o700)):
        try:
            os.makedirs(folder, mode=mode, exist_ok=True)
            if folder == private and not _is_private(folder):
                raise PermissionError("others can write to it")
            library = os.path.join(folder, name)
            with open(os.path.join(folder, "lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not os.path.exists(library):
                    _compile(compiler, [os.path.join(here, source) for source in sources], flags, link, library)
            return library
        except OSError as error:
            refusals.append(f"{folder}: {error}")
    raise ImportError(
        f"no folder to compile into ({'; '.join(refusals)}); set STITCHCUDA_BUILD to one that can be written"
    )


def _is_private(folder: str) -> bool:
    """Whether nobody else can have put a library into ``folder``, whose name anybody can guess."""
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _compile(compiler: str, sources: "list[str]", flags: "list[str]", link: "list[str]", library: str) -> None:
    with tempfile.TemporaryDirectory(dir=os.path.dirname(library)) as work:
        outputs = {source: os.path.join(work, f"{number}.o") for number, source in enumerate(sources)}
        commands = [[compiler, *flags, "-c", source, "-o", output] for source, output in outputs.items()]
        whole = os.path.join(work, "kernels.so")
        for command in [*commands, [compiler, "-shared", *outputs.values(), *link, "-o", whole]]:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ImportError("compiling failed: " + " ".join(command) + "\n" + done.stderr[-4000:])
        os.replace(whole, library)
