"""What a writer has to be able to do: a verb is a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import frozen

if TYPE_CHECKING:
    from statifier_router.jsontext import Json
    from statifier_router.runs.faults import RecordFault


@frozen
class Created:
    """The answer to a create: the record's address at the target, which later updates need.

    A message rule needs none.
    """

    remote_id: str | None = None


@frozen(kw_only=True)
class WriterTraits:
    """What the library may rely on at this target.

    `honours_keys`: a call that comes again under the same key takes no effect again. `refusal_settles`:
    a refusal says that an earlier call in doubt did not take effect either.
    """

    honours_keys: bool = False
    refusal_settles: bool = False


NO_TRAITS = WriterTraits()


@frozen
class WriteContext:
    """For what a writer is called.

    `key` stays equal for every attempt at one version of one record: hand it to the target where it
    takes one. `attempt` counts from 1. `in_doubt` says that an earlier call may have taken effect. The
    writer has to give up after `timeout`.
    """

    rule: str
    source_id: str
    key: str
    signal: str
    attempt: int
    in_doubt: bool
    timeout: timedelta


@runtime_checkable
class SupportsCreate(Protocol):
    """A writer that can create."""

    def create(self, payload: Json, context: WriteContext) -> Created:
        """Create the record at the target; answer its address there. Raises a `RecordFault`."""
        ...


@runtime_checkable
class SupportsUpdate(Protocol):
    """A writer that can update."""

    def update(self, remote_id: str, payload: Json, context: WriteContext) -> None:
        """Bring the target's record up to date; what it answers does not matter. Raises a `RecordFault`."""
        ...


@runtime_checkable
class SupportsDelete(Protocol):
    """A writer that can delete: a record that its source deleted is then deleted at the target too."""

    def delete(self, remote_id: str, context: WriteContext) -> None:
        """Delete the target's record. Raises a `RecordFault`; `Gone` counts as done."""
        ...


@runtime_checkable
class SupportsPing(Protocol):
    """A writer that can ask whether its target is back, at the cost of no record's attempt."""

    def ping(self, timeout: timedelta) -> None:
        """Return where the target answers; raise a `RecordFault` where it does not."""
        ...


@runtime_checkable
class SupportsLookup(Protocol):
    """A writer that can find out whether a create that is in doubt took effect."""

    def lookup(self, context: WriteContext) -> Created | None:
        """The address of what `context.key` created; None where nothing was. Raises a `RecordFault`."""
        ...


@runtime_checkable
class SupportsBulkCreate(Protocol):
    """A writer that can create many at once, each with an answer or a fault of its own."""

    def create_many(self, items: Sequence[tuple[Json, WriteContext]]) -> Sequence[Created | RecordFault]:
        """One answer for each item, in their order."""
        ...


@runtime_checkable
class SupportsBulkUpdate(Protocol):
    """A writer that can update many at once, each with a fault of its own or None."""

    def update_many(self, items: Sequence[tuple[str, Json, WriteContext]]) -> Sequence[RecordFault | None]:
        """One answer for each item, in their order; None where it is done."""
        ...


# Any object with one of the verbs; optionally with `traits: WriterTraits` and
# `classify(error: Exception) -> RecordFault | None`.
Writer = SupportsCreate | SupportsUpdate
Writers = Mapping[str, Writer]
Classify = Callable[[Exception], "RecordFault | None"]


def has_verb(writer: Any, verb: str) -> bool:
    """Whether the writer has this verb; one that is inherited and set to None is not there."""
    return callable(getattr(writer, verb, None))


def traits_of(writer: Any) -> WriterTraits:
    """What the writer declares, or nothing."""
    traits = getattr(writer, "traits", None)
    return traits if isinstance(traits, WriterTraits) else NO_TRAITS
