"""Whatever charts send, wait for and keep: the same rows on both databases and over every plan."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statifier_router import (
    Config,
    Defer,
    DeliveryError,
    OutboxRoute,
    Plan,
    RecordRoute,
    RouteRefused,
    deferrals,
    deliver,
    deliver_event,
    executions,
    timers,
)
from tests.support.charts import HOUR, NOW, delivery, envelope, registry, scans
from tests.support.racing import WritingPlainly
from tests.support.rows import everything
from tests.support.told import stored, told

KEYS = ["K1", "K2", "K3"]
RULE = Defer(HOUR, limit=3)
KEPT = scans(
    id="kept", event="kept", document="a", data=("after", "effects", "end", "answer"), unmatched=RULE
)
EARLY = scans(
    id="early",
    event="early",
    document="a",
    data=("after", "effects", "end", "answer"),
    create="never",
    missing=RULE,
    unmatched=RULE,
)


def refuse(event, key, context):
    """A route that hands nothing off."""
    raise RouteRefused("closed")


ROUTED = [{"event": "notice", "target": target} for target in ("box", "book", "bank", "nowhere")]


def _sends(deeper):
    """Effects: each with everything that an event may carry, so that what is sent sends in its turn."""
    data = st.fixed_dictionaries(
        {},
        optional={
            "effects": st.lists(deeper, max_size=2),
            "after": st.sampled_from(["kept", "early", "go", "tick"]),
            "end": st.just(True),
            "answer": st.sampled_from(["ignored", "failed", "raised"]),
        },
    )
    neighbour = st.builds(
        lambda key, create, more: {
            "event": "hello",
            "target": "execution",
            "send_id": "n",
            "data": {"document": "a", "key": key, "create": create, **more},
        },
        st.sampled_from(KEYS),
        st.sampled_from(["if_absent", "never"]),
        data,
    )
    delayed = st.builds(
        lambda delay, target, send_id, more: {
            "event": "tick",
            "delay": delay,
            "target": target,
            "send_id": send_id,
            "data": more,
        },
        st.sampled_from([0, 60, 7200]),
        st.sampled_from([None, None, "box", "book", "bank", "nowhere"]),
        st.sampled_from([None, "s", "t"]),
        data,
    )
    routed = st.sampled_from(ROUTED)
    cancelled = st.builds(lambda send_id: {"cancel": send_id}, st.sampled_from(["s", "t"]))
    return st.one_of(neighbour, delayed, routed, cancelled)


effects = st.recursive(st.just({"event": "notice", "target": "box"}), _sends, max_leaves=8)
told_data = st.fixed_dictionaries(
    {"effects": st.lists(effects, max_size=3)},
    optional={
        "after": st.sampled_from(["kept", "early", "go", "hello", "tick"]),
        "end": st.just(True),
        "answer": st.sampled_from(["ignored", "failed"]),
        # Nothing that would send to one who hears of it again: that is finite, and takes long.
        "on_error": st.lists(st.sampled_from([*ROUTED, {"cancel": "s"}]), max_size=1),
    },
)
keys = st.sampled_from(KEYS)
acts = st.one_of(
    st.tuples(st.sampled_from(["go", "kept", "early"]), keys, st.integers(0, 9), told_data),
    st.tuples(st.just("pass"), st.sampled_from([30, 60, 3600])),
    st.tuples(st.sampled_from(["fire", "sweep"])),
    st.tuples(st.sampled_from(["suspend", "resume"]), keys),
)


def _play(config, script):
    """What each act answered, or the error's name."""
    now, answers = NOW, []
    for act in script:
        try:
            answer = _do(config, act, now)
        except DeliveryError as error:
            answer = type(error).__name__
        if act[0] == "pass":
            now += timedelta(seconds=act[1])
        answers.append(answer)
    return answers


def _do(config, act, now):
    name, *rest = act
    if name == "fire":
        return timers.fire_due(config, now=now, limit=20)
    if name == "sweep":
        return deferrals.sweep(config, now=now)
    if name in ("suspend", "resume"):
        return _operate(config, name, rest[0])
    if name == "pass":
        return None
    key, number, data = rest
    if name == "go":
        sent = envelope("go", f"go-{number}", now=now, data=data)
        return deliver_event(config, Plan("jobs", "a"), key, sent)
    binding = KEPT if name == "kept" else EARLY
    return deliver(config, binding, key, delivery(f"m-{number}", now=now, data=data))


def _operate(config, name, key):
    found = executions.fetch(config, f"run-{key}")
    return None if found is None else bool(getattr(executions, name)(config, found.id))


def _rows(config):
    rows = everything(config)
    return {
        "claims": rows.claims,
        "addresses": [{**row, "id": 0} for row in rows.addresses],
        "executions": [
            {**row, "position": executions.fetch(config, row["id"]).position} for row in rows.executions
        ],
        "inputs": [{**row, "event": None, "details": None, "errors": None} for row in rows.inputs],
        "ledger": [{**row, "id": 0, "reason": _plain(row["reason"])} for row in rows.ledger],
        "timers": [{**row, "last_error": _plain(row["last_error"])} for row in stored(config, "timers")],
        "outbox": [{**row, "id": 0, "xid": 0} for row in stored(config, "outbox")],
        "changes": [{**row, "seq": 0, "xid": 0} for row in stored(config, "changes")],
        "deferred": [{**row, "id": 0} for row in stored(config, "deferred")],
    }


def _plain(reason):
    return None if reason is None else re.sub(r"sr_delivery_\d+", "", reason)


def _compare(found, wanted):
    """As `==`, with a message that can be read."""
    assert found[0] == wanted[0]
    for table, rows in wanted[1].items():
        differing = [pair for pair in zip(found[1][table], rows, strict=False) if pair[0] != pair[1]][:1]
        assert not differing, (table, differing)
        assert len(found[1][table]) == len(rows), table


@pytest.mark.sqlite
@pytest.mark.postgresql
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=st.lists(acts, min_size=1, max_size=10))
def test_every_plan_writes_the_same(sqlite, postgresql, script):
    """Outcomes, and the rows of every table, are those of SQLite under each plan on PostgreSQL; every log
    folds, and every counter of kept events is right.
    """
    wanted = None
    for database, more in (
        (sqlite, {}),
        (postgresql, {}),
        (postgresql, {"executor": WritingPlainly()}),
        (postgresql, {"pipeline": True}),
    ):
        database.clear()
        config = Config(
            database.engine(),
            charts=registry(a=told("a")),
            bindings=[KEPT, EARLY],
            routes={
                "box": OutboxRoute("box"),
                "book": RecordRoute("things", record_id="after"),
                "bank": refuse,
                "done": OutboxRoute("done"),
            },
            on_complete="done",
            clock=lambda: NOW,
            mint_execution_id=lambda scope, document, key: f"run-{key}",
            **more,
        )
        found = _play(config, script), _rows(config)
        for row in found[1]["executions"]:
            assert executions.replay(config, row["id"]).agrees
            assert row["deferred"] == sum(kept["execution_id"] == row["id"] for kept in found[1]["deferred"])
        wanted = wanted or found
        _compare(found, wanted)
        config.engine.dispose()
