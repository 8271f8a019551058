"""Many rows in one statement of PostgreSQL: they come as one array a column, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    DateTime,
    Integer,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    column,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert

from statifier_router.schema import Instant, JsonText

_TEXT, _INSTANT, _NUMBER = Text(), DateTime(timezone=True), BigInteger()


def arrays(rows: Sequence[Mapping[str, Any]], names: Iterable[str], *, prefix: str = "") -> dict[str, str]:
    """The parameters of a statement over these rows: one array for each of their columns."""
    return {f"{prefix}{name}": array([row[name] for row in rows]) for name in names}


def keyed(keys: Sequence[tuple[str, ...]], names: Sequence[str]) -> dict[str, str]:
    """The same for rows that are nothing but their key."""
    return {name: array([key[at] for key in keys]) for at, name in enumerate(names)}


def array(values: Sequence[Any]) -> str:
    r"""An array as PostgreSQL reads it: much quicker made here than by the driver, value by value.

    >>> print(array(["a", "", 'say "b"']), array([None, "a", 7]))
    {"a","","say \"b\""} {NULL,"a","7"}
    """
    try:
        # No text holds a NUL: it parts them while all are escaped at once.
        joined = "\0".join(values)
    except TypeError:
        return _mixed(values)
    return '{"' + _escaped(joined).replace("\0", '","') + '"}' if values else "{}"


def _mixed(values: Sequence[Any]) -> str:
    if values.count(values[0]) == len(values):
        # Mostly one instant, or nothing at all.
        return "{" + ",".join([_element(values[0])] * len(values)) + "}"
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return f'"{value.isoformat()}"'
    return f'"{_escaped(str(value))}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def given_rows(columns: Mapping[str, Any], *, prefix: str = "") -> Any:
    """The arrays of these columns, side by side, as rows; `nth` counts them from 1.

    The parameters have the names of the columns, after `prefix`.
    """
    held = [bindparam(f"{prefix}{name}", type_=ARRAY(type)) for name, type in columns.items()]
    named = [column(name, type) for name, type in columns.items()]
    rows = func.unnest(*held).table_valued(*named, with_ordinality="nth", name=f"{prefix}given")
    return rows.render_derived()


def column_types(table: Table, names: Iterable[str]) -> dict[str, Any]:
    """The types in which the arrays of these columns travel."""
    return {name: _type(table.c[name].type) for name in names}


def _type(type: Any) -> Any:
    if isinstance(type, Instant):
        return _INSTANT
    if isinstance(type, Integer):
        return _NUMBER
    if isinstance(type, Boolean):
        return type
    return _TEXT


def given_value(table: Table, given: Any, name: str) -> Any:
    """A given column as the table's own type: JSON travels as text."""
    type = table.c[name].type
    return cast(given.c[name], type) if isinstance(type, JsonText) else given.c[name]


def same_key(table: Table, given: Any, names: Iterable[str]) -> Any:
    """The rows of the table whose key is that of a given row."""
    return and_(*(table.c[name] == given.c[name] for name in names))


def inserting_rows(table: Table, names: Sequence[str]) -> Any:
    """An insert of all given rows, in their order."""
    given = given_rows(column_types(table, names))
    rows = select(*(given_value(table, given, name) for name in names)).order_by(given.c.nth)
    return upsert(table).from_select(list(names), rows)
