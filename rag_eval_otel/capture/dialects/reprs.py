"""Reading the reprs that instrumentations write where JSON fails: of dicts, lists and records.

Nothing is evaluated. What is no data, like a function, becomes None.
"""

from __future__ import annotations

import ast
import re
from typing import Any

_STRING = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_ENUM = r"""<[\w.]+:\s*(?P<enum>'[^']*'|"[^"]*"|-?\d+)>"""
_TOKENS = re.compile(rf"(?P<string>{_STRING})|{_ENUM}|<[^<>]*(?:<[^<>]*>[^<>]*)*>", re.DOTALL)


def data_in(text: str) -> Any:
    """Return the data that ``text`` is the repr of, records as dicts; None if it is of nothing."""
    source = _TOKENS.sub(_as_literal, text.strip())
    try:
        return _data(ast.parse(source, mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _as_literal(found: re.Match[str]) -> str:
    """Return strings as they are, members of enums as their value, other objects as None."""
    return found["string"] or found["enum"] or "None"


def _data(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str | int | float) else None
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_data(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(_data(key)): _data(item) for key, item in pairs if key is not None}
    if isinstance(node, ast.Call):
        return {word.arg: _data(word.value) for word in node.keywords if word.arg is not None}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _data(node.operand)
        return -number if isinstance(number, int | float) else None
    return None  # a sum, a name: no repr of data
