"""`emit` and `cancel`: how a Python chart adds effects to the step it is in."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import timedelta

from statifier_router.errors import ConfigError
from statifier_router.jsontext import Json
from statifier_router.steps import Cancel, Effect, Send

_effects: ContextVar[list[Effect] | None] = ContextVar("statifier_router_effects", default=None)


def emit(
    event: str,
    *,
    target: str | None = None,
    type: str | None = None,
    data: Json = None,
    send_id: str | None = None,
    delay: timedelta | None = None,
) -> None:
    """Add a send to the effects of the step this chart is in.

    Nothing is handed off here: the effect is handed on after the step, in its transaction.
    Raises `ConfigError` outside a step.
    """
    _collected("emit").append(Send(event, data, target=target, type=type, send_id=send_id, delay=delay))


def cancel(send_id: str) -> None:
    """Add the cancelling of this chart's pending delayed sends of `send_id` to the step's effects.

    Raises `ConfigError` outside a step.
    """
    _collected("cancel").append(Cancel(send_id))


def _collected(name: str) -> list[Effect]:
    effects = _effects.get()
    if effects is None:
        raise ConfigError(f"{name} was called outside a step: call it from a chart's own code")
    return effects


class collecting:  # noqa: N801 - it is used as a function is
    """Collect what `emit` and `cancel` add, for the block."""

    __slots__ = ("_token",)

    def __enter__(self) -> list[Effect]:
        effects: list[Effect] = []
        self._token = _effects.set(effects)
        return effects

    def __exit__(self, *_: object) -> None:
        _effects.reset(self._token)
