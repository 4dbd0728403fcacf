"""The runner's side of extensions that were built before it started: ``load_inline`` gives the library that was made
for exactly these sources and flags, and is torch's own for any other. Also how a call is written down, for both sides.

Standard library only; loaded by path in the runner, before the Program. Making the libraries is ``torch_build``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = ".torch_extensions"
"""In a built Program's folder: the libraries and INDEX, which has an entry per call by its digest."""

INDEX = "index.json"
ENTRY = "stitch_extension"
"""Name that every library exports its module under; the module gets the name that the call gives."""

POSITIONAL = ("name", "cpp_sources", "cuda_sources")
"""Parameters of load_inline that have their places in every version of torch."""

FLAGS = ("extra_cflags", "extra_cuda_cflags", "extra_ldflags", "extra_include_paths")
WITHOUT_EFFECT = ("name", "verbose", "build_directory", "keep_intermediates", "use_pch")
DEFAULTS: dict[str, Any] = {"is_python_module": True, "with_pytorch_error_handling": True, "no_implicit_headers": False}


def request(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """A call of load_inline, by its arguments, in one form whatever way they were given; None for one that has
    arguments of unknown meaning or type."""
    known = {"cpp_sources", "cuda_sources", "functions", "with_cuda", *FLAGS, *WITHOUT_EFFECT, *DEFAULTS}
    unknown = [key for key, value in arguments.items() if key not in known and value is not None]
    cpp, cuda = _texts(arguments.get("cpp_sources")), _texts(arguments.get("cuda_sources"))
    functions = arguments.get("functions")
    if isinstance(functions, str):
        functions = [functions]
    if isinstance(functions, list | tuple):
        functions = {name: name for name in functions}
    flags = {key: _texts(arguments.get(key)) for key in FLAGS}
    with_cuda = arguments.get("with_cuda")
    if unknown or cpp is None or cuda is None or any(texts is None for texts in flags.values()):
        return None
    if functions is not None and not isinstance(functions, dict):
        return None
    said = {key: arguments.get(key, default) for key, default in DEFAULTS.items()}
    return {
        "cpp": cpp,
        "cuda": cuda,
        "functions": None if functions is None else {str(name): str(doc) for name, doc in functions.items()},
        "with_cuda": bool(cuda) if with_cuda is None else bool(with_cuda),
        **{key: [word for text in texts or [] for word in text.split()] for key, texts in flags.items()},
        **{key: bool(value) for key, value in said.items()},
    }


def digest(wanted: Mapping[str, Any]) -> str:
    """SHA-256 of a request."""
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()


def _texts(value: Any) -> list[str] | None:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return list(value)
    return None


class Extensions(ModuleType):
    """In place of ``torch.utils.cpp_extension``, which is imported only when more of it is wanted: that takes long."""

    _folder: Path
    _index: dict[str, dict[str, str]]
    _real: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__file__"):
            raise AttributeError(name)
        return getattr(self.real(), name)

    def real(self) -> ModuleType:
        """torch's own module."""
        if self._real is None:
            del sys.modules[self.__name__]
            try:
                self._real = importlib.import_module(self.__name__)
            finally:
                _put_in_place(self)
        return self._real

    def load_inline(self, *arguments: Any, **options: Any) -> Any:
        """torch's load_inline, or what was built for the same call."""
        wanted = None
        if len(arguments) <= len(POSITIONAL):
            given = dict(zip(POSITIONAL, arguments, strict=False)) | options
            wanted = request(given)
        entry = self._index.get(digest(wanted)) if wanted is not None else None
        name = str(options.get("name", arguments[0] if arguments else ""))
        if entry is not None and "error" in entry:
            raise RuntimeError(f"Error building extension {name!r}: {entry['error']}")
        if entry is not None:
            try:
                return _load(self._folder / entry["library"], name)
            except ImportError as error:
                print(f"stitchcuda: the library built for {name} does not load ({error}); building it again")
        return self.real().load_inline(*arguments, **options)


def _load(path: Path, name: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(ENTRY, str(path))
    spec = importlib.util.spec_from_file_location(ENTRY, path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.__name__ = name
    sys.modules.setdefault(name, module)
    return module


def _put_in_place(module: ModuleType) -> None:
    sys.modules[module.__name__] = module
    parent = importlib.import_module(module.__name__.rpartition(".")[0])
    parent.cpp_extension = module  # type: ignore[attr-defined]


def install(folder: Path) -> None:
    """Let ``load_inline`` find the libraries in ``folder``, if there are any."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    module = Extensions("torch.utils.cpp_extension")
    module._folder, module._index = folder, index
    _put_in_place(module)
