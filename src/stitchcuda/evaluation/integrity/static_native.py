"""Static rules over C++ and CUDA sources, as tokens with macros expanded: the Program's files, and the texts that its
Python side gives to ``load_inline`` or NVRTC.

Like all static rules these only read text. What the compiled object really asks of the system is in ``binary``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from stitchcuda.evaluation.integrity.native_state import behind, detached, state_hits
from stitchcuda.evaluation.integrity.native_tokens import Macro, Source, Token, expand, read
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.symbols import IMPORTS, INTERPOSED
from stitchcuda.evaluation.integrity.words import words
from stitchcuda.task.model import Precision

_NUMERIC_OPTION = re.compile(
    r"fast-math|Ofast|unsafe-math|associative-math|finite-math|reciprocal-math|no-signed-zeros|cx-limited-range|rounding-math|single-precision"
)
_MEMORY_PATH = re.compile(r"/proc/[^/\s]*/?(task/[^/\s]+/)?mem\b|/dev/k?mem\b")
_PROCESS_PATH = re.compile(
    r"/proc/[^/\s]+/(task/[^/\s]+/)?(maps|smaps|fd|fdinfo|environ|cmdline|stat|status|root|cwd|auxv|comm)\b"
)
_NARROW_MMA = re.compile(r"mma[\w.:]*\.(f16|bf16|tf32|e4m3|e5m2|kind::(f16|tf32|f8f6f4))")
_APPROXIMATE = re.compile(r"\b(ex2|lg2|sin|cos|tanh|rcp|sqrt|div)\.approx")
_HOST_SYSCALL = re.compile(r"(^|[\s;])(syscall|sysenter|int\s+\$?0x80)\b")
_HOST_ASSEMBLY = re.compile(
    r"%%?[re][abcds][xip]\b|%%?r(1[0-5]|[89])\b|(^|[\s;])\.(byte|quad|long|section|pushsection|globl|text)\b|\bcall\s+\*|\bjmp\s"
)
_INTRINSICS = words(
    """
    __expf __exp10f __logf __log2f __log10f __sinf __cosf __tanf __powf __fdividef __sincosf __tanhf
    """
)
_NARROW_TYPES = frozenset({"wmma", "tcgen05", "wgmma"})
_SWITCHES = re.compile(
    r"CUBLAS_(TF32_TENSOR_OP_MATH|COMPUTE_32F_FAST_\w+|TENSOR_OP_MATH)|CUDNN_TENSOR_OP_MATH\w*|setAllowTF32\w*|setFloat32MatmulPrecision"
)
_HEAVY_CALL = re.compile(
    r"cublas\w*([Gg]emm|Matmul)\w*|cudnn\w*(Forward|Backward|ConvolutionBias)\w*|cusparse\w*Sp?M[MV]\w*|cufftExec\w*"
)
_ATEN = words(
    """
    matmul mm bmm addmm baddbmm linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    convolution einsum scaled_dot_product_attention lstm gru softmax layer_norm batch_norm group_norm
    native_layer_norm cudnn_convolution
    """
)
_JOINS = words(
    """
    cudaStreamWaitEvent cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize cuStreamWaitEvent
    cuStreamSynchronize cuCtxSynchronize synchronize block
    """
)
_L2 = words(
    """
    cudaAccessPolicyWindow accessPolicyWindow cudaLimitPersistingL2CacheSize cudaAccessPropertyPersisting
    cudaCtxResetPersistingL2Cache CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    """
)
_OPENERS = words(
    """
    open open64 openat creat pipe pipe2 memfd_create socket fileno eventfd mkstemp
    """
)
_WRITERS = words(
    """
    write pwrite pwrite64 writev dprintf fdopen sendfile splice
    """
)
_CONTROL = words(
    """
    if for while switch catch return sizeof alignof decltype defined
    """
)
_ASKED = re.compile(
    r"((?:#\s*(?:include(?:_next)?|embed|import)|__has_(?:include(?:_next)?|embed)\s*\())\s*(?:[<\"]([^>\"]+)[>\"]|([A-Za-z_]\w*))"
)
_BEFORE_CALLS = words("return else do throw case and or not co_return co_await co_yield")
_POINTER_KEYS = frozenset({"*", "uintptr_t", "intptr_t", "CUdeviceptr"})


def native_macros(texts: Iterable[str]) -> dict[str, Macro]:
    """All macros that a Program's native texts define; headers may bring them to any source."""
    macros: dict[str, Macro] = {}
    for text in texts:
        macros |= read(text).macros
    return macros


def numeric_options(path: str, text: str, macros: dict[str, Macro]) -> list[Hit]:
    """Pragmas and attributes in a source that switch inexact arithmetic on, whatever the command line says."""
    source = read(text)
    return [Hit("fast_math", path, line, what) for line, what in _options(source, expand(source, macros))]


def outside_files(path: str, text: str, macros: dict[str, Macro]) -> list[Hit]:
    """Includes, and questions whether a file is there, that lead out of the Program's folder."""
    source = read(text)
    return [Hit("includes_files", path, line, what) for line, what in _outside(source, source.macros | macros)]


def native_hits(
    path: str, text: str, *, precision: Precision, macros: dict[str, Macro], first_line: int = 1
) -> list[Hit]:
    """Hits in one source text, whose first line is ``first_line`` of ``path``."""
    source = read(text, first_line)
    known = source.macros | macros
    return list(_Scan(path, source, expand(source, known), precision, known).run())


def _options(source: Source, tokens: list[Token]) -> Iterator[tuple[int, str]]:
    for directive in source.directives:
        if re.match(r"#\s*pragma\b", directive.text) and _NUMERIC_OPTION.search(directive.text):
            yield directive.line, directive.text[:100]
    for index, token in enumerate(tokens):
        if token.kind == "name" and token.text in ("optimize", "__optimize__", "_Pragma", "__pragma"):
            inside = itertools.takewhile(lambda part: part.text != ")", tokens[index : index + 12])
            words = " ".join(part.text for part in inside if part.kind in ("string", "name"))
            if _NUMERIC_OPTION.search(words):
                yield token.line, words[:100]


def _outside(source: Source, macros: dict[str, Macro]) -> Iterator[tuple[int, str]]:
    """Paths outside the Program's folder that directives include or ask about, also through a macro."""
    for directive in source.directives:
        for match in _ASKED.finditer(directive.text):
            path = match[2] or ""
            if match[3] and (macro := macros.get(match[3])) is not None:
                path = "".join(token.text for token in macro.body)
            if path.startswith("/") or ".." in path.split("/"):
                yield directive.line, f"{match[1].rstrip('( ')} {path}"


class _Scan:
    def __init__(
        self, path: str, source: Source, tokens: list[Token], precision: Precision, macros: dict[str, Macro]
    ) -> None:
        self.path, self.source, self.tokens, self.precision = path, source, tokens, precision
        self.macros = macros
        self.words = {token.text for token in tokens if token.kind == "name"}
        self.defined = self._definitions()
        self.called = {token.text for index, token in enumerate(tokens) if self._calls(index)}

    def run(self) -> Iterator[Hit]:
        yield from self._directives()
        for index, token in enumerate(self.tokens):
            if token.kind == "string":
                yield from self._string(token)
            elif token.kind == "name":
                yield from self._name(index, token)
        yield from state_hits(self.path, self.tokens, self.defined)
        for line, what in _options(self.source, self.tokens):
            if self.precision == "fp32":
                yield Hit("fast_math", self.path, line, what)

    def hit(self, rule: str, token: Token, what: str) -> Hit:
        return Hit(rule, self.path, token.line, what[:100])

    def _calls(self, index: int) -> bool:
        """Whether the name at ``index`` is called as a plain function, not as a member or another namespace's."""
        token = self.tokens[index]
        following = self.tokens[index + 1].text if index + 1 < len(self.tokens) else ""
        before = self.tokens[index - 1].text if index else ""
        if token.kind != "name" or following != "(" or before in (".", "->"):
            return False
        if index and self.tokens[index - 1].kind == "name" and before not in _BEFORE_CALLS:
            return False  # a declaration: a type stands before the name
        if before == "::":
            owner = self.tokens[index - 2].text if index > 1 and self.tokens[index - 2].kind == "name" else "std"
            return owner in ("std", "return")
        return True

    def _definitions(self) -> dict[str, int]:
        """Functions defined in the text, by name, with the index of the name."""
        found: dict[str, int] = {}
        for index, token in enumerate(self.tokens[:-1]):
            if token.kind != "name" or token.text in _CONTROL or self.tokens[index + 1].text != "(" or index == 0:
                continue
            before = self.tokens[index - 1]
            if before.kind != "name" and before.text not in ("*", "&", ">", ")"):
                continue
            end = behind(self.tokens, index + 1)
            while end < len(self.tokens) and self.tokens[end].text in ("const", "noexcept", "override", "final"):
                end += 1
            if end < len(self.tokens) and self.tokens[end].text == "{":
                found.setdefault(token.text, index)
        return found

    def _directives(self) -> Iterator[Hit]:
        for line, path in _outside(self.source, self.macros):
            yield Hit("includes_files", self.path, line, path)
        for directive in self.source.directives:
            if re.match(r"#\s*embed\b", directive.text):
                yield self.hit("file_access", directive, directive.text)

    def _string(self, token: Token) -> Iterator[Hit]:
        text = token.text
        if _MEMORY_PATH.search(text):
            yield self.hit("reads_process_memory", token, repr(text[:80]))
        elif _PROCESS_PATH.search(text):
            yield self.hit("inspects_process", token, repr(text[:80]))
        if ".incbin" in text:
            yield self.hit("includes_files", token, repr(text[:80]))
        if _NARROW_MMA.search(text) and self.precision == "fp32":
            yield self.hit("reduced_precision", token, repr(text[:80].strip()))
        if _APPROXIMATE.search(text) and self.precision == "fp32":
            yield self.hit("fast_math", token, repr(text[:80].strip()))
        if ".init_array" in text or ".preinit_array" in text or text == ".ctors":
            yield self.hit("static_initialiser", token, repr(text[:80]))

    def _name(self, index: int, token: Token) -> Iterator[Hit]:
        name = token.text
        if self._calls(index) and name not in self.defined:
            yield from self._call(index, token)
        if name in self.defined and self.defined[name] == index and name in INTERPOSED and self._has_c_name(index):
            yield self.hit("interposes", token, f"{name} is defined")
        if name in ("asm", "__asm__", "__asm"):
            yield from self._assembly(index)
        elif name in ("constructor", "destructor") and self._attribute(index):
            rule = "static_initialiser" if name == "constructor" else "runs_later"
            yield self.hit(rule, token, f"__attribute__(({name}))")
        elif name in ("_GLOBAL_OFFSET_TABLE_", "link_map", "_r_debug", "RTLD_NEXT", "PROT_EXEC", "__malloc_hook"):
            yield self.hit("patches_code", token, name)
        elif name in _L2:
            yield self.hit("persisting_l2", token, name)
        elif _SWITCHES.fullmatch(name) and self.precision == "fp32":
            yield self.hit("precision_switch", token, name)
        elif self.precision == "fp32" and name in _INTRINSICS and name not in self.defined:
            yield self.hit("fast_math", token, name)
        elif self.precision == "fp32" and name in _NARROW_TYPES and name not in self.defined:
            yield self.hit("reduced_precision", token, name)
        elif name in ("thread", "jthread", "async") and self._std(index):
            yield self.hit("background_work", token, f"std::{name}")
            if detached(self.tokens, index, self.defined):
                yield self.hit("detached_thread", token, f"std::{name} is detached")
        elif name in ("map", "unordered_map") and self._keyed_by_pointer(index):
            yield self.hit("keyed_cache", token, f"{name} with a pointer as its key")
        elif name == "cutlass" and self.tokens[index + 1 : index + 2] and self.tokens[index + 1].text == "::":
            yield self.hit("library_compute", token, "cutlass")
        elif (
            name in _ATEN
            and index > 1
            and self.tokens[index - 1].text == "::"
            and self.tokens[index - 2].text in ("at", "torch", "functional", "native")
        ):
            yield self.hit("library_compute", token, f"{self.tokens[index - 2].text}::{name}")
        elif re.fullmatch(r"(Py(Frame|ThreadState|GC)_\w+|PyObject_GC_\w+|_PyGC\w*|PyEval_GetFrame)", name):
            yield self.hit("walks_frames", token, name)
        elif re.fullmatch(r"Py(Run|Eval|Import)_\w+|PyObject_SetAttr\w*|PyDict_SetItem\w*", name):
            yield self.hit("dynamic_code", token, name)

    def _call(self, index: int, token: Token) -> Iterator[Hit]:
        name = token.text
        first = self.tokens[index + 2] if index + 2 < len(self.tokens) else token
        if name in _WRITERS:
            known = first.text in ("1", "2", "STDERR_FILENO", "STDOUT_FILENO", "fileno")
            literal = first.kind == "number" and not known
            if literal or not (known or self.called & _OPENERS):
                yield self.hit("writes_descriptors", token, f"{name}({first.text}, ...)")
            elif not known:
                yield self.hit("file_access", token, name)
        elif name in ("exit", "_exit", "_Exit", "quick_exit"):
            if name != "exit" or first.text in ("0", "EXIT_SUCCESS"):
                yield self.hit("ends_process", token, f"{name}({first.text})")
        elif name in (
            "cudaStreamCreate",
            "cudaStreamCreateWithFlags",
            "cudaStreamCreateWithPriority",
            "cuStreamCreate",
            "cuStreamCreateWithPriority",
            "getStreamFromPool",
        ):
            if not self.words & _JOINS:
                yield self.hit("side_stream", token, name)
        elif _HEAVY_CALL.fullmatch(name):
            yield self.hit("library_compute", token, name)
        elif name.startswith("cupti") and len(name) > 5 and name[5].isupper():
            yield self.hit("replaces_measuring", token, name)
        elif name == "memcmp":
            yield self.hit("keyed_cache", token, "contents are compared with memcmp")
        elif (rule := IMPORTS.get(name)) is not None:
            yield self.hit(rule, token, name)

    def _has_c_name(self, index: int) -> bool:
        """Whether a definition can take another library's place: a CUDA name, or C linkage."""
        if self.tokens[index].text.startswith("cu"):
            return not any(
                part.text in ("static", "inline", "__device__", "::") for part in self.tokens[max(0, index - 6) : index]
            )
        near = self.tokens[max(0, index - 8) : index]
        return any(a.text == "extern" and b.kind == "string" for a, b in itertools.pairwise(near))

    def _assembly(self, index: int) -> Iterator[Hit]:
        for part in self.tokens[index + 1 : index + 6]:
            if part.kind == "string":
                if _HOST_SYSCALL.search(part.text):
                    yield self.hit("controls_process", part, f"asm {part.text[:60]!r}")
                elif "rdtsc" in part.text:
                    yield self.hit("reads_clock", part, "rdtsc")
                elif _HOST_ASSEMBLY.search(part.text):
                    yield self.hit("host_assembly", part, repr(part.text[:80].strip()))
                return

    def _attribute(self, index: int) -> bool:
        near = self.tokens[max(0, index - 4) : index]
        return any(part.text in ("__attribute__", "__attribute", "gnu") for part in near)

    def _std(self, index: int) -> bool:
        return index > 1 and self.tokens[index - 1].text == "::" and self.tokens[index - 2].text == "std"

    def _keyed_by_pointer(self, index: int) -> bool:
        if index + 1 >= len(self.tokens) or self.tokens[index + 1].text != "<":
            return False
        depth = 0
        for part in self.tokens[index + 1 : index + 40]:
            depth += {"<": 1, ">": -1}.get(part.text, 0)
            if depth <= 0 or (part.text == "," and depth == 1):
                return False
            if part.text in _POINTER_KEYS:
                return True
        return False
