"""`ChartStore`: charts in the host's database, so that every process knows every revision in use.

A chart's row holds what it takes to compile it again: its text, or the `module:name` at which a
chart made in Python is imported. Which chart a document runs on is a row of its own, so that going
back to an earlier revision is one more `save`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import frozen
from sqlalchemy import (
    Connection,
    Engine,
    Executable,
    bindparam,
    func,
    select,
    update,
)

from statifier_router import ambient, dialect
from statifier_router.charts import not_a_chart
from statifier_router.clock import as_utc, system_clock
from statifier_router.errors import ConfigError, Unresolved
from statifier_router.interpreters import loading
from statifier_router.paging import checked_limit
from statifier_router.schema import Schema, schema_of
from statifier_router.steps import Chart
from statifier_router.tables import Tables
from statifier_router.text import NAME_LIMIT, checked

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

_MEND = "keep charts with a ChartStore over statifier_router.create_engine(url)"


@frozen
class StoredChart:
    """One row of the store. `unloadable` says why it does not compile any more, None where it does."""

    content_hash: str
    interpreter: str
    document: str | None
    version: str | None
    source: str
    created_at: datetime
    retired_at: datetime | None
    unloadable: str | None = None


class ChartStore:
    """Charts in the tables under `tables` of `engine`; give it to `Config(charts=...)`.

    Reads and writes join the delivery that is running in this thread, so that a pool of one
    connection suffices; otherwise each call is a transaction of its own. Compiled charts are kept
    per process, by hash. Over an `AsyncEngine` it serves the deliveries of `statifier_router.aio`;
    its other methods block, and are called on a store over a plain engine.

    >>> from statifier_router import ChartStore, create_engine
    >>> ChartStore(create_engine("sqlite:///parcels.db")).by_hash.__name__
    'by_hash'
    """

    def __init__(self, engine: Engine | AsyncEngine, *, tables: Tables = Tables()) -> None:
        # Of an AsyncEngine, the one behind it, which works inside the bridge alone.
        self._engine = dialect.check_prepared(engine)
        self._writer = dialect.owned_options(self._engine)
        self._reader = dialect.reader_options(self._engine)
        self._schema = schema_of(tables)
        self._lock = threading.Lock()
        self._compiled: dict[str, Chart] = {}

    def save(
        self,
        chart: Chart,
        *,
        document: str | None = None,
        scope: str | None = None,
        now: datetime | None = None,
    ) -> None:
        """Keep `chart`, and make it the one for new executions of `document` (in `scope`, or in all).

        Saving one that is there already is no error; it is taken out of retirement. A chart made in
        Python must be importable: bound to a name of its module, which is not `__main__`. Raises
        `ConfigError`.
        """
        problem = not_a_chart(chart)
        if problem:
            raise ConfigError(f"chart {problem}")
        if document is not None:
            checked(document, "document", ConfigError, limit=NAME_LIMIT)
        elif scope is not None:
            raise ConfigError("scope goes with document: it says where the document runs on it")
        if scope is not None:
            checked(scope, "scope", ConfigError, limit=NAME_LIMIT, empty=True)
        row = {
            "content_hash": chart.content_hash,
            "interpreter": chart.interpreter,
            "document": document,
            "version": getattr(chart, "version", None),
            "source": source_of(chart),
            "created_at": system_clock() if now is None else as_utc(now, "now", ConfigError),
        }
        place = {
            "document": document,
            # A scope of its own cannot be null in a key, and the empty text is a scope.
            "everywhere": scope is None,
            "scope": scope or "",
            "content_hash": chart.content_hash,
            "published_at": row["created_at"],
        }

        def work(connection: Connection) -> None:
            kind = dialect.kind(connection)
            connection.execute(_keep(self._schema, kind), row)
            if document is not None:
                connection.execute(_publish(self._schema, kind), place)

        self._write(work)
        with self._lock:
            self._compiled[chart.content_hash] = chart

    def resolve(self, scope: str, document: str) -> Chart:
        """The chart for a new execution; raises `Unresolved` where there is none, or it is retired.

        Inside a delivery it holds the chart's row, so that nothing retires it before the commit.
        """
        with self._reading() as (connection, joined):
            row = connection.execute(
                _current(self._schema, lock=joined), {"scope": scope, "document": document}
            ).first()
        if row is None:
            raise Unresolved("no chart was saved for it")
        if row.retired_at is not None:
            raise Unresolved(f"its chart {row.content_hash} is retired")
        chart = self._compile(row)
        if isinstance(chart, str):
            raise Unresolved(f"its chart {row.content_hash} does not load: {chart}")
        return chart

    def by_hash(self, content_hash: str) -> Chart | None:
        """The chart with this hash; None where it was never saved, or no longer loads."""
        known = self._compiled.get(content_hash)
        if known is not None:
            return known
        with self._reading() as (connection, _):
            row = connection.execute(_by_hash(self._schema), {"content_hash": content_hash}).one_or_none()
        if row is None:
            return None
        chart = self._compile(row)
        return None if isinstance(chart, str) else chart

    def retire(self, content_hash: str, *, now: datetime | None = None) -> bool:
        """Let no new execution run on this chart; False where it is unknown or retired already.

        Raises `ConfigError` while an execution that has not ended runs on it. Takes the chart's row
        lock, which a creation on it holds until it commits.
        """
        instant = system_clock() if now is None else as_utc(now, "now", ConfigError)

        def work(connection: Connection) -> bool:
            row = connection.execute(_lock_chart(self._schema), {"content_hash": content_hash}).one_or_none()
            if row is None or row.retired_at is not None:
                return False
            in_use = connection.execute(_in_use(self._schema), {"content_hash": content_hash}).scalar_one()
            if in_use:
                raise ConfigError(
                    f"chart {content_hash} is in use by {in_use} executions that have not ended; "
                    "migrate them, or wait for their end"
                )
            connection.execute(_retire(self._schema), {"of_hash": content_hash, "retired_at": instant})
            return True

        return self._write(work)

    def charts(self, *, limit: int = 100, after: str | None = None) -> list[StoredChart]:
        """The charts kept, by hash, each with whether it still loads."""
        with self._reading() as (connection, _):
            rows = connection.execute(
                _page(self._schema), {"after": after or "", "limit": checked_limit(limit)}
            ).all()
        return [
            StoredChart(**row._mapping, unloadable=chart if isinstance(chart, str) else None)
            for row, chart in ((row, self._compile(row)) for row in rows)
        ]

    def _compile(self, row: Any) -> Chart | str:
        """The compiled chart, or why it does not load."""
        known = self._compiled.get(row.content_hash)
        if known is not None:
            return known
        try:
            chart = loading.load(row.interpreter, row.source)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        problem = not_a_chart(chart)
        if problem:
            return f"{row.source} {problem}"
        if chart.content_hash != row.content_hash:
            return f"{row.source} is another revision now, {chart.content_hash}"
        with self._lock:
            # Two threads that compiled it at once go on with one object.
            return self._compiled.setdefault(row.content_hash, chart)

    @contextmanager
    def _reading(self) -> Iterator[tuple[Connection, bool]]:
        frame = ambient.in_force(self._engine)
        if frame is not None:
            yield frame.connection, True
        else:
            dialect.check_bridged(self._engine, _MEND)
            with self._reader.connect() as connection:
                yield connection, False

    def _write(self, work: Callable[[Connection], T]) -> T:
        frame = ambient.in_force(self._engine)
        if frame is not None:
            return work(frame.connection)
        dialect.check_bridged(self._engine, _MEND)
        with self._writer.begin() as connection:
            return work(connection)


def source_of(chart: Chart) -> str:
    """What it takes to compile the chart again: its text, or where it is imported from."""
    text = loading.text_of(chart)
    if text is not None:
        return text
    for module_name, module in sorted(sys.modules.items()):
        if module_name == "__main__" or module is None:
            continue
        for name, value in list(vars(module).items()):
            if value is chart:
                return f"{module_name}:{name}"
    raise ConfigError(
        f"chart {chart.content_hash} cannot be imported by another process: bind it to a name of a "
        "module (not of the main script) before it is saved"
    )


@lru_cache
def _keep(schema: Schema, kind: str) -> Executable:
    table = schema.charts
    names = ("content_hash", "interpreter", "document", "version", "source", "created_at")
    inserting = dialect.insert_into(kind, table).values({name: bindparam(name) for name in names})
    statement: Executable = inserting.on_conflict_do_update(
        index_elements=[table.c.content_hash],
        set_={"source": inserting.excluded.source, "retired_at": None},
    )
    return statement


@lru_cache
def _publish(schema: Schema, kind: str) -> Executable:
    table = schema.publications
    inserting = dialect.insert_into(kind, table).values(
        {column.name: bindparam(column.name) for column in table.c}
    )
    statement: Executable = inserting.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={
            "content_hash": inserting.excluded.content_hash,
            "published_at": inserting.excluded.published_at,
        },
    )
    return statement


@lru_cache
def _current(schema: Schema, *, lock: bool) -> Executable:
    charts, places = schema.charts, schema.publications
    statement = (
        select(charts.c.content_hash, charts.c.interpreter, charts.c.source, charts.c.retired_at)
        .join(places, places.c.content_hash == charts.c.content_hash)
        .where(
            places.c.document == bindparam("document"),
            places.c.everywhere | (places.c.scope == bindparam("scope")),
        )
        # The scope's own goes before the one for all.
        .order_by(places.c.everywhere)
        .limit(1)
    )
    return statement.with_for_update(read=True, of=charts) if lock else statement


@lru_cache
def _by_hash(schema: Schema) -> Executable:
    table = schema.charts
    return select(table.c.content_hash, table.c.interpreter, table.c.source).where(
        table.c.content_hash == bindparam("content_hash")
    )


@lru_cache
def _lock_chart(schema: Schema) -> Executable:
    table = schema.charts
    return (
        select(table.c.retired_at).where(table.c.content_hash == bindparam("content_hash")).with_for_update()
    )


@lru_cache
def _in_use(schema: Schema) -> Executable:
    table = schema.executions
    return (
        select(func.count())
        .select_from(table)
        .where(
            table.c.content_hash == bindparam("content_hash"),
            table.c.status.in_(("active", "suspended")),
        )
    )


@lru_cache
def _retire(schema: Schema) -> Executable:
    table = schema.charts
    return (
        update(table)
        .where(table.c.content_hash == bindparam("of_hash"))
        .values(retired_at=bindparam("retired_at"))
    )


@lru_cache
def _page(schema: Schema) -> Executable:
    table = schema.charts
    return (
        select(table)
        .where(table.c.content_hash > bindparam("after"))
        .order_by(table.c.content_hash)
        .limit(bindparam("limit"))
    )
