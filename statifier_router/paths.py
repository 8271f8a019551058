"""Paths into JSON: dotted text, or a tuple of names where a name holds a dot.

A path walks through mappings only: a list, a text or a null on the way is the same as nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

from statifier_router.refusals import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from statifier_router.jsontext import Json

Path = str | tuple[str, ...]
Names = tuple[str, ...]


class Whole(Enum):
    """The type of `WHOLE`."""

    WHOLE = "WHOLE"

    def __repr__(self) -> str:
        return self.name


WHOLE: Final = Whole.WHOLE
"""For `Binding(data=WHOLE)`: the chart is handed the whole data of the message."""

DataPaths = Sequence[Path] | Literal[Whole.WHOLE]

# What `read` answers where there is nothing; a value of its own, because null is something.
ABSENT: Final = object()


def parse(path: object, field: str, error: type[Exception]) -> Names:
    """The names of a path, outermost first; raises `error`, naming `field`, where it is none."""
    if isinstance(path, str):
        names: tuple[object, ...] = tuple(path.split("."))
    elif isinstance(path, tuple):
        names = path
    else:
        raise error(f"{field} must be dotted text or a tuple of names, not {type(path).__name__}")
    if not names:
        raise error(f"{field} must name at least one field")
    return tuple(_name(name, path, field, error) for name in names)


def _name(name: object, path: object, field: str, error: type[Exception]) -> str:
    if not isinstance(name, str):
        raise error(f"{field} must hold names that are text, not {type(name).__name__}")
    if not name:
        raise error(f"{field} holds an empty name: {one_line(repr(path), 200)}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise error(f"{field} holds a lone surrogate, which is in no message") from None
    return str.__str__(name)


def spell(names: Iterable[object]) -> str:
    """A path as a person reads it: dotted, or as a tuple where the dots would mislead."""
    parts = tuple(names)
    if all(isinstance(part, str) and part and "." not in part for part in parts):
        return ".".join(str(part) for part in parts)
    return repr(parts)


def read(data: object, names: Names) -> object:
    """The value at a path, or `ABSENT`."""
    for name in names:
        if not isinstance(data, dict):
            return ABSENT
        data = data.get(name, ABSENT)
    return data


# A level of a projection: each name with the level below it, or None where its value is taken whole.
_Level = dict[str, "_Level | None"]
_Program = tuple[tuple[str, "_Program | None"], ...]


def compile_projection(data: object, error: type[Exception]) -> Callable[[Mapping[str, Json]], Json]:
    """The function that takes out of a message's data what the paths name.

    What is present is written under the same names again, and paths with a shared beginning share one
    mapping. What is absent is left out, and no empty mapping stands for it; a null is carried. A path
    named twice is taken once; a path that another one begins is inside it already. The values taken
    are the data's own, not copies. Raises `error`, naming `data`, where a path is faulty.
    """
    if data is WHOLE:
        return lambda message: message
    program = _freeze(_levels(paths_of(data, error)))
    return lambda message: _project(program, message)


def paths_of(data: object, error: type[Exception]) -> tuple[Names, ...]:
    """The parsed paths of a projection; a lone text is refused, as it would be read letter by letter."""
    if isinstance(data, str | bytes) or not isinstance(data, Sequence):
        raise error(
            f"data must be a sequence of paths or WHOLE, not {type(data).__name__}: "
            'one path is written ("parcel.id",)'
        )
    return tuple(parse(path, f"data[{index}]", error) for index, path in enumerate(data))


def _levels(paths: Iterable[Names]) -> _Level:
    top: _Level = {}
    for *way, last in paths:
        level = top
        for name in way:
            below = level.setdefault(name, {})
            if below is None:
                break
            level = below
        else:
            level[last] = None
    return top


def _freeze(level: _Level) -> _Program:
    return tuple((name, None if below is None else _freeze(below)) for name, below in level.items())


def _project(program: _Program, data: Mapping[str, Json]) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for name, below in program:
        if name not in data:
            continue
        value = data[name]
        if below is None:
            result[name] = value
        elif isinstance(value, dict):
            inner = _project(below, value)
            if inner:
                result[name] = inner
    return result
