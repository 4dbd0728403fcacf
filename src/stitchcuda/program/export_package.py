"""A Program as a folder to import: its sources, bindings that compile them on first import, a README.

What is written needs torch and a compiler; it does not need this package.
"""

from __future__ import annotations

import ast
import hashlib
import keyword
import shutil
import sys
from pathlib import Path

from stitchcuda import syntax
from stitchcuda.errors import ProgramError
from stitchcuda.program import imports
from stitchcuda.program.bindings import render
from stitchcuda.program.files import write_program
from stitchcuda.program.flags import CXX_FLAGS, NVCC_FLAGS, NVCC_LINK_FLAGS, native_sources
from stitchcuda.program.model import Manifest, Program
from stitchcuda.program.validate import validate

_BUILD = '''
def _build():
    """Path of the compiled library: from the build folder, or made there now by {compiler}."""
    import fcntl
    import hashlib
    import shutil
    import subprocess
    import tempfile

    here = os.path.dirname(os.path.abspath(__file__))
    compiler = {find}
    if compiler is None:
        raise ImportError({missing!r})
    flags = {flags!r}
    link = {link!r}
{machine}
    key = hashlib.sha256(repr((compiler, flags, link, machine)).encode())
    for name in {files!r}:
        with open(os.path.join(here, name), "rb") as file:
            key.update(file.read())
    folder = os.environ.get("STITCHCUDA_BUILD") or os.path.join(here, "build")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        folder = os.path.join(tempfile.gettempdir(), f"stitchcuda_build_{{os.getuid()}}")
        os.makedirs(folder, mode=0o700, exist_ok=True)
    library = os.path.join(folder, "kernels_" + key.hexdigest()[:16] + ".so")
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(library):
            sources = [os.path.join(here, name) for name in {sources!r}]
            command = [compiler, *flags, "-shared", *sources, *link, "-o", library + ".part"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise ImportError("compiling failed: " + " ".join(command) + "\\n" + done.stderr[-4000:])
            os.replace(library + ".part", library)
    return library


'''

_CUDA_MACHINE = """    major, minor = torch.cuda.get_device_capability()
    machine = f"{major}{minor}" + ("a" if major >= 9 else "")
    flags += [f"-gencode=arch=compute_{machine},code=sm_{machine}"]"""

_CUDA_FIND = """shutil.which(os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc"))
    compiler = compiler or shutil.which("nvcc")"""

_CPU_MACHINE = """    with open("/proc/cpuinfo") as file:
        machine = [line for line in file.read().split("\\n\\n")[0].splitlines() if line[:5] in ("model", "flags")]
    runtimes = os.path.join(os.path.dirname(torch.__file__), "lib")
    hashed = sorted(name for name in os.listdir(runtimes) if name.startswith("libgomp-"))
    if hashed:  # torch's own OpenMP runtime, so that both share one pool of threads
        link = ["-L" + runtimes, "-l:" + hashed[0], *link]"""

MARK = "``ModelNew`` takes the place of the reference ``Model``: same constructor, same parameters, same call."
"""Stands in every package, and tells one from a folder that holds something else."""

_INIT = '''"""{title}.

{mark}
"""

from .program import ModelNew

__all__ = ["ModelNew"]
'''


def to_package(
    program: Program, folder: Path, *, title: str = "An optimised PyTorch module", replace: bool = False
) -> None:
    """Write an importable folder: ``from FOLDER import ModelNew`` works with torch and a compiler alone.

    The library is compiled on first import by nvcc or g++ for the GPU or CPU that is there, into ``build/``
    inside the folder, or into $STITCHCUDA_BUILD. ``replace``: an earlier package there is removed first.
    Raises ProgramError for an invalid Program, for a name that Python cannot import, and when ``folder`` holds
    something else already or cannot be written.
    """
    validate(program)
    name = folder.resolve().name
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ProgramError(f"'{name}' cannot be imported by that name; use letters, digits and _, such as fast_model")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not (replace and _is_package(folder)):
            raise ProgramError(f"{folder} exists and is not empty; name a new folder to export to")
        shutil.rmtree(folder)
    names = imports.local_modules(program)
    files: dict[str, str] = {}
    for path, text in program.files.items():
        if path.endswith(".py"):
            depth = path.count("/") + 1
            text = imports.rewrite(text, names, lambda node, up="." * depth: imports.relative(node, names, up))  # type: ignore[misc]
        files[path] = text
    write_program(Program(files=files, manifest=program.manifest), folder)
    try:
        (folder / "__init__.py").write_text(_INIT.format(title=title, mark=MARK), encoding="utf-8")
        if program.manifest is not None:
            (folder / "bindings.py").write_text(_bindings(program, program.manifest), encoding="utf-8")
        (folder / "README.md").write_text(_readme(program, name, title), encoding="utf-8")
    except OSError as error:
        raise ProgramError(f"the package cannot be written to {folder}: {error}") from None


def _foreign(program: Program) -> list[str]:
    """Packages besides torch that the program imports, such as the user's own that the reference comes from."""
    found: dict[str, None] = {}
    known = {"torch", *imports.local_modules(program), *sys.stdlib_module_names}
    for path, text in sorted(program.files.items()):
        for node in ast.walk(syntax.parse(text)) if path.endswith(".py") else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found |= dict.fromkeys(name for full in names if (name := full.split(".")[0]) not in known)
    return list(found)


def _is_package(folder: Path) -> bool:
    """Whether ``folder`` is what ``to_package`` wrote, so that replacing it loses nothing of the user's."""
    try:
        return MARK in (folder / "__init__.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def _bindings(program: Program, manifest: Manifest) -> str:
    cuda = manifest.target == "cuda"
    key = hashlib.sha256(program.digest.encode()).hexdigest()[:12]
    text = render(manifest, f"kernels_{key}")
    native = sorted(path for path in program.files if not path.endswith((".py", ".md", ".txt", ".json")))
    build = _BUILD.format(
        compiler="nvcc" if cuda else "g++",
        find=_CUDA_FIND if cuda else 'shutil.which(os.environ.get("CXX", "g++"))',
        missing="nvcc is missing; install the CUDA toolkit" if cuda else "g++ is missing; install it",
        flags=list(NVCC_FLAGS if cuda else (*CXX_FLAGS, "-march=native")),
        link=[*NVCC_LINK_FLAGS, *(f"-l{name}" for name in manifest.libraries)] if cuda else [],
        machine=_CUDA_MACHINE if cuda else _CPU_MACHINE,
        files=native,
        sources=native_sources(program.files, manifest.target),
    )
    lines = text.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if line.startswith("_library_path = "))
    lines[at] = f"{build}_library_path = _build()\n"
    return "".join(lines)


def _readme(program: Program, name: str, title: str) -> str:
    lines = [f"# {title}", "", "```python", f"from {name} import ModelNew", "", "model = ModelNew(...)", "```", ""]
    needs = ["PyTorch", *_foreign(program)]
    if program.manifest is None:
        lines += [f"Needs {' and '.join(needs)}."]
    else:
        needs.append("nvcc (the CUDA toolkit)" if program.manifest.target == "cuda" else "g++")
        lines += [
            f"Needs {', '.join(needs[:-1])} and {needs[-1]}.",
            "The sources are compiled once, on first import, for the device that is there,",
            "into `build/` beside this file, or into the folder that `STITCHCUDA_BUILD` names.",
            "",
            "Launchers, in plain C (`bindings.py` checks the arguments and passes the current stream):",
            "",
        ]
        lines += [f"- `{launcher.name}` in `{launcher.source}`" for launcher in program.manifest.launchers]
    lines += [
        "",
        "Load the reference's `state_dict` before use. The module is for inference: its kernels have no gradients.",
    ]
    return "\n".join(lines) + "\n"
