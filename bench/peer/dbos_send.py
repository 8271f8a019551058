"""DBOS: get or create the workflow of a key, and send it one message. Accepted: received later."""

from __future__ import annotations

import sys

from dbos import DBOS, SetWorkflowID
from measure_peer import given, measure

parts, seconds = given(sys.argv)
url = (
    f"postgresql://{parts['user']}@/{parts['dbname']}?host={parts['host']}&port={parts.get('port', '5432')}"
    "&options=-c%20synchronous_commit%3Doff"
)
DBOS(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL", "run_admin_server": False})
# Fewer than elsewhere: each is a thread that waits.
KEYS = 20


@DBOS.workflow()
def parcel() -> int:
    scans = 0
    while DBOS.recv("scanned", timeout_seconds=3600) is not None:
        scans += 1
    return scans


DBOS.launch()


def work(number: int) -> None:
    key = f"P{number % KEYS}"
    with SetWorkflowID(key):
        DBOS.start_workflow(parcel)
    DBOS.send(key, {"depot": "Lyon"}, topic="scanned", idempotency_key=f"m-{number}")


measure(work, seconds)
