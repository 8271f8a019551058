"""Columns of a host's own table: how they are named, and how their values become JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any
from uuid import UUID

from attrs import frozen
from sqlalchemy import ColumnElement, FromClause, TypeDecorator

from statifier_router.errors import ConfigError
from statifier_router.jsontext import Json, NotJson, plain
from statifier_router.refusals import close_awaitable


def column_of(table: FromClause, given: Any, field: str) -> ColumnElement[Any]:
    """The column that a host named; `ConfigError`, naming `field`, where the table has none such."""
    if isinstance(given, str):
        found = table.c.get(given)
        if found is None:
            raise ConfigError(f"{field} names {given!r}; the table has {', '.join(table.c.keys())}")
        return found
    if not isinstance(given, ColumnElement):
        raise ConfigError(f"{field} must be a column or the name of one, not {type(given).__name__}")
    if not table.c.contains_column(given):
        raise ConfigError(f"{field} must be a column of the table, which {given} is not")
    return given


def type_of(column: ColumnElement[Any]) -> type | None:
    """What the values of a column are in Python; None where its type does not say."""
    type = column.type
    # A decorated type says nothing of itself; what it decorates does.
    if isinstance(type, TypeDecorator):
        type = type.impl_instance
    try:
        return type.python_type
    except NotImplementedError:
        return None


@frozen
class Payload:
    """Which columns make a payload, and how."""

    columns: tuple[ColumnElement[Any], ...]
    make: Callable[[Sequence[Any]], Json]


def payload_of(table: FromClause, given: Any) -> Payload:
    """The payload that a host asked for; `ConfigError` for what is none."""
    if isinstance(given, (str, ColumnElement)):
        return Payload((column_of(table, given, "payload"),), lambda values: as_json(values[0]))
    if callable(given):
        return Payload(tuple(table.c), _called(given, tuple(table.c.keys())))
    if isinstance(given, Sequence) and given:
        columns = tuple(column_of(table, each, f"payload[{at}]") for at, each in enumerate(given))
        names = [str(column.key) for column in columns]
        return Payload(columns, lambda values: as_json(dict(zip(names, values, strict=True))))
    raise ConfigError("payload must be columns, one column, or a callable that is handed the row")


def _called(program: Callable[[Mapping[str, Any]], Any], names: tuple[str, ...]) -> Callable[..., Json]:
    def make(values: Sequence[Any]) -> Json:
        answer = program(MappingProxyType(dict(zip(names, values, strict=True))))
        if close_awaitable(answer):
            raise ConfigError("payload answered an awaitable; it must be a plain function, not async")
        return as_json(answer)

    return make


def as_json(value: Any) -> Json:
    """The value as JSON: instants in UTC, dates, times, decimals and UUIDs as text. Raises `ConfigError`.

    >>> as_json({"at": datetime(2026, 1, 1, tzinfo=UTC), "sum": Decimal("7.50")})
    {'at': '2026-01-01T00:00:00+00:00', 'sum': '7.50'}
    """
    try:
        return plain(_as_json(value))
    except NotJson as fault:
        raise ConfigError(f"payload{fault.path} {fault.problem}") from fault


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, Enum):
        return _as_json(value.value)
    if isinstance(value, Mapping):
        return {name: _as_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    return value
