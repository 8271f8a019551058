"""Keys: the text that tells executions of one document apart, and the programs that make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

from attrs import field, frozen

from statifier_router.errors import BindingError, KeyInvalid
from statifier_router.paths import ABSENT, Names, Path, parse, read, spell
from statifier_router.refusals import KeyRefusal, close_awaitable, told
from statifier_router.text import KEY_LIMIT, checked
from statifier_router.view import Missing, View

if TYPE_CHECKING:
    from collections.abc import Sequence

Key = Callable[[View], str] | Path

Program = Callable[[View], str]


def check_key(key: object) -> str:
    """`key` where it can be one: non-empty text of at most 512 bytes in UTF-8, without NUL.

    It is never cast, trimmed or normalised. Raises `KeyInvalid`.

    >>> check_key("P7")
    'P7'
    """
    if _is_common(key):
        return key
    if not isinstance(key, str):
        raise KeyInvalid(f"key must be text, not {type(key).__name__}; join(...) renders integers as text")
    return checked(key, "key", KeyInvalid, limit=KEY_LIMIT)


def _is_common(key: object) -> TypeGuard[str]:
    """Whether it is one without a doubt, as nearly all are; `checked` says what is wrong with the others."""
    return type(key) is str and key.isascii() and 0 < len(key) <= KEY_LIMIT and "\x00" not in key


def compile_key(key: object) -> Program:
    """The program of a `key`, which raises `KeyRefusal`; raises `BindingError` for what is none."""
    if isinstance(key, str | tuple):
        return _field(parse(key, "key", BindingError))
    if callable(key):
        return _called(key)
    raise BindingError(f"key must be a callable, a dotted path or join(...), not {type(key).__name__}")


def join(*paths: Path) -> Join:
    """A `key` made of several fields: texts and integers, joined by `#`.

    The fields `octo/repo` and `12` give `octo/repo#12`. Inside a field, `#` is written `%23` and `%` is
    written `%25`, so that no two lists of fields give one key; an integer and its text give the same key.
    A field that is absent, or neither text nor an integer, refuses the message. One path alone is
    allowed: it renders an integer. Raises `BindingError` where a path is faulty or there is none.

    >>> from statifier_router.view import View
    >>> key = join("repository.full_name", "pull_request.number")
    >>> key(View({"repository": {"full_name": "octo/repo"}, "pull_request": {"number": 12}}))
    'octo/repo#12'
    """
    if not paths:
        raise BindingError("key: join needs at least one path")
    return Join(paths)


def _parsed(paths: Sequence[Path]) -> tuple[Names, ...]:
    return tuple(
        parse(path, f"key: path {position} of join", BindingError) for position, path in enumerate(paths, 1)
    )


@frozen
class Join:
    """What `join` answers: a callable over the view, so a host's own function may call it too."""

    paths: tuple[Names, ...] = field(converter=_parsed)

    def __call__(self, view: View) -> str:
        """The rendered key; raises `KeyRefusal`, naming the field that cannot be rendered."""
        data = view.__data__
        return "#".join([_rendered(read(data, names), names) for names in self.paths])


def _rendered(value: object, names: Names) -> str:
    if isinstance(value, str):
        return value.replace("%", "%25").replace("#", "%23")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is ABSENT:
        raise KeyRefusal(str(Missing(names)))
    raise KeyRefusal(
        f"the field {spell(names)!r} must be text or an integer for join, not {type(value).__name__}"
    )


def _field(names: Names) -> Program:
    def program(view: View) -> str:
        value = read(view.__data__, names)
        if _is_common(value):
            return value
        if value is ABSENT:
            raise KeyRefusal(str(Missing(names)))
        if not isinstance(value, str):
            raise KeyRefusal(
                f"the field {spell(names)!r} must be text to be a key, not {type(value).__name__}; "
                "join(...) renders integers as text"
            )
        return _judged(value)

    return program


def _called(key: Callable[[View], Any]) -> Program:
    def program(view: View) -> str:
        try:
            value = key(view)
        except KeyRefusal:
            raise
        except Missing as fault:
            raise KeyRefusal(str(fault)) from fault
        except Exception as fault:
            raise KeyRefusal(f"key raised {told(fault)}") from fault
        return _judged(value)

    return program


def _judged(value: object) -> str:
    if type(value) is not str and close_awaitable(value):
        raise KeyRefusal("key answered an awaitable; it must be a plain function, not async")
    try:
        return check_key(value)
    except KeyInvalid as fault:
        raise KeyRefusal(str(fault)) from None
