"""Delivery runs: where each fault goes, pages and the cursor, chains and ticks."""

from __future__ import annotations

import logging
from datetime import timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import delete, insert, update

from statifier_router import ConfigError, SchemaError
from statifier_router.runs import (
    ENDED,
    MORE,
    ChainEnd,
    Created,
    ImpossibleCandidate,
    JobTimedOut,
    LedgerRowAppeared,
    NoWriter,
    Outbound,
    Policy,
    Record,
    RetryPolicy,
    Rule,
    RuleFault,
    Unclassified,
    UnsupportedVerb,
)
from statifier_router.runs.positions import read
from statifier_router.testing import Clock
from statifier_router.testing.targets import (
    breaks,
    gone,
    lands,
    rejects,
    throttles,
    times_out,
    unavailable,
)
from tests.support.outbound import Listed, make_runs

MINUTE = timedelta(minutes=1)


@pytest.fixture
def runs(database, make_config):
    """`runs(**kw)`: one rule from a listed source to a scripted target."""

    def make(**kw):
        clock = Clock()
        return make_runs(make_config(database, clock=clock), clock, **kw)

    return make


def delivered(runs, *source_ids):
    """Have these records delivered."""
    for source_id in source_ids:
        runs.source.put(source_id, 0)
    assert runs.go() is ChainEnd.COMPLETED
    assert {runs.row(source_id)["status"] for source_id in source_ids} == {"delivered"}


def make_due(runs, *source_ids):
    """Have these records fail once, and be due."""
    for source_id in source_ids:
        runs.source.put(source_id, 0)
        runs.target.on(source_id, rejects())
    runs.go()
    runs.clock.advance(10 * MINUTE)


# --- saving a rule --------------------------------------------------------------------------------------


def test_a_rule_is_stored_once(runs):
    """The same definition again writes nothing; another one is stored with its digest."""
    one = runs()
    before = one.rule_row
    one.outbound.save_rule(one.rule)
    assert one.rule_row == before
    one.edit(batch_size=7)
    assert one.rule_row["digest"] == one.rule.digest != before["digest"]


@pytest.mark.parametrize("field", ["target", "entity", "source"])
def test_what_rows_rely_on_is_kept(runs, field):
    """A new target, entity or source is refused once the rule has rows, naming the field; before, not."""
    one = runs()
    other = {"source": Listed(identity="other")}.get(field, "other")
    one.edit(**{field: other})
    one.edit(**{field: {"source": one.source, "target": "depot", "entity": "parcel"}[field]})
    delivered(one, "p1")
    with pytest.raises(ConfigError, match=f"its {field} must stay"):
        one.edit(**{field: other})


def test_a_missing_verb_is_refused_when_the_rule_is_saved(runs):
    """It names rule, driver and verb, and is a ConfigError too."""
    with pytest.raises(UnsupportedVerb, match=r"'parcels'.*'update'.*'scripted'") as raised:
        runs(verbs=("create",))
    assert isinstance(raised.value, ConfigError)
    assert (raised.value.rule, raised.value.driver, raised.value.verb) == ("parcels", "scripted", "update")
    assert runs(verbs=("create",), policy=Policy.CREATE_ONLY).go() is ChainEnd.COMPLETED


@pytest.mark.parametrize(
    ("kw", "message"),
    [
        ({"call_timeout": timedelta(seconds=46)}, "lease .* at least twice the call_timeout"),
        ({"source": Listed(entity="letter")}, "source of rule 'parcels' is one of the entity 'letter'"),
        ({"source": Listed(scope="acme")}, "scope of rule 'parcels' is None"),
        ({"source": Listed(scope=None), "scope": "acme"}, "scope of rule 'parcels' is 'acme'"),
    ],
)
def test_a_rule_that_cannot_run_is_refused(runs, kw, message):
    """Lease against call timeout, entity and scope against the source's."""
    with pytest.raises(ConfigError, match=message):
        runs(**kw)


@pytest.mark.parametrize(
    ("kw", "field"),
    [
        ({"writers": []}, "writers"),
        ({"writers": {"scripted": None}}, "writers"),
        ({"writers": {"scripted": SimpleNamespace(traits={"honours_keys": True})}}, "traits"),
        ({"health": 7}, "health"),
        ({"lease": 90}, "lease"),
        ({"tick_interval": timedelta(0)}, "tick_interval"),
        ({"owner": ""}, "owner"),
    ],
)
def test_an_outbound_checks_its_arguments(database, make_config, kw, field):
    """ConfigError, naming the argument."""
    with pytest.raises(ConfigError, match=field):
        Outbound(make_config(database), **{"writers": {}} | kw)


def test_rules_may_be_given_without_connecting(runs):
    """`rules=` are saved at the first use."""
    one = runs()
    other = one.again(rules=[Rule("letters", **fields_of(one))])
    assert len(one.rows("rules")) == 1
    (chain_id,) = other.tick()
    assert other.run_chain(chain_id) is ChainEnd.COMPLETED
    assert [row["name"] for row in one.rows("rules")] == ["letters", "parcels"]


def fields_of(runs, **kw):
    return {
        "entity": "parcel",
        "source": runs.source,
        "target": "depot",
        "driver": "scripted",
        "policy": Policy.UPSERT,
    } | kw


def test_unmigrated_tables(unmigrated, make_config):
    """A tick over tables that are not there is a SchemaError."""
    outbound = Outbound(
        make_config(unmigrated),
        writers={},
        rules=[
            Rule("r", entity="e", source=Listed(), target="t", driver="d", policy=Policy.CREATE_ONLY),
        ],
    )
    with pytest.raises(SchemaError):
        outbound.tick()


# --- what is done for a record --------------------------------------------------------------------------


def test_create_then_update(runs):
    """A record without an address is created, one with it updated by it; an equal signal sends nothing."""
    one = runs()
    delivered(one, "p1", "p2")
    one.source.put("p1", 1)
    one.source.put("p2", 0)
    one.go()
    assert [(each.verb, each.source_id, each.remote_id) for each in one.target.requests] == [
        ("create", "p1", None),
        ("create", "p2", None),
        ("update", "p1", "r1"),
    ]
    assert {key: one.row("p1")[key] for key in ("status", "remote_id", "signal", "attempts")} == {
        "status": "delivered",
        "remote_id": "r1",
        "signal": "1",
        "attempts": 0,
    }
    assert one.operations() == {}


def test_a_version_that_comes_back_has_a_key_of_its_own(runs):
    """A, B, A: three versions, three keys; on a target that honours keys the last one takes effect."""
    one = runs(keyed=True)
    delivered(one, "p1")
    for value in (1, 0, 1, 0):
        one.source.put("p1", value)
        one.go()
    keys = [each.key for each in one.target.requests]
    assert len(set(keys)) == len(keys) == 5
    (held,) = one.target.copies("p1")
    assert held.payload == {"value": 0}


def test_create_only(runs):
    """With an address: suppressed, saying so, and the address is kept."""
    one = runs(policy=Policy.CREATE_ONLY)
    delivered(one, "p1")
    one.source.put("p1", 1)
    one.go()
    row = one.row("p1")
    assert (row["status"], row["error_kind"], row["signal"]) == ("suppressed", "create_only", "1")
    assert row["remote_id"] == "r1"
    assert one.sent() == ["p1"]


def test_update_only(runs):
    """Without an address: suppressed, saying so."""
    one = runs(policy=Policy.UPDATE_ONLY)
    one.source.put("p1", 0)
    one.go()
    row = one.row("p1")
    assert (row["status"], row["error_kind"], one.sent()) == ("suppressed", "update_only", [])


def test_a_message_rule_creates_once(runs):
    """A plain success is delivered, without an address; a newer version is never sent."""
    one = runs(kind="message", verbs=("create",))
    one.target.always(lands(None), verbs=["create"])
    delivered(one, "m1")
    assert one.row("m1")["remote_id"] is None
    one.source.put("m1", 1)
    one.go()
    assert one.sent() == ["m1"]
    assert one.row("m1")["signal"] == "0"


def test_a_create_without_an_address_is_parked_at_once(runs):
    """Trap 4: what cannot be addressed is no address; a number is one, as text."""
    one = runs()
    addresses = ["", "0", "None", " ", None, 0, False, "\t", "x" * 513, 7]
    ids = one.source.fill(len(addresses))
    for source_id, address in zip(ids, addresses, strict=True):
        one.target.on(source_id, lands(address))
    one.go()
    assert one.row(ids.pop())["remote_id"] == "7"
    for source_id in ids:
        row = one.row(source_id)
        assert (row["status"], row["error_kind"], row["remote_id"]) == ("exhausted", "unaddressable", None)
        assert row["parked_at"] is not None
        assert row["last_error"]
    for source_id in ids:
        one.source.put(source_id, 1)
    one.later(hours=10)
    assert len(one.sent()) == len(addresses)


def test_an_update_that_answers_nothing_is_a_success(runs):
    """Trap 9: and whatever else it answers does not matter."""
    one = runs()
    delivered(one, "p1")
    one.writer.update = lambda remote_id, payload, context: "whatever"
    one.source.put("p1", 1)
    one.go()
    assert one.row("p1")["signal"] == "1"


def test_gone(runs):
    """Trap 9: out of an update the record is gone, for good; out of a create it is a rejection."""
    one = runs()
    delivered(one, "p1")
    one.target.forget("r1")
    one.source.put("p1", 1)
    one.source.put("p2", 0)
    one.target.on("p2", gone())
    one.go()
    assert one.statuses() == {"p1": "remote_gone", "p2": "failed"}
    assert one.row("p1")["parked_at"] is not None
    assert one.row("p2")["error_kind"] == "rejected"
    one.source.put("p1", 2)
    one.later(hours=1)
    assert one.sent("update") == ["p1"]


def test_deleted_between_scan_and_load(runs):
    """Trap 5: suppressed, with the reason, and no call; when it comes back it is sent."""
    one = runs()
    record = one.source.put("p1", 0)
    load = one.source.load
    one.source.load = lambda connection, ids: dict.fromkeys(ids)
    one.go()
    row = one.row("p1")
    assert (row["status"], row["error_kind"], one.sent()) == ("suppressed", "deleted", [])
    one.source.load = load
    one.source.versions.append(
        Record(source_id="p1", signal=record.signal, position=2, payload=record.payload)
    )
    one.go()
    assert one.row("p1")["status"] == "delivered"


def test_deleted_at_its_source(runs):
    """Deleted at the target too where the writer can, and created again when it comes back."""
    one = runs(verbs=("create", "update", "delete"))
    delivered(one, "p1")
    one.source.put("p1", None, deleted=True)
    one.go()
    row = one.row("p1")
    assert (row["status"], row["error_kind"], row["remote_id"]) == ("suppressed", "deleted", None)
    assert one.target.records == {}
    one.source.put("p1", 0)
    one.go()
    assert one.row("p1")["status"] == "delivered"
    assert [each.verb for each in one.target.requests] == ["create", "delete", "create"]


def test_deleted_where_the_writer_cannot_delete(runs):
    """Suppressed; the address is kept, and serves the record when it comes back."""
    one = runs()
    delivered(one, "p1")
    one.source.put("p1", None, deleted=True)
    one.go()
    row = one.row("p1")
    assert (row["status"], row["error_kind"], row["remote_id"]) == ("suppressed", "deleted", "r1")
    one.source.put("p1", 5)
    one.go()
    assert one.row("p1")["status"] == "delivered"
    assert [each.verb for each in one.target.requests] == ["create", "update"]


def test_gone_out_of_a_delete_counts_as_done(runs):
    """The record is not there, which is what was wanted."""
    one = runs(verbs=("create", "update", "delete"))
    delivered(one, "p1")
    one.target.forget("r1")
    one.source.put("p1", None, deleted=True)
    one.go()
    assert one.row("p1")["status"] == "suppressed"


# --- faults of a record ---------------------------------------------------------------------------------


def test_a_page_with_every_fault_of_a_record(runs):
    """Trap 2: n outcomes; the neighbours are unaffected, and the cursor moves past all of them."""
    one = runs()
    one.source.fill(7)
    for source_id, reaction in {
        "p01": rejects("no such customer"),
        "p03": times_out(),
        "p04": unavailable(),
        "p06": throttles(),
    }.items():
        one.target.on(source_id, reaction)
    assert one.go() is ChainEnd.COMPLETED
    assert one.statuses() == {
        "p01": "failed",
        "p02": "delivered",
        "p03": "failed",
        "p04": "failed",
        "p05": "delivered",
        "p06": "failed",
        "p07": "delivered",
    }
    kinds = {row["source_id"]: row["error_kind"] for row in one.rows("records") if row["error_kind"]}
    assert kinds == {"p01": "rejected", "p03": "timed_out", "p04": "unavailable", "p06": "throttled"}
    assert all(row["attempts"] == 1 for row in one.rows("records") if row["status"] == "failed")
    assert read(one.rule_row["cursor"]) == 7


def test_five_attempts_by_the_schedule(runs):
    """Each at its own time, and no sooner; the fifth exhausts the record, with what it said last."""
    one = runs()
    one.source.put("p1", 0)
    one.target.always(rejects("not today"), verbs=["create"])
    one.go()
    for attempt in range(1, 5):
        row = one.row("p1")
        wait = RetryPolicy().wait("parcels", "p1", attempt)
        assert (row["attempts"], row["next_attempt_at"]) == (attempt, one.clock() + wait)
        one.clock.set(row["next_attempt_at"] - timedelta(microseconds=1))
        one.go()
        assert len(one.sent()) == attempt
        one.clock.set(row["next_attempt_at"])
        one.go()
    row = one.row("p1")
    assert (row["status"], row["attempts"], row["next_attempt_at"]) == ("exhausted", 5, None)
    assert (row["last_error"], row["parked_at"]) == ("not today", one.clock())
    assert len({each.key for each in one.target.requests}) == 1
    assert [each.context.attempt for each in one.target.requests] == [1, 2, 3, 4, 5]
    one.source.put("p1", 1)
    one.later(hours=10)
    assert len(one.sent()) == 5


def test_fewer_attempts_strand_nobody(runs):
    """Trap 6: a record with four attempts is tried once more after `max_attempts` went from 5 to 3."""
    one = runs()
    one.source.put("p1", 0)
    one.target.always(rejects(), verbs=["create"])
    one.go()
    for _ in range(3):
        one.later(hours=5)
    assert one.row("p1")["attempts"] == 4
    one.edit(retry=RetryPolicy(max_attempts=3))
    one.later(hours=5)
    row = one.row("p1")
    assert (row["status"], row["attempts"]) == ("exhausted", 5)


def test_a_failed_record_whose_source_changes(runs):
    """Trap 6: the drain sends the newest version, and the attempts are kept; the scan leaves it alone."""
    one = runs()
    one.source.put("p1", 0)
    one.target.coming(rejects(), rejects())
    one.go()
    one.source.put("p1", 1)
    one.go()
    assert one.sent() == ["p1"]
    one.later(minutes=10)
    assert one.row("p1")["attempts"] == 2
    assert one.target.requests[-1].payload == {"value": 1}
    one.later(hours=1)
    row = one.row("p1")
    assert (row["status"], row["attempts"], row["signal"]) == ("delivered", 0, "1")


def test_last_error_is_cut_and_scrubbed(runs):
    """Trap 3."""
    one = runs()
    one.source.put("p1", 0)
    one.target.on("p1", rejects("token=abc.def is over " + "x" * 5_000))
    one.go()
    text = one.row("p1")["last_error"]
    assert len(text) == 2_000
    assert text.startswith("token=*** is over x")


def test_a_suspect_rule(runs):
    """So many refusals alike in a row, without a success: the chain ends, and the records keep theirs."""
    one = runs(uniform_refusals=3)
    one.source.fill(9)
    for number in range(1, 10):
        reaction = lands() if number == 3 else rejects(f"record {number}: unknown field 'sum'")
        one.target.on(f"p{number:02d}", reaction)
    assert one.go() is ChainEnd.SUSPECT_RULE
    assert one.sent() == ["p01", "p02", "p03", "p04", "p05", "p06"]
    assert one.statuses()["p06"] == "failed"
    assert one.rule_row["cursor"] is None


# --- faults of the rule ---------------------------------------------------------------------------------

PLACES = ("first", "middle", "last")
IDS = {"first": "p01", "middle": "p03", "last": "p05"}


class Broken(Listed):
    """Its newest version of one record is an impossible one."""

    broken = ""

    def load(self, connection, source_ids):
        found = super().load(connection, source_ids)
        if self.broken in found:
            found[self.broken] = "not a record"
        return found


def unclassified(one, source_id):
    one.target.on(source_id, breaks(KeyError("sum")))
    return Unclassified


def impossible(one, source_id):
    one.source.broken = source_id
    return ImpossibleCandidate


def unsupported(one, source_id):
    def create(payload, context):
        if context.source_id == source_id:
            raise NotImplementedError
        return Created("x" + context.source_id)

    one.writer.create = create
    return UnsupportedVerb


def appeared(one, source_id):
    """A row is there when the outcome is to be written."""
    table = one.config.schema.records

    def create(payload, context):
        if context.source_id == source_id:
            row = {
                "rule": "parcels",
                "source_id": source_id,
                "status": "delivered",
                "signal": "x",
                "attempts": 0,
                "generation": 0,
                "row_version": 1,
                "updated_at": one.clock(),
            }
            with one.config.engine.begin() as connection:
                connection.execute(insert(table), row)
        return Created("x" + context.source_id)

    one.writer.create = create
    return LedgerRowAppeared


def own_fault(one, source_id):
    """A rule fault that the writer raises itself. Trap 12."""
    one.target.on(source_id, breaks(RuleFault("enough", rule="parcels", source_id=source_id)))
    return RuleFault


FAULTS = {each.__name__: each for each in (unclassified, impossible, unsupported, appeared, own_fault)}


# A drained record has a row: none appears there.
PHASES = [
    (fault, phase)
    for fault in FAULTS
    for phase in ("drain", "scan")
    if (fault, phase) != ("appeared", "drain")
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("fault", "phase"), PHASES)
def test_a_fault_of_the_rule_writes_nothing(runs, fault, phase, place):
    """Trap 2: outcomes before it are committed; of the record at fault, and after it, nothing is."""
    one = runs(source=Broken())
    ids = one.source.fill(5)
    if phase == "drain":
        make_due(one, *ids)
    source_id = IDS[place]
    order = ids
    if phase == "drain":
        due = sorted(one.rows("records"), key=lambda row: (row["next_attempt_at"], row["source_id"]))
        order = [row["source_id"] for row in due]
        source_id = order[PLACES.index(place) * 2]
    expected = FAULTS[fault](one, source_id)
    before = one.dump()
    with pytest.raises(expected) as raised:
        one.go()
    assert raised.value.source_id == source_id
    after = one.dump()
    done = order[: order.index(source_id)]
    changed = {row["source_id"] for row in after["records"] if row not in before["records"]}
    assert changed - ({source_id} if fault == "appeared" else set()) == set(done)
    assert after["rules"] == before["rules"]
    assert after["breakers"] == before["breakers"]
    # What may have taken effect stays open, and the next chain settles it.
    assert set(one.operations()) == (
        {source_id} if fault in ("unclassified", "appeared", "own_fault") else set()
    )
    chain = one.chain()
    assert (chain["state"], chain["end"], chain["fault_kind"], chain["fault_source_id"]) == (
        "failed",
        "FAILED",
        expected.kind,
        source_id,
    )
    assert one.rule_row["lease_until"] is None


def test_no_writer_fails_at_every_tick(runs):
    """Fault 3, trap 15: the same at every tick until mended; nothing is written, and others are served."""
    one = runs()
    one.source.put("p1", 0)
    lame = one.again(
        writers={"scripted": one.writer},
        rules=[one.rule, Rule("broken", **fields_of(one, driver="nobody"))],
    )
    before = one.dump()["records"]
    for _ in range(3):
        names = {row["id"]: row["rule"] for row in one.chains()}
        chains = lame.tick()
        names |= {row["id"]: row["rule"] for row in one.chains()}
        assert [names[each] for each in chains] == ["parcels", "broken"]
        assert lame.run_chain(chains[0]) is ChainEnd.COMPLETED
        with pytest.raises(NoWriter, match="'broken' needs a writer for the driver 'nobody'"):
            lame.run_chain(chains[1])
    failed = [row for row in one.chains() if row["rule"] == "broken"]
    assert [(row["state"], row["fault_kind"]) for row in failed] == [("failed", "no_writer")] * 3
    assert [row for row in one.rows("records") if row["rule"] == "broken"] == before
    assert one.sent() == ["p1"]


def test_a_verb_that_went_away(runs):
    """Fault 4: raised where the write would happen, before any call; the outcome before it is kept."""
    one = runs()
    delivered(one, "p1")
    one.source.put("p0", 0)
    one.source.put("p1", 1)
    one.writer.update = None
    with pytest.raises(UnsupportedVerb):
        one.go()
    assert one.statuses() == {"p0": "delivered", "p1": "delivered"}
    assert (one.row("p1")["signal"], one.operations()) == ("0", {})
    assert one.sent() == ["p1", "p0"]


def test_an_inherited_verb_that_is_not_implemented(runs):
    """Trap 12: UnsupportedVerb, and no operation stays open."""
    one = runs()
    one.source.put("p1", 0)
    one.target.on("p1", breaks(NotImplementedError()))
    with pytest.raises(UnsupportedVerb):
        one.go()
    assert one.operations() == {}


def test_a_row_that_appeared_stays_a_fault_until_mended(runs):
    """Fault 5: the row is unchanged, the fault comes again at every tick, and no further call is made."""
    one = runs()
    one.source.put("p1", 0)
    appeared(one, "p1")
    with pytest.raises(LedgerRowAppeared):
        one.go()
    assert one.row("p1")["signal"] == "x"
    calls = []
    one.writer.create = lambda payload, context: calls.append(context)
    for _ in range(2):
        with pytest.raises(LedgerRowAppeared):
            one.go()
    assert calls == []
    with one.config.engine.begin() as connection:
        connection.execute(delete(one.config.schema.records))
    one.writer.create = lambda payload, context: calls.append(context) or Created("r9")
    assert one.go() is ChainEnd.COMPLETED
    assert (one.row("p1")["remote_id"], [each.in_doubt for each in calls]) == ("r9", [True])


def test_a_row_that_appears_before_the_call(runs):
    """Fault 5: where the page found none and the row is there when its turn comes, no call is made."""
    one = runs()
    one.source.put("p1", 0)
    one.source.put("p2", 0)
    appeared(one, "p1")
    create, table = one.writer.create, one.config.schema.records

    def early(payload, context):
        create(payload, context)
        with one.config.engine.begin() as connection:
            connection.execute(update(table).values(source_id="p2"))
        return Created("r1")

    one.writer.create = early
    with pytest.raises(LedgerRowAppeared) as raised:
        one.go()
    assert raised.value.source_id == "p2"
    assert one.statuses() == {"p1": "delivered", "p2": "delivered"}


IMPOSSIBLE = {
    "not a record": lambda good: ["p9"],
    "not a sequence": lambda good: 7,
    "no id": lambda good: [Record(source_id="", signal="s", position=9)],
    "an id that is no text": lambda good: [Record(source_id=7, signal="s", position=9)],
    "an overlong id": lambda good: [Record(source_id="x" * 513, signal="s", position=9)],
    "no signal": lambda good: [Record(source_id="p9", signal="", position=9)],
    "wrong scope": lambda good: [Record(source_id="p9", signal="s", position=9, scope="bolt")],
    "no scope": lambda good: [Record(source_id="p9", signal="s", position=9)],
    "twice": lambda good: [*good, *good],
    "no position": lambda good: [Record(source_id="p9", signal="s", scope="acme")],
    "a position that cannot be kept": lambda good: [
        Record(source_id="p9", signal="s", position=1.5, scope="acme")
    ],
    "behind what was asked": lambda good: [Record(source_id="p9", signal="s", position=1, scope="acme")],
    "out of order": lambda good: [*good, Record(source_id="p8", signal="s", position=2, scope="acme")],
    "not comparable": lambda good: [Record(source_id="p9", signal="s", position="2", scope="acme")],
    "more than asked": lambda good: [
        Record(source_id=f"q{number}", signal="s", position=number + 5, scope="acme") for number in range(102)
    ],
}


def test_impossible_records(runs):
    """Fault 6: never passed over silently; nothing is called or written, and the cursor stays."""
    one = runs(scope="acme")
    one.source.put("p1", 0, scope="acme")
    one.go()
    good = [Record(source_id="p9", signal="s", position=3, payload=0, scope="acme")]
    before = one.dump()
    for case, made in IMPOSSIBLE.items():
        one.source.scan = lambda connection, after, limit, made=made: made(good)
        with pytest.raises(ImpossibleCandidate, match="mend the source"):
            one.go()
        assert one.dump() == before, case
        assert one.chain()["fault_kind"] == "impossible_candidate"


def test_a_payload_that_is_not_json(runs):
    """An impossible record, with the place in its payload."""
    one = runs()
    one.source.put("p1", {1, 2})
    with pytest.raises(ImpossibleCandidate, match=r"\['value'\]: set is not JSON"):
        one.go()


def test_an_error_of_the_source_leaves_the_outcome_before_it(runs):
    """A statement of the source that fails spoils the transaction; outcome k is written all the same."""
    one = runs()
    one.source.fill(2)
    load = one.source.load

    def broken(connection, ids):
        if ids == ["p02"]:
            connection.exec_driver_sql("SELECT * FROM nowhere")
        return load(connection, ids)

    one.source.load = broken
    with pytest.raises(Exception, match="nowhere"):
        one.go()
    assert one.statuses() == {"p01": "delivered"}
    assert one.operations() == {}
    chain = one.chain()
    assert (chain["state"], chain["fault_source_id"]) == ("failed", "p02")


def test_an_unclassified_fault_is_named(runs):
    """The record's id is in the fault, and the cause is chained; a hook of the driver classifies it."""
    one = runs()
    one.source.put("p1", 0)
    one.target.on("p1", breaks(KeyError("sum"), taken=True))
    with pytest.raises(Unclassified, match=r"KeyError.*'p1'") as raised:
        one.go()
    assert isinstance(raised.value.__cause__, KeyError)
    assert "password=***" in scrubbed_chain(one, "p2", "password=hunter2")


def scrubbed_chain(one, source_id, text):
    one.source.put(source_id, 0)
    one.target.always(breaks(KeyError(text)), verbs=["create"])
    with pytest.raises(Unclassified):
        one.go()
    return one.chain()["fault_text"]


def test_classify_makes_it_a_fault_of_the_record(runs):
    """`classify(exc)` of the writer."""
    from statifier_router.runs import Rejected

    one = runs(classify=lambda error: Rejected("bad sum") if isinstance(error, KeyError) else None)
    one.source.put("p1", 0)
    one.target.on("p1", breaks(KeyError("sum")))
    assert one.go() is ChainEnd.COMPLETED
    assert one.row("p1")["error_kind"] == "rejected"


def test_the_third_equal_unclassified_fault_parks(runs, caplog):
    """Where the rule says so, and others are delivered: exhausted, at ERROR in the log; the rule goes on."""
    one = runs(on_unclassified="park")
    one.source.fill(3)
    numbers = iter(range(10))

    def create(payload, context):
        if context.source_id == "p02":
            raise KeyError(f"request {next(numbers)}")
        return Created("r" + context.source_id)

    one.writer.create = create
    for _ in range(2):
        with pytest.raises(Unclassified):
            one.go()
    with caplog.at_level(logging.ERROR, "statifier_router"):
        assert one.go() is ChainEnd.COMPLETED
    assert "record parked" in caplog.text
    assert one.statuses() == {"p01": "delivered", "p02": "exhausted", "p03": "delivered"}
    assert one.row("p02")["error_kind"] == "unclassified"
    assert one.operations()["p02"]["in_doubt"]


def test_it_does_not_park_where_nothing_else_is_delivered(runs):
    """Then it is the rule."""
    one = runs(on_unclassified="park")
    one.source.put("p1", 0)
    one.target.always(breaks(KeyError("sum")), verbs=["create"])
    for _ in range(4):
        with pytest.raises(Unclassified):
            one.go()
    assert one.statuses() == {}


def test_a_job_that_outlasts_its_deadline(runs):
    """A call outlasted it: its outcome is recorded, then the chain fails."""
    one = runs()
    one.source.fill(2)

    def slow(payload, context):
        one.clock.advance(timedelta(minutes=6))
        return Created("r1")

    one.writer.create = slow
    with pytest.raises(JobTimedOut):
        one.go()
    assert one.statuses() == {"p01": "delivered"}
    assert one.chain()["fault_kind"] == "job_timed_out"


# --- pages ----------------------------------------------------------------------------------------------


def test_a_job_does_one_page(runs):
    """And hands over to exactly one successor, in the transaction that concludes it."""
    one = runs(batch_size=2)
    one.source.fill(5)
    chain_id = one.begin()
    handed = []

    def successor(connection, chain, seq):
        handed.append((chain == chain_id, seq, connection.in_transaction(), one.source.scans[-1:]))

    answers = [one.outbound.run_job(chain_id, successor=successor) for _ in range(4)]
    assert answers == [MORE, MORE, MORE, ENDED]
    assert [(mine, seq, within) for mine, seq, within, _ in handed] == [
        (True, 2, True),
        (True, 3, True),
        (True, 4, True),
    ]
    assert one.source.scans == [(None, 3), (2, 3), (4, 3)]
    assert one.chain()["end"] == "COMPLETED"
    assert one.outbound.run_job(chain_id) is ENDED


def test_a_successor_that_fails_undoes_the_conclusion(runs):
    """The outcome stays; the page is not concluded, and the chain has failed."""
    one = runs(batch_size=2)
    one.source.fill(4)
    chain_id = one.begin()
    assert one.outbound.run_job(chain_id) is MORE

    def successor(connection, chain, seq):
        raise KeyError("queue")

    with pytest.raises(KeyError):
        one.outbound.run_job(chain_id, successor=successor)
    assert one.statuses() == {"p01": "delivered", "p02": "delivered"}
    assert one.rule_row["cursor"] is None
    assert one.chain()["state"] == "failed"


def test_a_job_that_was_done_has_no_effect(runs):
    """`seq` is the number of the job that is meant."""
    one = runs(batch_size=2)
    one.source.fill(4)
    chain_id = one.begin()
    assert one.outbound.run_job(chain_id, seq=1) is MORE
    before = one.dump()
    assert one.outbound.run_job(chain_id, seq=1) is ENDED
    assert one.dump() == before
    assert one.outbound.run_job(chain_id, seq=2) is MORE


def test_skipped_records_move_the_cursor(runs):
    """Trap 3: a page of records that are nothing to do."""
    one = runs(batch_size=2)
    delivered(one, "p1", "p2")
    one.source.put("p1", 0)
    one.source.put("p2", 0)
    one.go()
    assert read(one.rule_row["cursor"]) == 4
    assert one.sent() == ["p1", "p2"]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ties_on_position_are_never_cut(runs, size):
    """Trap 3: a group that shares a position is left to the next page, or is a page of its own."""
    one = runs(batch_size=size)
    for source_id, position in zip("abcdefg", [1, 2, 2, 2, 2, 3, 3], strict=True):
        one.source.put(source_id, 0, position=(position, "x"))
    chain_id = one.begin()
    cursors = []
    while one.outbound.run_job(chain_id) is MORE:
        cursors.append(read(one.rule_row["cursor"]))
        done = set(one.statuses())
        for group in ({"b", "c", "d", "e"}, {"f", "g"}):
            assert group <= done or not group & done
    assert sorted(one.statuses()) == list("abcdefg")
    assert read(one.rule_row["cursor"]) == (3, "x")
    assert len(one.sent()) == 7


def test_a_source_that_rewinds(runs):
    """A chain begins before the cursor, once; signals drop what was done; the cursor never falls."""
    one = runs(batch_size=2, source=Listed(rewound=lambda after: after - 3))
    one.source.fill(4)
    one.go()
    late = one.source.put("late", 0, position=3)
    one.source.scans.clear()
    one.go()
    assert late.source_id in one.statuses()
    assert [after for after, _ in one.source.scans] == [1, 2, 3]
    assert read(one.rule_row["cursor"]) == 4
    assert one.sent() == ["p01", "p02", "p03", "p04", "late"]


def test_the_drain_comes_first(runs):
    """Due records in the order in which they are due, a page at a time; then the scan."""
    one = runs(batch_size=2)
    make_due(one, "a", "b", "c", "d", "e")
    one.source.put("f", 0)
    due = sorted(one.rows("records"), key=lambda row: row["next_attempt_at"])
    first = len(one.sent())
    chain_id = one.begin()
    phases = []
    while True:
        phases.append(one.chain()["phase"])
        if one.outbound.run_job(chain_id) is not MORE:
            break
    assert phases == ["drain", "drain", "drain", "scan"]
    assert one.sent()[first:] == [*(row["source_id"] for row in due), "f"]


def test_what_falls_due_later_is_left_to_the_next_chain(runs):
    """The limit is frozen at the chain's start, so that each record is tried once in it."""
    one = runs(batch_size=1, retry=RetryPolicy(waits=[timedelta(seconds=1)]))
    one.source.fill(3)
    one.target.always(rejects(), verbs=["create"])
    one.go()
    one.clock.advance(MINUTE)
    chain_id = one.begin()
    while one.outbound.run_job(chain_id) is MORE:
        one.clock.advance(timedelta(seconds=5))
    assert sorted(one.sent()) == sorted(["p01", "p02", "p03"] * 2)


def test_a_page_ends_where_the_deadline_nears(runs):
    """What was done is concluded, and a successor goes on behind it."""
    one = runs(call_timeout=timedelta(seconds=10), job_deadline=timedelta(seconds=60), batch_size=10)
    one.source.fill(6)

    def slow(payload, context):
        one.clock.advance(timedelta(seconds=20))
        return Created("r" + context.source_id)

    one.writer.create = slow
    chain_id = one.begin()
    assert one.outbound.run_job(chain_id) is MORE
    assert one.outbound.run_job(chain_id) is MORE
    assert sorted(one.statuses()) == ["p01", "p02", "p03"]
    assert read(one.rule_row["cursor"]) == 3
    assert one.outbound.run_job(chain_id) is ENDED
    assert len(one.statuses()) == 6


def test_a_chain_lasts_one_tick_interval(runs):
    """Then it has YIELDED, in the middle of a page too; the next one begins with what is due."""
    one = runs(batch_size=2)
    one.source.fill(8)

    def slow(payload, context):
        one.clock.advance(timedelta(minutes=1, seconds=40))
        return Created("r" + context.source_id)

    one.writer.create = slow
    assert one.go() is ChainEnd.YIELDED
    assert sorted(one.statuses()) == ["p01", "p02", "p03"]
    assert read(one.rule_row["cursor"]) == 3
    assert one.go() is ChainEnd.YIELDED
    assert len(one.statuses()) == 6


def test_a_chain_that_begins_late_does_one_page(runs):
    """A job that waited longer than an interval in its queue is not for nothing."""
    one = runs(batch_size=2)
    one.source.fill(4)
    chain_id = one.begin()
    assert one.outbound.run_job(chain_id) is MORE
    one.clock.advance(timedelta(minutes=6))
    assert one.outbound.run_chain(chain_id) is ChainEnd.YIELDED
    assert sorted(one.statuses()) == ["p01", "p02"]


# --- ticks ----------------------------------------------------------------------------------------------


def test_a_rule_with_a_live_chain_gets_none(runs):
    """Trap 15."""
    one = runs()
    chain_id = one.begin()
    assert one.outbound.tick() == []
    assert one.again().tick() == []
    one.outbound.run_chain(chain_id)
    assert len(one.outbound.tick()) == 1


def test_a_dead_chain_is_cancelled_first(runs):
    """Two leases without a sign; then its job ends the moment it starts."""
    one = runs()
    one.source.fill(2)
    old = one.begin()
    one.clock.advance(timedelta(seconds=180))
    assert one.outbound.tick() == []
    one.clock.advance(timedelta(microseconds=1))
    (new,) = one.outbound.tick()
    cancelled = one.chains()[0]
    assert (cancelled["id"], cancelled["state"], cancelled["end"]) == (old, "cancelled", "CANCELLED")
    before = one.dump()
    assert one.outbound.run_job(old) is ENDED
    assert one.outbound.run_chain(old) is ChainEnd.CANCELLED
    assert one.dump() == before
    assert one.sent() == []
    assert one.outbound.run_chain(new) is ChainEnd.COMPLETED


def test_a_chain_from_a_clock_that_was_put_back_is_dead(runs):
    """A sign from the future is no sign: nobody waits until the clock has come there again."""
    one = runs()
    one.source.fill(2)
    one.clock.advance(timedelta(hours=3))
    old = one.begin()
    one.clock.set(one.clock() - timedelta(hours=3))
    (status,) = one.outbound.rules()
    assert (status.state, "ahead of the clock" in status.advice) == ("stalled", True)
    assert [found.kind for found in one.outbound.doctor()] == ["dead_chain"]
    (new,) = one.outbound.tick()
    assert one.outbound.run_job(old) is ENDED
    assert one.outbound.run_chain(new) is ChainEnd.COMPLETED
    one.clock.advance(timedelta(seconds=180))
    near = one.begin()
    one.clock.set(one.clock() - timedelta(seconds=180))
    assert one.outbound.tick() == []
    assert one.outbound.run_chain(near) is ChainEnd.COMPLETED


def test_a_paused_rule(runs):
    """Trap 14: no chain begins; one that runs ends after the record in hand."""
    one = runs()
    one.source.fill(3)
    rules = one.config.schema.rules

    def pause(paused):
        with one.config.engine.begin() as connection:
            connection.execute(update(rules).values(paused=paused))

    create = one.writer.create

    def pausing(payload, context):
        pause(True)
        return create(payload, context)

    one.writer.create = pausing
    assert one.go() is ChainEnd.PAUSED
    assert one.statuses() == {"p01": "delivered"}
    assert one.rule_row["cursor"] is None
    assert one.outbound.tick() == []
    pause(False)
    one.writer.create = create
    assert one.go() is ChainEnd.COMPLETED
    assert one.sent() == ["p01", "p02", "p03"]


def test_a_rule_that_is_edited_while_its_chain_runs(runs):
    """The chain ends SUPERSEDED after the record in hand; the next one runs by the new definition."""
    one = runs()
    one.source.fill(3)
    create = one.writer.create

    def editing(payload, context):
        if one.rule.batch_size == 100:
            one.edit(batch_size=50)
        return create(payload, context)

    one.writer.create = editing
    assert one.go() is ChainEnd.SUPERSEDED
    assert one.statuses() == {"p01": "delivered"}
    assert one.go() is ChainEnd.COMPLETED


def test_a_process_with_older_code_keeps_its_hands_off(runs, caplog):
    """Where another process has saved another definition: no chain, no job, a line in the log."""
    one = runs()
    one.source.put("p1", 0)
    old = one.outbound
    new = one.again()
    new.save_rule(Rule("parcels", **fields_of(one, batch_size=9)))
    with caplog.at_level(logging.WARNING, "statifier_router"):
        assert old.tick() == []
    assert "another one" in caplog.text
    (chain_id,) = new.tick()
    assert old.run_chain(chain_id) is ChainEnd.BUSY
    assert one.sent() == []
    assert new.run_chain(chain_id) is ChainEnd.COMPLETED


def test_a_closed_route(runs):
    """Fault 1: no call, no successor, the chain finished; the next tick resumes from the same cursor."""
    why = []
    one = runs(health=lambda rule: why[0] if why else None)
    one.source.fill(3)
    create = one.writer.create

    def closing(payload, context):
        why.append("the token has expired")
        return create(payload, context)

    one.writer.create = closing
    assert one.go() is ChainEnd.ROUTE_CLOSED
    assert one.sent() == ["p01"]
    since = one.rule_row["closed_since"]
    assert since is not None
    one.clock.advance(MINUTE)
    one.source.scans.clear()
    assert one.go() is ChainEnd.ROUTE_CLOSED
    assert one.source.scans == []
    assert (one.rule_row["closed_since"], one.rule_row["cursor"]) == (since, None)
    assert one.chain()["state"] == "finished"
    why.clear()
    one.writer.create = create
    assert one.go() is ChainEnd.COMPLETED
    assert one.rule_row["closed_since"] is None
    assert one.sent() == ["p01", "p02", "p03"]


def test_a_tick_goes_on_behind_a_broken_rule(runs, caplog):
    """One that cannot be saved is logged; where no rule could be ticked at all, the error is raised."""
    one = runs()
    delivered(one, "p1")
    refused = Rule("parcels", **fields_of(one, target="elsewhere"))
    fine = Rule("letters", **fields_of(one))
    both = one.again(rules=[refused, fine])
    assert len(both.tick()) == 1
    assert "chain not begun" in caplog.text
    with pytest.raises(ConfigError, match="its target must stay"):
        one.again(rules=[refused]).tick()


def test_work_goes_on_behind_a_failure(runs):
    """The loop: at every interval a chain for each rule, a failure logged, and told at the end."""
    one = runs()
    one.source.put("p1", 0)
    broken = Rule("broken", **fields_of(one, driver="nobody"))
    outbound = one.again(rules=[broken, one.rule])
    pauses = []

    class Stop:
        stopped = False

        def is_set(self):
            return self.stopped

    def pause(seconds):
        pauses.append(seconds)
        one.source.put("p1", len(pauses))
        Stop.stopped = len(pauses) == 3

    assert outbound.work(every=300, stop=Stop(), pause=pause) is True
    assert pauses == [300.0] * 3
    assert len(one.sent()) == 3
    Stop.stopped = False
    pauses.clear()
    assert one.outbound.work(every=timedelta(minutes=5), stop=Stop(), pause=pause) is False
    with pytest.raises(ConfigError, match="every"):
        outbound.work(every=0)


def test_unknown_names(runs):
    """A chain, or a rule, that is not known."""
    one = runs()
    with pytest.raises(ConfigError, match="is of no chain"):
        one.outbound.run_job("ch_nothing")
    chain_id = one.begin()
    with pytest.raises(ConfigError, match="no rule is named 'parcels'"):
        Outbound(one.config, writers={}).run_job(chain_id)
