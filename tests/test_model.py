"""The library against a pure model: the same acts, the same outcomes, the same rows after each."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from statifier_router import (
    Binding,
    Config,
    Dedupe,
    Plan,
    RouterError,
    addresses,
    claims,
    deliver_event,
    executions,
    route,
)
from tests.support.charts import NOW, envelope, message, obedient, registry
from tests.support.model import Model, Refused, Rule
from tests.support.rows import everything

HOUR, TINY = timedelta(hours=1), timedelta(microseconds=1)

RULES = [
    Rule("scans", "parcel"),
    Rule("audit", "parcel", create="never", per_scope=True, horizon=2 * HOUR),
    Rule("once", "parcel", create="always_new", wants="letter", horizon=timedelta(0)),
    Rule("brief", "short", wants="note"),
    Rule("lost", "nowhere", wants="lost"),
]
PLANS = [
    # It shares its id, and so its claims, with a binding.
    Rule("scans", "parcel", drops_unmatched=False),
    Rule("timely", "parcel", create="never", drops_unmatched=False, per_scope=True),
    Rule("fresh", "short", create="always_new", drops_unmatched=False),
]

# Around every instant at which something expires, and in no order: clocks of senders differ.
INSTANTS = [
    NOW,
    NOW + TINY,
    NOW + HOUR,
    NOW + HOUR + TINY,
    NOW + 2 * HOUR,
    NOW + 2 * HOUR + TINY,
    NOW - HOUR,
]

instants = st.sampled_from(INSTANTS)
dos = st.sampled_from(["moved", "moved", "finished", "refused", "ignored", "unknown", "broken", "failed"])
ids = st.sampled_from(["m-1", "m-2", "m-3"])
scopes = st.sampled_from(["acme", "globex"])

acts = st.one_of(
    st.tuples(
        st.just("route"),
        st.sampled_from(["carrier"] * 5 + ["nobody"]),
        st.sampled_from(["scan", "scan", "letter", "note", "lost"]),
        st.sampled_from(["P1", "P1", "P2", 7]),
        ids,
        scopes,
        dos,
        instants,
    ),
    st.tuples(
        st.just("deliver_event"),
        st.sampled_from(PLANS),
        st.sampled_from(["P1", "P2"]),
        ids,
        scopes,
        dos,
        instants,
    ),
    st.tuples(
        st.just("operate"),
        st.sampled_from(["cancel", "fail", "suspend", "resume", "resume"]),
        st.integers(0, 5),
        instants,
    ),
    st.tuples(st.just("reap claims"), instants),
    st.tuples(st.just("reap addresses"), instants),
    st.tuples(st.just("prune"), instants),
)


class Both:
    """The library on a real database, and the model beside it."""

    def __init__(self, database):
        self.model = Model()
        self.now = NOW
        self.minted = 0
        self.config = Config(
            database.engine(),
            charts=registry(parcel=obedient(), short=obedient(on_create="finished")),
            bindings=[_binding(rule) for rule in RULES],
            clock=lambda: self.now,
            mint_execution_id=self.mint,
        )

    def mint(self, scope, document, key):
        self.minted += 1
        return f"run-{self.minted:04}"

    def play(self, act):
        """One act on both: the same answer or the same error, and afterwards the same rows."""
        name, *arguments = act
        real, model = getattr(self, name.replace(" ", "_"))(*arguments)
        assert _told(real) == _told(model), act
        self.compare(act)

    def route(self, source, kind, parcel, message_id, scope, do, now):
        sent = message(message_id, parcel, scope=scope, kind=kind, do=do)
        if source != "carrier":
            sent = type(sent)(source, message_id, scope, dict(sent.data))
        return (
            lambda: [outcome.recorded for outcome in route(self.config, sent, now=now)],
            lambda: self.model.route(
                RULES,
                source=source,
                kind=kind,
                parcel=parcel,
                message_id=message_id,
                scope=scope,
                do=do,
                now=now,
            ),
        )

    def deliver_event(self, rule, key, message_id, scope, do, now):
        sent = envelope("scanned", message_id, scope=scope, now=now, data={"do": do})
        plan = Plan(rule.id, rule.document, rule.create, Dedupe(rule.horizon, rule.per_scope))
        return (
            lambda: deliver_event(self.config, plan, key, sent).recorded,
            lambda: self.model.deliver(rule, key, message_id, scope, do, now),
        )

    def operate(self, name, which, now):
        known = list(self.model.rows.executions)
        id = known[which] if which < len(known) else "run-none"
        self.now = now
        more = {"reason": "why"} if name == "fail" else {}

        def operate():
            answer = getattr(executions, name)(self.config, id, **more)
            return answer and answer.status

        return operate, lambda: self.model.act(name, id, now)

    def reap_claims(self, now):
        return lambda: claims.reap(self.config, now=now), lambda: self.model.reap_claims(now)

    def reap_addresses(self, now):
        def reap():
            reaped = addresses.reap(self.config, now=now)
            return reaped.stamped, reaped.deleted

        return reap, lambda: self.model.reap_addresses(RULES, now)

    def prune(self, before):
        return lambda: executions.prune(self.config, before=before), lambda: self.model.prune(before)

    def compare(self, act):
        """Every table against the model's."""
        real, rows = everything(self.config), self.model.rows
        assert {
            (row["binding_id"], row["scope"], row["message_id"]): row["expires_at"] for row in real.claims
        } == {claim: expires for claim, (_, expires) in rows.claims.items()}, act
        assert {
            (row["scope"], row["document"], row["key"]): (row["execution_id"], row["terminal_seen_at"])
            for row in real.addresses
        } == {
            place: (address.execution_id, address.terminal_seen_at)
            for place, address in rows.addresses.items()
        }, act
        doors = {}
        for row in real.inputs:
            doors.setdefault(row["execution_id"], []).append(row["door"])
        assert {
            row["id"]: (
                row["document"],
                row["status"],
                None if row["position"] is None else json.loads(row["position"])["seen"],
                row["revision"],
                row["ended_at"],
                doors.get(row["id"], []),
            )
            for row in real.executions
        } == {
            id: (each.document, each.status, each.seen, each.revision, each.ended_at, each.doors)
            for id, each in rows.executions.items()
        }, act
        assert [_ledger(row) for row in real.ledger] == rows.ledger, act
        assert self.minted == self.model.minted, act


def _binding(rule):
    return Binding(
        id=rule.id,
        source="carrier",
        match={"kind": rule.wants} if rule.wants else {},
        key="parcel",
        document=rule.document,
        event="scanned",
        data=("do",),
        create=rule.create,
        dedupe=Dedupe(rule.horizon, per_scope=rule.per_scope),
    )


def _told(call):
    try:
        return call()
    except RouterError as error:
        return type(error).__name__
    except Refused as refused:
        return str(refused)


def _ledger(row):
    reason = row["reason"]
    if row["outcome"] == "key_refused":
        reason = reason.split(":")[0]
    elif row["outcome"] == "unrouted":
        reason = reason and "unrouted"
    return (
        row["binding_id"],
        row["message_id"],
        row["scope"],
        row["outcome"],
        row["key"],
        row["execution_id"],
        reason,
        row["inserted_at"],
    )


def _play(database, story):
    database.clear()
    both = Both(database)
    for act in story:
        both.play(act)
    for id, execution in both.model.rows.executions.items():
        if execution.seen is not None:
            assert executions.replay(both.config, id).agrees
    both.config.engine.dispose()


def _settings(examples):
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


# One that holds what chance seldom puts together: an ended execution, its address stamped, reaped, and
# the same message again within its horizon and after it.
_LIFE = [
    ("route", "carrier", "scan", "P1", "m-1", "acme", "moved", NOW),
    ("route", "carrier", "scan", "P1", "m-2", "acme", "finished", NOW),
    ("route", "carrier", "scan", "P1", "m-3", "acme", "moved", NOW + TINY),
    ("reap addresses", NOW + 2 * HOUR),
    ("reap addresses", NOW + 2 * HOUR + TINY),
    ("route", "carrier", "scan", "P1", "m-1", "globex", "moved", NOW + HOUR),
    ("reap claims", NOW + HOUR + TINY),
    ("prune", NOW + TINY),
    ("route", "carrier", "scan", "P1", "m-1", "acme", "moved", NOW + HOUR + TINY),
    ("operate", "suspend", 1, NOW),
    ("route", "carrier", "lost", "P1", "m-2", "acme", "moved", NOW + 2 * HOUR),
    ("operate", "resume", 1, NOW),
    ("route", "carrier", "lost", "P1", "m-2", "acme", "moved", NOW + 2 * HOUR),
]


@_settings(60)
@given(story=st.lists(acts, min_size=5, max_size=14))
@example(story=_LIFE)
def test_on_sqlite(sqlite, story):
    """Whatever is routed, delivered, reaped, pruned and operated, in whatever order and at whatever
    instants: the outcomes and errors are the model's, and so is every row after each act.
    """
    _play(sqlite, story)


@_settings(15)
@given(story=st.lists(acts, min_size=5, max_size=14))
@example(story=_LIFE)
def test_on_postgresql(postgresql, story):
    """The same on PostgreSQL, with fewer stories."""
    _play(postgresql, story)


@pytest.mark.parametrize("rule", RULES + PLANS, ids=lambda rule: f"{rule.id}-{rule.drops_unmatched}")
def test_the_model_knows_every_rule(rule):
    """The model alone: a second hand-over at the same instant is a duplicate, whatever the rule; what has
    no chart leaves nothing.
    """
    model = Model()
    if rule.document == "nowhere":
        with pytest.raises(Refused, match="UnresolvedDocument"):
            model.deliver(rule, "P1", "m-1", "acme", "moved", NOW)
        assert model.rows == Model().rows
    else:
        model.deliver(rule, "P1", "m-1", "acme", "moved", NOW)
        assert model.deliver(rule, "P1", "m-1", "acme", "moved", NOW) == "duplicate"
