"""eventsourcing: get an aggregate, trigger one event, save it. No inbox, no address, no ledger."""

from __future__ import annotations

import os
import sys

from measure_peer import KEYS, given, measure

parts, seconds = given(sys.argv)
os.environ.update(
    PERSISTENCE_MODULE="eventsourcing.postgres",
    POSTGRES_DBNAME=parts["dbname"],
    POSTGRES_HOST=parts["host"],
    POSTGRES_PORT=parts.get("port", "5432"),
    POSTGRES_USER=parts["user"],
    POSTGRES_PASSWORD=parts.get("password", "none"),
    CREATE_TABLE="y",
)

from eventsourcing.application import Application  # noqa: E402 - it reads its settings when imported
from eventsourcing.domain import Aggregate, event  # noqa: E402 - the same


class Parcel(Aggregate):
    def __init__(self) -> None:
        self.scans = 0
        self.depot = ""

    @event("Scanned")
    def scan(self, depot: str) -> None:
        self.scans += 1
        self.depot = depot


application: Application = Application()
ids = []
for _ in range(KEYS):
    parcel = Parcel()
    application.save(parcel)
    ids.append(parcel.id)


def work(number: int) -> None:
    parcel = application.repository.get(ids[number % KEYS])
    parcel.scan("Lyon")
    application.save(parcel)


measure(work, seconds)
