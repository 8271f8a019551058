"""What every adapter owes of a step's answer: JSON only, well-formed effects, the position untouched."""

from __future__ import annotations

from datetime import timedelta

import attrs

from statifier_router.errors import RouterError
from statifier_router.jsontext import Json, NotJson, plain
from statifier_router.steps import NO_DATA, Cancel, Effect, Send, Step, known_step
from statifier_router.text import KEY_LIMIT, NAME_LIMIT, SEND_ID_LIMIT, checked, error_text

OUTCOMES = frozenset({"moved", "refused", "ignored", "unknown", "failed"})
STATUSES = frozenset({"active", "completed", "failed"})


class BadAnswer(RouterError):
    """A chart answered something that is not a well-formed `Step`; the message names the part."""


def checked_step(answer: object, *, before: Json, created: bool) -> Step:
    """`answer` with everything in it checked and copied; raises `BadAnswer`.

    Anything but "moved" and "unknown" answers `before` unchanged, whatever the chart said.
    """
    if not isinstance(answer, Step):
        raise BadAnswer(f"a chart must answer a Step, not {type(answer).__name__}")
    if answer.outcome not in OUTCOMES:
        raise BadAnswer(f"outcome {answer.outcome!r} is none of {', '.join(sorted(OUTCOMES))}")
    if answer.status not in STATUSES:
        raise BadAnswer(f"status {answer.status!r} is none of {', '.join(sorted(STATUSES))}")
    keeps = not created and answer.outcome not in ("moved", "unknown")
    if keeps and answer.status != "active":
        raise BadAnswer(f"a step that is {answer.outcome!r} cannot end the execution")
    for name in answer.active:
        # Nearly all of them are; `checked` says what is wrong with the others.
        if type(name) is not str or not name.isascii() or not 0 < len(name) <= KEY_LIMIT or "\x00" in name:
            checked(name, "a name in active", BadAnswer, limit=KEY_LIMIT)
    return known_step(
        before if keeps else _json(answer.position, "position"),
        answer.outcome,
        answer.active,
        answer.status,
        NO_DATA if answer.donedata is NO_DATA else _json(answer.donedata, "donedata"),
        tuple([checked_effect(effect) for effect in answer.effects]) if answer.effects else (),
        tuple([error_text(error) for error in answer.errors]) if answer.errors else (),
    )


def checked_effect(effect: object) -> Effect:
    """`effect` with its names, delay and data checked; raises `BadAnswer`."""
    if isinstance(effect, Cancel):
        return Cancel(checked(effect.send_id, "send_id", BadAnswer, limit=SEND_ID_LIMIT))
    if not isinstance(effect, Send):
        raise BadAnswer(f"an effect must be a Send or a Cancel, not {type(effect).__name__}")
    checked(effect.event, "event", BadAnswer, limit=NAME_LIMIT)
    for name, limit in (("target", NAME_LIMIT), ("type", NAME_LIMIT), ("send_id", SEND_ID_LIMIT)):
        value = getattr(effect, name)
        if value is not None:
            checked(value, name, BadAnswer, limit=limit)
    if effect.delay is not None and not isinstance(effect.delay, timedelta):
        raise BadAnswer(f"delay must be a timedelta, not {type(effect.delay).__name__}")
    if effect.delay is not None and effect.delay < timedelta(0):
        raise BadAnswer(f"delay must not be negative: {effect.delay}")
    return attrs.evolve(effect, data=_json(effect.data, "data"))


def _json(value: object, name: str) -> Json:
    try:
        return plain(value)
    except NotJson as fault:
        raise BadAnswer(f"{name}{fault.path} {fault.problem}") from None
