"""The invariant that every test leaves behind: the fold of an input log equals the stored position."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import attrs
from sqlalchemy import URL, Engine, column, inspect, select, table


class Configs:
    """Makes the configurations of one test and folds what their executions logged at its end."""

    def __init__(self) -> None:
        self._watched: list[tuple[Any, URL]] = []

    def __call__(self, database: Any, *, engine: Any = None, **kw: Any) -> Any:
        """A `Config` on this database, watched; an empty `ChartRegistry` where no charts are given."""
        import statifier_router

        if not kw.keys() & {"charts", "resolver", "chart_resolver"}:
            kw["charts"] = statifier_router.ChartRegistry()
        if database.kind == "postgresql":
            _with_plan(kw)
        return self.watch(statifier_router.Config(database.engine() if engine is None else engine, **kw))

    def watch(self, config: Any) -> Any:
        """Have the executions of a configuration that was made elsewhere folded too; answers it."""
        url = config.engine.url
        if url.get_backend_name() == "sqlite" and url.database:
            # The test may go to another directory and come back before its logs are folded.
            url = url.set(database=str(Path(url.database).absolute()))
        self._watched.append((config, url))
        return config

    def fold(self) -> int:
        """Fold every log, and answer how many there were; `AssertionError` names those that disagree."""
        from statifier_router import executions

        folded = 0
        wrong = []
        for config, url in self._watched:
            # A pool of its own: the test's may be exhausted, cut, or counted.
            fresh = _beside(config, url)
            try:
                for execution_id in _stored(fresh):
                    folded += 1
                    if not executions.replay(fresh, execution_id).agrees:
                        wrong.append(execution_id)
            finally:
                fresh.engine.dispose()
        assert not wrong, f"the input log does not fold to the stored position of {', '.join(wrong)}"
        return folded


def _with_plan(kw: dict[str, Any]) -> None:
    """Under `STATIFIER_ROUTER_TEST_PLAN` the tests run over another plan of statements than the default."""
    from tests.support.racing import WritingPlainly

    plan = os.environ.get("STATIFIER_ROUTER_TEST_PLAN", "merged")
    if plan == "plain" and kw.get("executor") is None:
        kw["executor"] = WritingPlainly()
    elif plan == "pipelined":
        kw.setdefault("pipeline", True)


def _beside(config: Any, url: URL) -> Any:
    # A worker's PostgreSQL databases are the same in every test, a SQLite file is another one in each.
    make = _kept_engine if url.get_backend_name() == "postgresql" else _engine
    return attrs.evolve(config, engine=make(url))


def _engine(url: URL) -> Engine:
    import statifier_router

    return statifier_router.create_engine(url)


_kept_engine = functools.cache(_engine)


def _stored(config: Any) -> list[str]:
    name, schema = f"{config.tables.prefix}executions", config.tables.schema
    with config.engine.connect() as connection:
        if not inspect(connection).has_table(name, schema=schema):
            return []
        executions = table(name, column("id"), column("position"), schema=schema)
        kept = select(executions.c.id).where(executions.c.position.is_not(None)).order_by(executions.c.id)
        return list(connection.scalars(kept))
