"""The durable executor: the row, the self-sufficient input log, replay, and what a position may hold."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from statifier_router import (
    NO_DATA,
    Cancel,
    ChartNotResolved,
    ConfigError,
    EffectRefused,
    Envelope,
    Event,
    ExecutionNotFound,
    Plan,
    Send,
    Step,
    StepFailed,
    deliver_event,
    executions,
    tasks,
)
from statifier_router import delivery as deliveries
from statifier_router.interpreters import function
from tests.support.charts import NOW, Calling, envelope, obedient, registry
from tests.support.rows import everything, written

PLAN = Plan("jobs", "parcel")
SECOND = timedelta(seconds=1)


@pytest.fixture
def configure(database, make_config):
    """`configure(chart)`: a configuration whose document `parcel` runs on this chart."""

    def make(chart=None, **kw):
        charts = registry(parcel=obedient() if chart is None else chart)
        return make_config(database, charts=kw.pop("charts", charts), **kw)

    return make


def put(config, name="scanned", message_id="e-1", **kw):
    return deliver_event(config, PLAN, "P7", envelope(name, message_id, **kw))


# --- the row and the log ----------------------------------------------------------------------------


def test_the_execution_as_it_stands(configure):
    """`fetch` answers every fact of the row; an unknown id is None."""
    config = configure()
    created = put(config)
    put(config, "again", "e-2", now=NOW + SECOND)
    execution = executions.fetch(config, created.execution_id)
    chart = obedient()
    assert (execution.id, execution.document) == (created.execution_id, "parcel")
    assert (execution.scope, execution.key) == ("acme", "P7")
    assert (execution.content_hash, execution.interpreter) == (chart.content_hash, "function")
    assert (execution.status, execution.active, execution.revision) == ("active", ("open",), 2)
    assert execution.position["seen"] == ["scanned", "again"]
    assert (execution.created_at, execution.ended_at, execution.failure) == (NOW, None, None)
    assert not execution.terminal
    assert executions.fetch(config, "ex_nobody") is None
    assert executions.inputs(config, "ex_nobody") == []


def test_row_zero_is_the_create(configure):
    """Row 0 holds what the log needs to stand alone: data, hash, interpreter and its version."""
    config = configure()
    created = put(config)
    first, second = executions.inputs(config, created.execution_id)
    chart = obedient()
    assert (first.seq, first.door, first.event, first.actor) == (0, "create", None, None)
    assert (first.at, first.errors) == (NOW, ())
    assert first.details == {
        "data": {
            "execution": {
                "id": created.execution_id,
                "scope": "acme",
                "document": "parcel",
                "key": "P7",
            }
        },
        "content_hash": chart.content_hash,
        "interpreter": "function",
        "interpreter_version": chart.interpreter_version,
    }
    assert (second.seq, second.door, second.event) == (1, "deliver_event", Event("scanned"))


def test_a_chart_can_read_who_it_is(configure):
    """A new execution's data tells its id, scope, document and key."""
    config = configure()
    created = put(config)
    assert executions.fetch(config, created.execution_id).position["who"] == {
        "id": created.execution_id,
        "scope": "acme",
        "document": "parcel",
        "key": "P7",
    }


def test_the_event_id_is_the_message_id(configure):
    """A chart is handed the message id as `event_id`."""

    class Noting(Calling):
        def step(self, position, event, *, event_id, now):
            return Step({"seen": [*position["seen"], event_id]}, active=["open"])

    config = configure(Noting())
    created = put(config, message_id="the message")
    assert executions.fetch(config, created.execution_id).position == {"seen": ["the message"]}


@pytest.mark.parametrize(("do", "moves"), [("moved", True), ("unknown", True), ("refused", False)])
def test_only_moved_and_unknown_move(configure, do, moves):
    """Anything else answers the position unchanged, whatever the chart said; the revision counts on."""
    config = configure()
    created = put(config)
    before = executions.fetch(config, created.execution_id)
    put(config, do, "e-2")
    after = executions.fetch(config, created.execution_id)
    assert after.revision == before.revision + 1
    assert (after.position != before.position) == moves
    assert after.active == before.active


@pytest.mark.parametrize(("do", "status"), [("finished", "completed"), ("broken", "failed")])
def test_it_ends_once(configure, do, status):
    """`ended_at` is stamped once, at the step that ends it; a failed one says why."""
    config = configure()
    created = put(config)
    put(config, do, "e-2", now=NOW + SECOND)
    put(config, "late", "e-3", now=NOW + 2 * SECOND)
    execution = executions.fetch(config, created.execution_id)
    assert (execution.status, execution.terminal) == (status, True)
    assert execution.ended_at == NOW + SECOND
    assert execution.failure == ("it broke" if status == "failed" else None)
    assert len(executions.inputs(config, created.execution_id)) == 3


# --- replay -----------------------------------------------------------------------------------------


def test_replay_agrees(configure):
    """The fold of the log equals the stored position, after moves, refusals, failures and acts."""
    config = configure()
    created = put(config)
    for number, do in enumerate(["refused", "unknown", "erred", "ignored", "moved"]):
        put(config, do, f"m-{number}", now=NOW + number * SECOND)
    with pytest.raises(StepFailed):
        put(config, "failed", "bad")
    executions.suspend(config, created.execution_id)
    with written(config) as rows:
        replayed = executions.replay(config, created.execution_id)
    assert replayed.agrees
    assert replayed.position == executions.fetch(config, created.execution_id).position
    assert rows.nothing


@pytest.mark.parametrize("act", ["finished", "broken", "cancel", "fail", "suspend", "resume"])
def test_replay_agrees_about_the_end(configure, act):
    """It agrees about the status too, however it came about."""
    config = configure()
    id = put(config).execution_id
    if act in ("finished", "broken"):
        put(config, act, "e-2")
    elif act == "fail":
        executions.fail(config, id, reason="why")
    else:
        executions.suspend(config, id)
        if act != "suspend":
            getattr(executions, act)(config, id)
    assert executions.replay(config, id).agrees


@pytest.mark.no_fold("a row is changed by hand, which is what replay must find")
@pytest.mark.parametrize(
    "change",
    [
        {"position": '{"seen":[]}'},
        {"active": '["closed"]'},
        {"status": "completed"},
        {"position": '{"seen": ["scanned"]}'},
    ],
)
def test_replay_disagrees(configure, change):
    """A row that was changed by hand, in position, active states or status, does not agree with its log."""
    config = configure()
    created = put(config)
    assert executions.replay(config, created.execution_id).agrees
    with config.engine.begin() as connection:
        connection.execute(config.schema.executions.update().values(**change))
    replayed = executions.replay(config, created.execution_id)
    assert not replayed.agrees
    assert replayed.position["seen"] == ["scanned"]


@pytest.mark.no_fold("a row of the log is removed by hand, which is what replay must find")
def test_replay_of_a_log_with_a_hole(configure):
    """A log from which a row was removed does not agree."""
    config = configure()
    created = put(config)
    put(config, "again", "e-2")
    table = config.schema.inputs
    with config.engine.begin() as connection:
        connection.execute(table.delete().where(table.c.seq == 1))
    assert not executions.replay(config, created.execution_id).agrees


def test_replay_of_nobody(configure):
    """An unknown id is `ExecutionNotFound`."""
    with pytest.raises(ExecutionNotFound) as raised:
        executions.replay(configure(), "ex_nobody")
    assert raised.value.execution_id == "ex_nobody"


def test_replay_of_a_pruned_one(configure):
    """A pruned execution has no log to replay: `ConfigError` says so."""
    config = configure()
    id = put(config).execution_id
    put(config, "finished", "e-2")
    executions.prune(config, before=NOW + SECOND)
    with pytest.raises(ConfigError, match="pruned"):
        executions.replay(config, id)


@pytest.mark.no_fold("the chart is gone, which is what replay must tell")
def test_replay_without_its_chart(configure, make_config):
    """A chart that is not to be had is `ChartNotResolved`."""
    config = configure()
    id = put(config).execution_id
    other = type(config)(config.engine, charts=registry())
    with pytest.raises(ChartNotResolved):
        executions.replay(other, id)


def test_the_log_keeps_events_whole(configure):
    """Names of any script, NUL in data, origin, send id: what is read back is what was delivered."""
    config = configure()
    event = Event("ereignis-é-\N{GRINNING FACE}", {"nul": "a\x00b", "n": 1e300}, origin="ex_a", send_id="s")
    created = deliver_event(config, PLAN, "P7", Envelope(event, "e-1", "acme", NOW))
    assert executions.inputs(config, created.execution_id)[1].event == event


# --- positions --------------------------------------------------------------------------------------

_PLANES = "".join(chr(plane * 0x10000 + offset) for plane in range(17) for offset in (0x0041, 0xFFF0, 0xFFFD))
_AWKWARD = {
    "every plane": _PLANES,
    "NUL": "a\x00b\x1f\x7f\u2028",
    "order": {"z": 1, "a": 2, "Z": 3, "é": 4, "": 5},
    "numbers": [0, -0.0, 1.0, 1, 1e-300, 1.7976931348623157e308, 2**53 + 1, 10**400, 0.1],
    "nothing": [None, [], {}, "", False, True],
    "quotes": "\" ' \\ % :x $1 {}",
    "deep": [[[[[[{"a": [1]}]]]]]],
}


def test_any_json_is_a_position(configure):
    """30-executions, trap 5. One MiB of data and every Unicode plane come back as they were: order of
    names, kinds of numbers, NUL, empty things.
    """
    position = {"awkward": _AWKWARD, "big": "x" * (1 << 20)}
    chart = function.chart(
        "awkward",
        create=lambda data, now: Step(position, active=["é", "b"]),
        step=lambda stored, event, now: Step({**stored, "steps": stored.get("steps", 0) + 1}),
    )
    config = configure(chart)
    created = put(config)
    for number in range(2):
        put(config, "more", f"m-{number}")
    stored = executions.fetch(config, created.execution_id).position
    assert stored.pop("steps") == 3
    assert json.dumps(stored) == json.dumps(position)


@pytest.mark.parametrize("position", [None, 0, "text", [], {}, [1, {"a": None}], False])
def test_a_position_of_any_shape(configure, position):
    """Any JSON is a position, null included, which is no pruned one."""
    chart = function.chart(
        "shape", create=lambda data, now: Step(position), step=lambda stored, event, now: Step(stored)
    )
    config = configure(chart)
    created = put(config)
    assert executions.fetch(config, created.execution_id).position == position
    assert executions.replay(config, created.execution_id).agrees


class _Host:
    """A host's own chart class, whose answers the library checks itself."""

    interpreter, interpreter_version = "host", "1"

    def __init__(self, answer):
        self.content_hash = "hash of a host's"
        self.answer = answer

    def create(self, *, data, now):
        return Step({}, active=["open"])

    def step(self, position, event, *, event_id, now):
        return self.answer(position) if event.name == "bad" else Step(position, active=["open"])


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (lambda position: None, "NoneType"),
        (lambda position: {"position": 1}, "dict"),
        (lambda position: Step({1}), "set"),
        (lambda position: Step((1, 2)), "tuple"),
        (lambda position: Step({1: 2}), "key"),
        (lambda position: Step(float("nan")), "nan"),
        (lambda position: Step("\ud800"), "surrogate"),
        (lambda position: Step({}, outcome="jumped"), "jumped"),
        (lambda position: Step({}, status="asleep"), "asleep"),
        (lambda position: Step({}, outcome="refused", status="completed"), "refused"),
        (lambda position: Step({}, active=[1]), "active"),
        (lambda position: Step({}, donedata={1}), "donedata"),
        (lambda position: Step({}, effects=["send"]), "effect"),
        (lambda position: Step({}, effects=[Send("")]), "event"),
        (lambda position: Step({}, effects=[Send("a", delay=-SECOND)]), "delay"),
        (lambda position: Step({}, effects=[Cancel("x" * 256)]), "send_id"),
    ],
)
def test_malformed_answers(configure, answer, word):
    """What is no well-formed answer of JSON is `StepFailed`, naming the part; never altered, never kept."""
    config = configure(_Host(answer))
    put(config)
    with written(config) as rows, pytest.raises(StepFailed, match=word):
        put(config, "bad", "e-2")
    assert rows.nothing


def test_a_chart_that_changes_the_position_it_was_given(configure):
    """A chart that spoils the position handed in, and then refuses the event, has changed nothing."""

    def spoil(position):
        position["spoilt"] = True
        return Step(position, outcome="refused")

    config = configure(_Host(spoil))
    created = put(config)
    put(config, "bad", "e-2")
    assert executions.fetch(config, created.execution_id).position == {}


def test_donedata_is_checked_and_not_stored(configure):
    """Donedata is for the completion hook; the row keeps position and status."""
    config = configure(_Host(lambda position: Step({"end": 1}, status="completed", donedata=NO_DATA)))
    created = put(config)
    put(config, "bad", "e-2")
    assert executions.fetch(config, created.execution_id).status == "completed"


# --- refused sends, as handlers will give them ------------------------------------------------------


def _sending(name, version):
    """A chart that sends as its event's data says, and notes the refusals that it hears."""

    def create(data, now):
        return Step({"heard": []}, active=["open"])

    def step(position, event, now):
        if event.name.startswith("error."):
            position["heard"].append([event.name, event.data["event"], event.send_id])
            effects = [Send("again", target="nowhere")] if version == "stubborn" else []
            return Step(position, active=["open"], effects=effects)
        if event.name == "end":
            return Step(
                position, active=["done"], status="completed", effects=[Send("bye", target="nowhere")]
            )
        sends = [
            Send(send, {"n": 1}, target=target, send_id=f"s-{send}") for send, target in event.data.items()
        ]
        return Step(position, active=["open"], effects=sends)

    return function.chart(name, create=create, step=step, version=version)


class _Handler:
    """Takes effects as a host's routes would: only `somewhere` is a target."""

    def __init__(self, handle):
        self.handle = handle

    def __call__(self, keyed):
        return self.handle(keyed)

    def completed(self, stepped, context):
        """Nobody asked to be told."""


def _perform(config, name, data, message_id, handle):
    envelope_ = Envelope(Event(name, data), message_id, "acme", NOW)
    return deliveries.perform(
        config,
        tasks.of_plan(PLAN, "P7", envelope_),
        executor=executions.SQLExecutor(),
        outgoing_for=lambda frame, driven: _Handler(handle),
        settle=lambda frame: None,
        savepoint=True,
    )


def _noting(handed):
    def handle(keyed):
        handed.append(keyed)
        return None if keyed.effect.target == "somewhere" else EffectRefused("no such route")

    return handle


def test_refused_sends_re_enter(configure):
    """A refused send re-enters the chart as `error.communication`, once each, in order, logged as
    `reentry` rows; the log still folds, and the step counts.
    """
    config = configure(_sending("sending", "1"))
    handed = []
    sends = {"a": "nowhere", "b": "somewhere", "c": "nowhere"}
    outcome = _perform(config, "go", sends, "e-1", _noting(handed))
    assert outcome.recorded == "created_and_delivered"
    position = executions.fetch(config, outcome.execution_id).position
    assert position["heard"] == [["error.communication", "a", "s-a"], ["error.communication", "c", "s-c"]]
    log = executions.inputs(config, outcome.execution_id)
    assert [row.door for row in log] == ["create", "deliver_event", "reentry", "reentry"]
    assert [each.effect.event for each in handed] == ["a", "b", "c"]
    assert len({each.key for each in handed}) == 3
    assert executions.replay(config, outcome.execution_id).agrees


def test_a_second_wave_is_recorded_only(configure):
    """What a chart sends while it hears a refusal is handed on; refused again, it is told on the row and
    not heard: nothing runs round and round.
    """
    config = configure(_sending("sending", "stubborn"))
    handed = []
    outcome = _perform(config, "go", {"a": "nowhere"}, "e-1", _noting(handed))
    assert [(each.effect.event, each.wave) for each in handed] == [("a", 0), ("again", 1)]
    log = executions.inputs(config, outcome.execution_id)
    assert [row.door for row in log] == ["create", "deliver_event", "reentry"]
    assert log[2].errors == ("not handed off: no such route",)
    assert executions.replay(config, outcome.execution_id).agrees


def test_a_refused_send_of_the_last_step(configure):
    """An execution that has ended hears nothing any more: its input row keeps what was refused."""
    config = configure(_sending("sending", "1"))
    outcome = _perform(config, "go", {}, "e-1", _noting([]))
    _perform(config, "end", {}, "e-2", _noting([]))
    execution = executions.fetch(config, outcome.execution_id)
    assert (execution.status, execution.position) == ("completed", {"heard": []})
    last = executions.inputs(config, outcome.execution_id)[-1]
    assert (last.message_id, last.errors) == ("e-2", ("not handed off: no such route",))
    assert executions.replay(config, outcome.execution_id).agrees


def test_effect_keys_of_a_redelivery_are_equal(configure):
    """The idempotency key of a send is the same when the same step is driven again."""

    def failing_once(keyed):
        keys.append(keyed.key)
        if len(keys) == 1:
            raise RuntimeError("the handler broke")

    keys = []
    config = configure(_sending("sending", "1"), mint_execution_id=lambda *_: "run-1")
    with pytest.raises(RuntimeError, match="the handler broke"):
        _perform(config, "go", {"a": "x"}, "e-1", failing_once)
    assert everything(config).empty
    _perform(config, "go", {"a": "x"}, "e-1", failing_once)
    assert keys[0] == keys[1]
