"""A chart made of two pure functions: the reference adapter, and the double for a host's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import attrs

from statifier_router.errors import ConfigError
from statifier_router.interpreters.answers import checked_step
from statifier_router.interpreters.emitting import collecting
from statifier_router.jsontext import Json, digest, plain
from statifier_router.messages import Event, copied_event
from statifier_router.steps import Effect, Step
from statifier_router.text import NAME_LIMIT, checked

CreateFunction = Callable[[Json, datetime], Step]
StepFunction = Callable[[Json, Event, datetime], Step]


@attrs.frozen(eq=False)
class FunctionChart:
    """A chart whose `create` and `step` are two functions of the host. Made by `chart`."""

    name: str
    content_hash: str
    _create: CreateFunction
    _step: StepFunction
    interpreter: str = "function"
    interpreter_version: str = "1"
    version: str = "1"
    # So that the executor does not check what `_answer` has checked.
    answers_checked: bool = True

    def create(self, *, data: Json, now: datetime) -> Step:
        """The first position, checked to be JSON."""
        with collecting() as emitted:
            answer = self._create(plain(data), now)
        return _answer(answer, emitted, before=None, created=True)

    def step(self, position: Json, event: Event, *, event_id: str, now: datetime) -> Step:
        """The answer to one event. The functions work on copies: they may change what they get."""
        own_event = copied_event(event)
        with collecting() as emitted:
            answer = self._step(plain(position), own_event, now)
        return _answer(answer, emitted, before=position, created=False)


def _answer(answer: object, emitted: Sequence[Effect], *, before: Json, created: bool) -> Step:
    step = checked_step(answer, before=before, created=created)
    if not emitted:
        return step
    with_emitted = attrs.evolve(step, effects=(*emitted, *step.effects))
    return checked_step(with_emitted, before=before, created=created)


def chart(name: str, *, create: CreateFunction, step: StepFunction, version: str = "1") -> FunctionChart:
    """A chart of two pure functions, `create(data, now)` and `step(position, event, now)`.

    The content hash covers the name, the functions' qualified names and `version`: give another
    `version` whenever what the functions do changes, so that live executions keep the old one.
    Raises `ConfigError` for a bad argument.

    >>> from statifier_router import Step
    >>> counter = chart(
    ...     "counter",
    ...     create=lambda data, now: Step({"n": 0}),
    ...     step=lambda position, event, now: Step({"n": position["n"] + 1}),
    ... )
    >>> counter.interpreter
    'function'
    """
    checked(name, "name", ConfigError, limit=NAME_LIMIT)
    checked(version, "version", ConfigError, limit=NAME_LIMIT)
    for argument, value in (("create", create), ("step", step)):
        if not callable(value):
            raise ConfigError(f"{argument} must be callable, not {type(value).__name__}")
    definition: Json = {
        "interpreter": "function",
        "name": name,
        "version": version,
        "create": _qualified(create),
        "step": _qualified(step),
    }
    return FunctionChart(
        name=name, content_hash=digest(definition), create=create, step=step, version=version
    )


def _qualified(function: object) -> str:
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}:{name}"
