"""What stands before a chain that is killed, the processes that go on after it, and what has to hold then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Literal

import attrs
from sqlalchemy import delete, insert, select

from statifier_router.runs import ChainEnd, Outbound, record_change
from statifier_router.runs.positions import read
from statifier_router.testing import Clock
from statifier_router.testing.targets import Request, ScriptedTarget, lands, rejects, times_out
from tests.support import runs_workers as workers
from tests.support.databases import Database
from tests.support.depot import Depot
from tests.support.runs_workers import ENTITY, LEASE

# "tick": the next chain takes the dead one's place. "again": another process goes on with the same chain.
Way = Literal["tick", "again"]

START = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
MINUTE = timedelta(minutes=1)
# Chains until nothing is left to do.
_ROUNDS = 12

Rows = dict[str, list[dict[str, Any]]]

# --- what stands before the chain -----------------------------------------------------------------------


def prepare(outbound: Outbound, clock: Clock, target: ScriptedTarget) -> None:
    """Records for every step that a chain can make, each named by what it is."""
    for source_id in ("same", "changed", "deleted"):
        _put(outbound, source_id, 1)
    _put(outbound, "parked", 1)
    target.on("parked", lands(""))
    _go(outbound)
    _put(outbound, "due", 1)
    target.on("due", rejects())
    _put(outbound, "doubt", 1)
    target.on("doubt", times_out(taken=True))
    _go(outbound)
    clock.set(START)
    for source_id, value in (
        ("doubt", 2),
        ("changed", 2),
        ("same", 1),
        ("new", 1),
        ("slow", 1),
        ("parked", 2),
    ):
        _put(outbound, source_id, value)
    record_change(outbound.config, ENTITY, "deleted", None, deleted=True)


def script(target: ScriptedTarget) -> None:
    """What the target does in the chain."""
    target.on("slow", times_out(taken=True))


def _put(outbound: Outbound, source_id: str, value: int) -> None:
    record_change(outbound.config, ENTITY, source_id, {"value": value})


def _go(outbound: Outbound) -> None:
    (chain_id,) = outbound.tick()
    assert outbound.run_chain(chain_id) is ChainEnd.COMPLETED


@attrs.define
class World:
    """One database and one kind of target; `config` and `clock` are those of the surviving process."""

    database: Database
    variant: str
    config: Any
    clock: Clock
    rows: Rows = attrs.field(factory=dict)
    requests: list[Request] = attrs.field(factory=list)
    clean: dict[str, Any] = attrs.field(factory=dict)

    @classmethod
    def made(cls, database: Database, variant: str) -> World:
        """The state before the chain, and what becomes of it where nobody is killed."""
        before = START - timedelta(hours=1)
        config = workers.config_of(database.url, before.isoformat())
        assert isinstance(config.clock, Clock)
        world = cls(database, variant, config, config.clock)
        target = ScriptedTarget(keyed=world.keyed)
        prepare(world.outbound(target), world.clock, target)
        world.rows, world.requests = world.read(), target.requests
        target = world.restored()
        assert world.go_on(world.outbound(target)) is None
        world.clean = world.summary()
        return world

    @property
    def keyed(self) -> bool:
        """Whether the target honours keys."""
        return workers.VARIANTS[self.variant].keyed

    def outbound(self, target: ScriptedTarget) -> Outbound:
        """The surviving process, which calls the target directly."""
        return workers.outbound_of(self.config, target, self.variant)

    def read(self) -> Rows:
        """Every row of every table of the outbound half."""
        with self.config.engine.connect() as connection:
            return {
                name: [dict(row) for row in connection.execute(select(table)).mappings()]
                for name, table in self._tables()
            }

    def restored(self) -> ScriptedTarget:
        """Bring the database back to the state before the chain; answers the target as it was then."""
        with self.config.engine.begin() as connection:
            for name, table in self._tables():
                connection.execute(delete(table))
                if self.rows[name]:
                    connection.execute(insert(table), self.rows[name])
        target = ScriptedTarget(keyed=self.keyed)
        for request in self.requests:
            if request.took_effect:
                target.call(
                    request.verb, request.context, remote_id=request.remote_id, payload=request.payload
                )
        script(target)
        self.clock.set(START)
        return target

    def _tables(self) -> Iterator[tuple[str, Any]]:
        for name in ("changes", "rules", "records", "operations", "chains", "breakers", "audit"):
            yield name, getattr(self.config.schema, name)

    def summary(self) -> dict[str, Any]:
        """How every record stands."""
        return {
            row["source_id"]: (row["status"], row["signal"], row["error_kind"], row["generation"])
            for row in self.read()["records"]
        }

    # --- after the kill -----------------------------------------------------------------------------

    def go_on(self, outbound: Outbound, way: Way = "tick") -> str | None:
        """Other processes run the rule until nothing is left to do; answers what went wrong."""
        running = [row["id"] for row in self.read()["chains"] if row["state"] == "running"]
        if running:
            self.clock.set(START + LEASE / 2)
            if outbound.tick():
                return "a tick began a chain beside a living one"
            if way == "again":
                self.clock.set(START + LEASE + timedelta(seconds=1))
                end = outbound.run_chain(running[0])
                if end is not ChainEnd.COMPLETED:
                    return f"the chain that was taken over ended {end}"
        self.clock.set(START + 2 * LEASE + timedelta(seconds=1))
        for _ in range(_ROUNDS):
            (chain_id,) = outbound.tick()
            end = outbound.run_chain(chain_id)
            due = [row["next_attempt_at"] for row in self.read()["records"] if row["status"] == "failed"]
            if end is ChainEnd.COMPLETED and not due:
                return None
            self.clock.set(max([self.clock() + MINUTE, *due]))
        return f"not at rest after {_ROUNDS} chains"

    def problems(self, depot: Depot, wrong: str | None) -> list[str]:
        """Everything that does not hold, once nothing is left to do."""
        rows = self.read()
        found = [] if wrong is None else [wrong]
        found += _of_tables(rows)
        newest: dict[str, Any] = {}
        for row in sorted(rows["changes"], key=lambda row: row["seq"]):
            newest[row["source_id"]] = row
        records = {row["source_id"]: row for row in rows["records"]}
        if len(records) != len(rows["records"]) or records.keys() != newest.keys():
            found.append(f"rows of {sorted(records)}")
        for source_id, row in records.items():
            found += _of_record(
                row, newest[source_id], depot.target, self.variant, self._unheard(depot, source_id)
            )
        if self.keyed:
            found += _at_a_keyed_target(records, depot)
            if self.summary() != self.clean:
                found.append(f"{self.summary()} is not {self.clean}")
        found += _of_keys(depot.target.requests)
        return found

    def _unheard(self, depot: Depot, source_id: str) -> int:
        """How many creates of the record took effect while nobody heard the answer."""
        timed_out = [
            request
            for request in (*self.requests, *depot.target.requests)
            if request.verb == "create" and request.source_id == source_id
            if request.took_effect and request.answer != "landed"
        ]
        return len(timed_out) + depot.unheard.count(source_id)


def _of_tables(rows: Rows) -> list[str]:
    found = []
    (rule,) = rows["rules"]
    last = max((row["xid"], row["seq"]) for row in rows["changes"])
    if tuple(read(rule["cursor"])) != last:  # type: ignore[arg-type]  # a place in `changes`
        found.append(f"the cursor is {rule['cursor']}, the last change {last}")
    if rule["lease_until"] is not None:
        found.append("the lease was not given back")
    if any(row["state"] == "running" for row in rows["chains"]):
        found.append("a chain is running")
    parked = {row["source_id"] for row in rows["records"] if row["error_kind"] == "unknown_create"}
    if {row["source_id"] for row in rows["operations"]} != parked:
        found.append(f"operations are open: {rows['operations']}")
    if any(row["state"] != "closed" for row in rows["breakers"]):
        found.append("a breaker is open")
    return found


def _of_record(
    row: dict[str, Any], newest: dict[str, Any], target: ScriptedTarget, variant: str, unheard: int
) -> list[str]:
    """What the row says, against what stands at the target."""
    source_id, status = row["source_id"], row["status"]
    copies = target.copies(source_id)
    found = []
    if row["attempts"] > 5 or any(
        request.context is not None and request.context.attempt > 5 for request in target.calls(source_id)
    ):
        found.append(f"{source_id}: more than five attempts")
    # Only where neither a key, nor a lookup, nor an operator can tell is a create sent again blindly.
    doubled = unheard if variant == "without keys" else 0
    if len(copies) > 1 + doubled:
        found.append(f"{source_id}: {len(copies)} copies")
    if status == "delivered":
        held = target.records.get(row["remote_id"])
        if row["signal"] != newest["signal"]:
            found.append(f"{source_id}: delivered in an old version")
        elif held is None or held.source_id != source_id or held.signal != newest["signal"]:
            found.append(f"{source_id}: the target has {held}")
    elif status == "suppressed":
        if not newest["deleted"] or (row["remote_id"] is None and copies and not doubled):
            found.append(f"{source_id}: suppressed, and {len(copies)} copies")
    elif status not in ("exhausted", "remote_gone") or not row["last_error"]:
        found.append(f"{source_id}: {status} without a reason")
    return found


def _at_a_keyed_target(records: dict[str, dict[str, Any]], depot: Depot) -> list[str]:
    """The request log against the table of records: each call that took effect was heard of once."""
    took_effect = Counter(request.source_id for request in depot.target.requests if request.took_effect)
    found = []
    for source_id, row in records.items():
        # The answer to a create without an address is none that counts.
        heard = row["generation"] + (row["error_kind"] == "unaddressable")
        if took_effect[source_id] != heard:
            found.append(f"{source_id}: {took_effect[source_id]} calls took effect, {heard} were heard of")
    return found


def _of_keys(requests: list[Request]) -> list[str]:
    """A key stands for one call: the same record, verb, version and, of a create, payload."""
    calls: dict[str, Any] = {}
    found = []
    for request in requests:
        assert request.context is not None
        assert request.key is not None
        if request.verb == "lookup":
            continue
        call = (request.verb, request.source_id, request.context.signal, request.payload)
        if calls.setdefault(request.key, call) != call:
            found.append(f"one key for {call} and {calls[request.key]}")
    return found
