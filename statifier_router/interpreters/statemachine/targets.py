"""Whether a send's `targetexpr` can only ever reach the session itself, judged at load.

A target that is computed cannot be looked up before it is needed, so only the session's own is
let through. The W3C's own tests compute it, from the names that stand for it.
"""

from __future__ import annotations

import ast
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable

INTERNAL = frozenset({"#_internal", "internal"})
SESSION = "#_scxml_"
# In the place of an expression: bound in a way that cannot be followed.
_UNKNOWN = "'?'"


def reaches_only_itself(expr: str, document: ET.Element) -> bool:
    """Whether every text that `expr` may be names the session itself."""
    return _judged(expr, _bindings(document), frozenset()) is True


def _bindings(document: ET.Element) -> dict[str, list[str]]:
    """Every expression that the document binds to each of its variables."""
    found: dict[str, list[str]] = {}
    for element in document.iter():
        for attribute, value in (
            ("id", element.get("expr") or element.text) if element.tag == "data" else ("", None),
            ("location", element.get("expr") or element.text) if element.tag == "assign" else ("", None),
            ("item", _UNKNOWN) if element.tag == "foreach" else ("", None),
            ("index", _UNKNOWN) if element.tag == "foreach" else ("", None),
            ("idlocation", _UNKNOWN) if element.tag == "send" else ("", None),
        ):
            name = element.get(attribute)
            if name and value and value.strip():
                found.setdefault(name, []).append(value)
        if element.tag == "script":
            for name in re.findall(r"\w+", element.text or ""):
                found.setdefault(name, []).append(_UNKNOWN)
    return found


def _judged(expr: str, bindings: dict[str, list[str]], seen: frozenset[str]) -> bool | None:
    """True: the session itself. None: no text, which fails when it is sent. False: anything else."""
    try:
        tree = ast.parse(expr.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return False
    return _node(tree.body, bindings, seen)


def _node(node: ast.expr, bindings: dict[str, list[str]], seen: frozenset[str]) -> bool | None:
    match node:
        case ast.Constant(value=str(text)):
            return text in INTERNAL or text.startswith(SESSION)
        case ast.Constant():
            return None
        case ast.Attribute(value=ast.Name(id="_event"), attr="origin"):
            return True
        case ast.Name(id=name):
            if name in seen:
                return None
            return _all_of(
                _judged(bound, bindings, seen | {name}) for bound in bindings.get(name, [_UNKNOWN])
            )
        case ast.BinOp(left=left, op=ast.Add()):
            # The beginning of a text decides what kind of target it names.
            return _node(left, bindings, seen)
    return _is_own_location(node)


def _is_own_location(node: ast.expr) -> bool:
    """`_ioprocessors[...]['location']`, in any of its spellings."""
    while True:
        match node:
            case ast.Name(id="_ioprocessors"):
                return True
            case ast.Subscript(value=inner) | ast.Attribute(value=inner):
                node = inner
            case ast.Call(func=inner):
                node = inner
            case _:
                return False


def _all_of(judgements: Iterable[bool | None]) -> bool | None:
    found = set(judgements)
    if False in found:
        return False
    return True if True in found else None
