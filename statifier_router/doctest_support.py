"""What the examples in the docstrings share: a small parcel configuration on a new SQLite file."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection

from statifier_router import migrations
from statifier_router.bindings import Binding
from statifier_router.charts import ChartRegistry
from statifier_router.config import Config
from statifier_router.dialect import create_engine
from statifier_router.interpreters import function
from statifier_router.jsontext import Json
from statifier_router.runs import Created, Outbound, Policy, Rule
from statifier_router.runs.records import Position, Record
from statifier_router.runs.writers import WriteContext
from statifier_router.steps import Step

_FOLDER = tempfile.TemporaryDirectory(prefix="statifier_router_examples_")
_numbers = itertools.count(1)


def config() -> Config:
    """A migrated database of its own, one binding `scans`, ids `ex_1`, `ex_2` and so on."""
    engine = create_engine(f"sqlite:///{Path(_FOLDER.name) / f'{next(_numbers)}.db'}")
    with engine.begin() as connection:
        migrations.up(connection)
    charts = ChartRegistry()
    charts.publish(
        "parcel",
        function.chart(
            "parcel",
            create=lambda data, now: Step({"seen": 0}, active=["moving"]),
            step=lambda position, event, now: Step(
                {"seen": position["seen"] + 1},  # type: ignore[index,call-overload,operator]  # this chart's own shape
                active=["moving"],
            ),
        ),
    )
    minted = itertools.count(1)
    return Config(
        engine,
        charts=charts,
        bindings=[
            Binding(id="scans", source="carrier", match={}, key="parcel", document="parcel", event="scanned")
        ],
        clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        mint_execution_id=lambda scope, document, key: f"ex_{next(minted)}",
    )


class _Carrier:
    """A writer that takes everything."""

    def create(self, payload: Json, context: WriteContext) -> Created:
        return Created(f"R-{context.source_id}")

    def update(self, remote_id: str, payload: Json, context: WriteContext) -> None:
        pass


class _NoChanges:
    """A source at which nothing ever changes."""

    def scan(self, connection: Connection, after: Position, limit: int) -> Sequence[Record]:
        return []

    def load(self, connection: Connection, source_ids: Sequence[str]) -> Mapping[str, Record | None]:
        return dict.fromkeys(source_ids)


def outbound() -> Outbound:
    """One rule, `parcels`, to the target `carrier`, on a database of its own; nothing ever changed."""
    rule = Rule(
        "parcels",
        entity="parcel",
        source=_NoChanges(),
        target="carrier",
        driver="carrier",
        policy=Policy.UPSERT,
    )
    return Outbound(config(), writers={"carrier": _Carrier()}, rules=[rule])
