"""The tasks that the inbound half wants from time to time: timers, kept events, reapers, pruning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from statifier_router import addresses, claims, deferrals, ledger, timers
from statifier_router.bindings import Binding
from statifier_router.config import Config
from statifier_router.contrib.procrastinate import library
from statifier_router.errors import ConfigError

if TYPE_CHECKING:
    from procrastinate import Blueprint

Bindings = Callable[[], Sequence[Binding]]

_BATCH = 100
_PAGE = 1_000


def register_upkeep(
    app: Blueprint,
    config: Config,
    *,
    fire_timers: str | None = "* * * * * */5",
    sweep_deferrals: str | None = "* * * * *",
    reap: str | None = "17 * * * *",
    prune: str | None = None,
    prune_after: timedelta | None = None,
    bindings: Bindings | None = None,
    queue: str = "statifier_router",
) -> None:
    """Register the upkeep of the inbound half on Procrastinate's `app`, an App or a Blueprint.

    Each is a line of cron, with seconds as a sixth field where wanted, or None: not by Procrastinate.
    `prune` deletes ledger rows older than `prune_after`. A configuration that resolves bindings per
    scope needs `bindings`, which answers those of every scope, for `reap`. Of each task one at most
    waits in `queue`.

    Raises `ConfigError`, naming the argument, and `MissingExtra`.

    >>> import procrastinate
    >>> from statifier_router.doctest_support import config
    >>> app = procrastinate.App(connector=procrastinate.PsycopgConnector())
    >>> register_upkeep(app, config())
    Traceback (most recent call last):
    ...
    statifier_router.errors.ConfigError: config.engine must be one of PostgreSQL by psycopg: ...
    """
    library.check(app, config, queue)
    if (prune is None) != (prune_after is None):
        raise ConfigError("prune and prune_after go together: when, and how old a ledger row must be")
    if prune_after is not None:
        library.check_positive(prune_after, "prune_after")
    if reap is not None and bindings is None and config.bindings_resolver is not None:
        raise ConfigError(
            "bindings is missing: this configuration resolves them per scope; give a callable that answers "
            "the bindings of every scope, or reap=None"
        )
    wanted: list[tuple[str, str | None, Callable[[], int]]] = [
        ("fire_timers", fire_timers, lambda: _fire_timers(config)),
        ("sweep_deferrals", sweep_deferrals, lambda: _sweep_deferrals(config)),
        ("reap", reap, lambda: _reap(config, bindings)),
        ("prune", prune, lambda: _prune(config, prune_after)),
    ]
    for name, cron, act in wanted:
        if cron is not None:
            _register(app, config, name, cron, act, queue)


def _register(
    app: Blueprint, config: Config, name: str, cron: str, act: Callable[[], int], queue: str
) -> None:
    begun = library.periodic(app, cron, name)

    @begun
    @app.task(
        name=f"statifier_router:{name}",
        queue=queue,
        queueing_lock=library.queueing_lock(config, name),
    )
    def run(timestamp: int) -> int:
        return act()


def _fire_timers(config: Config) -> int:
    total = 0
    while True:
        did = timers.fire_due(config, limit=_BATCH)
        handled = did.fired + did.discarded + did.failed
        total += handled
        if handled < _BATCH:
            return total


def _sweep_deferrals(config: Config) -> int:
    total = 0
    while (did := deferrals.sweep(config, limit=_BATCH)).landed or did.expired:
        total += did.landed + did.expired
    return total


def _reap(config: Config, bindings: Bindings | None) -> int:
    total = 0
    while count := claims.reap(config, limit=_PAGE):
        total += count
    given = None if bindings is None else bindings()
    after: int | None = None
    while True:
        page = addresses.reap(config, given, limit=_PAGE, after=after)
        total += page.deleted
        after = page.next
        if after is None:
            return total


def _prune(config: Config, older: timedelta | None) -> int:
    assert older is not None
    before, total = config.now() - older, 0
    while count := ledger.prune(config, before=before, limit=_PAGE):
        total += count
    return total
