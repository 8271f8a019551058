"""Who holds scans back, and what becomes of their order after a dump and restore."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from sqlalchemy import insert, literal, select, text, update

from statifier_router import ConfigError, OutboxRoute, Plan, deliver_event
from statifier_router.columns import XID
from statifier_router.jsontext import decode
from statifier_router.runs import (
    ChainEnd,
    Changes,
    Outbound,
    Outbox,
    Policy,
    Rule,
    bracket,
    positions,
    record_change,
)
from statifier_router.runs.horizon import held, horizon
from statifier_router.runs.open_transactions import OpenTransaction, open_transactions
from statifier_router.runs.own_sources import readers
from statifier_router.testing import Clock
from statifier_router.testing.targets import ScriptedTarget, ScriptedWriter
from tests.support.charts import NOW, envelope, registry
from tests.support.told import to, told

# As an old server that has run for long counts them.
OLD = 1_000_000_000


class Host:
    """A state rule over changes, a message rule over the outbox, and one target for both."""

    def __init__(self, config, clock):
        self.config, self.clock = config, clock
        self.target = ScriptedTarget()
        common = {"target": "carrier", "driver": "carrier", "policy": Policy.UPSERT}
        rules = [
            Rule("parcels", entity="parcel", source=Changes("parcel"), **common),
            Rule(
                "notices", entity="notice", source=Outbox("notices"), kind="message",
                **common | {"policy": Policy.CREATE_ONLY},
            ),
        ]  # fmt: skip
        self.outbound = Outbound(config, writers={"carrier": ScriptedWriter(self.target)}, rules=rules)

    def tick(self):
        """Run everything that is to be run; every chain ends well."""
        for chain_id in self.outbound.tick():
            assert self.outbound.run_chain(chain_id) is ChainEnd.COMPLETED

    def change(self, *source_ids, data=None, connection=None):
        """New versions of these records."""
        for source_id in source_ids:
            record_change(self.config, "parcel", source_id, data, connection=connection)

    def send(self, message_id):
        """A message in the outbox."""
        sent = envelope("go", message_id, data={"effects": [to("mail", message_id)]})
        deliver_event(self.config, Plan("jobs", "a"), "K1", sent)

    def grow_old(self, by=OLD):
        """What the tables look like that were dumped on a server whose ids were greater by so much."""
        schema = self.config.schema
        with self.config.engine.begin() as connection:
            for table in (schema.changes, schema.outbox):
                older = literal(by).op("+")(table.c.xid.op("::")(text("text::bigint")))
                connection.execute(update(table).values(xid=older.op("::")(text("text::xid8"))))
            for reader in readers(connection, schema):
                if reader.cursor is not None:
                    xid, number = reader.cursor
                    self.set_cursor(connection, reader.rule, (xid + by, number))

    def set_cursor(self, connection, rule, place):
        """Where a rule stands."""
        table = self.config.schema.rules
        moved = update(table).where(table.c.name == rule).values(cursor=positions.stored(place))
        connection.execute(moved)

    def cursor(self, rule):
        """The same."""
        with bracket.reading(self.config) as connection:
            return {reader.rule: reader.cursor for reader in readers(connection, self.config.schema)}[rule]

    @property
    def created(self):
        """The records and messages that were created at the target, in order."""
        return [
            request.payload["name"] if isinstance(request.payload, dict) else request.source_id
            for request in self.target.requests
            if request.verb == "create"
        ]

    def findings(self, *kinds):
        """What the doctor says of these kinds."""
        return [finding for finding in self.outbound.doctor() if finding.kind in kinds]

    def audit(self):
        """The rows of the audit table."""
        with self.config.engine.connect() as connection:
            return connection.execute(select(self.config.schema.audit)).all()


def host_of(database, make_config):
    clock = Clock(NOW)
    config = make_config(
        database, clock=clock, charts=registry(a=told("a")), routes={"mail": OutboxRoute("notices")}
    )
    return Host(config, clock)


@pytest.fixture
def host(postgresql, make_config):
    return host_of(postgresql, make_config)


# --- the horizon --------------------------------------------------------------------------------------


def test_nobody_holds_it(host):
    """Without an open transaction everything has ended."""
    found = horizon(host.config)
    assert found.holders == ()
    assert found.reached <= found.next
    assert host.findings("horizon_held", "needs_rebase") == []


def test_sqlite_has_none(sqlite, make_config):
    """One writer at a time: nothing is ever held back, and nothing to be mended."""
    host = host_of(sqlite, make_config)
    host.change("P1")
    host.tick()
    assert horizon(host.config) is None
    assert host.findings("horizon_held", "needs_rebase") == []
    done = host.outbound.rebase(actor="ada")
    assert (done.changes, done.outbox, done.rules) == (0, 0, ())
    assert host.audit() == []
    assert host.cursor("parcels") == (0, 1)


def test_who_holds_it_is_named(host, postgresql):
    """The session with its process id, user, application and state, once it is open for long; its record is
    delivered when it has ended.
    """
    host.change("before")
    host.tick()
    importer = postgresql.bare_engine(connect_args={"application_name": "importer"})
    with importer.connect() as other, postgresql.bare_engine().connect() as reader:
        pid = other.execute(text("SELECT pg_backend_pid() FROM pg_current_xact_id()")).scalar_one()
        reader.execute(text("SELECT 1"))
        host.change("P1")
        host.tick()
        assert host.created == ["before"]
        (holder,) = horizon(host.config).holders
        assert (holder.pid, holder.user, holder.application) == (pid, "postgres", "importer")
        assert holder.state == "idle in transaction"
        assert holder.age > timedelta(0)
        assert holder.prepared is None
        assert host.findings("horizon_held") == []
        host.outbound.tick_interval = timedelta(microseconds=1)
        (finding,) = host.findings("horizon_held")
        assert (finding.severity, finding.rule) == ("problem", None)
        assert (
            f"session {pid} of user 'postgres', application 'importer', idle in transaction" in finding.text
        )
        assert f"pg_terminate_backend({pid})" in finding.advice
        assert host.outbound.why("parcels", "P1").reason == "held_back"
    host.tick()
    assert host.created == ["before", "P1"]


def test_the_oldest_one_comes_first(host, postgresql):
    """By their ids, which is what counts: the first one holds the others back too."""
    with postgresql.bare_engine().connect() as first, postgresql.bare_engine().connect() as second:
        told = text("SELECT pg_backend_pid(), pg_current_xact_id()::text::bigint")
        (early, xid), (late, _) = first.execute(told).one(), second.execute(told).one()
        found = horizon(host.config)
        assert [holder.pid for holder in found.holders] == [early, late]
        assert found.holders[0].short_xid == xid % 2**32
        assert found.reached <= xid


def test_a_transaction_of_another_database_holds_nothing(host, unmigrated_postgresql):
    """It is no holder, and records that are younger are delivered."""
    with unmigrated_postgresql.bare_engine().connect() as stranger:
        stranger.execute(text("SELECT pg_current_xact_id()"))
        host.change("P1")
        host.tick()
        assert horizon(host.config).holders == ()
    assert host.created == ["P1"]


def test_a_user_who_may_not_see_ages(host, postgresql):
    """Then it is only noted: whether it is long cannot be told."""
    host.tick()
    with postgresql.bare_engine().connect() as other:
        other.execute(text("SELECT pg_current_xact_id()"))
        engine = host.config.reader
        with engine.connect() as connection:
            connection.execute(text("SET ROLE pg_signal_backend"))
            (holder,) = open_transactions(connection)
            assert holder.age is None
            assert holder.application is None or isinstance(holder.application, str)
            assert str(holder).startswith(f"session {holder.pid} of user 'postgres'")
            connection.execute(text("RESET ROLE"))


@pytest.mark.parametrize(
    ("facts", "severity", "text_", "advice"),
    [
        (
            {"prepared": "it's 7", "age": timedelta(hours=2, microseconds=7)},
            "problem",
            """prepared transaction "it's 7" of user 'ada', open for 2:00:00""",
            "ROLLBACK PREPARED 'it''s 7', in this database",
        ),
        ({"pid": 7}, "notice", "session 7 of user 'ada'", "SELECT pg_terminate_backend(7)"),
        (
            {"pid": 7, "application": "importer", "state": "active", "age": timedelta(days=1)},
            "problem",
            "session 7 of user 'ada', application 'importer', active, open for 1 day, 0:00:00",
            "SELECT pg_terminate_backend(7)",
        ),
    ],
)
def test_how_it_is_named(facts, severity, text_, advice):
    """A prepared one by the name under which it can be ended; without an age, it is only noted."""
    none = dict.fromkeys(["pid", "application", "state", "prepared", "age"])
    finding = held(OpenTransaction(**none | {"short_xid": 7, "user": "ada"} | facts))
    assert finding.severity == severity
    assert finding.text.endswith(f"wait for its end: {text_}")
    assert finding.advice.endswith(advice)


# --- rebase -------------------------------------------------------------------------------------------


def test_after_a_restore_new_rows_would_be_passed(host):
    """Their ids are smaller than those that were read; the doctor says so, and a rebase mends it: what is
    new is delivered, what was is not delivered again. Paused rules are mended like the others.
    """
    host.change("P1", "P2")
    host.send("m-1")
    host.tick()
    host.grow_old()
    host.change("P3")
    host.send("m-2")
    host.tick()
    assert host.created == ["P1", "P2", "m-1"]
    found = host.findings("needs_rebase")
    assert [finding.rule for finding in found] == ["notices", "parcels"]
    assert {finding.advice for finding in found} == {"statifier-router rebase"}
    host.outbound.pause("notices", actor="ada")
    done = host.outbound.rebase(actor="ada", reason="moved to the new server")
    assert (done.changes, done.outbox, done.rules) == (3, 2, ("notices", "parcels"))
    assert host.findings("needs_rebase") == []
    host.tick()
    host.outbound.resume("notices", actor="ada")
    host.tick()
    host.change("P4")
    host.send("m-3")
    host.tick()
    assert host.created == ["P1", "P2", "m-1", "P3", "m-2", "P4", "m-3"]
    assert [request.verb for request in host.target.requests] == ["create"] * 7


def test_what_is_written_down_of_it(host):
    """One row of the audit table: who, why, which rules, how many rows."""
    host.change("P1", "P2")
    host.tick()
    host.grow_old()
    host.outbound.rebase(actor="ada", reason="moved")
    (row,) = host.audit()
    assert (row.actor, row.action, row.reason, row.count, row.at) == ("ada", "rebase", "moved", 2, NOW)
    assert decode(row.selection) == {"rules": ["parcels"], "changes": 2, "outbox": 0}
    # A second one finds nothing to do.
    done = host.outbound.rebase(actor="ada")
    assert (done.changes, done.outbox, done.rules) == (0, 0, ())
    assert len(host.audit()) == 1


def test_a_rebase_that_was_not_needed_does_no_harm(host):
    """On the same server: with a transaction open beside it, whose row comes later, nothing is lost or sent
    twice.
    """
    host.change("P1")
    host.tick()
    with host.config.engine.connect() as other:
        host.change("late", connection=other)
        host.change("P2")
        host.outbound.rebase(actor="ada")
        host.tick()
        assert host.created == ["P1", "P2"]
        other.commit()
    host.tick()
    assert host.created == ["P1", "P2", "late"]


@pytest.mark.parametrize("seed", range(20))
def test_no_row_is_passed_by_a_rebase(host, seed):
    """Rows in any order of transactions, a cursor at any of them, rows of the new server behind: whatever was
    not read before the dump is read after the rebase.
    """
    chance = random.Random(seed)
    table = host.config.schema.changes
    host.outbound.save_rule(host.outbound.known_rules["parcels"])
    xids = [OLD + chance.randrange(8) for _ in range(12)]
    rows = [
        {
            "xid": xid,
            "entity": "parcel",
            "source_id": str(number),
            "signal": "s",
            "deleted": False,
            "created_at": NOW,
        }
        for number, xid in enumerate(xids)
    ]
    with host.config.engine.begin() as connection:
        connection.execute(insert(table), rows)
        places = connection.execute(select(table.c.source_id, table.c.xid, table.c.seq)).all()
        cursor = chance.choice([(row.xid, row.seq) for row in places])
        host.set_cursor(connection, "parcels", cursor)
    host.change("new 1", "new 2")
    unread = {row.source_id for row in places if (row.xid, row.seq) > cursor} | {"new 1", "new 2"}
    host.outbound.rebase(actor="ada")
    with bracket.reading(host.config) as connection:
        found = Changes("parcel").scan(connection, host.cursor("parcels"), 99)
    assert unread <= {record.source_id for record in found}
    assert [record.position[0] for record in found] == [0] * len(found)


def test_a_rule_that_never_ran_begins_at_the_beginning(host):
    """It has no cursor to be moved."""
    host.outbound.save_rule(host.outbound.known_rules["parcels"])
    host.change("P1")
    host.grow_old()
    assert host.outbound.rebase(actor="ada").rules == ()
    host.tick()
    assert host.created == ["P1"]


def test_a_rule_of_another_process_is_mended_too(host):
    """The definition that was saved says what it reads."""
    host.change("P1")
    host.tick()
    host.grow_old()
    other = Outbound(host.config, writers={})
    assert other.rebase(actor="ada").rules == ("parcels",)


def test_a_rebase_waits_for_no_run(host):
    """While one is under way it is refused: it would move the cursor back. Nothing is changed."""
    host.change("P1")
    host.tick()
    host.grow_old()
    before = host.cursor("parcels")
    assert len(host.outbound.tick()) == 2
    with pytest.raises(ConfigError, match=r"a run of rule '\w+' is under way, or was when the database was"):
        host.outbound.rebase(actor="ada")
    assert host.cursor("parcels") == before
    assert host.audit() == []


def test_a_dead_run_begins_anew_at_the_cursor(host):
    """A chain that gives no sign is no obstacle; whoever takes it up again begins where the rule stands."""
    host.change("P1")
    host.tick()
    host.grow_old()
    (chain_id,) = [each for each in host.outbound.tick() if rule_of(host, each) == "parcels"]
    chains = host.config.schema.chains
    with host.config.engine.begin() as connection:
        far = positions.stored(host.cursor("parcels"))
        connection.execute(update(chains).where(chains.c.id == chain_id).values(position=far, phase="scan"))
    host.change("P2")
    host.clock.advance(timedelta(minutes=4))
    assert set(host.outbound.rebase(actor="ada").rules) == {"parcels"}
    assert host.outbound.run_chain(chain_id) is ChainEnd.COMPLETED
    assert host.created == ["P1", "P2"]


def rule_of(host, chain_id):
    with host.config.engine.connect() as connection:
        table = host.config.schema.chains
        return connection.execute(select(table.c.rule).where(table.c.id == chain_id)).scalar_one()


def test_ids_of_transactions_go_in_as_they_come_out(postgresql):
    """`xid8` is an integer of Python, past 32 bits too."""
    with postgresql.bare_engine().connect() as connection:
        assert connection.execute(select(literal(2**40 + 7, type_=XID))).scalar_one() == 2**40 + 7
