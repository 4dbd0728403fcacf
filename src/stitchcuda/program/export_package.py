"""A Program as a folder to import: its sources, bindings that compile them on first import, a README.

What is written needs torch and a compiler; it does not need this package.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import keyword
import shutil
import sys
from pathlib import Path
from types import ModuleType

from stitchcuda import syntax
from stitchcuda.errors import ProgramError
from stitchcuda.program import compilers, imports, package_build
from stitchcuda.program.bindings import render
from stitchcuda.program.files import write_program
from stitchcuda.program.flags import CXX_FLAGS, NVCC_FLAGS, NVCC_LINK_FLAGS, native_sources
from stitchcuda.program.model import Manifest, Program
from stitchcuda.program.validate import validate

_FIND = {
    "cuda": ("look_for_nvcc", "nvcc is missing; install the CUDA toolkit"),
    "cpu": ("look_for_cxx", "g++ is missing; install it"),
}

_BUILD = """_library_path = built_library(
    os.path.dirname(os.path.abspath(__file__)),
    {find},
    {missing!r},
    files={files!r},
    sources={sources!r},
    flags={flags},
    link={link},
    machine={machine},
)
"""

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

    The library is compiled on first import by nvcc or g++ for the GPU or CPU that is there, as ``package_build`` says:
    the package carries that file's text. ``replace``: an earlier package there is removed first.
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
    find, missing = _FIND[manifest.target]
    if cuda:
        flags = f"[*{list(NVCC_FLAGS)!r}, gencode(torch.cuda.get_device_capability())]"
        libraries = [*NVCC_LINK_FLAGS, *(f"-l{name}" for name in manifest.libraries)]
        link, machine = f"[gencode(torch.cuda.get_device_capability()), *{libraries!r}]", "''"
    else:
        flags, link, machine = repr([*CXX_FLAGS, "-march=native"]), "openmp_link()", "cpu_features()"
    build = _BUILD.format(
        find=find,
        missing=missing,
        files=native,
        sources=native_sources(program.files, manifest.target),
        flags=flags,
        link=link,
        machine=machine,
    )
    lines = text.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if line.startswith("_library_path = "))
    lines[at] = f"\n{_text_of(compilers)}\n\n{_text_of(package_build)}\n\n{build}"
    return "".join(lines)


def _text_of(module: ModuleType) -> str:
    """A module's text below its docstring."""
    return inspect.getsource(module).split('"""', 2)[2].lstrip()


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
            "into `build/` beside this file, or into the folder that `STITCHCUDA_BUILD` names. Once that is done, no",
            "compiler is needed, and the folder may be read-only or another user's. Where nothing is compiled yet and",
            "that folder cannot be written, each user gets one among the temporary files.",
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
