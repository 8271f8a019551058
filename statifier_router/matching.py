"""What a binding's `match` may be, compiled into one program: a callable, a pattern, or CEL text.

Three answers: True holds, False means "not for this binding", and `MatchRefused` is everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from statifier_router.errors import BindingError, MissingExtra
from statifier_router.paths import ABSENT, parse, read
from statifier_router.refusals import MatchRefused, close_awaitable, one_line, told
from statifier_router.view import Missing, View, keep_activation

if TYPE_CHECKING:
    from types import ModuleType

Scalar = None | bool | int | float | str
# `Any` for the path, because a mapping's key type is invariant: a dict[str, str] would not fit otherwise.
Pattern = Mapping[Any, Scalar | Sequence[Scalar]]
Match = Callable[[View], bool | None] | Pattern | str

Program = Callable[[View], bool]

_NAME_IN_CEL: Final = "message"
# Python has True equal to 1; among wanted values they are told apart by these stand-ins.
_TRUE: Final = object()
_FALSE: Final = object()


def compile_match(match: object) -> Program:
    """The program of a `match`; raises `BindingError`, or `MissingExtra` for CEL without its extra."""
    if isinstance(match, str):
        return _expression(match)
    if isinstance(match, Mapping):
        return _pattern(match)
    if callable(match):
        return _judged(match)
    raise BindingError(
        "match must be a callable, a pattern (a mapping from path to value) or CEL text, "
        f"not {type(match).__name__}"
    )


def kept(match: Match) -> Match:
    """The `match` as the binding shows it: a pattern is copied, for its owner may change it later."""
    if not isinstance(match, Mapping):
        return match
    return {path: list(value) if isinstance(value, list) else value for path, value in match.items()}


def _answer(value: object) -> bool:
    if value is True:
        return True
    if value is False or value is None:
        return False
    if close_awaitable(value):
        raise MatchRefused("match answered an awaitable; it must be a plain function, not async")
    raise MatchRefused(f"match must answer True, False or None, not {type(value).__name__}")


def _judged(match: Callable[[View], object]) -> Program:
    def program(view: View) -> bool:
        try:
            value = match(view)
        except Missing:
            return False
        except Exception as fault:
            raise MatchRefused(f"match raised {told(fault)}") from fault
        return _answer(value)

    return program


def _pattern(pattern: Mapping[object, object]) -> Program:
    wanted = tuple(
        (parse(path, "match path", BindingError), _wanted(value, path)) for path, value in pattern.items()
    )

    def program(view: View) -> bool:
        data = view.__data__
        for names, values in wanted:
            found = read(data, names)
            if type(found) is str:
                if found not in values:
                    return False
            elif found is ABSENT or isinstance(found, dict | list) or _marked(found) not in values:
                return False
        return True

    return program


def _wanted(value: object, path: object) -> frozenset[object]:
    many = isinstance(value, list | tuple)
    values = value if isinstance(value, list | tuple) else (value,)
    return frozenset(_marked(_scalar(item, path, among=many)) for item in values)


def _scalar(value: object, path: object, *, among: bool) -> object:
    place = one_line(repr(path), 200)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if isfinite(value):
            return value
        raise BindingError(f"match[{place}] holds {value}, which no message can hold")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BindingError(f"match[{place}] holds a lone surrogate, which is in no message") from None
        return value
    if isinstance(value, Mapping):
        raise BindingError(
            f"match[{place}] is a mapping; name the fields inside it by a path each, such as 'parcel.state'"
        )
    allowed = "text, a number, a bool or None" + ("" if among else ", or a list of these")
    raise BindingError(f"match[{place}] must be {allowed}, not {type(value).__name__}")


def _marked(value: object) -> object:
    if value is True:
        return _TRUE
    if value is False:
        return _FALSE
    return value


def _expression(text: str) -> Program:
    cel = _cel()
    try:
        compiled = cel.compile(text)
    except Exception as fault:
        raise BindingError(f"match is not a CEL expression: {one_line(str(fault), 300)}") from fault
    names = compiled.variables()
    if names and _NAME_IN_CEL not in names:
        raise BindingError(
            f"match reads {', '.join(names)}; a CEL expression reads the message as {_NAME_IN_CEL!r}"
        )
    return _evaluated(cel, compiled)


def _evaluated(cel: ModuleType, compiled: Any) -> Program:
    def program(view: View) -> bool:
        try:
            value = compiled.execute(_activation(cel, view))
        except KeyError:
            # How the evaluator tells an absent field from every other fault.
            return False
        except Exception as fault:
            raise MatchRefused(f"match raised {told(fault)}") from fault
        return _answer(value)

    return program


def _activation(cel: ModuleType, view: View) -> object:
    try:
        return view.__activation__
    except AttributeError:
        activation = cel.Context({_NAME_IN_CEL: view.__data__})
        keep_activation(view, activation)
        return activation


def _cel() -> ModuleType:
    try:
        return import_module("cel")
    except ImportError:
        raise MissingExtra("cel", "a match written in CEL") from None
