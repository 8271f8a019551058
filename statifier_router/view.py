"""The view: what a binding's own `match` and `key` see of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from statifier_router.errors import ConfigError, RouterError
from statifier_router.paths import ABSENT, Path, parse, read, spell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from statifier_router.jsontext import Json

T = TypeVar("T")


class Missing(RouterError, AttributeError, KeyError):
    """The message has no such field. Raised by the view; `path` holds the names, outermost first.

    Out of a `match` it means "not for this binding"; out of a `key` it is a refusal. It is an
    `AttributeError` and a `KeyError` too, so that `hasattr` and `getattr` with a default work on a view.

    >>> str(Missing(("parcel", "id")))
    "the message has no field 'parcel.id'"
    """

    def __init__(self, path: tuple[object, ...]) -> None:
        self.path = path
        super().__init__(path)

    # Spelt on demand: most are raised only to say "not for this binding".
    def __str__(self) -> str:
        return f"the message has no field {spell(self.path)!r}"


class View:
    """A message's data, to be read only: `view["a"]["b"]` and `view.a.b` alike.

    An attribute always means a field, which is why there are no methods; `in`, `len` and iteration over
    the names work. Mappings inside come as views, lists as copies, everything else as it is.
    An absent field raises `Missing`.
    """

    # Names of the language's own kind, because every other name belongs to the message.
    __slots__ = ("__activation__", "__data__", "__path__")

    __data__: Mapping[str, Json]
    __path__: tuple[str, ...]
    __activation__: Any

    def __init__(self, data: Mapping[str, Json], path: tuple[str, ...] = ()) -> None:
        _set_data(self, data)
        _set_path(self, path)

    def __getitem__(self, name: str) -> Any:
        value = self.__data__.get(name, ABSENT)
        if value is ABSENT:
            raise Missing((*self.__path__, name))
        if isinstance(value, dict):
            return View(value, (*self.__path__, name))
        return _copy(value) if isinstance(value, list) else value

    # Called only for what the class has not: for everything but the language's own names.
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"a view has no {name}; a field of that name is view[{name!r}]")
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self.__data__

    def __iter__(self) -> Iterator[str]:
        return iter(self.__data__)

    def __len__(self) -> int:
        return len(self.__data__)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, View):
            return same(self.__data__, other.__data__)
        if isinstance(other, dict):
            return same(self.__data__, other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # how the language spells "unhashable"

    def __repr__(self) -> str:
        return f"<view of {len(self.__data__)} fields>"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a view is read-only: {name!r} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a view is read-only: {name!r} cannot be deleted")

    def __setitem__(self, name: str, value: object) -> NoReturn:
        raise TypeError(f"a view is read-only: {name!r} cannot be set")

    def __delitem__(self, name: str) -> NoReturn:
        raise TypeError(f"a view is read-only: {name!r} cannot be deleted")


# The slots' own setters, past the class's refusal to set anything.
_set_data = View.__dict__["__data__"].__set__
_set_path = View.__dict__["__path__"].__set__
_set_activation = View.__dict__["__activation__"].__set__


def keep_activation(view: View, activation: object) -> None:
    """Keeps on the view what an expression language made of its data, for the next binding."""
    _set_activation(view, activation)


def get(view: View, path: Path, default: T | None = None) -> Any | T:
    """The field at `path`, or `default` where it is absent or something on the way is no mapping.

    A null that is there is None, whatever the default. Raises `ConfigError` for a faulty path, or where
    the first argument is no view.

    >>> from statifier_router.view import View
    >>> get(View({"parcel": {"id": "P7"}}), "parcel.weight", 0)
    0
    """
    if not isinstance(view, View):
        raise ConfigError(f"view must be the view of a message, not {type(view).__name__}")
    names = parse(path, "path", ConfigError)
    value = read(view.__data__, names)
    if value is ABSENT:
        return default
    if isinstance(value, dict):
        return View(value, (*view.__path__, *names))
    return _copy(value) if isinstance(value, list) else value


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def same(one: object, other: object) -> bool:
    """Equality as JSON has it: `1` and `1.0` are equal, `1` and `True` are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(item, other[name]) for name, item in one.items())
        )
    if isinstance(one, list):
        return (
            isinstance(other, list)
            and len(one) == len(other)
            and all(same(item, twin) for item, twin in zip(one, other, strict=True))
        )
    return one == other
