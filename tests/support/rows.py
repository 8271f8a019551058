"""What stands in the tables, read past the library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import attrs
from sqlalchemy import URL, Connection, Engine, Table, select
from sqlalchemy.pool import NullPool

from statifier_router.dialect import reader_options

NAMES = ("claims", "addresses", "executions", "inputs", "ledger")

Row = dict[str, Any]


@attrs.frozen
class Rows:
    """The rows of every table, in the order of their keys."""

    claims: list[Row]
    addresses: list[Row]
    executions: list[Row]
    inputs: list[Row]
    ledger: list[Row]

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        return {name: len(getattr(self, name)) for name in NAMES}

    @property
    def empty(self) -> bool:
        """Whether there is no row at all."""
        return not any(self.counts().values())


def tables(config: Any) -> dict[str, Table]:
    """The tables that a configuration writes; executions and inputs may be its executor's own."""
    own = getattr(config.executor, "own_tables", {})
    return {name: own.get(name, getattr(config.schema, name)) for name in NAMES}


def everything(config: Any, connection: Connection | None = None) -> Rows:
    """All rows: what is committed, or what `connection` sees."""
    if connection is not None:
        return _read(config, connection)
    with _beside(config.engine.url).connect() as fresh:
        return _read(config, fresh)


@lru_cache
def _beside(url: URL) -> Engine:
    """An engine beside the test's own, whose pool may be exhausted or counted; it keeps no connection."""
    import statifier_router

    engine = statifier_router.create_engine(url, poolclass=NullPool)
    return reader_options(engine)


def _read(config: Any, connection: Connection) -> Rows:
    found: dict[str, list[Row]] = {}
    for name, table in tables(config).items():
        rows = connection.execute(select(table).order_by(*table.primary_key.columns))
        found[name] = [dict(row) for row in rows.mappings()]
    return Rows(**found)


@attrs.define
class Written:
    """What a block wrote: rows added, rows changed (as they are now), rows gone."""

    added: dict[str, list[Row]] = attrs.field(factory=dict)
    changed: dict[str, list[Row]] = attrs.field(factory=dict)
    gone: dict[str, list[Row]] = attrs.field(factory=dict)

    @property
    def nothing(self) -> bool:
        """Whether the block left every table as it was."""
        return not (any(self.added.values()) or any(self.changed.values()) or any(self.gone.values()))

    def one(self, name: str) -> Row:
        """The one row added to a table."""
        (row,) = self.added[name]
        return row

    def summary(self) -> str:
        """Tables and what happened to them: `+claims +ledger ~executions`."""
        kinds = (("+", self.added), ("~", self.changed), ("-", self.gone))
        return " ".join(f"{sign}{name}" for sign, rows in kinds for name in NAMES for _ in rows[name])


@contextmanager
def written(config: Any, connection: Connection | None = None) -> Iterator[Written]:
    """What the block writes; filled in at its end, whatever it raises."""
    before, found = everything(config, connection), Written()
    try:
        yield found
    finally:
        after = everything(config, connection)
        for name, table in tables(config).items():
            identity = [column.name for column in table.primary_key.columns]
            was = {tuple(row[part] for part in identity): row for row in getattr(before, name)}
            now = {tuple(row[part] for part in identity): row for row in getattr(after, name)}
            found.added[name] = [row for key, row in now.items() if key not in was]
            found.changed[name] = [row for key, row in now.items() if key in was and was[key] != row]
            found.gone[name] = [row for key, row in was.items() if key not in now]
