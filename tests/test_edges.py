"""What a host or an operator hands over by mistake: told by name, at the edge, on both databases alike."""

from __future__ import annotations

import pytest

from statifier_router import (
    ConfigError,
    IsolationConflict,
    Step,
    StepFailed,
    addresses,
    deferrals,
    deliver,
    executions,
    ledger,
    timers,
)
from statifier_router.interpreters import function
from tests.support.charts import delivery, obedient, registry, scans
from tests.support.rows import written

BAD = ["a\x00b", "\ud800", 5, None, "x" * 600]


@pytest.mark.parametrize("bad", BAD, ids=["nul", "surrogate", "number", "none", "long"])
def test_what_is_asked_for(database, make_config, bad):
    """Text that no row can hold is refused by every reader, naming the argument, by no database."""
    config = make_config(database, charts=registry(parcel=obedient()))
    for name, ask in {
        "execution_id": lambda: executions.fetch(config, bad),
        "execution_id ": lambda: executions.inputs(config, bad),
        "execution_id  ": lambda: executions.cancel(config, bad),
        "execution_id   ": lambda: executions.replay(config, bad),
        "execution_id    ": lambda: addresses.by_execution(config, bad),
        "key": lambda: addresses.find(config, "acme", "parcel", bad),
    }.items():
        with pytest.raises(ConfigError, match=name.strip()) as caught:
            ask()
        assert "\n" not in str(caught.value)
    if bad is not None:
        for ask in (
            lambda: ledger.rows(config, message_id=bad),
            lambda: timers.pending(config, execution_id=bad),
            lambda: deferrals.pending(config, execution_id=bad),
        ):
            with pytest.raises(ConfigError):
                ask()


@pytest.mark.parametrize("bad", ["\ud800", "a\x00b", 7, ""], ids=["surrogate", "nul", "number", "empty"])
@pytest.mark.parametrize("at", ["create", "step"])
def test_names_of_states(database, make_config, at, bad):
    """A chart's active states are texts that both databases keep, or its step has failed."""
    names = {at: (bad,)}
    chart = function.chart(
        "naming",
        create=lambda data, now: Step(0, active=names.get("create", ("open",))),
        step=lambda position, event, now: Step(0, active=names.get("step", ("open",))),
    )
    config = make_config(database, charts=registry(parcel=chart))
    with written(config) as rows, pytest.raises(StepFailed, match="active"):
        deliver(config, scans(), "P7", delivery())
    assert rows.nothing


def test_one_text_is_no_sequence_of_texts():
    """A text where a sequence of texts is meant is not taken apart into its letters."""
    with pytest.raises(TypeError, match="open"):
        Step(0, active="open")
    with pytest.raises(TypeError, match="oops"):
        Step(0, errors="oops")


@pytest.mark.parametrize("answer", [5, None], ids=["number", "none"])
@pytest.mark.parametrize("act", ["create", "step", "fetch"])
def test_what_an_executor_answers(database, make_config, act, answer):
    """A host's executor that answers something else is told so by name, and nothing is written."""
    from tests.support.executors import OwnTables

    class Faulty(OwnTables):
        broken = False

        def __getattribute__(self, name):
            if name == act and object.__getattribute__(self, "broken"):
                return lambda *args, **kw: answer
            return object.__getattribute__(self, name)

    engine = database.engine()
    OwnTables.create_tables(engine)
    executor = Faulty()
    config = make_config(database, engine=engine, executor=executor, charts=registry(parcel=obedient()))
    if act != "create":
        deliver(config, scans(), "P7", delivery("m-1"))
    executor.broken = True
    expected = Exception if (act, answer) == ("fetch", None) else TypeError
    with written(config) as rows, pytest.raises(expected, match="exist" if expected is Exception else act):
        deliver(config, scans(), "P7", delivery("m-2"))
    assert rows.nothing


def test_a_stale_snapshot_is_no_transient_fault(postgresql, make_config):
    """`create="never"` under a stricter level: the level has to change, so no front may try it again."""
    config = make_config(postgresql, charts=registry(parcel=obedient()))
    strict = config.engine.execution_options(isolation_level="REPEATABLE READ")
    with strict.begin() as connection, pytest.raises(IsolationConflict) as caught:
        deliver(config, scans(create="never"), "P7", delivery(), connection=connection)
    assert (caught.value.fault, caught.value.retryable) == ("binding", False)
    assert isinstance(caught.value, ConfigError)


def test_the_reason_of_a_failure(database, make_config):
    """An operator's reason is text."""
    config = make_config(database, charts=registry(parcel=obedient()))
    created = deliver(config, scans(), "P7", delivery())
    for bad in (5, None, ""):
        with pytest.raises(ConfigError, match="reason"):
            executions.fail(config, created.execution_id, reason=bad)
