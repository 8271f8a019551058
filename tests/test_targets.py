"""The scripted target does as it is told, and its log says what it saw."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from statifier_router import ConfigError
from statifier_router.runs import (
    Created,
    Gone,
    Rejected,
    Throttled,
    TimedOut,
    Unavailable,
    WriteContext,
    WriterTraits,
)
from statifier_router.runs.writers import has_verb, traits_of
from statifier_router.testing import (
    ScriptedTarget,
    ScriptedWriter,
    breaks,
    gone,
    hangs,
    lands,
    rejects,
    throttles,
    times_out,
    unavailable,
)


def about(source_id="p1", key="k1", signal="s1"):
    return WriteContext(
        rule="parcels",
        source_id=source_id,
        key=key,
        signal=signal,
        attempt=1,
        in_doubt=False,
        timeout=timedelta(seconds=1),
    )


@pytest.fixture
def target():
    return ScriptedTarget()


@pytest.fixture
def writer(target):
    return ScriptedWriter(target, verbs=("create", "update", "delete", "ping", "lookup"))


def test_calls_take_effect_until_it_is_told_otherwise(target, writer):
    """Create, update and delete; the log names each call, and whether it took effect."""
    assert writer.create({"n": 1}, about()) == Created("r1")
    writer.update("r1", {"n": 2}, about(key="k2", signal="s2"))
    assert [(held.payload, held.signal) for held in target.copies("p1")] == [({"n": 2}, "s2")]
    writer.delete("r1", about(key="k3"))
    writer.ping(timedelta(1))
    assert not target.records
    seen = [(each.verb, each.source_id, each.key, each.took_effect) for each in target.requests]
    assert seen == [
        ("create", "p1", "k1", True),
        ("update", "p1", "k2", True),
        ("delete", "p1", "k3", True),
        ("ping", None, None, False),
    ]
    assert [each.verb for each in target.calls("p1", "update", "delete")] == ["update", "delete"]


@pytest.mark.parametrize(
    ("reaction", "error", "there"),
    [
        (rejects("no"), Rejected, False),
        (throttles(7), Throttled, False),
        (times_out(), TimedOut, False),
        (times_out(taken=True), TimedOut, True),
        (unavailable(), Unavailable, False),
        (unavailable(taken=True), Unavailable, True),
        (gone(), Gone, False),
        (breaks(LookupError("x")), LookupError, False),
        (breaks(LookupError("x"), taken=True), LookupError, True),
    ],
)
def test_each_reaction_answers_and_takes_effect_as_it_says(target, writer, reaction, error, there):
    """What the caller hears and what happened are two things."""
    target.coming(reaction)
    with pytest.raises(error):
        writer.create({}, about())
    assert bool(target.records) is there
    assert target.requests[0].took_effect is there
    assert target.requests[0].answer == error.__name__
    assert writer.create({}, about("p2", "k2")).remote_id


def test_what_was_told_for_a_record_goes_first_then_the_next_calls_then_always(target, writer):
    """Three places, in this order; each reaction serves once, but the last serves on."""
    target.always(unavailable(), verbs=("create",))
    target.coming(rejects())
    target.on("p1", throttles())
    for source_id, error in [("p1", Throttled), ("p1", Rejected), ("p1", Unavailable), ("p2", Unavailable)]:
        with pytest.raises(error):
            writer.create({}, about(source_id))
    writer.ping(timedelta(1))
    target.always(None)
    assert writer.create({}, about())


def test_a_target_that_is_down_answers_no_ping_either(target, writer):
    """Until it is up again."""
    target.down()
    for call in (lambda: writer.ping(timedelta(1)), lambda: writer.create({}, about())):
        with pytest.raises(Unavailable):
            call()
    target.up()
    writer.ping(timedelta(1))


def test_a_keyed_target_takes_a_key_once():
    """The same answer again, and no effect: nor of an old update upon a newer one."""
    target = ScriptedTarget(keyed=True)
    writer = ScriptedWriter(target)
    target.coming(times_out(taken=True))
    with pytest.raises(TimedOut):
        writer.create({"n": 1}, about())
    assert writer.create({"n": 1}, about()) == Created("r1")
    writer.update("r1", {"n": 2}, about(key="k2"))
    writer.update("r1", {"n": 3}, about(key="k3"))
    writer.update("r1", {"n": 2}, about(key="k2"))
    assert [held.payload for held in target.copies("p1")] == [{"n": 3}]
    assert [each.took_effect for each in target.requests] == [True, False, True, True, False]
    assert traits_of(writer) == WriterTraits(honours_keys=True)


def test_a_target_without_keys_makes_copies(target, writer):
    """As a real one does: two creates, two records."""
    writer.create({}, about())
    writer.create({}, about())
    assert len(target.copies("p1")) == 2
    assert traits_of(writer) == WriterTraits()


def test_a_forgotten_record_is_gone(target, writer):
    """For an update and for a delete."""
    writer.create({}, about())
    target.forget("r1")
    for call in (lambda: writer.update("r1", {}, about()), lambda: writer.delete("r1", about())):
        with pytest.raises(Gone):
            call()
    assert not target.requests[-1].took_effect


@pytest.mark.parametrize("address", ["", 0, "None", " ", None])
def test_any_address_can_be_answered(target, writer, address):
    """The record is there all the same, under its own."""
    target.coming(lands(address))
    assert writer.create({}, about()) == Created(address)
    assert [held.remote_id for held in target.copies("p1")] == ["r1"]


def test_a_lookup_finds_what_a_key_created(target, writer):
    """Also where the create answered nothing."""
    assert writer.lookup(about()) is None
    target.coming(times_out(taken=True))
    with pytest.raises(TimedOut):
        writer.create({}, about())
    assert writer.lookup(about()) == Created("r1")
    assert writer.lookup(about(key="k2")) is None


@pytest.mark.parametrize("taken_first", [True, False])
def test_a_call_is_held_until_it_is_released(target, writer, taken_first):
    """With its effect before or after; other calls are served meanwhile."""
    target.on("p1", hangs(taken_first=taken_first))
    answers = []
    held = threading.Thread(target=lambda: answers.append(writer.create({}, about())))
    held.start()
    target.await_held()
    assert bool(target.records) is taken_first
    writer.create({}, about("p2", "k2"))
    assert not answers
    target.release()
    held.join()
    assert answers == [Created("r1" if taken_first else "r2")]
    assert len(target.records) == 2


def test_a_held_call_may_end_badly(target, writer):
    """`then` says how."""
    target.coming(hangs(rejects()))
    errors = []

    def call():
        try:
            writer.create({}, about())
        except Rejected as error:
            errors.append(error)

    held = threading.Thread(target=call)
    held.start()
    target.await_held()
    target.release()
    held.join()
    assert len(errors) == 1
    assert not target.records


def test_a_call_that_is_not_held_is_told(target):
    """A test that waits for the wrong thing fails soon."""
    with pytest.raises(AssertionError, match="fewer than 1 calls are held"):
        target.await_held(timeout=0)


def test_the_target_shares_no_payload(target, writer):
    """What the caller changes afterwards changes nothing there, nor in the log."""
    payload = {"n": [1]}
    writer.create(payload, about())
    payload["n"].append(2)
    assert target.records["r1"].payload == {"n": [1]}
    assert target.requests[0].payload == {"n": [1]}


def test_a_writer_has_the_verbs_that_are_named(target):
    """No others, and none that nobody knows."""
    writer = ScriptedWriter(target, verbs=("update",), classify=lambda error: Rejected())
    assert [verb for verb in ("create", "update", "delete", "ping", "lookup") if has_verb(writer, verb)] == [
        "update"
    ]
    assert isinstance(writer.classify(LookupError()), Rejected)
    with pytest.raises(ConfigError, match="verbs must be of"):
        ScriptedWriter(target, verbs=("upsert",))
    with pytest.raises(ConfigError, match="a reaction is made by"):
        target.coming(Rejected())
