"""What a chart is, and what its step answers: pure values that every interpreter speaks."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol, runtime_checkable

from attrs import field, frozen

from statifier_router.jsontext import Json
from statifier_router.messages import Event
from statifier_router.values import quick, unchecked

StepOutcome = Literal["moved", "refused", "ignored", "unknown", "failed"]
StepStatus = Literal["active", "completed", "failed"]


class NoData(enum.Enum):
    """The type of `NO_DATA`: a chart ended without donedata, which is not the same as a null."""

    NO_DATA = "no data"

    def __repr__(self) -> str:
        return "NO_DATA"


NO_DATA: Final = NoData.NO_DATA


@frozen
class Send:
    """A chart's wish that an event be handed to `target`, after `delay` (relative) where given."""

    event: str
    data: Json = field(default=None, repr=False)
    target: str | None = field(default=None, kw_only=True)
    type: str | None = field(default=None, kw_only=True)
    send_id: str | None = field(default=None, kw_only=True)
    delay: timedelta | None = field(default=None, kw_only=True)


@frozen
class Cancel:
    """A chart's wish that its pending delayed sends of this id be dropped."""

    send_id: str


Effect = Send | Cancel


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        # Its letters are texts too, and would be taken for names of states.
        raise TypeError(f"active and errors are sequences of texts, not one text: {values!r}")
    return tuple(values)


def _effects(values: Iterable[Effect]) -> tuple[Effect, ...]:
    return tuple(values)


@quick
@frozen(weakref_slot=False)
class Step:
    """A chart's answer to being created, or to one event.

    `outcome`: "moved"; "refused" (a transition names this event, every guard said no); "ignored"
    (nothing reacts); "unknown"; "failed". Only "moved" and "unknown" may carry another position.
    `active`: the leaf states in document order. `errors`: what the chart met and handled itself.
    """

    position: Json = field(repr=False)
    outcome: StepOutcome = field(default="moved", kw_only=True)
    active: tuple[str, ...] = field(default=(), kw_only=True, converter=_texts)
    status: StepStatus = field(default="active", kw_only=True)
    donedata: Json | NoData = field(default=NO_DATA, kw_only=True, repr=False)
    effects: tuple[Effect, ...] = field(default=(), kw_only=True, converter=_effects)
    errors: tuple[str, ...] = field(default=(), kw_only=True, converter=_texts)


# A step of parts that are tuples already.
known_step = unchecked(Step)


@runtime_checkable
class Chart(Protocol):
    """One compiled revision of a document, named by its content hash. Pure: no I/O, no clock."""

    @property
    def content_hash(self) -> str:
        """SHA-256 of the definition: the name of this revision."""
        ...

    @property
    def interpreter(self) -> str:
        """The name of the adapter that made it."""
        ...

    @property
    def interpreter_version(self) -> str:
        """The version of the adapter's library; recorded, never guarded."""
        ...

    def create(self, *, data: Json, now: datetime) -> Step:
        """The first position. `data` tells the chart who it is (`{"execution": {...}}`)."""
        ...

    def step(self, position: Json, event: Event, *, event_id: str, now: datetime) -> Step:
        """The answer to one event from `position`, which is neither mutated nor kept."""
        ...
