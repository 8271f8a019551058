"""A rule, its source and its target, for tests of delivery runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import attrs
from sqlalchemy import Connection, select

from statifier_router.jsontext import Json
from statifier_router.runs import ChainEnd, Outbound, Policy, Position, Record, Rule
from statifier_router.testing import Clock
from statifier_router.testing.targets import ScriptedTarget, ScriptedWriter

# What a fault of a rule may change: its chain, and the lease.
NAMES = ("records", "operations", "breakers", "audit", "changes")

Row = dict[str, Any]


class Listed:
    """A source in memory: its versions in the order in which they were put there."""

    def __init__(self, *, identity: str = "listed", **optional: Any) -> None:
        self.identity = identity
        self.versions: list[Record] = []
        self.scans: list[tuple[Position, int]] = []
        for name, value in optional.items():
            setattr(self, name, value)

    def put(
        self, source_id: str, data: Json, *, signal: str | None = None, deleted: bool = False, **kw: Any
    ) -> Record:
        """A new version of a record; its position is the next number, unless another one is given."""
        record = Record(
            source_id=source_id,
            signal=str(data) if signal is None else signal,
            position=kw.pop("position", len(self.versions) + 1),
            payload={"value": data},
            deleted=deleted,
            **kw,
        )
        self.versions.append(record)
        return record

    def fill(self, count: int, *, value: Json = 0, first: int = 1) -> list[str]:
        """So many records, `p01` and so on; answers their ids."""
        ids = [f"p{number:02d}" for number in range(first, first + count)]
        for source_id in ids:
            self.put(source_id, value)
        return ids

    def remove(self, source_id: str) -> None:
        """Take a record away without a trace."""
        self.versions = [each for each in self.versions if each.source_id != source_id]

    def scan(self, connection: Connection, after: Position, limit: int) -> Sequence[Record]:
        self.scans.append((after, limit))
        newest = {each.source_id: each for each in self.versions}
        found = [each for each in newest.values() if after is None or each.position > after]  # type: ignore[operator]  # of one kind
        return sorted(found, key=lambda each: each.position)[:limit]  # type: ignore[arg-type,return-value]  # the same

    def load(self, connection: Connection, source_ids: Sequence[str]) -> Mapping[str, Record | None]:
        newest = {each.source_id: each for each in self.versions}
        return {source_id: newest.get(source_id) for source_id in source_ids}


@attrs.define
class Runs:
    """One rule `parcels` from a listed source to a scripted target."""

    config: Any
    clock: Clock
    source: Listed
    target: ScriptedTarget
    writer: ScriptedWriter
    outbound: Outbound
    rule: Rule

    # --- doing ----------------------------------------------------------------------------------------

    def begin(self) -> str:
        """A chain of the rule."""
        (chain_id,) = self.outbound.tick()
        return chain_id

    def go(self) -> ChainEnd:
        """A chain of the rule, run to its end."""
        return self.outbound.run_chain(self.begin())

    def later(self, **delta: float) -> ChainEnd:
        """The same after a while."""
        self.clock.advance(timedelta(**delta))
        return self.go()

    def edit(self, **changes: Any) -> Rule:
        """Save the rule with other fields."""
        self.rule = attrs.evolve(self.rule, **changes)
        self.outbound.save_rule(self.rule)
        return self.rule

    def again(self, **kw: Any) -> Outbound:
        """Another process, which has the rule too; `kw` goes to `Outbound`."""
        arguments: Any = {"writers": {"scripted": self.writer}, "rules": [self.rule]} | kw
        return Outbound(self.config, **arguments)

    # --- looking --------------------------------------------------------------------------------------

    def rows(self, name: str) -> list[Row]:
        """The rows of one table, in the order of their keys."""
        table = getattr(self.config.schema, name)
        with self.config.engine.connect() as connection:
            rows = connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
            return [dict(row) for row in rows]

    def row(self, source_id: str) -> Row | None:
        """The row of one record."""
        return next((row for row in self.rows("records") if row["source_id"] == source_id), None)

    def statuses(self) -> dict[str, str]:
        """The status of every record that has a row."""
        return {row["source_id"]: row["status"] for row in self.rows("records")}

    def operations(self) -> dict[str, Row]:
        """The open operations, by record."""
        return {row["source_id"]: row for row in self.rows("operations")}

    def chains(self) -> list[Row]:
        """The chains, the oldest first."""
        return self.rows("chains")

    def chain(self) -> Row:
        """The newest chain."""
        return self.chains()[-1]

    @property
    def rule_row(self) -> Row:
        """The row of the rule."""
        (row,) = self.rows("rules")
        return row

    def breaker(self) -> Row | None:
        """The breaker of the target."""
        return next(iter(self.rows("breakers")), None)

    def dump(self) -> dict[str, list[Row]]:
        """Every table but the chains; of the rules what is no lease."""
        dumped = {name: self.rows(name) for name in NAMES}
        lease = ("lease_owner", "lease_token", "lease_until")
        dumped["rules"] = [
            {name: value for name, value in row.items() if name not in lease} for row in self.rows("rules")
        ]
        return dumped

    def sent(self, *verbs: str) -> list[str]:
        """The records that were called for, in order."""
        return [
            str(request.source_id) for request in self.target.requests if not verbs or request.verb in verbs
        ]


def make_runs(config: Any, clock: Clock, **kw: Any) -> Runs:
    """`kw` goes to the rule; `verbs`, `keyed`, `traits`, `classify` to target and writer; others by name."""
    source = kw.pop("source", None) or Listed()
    target = kw.pop("target_system", None) or ScriptedTarget(keyed=kw.pop("keyed", False))
    of_writer = {name: kw.pop(name) for name in ("verbs", "traits", "classify") if name in kw}
    of_outbound = {name: kw.pop(name) for name in ("health", "lease", "tick_interval", "owner") if name in kw}
    writer = kw.pop("writer", None) or ScriptedWriter(target, **of_writer)
    outbound = Outbound(config, writers={"scripted": writer}, **of_outbound)
    fields: Any = {
        "entity": "parcel",
        "source": source,
        "target": "depot",
        "driver": "scripted",
        "policy": Policy.UPSERT,
    } | kw
    rule = Rule(fields.pop("name", "parcels"), **fields)
    outbound.save_rule(rule)
    return Runs(config, clock, source, target, writer, outbound, rule)
