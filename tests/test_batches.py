"""`deliver_many` and `route_many`: one transaction, and the same as one by one."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import attrs
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from statifier_router import (
    ConfigError,
    CreatedAndDelivered,
    Dedupe,
    Defer,
    Deferred,
    Delivered,
    Delivery,
    DeliveryError,
    Duplicate,
    ExecutionBusy,
    ExecutionExists,
    ExecutionNotFound,
    IsolationConflict,
    KeyInvalid,
    KeyRefused,
    MessageError,
    NoMatch,
    OutboxRoute,
    RecordRoute,
    ReentrantRoute,
    Routed,
    StepFailed,
    Unresolved,
    UnresolvedDocument,
    addresses,
    batch_set,
    deliver,
    deliver_many,
    emit,
    executions,
    ledger,
    route,
    route_many,
)
from statifier_router import cancel as cancel_send
from statifier_router.interpreters import function
from statifier_router.steps import Step
from tests.support.alike import spelled, unlike
from tests.support.charts import NOW, Asked, Calling, delivery, message, obedient, registry, scans
from tests.support.racing import MOMENT, WritingPlainly, open_transaction
from tests.support.rows import everything, written

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@pytest.fixture
def default(database):
    """Each database in turn."""
    return database


@pytest.fixture
def config(database, make_config):
    """The usual configuration, on each database."""
    return _config(database, make_config)


# --- a chart whose steps hand things off --------------------------------------------------------------


def _create(data, now):
    return Step({"who": data["execution"]["key"], "seen": []}, active=["open"])


def _step(position, event, now):
    do = event.data.get("do", "moved")
    seen = {**position, "seen": [*position["seen"], f"{event.name}:{do}"]}
    if do in ("refused", "ignored"):
        return Step(position, outcome=do, active=["open"])
    if do == "failed":
        return Step(position, outcome="failed", errors=["it cannot be"])
    if do == "raised":
        emit("notice", target="notices")
        raise ValueError("it raised")
    if do == "finished":
        return Step(seen, active=["done"], status="completed", donedata={"n": len(seen["seen"])})
    _emit(do, position["who"], len(seen["seen"]))
    return Step(seen, active=["open"], errors=["a guard failed"] if do == "erred" else [])


def _emit(do, who, n):
    if do == "noticed":
        emit("notice", target="notices", data={"n": n})
    if do == "recorded":
        emit("parcel", target="records", data={"parcel": who, "n": n})
    if do == "unrecorded":
        emit("parcel", target="records")
    if do == "armed":
        emit("late", target="notices", send_id="timer", delay=HOUR)
        emit("soon", delay=SECOND)
    if do == "disarmed":
        cancel_send("timer")
    if do == "rearmed":
        cancel_send("timer")
        emit("late", target="notices", send_id="timer", delay=2 * HOUR)
    if do == "lost":
        emit("notice", target="nowhere")
    if do == "mistyped":
        emit("notice", target="notices", type="smoke signal")
    if do == "told":
        emit("told", target="execution", data={"document": "parcel", "key": "P9"})


HANDING = function.chart("handing", create=_create, step=_step)
CHARTS = registry(parcel=HANDING, once=HANDING, short=obedient("short", on_create="finished"))

SCANS = scans(dedupe=Dedupe(HOUR))
AUDIT = scans(id="audit", create="never", dedupe=Dedupe(2 * HOUR, per_scope=True))
ONCE = scans(id="once", document="once", create="always_new", match={"kind": "letter"})
BRIEF = scans(id="brief", document="short", match={"kind": "note"})
LOST = scans(id="lost", document="nowhere", match={"kind": "lost"})
EARLY = scans(id="early", unmatched=Defer(HOUR, 2), match={"kind": "early"})
BINDINGS = [SCANS, AUDIT, ONCE, BRIEF, LOST, EARLY]

ROUTES = {"notices": OutboxRoute("notices"), "records": RecordRoute("parcel", record_id="parcel")}


def _config(database, make_config, **kw):
    kw.setdefault("charts", CHARTS)
    kw.setdefault("routes", ROUTES)
    kw.setdefault("clock", lambda: NOW)
    return make_config(database, **kw)


# --- the property: as one by one ----------------------------------------------------------------------

dos = st.sampled_from(
    ["moved"] * 6
    + ["refused", "ignored", "failed", "raised", "finished", "noticed", "armed", "disarmed", "rearmed"]
    + ["erred", "mistyped", "recorded", "recorded"]
)
rare_dos = st.sampled_from(["moved", "moved", "lost", "told", "unrecorded"])
keys = st.sampled_from(["P1", "P1", "P2", "P3"])
scopes = st.sampled_from(["acme", "acme", "globex"])
ids = st.sampled_from([f"m-{n}" for n in range(8)])
instants = st.sampled_from([NOW, NOW, NOW, NOW + SECOND, NOW + HOUR, NOW + HOUR + SECOND])


def _delivery(message_id, scope, now, do):
    return Delivery(message_id, scope, now, {"do": do}, context={"trace": message_id})


def items(binding, do=dos, at=instants):
    return st.tuples(binding, keys, st.builds(_delivery, ids, scopes, at, do))


common = st.sampled_from([SCANS] * 4 + [AUDIT, ONCE, BRIEF, LOST])
before = st.lists(items(st.sampled_from([SCANS, SCANS, ONCE])), max_size=6)
held = st.lists(st.sampled_from(["P1", "P2"]), max_size=2)
# Most batches can be done as a set; some hold what cannot.
BATCHES = {
    "at one instant": st.lists(items(common, at=st.just(NOW)), min_size=batch_set.FEWEST, max_size=12),
    "at any instant": st.lists(items(common), min_size=1, max_size=12),
    "that reach further": st.lists(items(st.just(SCANS), st.one_of(dos, rare_dos)), min_size=1, max_size=8),
    "with early events": st.lists(items(st.sampled_from([SCANS, EARLY])), min_size=1, max_size=8),
}


def _prepare(config, prelude, suspended):
    """What stands before the batch."""
    for item in prelude:
        try:
            deliver(config, *item)
        except DeliveryError:
            continue
    for key in suspended:
        found = addresses.find(config, "acme", "parcel", key)
        if found is not None:
            executions.suspend(config, found.execution_id)


def _one_by_one(config, batch):
    answers = []
    for item in batch:
        try:
            answers.append(deliver(config, *item))
        except DeliveryError as error:
            answers.append(error)
    return answers


def _compared(database, config, prelude, suspended, many, singly):
    told = []
    for act in (many, singly):
        database.clear()
        _prepare(config, prelude, suspended)
        told.append(spelled(config, act()))
    assert "\n".join(unlike(*told)) == ""


def _delivered_alike(database, config, prelude, suspended, batch):
    _compared(
        database,
        config,
        prelude,
        suspended,
        lambda: deliver_many(config, batch),
        lambda: _one_by_one(config, batch),
    )


@pytest.fixture
def sets(monkeypatch):
    """How many batches were tried as a set, and how many were done so."""
    count = Counter()
    as_set = batch_set.deliver

    def counted(*args, **kw):
        count["tried"] += 1
        answers = as_set(*args, **kw)
        count["done"] += 1
        return answers

    monkeypatch.setattr(batch_set, "deliver", counted)
    return count


def _checked(examples, check, **strategies):
    """Have `check` hold for random examples."""
    quiet = settings(max_examples=examples, deadline=None, phases=[Phase.explicit, Phase.generate])
    quiet(given(**strategies)(check))()


@pytest.mark.parametrize(("kind", "examples"), [("sqlite", 80), ("postgresql", 30)])
@pytest.mark.parametrize("batches", BATCHES)
def test_many_are_delivered_as_one_by_one(request, make_config, sets, kind, examples, batches):
    """Random batches with duplicates, failures, ended and suspended executions: same outcomes, same rows."""
    database = request.getfixturevalue(kind)
    config = _config(database, make_config)
    _checked(
        examples,
        lambda prelude, suspended, batch: _delivered_alike(database, config, prelude, suspended, batch),
        prelude=before,
        suspended=held,
        batch=BATCHES[batches],
    )
    print(f"{kind}, {batches}: {sets['done']} of {sets['tried']} done as a set")
    if kind == "postgresql" and batches == "at one instant":
        # What batches are drawn is chance; each is large enough to be tried, and a third or more can be done.
        assert sets["tried"] >= examples
        assert sets["done"] > examples / 8


# --- route_many ---------------------------------------------------------------------------------------

messages = st.lists(
    st.builds(
        lambda source, message_id, parcel, scope, kind, do: attrs.evolve(
            message(message_id, parcel, scope=scope, kind=kind, do=do), source=source
        ),
        st.sampled_from(["carrier"] * 6 + ["nobody"]),
        ids,
        st.sampled_from(["P1", "P1", "P2", 7]),
        scopes,
        st.sampled_from(["scan", "letter", "note", "lost", "early"]),
        dos,
    ),
    min_size=1,
    max_size=8,
)


def _routed_one_by_one(config, batch):
    answers = []
    for each in batch:
        try:
            answers.append(Routed(each, route(config, each)))
        except DeliveryError as error:
            answers.append(Routed(each, list(error.outcomes), error))
    return answers


def _parts(answers):
    """Outcomes and errors alone: a `Routed` bears its error as an object."""
    return [part for each in answers for part in (*each.outcomes, each.error or "no error")]


@pytest.mark.parametrize(("kind", "examples"), [("sqlite", 60), ("postgresql", 30)])
def test_many_are_routed_as_one_by_one(request, make_config, sets, kind, examples):
    """Every binding of every message: matches, refusals, faults that end a message, messages nobody takes."""
    database = request.getfixturevalue(kind)
    config = _config(database, make_config, bindings=BINDINGS)
    _checked(
        examples,
        lambda prelude, suspended, batch: _compared(
            database,
            config,
            prelude,
            suspended,
            lambda: _parts(route_many(config, batch)),
            lambda: _parts(_routed_one_by_one(config, batch)),
        ),
        prelude=before,
        suspended=held,
        batch=messages,
    )
    print(f"{kind}: {sets['done']} of {sets['tried']} done as a set")


def test_what_route_many_answers(config):
    """One `Routed` a message, in order, with the message itself; a failed one ends at its fault."""
    given_messages = [message("m-1"), message("m-2", parcel=7), message("m-3", do="failed"), message("m-4")]
    config = attrs.evolve(config, bindings=[SCANS, scans(id="picky", match={"kind": "wanted"})])
    routed = route_many(config, given_messages, now=NOW)
    assert [each.message for each in routed] == given_messages
    assert [[outcome.recorded for outcome in each.outcomes] for each in routed] == [
        ["created_and_delivered", "no_match"],
        ["key_refused", "no_match"],
        [],
        ["delivered", "no_match"],
    ]
    assert [type(each.error) for each in routed] == [type(None), type(None), StepFailed, type(None)]
    assert isinstance(routed[1].outcomes[0], KeyRefused)
    assert routed[0].outcomes[1] == NoMatch("picky")
    assert {row.inserted_at for row in ledger.rows(config)} == {NOW}


def test_a_fault_ends_its_message_and_no_other(config):
    """Bindings before the fault stay delivered, those behind it take no claim; the next message goes on."""
    bindings = [SCANS, LOST, scans(id="last")]
    config = attrs.evolve(config, bindings=bindings)
    [first, second, third] = route_many(
        config, [message("m-1", kind="lost"), message("m-2", parcel="P8"), message("m-3", parcel="P8")]
    )
    assert [outcome.binding_id for outcome in first.outcomes] == ["scans"]
    assert isinstance(first.error, UnresolvedDocument)
    assert (first.error.binding_id, first.error.outcomes) == ("lost", tuple(first.outcomes))
    assert [each.recorded for each in second.outcomes] == ["created_and_delivered", "no_match", "delivered"]
    assert third.error is None
    claimed = {(row["binding_id"], row["message_id"]) for row in everything(config).claims}
    assert claimed == {("scans", "m-1")} | {(id, n) for id in ("scans", "last") for n in ("m-2", "m-3")}


def test_a_resolver_of_bindings_is_asked_once_a_scope(default, make_config):
    """Before the transaction is opened, so that it may use the pool's only connection."""
    asked = []

    def bindings(scope):
        asked.append(scope)
        return [SCANS]

    engine = default.engine(pool_size=1, max_overflow=0)
    config = _config(default, make_config, engine=engine, bindings_resolver=bindings)
    routed = route_many(
        config,
        [message("m-1"), message("m-2", scope="globex"), message("m-3"), message("m-4", parcel="P8")],
    )
    assert [each.outcomes[0].recorded for each in routed] == ["created_and_delivered"] * 2 + [
        "delivered",
        "created_and_delivered",
    ]
    assert asked == ["acme", "globex"]


# --- what a batch is ----------------------------------------------------------------------------------


def item(key="P7", message_id="m-1", do="moved", *, binding=SCANS, scope="acme", now=NOW):
    return binding, key, Delivery(message_id, scope, now, {"do": do})


def several(*dos, key="P7"):
    return [item(key, f"m-{n}", do) for n, do in enumerate(dos, 1)]


def test_no_item_opens_nothing(config):
    """An empty batch answers an empty list, and asks no database."""
    config.engine.dispose()
    assert deliver_many(config, []) == []
    assert route_many(config, []) == []
    assert config.engine.pool.checkedin() == 0


def test_two_messages_for_one_execution(config):
    """They are stepped in the order of the items, whatever is between; each is an input of its own."""
    batch = [item("P7", "m-1"), item("P8", "m-2"), item("P7", "m-3", "erred"), item("P7", "m-4")]
    first, second, third, fourth = deliver_many(config, batch)
    assert first == CreatedAndDelivered("scans", first.execution_id)
    assert second == CreatedAndDelivered("scans", second.execution_id)
    assert third == fourth == Delivered("scans", first.execution_id)
    execution = executions.fetch(config, first.execution_id)
    assert execution.position["seen"] == ["scanned:moved", "scanned:erred", "scanned:moved"]
    assert execution.revision == 3
    log = executions.inputs(config, first.execution_id)
    assert [(row.seq, row.message_id, row.errors) for row in log] == [
        (0, "m-1", ()),
        (1, "m-1", ()),
        (2, "m-3", ("a guard failed",)),
        (3, "m-4", ()),
    ]


def test_a_failed_item_is_undone_alone(config):
    """Its error stands in its place, with its binding; its claim is free, and the others are done."""
    answers = deliver_many(config, several("moved", "failed", "moved", "raised", "moved"))
    assert [getattr(each, "recorded", type(each).__name__) for each in answers] == [
        "created_and_delivered",
        "StepFailed",
        "delivered",
        "StepFailed",
        "delivered",
    ]
    assert [answers[at].binding_id for at in (1, 3)] == ["scans", "scans"]
    assert isinstance(answers[3].__cause__, ValueError)
    assert {row["message_id"] for row in everything(config).claims} == {"m-1", "m-3", "m-5"}
    assert deliver(config, *item("P7", "m-2")) == Delivered("scans", answers[0].execution_id)


def test_a_failed_creation_leaves_no_address(config):
    """Neither the one that was to be created, nor one that a later item creates in its place."""
    batch = [item("P7", "m-1", "failed"), item("P8", "m-2"), item("P8", "m-3"), item("P9", "m-4", "failed")]
    with written(config) as rows:
        answers = deliver_many(config, batch)
    assert [type(each) for each in answers] == [StepFailed, CreatedAndDelivered, Delivered, StepFailed]
    assert [row["key"] for row in rows.added["addresses"]] == ["P8"]
    again = deliver_many(config, [item("P7", "m-1"), item("P9", "m-4"), item("P7", "m-5")])
    assert [each.recorded for each in again] == ["created_and_delivered"] * 2 + ["delivered"]
    later = deliver_many(config, [item("P6", "m-6", "failed"), item("P6", "m-7"), item("P5", "m-8")])
    assert [type(each) for each in later] == [StepFailed, CreatedAndDelivered, CreatedAndDelivered]


def test_an_expired_claim_of_a_failed_item_stands_as_it_was(config):
    """The claim that a failed delivery would have renewed keeps its expiry and its digest."""
    deliver(config, *item("P7", "m-2"))
    before = everything(config).claims
    late = NOW + 2 * HOUR
    batch = [item("P7", "m-1", now=late), item("P7", "m-2", "failed", now=late), item("P8", "m-3", now=late)]
    answers = deliver_many(config, batch)
    assert [type(each) for each in answers] == [Delivered, StepFailed, CreatedAndDelivered]
    assert [row for row in everything(config).claims if row["message_id"] == "m-2"] == before


def test_a_duplicate_within_the_batch(config):
    """The second is a duplicate of the first, and says where its content differs."""
    batch = [item("P7", "m-1"), item("P7", "m-1"), item("P8", "m-1"), item("P7", "m-2")]
    first, *rest = deliver_many(config, batch)
    assert rest == [
        Duplicate("scans"),
        Duplicate("scans", content_differs=True),
        Delivered("scans", first.execution_id),
    ]
    again = deliver_many(config, batch)
    assert [each.recorded for each in again] == ["duplicate"] * 4
    assert [each.content_differs for each in again] == [False, False, True, False]
    reasons = [row.reason for row in ledger.rows(config, outcome="duplicate")]
    assert reasons == [None, "content differs", None, None, "content differs", None]


def test_an_execution_that_ends_within_the_batch(config):
    """What comes after its end is dropped, and stamps the address with the instant of the first such."""
    batch = [item("P7", "m-1", "finished")]
    batch += [item("P7", f"m-{n}", now=NOW + n * SECOND) for n in (2, 3)]
    answers = deliver_many(config, batch)
    assert [each.recorded for each in answers] == ["created_and_delivered"] + ["dropped: finished"] * 2
    found = addresses.find(config, "acme", "parcel", "P7")
    assert found.terminal_seen_at == NOW + 2 * SECOND


# --- bad input, and a host's own faults -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        ("P7", ConfigError, "items[1] must be a tuple of a Binding, a key and a Delivery"),
        ((SCANS, "P7"), ConfigError, "items[1] must be a tuple of a Binding, a key and a Delivery"),
        (("scans", "P7", delivery()), ConfigError, "items[1]: binding must be a Binding, not str"),
        ((SCANS, 7, delivery()), KeyInvalid, "items[1]: key must be text, not int"),
        ((SCANS, "", delivery()), KeyInvalid, "items[1]: key must not be empty"),
        ((SCANS, "P7", message()), MessageError, "items[1]: delivery must be a Delivery, not Message"),
    ],
)
def test_a_faulty_item_is_named_before_anything_is_written(config, bad, error, says):
    with written(config) as rows, pytest.raises(error) as raised:
        deliver_many(config, [item(), bad, item("P8", "m-2")])
    assert str(raised.value).startswith(says)
    assert rows.nothing


def test_a_faulty_message_is_named_before_anything_is_written(config):
    config = attrs.evolve(config, bindings=[SCANS])
    with written(config) as rows:
        with pytest.raises(MessageError, match=r"^messages\[1\] must be a Message, not dict$"):
            route_many(config, [message(), {}])
        with pytest.raises(MessageError, match=r"^now must be an aware datetime"):
            route_many(config, [message()], now=NOW.replace(tzinfo=None))
        with pytest.raises(ConfigError, match=r"^messages must be a sequence, not int$"):
            route_many(config, 5)
        with pytest.raises(ConfigError, match=r"^items must be a sequence, not str$"):
            deliver_many(config, "items")
        with pytest.raises(ConfigError, match=r"^config must be a Config"):
            deliver_many(None, [])
    assert rows.nothing


@pytest.mark.parametrize("fault", ["chart", "bindings"])
def test_a_fault_of_the_host_takes_the_batch_with_it(default, make_config, fault):
    """It comes out as it was raised, with a note that names the item; nothing was written."""
    asked = Asked(parcel=HANDING)

    def bindings(scope):
        if scope == "broken":
            raise RuntimeError("the resolver is down")
        return [SCANS]

    config = _config(default, make_config, charts=asked, bindings_resolver=bindings)
    if fault == "chart":
        asked.failures.append(RuntimeError("the resolver is down"))
    scope = "broken" if fault == "bindings" else "acme"
    with written(config) as rows, pytest.raises(RuntimeError) as raised:
        route_many(config, [message(), message("m-2", scope=scope), message("m-3")])
    at = 0 if fault == "chart" else 1
    assert raised.value.__notes__ == [
        f"statifier_router: raised at messages[{at}]; nothing of the batch was written"
    ]
    assert rows.nothing


def test_an_unresolved_document_is_an_item_s_own_fault(default, make_config):
    """As it is for one: the binding's fault, in the place of its outcome."""
    asked = Asked(parcel=HANDING)
    asked.failures.append(Unresolved("not yet"))
    config = _config(default, make_config, charts=asked)
    answers = deliver_many(config, [item(), item("P8", "m-2"), item("P8", "m-3")])
    assert [type(each) for each in answers] == [UnresolvedDocument, CreatedAndDelivered, Delivered]


def test_an_id_that_is_minted_twice(default, make_config):
    """The second creation fails alone."""
    config = _config(default, make_config, mint_execution_id=lambda scope, document, key: f"run of {key[0]}")
    answers = deliver_many(config, [item("A1", "m-1"), item("A2", "m-2"), item("B1", "m-3")])
    assert [type(each) for each in answers] == [CreatedAndDelivered, ExecutionExists, CreatedAndDelivered]
    later = deliver_many(config, [item("B2", "m-4"), item("C1", "m-5"), item("C1", "m-6")])
    assert [type(each) for each in later] == [ExecutionExists, CreatedAndDelivered, Delivered]


def test_ids_are_minted_for_creations_alone(default, make_config):
    """A host's own function is asked once for each execution that is created, in the order of the items."""
    minted = []

    def mint(scope, document, key):
        minted.append(key)
        return f"run-{len(minted)}"

    config = _config(default, make_config, mint_execution_id=mint)
    deliver(config, *item("P7", "m-0"))
    batch = [item("P9", "m-1"), item("P7", "m-2"), item("P8", "m-3"), item("P9", "m-4"), item("P6", "m-3")]
    assert [each.recorded for each in deliver_many(config, batch)] == [
        "created_and_delivered",
        "delivered",
        "created_and_delivered",
        "delivered",
        "duplicate",
    ]
    assert minted == ["P7", "P9", "P8"]


def test_an_address_whose_execution_is_gone(config):
    """Each of its messages fails, the others are done."""
    (created,) = deliver_many(config, [item()])
    with config.engine.begin() as connection:
        for table in (config.schema.executions, config.schema.inputs):
            connection.execute(table.delete())
    answers = deliver_many(config, [item("P7", "m-2"), item("P7", "m-3"), item("P8", "m-4")])
    assert [type(each) for each in answers] == [ExecutionNotFound] * 2 + [CreatedAndDelivered]
    assert answers[0].execution_id == created.execution_id


# --- around, routes, nesting --------------------------------------------------------------------------


def test_around_delivery_is_called_once_an_item(default, make_config):
    """With the door that the item would have been handed to, and what that would have answered."""
    seen = []

    def around(scope, door, work):
        try:
            answer = work()
        except DeliveryError as error:
            seen.append((scope, door, type(error).__name__))
            raise
        seen.append((scope, door, answer))
        return answer

    config = _config(default, make_config, around_delivery=around, bindings=[SCANS])
    first, _, third = deliver_many(config, [*several("moved", "failed"), item("P8", "m-3", scope="globex")])
    assert seen == [
        ("acme", "deliver", first),
        ("acme", "deliver", "StepFailed"),
        ("globex", "deliver", third),
    ]
    seen.clear()
    routed = route_many(config, [message("m-4"), message("m-5", do="failed"), message("m-6", parcel=7)])
    assert seen == [
        ("acme", "route", routed[0].outcomes),
        ("acme", "route", "StepFailed"),
        ("acme", "route", routed[2].outcomes),
    ]


def test_a_route_may_not_call_a_batch(default, make_config):
    """As it may call no other door; where it lets the error escape, the delivery that called it fails."""
    caught = []

    def hand_off(event, key, context):
        for act in (lambda: deliver_many(config, [item("P9", "m-9")]), lambda: route_many(config, [])):
            try:
                act()
            except ReentrantRoute as error:
                caught.append(error.execution_id)

    config = _config(default, make_config, routes={"notices": hand_off})
    answers = deliver_many(config, [item("P7", "m-1", "noticed"), item("P8", "m-2"), item("P7", "m-3")])
    assert [each.recorded for each in answers] == ["created_and_delivered"] * 2 + ["delivered"]
    assert set(caught) == {answers[0].execution_id}
    assert addresses.find(config, "acme", "parcel", "P9") is None


@pytest.mark.parametrize("plan", ["default", "own"])
def test_a_host_s_route_sees_the_items_before_it(default, make_config, plan):
    """A batch that reaches further than our own rows goes item by item: what is before it stands there."""
    seen = []

    def hand_off(event, key, context):
        own = executions.fetch(config, first[0], connection=context.connection)
        seen.append(own and own.revision)

    first = []
    config = _config(
        default,
        make_config,
        routes={"notices": hand_off},
        executor=WritingPlainly() if plan == "own" else None,
    )
    first.append(deliver(config, *item("P7", "m-0")).execution_id)
    batch = [item("P7", "m-1"), item("P8", "m-2", "noticed"), item("P7", "m-3"), item("P8", "m-4", "noticed")]
    deliver_many(config, batch)
    assert seen == [2, 3]


@pytest.mark.parametrize("swallows", [False, True])
def test_a_chart_that_calls_a_door(default, make_config, swallows):
    """Its step joins the transaction and finds what the batch has done: the same as one by one."""
    calling = Calling()
    config = _config(default, make_config, charts=registry(parcel=HANDING, calling=calling))
    caller = scans(id="caller", document="calling", event="go")
    told = []

    def hook(position, event, now):
        if event.name != "go":
            return
        try:
            answer = deliver(config, *item("P7", "m-9"))
        except BaseException:
            if not swallows:
                raise
        else:
            told.extend([answer.recorded, addresses.find(config, "acme", "parcel", "P7") is not None])

    with calling.calling(hook):
        answers = deliver_many(
            config,
            [item("P7", "m-1"), item("C1", "m-2", binding=caller), item("P7", "m-3"), item("P8", "m-4")],
        )
    assert [each.recorded for each in answers] == [
        "created_and_delivered",
        "created_and_delivered",
        "delivered",
        "created_and_delivered",
    ]
    assert told == ["delivered", True]
    seen = executions.fetch(config, answers[0].execution_id).position["seen"]
    assert len(seen) == 3


def test_a_batch_inside_a_step(default, make_config):
    """It joins the transaction in force; a failed item of it is undone alone, with the rest of it kept."""
    calling = Calling()
    config = _config(default, make_config, charts=registry(parcel=HANDING, calling=calling))
    caller = scans(id="caller", document="calling", event="go")
    told = []

    def hook(position, event, now):
        told.extend(deliver_many(config, several("moved", "failed", "moved", "moved")))

    with calling.calling(hook):
        deliver(config, *item("C1", "m-0", binding=caller))
    assert [type(each) for each in told] == [CreatedAndDelivered, StepFailed, Delivered, Delivered]


# --- other transactions -------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_borrowed_transaction(config, ending):
    """The batch joins it, and is committed or undone with it; a failed item leaves it usable."""
    batch = several("moved", "failed", "moved", "moved")
    with config.engine.connect() as connection:
        answers = deliver_many(config, batch, connection=connection)
        assert [type(each) for each in answers] == [CreatedAndDelivered, StepFailed, Delivered, Delivered]
        routed = route_many(attrs.evolve(config, bindings=[SCANS]), [message("m-9")], connection=connection)
        assert routed[0].error is None
        assert everything(config).empty
        getattr(connection, ending)()
    assert everything(config).empty == (ending == "rollback")


def test_a_fault_of_the_host_leaves_a_borrowed_transaction_usable(default, make_config):
    """The whole batch is undone, and nothing of the caller's."""
    asked = Asked(parcel=HANDING)
    config = _config(default, make_config, charts=asked)
    asked.failures.append(RuntimeError("the resolver is down"))
    with config.engine.connect() as connection:
        deliver(attrs.evolve(config, charts=CHARTS), *item("P1", "m-0"), connection=connection)
        with pytest.raises(RuntimeError):
            deliver_many(config, [*several("moved", "moved"), item("P8", "m-3")], connection=connection)
        connection.commit()
    assert [row["key"] for row in everything(config).addresses] == ["P1"]


def test_a_stricter_transaction(postgresql, make_config):
    """What is refused there is refused for the item that asks for it."""
    config = _config(postgresql, make_config)
    with config.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        batch = [item("P7", "m-1"), item("P7", "m-2", binding=AUDIT), item("P8", "m-3"), item("P7", "m-4")]
        answers = deliver_many(config, batch, connection=connection)
        connection.commit()
    kinds = [CreatedAndDelivered, IsolationConflict, CreatedAndDelivered, Delivered]
    assert [isinstance(each, kind) for each, kind in zip(answers, kinds, strict=True)] == [True] * 4
    assert not answers[1].retryable


def test_a_writer_that_waits_on_sqlite(sqlite, make_config):
    """SQLite's one wait is before the batch begins: it is the whole batch that is busy."""
    config = _config(sqlite, make_config, lock_timeout=MOMENT)
    with open_transaction(config) as (connection, _):
        deliver(config, *item("P1", "m-0"), connection=connection)
        with pytest.raises(ExecutionBusy):
            deliver_many(config, several("moved", "moved"))
        connection.rollback()
    assert everything(config).empty


# --- events that are kept -----------------------------------------------------------------------------


@pytest.mark.parametrize("resolved", [False, True])
def test_events_kept_by_an_address_are_taken_by_the_creation(default, make_config, resolved):
    """A batch that creates finds what was kept for it, and offers it after the very step."""
    waiting = scans(id="waiting", create="never", missing=Defer(HOUR))
    given = [SCANS, waiting]
    config = _config(
        default,
        make_config,
        **({"bindings_resolver": lambda scope: given} if resolved else {"bindings": given}),
    )
    assert deliver(config, *item("P7", "m-0", binding=waiting)) == Deferred("waiting", None)
    answers = deliver_many(
        config, [item("P8", "m-1"), item("P7", "m-2"), item("P7", "m-3"), item("P8", "m-4")]
    )
    assert [each.recorded for each in answers] == ["created_and_delivered"] * 2 + ["delivered"] * 2
    log = executions.inputs(config, answers[1].execution_id)
    assert [(row.door, row.message_id) for row in log] == [
        ("create", "m-2"),
        ("deliver", "m-2"),
        ("deferred", "m-0"),
        ("deliver", "m-3"),
    ]


def test_events_kept_for_an_execution_are_offered_within_the_batch(config):
    """After each step of their execution, before the next item."""
    early = scans(id="early", unmatched=Defer(HOUR))
    deliver(config, *item("P7", "m-1"))
    assert isinstance(deliver(config, *item("P7", "m-2", "refused", binding=early)), Deferred)
    answers = deliver_many(config, [item("P8", "m-3"), item("P7", "m-4"), item("P7", "m-5", binding=early)])
    assert [each.recorded for each in answers] == ["created_and_delivered", "delivered", "delivered"]
