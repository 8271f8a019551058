"""Pruning: what nobody needs goes, what a rule has still to read or to know stays."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import insert, select, update

from statifier_router import ConfigError, Envelope, Event, OutboxRoute, Plan, deliver_event
from statifier_router.runs import (
    ChainEnd,
    Changes,
    Outbound,
    Outbox,
    Policy,
    Pruned,
    Rule,
    prune_chains,
    prune_changes,
    record_change,
)
from statifier_router.runs.pruning import KEPT
from statifier_router.testing import Clock
from statifier_router.testing.targets import ScriptedTarget, ScriptedWriter, rejects
from tests.support.charts import NOW, registry
from tests.support.told import to, told

HOUR = timedelta(hours=1)
LATER = NOW + HOUR


class Host:
    """Rules over changes and over the outbox, with one target."""

    def __init__(self, config, clock):
        self.config, self.clock = config, clock
        self.target = ScriptedTarget()
        self.outbound = Outbound(config, writers={"carrier": ScriptedWriter(self.target)})

    def rule(self, name, source, *, kind="state", policy=None, scope=None):
        """Save a rule."""
        policy = policy or (Policy.CREATE_ONLY if kind == "message" else Policy.UPSERT)
        entity = getattr(source, "entity", "notice")
        common = {"target": "carrier", "driver": "carrier", "policy": policy, "kind": kind, "scope": scope}
        self.outbound.save_rule(Rule(name, entity=entity, source=source, **common))

    def tick(self):
        """Run everything that is to be run."""
        for chain_id in self.outbound.tick():
            assert self.outbound.run_chain(chain_id) is ChainEnd.COMPLETED

    def change(self, *versions, entity="parcel"):
        """Versions of records: `"P1"` or `("P1", data)`."""
        for version in versions:
            source_id, data = version if isinstance(version, tuple) else (version, None)
            record_change(self.config, entity, source_id, data)

    def send(self, *names, scope="acme"):
        """Messages in the outbox."""
        for name in names:
            event = Event("go", {"effects": [to("mail", name)]})
            deliver_event(self.config, Plan("jobs", "a"), "K1", Envelope(event, name, scope, self.clock()))

    def rows(self, table, *columns):
        """Columns of all rows of a table."""
        found = getattr(self.config.schema, table)
        with self.config.engine.connect() as connection:
            rows = connection.execute(select(found).order_by(*found.primary_key.columns)).mappings()
            return [tuple(row[name] for name in columns) for row in rows]

    @property
    def kept(self):
        """The changes that are there: record and data."""
        return self.rows("changes", "source_id", "data")

    @property
    def messages(self):
        """The messages that are there."""
        return [event.split('"')[3] for (event,) in self.rows("outbox", "event")]

    def prune_all(self, **kw):
        """Page after page; answers how many were deleted."""
        deleted, after = 0, None
        for _ in range(100):
            done = prune_changes(self.config, after=after, **{"before": LATER, "limit": 3} | kw)
            deleted, after = deleted + done.deleted, done.next
            if after is None:
                return deleted
        raise AssertionError("it does not end")

    def prune_messages(self, rule="notices", **kw):
        """The same for messages."""
        deleted, after = 0, None
        for _ in range(100):
            done = self.outbound.prune_records(rule, after=after, **{"before": LATER, "limit": 2} | kw)
            deleted, after = deleted + done.deleted, done.next
            if after is None:
                return deleted
        raise AssertionError("it does not end")


@pytest.fixture
def host(database, make_config):
    clock = Clock(NOW)
    routes = {"mail": OutboxRoute("notices"), "letters": OutboxRoute("letters")}
    return Host(make_config(database, clock=clock, charts=registry(a=told("a")), routes=routes), clock)


# --- changes ------------------------------------------------------------------------------------------


def test_superseded_changes_go(host):
    """Every row but the newest of each record, once the rules have passed it; what is there is still sent."""
    host.rule("parcels", Changes("parcel"))
    host.change(*((f"P{number % 3}", number) for number in range(12)))
    host.tick()
    assert host.prune_all() == 9
    assert host.kept == [("P0", "9"), ("P1", "10"), ("P2", "11")]
    assert host.prune_all() == 0
    host.tick()
    assert len(host.target.requests) == 3
    host.change(("P1", 12))
    host.tick()
    assert host.target.requests[-1].payload == 12


def test_the_newest_row_stays_though_it_is_deleted_at_the_source(host):
    """A deletion is a version like any other."""
    host.rule("parcels", Changes("parcel"))
    host.change("P1")
    record_change(host.config, "parcel", "P1", None, deleted=True)
    host.tick()
    assert host.prune_all() == 1
    assert host.kept == [("P1", None)]


def test_what_a_rule_has_not_passed_stays(host):
    """Trap 14. A paused rule has its rows to read; so has one that never ran, and one of another process."""
    host.rule("parcels", Changes("parcel"))
    host.rule("parcels again", Changes("parcel"))
    host.change("P1")
    host.tick()
    host.outbound.pause("parcels again", actor="ada")
    host.change(("P1", 1), ("P1", 2), ("P1", 3))
    host.tick()
    assert host.prune_all() == 1
    assert [data for _, data in host.kept] == ["1", "2", "3"]
    host.outbound.resume("parcels again", actor="ada")
    host.tick()
    assert host.prune_all() == 2
    assert host.kept == [("P1", "3")]
    other = Outbound(host.config, writers={})
    other.save_rule(
        Rule("new", entity="parcel", source=Changes("parcel"), target="t", driver="d", policy=Policy.UPSERT)
    )
    host.change(("P1", 4))
    host.tick()
    assert host.prune_all() == 0
    assert len(host.kept) == 2


def test_rules_of_other_entities_do_not_matter(host):
    """Nor do those that read a queue. An entity that no rule reads keeps its newest rows."""
    host.rule("parcels", Changes("parcel"))
    host.rule("letters", Changes("letter"))
    host.rule("notices", Outbox("notices"), kind="message")
    host.change("P1", ("P1", 1))
    host.change("L1", ("L1", 1), entity="letter")
    host.change("S1", ("S1", 1), entity="stamp")
    host.outbound.pause("letters", actor="ada")
    host.tick()
    assert host.prune_all() == 2
    assert host.kept == [("P1", "1"), ("L1", "null"), ("L1", "1"), ("S1", "1")]


def test_young_rows_stay(host):
    """Those that were written at `before` or later; and a page that ends among them is the last one."""
    host.rule("parcels", Changes("parcel"))
    host.change(("P1", 1), ("P1", 2))
    host.clock.advance(HOUR)
    host.change(("P1", 3), ("P1", 4), ("P1", 5))
    host.tick()
    assert prune_changes(host.config, before=NOW + HOUR, limit=3) == Pruned(deleted=2, next=None)
    assert [data for _, data in host.kept] == ["3", "4", "5"]


def test_pages_of_pruning(host):
    """Each looks at `limit` rows, and says where the next one begins."""
    host.rule("parcels", Changes("parcel"))
    host.change(*(("P1", number) for number in range(7)))
    host.tick()
    first = prune_changes(host.config, before=LATER, limit=3)
    assert first == Pruned(deleted=3, next=3)
    second = prune_changes(host.config, before=LATER, limit=3, after=first.next)
    assert second == Pruned(deleted=3, next=6)
    assert prune_changes(host.config, before=LATER, limit=3, after=6) == Pruned(deleted=0, next=None)
    assert host.outbound.prune_changes(before=LATER) == Pruned(deleted=0, next=None)


def test_a_failed_record_is_sent_though_its_row_was_pruned(host):
    """What it is tried again with is the newest version, which stays."""
    host.rule("parcels", Changes("parcel"))
    host.target.coming(rejects())
    host.change(("P1", 1), ("P1", 2))
    host.tick()
    assert host.prune_all() == 1
    host.clock.advance(HOUR)
    host.tick()
    assert [record.payload for record in host.target.records.values()] == [2]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"before": datetime(2026, 1, 1)}, "before must be an aware datetime"),  # noqa: DTZ001 - that is the fault
        ({"before": "now"}, "before must be an aware datetime"),
        ({"limit": 0}, "limit must be from 1"),
        ({"after": "1"}, "after must be None or the `next` of the page before"),
        ({"after": True}, "after must be None or the `next` of the page before"),
    ],
)
def test_what_cannot_be_asked_for(host, arguments, named):
    """It is refused with the name of the argument."""
    host.rule("notices", Outbox("notices"), kind="message")
    for prune in (
        lambda **kw: prune_changes(host.config, **kw),
        lambda **kw: host.outbound.prune_records("notices", **kw),
    ):
        with pytest.raises(ConfigError, match=named):
            prune(**{"before": LATER} | arguments)


# --- messages -----------------------------------------------------------------------------------------


def test_messages_go_with_their_records(host):
    """Those that were delivered; both rows, so that nothing is sent again."""
    host.rule("notices", Outbox("notices"), kind="message")
    host.send("m-1", "m-2", "m-3", "m-4", "m-5")
    host.tick()
    host.send("m-6")
    assert host.prune_messages() == 5
    assert host.messages == ["m-6"]
    assert host.rows("records", "source_id") == []
    host.tick()
    assert [request.payload["name"] for request in host.target.requests] == [f"m-{n}" for n in range(1, 7)]


def test_messages_that_are_not_done_with_stay(host):
    """Failed ones, parked ones until they are dismissed, those of which a call is open, and young ones."""
    host.rule("notices", Outbox("notices"), kind="message")
    host.send("failed", "parked", "open", "fine")
    keys = [key for (key,) in host.rows("outbox", "key")]
    host.target.on(keys[0], rejects())
    host.tick()
    host.outbound.park("notices", [keys[1]], reason="later", actor="ada")
    operations = host.config.schema.operations
    with host.config.engine.begin() as connection:
        connection.execute(
            insert(operations).values(
                rule="notices", source_id=keys[2], verb="create", key="k", signal="s", in_doubt=True,
                lease_token=1, chain_id="ch_1", started_at=NOW,
            )
        )  # fmt: skip
    host.clock.advance(HOUR)
    assert host.prune_messages(before=NOW) == 0
    assert host.prune_messages() == 1
    assert host.messages == ["failed", "parked", "open"]
    host.outbound.release("notices", mode="dismiss", source_ids=[keys[1]], actor="ada")
    host.clock.advance(HOUR)
    assert host.prune_messages(before=host.clock()) == 1
    assert host.messages == ["failed", "open"]


def test_every_rule_of_the_queue_must_be_done(host):
    """Another rule that reads the same message keeps it, paused or of another process; one of another scope
    or queue does not.
    """
    host.rule("notices", Outbox("notices"), kind="message")
    host.rule("archive", Outbox("notices"), kind="message")
    host.rule("globex", Outbox("notices", scope="globex"), kind="message", scope="globex")
    host.rule("letters", Outbox("letters"), kind="message")
    host.outbound.pause("archive", actor="ada")
    host.outbound.pause("globex", actor="ada")
    host.send("m-1", "m-2")
    host.send("g-1", scope="globex")
    host.tick()
    assert host.prune_messages() == host.prune_messages("archive") == 0
    host.outbound.resume("archive", actor="ada")
    host.tick()
    assert host.prune_messages() == 2
    assert host.messages == ["g-1"]
    host.outbound.resume("globex", actor="ada")
    host.tick()
    assert host.prune_messages("globex") == 1
    assert host.rows("records", "source_id") == []


def test_messages_that_no_rule_reads_stay(host):
    """Where every rule of the queue reads another scope."""
    host.rule("globex", Outbox("notices", scope="globex"), kind="message", scope="globex")
    host.send("m-1")
    host.tick()
    assert host.prune_messages("globex") == 0
    assert host.messages == ["m-1"]


def test_records_of_a_state_rule_are_never_pruned(host):
    """Trap 14. They say at which address of the target each record is: `ConfigError`."""
    host.rule("parcels", Changes("parcel"))
    host.change("P1")
    host.tick()
    with pytest.raises(
        ConfigError, match="rule 'parcels' reads no queue of the outbox, and its records must stay"
    ):
        host.outbound.prune_records("parcels", before=LATER)
    host.rule("state of notices", Outbox("notices"))
    host.rule("notices", Outbox("notices"), kind="message")
    for rule in ("state of notices", "notices"):
        with pytest.raises(
            ConfigError, match="rule 'state of notices' is a state rule, whose records must stay"
        ):
            host.outbound.prune_records(rule, before=LATER)
    with pytest.raises(ConfigError, match="no rule is named 'nothing'"):
        host.outbound.prune_records("nothing", before=LATER)
    assert len(host.rows("records", "source_id")) == 1


def test_a_run_beside_it_is_not_disturbed(host):
    """A message that is pruned behind the cursor of a run that goes on: it is not sent again."""
    host.rule("notices", Outbox("notices"), kind="message")
    host.send("m-1", "m-2")
    host.tick()
    rules = host.config.schema.rules
    with host.config.engine.begin() as connection:
        # As after a crash between the last outcome and the cursor.
        connection.execute(update(rules).values(cursor=None))
    assert host.prune_messages() == 2
    host.send("m-3")
    host.tick()
    assert [request.payload["name"] for request in host.target.requests] == ["m-1", "m-2", "m-3"]


# --- chains -------------------------------------------------------------------------------------------


def test_chains_that_ended_long_ago_go(host):
    """But for the newest of each rule, by which it is judged; those that run, and young ones, stay."""
    host.rule("parcels", Changes("parcel"))
    host.rule("letters", Changes("letter"))
    host.outbound.pause("letters", actor="ada")
    for _ in range(KEPT + 4):
        host.tick()
    host.outbound.resume("letters", actor="ada")
    host.tick()
    host.outbound.tick()
    before = host.rows("chains", "id", "rule", "state")
    of_parcels = [row for row in before if row[1] == "parcels" and row[2] != "running"]
    assert prune_chains(host.config, before=NOW) == 0
    assert prune_chains(host.config, before=LATER, limit=3) == 3
    assert host.outbound.prune_chains(before=LATER) == len(of_parcels) - KEPT - 3
    assert prune_chains(host.config, before=LATER) == 0
    kept = host.rows("chains", "id", "rule", "state")
    assert kept == [row for row in before if row not in of_parcels[:-KEPT]]


def test_a_run_after_the_pruning_of_chains(host):
    """What is left is enough to tell how the rule stands."""
    host.rule("parcels", Changes("parcel"))
    for _ in range(KEPT + 1):
        host.tick()
    assert prune_chains(host.config, before=LATER) == 1
    host.tick()
    (status,) = host.outbound.rules()
    assert (status.state, status.last_chain.end) == ("idle", "COMPLETED")
