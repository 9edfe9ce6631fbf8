"""Finds messages in Python: what is raised, logged and warned of."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from tests.support.messages.c_source import GAP

_LOGS = frozenset(
    "warning warn error exception critical fatal warning_once rank_zero_warn rank_zero_error "
    "rank_zero_deprecation rank_zero_info_error log_rank_0 warning_cache warn_once".split()
)
_ERRORS = ("Error", "Exception", "Warning", "Interrupt", "Exit", "Timeout")


def messages(source: str) -> Iterator[str]:
    """Yield the messages, with GAP for what is only known at run time. None if it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError:
        return
    yield from _in(tree, {})


def _in(node: ast.AST, texts: dict[str, str]) -> Iterator[str]:
    """Yield the messages of a node. `texts` are the variables that hold text, by name."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        texts = dict(texts)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
            value = _text(child.value, texts)
            if value:
                texts[child.targets[0].id] = value
        if isinstance(child, ast.Call) and _prints(child.func):
            for argument in [*child.args, *(k.value for k in child.keywords)][:2]:
                text = _text(argument, texts)
                if text:
                    yield text
        if isinstance(child, ast.Assert) and child.msg is not None:
            text = _text(child.msg, texts)
            if text:
                yield text
        yield from _in(child, texts)


def _prints(function: ast.expr) -> bool:
    name = ""
    if isinstance(function, ast.Name):
        name = function.id
    elif isinstance(function, ast.Attribute):
        name = function.attr
    return name in _LOGS or name.endswith(_ERRORS)


def _text(node: ast.expr, texts: dict[str, str]) -> str:
    """Return the text of an expression with gaps, or "" if it has none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value, texts) or GAP for value in node.values)
    if isinstance(node, ast.Name):
        return texts.get(node.id, "")
    if isinstance(node, ast.BinOp):
        left = _text(node.left, texts)
        right = _text(node.right, texts) if isinstance(node.op, ast.Add) else ""
        both = (left or GAP) + (right or GAP)
        return both if left or right else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in {"format", "strip", "rstrip"}:
            return _text(node.func.value, texts)
        if node.func.attr == "dedent" and node.args:
            return _text(node.args[0], texts)
    return ""
