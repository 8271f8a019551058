"""A day of impressions and clicks, in an unlucky order, by a clock that is moved by hand.

    python examples/join/run.py

Prints what each message became, and at the end what was handed off.
"""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta

from joining import configure
from sqlalchemy import text

from statifier_router import Config, Message, create_engine, migrations, route, timers
from statifier_router.testing import Clock

# After how many minutes, what comes, for which impression; None: time passes.
DAY = [
    (0, "impression", "I1"),
    (5, "click", "I1"),
    (6, "click", "I1"),
    (10, "click", "I2"),
    (40, "impression", "I2"),
    (50, "impression", "I3"),
    (60, "click", "I4"),
    (121, "impression", "I4"),
    (1440 + 51, None, None),
    (1440 + 70, "click", "I3"),
    (1440 + 112, None, None),
    (1440 + 130, "click", "I3"),
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/join.db")
        with engine.begin() as connection:
            migrations.up(connection)
        clock = Clock(datetime(2026, 5, 1, tzinfo=UTC))
        try:
            _play(configure(engine, clock=clock), clock)
        finally:
            engine.dispose()


def _play(config: Config, clock: Clock) -> None:
    began = clock()
    for number, (minutes, kind, impression_id) in enumerate(DAY):
        clock.set(began + timedelta(minutes=minutes))
        fired = timers.fire_due(config)
        at = f"{clock():%d %H:%M}"
        if fired.fired:
            print(f"{at}  {fired.fired} timer(s) fired")
        if kind is not None:
            data = {"kind": kind, "impression_id": impression_id, "campaign": "spring", "link": "/offer"}
            outcomes = route(config, Message("ads", f"m-{number}", "acme", data))
            (became,) = [each.recorded for each in outcomes if each.recorded != "no_match"]
            print(f"{at}  {kind:10} {impression_id}  {became}")
    print()
    with config.engine.connect() as connection:
        found = connection.execute(text("SELECT queue, event FROM statifier_router_outbox ORDER BY id"))
        for queue, event in found:
            told = json.loads(event)
            print(f"{queue:14} {told['name']:10} {told['data']['impression_id']}")


if __name__ == "__main__":
    main()
