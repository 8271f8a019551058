"""What a door answers. Each outcome is a committed fact, and `recorded` is its spelling in the ledger."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from statifier_router.values import unchecked

DropReason = Literal["no_execution", "finished", "unmatched_event", "deferral_full"]


@frozen(weakref_slot=False)
class CreatedAndDelivered:
    """The execution was created and stepped with the event."""

    binding_id: str
    execution_id: str

    @property
    def recorded(self) -> str:
        """The ledger's spelling."""
        return "created_and_delivered"


@frozen(weakref_slot=False)
class Delivered:
    """An existing execution was stepped with the event."""

    binding_id: str
    execution_id: str

    @property
    def recorded(self) -> str:
        """The ledger's spelling."""
        return "delivered"


# Made by every delivery that ends well.
known_delivered = unchecked(Delivered)
known_created = unchecked(CreatedAndDelivered)


@frozen
class Duplicate:
    """The message was taken before, within the horizon.

    `content_differs` is True when the earlier one carried another event, key or projection.
    """

    binding_id: str
    content_differs: bool = False

    @property
    def recorded(self) -> str:
        """The ledger's spelling."""
        return "duplicate"


@frozen
class Deferred:
    """The event is kept, to be offered again after a later step."""

    binding_id: str
    execution_id: str | None

    @property
    def recorded(self) -> str:
        """The ledger's spelling."""
        return "deferred"


@frozen
class Dropped:
    """The message was taken and had no effect, for `reason`."""

    binding_id: str
    reason: DropReason
    execution_id: str | None = None

    @property
    def recorded(self) -> str:
        """The ledger's spelling."""
        return f"dropped: {self.reason}"


@frozen
class KeyRefused:
    """The binding could not judge the message (`stage="match"`) or name its key (`stage="key"`)."""

    binding_id: str
    stage: Literal["match", "key"]
    detail: str

    @property
    def recorded(self) -> str:
        """The ledger's spelling."""
        return "key_refused"


@frozen
class NoMatch:
    """The message is not for this binding. Nothing is written for it."""

    binding_id: str

    @property
    def recorded(self) -> str:
        """The ledger's spelling."""
        return "no_match"


Outcome = CreatedAndDelivered | Delivered | Duplicate | Deferred | Dropped | KeyRefused | NoMatch
