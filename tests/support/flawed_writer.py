"""A small writer that keeps the contract of writers, and fourteen of it that each break one point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, ClassVar

from attrs import define, field

from statifier_router.jsontext import Json, copied
from statifier_router.runs import (
    Created,
    Gone,
    RecordFault,
    Rejected,
    Throttled,
    TimedOut,
    Unavailable,
    WriteContext,
    WriterTraits,
)
from statifier_router.testing import WriterContract

SECRET = "hunter2"


@define
class Shelf:
    """A target: records by address, and the addresses that keys made."""

    records: dict[str, Any] = field(factory=dict)
    keys: dict[str, str] = field(factory=dict)
    mood: str = "well"
    numbers: Iterator[int] = field(factory=lambda: count(1))


@define(eq=False)
class Writer:
    """A writer to a shelf; `flaw` is the point that it breaks, 0 for none."""

    shelf: Shelf
    flaw: int = 0
    _handed: Any = None

    @property
    def traits(self) -> Any:
        """It honours keys."""
        return WriterTraits(honours_keys=True)

    @property
    def classify(self) -> Any:
        """None: it raises nothing else. Under flaw 1 something that cannot be called."""
        return "no" if self.flaw == 1 else None

    def create(self, payload: Json, context: WriteContext) -> Created:
        """As a writer does; so all below."""
        self._mood()
        key = context.key
        if self.flaw == 6 and "\r" in context.source_id:
            raise Rejected("the header is not allowed")
        if key in self.shelf.keys and self.flaw != 12:
            return Created(self.shelf.keys[key])
        # One number for each, whichever threads come at once.
        address = f"R{next(self.shelf.numbers)}"
        if self.flaw == 14:
            # Two threads that read before either writes.
            self._handed = payload
            for _ in range(200):
                pass
            payload = self._handed
        self._put(address, payload)
        self.shelf.keys[key if self.flaw != 12 else f"{key} {address}"] = address
        return Created(" " if self.flaw == 2 else address)

    def update(self, remote_id: str, payload: Json, context: WriteContext) -> None:
        self._mood()
        remote_id = remote_id.strip() if self.flaw == 6 else remote_id
        if remote_id not in self.shelf.records and self.flaw != 7:
            raise Gone(f"there is no {remote_id}")
        if self.flaw == 3:
            remote_id = next(iter(self.shelf.records))
            self.shelf.records.clear()
        self._put(remote_id, payload)

    def delete(self, remote_id: str, context: WriteContext) -> None:
        self._mood()
        if self.shelf.records.pop(remote_id, None) is None:
            raise Gone(f"there is no {remote_id}")

    def ping(self, timeout: timedelta) -> None:
        self._mood()

    def lookup(self, context: WriteContext) -> Created | None:
        address = self.shelf.keys.get(context.key)
        if self.flaw == 12 and address is None:
            address = next(iter(self.shelf.records), None)
        return None if address is None else Created(address)

    def create_many(self, items: Sequence[tuple[Json, WriteContext]]) -> Sequence[Created | RecordFault]:
        made = [self.create(payload, context) for payload, context in items]
        return made[1:] if self.flaw == 14 else made

    def update_many(self, items: Sequence[tuple[str, Json, WriteContext]]) -> Sequence[RecordFault | None]:
        answers: list[RecordFault | None] = []
        for remote_id, payload, context in items:
            try:
                self.update(remote_id, payload, context)
                answers.append(None)
            except RecordFault as fault:
                if self.flaw == 14:
                    raise
                answers.append(fault)
        return answers

    def _put(self, address: str, payload: Any) -> None:
        if payload["text"] == "refused":
            if self.flaw == 8:
                self.shelf.records[address] = payload
            raise Rejected("this text is refused")
        kept = payload if self.flaw == 4 else copied(payload)
        if self.flaw == 5:
            kept = {"text": payload["text"].strip()}
        self.shelf.records[address] = kept

    def _mood(self) -> None:
        mood, flaw = self.shelf.mood, self.flaw
        if mood == "unreachable":
            raise Unavailable(f"no answer for {SECRET if flaw == 13 else '***'}", in_doubt=flaw == 9)
        if mood == "silent":
            raise Unavailable() if flaw == 10 else TimedOut()
        if mood == "out of order":
            raise Rejected("500") if flaw == 11 else Unavailable(in_doubt=True)
        if mood == "throttling":
            raise Throttled("60")


class FlawedWriter(WriterContract):
    """The contract over `Writer`; a subclass sets `flaw`."""

    flaw: ClassVar[int] = 0
    not_applicable: ClassVar[Mapping[str, str]] = {}

    def _shelf(self) -> Shelf:
        shelf: Shelf = self.__dict__.setdefault("shelf", Shelf())
        return shelf

    def writer(self) -> Writer:
        """As the contract says; so all below."""
        return Writer(self._shelf(), self.flaw)

    def texts(self) -> list[str]:
        return [record["text"] for record in self._shelf().records.values()]

    def forget(self, remote_id: str) -> None:
        del self._shelf().records[remote_id]

    def refused(self) -> Json:
        return {"text": "refused"}

    def unreachable(self) -> Writer:
        return Writer(Shelf(mood="unreachable"), self.flaw)

    def silent(self) -> Writer:
        return Writer(Shelf(mood="silent"), self.flaw)

    def out_of_order(self) -> Writer:
        return Writer(Shelf(mood="out of order"), self.flaw)

    def throttling(self) -> Writer:
        return Writer(Shelf(mood="throttling"), self.flaw)

    def secrets(self) -> list[str]:
        return [SECRET]
