"""What importing the library costs, and what it does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import statifier_router


def _child(code: str, cwd: str) -> str:
    found_at = str(Path(statifier_router.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": found_at},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sqlite_needs_no_libpq(tmp_path):
    """Where psycopg cannot be imported (no libpq on the machine), SQLite works all the same."""
    told = _child(
        """
        import sys
        sys.modules["psycopg"] = None
        from statifier_router import (
            Binding, ChartRegistry, Config, Message, Step, create_engine, migrations, route,
        )
        from statifier_router.interpreters import function

        engine = create_engine("sqlite:///parcels.db")
        with engine.begin() as connection:
            migrations.up(connection)
        charts = ChartRegistry()
        charts.publish(
            "parcel",
            function.chart("parcel", create=lambda data, now: Step(0), step=lambda p, e, now: Step(p + 1)),
        )
        binding = Binding(id="b", source="s", match={}, key="k", document="parcel", event="e")
        config = Config(engine, charts=charts, bindings=[binding])
        print([outcome.recorded for outcome in route(config, Message("s", "m", "", {"k": "P7"}))])
        engine.dispose()
        """,
        str(tmp_path),
    )
    assert told == "['created_and_delivered']\n"


def test_the_core_loads_no_extra(tmp_path):
    """SQLAlchemy, attrs and python-ulid are loaded; the library of an extra is not, before its first use."""
    extras = ("click", "rich", "statemachine", "transitions", "cel", "aiosqlite", "pytest", "httpx2", "h11")
    extras += ("procrastinate",)
    told = _child(
        f"""
        import sys
        import statifier_router
        import statifier_router.contrib.procrastinate
        import statifier_router.runs
        print([name for name in {extras!r} if name in sys.modules])
        """,
        str(tmp_path),
    )
    assert told == "[]\n"
