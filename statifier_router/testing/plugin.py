"""The pytest plugin: a clock, charts, and a `Config` over a migrated SQLite file. It starts no server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from statifier_router import migrations
from statifier_router.charts import ChartRegistry
from statifier_router.config import Config
from statifier_router.dialect import create_engine
from statifier_router.testing.clock import Clock
from statifier_router.testing.scripted import Reply, ScriptedChart, scripted


@pytest.fixture
def router_clock() -> Clock:
    """A clock that stands still until the test moves it."""
    return Clock()


@pytest.fixture
def router_charts() -> ChartRegistry:
    """An empty registry of charts, the one that `router_config` uses."""
    return ChartRegistry()


@pytest.fixture
def router_scripted(router_charts: ChartRegistry) -> Callable[..., ScriptedChart]:
    """`router_scripted(document, script, ...)`: a scripted chart, published for the document."""

    def publish(document: str, script: Mapping[str, Mapping[str, Reply]], **options: Any) -> ScriptedChart:
        chart = scripted(document, script, **options)
        router_charts.publish(document, chart)
        return chart

    return publish


@pytest.fixture
def router_engine(tmp_path: Path) -> Iterator[Engine]:
    """A migrated SQLite file of the test's own, under `tmp_path`."""
    engine = create_engine(f"sqlite:///{tmp_path / 'statifier_router.db'}")
    with engine.begin() as connection:
        migrations.up(connection)
    yield engine
    engine.dispose()


@pytest.fixture
def router_config(
    router_engine: Engine, router_charts: ChartRegistry, router_clock: Clock
) -> Callable[..., Config]:
    """`router_config(bindings=[...], ...)`: a `Config` over the engine, charts and clock of this test."""

    def make(**fields: Any) -> Config:
        if not {"charts", "resolver", "chart_resolver"} & fields.keys():
            fields["charts"] = router_charts
        return Config(fields.pop("engine", router_engine), **{"clock": router_clock, **fields})

    return make
