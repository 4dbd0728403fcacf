"""Static rules about what a Program opens: descriptors, files, native libraries, packages.

Its own files, fresh temporary ones and descriptors that it opened itself are left alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from stitchcuda.evaluation.integrity import python_tables as tables
from stitchcuda.evaluation.integrity.python_view import View
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.symbols import IMPORTS
from stitchcuda.evaluation.integrity.trees import walk

_OPEN = frozenset({"builtins.open", "io.open", "io.FileIO"})
_WRITE = frozenset({"os.write", "os.pwrite", "os.writev", "os.dup2", "os.sendfile", "os.fdopen"})
_LOADERS = frozenset({"ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary"})
_PATHS = ("Path().read_text", "Path().read_bytes", "Path().write_text", "Path().write_bytes")
_SHELLS = ("subprocess.", "os.system", "os.popen")
_PUBLIC = frozenset({"/proc/cpuinfo", "/proc/meminfo"})
_TOOLKIT = re.compile(r"nvrtc|libcuda|cudart|cublas|cudnn|libgomp")
_INSTALL = re.compile(r"\b(pip3?|uv|conda|apt-get)\b.*\binstall\b")
_INSTALLERS = frozenset({"pip", "pip3", "uv", "conda"})


class Files:
    """The rules for one file."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.own = {
            part.id
            for node in walk(view.tree)
            if isinstance(node, ast.Assign) and self._opens(node.value)
            for target in node.targets
            for part in walk(target)
            if isinstance(part, ast.Name)
        }
        """Names bound to descriptors that the file opened itself."""

    def called(self, node: ast.Call, function: str) -> Iterator[Hit]:
        """What is opened by calling ``function``, the dotted path of what ``node`` calls."""
        if function in _OPEN or function in _WRITE:
            yield from self._descriptor(node, function)
        elif function.endswith(_PATHS) and not self._own_file(node.func):
            yield self.view.hit("writes_files" if ".write_" in function else "reads_files", node)
        elif function in _LOADERS:
            yield from self._library(node)
        elif function.startswith(_SHELLS) and self._installs(node):
            yield self.view.hit("installs_packages", node, function)

    def foreign_function(self, node: ast.AST, name: str) -> Iterator[Hit]:
        """A function of a C library that is reached through ctypes."""
        rule = "side_stream" if name.startswith(("cuStreamCreate", "cudaStreamCreate")) else IMPORTS.get(name)
        if rule is not None:
            yield self.view.hit(rule, node, f"{name} through ctypes")

    def _descriptor(self, node: ast.Call, function: str) -> Iterator[Hit]:
        if not node.args:
            return
        target = node.args[1] if function == "os.dup2" and len(node.args) > 1 else node.args[0]
        folded = self.view.folder.fold(target)
        number = folded.value if folded is not None and isinstance(folded.value, int) else None
        if number is not None:
            if number > 2 or function == "os.dup2":
                yield self.view.hit("writes_descriptors", node, f"{function}({number}, ...)")
        elif function in _OPEN:
            yield from self._opened(node, folded.value if folded is not None else None)
        elif not self._own_descriptor(target):
            yield self.view.hit("writes_descriptors", node, f"{function} to a descriptor that it did not open")

    def _opened(self, node: ast.Call, path: object) -> Iterator[Hit]:
        if self._own_file(node.args[0]) or path in _PUBLIC:
            return
        modes = [node.args[1]] if len(node.args) > 1 else []
        modes += [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
        mode = self.view.folder.text(modes[0]) if modes else None
        writes = mode is not None and any(letter in mode for letter in "wax+")
        yield self.view.hit("writes_files" if writes else "reads_files", node, f"open({path!r})" if path else "open()")

    def _own_file(self, node: ast.AST, depth: int = 0) -> bool:
        """Whether a path is made from ``__file__`` or a fresh temporary folder."""
        if depth > 8:
            return False
        names = self.view.names
        for part in walk(node):
            resolvable = isinstance(part, (ast.Name, ast.Attribute, ast.Call))
            if resolvable and any(path.startswith("tempfile.") for path in names.resolve(part)):
                return True
            values = names.values(part.id) if isinstance(part, ast.Name) else []
            if _is_file(part) or any(self._own_file(each, depth + 1) for each in values):
                return True
        return False

    def _opens(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr == "fileno":
            return True
        return any(path in tables.OPENERS for path in self.view.names.resolve(node.func))

    def _own_descriptor(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Subscript):
            node = node.value
        return node.id in self.own if isinstance(node, ast.Name) else self._opens(node)

    def _library(self, node: ast.Call) -> Iterator[Hit]:
        given = node.args[0] if node.args else None
        name = self.view.folder.text(given) if given is not None else None
        everything = given is None or (isinstance(given, ast.Constant) and given.value is None)
        if everything or (name is not None and "libc." in name):
            yield self.view.hit("native_loader", node, "the C library through ctypes")
        elif name is None or not _TOOLKIT.search(name):
            yield self.view.hit("native_loader", node)

    def _installs(self, node: ast.Call) -> bool:
        folded = [self.view.folder.fold(argument) for argument in node.args]
        words = " ".join(str(each.value) for each in folded if each is not None)
        parts = {
            part.value
            for argument in node.args
            for part in walk(argument)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        }
        return bool(_INSTALL.search(words)) or ("install" in parts and bool(parts & _INSTALLERS))


def _is_file(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "__file__"
