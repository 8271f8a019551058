"""The demo's bindings: three sources, each with data of its own shape, tell of the same parcels."""

from __future__ import annotations

from datetime import timedelta

from statifier_router.bindings import Binding, Defer
from statifier_router.sends import OutboxRoute

ROUTES = {"notices": OutboxRoute("notices")}

BINDINGS = (
    Binding(
        id="orders",
        source="shop",
        match={"kind": "order"},
        key="order.parcel",
        document="parcel",
        event="ordered",
        data=("city", "at"),
    ),
    Binding(
        id="cancels",
        source="shop",
        match={"kind": "cancel"},
        key="order.parcel",
        document="parcel",
        event="cancelled",
        data=("at",),
        # A parcel nobody has heard of needs no state machine to be cancelled; but its order may be late.
        create="never",
        missing=Defer(timedelta(hours=4)),
    ),
    Binding(
        id="pickups",
        source="carrier",
        match={"scan": "pickup"},
        key="parcel",
        document="parcel",
        event="picked_up",
        data=("at",),
    ),
    Binding(
        id="arrivals",
        source="depot",
        match={"event": "arrival"},
        key="barcode",
        document="parcel",
        event="arrived",
        data=("depot", "at"),
    ),
    Binding(
        id="deliveries",
        source="carrier",
        match={"scan": "delivery"},
        key="parcel",
        document="parcel",
        event="delivered",
        data=("at",),
    ),
    # The same webhooks again, for another document: how many parcels each depot has seen.
    Binding(
        id="depots",
        source="depot",
        match={"event": "arrival"},
        key="depot",
        document="depot",
        event="received",
        order="none",
    ),
)
