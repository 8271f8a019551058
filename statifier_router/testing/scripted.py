"""Charts whose answers are written down: for tests of a host that needs a chart to do just this."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from attrs import field, frozen

from statifier_router.errors import ConfigError
from statifier_router.interpreters.answers import checked_step
from statifier_router.jsontext import Json, digest
from statifier_router.messages import Event
from statifier_router.steps import NO_DATA, Effect, NoData, Step, StepOutcome
from statifier_router.text import NAME_LIMIT, checked

ANY: Final = "*"
"""In a script: every state, or every event, for which nothing else is written."""


@frozen
class Reply:
    """What a scripted chart answers. Made by `moves`, `completes`, `refuses` and their like."""

    outcome: StepOutcome = "moved"
    to: str | None = None
    effects: tuple[Effect, ...] = ()
    errors: tuple[str, ...] = ()
    ends: bool = False
    donedata: Json | NoData = NO_DATA
    error: BaseException | None = None


@frozen
class Heard:
    """One event that a scripted chart was asked about, in the order in which it was asked."""

    event: Event
    event_id: str
    now: datetime


def moves(to: str | None = None, *effects: Effect, errors: tuple[str, ...] = ()) -> Reply:
    """Move to the state `to` (None: stay, and count the step) with these effects."""
    return Reply(to=to, effects=effects, errors=errors)


def completes(to: str | None = None, *effects: Effect, donedata: Json | NoData = NO_DATA) -> Reply:
    """Move and complete."""
    return Reply(to=to, effects=effects, ends=True, donedata=donedata)


def refuses() -> Reply:
    """Every guard said no."""
    return Reply("refused")


def ignores() -> Reply:
    """Nothing reacts."""
    return Reply("ignored")


def fails(*errors: str) -> Reply:
    """Answer "failed": a door makes `StepFailed` of it."""
    return Reply("failed", errors=errors)


def raises(error: BaseException) -> Reply:
    """Raise `error` out of the step."""
    return Reply(error=error)


@frozen(eq=False)
class ScriptedChart:
    """A chart that answers as its script says. Made by `scripted`.

    `heard` is every event it was asked about in this process, also in steps that were undone later.
    """

    name: str
    content_hash: str
    initial: str
    _script: Mapping[str, Mapping[str, Reply]]
    heard: list[Heard] = field(factory=list)
    interpreter: str = "scripted"
    interpreter_version: str = "1"
    answers_checked: bool = True

    def create(self, *, data: Json, now: datetime) -> Step:
        """The initial state, or what the script says for it under the event `create`."""
        reply = self._script.get(self.initial, {}).get("create", Reply())
        return self._answer({"state": self.initial, "steps": 0}, reply, created=True)

    def step(self, position: Json, event: Event, *, event_id: str, now: datetime) -> Step:
        """What the script says for this state and event; an event that it does not name is ignored."""
        self.heard.append(Heard(event, event_id, now))
        where: Any = position
        return self._answer(where, self._reply(where["state"], event.name), created=False)

    def _reply(self, state: str, event: str) -> Reply:
        for table in (self._script.get(state), self._script.get(ANY)):
            for name in (event, ANY):
                if table is not None and name in table:
                    return table[name]
        return ignores()

    def _answer(self, position: Any, reply: Reply, *, created: bool) -> Step:
        if reply.error is not None:
            raise reply.error
        state = reply.to or position["state"]
        moved = reply.outcome == "moved"
        step = Step(
            {"state": state, "steps": position["steps"] + (not created)} if moved else position,
            outcome=reply.outcome,
            active=(state,) if moved else (position["state"],),
            status="completed" if reply.ends else "active",
            donedata=reply.donedata,
            effects=reply.effects,
            errors=reply.errors,
        )
        return checked_step(step, before=None if created else position, created=created)


def scripted(
    name: str, script: Mapping[str, Mapping[str, Reply]], *, initial: str = "start", version: str = "1"
) -> ScriptedChart:
    """A chart that answers by state and event as `script` says: `{state: {event: reply}}`.

    `ANY` stands for every state or event that has no line of its own; what has none at all is
    ignored. The event `create` of the initial state is the answer to being created. The position is
    durable (`{"state", "steps"}`), so a script works over a real database; its hash covers `name`,
    `version` and the names in the script. Raises `ConfigError` for a bad argument.

    >>> parcel = scripted("parcel", {"start": {"scanned": moves("held")}, "held": {"released": completes()}})
    >>> parcel.initial
    'start'
    """
    checked(name, "name", ConfigError, limit=NAME_LIMIT)
    checked(version, "version", ConfigError, limit=NAME_LIMIT)
    checked(initial, "initial", ConfigError, limit=NAME_LIMIT)
    for state, table in script.items():
        if not isinstance(table, Mapping):
            raise ConfigError(f"script[{state!r}] must be a mapping from event to reply")
        for event, reply in table.items():
            if not isinstance(reply, Reply):
                raise ConfigError(
                    f"script[{state!r}][{event!r}] must be a Reply (moves(), refuses(), …), "
                    f"not {type(reply).__name__}"
                )
    described: Json = {
        state: {event: [reply.outcome, reply.to, reply.ends] for event, reply in table.items()}
        for state, table in script.items()
    }
    definition: Json = {
        "interpreter": "scripted",
        "name": name,
        "version": version,
        "initial": initial,
        "script": described,
    }
    tables = {state: dict(table) for state, table in script.items()}
    return ScriptedChart(name=name, content_hash=digest(definition), initial=initial, script=tables)
