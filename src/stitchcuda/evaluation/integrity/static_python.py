"""Static rules over a Program's Python: an AST with constants folded and aliases resolved.

This is the last and weakest layer: it reads the text, and text can be hidden. It looks for what a kernel program never
needs (replacing functions of torch, walking frames, writing to foreign descriptors) and rejects that; what an honest
program may do too is flagged. How data flows through ``forward`` is in ``python_caches`` and ``python_outputs``;
native sources are in ``static_native``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from stitchcuda.evaluation.integrity import python_tables as tables
from stitchcuda.evaluation.integrity.fold import UNKNOWN, Folder
from stitchcuda.evaluation.integrity.names import Names
from stitchcuda.evaluation.integrity.python_caches import cache_hits
from stitchcuda.evaluation.integrity.python_outputs import output_hits
from stitchcuda.evaluation.integrity.python_view import View
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.symbols import IMPORTS
from stitchcuda.evaluation.integrity.trees import docstrings, parse, under_main_guard, walk
from stitchcuda.task.model import Precision

_MEMORY_PATH = re.compile(r"/proc/[^/\s]+/(task/[^/\s]+/)?mem\b|/dev/k?mem\b")
_PROCESS_PATH = re.compile(
    r"/proc/[^/\s]+/(task/[^/\s]+/)?(maps|smaps|fd|fdinfo|environ|cmdline|stat|status|root|cwd|auxv|comm)\b"
)
_SHARED_PATH = re.compile(r"/dev/shm\b|/dev/mqueue\b")
_FAST = re.compile(
    r"^-{1,2}(use_fast_math|ftz=true|prec-div=false|prec-sqrt=false|fmad=|ffast-math|Ofast|funsafe-math-optimizations)"
)
_FAST_OTHER = re.compile(r"-ffast-math|-Ofast|-funsafe-math|-use_fast_math|-ffinite-math|-fassociative-math")
_ODD_FLAG = re.compile(
    r"-fplugin|-wrapper\b|^@|-include\b|-imacros|^-B|--?compiler-bindir|-ccbin|-specs=|-fuse-ld|--preload|-rpath"
    r"|-T[ =,]|-Wl,--wrap|--wrap="
    r"|-dlink-time|--pre-include|--options-file|-optf|-iquote\s*/|-ld-path"
)
_NATIVE_TEXT = re.compile(
    r"__global__|#\s*include\s*[<\"]|extern\s+\"C\"|PYBIND11_MODULE|cuda(Stream|Event|Memcpy|Launch)|torch::Tensor|at::Tensor"
    r"|\.visible \.entry"
)
_REFERENCE_FILES = re.compile(
    r"(^|/)(reference|ref_?model|task|solution|answer|expected|baseline|original)s?\.(py|pt|pth|npy|npz|pkl|json)$"
)
_REFERENCE_MODULES = frozenset(
    {"reference", "reference_model", "ref_model", "original_model", "kernelbench", "KernelBench"}
)
_INSTALL = re.compile(r"\b(pip3?|uv|conda|apt-get)\b.*\binstall\b")
_RUNNING = frozenset({"exec", "eval"})


def python_hits(
    path: str,
    source: str,
    *,
    precision: Precision,
    local: frozenset[str],
    outputs: Mapping[str, tuple[int, ...]] | None = None,
) -> list[Hit]:
    """Hits in one Python file.

    ``local`` are the names of the Program's own modules, ``outputs`` the positions of each launcher's output arguments.
    A file that does not parse gives none: the build says so.
    """
    tree = parse(source)
    if tree is None:
        return []
    try:
        scan = _Scan(path, tree, precision, local)
        view = View(path, tree, scan.folder, scan.names)
        return [*scan.run(), *cache_hits(view), *output_hits(view, outputs or {})]
    except RecursionError:
        return [Hit("dynamic_code", path, 0, "expressions are nested too deeply to be read")]


def native_texts(source: str) -> list[tuple[int, str]]:
    """C++ and CUDA sources that a Python file holds as strings, each with the line it starts in."""
    tree = parse(source)
    if tree is None:
        return []
    folder = Folder(tree)
    docs = docstrings(tree)
    found: list[tuple[int, str]] = []
    inner: set[int] = set()
    for node in walk(tree):
        if id(node) in inner or id(node) in docs:
            continue
        if isinstance(node, (ast.Constant, ast.BinOp, ast.JoinedStr, ast.Call)):
            text = folder.text(node)
            if text is not None and _NATIVE_TEXT.search(text):
                inner.update(id(part) for part in walk(node))
                found.append((node.lineno, text))
    return found


class _Scan:
    """One pass over one file."""

    def __init__(self, path: str, tree: ast.Module, precision: Precision, local: frozenset[str]) -> None:
        self.path, self.tree, self.precision, self.local = path, tree, precision, local
        self.folder = Folder(tree)
        self.names = Names(tree, self.folder)
        self.docs = docstrings(tree)
        self.own_descriptors = self._own_descriptors()
        self.main_guard = under_main_guard(tree)
        self.assigned = {
            id(target): node.value for node in walk(tree) if isinstance(node, ast.Assign) for target in node.targets
        }

    def run(self) -> Iterator[Hit]:
        for node in walk(self.tree):
            if id(node) in self.main_guard:
                continue
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from self._import(node)
            elif isinstance(node, ast.Call):
                yield from self._call(node)
            if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
                if isinstance(node.ctx, ast.Load):
                    yield from self._reference(node)
                else:
                    yield from self._store(node)
            if isinstance(node, (ast.Constant, ast.BinOp, ast.JoinedStr)) and id(node) not in self.docs:
                yield from self._string(node)
        yield from self._loose_reference()

    def hit(self, rule: str, node: ast.AST, what: str) -> Hit:
        return Hit(rule, self.path, getattr(node, "lineno", 0), what)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[Hit]:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif node.level:
            return
        else:
            modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        for module in modules:
            yield from self._module(node, module)
            if (rule := tables.REFERENCES.get(module)) is not None:
                yield self.hit(rule, node, module)

    def _module(self, node: ast.AST, module: str) -> Iterator[Hit]:
        root = module.split(".")[0]
        if root in self.local:
            return
        if root in ("__main__", "stitchcuda", "stitchcuda_runner"):
            yield self.hit("enters_harness", node, f"import of {module}")
        elif root in _REFERENCE_MODULES:
            yield self.hit("reads_reference", node, f"import of {module}")
        elif root in tables.FOREIGN:
            yield self.hit("foreign_library", node, f"import of {module}")

    def _reference(self, node: ast.Name | ast.Attribute | ast.Subscript) -> Iterator[Hit]:
        if isinstance(node, ast.Attribute):
            if node.attr in tables.FRAME_ATTRIBUTES:
                yield self.hit("walks_frames", node, f".{node.attr}")
            elif node.attr in tables.NEST_ATTRIBUTES:
                yield self.hit("inspects_process", node, f".{node.attr}")
        for path in self.names.resolve(node):
            rule = tables.REFERENCES.get(path)
            if rule == "dynamic_code" and path.rpartition(".")[2] in _RUNNING:
                continue  # judged at the call, with its argument
            if rule is not None and not (rule == "enters_harness" and path.split(".")[0] in self.local):
                yield self.hit(rule, node, path)
            elif (
                path.startswith(("stitchcuda_runner.", "stitchcuda.", "__main__."))
                and path.split(".")[0] not in self.local
            ):
                yield self.hit("enters_harness", node, path)
            elif path.startswith("ctypes.pythonapi."):
                yield self.hit("raw_memory", node, path)
            elif isinstance(node, ast.Attribute) and path.startswith(("ctypes.CDLL().", "ctypes.cdll.LoadLibrary().")):
                yield from self._foreign_function(node, node.attr)

    def _store(self, node: ast.Name | ast.Attribute | ast.Subscript) -> Iterator[Hit]:
        if isinstance(node, ast.Name):
            return
        if isinstance(node, ast.Subscript):
            for base in self.names.resolve(node.value):
                key = self.folder.text(node.slice)
                if base == "sys.modules":
                    if key is None or key.split(".")[0] in tables.PATCHED_ROOTS:
                        yield self.hit("patches_framework", node, f"sys.modules[{key!r}] is set")
                elif base.endswith(".__dict__"):
                    yield from self._patched(node, f"{base.removesuffix('.__dict__')}.{key or '?'}")
                elif base == "os.environ":
                    yield from self._environment(node, key)
            return
        for base in self.names.resolve(node.value):
            yield from self._patched(node, f"{base}.{node.attr}")

    def _patched(self, node: ast.AST, path: str) -> Iterator[Hit]:
        owner, _, name = path.rpartition(".")
        root = path.split(".")[0]
        if root not in tables.PATCHED_ROOTS or root in self.local:
            return
        if path in tables.REDIRECTS:
            yield self.hit("changes_environment", node, f"{path} is set")
        elif path.startswith(tables.SETTINGS_PREFIXES):
            yield from self._setting(node, path)
        elif "()" in owner:  # an attribute of an object, such as a module's weight; only a timer's methods matter
            if name in tables.TIMER_METHODS:
                yield self.hit("patches_timer", node, f"{path} is set")
            elif name in tables.TENSOR_METHODS and owner.startswith("torch.") and not owner.startswith("torch.nn."):
                yield self.hit("tensor_subclass", node, f"{path} is set")
        elif path.startswith(tables.TIMER_PREFIXES) or name in tables.TIMER_METHODS:
            yield self.hit("patches_timer", node, f"{path} is set")
        else:
            yield self.hit("patches_framework", node, f"{path} is set")

    def _setting(self, node: ast.AST, path: str) -> Iterator[Hit]:
        if "tf32" in path or "reduced_precision" in path or "fp32_precision" in path:
            value = self.assigned.get(id(node))
            folded = self.folder.fold(value) if value is not None else None
            off = folded is not None and folded.value in (False, "ieee", "none")
            if self.precision == "fp32" and not off:
                yield self.hit("precision_switch", node, f"{path} is set")
        elif path.startswith("torch.utils.cpp_extension."):
            yield self.hit("changes_environment", node, f"{path} is set")

    def _environment(self, node: ast.AST, key: str | None) -> Iterator[Hit]:
        if key is None or key.startswith(
            ("LD_", "PYTHON", "TORCHDYNAMO", "NVIDIA_", "CUDA_LAUNCH", "CUBLAS", "OMP_", "CUDA_MODULE")
        ):
            rule = "precision_switch" if key == "NVIDIA_TF32_OVERRIDE" else "changes_environment"
            yield self.hit(rule, node, f"os.environ[{key!r}] is set")

    def _call(self, node: ast.Call) -> Iterator[Hit]:
        functions = self.names.resolve(node.func)
        for function in functions:
            yield from self._named_call(node, function)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for path in self.names.resolve(node):  # what a roundabout look-up gives: getattr(os, "_ex" + "it")
            if path in tables.REFERENCES and path.rpartition(".")[2] not in _RUNNING:
                yield self.hit(tables.REFERENCES[path], node, path)
        if name == "manual_seed" and not functions & tables.REFERENCES.keys():
            yield self.hit("fixed_seed", node, ".manual_seed()")
        if name in ("half", "bfloat16") and not node.args and self.precision == "fp32":
            yield self.hit("precision_switch", node, f".{name}()")
        for keyword in node.keywords:
            if keyword.arg in tables.FLAG_ARGUMENTS:
                yield from self._flags(keyword.value)
        if name == "set_float32_matmul_precision" and self.precision == "fp32":
            asked = self.folder.text(node.args[0]) if node.args else None
            if asked != "highest":
                yield self.hit("precision_switch", node, f"set_float32_matmul_precision({asked!r})")
        if name == "register_module_forward_hook":
            yield self.hit("changes_environment", node, name)

    def _named_call(self, node: ast.Call, function: str) -> Iterator[Hit]:
        arguments = node.args
        if function in (
            "builtins.setattr",
            "builtins.delattr",
            "builtins.type.__setattr__",
            "builtins.object.__setattr__",
        ):
            if len(arguments) >= 2:
                name = self.folder.text(arguments[1])
                for base in self.names.resolve(arguments[0]):
                    yield from self._patched(node, f"{base}.{name or '?'}")
        elif function.endswith(("mock.patch", "mock.patch.object", "forbiddenfruit.curse")):
            yield self.hit("patches_framework", node, function)
        elif function.endswith((".__setattr__", ".__dict__.update", ".__dict__.__setitem__", ".__dict__.setdefault")):
            base = (
                function.removesuffix(".update")
                .removesuffix(".__setitem__")
                .removesuffix(".setdefault")
                .removesuffix(".__setattr__")
            )
            key = (self.folder.text(arguments[0]) if arguments else None) or "?"
            yield from self._patched(node, f"{base.removesuffix('.__dict__')}.{key}")
        elif function in tables.HIDDEN_RUNNERS:
            yield from self._executed(node, function)
        elif function in ("importlib.import_module", "builtins.__import__", "importlib.__import__") and arguments:
            yield from self._imported(node, arguments[0])
        elif function in (
            "os.write",
            "os.pwrite",
            "os.writev",
            "os.dup2",
            "os.sendfile",
            "os.fdopen",
            "builtins.open",
            "io.open",
            "io.FileIO",
        ):
            yield from self._descriptor(node, function)
        elif function.endswith(
            (
                "pathlib.Path().read_text",
                "pathlib.Path().read_bytes",
                "pathlib.Path().write_text",
                "pathlib.Path().write_bytes",
            )
        ):
            if not self._own_file(node.func):
                rule = "writes_files" if "write" in function else "reads_files"
                yield self.hit(rule, node, function.rpartition(".")[2])
        elif function in ("os.environ.setdefault", "os.putenv") and arguments:
            yield from self._environment(node, self.folder.text(arguments[0]))
        elif function in ("ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary", "ctypes.WinDLL"):
            yield from self._library(node)
        elif function.startswith(("subprocess.", "os.system", "os.popen")) and self._installs(node):
            yield self.hit("installs_packages", node, function)

    def _executed(self, node: ast.Call, function: str) -> Iterator[Hit]:
        folded = self.folder.fold(node.args[0]) if node.args else None
        if folded is None:
            maker = next((True for part in walk(node) if part is not node and self._decodes(part)), False)
            yield self.hit(
                "executes_hidden_code" if maker else "dynamic_code",
                node,
                f"{function.removeprefix('builtins.')} of a computed value",
            )
            return
        if folded.decoded:
            yield self.hit("executes_hidden_code", node, f"{function.removeprefix('builtins.')} of decoded text")
        elif function != "builtins.compile":
            yield self.hit("dynamic_code", node, function.removeprefix("builtins."))
        if isinstance(folded.value, (str, bytes)):
            text = folded.value if isinstance(folded.value, str) else folded.value.decode(errors="replace")
            for inner in python_hits(self.path, text, precision=self.precision, local=self.local):
                yield Hit(inner.rule, self.path, node.lineno, f"in executed text: {inner.what}")

    def _decodes(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in (
            "b64decode",
            "b85decode",
            "a85decode",
            "unhexlify",
            "fromhex",
            "decompress",
            "rot13",
            "decodebytes",
        ) or (
            name in ("decode",)
            and any(self.folder.text(argument) in ("rot13", "rot_13", "hex", "base64") for argument in node.args)
        )

    def _imported(self, node: ast.Call, argument: ast.expr) -> Iterator[Hit]:
        module = self.folder.text(argument)
        if module is None or UNKNOWN in module:
            yield self.hit("dynamic_import", node, "the name is computed")
            return
        yield from self._module(node, module)

    def _descriptor(self, node: ast.Call, function: str) -> Iterator[Hit]:
        if not node.args:
            return
        opened = function in ("builtins.open", "io.open", "io.FileIO")
        target = node.args[1] if function == "os.dup2" and len(node.args) > 1 else node.args[0]
        folded = self.folder.fold(target)
        if opened and (folded is None or not isinstance(folded.value, int)):
            yield from self._opened(node, folded.value if folded is not None else None)
            return
        if folded is not None and isinstance(folded.value, int):
            if folded.value > 2 or function == "os.dup2":
                yield self.hit("writes_descriptors", node, f"{function}({folded.value}, ...)")
        elif not self._own_descriptor(target):
            yield self.hit("writes_descriptors", node, f"{function} to a descriptor that it did not open")

    def _opened(self, node: ast.Call, path: object) -> Iterator[Hit]:
        if self._own_file(node.args[0]):
            return
        mode = self.folder.text(node.args[1]) if len(node.args) > 1 else None
        for keyword in node.keywords:
            if keyword.arg == "mode":
                mode = self.folder.text(keyword.value)
        if isinstance(path, str) and path in ("/proc/cpuinfo", "/proc/meminfo"):
            return
        writes = mode is not None and any(letter in mode for letter in "wax+")
        yield self.hit("writes_files" if writes else "reads_files", node, f"open({path!r})" if path else "open()")

    def _own_file(self, node: ast.AST, depth: int = 0) -> bool:
        """Whether a path is made from ``__file__`` or a fresh temporary folder."""
        if depth > 8:
            return False
        for part in walk(node):
            if isinstance(part, ast.Name) and part.id == "__file__":
                return True
            if isinstance(part, (ast.Name, ast.Attribute, ast.Call)):
                for path in self.names.resolve(part):
                    if path.startswith("tempfile."):
                        return True
            if isinstance(part, ast.Name) and any(
                self._own_file(value, depth + 1) for value in self.names.values(part.id)
            ):
                return True
        return False

    def _own_descriptors(self) -> set[str]:
        """Names bound to descriptors that the file opened itself."""
        own: set[str] = set()
        for node in walk(self.tree):
            if isinstance(node, ast.Assign) and self._opens(node.value):
                names = (part for target in node.targets for part in walk(target) if isinstance(part, ast.Name))
                own.update(name.id for name in names)
        return own

    def _opens(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr == "fileno":
            return True
        return any(path in tables.OPENERS for path in self.names.resolve(node.func))

    def _own_descriptor(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Subscript):
            node = node.value
        return node.id in self.own_descriptors if isinstance(node, ast.Name) else self._opens(node)

    def _foreign_function(self, node: ast.AST, name: str) -> Iterator[Hit]:
        """A function of a C library that is reached through ctypes."""
        rule = IMPORTS.get(name)
        if name.startswith(("cuStreamCreate", "cudaStreamCreate")):
            rule = "side_stream"
        if rule is not None:
            yield self.hit(rule, node, f"{name} through ctypes")

    def _library(self, node: ast.Call) -> Iterator[Hit]:
        name = self.folder.text(node.args[0]) if node.args else None
        if (
            not node.args
            or (isinstance(node.args[0], ast.Constant) and node.args[0].value is None)
            or (name and "libc." in name)
        ):
            yield self.hit("native_loader", node, "the C library through ctypes")
        elif name is None or not re.search(r"(nvrtc|libcuda|cudart|cublas|cudnn|libgomp)", name):
            yield self.hit("native_loader", node, f"ctypes.CDLL({name!r})" if name else "ctypes.CDLL")

    def _installs(self, node: ast.Call) -> bool:
        words = " ".join(
            str(folded.value) for argument in node.args if (folded := self.folder.fold(argument)) is not None
        )
        parts = [
            part.value
            for argument in node.args
            for part in walk(argument)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        return bool(
            _INSTALL.search(words)
            or ("install" in parts and any(part in ("pip", "pip3", "uv", "conda") for part in parts))
        )

    def _flags(self, node: ast.AST) -> Iterator[Hit]:
        for part in walk(node):
            text = self.folder.text(part) if isinstance(part, (ast.Constant, ast.BinOp, ast.JoinedStr)) else None
            if isinstance(part, ast.Constant) and isinstance(part.value, bytes):
                text = part.value.decode(errors="replace")
            if text is None:
                continue
            if (_FAST.search(text) and "fmad=true" not in text) or _FAST_OTHER.search(text):
                if self.precision == "fp32":
                    yield self.hit("fast_math", part, text)
            elif _ODD_FLAG.search(text):
                yield self.hit("build_flags", part, text)

    def _string(self, node: ast.expr) -> Iterator[Hit]:
        text = self.folder.text(node)
        if text is None or (len(text) > 4096 and _NATIVE_TEXT.search(text)):
            return
        if _MEMORY_PATH.search(text):
            yield self.hit("reads_process_memory", node, repr(text[:80]))
        elif match := _PROCESS_PATH.search(text):
            yield self.hit("inspects_process", node, repr(match[0]))
        elif _SHARED_PATH.search(text):
            yield self.hit("shares_memory", node, repr(text[:80]))
        elif text == "LD_PRELOAD":
            yield self.hit("changes_environment", node, text)
        elif _REFERENCE_FILES.search(text) and text.split("/")[-1].removesuffix(".py") not in self.local:
            yield self.hit("reads_files", node, repr(text[:80]))

    def _loose_reference(self) -> Iterator[Hit]:
        """``Model``, ``get_inputs`` and ``get_init_inputs`` that the file uses and nothing in it defines."""
        for node in walk(self.tree):
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                return
        wanted = {"Model", "get_inputs", "get_init_inputs"}
        for node in walk(self.tree):
            if not isinstance(node, ast.Name) or node.id not in wanted or node.id in self.names:
                continue
            if isinstance(node.ctx, ast.Load) and id(node) not in self.main_guard:
                yield self.hit("reads_reference", node, f"{node.id} is not defined here")
