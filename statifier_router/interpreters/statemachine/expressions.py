"""Expressions and scripts of a document: Python, compiled once, over the datamodel and the system variables.

Documents are code: an expression can do whatever the process can. Load none that you would not import.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Callable
from types import CodeType
from typing import Any

from statemachine.io.evaluators import normalize_cond, protected_attrs
from statemachine.io.model import Action

from statifier_router.errors import ConfigError
from statifier_router.interpreters.statemachine.values import DOCUMENT, kept

Compiled = Callable[..., Any]

# ECMAScript's spelling, which documents have whatever their datamodel is called.
_CONSTANTS = {
    "true": True,
    "false": False,
    "null": None,
    "Array": list,
    "Object": dict,
    "__builtins__": builtins.__dict__,
    "__name__": DOCUMENT,
}
_INSTANCE = re.compile(r"([\w.]+)\s+instanceof\s+(Array|Object)\b")
_DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


class ActionContent(str):  # noqa: SLOT000 - it carries the action in its dict
    """An action of ours on its way through the library's compiler, which knows only its own."""

    action: Action


class Evaluator:
    """The library's port for compiling expressions; `definitions` are a document's own functions."""

    def __init__(self, compile_action: Callable[[Action, Evaluator], Compiled]) -> None:
        self._compile_action = compile_action
        self.definitions: dict[str, Any] = dict(_CONSTANTS)

    def compile_value(self, expr: str) -> Compiled:
        """A value expression."""
        return self._evaluating(expr, _compiled(expr))

    def compile_bool(self, expr: str) -> Compiled:
        """A guard, in Python or with the operators of ECMAScript."""
        code = _compiled(expr)
        if isinstance(code, SyntaxError):
            # The library's spelling changes texts inside quotes too, so it comes second.
            normalized = _compiled(_INSTANCE.sub(r"isinstance(\1, \2)", normalize_cond(expr)))
            code = code if isinstance(normalized, SyntaxError) else normalized
        return self._evaluating(expr, code)

    def compile_script(self, content: str) -> Compiled:
        """A script. The datamodel keeps what it binds, but for names that begin with an underscore."""
        if isinstance(content, ActionContent):
            return self._compile_action(content.action, self)
        return self._script(_parsed(content, "exec", "<script>"))

    def compile_top_script(self, content: str) -> Compiled:
        """A script of the document itself. Functions, classes and imports run now, for every execution."""
        tree = ast.parse(content, "<script>")
        definitions: list[ast.stmt] = [node for node in tree.body if isinstance(node, _DEFINITIONS)]
        exec(  # noqa: S102 - a document is code
            compile(ast.Module(definitions, []), "<script>", "exec"), self.definitions
        )
        rest = [node for node in tree.body if not isinstance(node, _DEFINITIONS)]
        return self._script(compile(ast.Module(rest, []), "<script>", "exec"))

    def defines(self, name: str, expr: str) -> bool:
        """Whether a variable starts as a function: it belongs to the document, like one of a script."""
        try:
            body = ast.parse(expr.strip(), mode="eval").body
        except (SyntaxError, ValueError):
            return False
        if isinstance(body, ast.Lambda):
            self.definitions[name] = eval(expr.strip(), self.definitions)  # noqa: S307 - a document is code
        return isinstance(body, ast.Lambda)

    def eval_literal(self, content: str) -> Any:
        """Inline content: JSON, else a Python literal, else the text itself."""
        for read in (json.loads, ast.literal_eval):
            try:
                return read(content)
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                continue
        return content

    def ensure_external_src_allowed(self, descriptor: str) -> None:
        """Nothing outside the text belongs to a chart: its hash would not cover it."""
        raise ConfigError(f"{descriptor} reads a file: write its content into the document")

    def _evaluating(self, expr: str, code: CodeType | SyntaxError) -> Compiled:
        if isinstance(code, SyntaxError):
            problem = f"{expr!r} is not an expression: {code.msg}"

            def failing(*args: Any, **kwargs: Any) -> Any:
                # SCXML wants an expression that cannot be read told where it stands, not at load.
                raise ValueError(problem)

            return failing

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            return eval(code, self._names(kwargs["machine"]))  # noqa: S307 - a document is code

        return evaluate

    def _script(self, code: CodeType) -> Compiled:
        def run(*args: Any, **kwargs: Any) -> None:
            machine = kwargs["machine"]
            given = self._names(machine)
            bound = dict(given)
            exec(code, bound)  # noqa: S102 - a document is code
            model = machine.model
            for name, value in bound.items():
                known = given.get(name, given)
                if (known is not value or name in vars(model)) and not name.startswith("_"):
                    setattr(model, name, value)

        return run

    def _names(self, machine: Any) -> dict[str, Any]:
        """All names of an expression. A chart's own variables go before functions and constants."""
        return {**self.definitions, **machine._engine.system_variables(), **vars(machine.model)}  # noqa: SLF001 - the engine is ours


class Datamodel:
    """What a document's machine has for a model: its variables are the attributes.

    The library's configuration stands in a slot beside them, so that no variable can be it.
    """

    __slots__ = ("__dict__", "_active")

    _active: Any

    def __init__(self) -> None:
        self._active = None

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value if name == "_active" else kept(value))


def writable(name: str, what: str) -> str:
    """`name` where a document may bind it; raises `ValueError` as the library does for its own."""
    if not name.isidentifier() or name.startswith("_") or name in protected_attrs:
        raise ValueError(f"{what} cannot bind {name!r}: it is no identifier, or not the document's to bind")
    return name


def _compiled(expr: str) -> CodeType | SyntaxError:
    try:
        return _parsed(expr.strip(), "eval", "<expression>")
    except SyntaxError as error:
        return error
    except ValueError as error:
        # A NUL in the text.
        return SyntaxError(str(error))


def _parsed(text: str, mode: str, name: str) -> CodeType:
    code = compile(text, name, mode)
    assert isinstance(code, CodeType)
    return code
