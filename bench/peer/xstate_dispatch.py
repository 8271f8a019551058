"""xstate-statemachine: one envelope through its inbound dispatcher, over its SQLite store and inbox.

SQLite, not PostgreSQL: a machine's snapshot and the mark of the envelope in one transaction.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from measure_peer import given, measure
from xstate_statemachine import create_machine
from xstate_statemachine.eda import Envelope, InboundDispatcher, SyncFakeBrokerAdapter
from xstate_statemachine.persistence import PessimisticLock, SQLiteInbox, SQLiteStore

_, seconds = given(sys.argv)
KEYS = 100
machine = create_machine(
    {
        "id": "parcel",
        "initial": "moving",
        "context": {"scans": 0},
        "states": {"moving": {"on": {"SCAN": "held"}}, "held": {"on": {"SCAN": "moving"}}},
    }
)
with tempfile.TemporaryDirectory() as place:
    store = SQLiteStore(str(Path(place) / "bench.db"))
    broker = SyncFakeBrokerAdapter()
    dispatcher = InboundDispatcher(
        store,
        lambda kind: machine,
        event_type=lambda envelope: "SCAN",
        key_for=lambda envelope, of: f"{of.id}:{envelope.subject}",
        inbox=SQLiteInbox(store),
        lock=PessimisticLock(),
    )

    def work(number: int) -> None:
        broker.publish(
            "events",
            Envelope.new(type="scan", subject=f"P{number % KEYS}", data={"depot": "Lyon"}, source="carrier"),
        )
        dispatcher.run_once_sync(broker, "events")

    measure(work, seconds)
