"""Where a scan stands, as it is stored and compared."""

from __future__ import annotations

from typing import Any

from statifier_router.jsontext import decode, encode
from statifier_router.runs.records import Position


def stored(position: Position) -> str | None:
    """As JSON; a tuple is a list there. None for the place before everything."""
    return None if position is None else encode(_as_json(position))


def read(text: str | None) -> Position:
    """What `stored` made.

    >>> read(stored((7, ("a", None))))
    (7, ('a', None))
    """
    return None if text is None else _as_position(decode(text))


def is_position(value: object) -> bool:
    """Whether it is one that can be stored and comes back equal."""
    if isinstance(value, tuple):
        return all(is_position(part) for part in value)
    return value is None or (isinstance(value, (int, str)) and not isinstance(value, bool))


def is_after(position: Position, other: Position) -> bool:
    """Whether it is behind `other`; None is before everything. `TypeError` where they do not compare."""
    if other is None:
        return position is not None
    if position is None:
        return False
    if isinstance(position, tuple) and isinstance(other, tuple):
        for mine, theirs in zip(position, other, strict=False):
            if mine != theirs:
                return is_after(mine, theirs)
        return len(position) > len(other)
    if isinstance(position, int) and isinstance(other, int):
        return position > other
    if isinstance(position, str) and isinstance(other, str):
        return position > other
    raise TypeError(f"positions {position!r} and {other!r} do not compare")


def _as_json(position: Position) -> Any:
    return [_as_json(part) for part in position] if isinstance(position, tuple) else position


def _as_position(value: Any) -> Position:
    return tuple(_as_position(part) for part in value) if isinstance(value, list) else value
