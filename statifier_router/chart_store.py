"""`ChartStore`: charts in the host's database, so that every process knows every revision in use.

A chart's row holds what it takes to compile it again: its text, or the `module:name` at which a
chart made in Python is imported. Which chart a document runs on is a row of its own, so that going
back to an earlier revision is one more `save`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import frozen
from sqlalchemy import Connection, Engine

from statifier_router import ambient, chart_table, dialect
from statifier_router.ambient import Frame
from statifier_router.charts import not_a_chart
from statifier_router.clock import as_utc, system_clock
from statifier_router.errors import ConfigError, DatabaseFault, ExecutionBusy, SchemaError, Unresolved
from statifier_router.interpreters import loading
from statifier_router.paging import checked_limit
from statifier_router.refusals import told
from statifier_router.schema import schema_of
from statifier_router.steps import Chart
from statifier_router.tables import Tables
from statifier_router.text import NAME_LIMIT, checked

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

# The longest wait of a save or a retirement for deliveries that begin executions on the chart.
PATIENCE = timedelta(seconds=30)

_MEND = "keep charts with a ChartStore over statifier_router.create_engine(url)"
_FRESH = ("read committed", "read uncommitted")


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
    connection suffices; otherwise each call is a transaction of its own, and its faults come out as
    `SchemaError` (no tables), `ExecutionBusy` (a wait of 30 seconds ran out) and `DatabaseFault`.
    Compiled charts are kept per process, by hash. Over an `AsyncEngine` it serves the deliveries of
    `statifier_router.aio`; its other methods block, and are called on a store over a plain engine.

    >>> from statifier_router import ChartStore, create_engine
    >>> ChartStore(create_engine("sqlite:///parcels.db")).by_hash.__name__
    'by_hash'
    """

    def __init__(self, engine: Engine | AsyncEngine, *, tables: Tables = Tables()) -> None:
        # Of an AsyncEngine, the one behind it, which works inside the bridge alone.
        self._engine = dialect.check_prepared(engine)
        if not isinstance(tables, Tables):
            raise ConfigError(f"tables must be a Tables, not {type(tables).__name__}")
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
            document = checked(document, "document", ConfigError, limit=NAME_LIMIT)
        elif scope is not None:
            raise ConfigError("scope goes with document: it says where the document runs on it")
        if scope is not None:
            scope = checked(scope, "scope", ConfigError, limit=NAME_LIMIT, empty=True)
        row = {
            "content_hash": checked(chart.content_hash, "chart.content_hash", ConfigError, limit=NAME_LIMIT),
            "interpreter": checked(chart.interpreter, "chart.interpreter", ConfigError, limit=NAME_LIMIT),
            "document": document,
            "version": _version_of(chart),
            "source": loading.source_of(chart),
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
            connection.execute(chart_table.keep(self._schema, kind), row)
            if document is not None:
                connection.execute(chart_table.publish(self._schema, kind), place)

        _, committed = self._write(work)
        if committed:
            # Of a transaction that may still be rolled back nothing is kept.
            with self._lock:
                self._compiled[chart.content_hash] = chart

    def resolve(self, scope: str, document: str) -> Chart:
        """The chart for a new execution; raises `Unresolved` where there is none, or it is retired.

        Inside a delivery it holds the chart's row, so that nothing retires it before the commit.
        """
        with self._reading() as (connection, joined):
            statement = chart_table.current(self._schema, hold=joined)
            row = connection.execute(statement, {"scope": scope, "document": document}).first()
        if row is None:
            raise Unresolved("no chart was saved for it")
        if row.retired_at is not None:
            raise Unresolved(f"its chart {row.content_hash} is retired")
        chart = self._compile(row)
        if isinstance(chart, str):
            raise Unresolved(f"its chart {row.content_hash} does not load: {chart}")
        return chart

    def by_hash(self, content_hash: str) -> Chart | None:
        """The chart with this hash, retired or not; None where it was never saved, or no longer loads."""
        known = self._compiled.get(content_hash)
        if known is not None:
            return known
        row = self._row(content_hash)
        chart = None if row is None else self._compile(row)
        return None if isinstance(chart, str) else chart

    def why_not(self, content_hash: str) -> str | None:
        """Why `by_hash` answers None for this hash; None where it answers a chart."""
        row = self._row(content_hash)
        if row is None:
            return "it was never saved"
        chart = self._compile(row)
        return f"it does not load: {chart}" if isinstance(chart, str) else None

    def hold(self, content_hash: str) -> None:
        """Keep the chart from being retired before the transaction in force commits.

        For an execution that is moved to it. Raises `Unresolved` where it is retired or was never saved.
        """
        row = self._row(content_hash, hold=True)
        if row is None:
            raise Unresolved("it was never saved")
        if row.retired_at is not None:
            raise Unresolved("it is retired; save it again first")

    def retire(self, content_hash: str, *, now: datetime | None = None) -> bool:
        """Let no new execution run on this chart; False where it is unknown or retired already.

        Raises `ConfigError` while an execution that has not ended runs on it, or a timer of one is
        pending; those of an executor of the host's own it cannot see. Takes the chart's row lock,
        which a creation on it holds until it commits.
        """
        instant = system_clock() if now is None else as_utc(now, "now", ConfigError)
        asked = {"content_hash": content_hash}

        def work(connection: Connection) -> bool:
            locking = chart_table.lock(self._schema, dialect.kind(connection))
            row = connection.execute(locking, asked).one_or_none()
            if row is None or row.retired_at is not None:
                return False
            if row.isolation not in _FRESH:
                raise ConfigError(
                    f"retire was called in a transaction at {row.isolation.upper()}, whose snapshot may be "
                    "older than an execution on the chart; call it outside, or at READ COMMITTED"
                )
            # Statements of their own: each sees what those committed for whom the lock was waited.
            running = connection.execute(chart_table.running(self._schema), asked).scalar_one()
            timers = connection.execute(chart_table.timers(self._schema), asked).scalar_one()
            if running or timers:
                raise ConfigError(
                    f"chart {content_hash} is in use by {_counted(running, timers)}; "
                    "migrate them, or wait for their end"
                )
            connection.execute(
                chart_table.retire(self._schema), {"of_hash": content_hash, "retired_at": instant}
            )
            return True

        retired, _ = self._write(work)
        return retired

    def charts(self, *, limit: int = 100, after: str | None = None) -> list[StoredChart]:
        """The charts kept, by hash, each with whether it still loads."""
        values = {"after": after or "", "limit": checked_limit(limit)}
        with self._reading() as (connection, _):
            rows = connection.execute(chart_table.page(self._schema), values).all()
        return [
            StoredChart(**row._mapping, unloadable=chart if isinstance(chart, str) else None)
            for row, chart in ((row, self._compile(row)) for row in rows)
        ]

    def _row(self, content_hash: str, *, hold: bool = False) -> Any:
        with self._reading() as (connection, joined):
            statement = chart_table.by_hash(self._schema, hold=hold and joined)
            return connection.execute(statement, {"content_hash": content_hash}).one_or_none()

    def _compile(self, row: Any) -> Chart | str:
        """The compiled chart, or why it does not load."""
        known = self._compiled.get(row.content_hash)
        if known is not None:
            return known
        try:
            chart = loading.load(row.interpreter, row.source)
        except (Exception, SystemExit) as error:
            # A module that ends the program when it is imported ends no delivery.
            return told(error)
        problem = not_a_chart(chart)
        if problem:
            return f"{row.source} {problem}"
        if chart.content_hash != row.content_hash:
            return f"{_place(row)} is another revision now, {chart.content_hash}"
        with self._lock:
            # Two threads that compiled it at once go on with one object.
            return self._compiled.setdefault(row.content_hash, chart)

    # --- Where it reads and writes ------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[tuple[Connection, bool]]:
        frame = self._joined()
        with self._told(frame):
            if frame is not None:
                yield frame.connection, True
            else:
                dialect.check_bridged(self._engine, _MEND)
                with self._reader.connect() as connection:
                    yield connection, False

    def _write(self, work: Callable[[Connection], T]) -> tuple[T, bool]:
        """Do `work` in the transaction in force, or in one of its own; tells whether that was committed."""
        frame = self._joined()
        with self._told(frame):
            if frame is not None:
                frame.joined().flush()
                return work(frame.connection), False
            dialect.check_bridged(self._engine, _MEND)
            with self._writer.begin() as connection:
                dialect.bound_waits(connection, PATIENCE)
                answer = work(connection)
            return answer, True

    def _joined(self) -> Frame | None:
        # A host may lend a connection of another engine, and give a store over this one.
        return ambient.on_database(self._engine)

    @contextmanager
    def _told(self, frame: Frame | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            trouble = dialect.trouble_of(error)
            if trouble is None:
                raise
            if trouble.kind == "schema":
                # Every statement here is the store's own, so it is its tables that are missing.
                tables = self._schema.tables
                given = "" if tables == Tables() else f", tables={tables}"
                raise SchemaError(
                    f"the chart store's tables {self._schema.charts.fullname} and "
                    f"{self._schema.publications.fullname} are absent or outdated; "
                    f"run: statifier-router migrate, or migrations.up(connection{given}) and commit"
                ) from error
            if frame is not None:
                # The door that opened the transaction tells it, or tries again.
                raise
            raise (_ChartsBusy() if trouble.kind == "busy" else _ChartsFault(trouble.sqlstate)) from error


class _ChartsBusy(ExecutionBusy):
    """The wait was for the charts themselves."""

    def __str__(self) -> str:
        return "the wait for the chart store ran out: a delivery or another process holds it; call again"


class _ChartsFault(DatabaseFault):
    """No delivery was under way."""

    def __str__(self) -> str:
        what = f"SQLSTATE {self.sqlstate}" if self.sqlstate else "the connection broke or could not be made"
        return f"the database could not finish the call ({what}); nothing was written, call again"


def _version_of(chart: Chart) -> str | None:
    version = getattr(chart, "version", None)
    if version is None:
        return None
    return checked(version, "chart.version", ConfigError, limit=NAME_LIMIT)


def _place(row: Any) -> str:
    # A text of its own is long, and named by its hash.
    return "its text" if "\n" in row.source or "<" in row.source else str(row.source)


def _counted(running: int, timers: int) -> str:
    told = [f"{running} executions that have not ended"] if running else []
    if timers:
        told.append(f"{timers} pending timers")
    return " and ".join(told)
