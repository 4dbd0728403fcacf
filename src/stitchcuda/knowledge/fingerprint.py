"""What a task is about, read from its source alone: operator pattern, and a fingerprint that survives rewording."""

from __future__ import annotations

import ast
import hashlib
import re

from stitchcuda import syntax
from stitchcuda.knowledge.vocabulary import words

_NOT_OPERATORS = words(
    "super range len int float tuple list print isinstance randn rand randint zeros ones empty tensor device "
    "manual_seed get_inputs get_init_inputs init append extend join format Parameter Module ModuleList Sequential "
    "size dim item parameters named_parameters forward Identity enumerate zip max_ min_ arange"
)
_NAMES = {
    "mm": "matmul", "bmm": "matmul", "einsum": "matmul", "addmm": "matmul", "swish": "silu",
    "mha": "attention", "multi_head_attention": "attention", "scaled_dot_product_attention": "attention",
    "multihead_attention": "attention", "batch_norm2d": "batch_norm", "batch_norm1d": "batch_norm",
    "batch_norm3d": "batch_norm", "layer_norm": "layer_norm", "group_norm": "group_norm", "re_lu": "relu",
    "re_lu6": "relu6", "ge_lu": "gelu", "leaky_re_lu": "leaky_relu", "adaptive_avg_pool2d": "adaptive_avg_pool",
    "log_softmax": "log_softmax", "conv_transpose1d": "conv_transpose", "conv_transpose2d": "conv_transpose",
    "conv_transpose3d": "conv_transpose", "permute": "transpose", "cat": "concat", "concatenate": "concat",
}  # fmt: skip


def _canonical(name: str) -> str:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower().strip("_")
    return _NAMES.get(snake, snake)


class _Calls(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[str] = []
        self._modules: set[str] = set()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute):
            base = ast.unparse(function.value)
            if base == "self" or base.startswith("self."):
                if base == "self":
                    return
            elif base.split(".")[0] not in ("nn", "torch", "F", "functional") and function.attr not in _TENSOR_METHODS:
                return
            name = function.attr
        elif isinstance(function, ast.Name):
            name = function.id
            if name not in _DIRECT:
                return
        else:
            return
        if name not in _NOT_OPERATORS and not name.startswith("__"):
            self.found.append(_canonical(name))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.generic_visit(node)
        if isinstance(node.op, ast.MatMult):
            self.found.append("matmul")


_TENSOR_METHODS = words(
    "softmax matmul mm bmm sum mean max min sigmoid tanh relu exp log sqrt pow cumsum transpose permute view "
    "reshape masked_fill norm clamp unsqueeze squeeze contiguous flip logsumexp std var prod argmax"
)
_DIRECT = words("scaled_dot_product_attention softmax relu gelu silu")


def operators_of(source: str) -> list[str]:
    """Operators that a task's source names, in order of appearance, canonical names, repeats dropped.

    Read from the text: modules built in constructors and functions called. Raises SyntaxError for no Python.
    """
    calls = _Calls()
    tree = syntax.parse(source)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            calls.visit(node)
    return list(dict.fromkeys(calls.found))


class _Normal(ast.NodeTransformer):
    """Names of variables by order of appearance, no docstrings, numbers as one."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def _name(self, name: str) -> str:
        return self._names.setdefault(name, f"v{len(self._names)}")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self._name(node.id), node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._name(node.arg), None)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            return ast.Constant(0)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant):
            return None
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        node.body = node.body or [ast.Pass()]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return ast.Pass()
        return ast.Assign([node.target], node.value)


def fingerprint_of(source: str) -> str:
    """SHA-256 of what a task computes as written: comments, docstrings, names of variables, annotations and numbers
    left out, so that the same model at other sizes or reworded counts as the same task. For source that is no Python,
    of its words."""
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError):
        return hashlib.sha256(" ".join(source.split()).encode()).hexdigest()
    body: list[ast.stmt] = [node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    classes: list[ast.stmt] = [node for node in body if isinstance(node, ast.ClassDef)]
    normal = _Normal().visit(ast.Module(body=classes or body, type_ignores=[]))
    return hashlib.sha256(ast.dump(normal, annotate_fields=False).encode()).hexdigest()
