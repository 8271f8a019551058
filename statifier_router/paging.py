"""What is asked for: the `limit` of everything that works in batches, the id of an execution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from statifier_router.errors import ConfigError
from statifier_router.text import NAME_LIMIT, checked

T = TypeVar("T")

# Well below the number of parameters that either database takes in one statement.
CHUNK = 500


def checked_limit(limit: object, field: str = "limit") -> int:
    """`limit` where it is a positive integer; else `ConfigError`."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise ConfigError(f"{field} must be an integer, not {type(limit).__name__}")
    if not 1 <= limit <= 1_000_000:
        raise ConfigError(f"{field} must be from 1 to 1,000,000, not {limit}")
    return limit


def checked_execution_id(value: object) -> str:
    """An execution id that is asked for; `ConfigError` for what no execution can have as one."""
    return checked(value, "execution_id", ConfigError, limit=NAME_LIMIT)


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """`items` in pieces that fit into one statement."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]
