"""The demo's two state machines, as SCXML documents: the life of a parcel, and the day of a depot."""

from __future__ import annotations

from importlib.resources import files

from statifier_router.charts import ChartRegistry
from statifier_router.errors import MissingExtra
from statifier_router.interpreters import statemachine

DOCUMENTS = ("parcel", "depot")


def charts() -> ChartRegistry:
    """Both charts, published for every scope. Raises `MissingExtra` without the extra `statemachine`."""
    registry = ChartRegistry()
    for document in DOCUMENTS:
        text = files("statifier_router.demo").joinpath(f"{document}.scxml").read_text(encoding="utf-8")
        try:
            registry.publish(document, statemachine.scxml(text))
        except MissingExtra as missing:
            raise MissingExtra(missing.extra, "the demo") from missing
    return registry
