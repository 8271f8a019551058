"""What child processes run of delivery runs: ticks, chains, and chains that are killed on their way.

Arguments and results are JSON. Records come from `changes`, and the target is a `Depot` of the test's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
from sqlalchemy import Connection, event

from statifier_router import Config, create_engine
from statifier_router.runs import Changes, Outbound, Policy, Record, Rule
from statifier_router.testing import Clock
from statifier_router.testing.targets import ScriptedTarget, ScriptedWriter
from tests.support import charts
from tests.support.depot import FarTarget
from tests.support.processes import pause
from tests.support.racing import PATIENCE

ENTITY = "parcel"
RULE = "parcels"
DRIVER = "depot"
LEASE = timedelta(seconds=90)
CALL_TIMEOUT = timedelta(seconds=30)


@attrs.frozen
class Variant:
    """A kind of target, and what the rule does about it."""

    keyed: bool
    verbs: tuple[str, ...] = ("create", "update", "delete")
    on_unknown_create: str = "retry"


VARIANTS = {
    "keyed": Variant(keyed=True),
    "without keys": Variant(keyed=False),
    "without keys, parked": Variant(keyed=False, on_unknown_create="park"),
    "without keys, looked up": Variant(keyed=False, verbs=("create", "update", "delete", "lookup")),
}


class Watched(Changes):
    """The same source, which stops before it loads one record: the job's transaction is open then.

    `RECORD` is set in the child alone.
    """

    RECORD: str | None = None

    def load(self, connection: Connection, source_ids: Sequence[str]) -> Mapping[str, Record | None]:
        """As `Changes` does, after a pause that tells the server's process behind the connection."""
        if self.RECORD in source_ids:
            type(self).RECORD = None
            backend = None
            if connection.dialect.name == "postgresql":
                backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            pause("load", backend)
        return super().load(connection, source_ids)


def rule_of(variant: str = "keyed", name: str = RULE, **kw: Any) -> Rule:
    """The rule of every process."""
    fields: dict[str, Any] = {
        "entity": ENTITY,
        "source": Watched(ENTITY),
        "target": "depot",
        "driver": DRIVER,
        "policy": Policy.UPSERT,
        "batch_size": 4,
        "call_timeout": CALL_TIMEOUT,
        "on_unknown_create": VARIANTS[variant].on_unknown_create,
    }
    return Rule(name, **fields | kw)


def outbound_of(config: Config, target: ScriptedTarget, variant: str = "keyed", **kw: Any) -> Outbound:
    """One process's rules."""
    writer = ScriptedWriter(target, verbs=VARIANTS[variant].verbs)
    arguments: dict[str, Any] = {"lease": LEASE, "rules": [rule_of(variant)]} | kw
    return Outbound(config, writers={DRIVER: writer}, **arguments)


def config_of(url: str, now: str, **engine: Any) -> Config:
    """A configuration whose clock stands still."""
    made = create_engine(url, **engine)
    if made.dialect.name == "sqlite":
        # A process that is killed takes nothing with it that the system has: the disk need not be waited for.
        event.listen(made, "connect", _not_to_the_disk)
    return Config(
        made,
        charts=charts.registry(),
        bindings=[],
        clock=Clock(datetime.fromisoformat(now)),
        lock_timeout=PATIENCE,
    )


def _not_to_the_disk(driver: Any, record: Any) -> None:
    driver.execute("PRAGMA synchronous = OFF")


def _here(url: str, port: int, now: str, variant: str) -> Outbound:
    return outbound_of(config_of(url, now), FarTarget(port, keyed=VARIANTS[variant].keyed), variant)


# --- beside each other ----------------------------------------------------------------------------------


def tick_in_rounds(url: str, rounds: list[str]) -> list[list[str]]:
    """Tick at each of these instants, after pausing before it; answers the chains that were begun."""
    begun = []
    for number, now in enumerate(rounds):
        outbound = _here(url, 0, now, "keyed")
        # Saved, so that the tick is all that is to be done.
        outbound.rules()
        pause(f"round {number}")
        begun.append(outbound.tick())
    return begun


def run_chain(url: str, port: int, now: str, chain_id: str, variant: str = "keyed") -> str:
    """Run a chain, after pausing before it; answers how it ended."""
    outbound = _here(url, port, now, variant)
    # Saved, so that the next thing that it waits for is the lease.
    outbound.rules()
    pause("ready")
    return outbound.run_chain(chain_id).name


def run_watched(url: str, port: int, now: str, chain_id: str, record: str) -> str:
    """Run a chain, pausing in the transaction in which `record` is loaded; answers how it ended."""
    Watched.RECORD = record
    return _here(url, port, now, "keyed").run_chain(chain_id).name


# --- killed -------------------------------------------------------------------------------------------


def run_between_marks(url: str, port: int, now: str, variant: str) -> str:
    """Begin a chain and run it; a statement before it tells this process's id, one after it its end."""
    outbound = _here(url, port, now, variant)
    _mark(outbound.config, f"SELECT 'begin {os.getpid()}'")
    (chain_id,) = outbound.tick()
    end = outbound.run_chain(chain_id)
    _mark(outbound.config, "SELECT 'end'")
    outbound.config.engine.dispose()
    return end.name


def _mark(config: Config, sql: str) -> None:
    with config.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(sql)


def run_traced(url: str, port: int, now: str, variant: str, kill_at: int | None) -> list[str | None]:
    """On SQLite: begin a chain and run it, and kill this process before statement `kill_at`.

    Answers the statements that SQLite ran, and None for each call, which has a number too; `kill_at` may
    be one more than there are.
    """
    config = config_of(url, now, pool_size=1, max_overflow=0)
    ran: list[str | None] = []

    def called() -> int:
        ran.append(None)
        return len(ran)

    def trace(sql: str) -> None:
        ran.append(sql)
        if len(ran) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    target = FarTarget(port, keyed=VARIANTS[variant].keyed, number=called)
    outbound = outbound_of(config, target, variant)
    _traced(config, trace)
    (chain_id,) = outbound.tick()
    outbound.run_chain(chain_id)
    _traced(config, None)
    trace("the end")
    config.engine.dispose()
    return ran[:-1]


def _traced(config: Config, trace: Callable[[str], None] | None) -> None:
    with config.engine.connect() as connection:
        driver = connection.connection.driver_connection
    assert driver is not None
    driver.set_trace_callback(trace)
