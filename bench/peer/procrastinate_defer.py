"""procrastinate: defer one job with a lock. Accepted only: no state is read, nothing is stepped."""

from __future__ import annotations

import sys

import procrastinate
from measure_peer import KEYS, given, measure

parts, seconds = given(sys.argv)
app = procrastinate.App(
    connector=procrastinate.SyncPsycopgConnector(
        kwargs={**parts, "options": "-c synchronous_commit=off"}, min_size=1, max_size=1
    )
)


@app.task(name="scan")
def scan(depot: str) -> None:
    pass


app.open()
app.schema_manager.apply_schema()


def work(number: int) -> None:
    scan.configure(lock=str(number % KEYS)).defer(depot="Lyon")


measure(work, seconds)
app.close()
