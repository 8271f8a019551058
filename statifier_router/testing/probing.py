"""How the contract asks a chart: one question at a time, every answer as comparable text."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Final, TypeVar

from attrs import asdict, frozen

from statifier_router.jsontext import Json, decode, encode
from statifier_router.messages import Event
from statifier_router.steps import NO_DATA, Chart, Send, Step

T = TypeVar("T")

NOW: Final = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
CREATED_WITH: Final[Mapping[str, Json]] = {
    "execution": {"id": "ex_1", "scope": "acme", "document": "parcel", "key": "P7"}
}
_PATIENCE = 120.0
_HOUSE = str(Path(__file__).parents[2])


@frozen
class Answer:
    """A step, or what was raised in its place. `position` is where the execution stands after it."""

    position: Json
    step: Step | None
    error: Exception | None

    @property
    def failed(self) -> bool:
        """A raise counts as "failed": the executor makes the same of both."""
        return self.step is None or self.step.outcome == "failed"

    @property
    def moved(self) -> bool:
        """Whether it went on from where it stood."""
        return self.step is not None and self.step.outcome == "moved"

    @property
    def told(self) -> bool:
        """Whether an error in it reaches whoever reads the input row."""
        return self.failed or bool(self.step and self.step.errors)

    @property
    def effects(self) -> tuple[Any, ...]:
        """The effects, none where it raised."""
        return () if self.step is None else self.step.effects

    @property
    def text(self) -> str:
        """Everything in it, byte for byte."""
        return (
            text_of(self.step)
            if self.step is not None
            else f"raised {type(self.error).__name__}: {self.error}"
        )


def text_of(step: Step) -> str:
    """A step as text, in which two steps are alike only where all of them is, the order of keys too."""
    parts: dict[str, Any] = {
        "position": step.position,
        "outcome": step.outcome,
        "active": list(step.active),
        "status": step.status,
        "donedata": {} if step.donedata is NO_DATA else {"value": step.donedata},
        "effects": [
            {**asdict(effect), "delay": None if effect.delay is None else str(effect.delay)}
            if isinstance(effect, Send)
            else {"cancel": effect.send_id}
            for effect in step.effects
        ],
        "errors": list(step.errors),
    }
    return encode(parts)


def create(chart: Chart) -> Step:
    """The chart's first step."""
    return chart.create(data=copy_of(dict(CREATED_WITH)), now=NOW)


def ask(chart: Chart, position: Json, name: str, data: Json = None) -> Answer:
    """The chart's answer to one event from a position."""
    event = Event(name, {} if data is None else data)
    try:
        step = chart.step(position, event, event_id="m-1", now=NOW)
    except Exception as error:
        return Answer(position, None, error)
    return Answer(step.position if step.outcome in ("moved", "unknown") else position, step, None)


def course(chart: Chart, events: Sequence[tuple[str, Json]], *, start: Json = None) -> list[Answer]:
    """The answers to a series of events, each from where the last one ended; first the creation."""
    answers: list[Answer] = []
    if start is None:
        first = create(chart)
        answers.append(Answer(first.position, first, None))
        start = first.position
    for name, data in events:
        answers.append(ask(chart, start, name, data))
        start = answers[-1].position
    return answers


def at(chart: Chart, *events: tuple[str, Json]) -> Json:
    """The position after these events."""
    return course(chart, events)[-1].position


def copy_of(value: Json) -> Any:
    """The value through JSON text and back: shares nothing with it."""
    return decode(encode(value))


def not_json(value: object, path: str = "position") -> str | None:
    """Where a value is not plain JSON of Python's own types, and why; None where all of it is."""
    if value is None or type(value) in (bool, int, str):
        return None
    if type(value) is float:
        return None if isfinite(value) else f"{path} is {value}"
    if type(value) is list:
        return next(filter(None, (not_json(item, f"{path}[{at}]") for at, item in enumerate(value))), None)
    if type(value) is dict:
        for key, item in value.items():
            problem = not_json(item, f"{path}[{key!r}]")
            if type(key) is not str or problem:
                return problem or f"{path} has the key {key!r}, which is not text"
        return None
    return f"{path} is of type {type(value).__name__}"


def containers(value: object) -> Iterator[int]:
    """The identity of every list and dict in a value."""
    if isinstance(value, dict):
        yield id(value)
        for item in value.values():
            yield from containers(item)
    elif isinstance(value, (list, tuple)):
        yield id(value)
        for item in value:
            yield from containers(item)


def scribble(value: Any) -> Any:
    """Spoil every part of a value: whoever shares it is found out."""
    if isinstance(value, dict):
        for key, item in list(value.items()):
            value[key] = scribble(item)
        value["scribbled"] = True
    elif isinstance(value, list):
        value[:] = [*map(scribble, value), "scribbled"]
    else:
        return "scribbled"
    return value


# --- surroundings ---------------------------------------------------------------------------------


@contextmanager
def watched() -> Iterator[list[str]]:
    """Note every thread that this thread starts, and every sleep; neither happens."""
    seen: list[str] = []
    me = threading.get_ident()
    start, sleep = threading.Thread.start, time.sleep

    def no_start(self: threading.Thread) -> None:
        if threading.get_ident() != me:
            start(self)
            return
        seen.append(f"a thread was started ({type(self).__name__})")

    def no_sleep(seconds: Any, /) -> None:
        if threading.get_ident() != me:
            sleep(seconds)
            return
        seen.append(f"it slept for {seconds} seconds")

    threading.Thread.start = no_start  # type: ignore[method-assign]  # put back below
    time.sleep = no_sleep
    try:
        yield seen
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]  # as it was
        time.sleep = sleep


def within_patience(work: Callable[[], T]) -> T:
    """What `work` answers; `AssertionError` where it does not end in two minutes."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if errors:
        raise errors[0]
    assert answers, f"the step had not ended after {_PATIENCE:.0f} seconds: nothing bounds its loop"
    return answers[0]


def at_once(work: Callable[[int], T], *, threads: int) -> list[T]:
    """What `work(number)` answers in so many threads that begin together and change places often."""
    gate = threading.Barrier(threads)
    answers: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            gate.wait()
            answers[number] = work(number)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
    return [answers[number] for number in range(threads)]


# --- another process ------------------------------------------------------------------------------


def elsewhere(
    kind: type, courses: Sequence[tuple[str, Json, Sequence[tuple[str, Json]]]], *, seed: int
) -> Any:
    """What the charts of `kind` answer in a process of their own, with another order of hashes.

    Each course is a scenario, a position to start from (None: create) and events. Answers, for each,
    `{"content_hash": ..., "answers": [text, ...]}`.
    """
    module = sys.modules.get(kind.__module__)
    request = {
        "module": kind.__module__,
        "file": getattr(module, "__file__", None),
        "qualname": kind.__qualname__,
        "courses": [
            [scenario, start, [list(event) for event in events]] for scenario, start, events in courses
        ],
    }
    done = subprocess.run(
        [sys.executable, "-m", "statifier_router.testing.elsewhere"],
        input=encode(request),
        capture_output=True,
        encoding="utf-8",
        timeout=_PATIENCE,
        check=False,
        env={
            **os.environ,
            "PYTHONHASHSEED": str(seed),
            "PYTHONIOENCODING": "utf-8",
            "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), _HOUSE]),
        },
    )
    assert done.returncode == 0, f"the charts cannot be made in another process:\n{done.stderr}"
    return decode(done.stdout.splitlines()[-1])
