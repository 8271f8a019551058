"""What a coroutine of `aio` answers and writes is what the plain function answers and writes."""

import asyncio
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs
import pytest

import statifier_router
from statifier_router import (
    ChartRegistry,
    Dedupe,
    Defer,
    Plan,
    Routed,
    RouterError,
    Send,
    Step,
    UnresolvedDocument,
    aio,
)
from statifier_router.interpreters import function
from statifier_router.timers import Fired
from tests.support import charts
from tests.support.awaiting import beside
from tests.support.charts import NOW, delivery, envelope, message, scans
from tests.support.racing import WritingPlainly
from tests.support.rows import everything

HOUR = timedelta(hours=1)
NEVER, JOBS = Plan("never", "parcel", create="never"), Plan("jobs", "parcel")


@attrs.frozen
class Call:
    """A function by its name, and what it is called with beside the configuration."""

    name: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    config: Callable[[Any], Any]

    def function(self, root: Any) -> Any:
        """The function under `root`: the plain one, or the awaited one."""
        found = root
        for part in self.name.split("."):
            found = getattr(found, part)
        return found


def call(name, *arguments, config=lambda config: config, **named):
    return Call(name, arguments, named, config)


def sent(message_id="m-1", do="moved", key="P7", now=NOW, **changes):
    """One delivery of the binding `scans`."""
    return call("deliver", scans(**changes), key, delivery(message_id, now=now, data={"do": do}))


def unpublished(config):
    return attrs.evolve(config, charts=ChartRegistry())


def rejecting(config):
    return attrs.evolve(config, on_chart_error="reject")


SCRIPTS = {
    "created, delivered, duplicate": [sent(), sent("m-2"), sent("m-2"), sent("m-2", "other")],
    "per scope and horizon": [
        sent(dedupe=Dedupe(horizon=HOUR, per_scope=True)),
        sent(dedupe=Dedupe(horizon=HOUR, per_scope=True), now=NOW + HOUR),
        sent(dedupe=Dedupe(horizon=HOUR, per_scope=True), now=NOW + HOUR + timedelta(microseconds=1)),
    ],
    "never": [
        call("deliver_event", NEVER, "P7", envelope()),
        sent(),
        call("deliver_event", NEVER, "P7", envelope(message_id="e-2")),
    ],
    "always new": [sent(create="always_new"), sent("m-2", create="always_new")],
    "finished": [sent(do="finished"), sent("m-2"), sent("m-3")],
    "broken": [sent(do="broken"), sent("m-2")],
    "unmatched": [sent(do="refused"), sent("m-2", "ignored"), sent("m-3", "unknown")],
    "a job": [
        call("deliver_event", JOBS, "P7", envelope("ignored")),
        call("deliver_event", JOBS, "P7", envelope("moved", "e-2")),
        call("deliver_event", JOBS, "P7", envelope("moved", "e-2")),
    ],
    "failed": [sent(do="failed"), sent("m-2"), sent("m-3", "raised"), sent("m-4", "erred")],
    "rejected": [
        sent(),
        call("deliver", scans(), "P7", delivery("m-2", data={"do": "erred"}), config=rejecting),
    ],
    "unresolved": [call("deliver", scans(), "P7", delivery(), config=unpublished), sent()],
    "bad keys": [call("deliver", scans(), "", delivery()), call("deliver", scans(), 7, delivery())],
    "routed": [
        call("route", message(), now=NOW),
        call("route", message(), now=NOW),
        call("route", message("m-2", parcel=7), now=NOW),
        call("route", attrs.evolve(message("m-3"), source="nobody"), now=NOW),
        call("route", message("m-4"), now=NOW, config=unpublished),
        call("ledger.rows", message_id="m-1"),
        call("ledger.rows", limit=2, after=1),
    ],
    "many": [
        call(
            "deliver_many",
            [
                (scans(), "P7", delivery("m-1")),
                (scans(), "P7", delivery("m-2", data={"do": "failed"})),
                (scans(), "P8", delivery("m-3")),
                (scans(), "P7", delivery("m-1")),
            ],
        ),
        call("route_many", [message("m-4"), message("m-5", parcel=7), message("m-3", "P8")], now=NOW),
        call("route_many", [message("m-6"), "no message"], now=NOW),
    ],
    "suspended": [
        sent(),
        call("executions.suspend", "ex_1"),
        sent("m-2"),
        call("executions.resume", "ex_1", actor="jane"),
        sent("m-2"),
        call("executions.inputs", "ex_1"),
        call("executions.fetch", "ex_1"),
        call("executions.replay", "ex_1"),
    ],
    "cancelled and failed": [
        sent(),
        sent("m-2", key="P8"),
        call("executions.cancel", "ex_1"),
        call("executions.cancel", "ex_1"),
        call("executions.fail", "ex_2", reason="lost"),
        call("executions.fail", "ex_3", reason="lost"),
        sent("m-3"),
        call("addresses.find", "acme", "parcel", "P7"),
        call("addresses.by_execution", "ex_2"),
        call("addresses.by_execution", "ex_3"),
    ],
    "migrated": [
        sent(),
        call("executions.migrate", "ex_1", charts.obedient("other"), mapping=lambda position: position),
        call("executions.migrate", "ex_1", "no hash", mapping={}),
        call("executions.fetch", "ex_1"),
    ],
    "reaped and pruned": [
        sent(),
        sent("m-2", "finished"),
        sent("m-3"),
        call("addresses.reap", now=NOW + HOUR),
        call("addresses.reap", [scans()], now=NOW + 100 * HOUR),
        call("claims.reap", now=NOW + 100 * HOUR),
        call("executions.prune", before=NOW + 100 * HOUR),
        call("executions.replay", "ex_1"),
        call("ledger.prune", before=NOW + HOUR, limit=2),
        call("ledger.rows"),
    ],
    "timers": [
        call("deliver", scans(document="sender"), "P7", delivery(data={"after": 60})),
        call("timers.pending"),
        call("timers.fire_due", now=NOW),
        call("timers.fire_due", now=NOW + HOUR),
        call("timers.pending"),
        call("executions.fetch", "ex_1"),
    ],
    "deferrals": [
        sent(do="refused", unmatched=Defer(within=HOUR)),
        call("deferrals.pending"),
        call("deferrals.sweep", now=NOW),
        call("deferrals.sweep", now=NOW + 2 * HOUR),
        call("deferrals.pending"),
    ],
}


def _sender():
    def create(data, now):
        return Step({"seen": []}, active=["open"])

    def step(position, event, now):
        effects = []
        if isinstance(event.data, dict) and "after" in event.data:
            effects = [Send("rang", delay=timedelta(seconds=event.data["after"]))]
        return Step({"seen": [*position["seen"], event.name]}, active=["open"], effects=effects)

    return function.chart("sender", create=create, step=step)


def _charts():
    registry = charts.registry(parcel=charts.obedient(), sender=_sender())
    registry.publish("other", charts.obedient("other"))
    return registry


def _mint():
    minted = itertools.count(1)
    return lambda scope, document, key: f"ex_{next(minted)}"


@pytest.fixture(params=["merged", "plain"])
def twin(request, database, make_config):
    """A configuration whose answers are the same at every run; on PostgreSQL over either plan."""
    return make_config(
        database,
        charts=_charts(),
        bindings=[scans()],
        executor=None if request.param == "merged" else WritingPlainly(),
        clock=lambda: NOW,
        mint_execution_id=_mint(),
    )


def _told(answer):
    """An answer whose errors are as much as two that are equal agree in."""
    if isinstance(answer, list):
        return [_told(each) for each in answer]
    if isinstance(answer, Routed):
        return answer.message.message_id, answer.outcomes, _told(answer.error)
    if not isinstance(answer, RouterError):
        return answer
    facts = (getattr(answer, name, None) for name in ("binding_id", "outcomes"))
    return type(answer), str(answer), *facts


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_as_the_plain_doors(database, twin, name):
    """Call by call the same answer or the same error, and in the end the same rows."""
    script = SCRIPTS[name]

    plain = []
    for each in script:
        try:
            answer = each.function(statifier_router)(each.config(twin), *each.arguments, **each.named)
        except RouterError as error:
            answer = error
        plain.append(_told(answer))
    left = everything(twin)
    assert not any(isinstance(answer, Fired) for answer in plain) or Fired(1, 0, 0) in plain
    database.clear()

    async def main():
        answers = []
        again = attrs.evolve(twin, mint_execution_id=_mint())
        async with beside(again, database, pool_size=1, max_overflow=0) as config:
            for each in script:
                try:
                    answer = await each.function(aio)(each.config(config), *each.arguments, **each.named)
                except RouterError as error:
                    answer = error
                answers.append(_told(answer))
        return answers

    awaited = asyncio.run(main())
    assert awaited == plain
    assert everything(twin) == left


def test_the_scripts_say_something():
    """Every function that has a configuration is called by one of them."""
    called = {each.name for script in SCRIPTS.values() for each in script}
    for module in ("addresses", "claims", "deferrals", "executions", "ledger", "timers"):
        functions = {f"{module}.{name}" for name in getattr(aio, module).__all__ if name.islower()}
        assert functions <= called
    assert {"route", "deliver", "deliver_event", "route_many", "deliver_many"} <= called


def test_outcomes_stand_on_the_error(database, make_config):
    """An error in the second of three bindings: the first is committed and listed, the third untouched."""
    bindings = [
        scans(id=name, document=document)
        for name, document in (("a", "parcel"), ("b", "gone"), ("c", "parcel"))
    ]
    twin = make_config(database, charts=_charts(), bindings=bindings)

    async def main():
        async with beside(twin, database) as config:
            with pytest.raises(UnresolvedDocument) as caught:
                await aio.route(config, message(), now=NOW)
        return [each.binding_id for each in caught.value.outcomes], caught.value.binding_id

    assert asyncio.run(main()) == (["a"], "b")
    assert everything(twin).counts()["executions"] == 1
