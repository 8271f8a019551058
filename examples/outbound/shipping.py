"""A shipping company that keeps another system's parcels current, and sends it notices.

Two rules go over HTTP to one system. `parcels` is a rule of state: the newest version of each parcel, created
once and updated from then on. `notices` is a rule of messages: each is sent once and never changed.

The command line finds both objects here:

    statifier-router --config shipping:config work --every 1
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from statifier_router import ChartRegistry, Config, OutboxRoute, RecordRoute, create_engine
from statifier_router.demo.bindings import BINDINGS
from statifier_router.interpreters import statemachine
from statifier_router.runs import (
    Changes,
    HttpWriter,
    InJson,
    Outbound,
    Outbox,
    Policy,
    RetryPolicy,
    Rule,
    WriterTraits,
)

DATABASE = "OUTBOUND_EXAMPLE_DATABASE"
TARGET = "OUTBOUND_EXAMPLE_TARGET"

# The lengths of time are those of a demonstration: by default a rule waits minutes, then hours.
TIMEOUT = timedelta(seconds=2)
RETRY = RetryPolicy(waits=(timedelta(seconds=1), timedelta(seconds=1), timedelta(seconds=2)))


def charts() -> ChartRegistry:
    registry = ChartRegistry()
    text = Path(__file__).with_name("parcel.scxml").read_text(encoding="utf-8")
    registry.publish("parcel", statemachine.scxml(text))
    return registry


def config() -> Config:
    return Config(
        create_engine(f"sqlite:///{os.environ[DATABASE]}"),
        charts=charts(),
        bindings=[each for each in BINDINGS if each.document == "parcel"],
        routes={
            "parcels": RecordRoute("parcel", record_id="parcel"),
            "notices": OutboxRoute("notices"),
        },
    )


def outbound() -> Outbound:
    origin = os.environ[TARGET]
    # The target knows a key that it has heard before, so that a repeated call does nothing twice.
    keyed = WriterTraits(honours_keys=True)
    return Outbound(
        config(),
        writers={
            "records over http": HttpWriter(f"{origin}/parcels", address=InJson("id"), traits=keyed),
            "messages over http": HttpWriter(f"{origin}/notices", address=None, traits=keyed),
        },
        rules=[
            Rule(
                "parcels",
                entity="parcel",
                source=Changes("parcel"),
                target="tracking",
                driver="records over http",
                policy=Policy.UPSERT,
                batch_size=20,
                retry=RETRY,
                call_timeout=TIMEOUT,
            ),
            Rule(
                "notices",
                entity="notice",
                source=Outbox("notices"),
                target="mailing",
                driver="messages over http",
                policy=Policy.CREATE_ONLY,
                kind="message",
                batch_size=20,
                retry=RETRY,
                call_timeout=TIMEOUT,
            ),
        ],
        lease=2 * TIMEOUT,
    )
