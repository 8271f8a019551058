"""A process killed at every statement of a delivery, the message handed over again, the state compared.

On PostgreSQL the proxy kills: before the server has seen the statement, and after the server has done it
while the process has not heard. On SQLite, which runs inside the process, its trace callback kills.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import attrs
from sqlalchemy import delete, make_url, select, text

from tests.support import servers, workers
from tests.support.databases import Database
from tests.support.forks import Forks
from tests.support.proxy import Proxy, Verdict

# "before": the statement was never run. "after": it was, and nobody heard. "answered": all were, and heard.
Moment = Literal["before", "after", "answered"]

_DELIVER = "tests.support.workers:deliver_between_marks"

# The digest that ends an idempotency key.
_DRIVER = re.compile(r":[0-9a-f]{32}\b")

State = dict[str, list[dict[str, Any]]]


@attrs.frozen
class Tried:
    """One point at which a process was killed, and what became of the message after that.

    `committed` is whether the kill came after the commit; `clean` whether the state equals that of a
    process that nobody killed.
    """

    number: int
    moment: Moment
    sql: str
    committed: bool
    redelivered: str
    clean: bool

    def __str__(self) -> str:
        verdict = "state clean" if self.clean else "STATE DIFFERS"
        return f"{self.number:3} {self.moment:8} {self.sql:44.44} -> {self.redelivered}; {verdict}"


@attrs.frozen
class Report:
    """All points of one scenario. `counted` is how many statements a clean delivery ran on the server."""

    scenario: str
    counted: int
    tried: list[Tried]

    @property
    def points(self) -> int:
        """How many statements a process was killed at."""
        return len({each.number for each in self.tried if each.moment != "answered"})

    @property
    def all_clean(self) -> bool:
        """Whether every kill ended in the state of a clean delivery."""
        return all(each.clean for each in self.tried)

    def __str__(self) -> str:
        kills = len(self.tried)
        clean = sum(each.clean for each in self.tried)
        head = (
            f"{self.scenario}: {self.counted} statements on the server, {self.points} points, "
            f"{kills} kills, {clean} clean"
        )
        return "\n".join([head, *map(str, self.tried)])


@attrs.frozen
class _Clean:
    """The states that nobody's death may differ from: handed over once, and handed over twice."""

    once: State
    twice: State


def dump(config: Any) -> State:
    """Every row of every table, with nothing in it that two equal deliveries may differ in.

    An execution's id becomes its document and key, identities become their order. What is hashed of an id
    in an idempotency key is left out, and so is the number of the transaction that wrote a row.
    """
    schema = config.schema
    with config.engine.connect() as connection:
        ids = {
            row.id: f"<{row.document} {row.key}>"
            for row in connection.execute(
                select(schema.executions.c.id, schema.executions.c.document, schema.executions.c.key)
            )
        }
        state: State = {}
        for table in schema.metadata.sorted_tables:
            if table is schema.schema_version:
                continue
            rows = connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
            identity = "identity" if "id" in table.c and table is not schema.executions else None
            found = [
                {
                    name: _without_ids(value, ids)
                    for name, value in row.items()
                    if name != "xid" and not (identity and name == "id")
                }
                for row in rows
            ]
            state[table.name] = found if identity else sorted(found, key=repr)
    return state


def _without_ids(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, str):
        for execution_id, name in ids.items():
            value = value.replace(execution_id, name)
        return _DRIVER.sub(":...", value)
    return value


def kill_at_every_statement(
    database: Database, scenario: str, forks: Forks, plan: str = "merged", *, thorough: bool = False
) -> Report:
    """Kill a process at each statement of the scenario's delivery, from the same state each time.

    Before each, and after each commit: what is not committed after one statement is what there is before
    the next one. `thorough`: on both sides of each.
    """
    config = workers.config_of(database.url, plan)
    trial = _Trial(database, scenario, plan, config, _clean(config, scenario))
    try:
        if database.kind == "sqlite":
            return _sqlite(trial, forks)
        return _postgresql(trial, forks, thorough=thorough)
    finally:
        config.engine.dispose()


@attrs.frozen
class _Trial:
    """One scenario on one database. `config` is that of the surviving process: this one."""

    database: Database
    name: str
    plan: str
    config: Any
    clean: _Clean

    @property
    def scenario(self) -> workers.Scenario:
        """What is delivered, and what stands before it."""
        return workers.SCENARIOS[self.name]

    def report(self, counted: int, tried: list[Tried]) -> Report:
        """All points."""
        return Report(self.name, counted, tried)

    def prepare(self) -> None:
        """Bring the database to the state before the delivery."""
        _empty(self.config)
        self.scenario.before(self.config)

    def judge(self, number: int, moment: Moment, sql: str, *, committed: bool) -> Tried:
        """Hand the message over again, in a process that has nothing to do with the dead one."""
        outcome = self.scenario.act(self.config)
        # After the commit a second hand-over leaves its own ledger row, and nothing else.
        wanted = self.clean.twice if committed else self.clean.once
        one_line = " ".join(sql.split())
        return Tried(number, moment, one_line, committed, outcome.recorded, dump(self.config) == wanted)


def _empty(config: Any) -> None:
    # Faster than emptying the database anew; identities are no part of a dump.
    with config.engine.begin() as connection:
        for table in config.schema.metadata.sorted_tables:
            if table is not config.schema.schema_version:
                connection.execute(delete(table))


def _clean(config: Any, scenario: str) -> _Clean:
    _empty(config)
    workers.SCENARIOS[scenario].before(config)
    states = []
    for _ in range(2):
        workers.SCENARIOS[scenario].act(config)
        states.append(dump(config))
    return _Clean(*states)


# --- PostgreSQL -------------------------------------------------------------------------------------


@attrs.define
class _Killer:
    """What the proxy calls: counts the statements between the marks, and kills at one of them."""

    number: int | None = None
    moment: Moment = "before"
    seen: list[str] = attrs.field(factory=list)
    killed: bool = False
    _pid: int | None = None

    def __call__(self, n: int, sql: str) -> Verdict:
        if sql.startswith("SELECT 'begin "):
            self._pid = int(re.sub(r"\D", "", sql))
            return "forward"
        if self._pid is None:
            return "forward"
        if sql == "SELECT 'end'":
            return self._kill("cut") if self.moment == "answered" else "forward"
        self.seen.append(sql)
        if len(self.seen) != self.number or self.moment == "answered":
            return "forward"
        return self._kill("cut" if self.moment == "before" else "cut_after")

    def _kill(self, verdict: Verdict) -> Verdict:
        assert self._pid is not None
        os.kill(self._pid, signal.SIGKILL)
        self.killed = True
        return verdict


def _postgresql(trial: _Trial, forks: Forks, *, thorough: bool) -> Report:
    trial.prepare()
    forks.warm(_DELIVER, trial.database.url, trial.name, trial.plan)
    statements, counted = _count(trial, forks)
    points: list[tuple[int, Moment]] = []
    for number, sql in enumerate(statements, start=1):
        points.append((number, "before"))
        if thorough or sql == "COMMIT":
            points.append((number, "after"))
    points.append((len(statements), "answered"))
    tried = []
    for number, moment in points:
        trial.prepare()
        killer = _Killer(number, moment)
        with Proxy(trial.database.url, killer) as proxy:
            ended = forks.run(_DELIVER, named(proxy.url), trial.name, trial.plan)
            # The process is gone before the server has done what it is still to do.
            wait_until_it_is_gone(trial.config)
        assert killer.killed, f"nothing was killed at {number}: {ended}"
        assert ended.signal == signal.SIGKILL, ended
        sql = killer.seen[-1]
        committed = "COMMIT" in (killer.seen[:-1] if moment == "before" else killer.seen)
        tried.append(trial.judge(number, moment, sql, committed=committed))
    return trial.report(counted, tried)


_NAME = "to_be_killed"


def named(url: str) -> str:
    return make_url(url).update_query_dict({"application_name": _NAME}).render_as_string(hide_password=False)


def wait_until_it_is_gone(config: Any) -> None:
    """Return once the server has ended the connection of the dead process, and with it its transaction."""
    left = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = :name AND datname = current_database()"
    )
    with config.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(1000):
            if not connection.execute(left, {"name": _NAME}).scalar_one():
                return
            connection.execute(text("SELECT pg_sleep(0.005)"))
    raise AssertionError("the connection of the dead process is still there")


def _count(trial: _Trial, forks: Forks) -> tuple[list[str], int]:
    """The statements of a delivery that nobody kills: on the wire, and as the server itself counts."""
    trial.prepare()
    killer = _Killer()
    with logging_statements(trial.database) as logged, Proxy(trial.database.url, killer) as proxy:
        ended = forks.run(_DELIVER, named(proxy.url), trial.name, trial.plan)
        counted = logged()
    assert ended.result is not None, ended
    return killer.seen, len(killer.seen) if counted is None else counted


@contextmanager
def logging_statements(database: Database) -> Iterator[Callable[[], int | None]]:
    """Have the server log each statement; answers how many stood between the marks.

    None where the server's log cannot be read.
    """
    log = servers.server_log()
    if log is None:
        yield lambda: None
        return
    setting = f'ALTER DATABASE "{database.name}"'
    with servers.administrator().connect() as connection:
        connection.exec_driver_sql(f"{setting} SET log_statement = 'all'")
    start = log.stat().st_size
    try:
        yield lambda: _logged_between_marks(log, start, database.name)
    finally:
        with servers.administrator().connect() as connection:
            connection.exec_driver_sql(f"{setting} RESET log_statement")


def _logged_between_marks(log: Path, start: int, name: str) -> int:
    with log.open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    pattern = re.compile(
        rf"^\d+ \[{re.escape(name)}\] LOG:  (?:statement|execute [^:]+): (.*)$", re.MULTILINE
    )
    statements = pattern.findall(text)
    (first,) = (i for i, sql in enumerate(statements) if sql.startswith("SELECT 'begin "))
    last = statements.index("SELECT 'end'")
    return last - first - 1


# --- SQLite -----------------------------------------------------------------------------------------


def _sqlite(trial: _Trial, forks: Forks) -> Report:
    function, url = "tests.support.workers:deliver_traced", trial.database.url
    trial.prepare()
    forks.warm(function, url, trial.name, None)
    trial.prepare()
    ended = forks.run(function, url, trial.name, None)
    assert ended.result is not None, ended
    statements: list[str] = ended.result
    tried = []
    for number, sql in enumerate([*statements, "(the end)"], start=1):
        trial.prepare()
        ended = forks.run(function, url, trial.name, number)
        assert ended.signal == signal.SIGKILL, ended
        committed = "COMMIT" in statements[: number - 1]
        moment: Moment = "before" if number <= len(statements) else "answered"
        tried.append(trial.judge(number, moment, sql, committed=committed))
    return trial.report(len(statements), tried)
