"""Static rules about what a Program sets: functions of other libraries, the modules table, settings, the environment.

Attributes of the Program's own objects and classes, and the settings that torch means to be set, are left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stitchcuda.evaluation.integrity import python_tables as tables
from stitchcuda.evaluation.integrity.names import FOREIGN_TYPE
from stitchcuda.evaluation.integrity.python_view import ALLOCATORS, View, called_name
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.trees import walk
from stitchcuda.task.model import Precision

_SETTERS = frozenset(
    {"builtins.setattr", "builtins.delattr", "builtins.type.__setattr__", "builtins.object.__setattr__"}
)
_MAPPING_SETTERS = (".__dict__.update", ".__dict__.__setitem__", ".__dict__.setdefault")
_REPLACERS = ("mock.patch", "mock.patch.object", "forbiddenfruit.curse")
_VARIABLES = ("LD_", "PYTHON", "TORCHDYNAMO", "NVIDIA_", "CUDA_LAUNCH", "CUBLAS", "OMP_", "CUDA_MODULE")


class Patches:
    """The rules for one file. ``local`` are the names of the Program's own modules."""

    def __init__(self, view: View, precision: Precision, local: frozenset[str]) -> None:
        self.view, self.precision, self.local = view, precision, local
        self.addresses = any(
            called_name(node) == "from_address" and any(called_name(part) == "id" for part in walk(node))
            for node in walk(view.tree)
        )
        """Whether the file looks at Python objects as memory."""
        self.assigned = {
            id(target): node.value
            for node in walk(view.tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
        }

    def stored(self, node: ast.Attribute | ast.Subscript) -> Iterator[Hit]:
        """What is set or deleted by a statement."""
        names, folder = self.view.names, self.view.folder
        if isinstance(node, ast.Attribute):
            if called_name(node.value) == "from_address" and self.addresses:
                yield self.view.hit("patches_code", node, "memory at the address of a Python object is written")
            for owner in names.resolve(node.value):
                yield from self._set(node, f"{owner}.{node.attr}")
            return
        for owner in names.resolve(node.value):
            key = folder.text(node.slice)
            if owner == "sys.modules" and (key is None or key.split(".")[0] in tables.PATCHED_ROOTS):
                yield self.view.hit("patches_framework", node, f"sys.modules[{key!r}] is set")
            elif owner.endswith(".__dict__"):
                yield from self._set(node, f"{owner.removesuffix('.__dict__')}.{key or '?'}")
            elif owner == "os.environ":
                yield from self._environment(node, key)

    def called(self, node: ast.Call, function: str) -> Iterator[Hit]:
        """What is set by calling ``function``, the dotted path of what ``node`` calls."""
        names, folder, arguments = self.view.names, self.view.folder, node.args
        first = folder.text(arguments[0]) if arguments else None
        if function == "builtins.type.__setattr__" and arguments and not self._own_class(arguments[0]):
            yield self.view.hit("patches_framework", node, "type.__setattr__ of a type that is not its own")
        elif function in _SETTERS and len(arguments) >= 2:
            for owner in names.resolve(arguments[0]):
                yield from self._set(node, f"{owner}.{folder.text(arguments[1]) or '?'}")
        elif function.endswith(_REPLACERS):
            yield self.view.hit("patches_framework", node, function)
        elif function.endswith(_MAPPING_SETTERS):
            yield from self._set(node, f"{function.rpartition('.__dict__.')[0]}.{first or '?'}")
        elif function.endswith(".__setattr__") and function not in _SETTERS:
            yield from self._set(node, f"{function.removesuffix('.__setattr__')}.{first or '?'}")
        elif function in ("os.environ.setdefault", "os.putenv") and arguments:
            yield from self._environment(node, first)

    def _own_class(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and (node.id in self.view.classes or node.id == "cls")

    def _set(self, node: ast.AST, path: str) -> Iterator[Hit]:
        owner, _, name = path.rpartition(".")
        root = path.split(".")[0]
        what = f"{path} is set"
        if owner == FOREIGN_TYPE and name != "?" and name in tables.TENSOR_METHODS:
            yield self.view.hit("patches_framework", node, f"{name} of a type that it was given is set")
        if root not in tables.PATCHED_ROOTS or root in self.local:
            return
        if path in tables.REDIRECTS:
            yield self.view.hit("changes_environment", node, what)
        elif path.startswith(tables.SETTINGS_PREFIXES):
            yield from self._setting(node, path)
        elif "()" in owner:  # an attribute of an object, such as a module's weight
            if name in tables.TIMER_METHODS:
                yield self.view.hit("patches_timer", node, what)
            elif name in tables.TENSOR_METHODS and owner.startswith("torch.") and not owner.startswith("torch.nn."):
                yield self.view.hit("tensor_subclass", node, what)
                if owner.removesuffix("()").rpartition(".")[2] in ALLOCATORS:
                    yield self.view.hit("lazy_answer", node, what)
        elif path.startswith(tables.TIMER_PREFIXES) or name in tables.TIMER_METHODS:
            yield self.view.hit("patches_timer", node, what)
        else:
            yield self.view.hit("patches_framework", node, what)

    def _setting(self, node: ast.AST, path: str) -> Iterator[Hit]:
        if "tf32" in path or "reduced_precision" in path or "fp32_precision" in path:
            value = self.assigned.get(id(node))
            folded = self.view.folder.fold(value) if value is not None else None
            off = folded is not None and folded.value in (False, "ieee", "none")
            if self.precision == "fp32" and not off:
                yield self.view.hit("precision_switch", node, f"{path} is set")
        elif path.startswith("torch.utils.cpp_extension."):
            yield self.view.hit("changes_environment", node, f"{path} is set")

    def _environment(self, node: ast.AST, key: str | None) -> Iterator[Hit]:
        if key is None or key.startswith(_VARIABLES):
            rule = "precision_switch" if key == "NVIDIA_TF32_OVERRIDE" else "changes_environment"
            yield self.view.hit(rule, node, f"os.environ[{key!r}] is set")
