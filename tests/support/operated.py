"""A host with one rule, whose rows a test writes itself: what operators find, without a run that makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
from sqlalchemy import insert, select, update

from statifier_router import ids
from statifier_router.runs import Outbound, Policy, Record, Rule
from statifier_router.testing.targets import ScriptedTarget, ScriptedWriter
from tests.support.charts import NOW

RULE = "parcels"
TARGET = "carrier"
LEASE = timedelta(seconds=90)


@attrs.define
class Clock:
    """A clock that stands until a test moves it."""

    now: datetime = NOW

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, time: timedelta) -> datetime:
        """Move on; answers the new instant."""
        self.now += time
        return self.now


class Shelf:
    """A source in memory. Its records stand in the order in which they were put there last."""

    identity = "shelf"

    def __init__(self) -> None:
        self.kept: dict[str, Record] = {}
        self.count = 0
        self.held: set[str] = set()
        self.fault: Exception | None = None

    def put(self, source_id: str, signal: str = "v1", *, deleted: bool = False) -> None:
        """A version of a record."""
        self.count += 1
        self.kept.pop(source_id, None)
        self.kept[source_id] = Record(
            source_id=source_id,
            signal=signal,
            position=self.count,
            payload={"version": signal},
            deleted=deleted,
        )

    def scan(self, connection: Any, after: Any, limit: int) -> Sequence[Record]:
        """What was put there after `after`."""
        begun = 0 if after is None else after
        return [each for each in self.kept.values() if int(str(each.position)) > begun][:limit]

    def load(self, connection: Any, source_ids: Sequence[str]) -> Mapping[str, Record | None]:
        """What stands there now; raises `fault` where a test set one."""
        if self.fault is not None:
            raise self.fault
        return {each: self.kept.get(each) for each in source_ids}

    def held_back(self, connection: Any, record: Record) -> str | None:
        """Those that a test holds back."""
        return "somebody is still writing" if record.source_id in self.held else None


@attrs.define
class Host:
    """The rule `parcels`, its source, its target, and the tables that its runs write."""

    config: Any
    clock: Clock
    shelf: Shelf = attrs.field(factory=Shelf)
    target: ScriptedTarget = attrs.field(factory=ScriptedTarget)
    closed: str | None = None
    # Where the command line finds it, in tests of commands.
    module: Any = None
    outbound: Outbound = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.outbound = self.made()

    def made(self, *rules: Rule, **kw: Any) -> Outbound:
        """Another process's Outbound over the same database; by default with the same rule."""
        arguments: dict[str, Any] = {
            "writers": {"carrier": ScriptedWriter(self.target)},
            "health": lambda rule: self.closed,
            "lease": LEASE,
            "rules": rules or [self.rule()],
            "owner": "tests",
        }
        return Outbound(self.config, **(arguments | kw))

    def rule(self, name: str = RULE, **changes: Any) -> Rule:
        """The rule; arguments change it."""
        arguments: dict[str, Any] = {
            "entity": "parcel",
            "source": self.shelf,
            "target": TARGET,
            "driver": "carrier",
            "policy": Policy.UPSERT,
        }
        return Rule(name, **(arguments | changes))

    def save(self, **changes: Any) -> Rule:
        """Save the rule, and have `outbound` know it."""
        rule = self.rule(**changes)
        self.outbound.save_rule(rule)
        return rule

    # --- rows -----------------------------------------------------------------------------------------

    def write(self, table: str, *rows: Mapping[str, Any]) -> None:
        """Insert rows, past the library."""
        with self.config.engine.begin() as connection:
            connection.execute(insert(getattr(self.config.schema, table)), [dict(row) for row in rows])

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table, in the order of their key."""
        found = getattr(self.config.schema, table)
        with self.config.engine.connect() as connection:
            rows = connection.execute(select(found).order_by(*found.primary_key.columns)).mappings()
            return [dict(row) for row in rows]

    def dump(self) -> dict[str, list[dict[str, Any]]]:
        """Every table of the outbound half."""
        tables = ("rules", "records", "operations", "chains", "breakers", "audit")
        return {name: self.rows(name) for name in tables}

    def row(self, source_id: str, rule: str = RULE) -> dict[str, Any]:
        """The row of one record."""
        return next(
            row for row in self.rows("records") if (row["rule"], row["source_id"]) == (rule, source_id)
        )

    def record(self, source_id: str, status: str = "delivered", **changes: Any) -> dict[str, Any]:
        """Write a record's row as a run leaves it in this status."""
        row: dict[str, Any] = {
            "rule": RULE,
            "source_id": source_id,
            "status": status,
            "remote_id": f"R-{source_id}",
            "signal": "v1",
            "attempts": 0,
            "next_attempt_at": None,
            "error_kind": None,
            "last_error": None,
            "parked_at": None,
            "acknowledged_at": None,
            "generation": 1,
            "row_version": 3,
            "updated_at": self.clock.now,
        }
        if status == "failed":
            row |= {
                "attempts": 2,
                "next_attempt_at": self.clock.now + timedelta(minutes=15),
                "error_kind": "rejected",
                "last_error": "no such street",
            }
        if status in ("exhausted", "remote_gone"):
            row |= {
                "attempts": 5 if status == "exhausted" else 0,
                "error_kind": "rejected" if status == "exhausted" else "gone",
                "last_error": "no such street",
                "parked_at": self.clock.now,
            }
        row |= changes
        self.write("records", row)
        return row

    def operation(self, source_id: str, **changes: Any) -> dict[str, Any]:
        """Write an open operation, by default a create in doubt of the version that the row has."""
        row: dict[str, Any] = {
            "rule": RULE,
            "source_id": source_id,
            "verb": "create",
            "key": f"key of {source_id}",
            "signal": "v1",
            "payload": "{}",
            "in_doubt": True,
            "lease_token": 0,
            "chain_id": "ch_1",
            "row_version": 3,
            "started_at": self.clock.now,
        }
        row |= changes
        self.write("operations", row)
        return row

    def chain(self, state: str = "finished", end: str | None = "COMPLETED", **changes: Any) -> dict[str, Any]:
        """Write a chain; a failed one has an unclassified fault at the record P1."""
        row: dict[str, Any] = {
            "id": ids.chain_id(),
            "rule": RULE,
            "state": state,
            "phase": "scan",
            "due_before": self.clock.now,
            "digest": self.rule().digest,
            "job_seq": 1,
            "heartbeat_at": self.clock.now,
            "position": None,
            "end": end,
            "fault_kind": None,
            "fault_source_id": None,
            "fault_text": None,
            "counters": '{"delivered":2}',
        }
        if state == "running":
            row["end"] = None
        if state == "failed":
            row |= {
                "end": "FAILED",
                "fault_kind": "unclassified",
                "fault_source_id": "P1",
                "fault_text": "the writer raised KeyError: 'street'",
            }
        row |= changes
        self.write("chains", row)
        return row

    def breaker(self, **changes: Any) -> dict[str, Any]:
        """Write an open breaker."""
        row: dict[str, Any] = {
            "target": TARGET,
            "state": "open",
            "failures": 5,
            "open_until": self.clock.now + timedelta(seconds=60),
            "probe_until": None,
            "trips": 1,
        }
        row |= changes
        self.write("breakers", row)
        return row

    def message(self, queue: str, key: str, **changes: Any) -> None:
        """Write a row of the outbox, as a send leaves it."""
        row: dict[str, Any] = {
            "queue": queue,
            "scope": "acme",
            "key": key,
            "execution_id": "ex_1",
            "event": '{"name":"moved","data":{}}',
            "context": None,
            "created_at": self.clock.now,
        }
        self.write("outbox", row | changes)

    def lease(self, token: int, until: datetime | None, **changes: Any) -> None:
        """Write who has the rule."""
        values = {"lease_token": token, "lease_until": until, "lease_owner": "somebody"} | changes
        table = self.config.schema.rules
        with self.config.engine.begin() as connection:
            connection.execute(update(table).where(table.c.name == RULE).values(values))


def host(make_config: Any, database: Any, **kw: Any) -> Host:
    """A host on this database, its rule saved."""
    clock = Clock()
    made = Host(make_config(database, clock=clock, **kw), clock)
    made.save()
    return made
