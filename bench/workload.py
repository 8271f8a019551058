"""What the benches deliver: parcels that are scanned, over a trivial chart and over a real one."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import checkout  # noqa: F401 - imported for what it does: the package is then found
from sqlalchemy import text

from statifier_router import (
    Binding,
    ChartRegistry,
    Config,
    Delivery,
    Message,
    SQLExecutor,
    Step,
    create_engine,
    deliver,
    deliver_many,
    migrations,
    route,
)
from statifier_router.interpreters import function, statemachine

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
KEYS = 1_000
DATA = {"depot": "Lyon", "weight": 12, "scanner": {"id": "S-4711", "line": 3}}

SCXML = """
<scxml name="parcel" initial="moving">
  <datamodel><data id="scans" expr="0"/><data id="depot" expr="''"/></datamodel>
  <state id="moving">
    <transition event="scanned" cond="_event.data.weight &lt; 1000" target="held">
      <assign location="scans" expr="scans + 1"/>
      <assign location="depot" expr="_event.data.depot"/>
    </transition>
  </state>
  <state id="held"><transition event="scanned" target="moving"/></state>
</scxml>
"""


class Numbers:
    """The numbers of messages: no run ever meets those of another one in the same database."""

    def __init__(self) -> None:
        # Stays within the 64 bits of pgbench.
        self._next = int.from_bytes(secrets.token_bytes(3)) * 100_000_000_000

    def __next__(self) -> int:
        self._next += 1
        return self._next

    def reserve(self, many: int) -> int:
        """The first of so many that nobody else takes."""
        first = self._next + 1
        self._next += many
        return first


numbers = Numbers()


class WritingPlainly(SQLExecutor):
    """As a host would derive it: its deliveries take the plain statements on PostgreSQL too."""


def trivial() -> Any:
    """A chart that does next to nothing: what is measured is the library."""
    return function.chart(
        "parcel",
        create=lambda data, now: Step({"scans": 0, "depot": ""}, active=["moving"]),
        step=lambda position, event, now: Step(
            {"scans": position["scans"] + 1, "depot": event.data["depot"]}, active=["moving"]
        ),
    )


def binding(document: str = "parcel") -> Binding:
    return Binding(
        id=f"scans of {document}",
        source="carrier",
        match={"kind": "scan"},
        key="parcel",
        document=document,
        event="scanned",
        data=("depot", "weight", "scanner"),
    )


def config(url: str, *, plain: bool = False, pool: int = 1, **kw: Any) -> Config:
    """A configuration with an engine of its own, whose connections do not wait for the disk."""
    charts = ChartRegistry()
    charts.publish("parcel", trivial())
    charts.publish("machine", statemachine.scxml(SCXML))
    options = {} if url.startswith("sqlite") else {
        "connect_args": {"options": "-c synchronous_commit=off"}, "pool_size": pool, "max_overflow": 0
    }  # fmt: skip
    return Config(
        create_engine(url, **options),
        charts=charts,
        bindings=[binding()],
        executor=WritingPlainly() if plain else None,
        **kw,
    )


def migrate(made: Config) -> None:
    with made.engine.begin() as connection:
        migrations.up(connection)


def delivering(made: Config, document: str = "parcel", keys: int = KEYS) -> Callable[[], None]:
    """Delivers one message to the next of `keys` executions."""
    to = binding(document)

    def work() -> None:
        number = next(numbers)
        deliver(made, to, str(number % keys + 1), Delivery(str(number), "acme", NOW, DATA))

    return work


def delivering_many(made: Config, batch: int) -> Callable[[], None]:
    """Delivers a batch, each message of it to another execution."""
    to = binding()

    def work() -> None:
        first = numbers.reserve(batch)
        items = [
            (to, str(number % KEYS + 1), Delivery(str(number), "acme", NOW, DATA))
            for number in range(first, first + batch)
        ]
        for outcome in deliver_many(made, items):
            assert not isinstance(outcome, Exception), outcome

    return work


def routing(made: Config) -> Callable[[], None]:
    """Routes one message: match, key, projection and all."""
    only = {"kind": "scan", **DATA}

    def work() -> None:
        number = next(numbers)
        data = {**only, "parcel": str(number % KEYS + 1)}
        message = Message("carrier", str(number), "acme", data)
        route(made, message, now=NOW)

    return work


def creating(made: Config, document: str = "parcel") -> Callable[[], None]:
    """Delivers one message to a key that was never seen."""
    to = binding(document)

    def work() -> None:
        number = next(numbers)
        deliver(made, to, f"new {number}", Delivery(str(number), "acme", NOW, DATA))

    return work


def fill(made: Config, document: str = "parcel", keys: int = KEYS) -> None:
    """One execution for each of the keys."""
    to = binding(document)
    for key in range(1, keys + 1):
        deliver(made, to, str(key), Delivery(str(next(numbers)), "acme", NOW, DATA))


TABLES = ("claims", "addresses", "executions", "inputs", "ledger")


def counted(made: Config) -> dict[str, int]:
    """The rows of every table that a delivery writes."""
    with made.engine.connect() as connection:
        return {
            name: connection.execute(
                text(f"SELECT count(*) FROM {getattr(made.schema, name).name}")
            ).scalar_one()
            for name in TABLES
        }


class Recount:
    """Counts the rows before and after: every message must have left what it should."""

    def __init__(self, made: Config) -> None:
        self._made = made
        self._before = counted(made)

    def check(self, *, delivered: int = 0, created: int = 0) -> dict[str, int]:
        """What was added; raises where a message left more or less than it should."""
        after = counted(self._made)
        added = {name: after[name] - self._before[name] for name in TABLES}
        every = delivered + created
        expected = {
            "claims": every,
            "addresses": created,
            "executions": created,
            "inputs": every + created,
            "ledger": every,
        }
        if added != expected:
            raise SystemExit(f"rows do not add up: expected {expected}, found {added}")
        self._before = after
        return added
