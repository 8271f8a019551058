"""One host of delivery runs, worked by the embedded loop or by workers of Procrastinate, in real processes.

The clock is a file that the test writes, the target a `Depot` of the test's: both outlive every worker.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

import procrastinate
import psycopg
from sqlalchemy import make_url, select

from statifier_router import ChartRegistry, Config, create_engine, runs
from statifier_router.contrib.procrastinate import RunTasks, register_runs
from statifier_router.jsontext import Json, decode
from statifier_router.runs import Changes, Outbound, Policy, Rule
from statifier_router.runs.working import BUSY_PAUSE
from statifier_router.testing.targets import ScriptedTarget, ScriptedWriter
from tests.support.charts import NOW
from tests.support.databases import Database
from tests.support.depot import Arrived, Depot, FarTarget, Verdict
from tests.support.processes import Child, pause

LEASE = timedelta(seconds=90)
PATIENCE = 60.0
# In seconds.
_POLL = 0.02
NEVER = "0 0 29 2 *"
EACH_SECOND = "* * * * * *"


class FileClock:
    """A clock that stands until somebody writes another instant into its file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> datetime:
        return datetime.fromisoformat(self.path.read_text())

    def set(self, instant: datetime) -> None:
        """Nobody reads half an instant."""
        fresh = self.path.with_suffix(f".{threading.get_ident()}")
        fresh.write_text(instant.isoformat())
        fresh.rename(self.path)

    def advance(self, by: timedelta) -> None:
        """Move on."""
        self.set(self() + by)


# --- what every process makes -------------------------------------------------------------------------


def outbound_of(url: str, clock: str, port: int, rules: Mapping[str, Mapping[str, Any]]) -> Outbound:
    """The rules, by name; of each its `driver` where it is another one, and its `batch_size`."""
    config = Config(create_engine(url), charts=ChartRegistry(), bindings=[], clock=FileClock(Path(clock)))
    made = [
        Rule(
            name,
            entity=name,
            source=Changes(name),
            target=f"{name} depot",
            policy=Policy.UPSERT,
            **{"driver": "depot", "batch_size": 3, **fields},
        )
        for name, fields in rules.items()
    ]
    writer = ScriptedWriter(FarTarget(port, keyed=True))
    return Outbound(
        config, writers={"depot": writer}, rules=made, lease=LEASE, tick_interval=timedelta(minutes=2)
    )


def app_of(url: str, outbound: Outbound, **kw: Any) -> tuple[procrastinate.App, RunTasks]:
    """Procrastinate on the same database."""
    conninfo = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=conninfo, min_size=1, max_size=4),
        worker_defaults={
            "update_heartbeat_interval": 0.2,
            "fetch_job_polling_interval": 0.2,
            "abort_job_polling_interval": 0.2,
            "shutdown_graceful_timeout": 0.1,
        },
    )
    options: Any = {
        "tick": NEVER,
        "sweep": EACH_SECOND,
        "busy_after": timedelta(milliseconds=100),
        "stalled_after": timedelta(seconds=2),
    }
    return app, register_runs(app, outbound, **options | kw)


def work(*args: Any) -> bool:
    """In a child: the embedded loop, which pauses when the test wants to hear of it."""
    outbound = outbound_of(*args)
    return outbound.work(every=300, pause=lambda seconds: pause("waits", seconds))


def serve(url: str, *args: Any, **kw: Any) -> None:
    """In a child: a worker of Procrastinate, until it is told to end."""
    app, _ = app_of(url, outbound_of(url, *args), **kw)
    pause("ready")
    app.run_worker(concurrency=2)


# --- the test's side ------------------------------------------------------------------------------------


class Host(ABC):
    """The database, the target and the workers of one scenario; a context manager."""

    kind: str

    def __init__(
        self, database: Database, directory: Path, rules: Mapping[str, Mapping[str, Any]], workers: int
    ) -> None:
        self.database = database
        self.workers = workers
        self.rules = rules
        self.clock = FileClock(directory / f"clock of {self.kind}")
        self.clock.set(NOW)
        self.on_call: Callable[[Arrived], Verdict | None] = lambda call: None
        self.target = ScriptedTarget(keyed=True)
        self.depot = Depot(self.target, lambda call: self.on_call(call) or "forward")
        self.outbound = outbound_of(*self.arguments)
        self.config = self.outbound.config
        self.outbound.save_unsaved()
        self.children: list[Child] = []

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What a child makes the same rules of."""
        return self.database.url, str(self.clock.path), self.depot.port, self.rules

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.close()
        self.config.engine.dispose()
        self.depot.close()

    @abstractmethod
    def start(self) -> None:
        """Start the workers."""

    @abstractmethod
    def begin(self) -> None:
        """Have the workers tick."""

    @abstractmethod
    def settle(self) -> None:
        """Return once the workers have nothing to do until the next tick."""

    @abstractmethod
    def await_busy(self) -> None:
        """Return once a job has found its rule taken."""

    @abstractmethod
    def recover(self) -> None:
        """After a kill: see to it that somebody goes on, once the dead one's lease is over."""

    def round(self, **later: float) -> None:
        """A tick and all that comes of it, after so much time."""
        self.clock.advance(timedelta(**later))
        self.begin()
        self.settle()

    def put(self, rule: str, *source_ids: str, value: Json = 0) -> None:
        """A version of records of this rule."""
        for source_id in source_ids:
            runs.record_change(self.config, rule, source_id, {"value": value})

    def kill(self, pid: int) -> None:
        """SIGKILL."""
        next(child for child in self.children if child.pid == pid).kill()

    # --- looking --------------------------------------------------------------------------------------

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table, by key."""
        table = getattr(self.config.schema, name)
        with self.config.engine.connect() as connection:
            return [
                dict(row) for row in connection.execute(select(table).order_by(*table.primary_key)).mappings()
            ]

    def statuses(self, rule: str) -> dict[str, str]:
        """The status of each record of a rule."""
        return {row["source_id"]: row["status"] for row in self.rows("records") if row["rule"] == rule}

    def ends(self, rule: str) -> list[str | None]:
        """How the chains of a rule ended, the oldest first."""
        return [row["end"] for row in self.rows("chains") if row["rule"] == rule]

    def final(self) -> dict[str, Any]:
        """What must be the same however it was worked: the tables, and what the target saw of each rule.

        Addresses are numbers that the target gives in the order of its calls, and transactions have numbers
        of the server's: both are told by what they stand for. After a kill not everybody goes on at the same
        instant.
        """
        names = {remote_id: f"of {held.source_id}" for remote_id, held in self.target.records.items()}
        records = [
            row | {"remote_id": names.get(row["remote_id"]), "updated_at": None}
            for row in self.rows("records")
        ]
        rules = []
        for row in self.rows("rules"):
            cursor: Any = None if row["cursor"] is None else decode(row["cursor"])
            rules.append((row["name"], row["paused"], row["lease_until"], cursor and cursor[-1]))
        log: dict[str, list[Any]] = {}
        for call in self.target.requests:
            assert call.context is not None
            told = (call.verb, call.source_id, call.key, call.payload, call.took_effect, call.answer)
            log.setdefault(call.context.rule, []).append(told)
        return {
            "records": records,
            "operations": [(row["rule"], row["source_id"]) for row in self.rows("operations")],
            "rules": rules,
            "breakers": self.rows("breakers"),
            "log": log,
            "held": sorted((held.source_id, str(held.payload)) for held in self.target.records.values()),
        }


class Embedded(Host):
    """One process with the loop, whatever `workers` says; it goes on to the next round when it is told to."""

    kind = "embedded"

    def start(self) -> None:
        self.children.append(Child("tests.support.conforming:work", *self.arguments))
        # Its first round begins at once.
        self._fresh = True

    def begin(self) -> None:
        if not self._fresh:
            self.children[-1].release()
        self._fresh = False

    def settle(self) -> None:
        while self._waits() == BUSY_PAUSE.total_seconds():
            self.children[-1].release()

    def await_busy(self) -> None:
        assert self._waits() == BUSY_PAUSE.total_seconds()
        self.children[-1].release()

    def recover(self) -> None:
        # Another process takes its place; its first tick finds a dead chain.
        self.clock.advance(2 * LEASE + timedelta(seconds=1))
        self.start()
        self.begin()

    def _waits(self) -> float:
        return float(self.children[-1].wait_for("waits"))


class Queued(Host):
    """Workers of Procrastinate."""

    kind = "procrastinate"

    def start(self) -> None:
        self.app, self.tasks = app_of(self.database.url, self.outbound)
        self.app.open()
        if not self.app.check_connection():
            self.app.schema_manager.apply_schema()
        started = [self._started() for _ in range(self.workers)]
        for child in started:
            child.wait_for("ready")
            child.release()

    def serve(self, **kw: Any) -> None:
        """Start another worker; `kw` goes to `register_runs`."""
        child = self._started(**kw)
        child.wait_for("ready")
        child.release()

    def _started(self, **kw: Any) -> Child:
        self.children.append(Child("tests.support.conforming:serve", *self.arguments, **kw))
        return self.children[-1]

    def __exit__(self, *args: object) -> None:
        super().__exit__(*args)
        self.app.close()

    def begin(self) -> None:
        self.tasks.tick.defer(timestamp=0)

    def settle(self) -> None:
        self.wait_until(
            "NOT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
            " AND task_name IN ('statifier_router:tick', 'statifier_router:job'))"
        )

    def await_busy(self) -> None:
        self.wait_until(
            "EXISTS (SELECT FROM procrastinate_jobs WHERE task_name = 'statifier_router:job'"
            " AND scheduled_at IS NOT NULL AND status = 'succeeded')"
        )

    def recover(self) -> None:
        # The other worker's sweep offers the job again, once nobody has the rule.
        self.clock.advance(LEASE + timedelta(seconds=1))

    def wait_until(self, condition: str) -> None:
        """Return once this holds in the database."""
        deadline = time.monotonic() + PATIENCE
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            while not connection.execute(f"SELECT {condition}").fetchone()[0]:  # type: ignore[index]  # one row
                assert time.monotonic() < deadline, f"it never came to: {condition}; {self.jobs()}"
                time.sleep(_POLL)

    def jobs(self) -> list[tuple[Any, ...]]:
        """What stands in the queue."""
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            return connection.execute(
                "SELECT id, task_name, status, lock, args, attempts, worker_id FROM procrastinate_jobs"
                " WHERE task_name <> 'statifier_router:sweep' ORDER BY id"
            ).fetchall()

    @property
    def _conninfo(self) -> str:
        return make_url(self.database.url).set(drivername="postgresql").render_as_string(hide_password=False)


HOSTS: tuple[type[Host], ...] = (Embedded, Queued)
