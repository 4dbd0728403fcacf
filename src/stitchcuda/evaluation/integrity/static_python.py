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
from stitchcuda.evaluation.integrity.python_answers import answer_hits
from stitchcuda.evaluation.integrity.python_caches import cache_hits
from stitchcuda.evaluation.integrity.python_files import Files
from stitchcuda.evaluation.integrity.python_launches import launch_hits
from stitchcuda.evaluation.integrity.python_outputs import output_hits
from stitchcuda.evaluation.integrity.python_patches import Patches
from stitchcuda.evaluation.integrity.python_streams import stream_hits
from stitchcuda.evaluation.integrity.python_threads import thread_hits
from stitchcuda.evaluation.integrity.python_view import View, called_name
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.trees import docstrings, parse, under_main_guard, walk
from stitchcuda.evaluation.integrity.words import words
from stitchcuda.task.model import Precision

_MEMORY_PATH = re.compile(r"/proc/[^/\s]+/(task/[^/\s]+/)?mem\b|/dev/k?mem\b")
_PROCESS_PATH = re.compile(
    r"/proc/[^/\s]+/(task/[^/\s]+/)?(maps|smaps|fd|fdinfo|environ|cmdline|stat|status|root|cwd|auxv|comm)\b"
)
_SHARED_PATH = re.compile(r"/dev/shm\b|/dev/mqueue\b")
_SEARCHED_PATH = re.compile(r"/dev/(shm|mqueue)/?($|[^\s]*[*?])")
_FAST = re.compile(
    r"^-{1,2}(use_fast_math|ftz=true|prec-div=false|prec-sqrt=false|fmad=|ffast-math|Ofast|funsafe-math-optimizations)"
)
_FAST_OTHER = re.compile(r"-ffast-math|-Ofast|-funsafe-math|-use_fast_math|-ffinite-math|-fassociative-math")
_ODD_FLAG = re.compile(
    r"-fplugin|-wrapper\b|^@|-include\b|-imacros|^-B/|-specs=|--preload|-Wl,--wrap|--wrap=|-dlink-time|--pre-include"
    r"|--options-file|-optf"
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
_DECODERS = words("b64decode b85decode a85decode b32decode unhexlify fromhex decompress decodebytes")
_ODD_CODECS = frozenset({"rot13", "rot_13", "hex", "base64", "zlib"})
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
    folder = Folder(tree)
    view = View(path, tree, folder, Names(tree, folder))
    return [
        *_Scan(view, precision, local).run(),
        *cache_hits(view),
        *output_hits(view),
        *stream_hits(view),
        *view.all(answer_hits(view, precision)),
        *view.all(thread_hits(view)),
        *view.all(launch_hits(view, outputs or {})),
    ]


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

    def __init__(self, view: View, precision: Precision, local: frozenset[str]) -> None:
        self.view, self.precision, self.local = view, precision, local
        self.path, self.tree, self.folder, self.names = view.path, view.tree, view.folder, view.names
        self.hit = view.hit
        self.patches, self.files = Patches(view, precision, local), Files(view)
        self.docs = docstrings(view.tree)
        self.main_guard = under_main_guard(view.tree)
        self.classes = {node.name: node for node in walk(view.tree) if isinstance(node, ast.ClassDef)}

    def run(self) -> Iterator[Hit]:
        for node in walk(self.tree):
            if id(node) not in self.main_guard:
                yield from self.view.all(self._node(node))
        yield from self._loose_reference()

    def _node(self, node: ast.AST) -> Iterator[Hit]:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from self._import(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            if isinstance(node.ctx, ast.Load):
                yield from self._reference(node)
            elif not isinstance(node, ast.Name):
                yield from self.patches.stored(node)
        if isinstance(node, (ast.Constant, ast.BinOp, ast.JoinedStr)) and id(node) not in self.docs:
            yield from self._string(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[Hit]:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif node.level:
            return
        else:
            modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        for module in modules:
            yield from self._module(node, module)
            rules = {tables.REFERENCES.get(module), tables.REFERENCES.get(module.split(".")[0])} - {
                None,
                "enters_harness",
            }
            for rule in filter(None, rules):
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
                yield from self.files.foreign_function(node, node.attr)

    def _call(self, node: ast.Call) -> Iterator[Hit]:
        functions = self.names.resolve(node.func)
        for function in functions:
            yield from self._named_call(node, function)
        name = called_name(node)
        for path in self.names.resolve(node):  # what a roundabout look-up gives: getattr(os, "_ex" + "it")
            if path in tables.REFERENCES and path.rpartition(".")[2] not in _RUNNING:
                yield self.hit(tables.REFERENCES[path], node, path)
        if name == "compile" and isinstance(node.func, ast.Attribute) and self._is_module(node.func.value):
            yield self.hit("compiler_wrap", node, ".compile() of a module")
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

    def _is_module(self, node: ast.expr) -> bool:
        """Whether a thing is surely a ``torch.nn.Module`` with torch's methods: made of a class of torch's; or ``self``
        or made of a class of this file, where all of these are modules."""
        if any(path.startswith("torch.nn.") and path.endswith("()") for path in self.names.resolve(node)):
            return True
        if "compile" in self.names or not self.classes or not all(map(self._is_module_class, self.classes.values())):
            return False
        if isinstance(node, ast.Name) and node.id == "self":
            return True
        made = self.names.values(ast.unparse(node)) if isinstance(node, (ast.Name, ast.Attribute)) else [node]
        return any(isinstance(each, ast.Call) and called_name(each) in self.classes for each in made)

    def _is_module_class(self, node: ast.ClassDef) -> bool:
        return any(path.startswith("torch.nn.") for base in node.bases for path in self.names.resolve(base))

    def _named_call(self, node: ast.Call, function: str) -> Iterator[Hit]:
        yield from self.patches.called(node, function)
        yield from self.files.called(node, function)
        if function in tables.HIDDEN_RUNNERS:
            yield from self._executed(node, function)
        elif function in ("importlib.import_module", "builtins.__import__", "importlib.__import__") and node.args:
            yield from self._imported(node, node.args[0])

    def _executed(self, node: ast.Call, function: str) -> Iterator[Hit]:
        name = function.removeprefix("builtins.")
        folded = self.folder.fold(node.args[0]) if node.args else None
        if folded is None:
            decoded = any(self._decodes(part) for part in walk(node) if part is not node)
            yield self.hit("executes_hidden_code" if decoded else "dynamic_code", node, f"{name} of a computed value")
            return
        if folded.decoded:
            yield self.hit("executes_hidden_code", node, f"{name} of decoded text")
        elif name != "compile":
            yield self.hit("dynamic_code", node, name)
        if isinstance(folded.value, (str, bytes)):
            text = folded.value if isinstance(folded.value, str) else folded.value.decode(errors="replace")
            for inner in python_hits(self.path, text, precision=self.precision, local=self.local):
                yield Hit(inner.rule, self.path, node.lineno, f"in executed text: {inner.what}")

    def _decodes(self, node: ast.AST) -> bool:
        name = called_name(node)
        if name == "decode" and isinstance(node, ast.Call):
            return any(self.folder.text(argument) in _ODD_CODECS for argument in node.args)
        return name in _DECODERS

    def _imported(self, node: ast.Call, argument: ast.expr) -> Iterator[Hit]:
        module = self.folder.text(argument)
        if module is None or UNKNOWN in module:
            yield self.hit("dynamic_import", node, "the name is computed")
            return
        yield from self._module(node, module)

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
            if match[0].startswith("/proc/*/"):
                yield self.hit("searches_memory", node, repr(match[0]))
        elif _SHARED_PATH.search(text):
            yield self.hit("shares_memory", node, repr(text[:80]))
            if _SEARCHED_PATH.match(text):
                yield self.hit("searches_memory", node, repr(text[:80]))
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
