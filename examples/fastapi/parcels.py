"""What the endpoint routes to: the scans of a carrier, each to the one life of its parcel."""

from statifier_router import Binding, ChartRegistry, Config, create_engine, migrations
from statifier_router.interpreters import statemachine

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
    statemachine.scxml("""
        <scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" name="parcel" initial="moving">
          <datamodel><data id="scans" expr="0"/></datamodel>
          <state id="moving">
            <transition event="scanned"><assign location="scans" expr="scans + 1"/></transition>
          </state>
        </scxml>"""),
)


def configure(url: str) -> Config:
    engine = create_engine(url)
    with engine.begin() as connection:
        migrations.up(connection)
    return Config(engine, charts=CHARTS, bindings=BINDINGS)
