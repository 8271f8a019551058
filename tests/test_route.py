"""`route`: which bindings see a message, in which order, and what becomes of it where none takes it."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import pytest
from sqlalchemy import event as sa_event
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import QueuePool

from statifier_router import (
    WHOLE,
    BindingError,
    ChartRegistry,
    ConfigError,
    CreatedAndDelivered,
    Dedupe,
    Delivered,
    Dropped,
    Duplicate,
    KeyRefused,
    NoMatch,
    StepFailed,
    UnresolvedDocument,
    executions,
    join,
    ledger,
    route,
)
from tests.support.charts import NOW, Calling, message, obedient, registry, scans
from tests.support.rows import everything, written


@pytest.fixture
def configure(database, make_config):
    """`configure(*bindings, **kw)`: a configuration with these bindings, on each database."""

    def make(*bindings, **kw):
        kw.setdefault("charts", registry(parcel=obedient()))
        return make_config(database, bindings=bindings, **kw)

    return make


def recorded(outcomes):
    return [(outcome.binding_id, outcome.recorded) for outcome in outcomes]


# --- §1.3: which bindings, in which order -----------------------------------------------------------


def test_bindings_are_tried_in_configuration_order(configure):
    """Every enabled binding of the message's source answers once, in the order of the configuration;
    a disabled one, or one of another source, sees nothing.
    """
    seen = []

    def noting(name):
        def match(view):
            seen.append(name)
            return True

        return match

    config = configure(
        scans(id="z", match=noting("z")),
        scans(id="off", match=noting("off"), enabled=False),
        scans(id="other", match=noting("other"), source="Carrier"),
        scans(id="a", match=noting("a")),
        scans(id="no", match={"kind": "letter"}),
    )
    outcomes = route(config, message())
    assert recorded(outcomes) == [("z", "created_and_delivered"), ("a", "delivered"), ("no", "no_match")]
    assert seen == ["z", "a"]
    assert outcomes[1] == Delivered("a", outcomes[0].execution_id)


def test_each_binding_is_a_transaction_of_its_own(configure):
    """What an earlier binding did is committed before a later one is evaluated."""
    counts = []

    def looking(view):
        counts.append(everything(config).counts()["executions"])
        return True

    config = configure(scans(id="first"), scans(id="second", key=lambda view: "P8", match=looking))
    route(config, message())
    assert counts == [1]


def test_no_match_writes_nothing(configure):
    """`NoMatch` is returned and writes no row of its own."""
    config = configure(scans(), scans(id="letters", match={"kind": "letter"}))
    with written(config) as rows:
        assert route(config, message())[1] == NoMatch("letters")
    assert [row["binding_id"] for row in rows.added["ledger"]] == ["scans"]


@pytest.mark.parametrize(
    "match",
    [
        lambda view: False,
        lambda view: None,
        lambda view: view.depot == "Lyon",
        lambda view: view["depot"]["name"] == "Lyon",
        {"depot": "Lyon"},
    ],
)
def test_not_for_this_binding(configure, match):
    """False, None and a missing field mean "not for this binding"."""
    config = configure(scans(match=match))
    assert route(config, message()) == [NoMatch("scans")]


def _raises(view):
    raise RuntimeError("the matcher broke")


@pytest.mark.parametrize(
    "match", [lambda view: 1, lambda view: "true", lambda view: math.nan, lambda view: [], _raises]
)
def test_match_is_refused(configure, match):
    """Trap 23. A match that answers 1, "true", NaN or anything but True, False and None, or raises, is
    refused, not held: a ledger row with the reason, and nothing else.
    """
    config = configure(scans(match=match))
    with written(config) as rows:
        (refused,) = route(config, message(), now=NOW)
    assert (refused.binding_id, refused.stage, refused.recorded) == ("scans", "match", "key_refused")
    assert refused.detail
    assert rows.summary() == "+ledger"
    row = rows.one("ledger")
    assert (row["binding_id"], row["message_id"], row["scope"]) == ("scans", "m-1", "acme")
    assert (row["outcome"], row["key"], row["execution_id"]) == ("key_refused", None, None)
    assert refused.detail in row["reason"]
    assert row["inserted_at"] == NOW


@pytest.mark.parametrize(
    "value",
    [None, 7, True, "", [], {}, "x" * 513, "é" * 257, "a\x00b", 1.5],
    ids=lambda value: repr(value)[:10],
)
def test_key_is_refused(configure, value):
    """A key is non-empty text within its limit, never cast, trimmed or invented: anything else is
    `KeyRefused(stage="key")`, whose detail names `join` where the value is not text.
    """
    config = configure(scans(), scans(id="called", key=lambda view: view["parcel"]))
    with written(config) as rows:
        outcomes = route(config, message(parcel=value))
    assert [(each.stage, each.recorded) for each in outcomes] == [("key", "key_refused")] * 2
    assert rows.summary() == "+ledger +ledger"
    assert [row["key"] for row in rows.added["ledger"]] == [None, None]
    if not isinstance(value, str | list | dict):
        assert "join" in outcomes[0].detail


def test_a_key_that_is_absent_or_raises(configure):
    """A missing field is no key; an error out of a key is a refusal too."""
    config = configure(scans(key="depot"), scans(id="called", key=_raises), scans(id="joined", key=join("n")))
    outcomes = route(config, message())
    assert [each.stage for each in outcomes] == ["key", "key", "key"]
    assert "depot" in outcomes[0].detail
    assert "the matcher broke" in outcomes[1].detail


def test_a_key_at_its_limit_is_taken_as_it_is(configure):
    """512 bytes are a key; nothing is trimmed."""
    config = configure(scans())
    for number, key in enumerate(["x" * 512, " P7 ", "P7"]):
        route(config, message(f"m-{number}", parcel=key))
    assert [row["key"] for row in everything(config).addresses] == ["x" * 512, " P7 ", "P7"]


def test_a_refusal_does_not_stop_the_others(configure):
    """A binding that refuses leaves its ledger row; the next ones are delivered."""
    config = configure(scans(id="first"), scans(id="second", key="depot"), scans(id="third"))
    assert recorded(route(config, message())) == [
        ("first", "created_and_delivered"),
        ("second", "key_refused"),
        ("third", "delivered"),
    ]
    assert [row.binding_id for row in ledger.rows(config)] == ["first", "second", "third"]


def test_a_refusal_is_taken_again(configure):
    """A refusal takes no claim: redelivered, it is refused again, and once mended it is delivered."""
    config = configure(scans(key="depot"))
    assert [route(config, message())[0].recorded for _ in range(2)] == ["key_refused"] * 2
    assert everything(config).claims == []


# --- §1.3: the projection ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ((), {}),
        (("kind",), {"kind": "scan"}),
        (("parcel.state", "parcel.depot.name"), {"parcel": {"state": "new", "depot": {"name": "Lyon"}}}),
        (("nothing", "kind.inside", "parcel.absent.deeper"), {}),
        (("null",), {"null": None}),
        ((("with.dot",),), {"with.dot": 1}),
        (WHOLE, "all"),
    ],
)
def test_the_projection(configure, paths, expected):
    """Data is read by paths and written back nested; a missing path is left out, a present null carried;
    nothing else of the message reaches the chart.
    """
    data = {
        "kind": "scan",
        "parcel": {"state": "new", "depot": {"name": "Lyon", "zip": "69001"}},
        "null": None,
        "with.dot": 1,
        "id": "P7",
    }
    chart = Calling()
    config = configure(scans(key="id", data=paths), charts=registry(parcel=chart))
    handed = []
    with chart.calling(lambda position, event, now: handed.append(event)):
        (outcome,) = route(config, type(message())("carrier", "m-1", "acme", data))
    (event,) = handed
    assert event.name == "scanned"
    assert event.data == (data if expected == "all" else expected)
    assert executions.inputs(config, outcome.execution_id)[1].event == event


def test_a_chart_may_change_what_it_is_handed(configure):
    """A chart that changes its event's data changes neither what the next binding hands on nor the log."""
    chart = Calling()

    def spoil(position, event, now):
        event.data["nested"]["list"].append("spoilt")

    config = configure(scans(data=WHOLE), scans(id="second", data=WHOLE), charts=registry(parcel=chart))
    with chart.calling(spoil):
        (first, _) = route(config, message(nested={"list": []}))
    events = [row.event.data["nested"] for row in executions.inputs(config, first.execution_id)[1:]]
    assert events == [{"list": []}, {"list": []}]


# --- §1.4: refusals that cannot be written ----------------------------------------------------------


def test_a_refusal_that_cannot_be_written(database, configure):
    """`KeyRefused` is answered only where its row was written: else `route` raises."""
    config = configure(scans(key="depot"))
    statements = {
        "sqlite": [
            (
                "CREATE TRIGGER no_rows BEFORE INSERT ON statifier_router_ledger"
                " BEGIN SELECT RAISE(ABORT, 'not now'); END"
            )
        ],
        "postgresql": ["ALTER TABLE statifier_router_ledger ADD CONSTRAINT no_rows CHECK (false)"],
    }[database.kind]
    with config.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    with pytest.raises(DBAPIError):
        route(config, message())


def test_a_refusal_asks_for_one_connection(database, make_config):
    """Trap 17, second half. With a pool of one connection a refused key, an unrouted message and a
    delivery never ask for a second one.
    """
    engine = database.engine(poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01)
    config = make_config(
        database,
        engine=engine,
        charts=registry(parcel=obedient()),
        bindings=[
            scans(),
            scans(id="refusing", key="depot"),
            scans(id="mute", source="mute", match={"a": 1}),
        ],
    )
    taken = []
    sa_event.listen(engine, "checkout", lambda *_: taken.append(1))
    sa_event.listen(engine, "checkin", lambda *_: taken.pop())
    assert recorded(route(config, message())) == [
        ("scans", "created_and_delivered"),
        ("refusing", "key_refused"),
    ]
    route(config, type(message())("mute", "m-1", "acme", {}))
    assert taken == []
    with engine.begin() as connection:
        assert recorded(route(config, message("m-2"), connection=connection))[1][1] == "key_refused"
        assert len(taken) == 1


# --- §1.5: unrouted messages ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bindings",
    [
        [],
        [scans(source="Carrier")],
        [scans(enabled=False)],
        [scans(match={"kind": "letter"})],
        [scans(match={"kind": "letter"}), scans(id="b", match=lambda view: None)],
    ],
    ids=["none", "another source", "disabled", "no match", "no match, twice"],
)
def test_unrouted(configure, bindings):
    """A message that no binding took leaves one `unrouted` row, once a message; the answer stays the
    list of its outcomes.
    """
    config = configure(*bindings)
    with written(config) as rows:
        outcomes = route(config, message(), now=NOW)
    assert all(isinstance(outcome, NoMatch) for outcome in outcomes)
    assert len(outcomes) == sum(each.enabled and each.source == "carrier" for each in bindings)
    assert rows.summary() == "+ledger"
    row = rows.one("ledger")
    assert (row["binding_id"], row["message_id"], row["scope"]) == (None, "m-1", "acme")
    assert (row["outcome"], row["key"], row["execution_id"]) == ("unrouted", None, None)
    assert "carrier" in row["reason"]
    assert row["inserted_at"] == NOW


@pytest.mark.parametrize("bindings", [[], [scans(match={"kind": "letter"})]])
def test_unrouted_is_not_recorded(configure, bindings):
    """`record_unrouted=False`: a fire hose leaves nothing."""
    config = configure(*bindings, record_unrouted=False)
    with written(config) as rows:
        route(config, message())
    assert rows.nothing


def test_a_refused_message_is_not_unrouted(configure):
    """A binding that refused a message has seen it: there is its row, and none that says unrouted."""
    config = configure(scans(key="depot"), scans(id="letters", match={"kind": "letter"}))
    route(config, message())
    assert [row.outcome for row in ledger.rows(config)] == ["key_refused"]


# --- §1.6: errors -----------------------------------------------------------------------------------


def test_an_error_in_the_second_of_three_bindings(configure):
    """Trap 19. The first stays committed and stands on the error, the third is not evaluated; handed over
    again, the first is a duplicate.
    """
    seen = []

    def noting(view):
        seen.append(1)
        return True

    config = configure(scans(id="a"), scans(id="b", document="letter"), scans(id="c", match=noting))
    with pytest.raises(UnresolvedDocument) as raised:
        route(config, message())
    (first,) = raised.value.outcomes
    assert first.recorded == "created_and_delivered"
    assert (raised.value.binding_id, raised.value.document, seen) == ("b", "letter", [])
    assert [row.binding_id for row in ledger.rows(config)] == ["a"]
    config.charts.publish("letter", obedient("letter"))
    assert recorded(route(config, message())) == [
        ("a", "duplicate"),
        ("b", "created_and_delivered"),
        ("c", "delivered"),
    ]


def test_an_error_in_the_first_binding(configure):
    """With nothing committed before it, `outcomes` is empty."""
    config = configure(scans(event="raised", data=()), scans(id="b"))
    with written(config) as rows, pytest.raises(StepFailed) as raised:
        route(config, message())
    assert list(raised.value.outcomes) == []
    assert rows.nothing


def test_outcomes_of_every_kind_stand_on_the_error(configure):
    """`outcomes` tells refusals, drops and answers of no match as well, in order."""
    config = configure(
        scans(id="a", match={"kind": "letter"}),
        scans(id="b", key="depot"),
        scans(id="c", create="never"),
        scans(id="d", document="letter"),
    )
    with pytest.raises(UnresolvedDocument) as raised:
        route(config, message())
    assert [type(each) for each in raised.value.outcomes] == [NoMatch, KeyRefused, Dropped]


def test_a_fault_that_is_not_ours_tells_what_was_done(configure):
    """A fault of the host's own propagates as it was raised; what was committed is added as a note."""
    failing = ChartRegistry()
    failing.publish("parcel", obedient())

    def resolver(scope, document):
        if document == "letter":
            raise LookupError("no such place")
        return failing.resolve(scope, document)

    config = configure(
        scans(id="a"),
        scans(id="b", document="letter"),
        charts=None,
        resolver=resolver,
        chart_resolver=failing.by_hash,
    )
    with pytest.raises(LookupError, match="no such place") as raised:
        route(config, message())
    assert "a: created_and_delivered" in "".join(raised.value.__notes__)


def test_a_full_disk(sqlite, make_config):
    """A full disk is no transient fault: it comes out as SQLAlchemy raised it, after one try; nothing of
    that binding is there, and a note tells what the earlier ones had committed.
    """
    engine, tries = sqlite.engine(), []
    config = make_config(
        sqlite,
        engine=engine,
        charts=registry(parcel=obedient()),
        bindings=[scans(id="small"), scans(id="large", key=_counted(tries), data=WHOLE)],
    )

    def bound(opened, _):
        (pages,) = opened.execute("PRAGMA page_count").fetchone()
        opened.execute(f"PRAGMA max_page_count = {pages + 20}")

    sa_event.listen(engine, "connect", bound)
    with written(config) as rows, pytest.raises(OperationalError, match="full") as raised:
        route(config, message(text="x" * 500_000))
    assert "small: created_and_delivered" in "".join(raised.value.__notes__)
    assert [row["binding_id"] for row in rows.added["claims"] + rows.added["ledger"]] == ["small"] * 2
    assert len(tries) == 1


def _counted(tries):
    def key(view):
        tries.append(1)
        return "P8"

    return key


# --- §1.2: bindings by a resolver -------------------------------------------------------------------


def test_bindings_by_a_resolver(configure):
    """One call of the resolver a message, with its scope; each scope has bindings of its own."""
    asked = []

    def bindings_of(scope):
        asked.append(scope)
        return [scans()] if scope == "acme" else [scans(id="other"), scans(id="third")]

    config = configure(bindings_resolver=bindings_of)
    assert recorded(route(config, message())) == [("scans", "created_and_delivered")]
    assert recorded(route(config, message("m-2", scope="globex"))) == [
        ("other", "created_and_delivered"),
        ("third", "delivered"),
    ]
    assert asked == ["acme", "globex"]


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (None, "NoneType"),
        ("scans", "str"),
        ([scans(), scans()], "'scans'"),
        ([scans(), "scans"], "str"),
        ({"scans": scans()}, "dict"),
        (iter([scans()]), "iterator"),
    ],
)
def test_a_resolver_that_answers_something_else(configure, answer, word):
    """Its answer is checked as `Config` checks the list: `ConfigError`, and nothing is written."""
    config = configure(bindings_resolver=lambda scope: answer)
    with written(config) as rows, pytest.raises(ConfigError, match=word) as raised:
        route(config, message())
    assert rows.nothing
    assert "bindings_resolver" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_resolver_that_raises(configure):
    """What a resolver raises comes out as it is; nothing is written."""

    def bindings_of(scope):
        raise BindingError("id must not be empty")

    config = configure(bindings_resolver=bindings_of)
    with written(config) as rows, pytest.raises(BindingError):
        route(config, message())
    assert rows.nothing


def test_a_resolver_that_knows_none(configure):
    """A scope without bindings leaves the message unrouted."""
    config = configure(bindings_resolver=lambda scope: ())
    assert route(config, message()) == []
    assert [row.outcome for row in ledger.rows(config)] == ["unrouted"]


# --- one instant a call -----------------------------------------------------------------------------


def test_one_instant_a_call(configure):
    """The clock is asked once a `route`; every row of every binding carries that instant."""
    ticks = []

    def clock():
        ticks.append(1)
        return NOW + timedelta(days=len(ticks))

    config = configure(scans(), scans(id="b"), scans(id="c", key="depot"), clock=clock)
    route(config, message())
    assert len(ticks) == 1
    rows = everything(config)
    instant = NOW + timedelta(days=1)
    assert {row["inserted_at"] for row in rows.ledger} == {instant}
    assert {row["at"] for row in rows.inputs} == {instant}
    assert rows.executions[0]["created_at"] == rows.addresses[0]["inserted_at"] == instant


def test_a_given_instant_goes_before_the_clock(configure):
    """`now=` is the instant of the call; the clock is not asked."""

    def clock():
        raise AssertionError("nobody asks")

    config = configure(scans(), clock=clock)
    route(config, message(), now=NOW)
    assert everything(config).executions[0]["created_at"] == NOW


def test_a_chart_that_asks_for_the_time(configure):
    """30-executions, trap 7. It gets the delivery's `now`, at create and at step."""
    chart = Calling()
    config = configure(scans(), charts=registry(parcel=chart))
    told = []
    with (
        chart.creating(lambda data, now: told.append(now)),
        chart.calling(lambda position, event, now: told.append(now)),
    ):
        route(config, message(), now=NOW)
    assert told == [NOW, NOW]
    assert told[0].utcoffset() == timedelta(0)


def test_the_clock_must_be_aware(configure):
    """A clock that answers a naive time is refused before anything is written."""
    config = configure(scans(), clock=lambda: datetime(2026, 1, 1))  # noqa: DTZ001 - the point
    with written(config) as rows, pytest.raises(ConfigError, match="clock"):
        route(config, message())
    assert rows.nothing


# --- around_delivery --------------------------------------------------------------------------------


def test_around_a_whole_route(configure):
    """`around_delivery(scope, door, work)` is called once around a whole route, however many bindings."""
    calls = []

    def around(scope, door, work):
        calls.append((scope, door, everything(config).counts()["ledger"]))
        answer = work()
        calls.append((scope, door, everything(config).counts()["ledger"]))
        return answer

    config = configure(scans(), scans(id="b"), around_delivery=around)
    outcomes = route(config, message())
    assert len(outcomes) == 2
    assert calls == [("acme", "route", 0), ("acme", "route", 2)]


def test_around_may_open_what_the_chart_needs(configure):
    """What it raises before `work` comes out, and nothing is written."""

    def around(scope, door, work):
        raise PermissionError(scope)

    config = configure(scans(), around_delivery=around)
    with written(config) as rows, pytest.raises(PermissionError, match="acme"):
        route(config, message())
    assert rows.nothing


def _never(scope, door, work):
    return []


def _twice(scope, door, work):
    work()
    return work()


def _other(scope, door, work):
    work()
    return []


def _swallowed(scope, door, work):
    try:
        return work()
    except StepFailed:
        return []


@pytest.mark.parametrize("around", [_never, _twice, _other, _swallowed])
def test_around_is_held_to_its_contract(configure, around):
    """It must call `work` exactly once, answer what it answered, and let through what it raised:
    else `ConfigError`, which names it.
    """
    config = configure(scans(event="raised" if around is _swallowed else "scanned"), around_delivery=around)
    with pytest.raises(ConfigError, match="around_delivery"):
        route(config, message())
    # What `work` did before the misuse stays committed, once.
    assert len(ledger.rows(config)) == (0 if around in (_never, _swallowed) else 1)


def test_around_lets_an_error_through(configure):
    """A `DeliveryError` passes through it with its facts."""

    def around(scope, door, work):
        try:
            return work()
        finally:
            closed.append(door)

    closed = []
    config = configure(scans(), scans(id="b", document="letter"), around_delivery=around)
    with pytest.raises(UnresolvedDocument) as raised:
        route(config, message())
    assert closed == ["route"]
    assert recorded(raised.value.outcomes) == [("scans", "created_and_delivered")]


# --- where charts come from -------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "word"), [(None, "NoneType"), ("chart", "str"), (object(), "object")])
def test_a_resolver_answers_no_chart(configure, answer, word):
    """Any answer of the document resolver but a chart is a `TypeError` that names it."""
    config = configure(scans(), charts=None, resolver=lambda *_: answer, chart_resolver=lambda _: None)
    with written(config) as rows, pytest.raises(TypeError, match=word):
        route(config, message())
    assert rows.nothing


@pytest.mark.parametrize(("answer", "word"), [("chart", "str"), (False, "bool"), (object(), "object")])
def test_a_chart_resolver_answers_no_chart(configure, answer, word):
    """Any answer of the hash resolver but a chart or None is a `TypeError` that names it."""
    chart = obedient()
    answers = [answer, chart]
    config = configure(scans(), charts=None, resolver=lambda *_: chart, chart_resolver=lambda _: answers[0])
    route(config, message())
    with written(config) as rows, pytest.raises(TypeError, match=word):
        route(config, message("m-2"))
    assert rows.nothing
    answers.pop(0)


def test_a_pair_of_resolvers(configure):
    """`resolver(scope, document)` and `chart_resolver(content_hash)` in the place of `charts`."""
    asked = []
    chart = obedient()

    def resolver(scope, document):
        asked.append((scope, document))
        return chart

    def chart_resolver(content_hash):
        asked.append(content_hash)
        return chart

    config = configure(scans(), charts=None, resolver=resolver, chart_resolver=chart_resolver)
    route(config, message())
    route(config, message("m-2"))
    assert asked == [("acme", "parcel"), chart.content_hash]


# --- a story ----------------------------------------------------------------------------------------


def test_late_twice_and_out_of_order(configure):
    """One parcel's messages from two sources, late, twice, out of order: one execution, each once."""
    config = configure(
        scans(),
        scans(id="letters", source="post", dedupe=Dedupe(per_scope=True)),
        scans(id="lost", source="post", match={"kind": "lost"}, create="never", event="finished"),
    )
    letter = type(message())
    story = [
        letter("post", "l-1", "acme", {"parcel": "P7", "kind": "lost"}),
        message("m-1"),
        message("m-1"),
        letter("post", "l-1", "acme", {"parcel": "P7", "kind": "lost"}),
        message("m-2", do="ignored"),
        message("m-3"),
    ]
    told = [recorded(route(config, each)) for each in story]
    assert told == [
        [("letters", "created_and_delivered"), ("lost", "delivered")],
        [("scans", "dropped: finished")],
        [("scans", "duplicate")],
        [("letters", "duplicate"), ("lost", "duplicate")],
        [("scans", "dropped: finished")],
        [("scans", "dropped: finished")],
    ]
    assert everything(config).counts()["executions"] == 1


def test_the_answers_are_values(configure):
    """Outcomes compare by what they say."""
    config = configure(scans())
    (created,) = route(config, message())
    assert created == CreatedAndDelivered("scans", created.execution_id)
    assert route(config, message()) == [Duplicate("scans")]
    assert route(config, message(parcel="P8")) == [Duplicate("scans", content_differs=True)]
