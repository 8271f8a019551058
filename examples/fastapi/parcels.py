"""What the endpoint routes to: the scans of a carrier, each to the one life of its parcel."""

from statifier_router import Binding, ChartRegistry, Config, Step, create_engine, migrations
from statifier_router.interpreters import function

BINDINGS = [
    Binding(
        id="scans",
        source="carrier",
        match={"kind": "scan"},
        key="parcel.id",
        document="parcel",
        event="scanned",
    )
]
CHARTS = ChartRegistry()
CHARTS.publish(
    "parcel",
    function.chart(
        "parcel",
        create=lambda data, now: Step({"scans": 0}, active=["moving"]),
        step=lambda position, event, now: Step({"scans": position["scans"] + 1}, active=["moving"]),
    ),
)


def configure(url: str) -> Config:
    engine = create_engine(url)
    with engine.begin() as connection:
        migrations.up(connection)
    return Config(engine, charts=CHARTS, bindings=BINDINGS)
