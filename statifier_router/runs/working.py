"""The embedded loop: at every interval a chain for each rule, run to its end, one rule after the other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from statifier_router.errors import ConfigError, SchemaError
from statifier_router.runs import chains
from statifier_router.runs.ends import ChainEnd, ChainId
from statifier_router.runs.faults import RuleFault

if TYPE_CHECKING:
    from statifier_router.runs.outbound import Outbound

log = logging.getLogger("statifier_router")

# Before a chain whose rule another job has is tried again.
BUSY_PAUSE: Final = timedelta(seconds=5)

# In seconds: a day.
_LONGEST: Final = 86_400

# Called with seconds.
Pause = Callable[[float], object]


def work(
    outbound: Outbound,
    *,
    every: timedelta | float,
    stop: threading.Event | None = None,
    pause: Pause | None = None,
) -> bool:
    """Go on until `stop` is set; answers whether anything failed meanwhile.

    A rule that fails is logged, and the next one is run; tables that are not there are a `SchemaError`.
    `pause` waits so many seconds; by default it ends early when `stop` is set.
    """
    interval = checked_interval(every)
    stop = threading.Event() if stop is None else stop
    pause = stop.wait if pause is None else pause
    failures = 0
    while not stop.is_set():
        begun = outbound.config.now()
        failures += _round(outbound, interval, stop, pause)
        if not stop.is_set():
            left = interval - (outbound.config.now() - begun)
            pause(max(left, timedelta(0)).total_seconds())
    return failures > 0


def _round(outbound: Outbound, every: timedelta, stop: threading.Event, pause: Pause) -> int:
    """One chain of each rule; answers how many failed."""
    failures = 0
    busy: list[tuple[str, ChainId]] = []
    for name in list(outbound.known_rules):
        if stop.is_set():
            return failures
        try:
            # Begun right before it is run: a chain that waits behind others counts as dead after a while.
            chain_id = chains.start(outbound, name, outbound.config.now())
            if chain_id is not None and outbound.run_chain(chain_id, stopping=stop.is_set) is ChainEnd.BUSY:
                busy.append((name, chain_id))
        except SchemaError:
            # No rule has tables: nothing that comes later would go better.
            raise
        except Exception as error:
            _log(name, error)
            failures += 1
    left = every // BUSY_PAUSE
    while busy and left > 0 and not stop.is_set():
        left -= 1
        pause(BUSY_PAUSE.total_seconds())
        for name, chain_id in list(busy):
            try:
                if outbound.run_chain(chain_id, stopping=stop.is_set) is ChainEnd.BUSY:
                    continue
            except Exception as error:
                _log(name, error)
                failures += 1
            busy.remove((name, chain_id))
    return failures


def checked_interval(every: object) -> timedelta:
    """A positive `timedelta`, or seconds; else `ConfigError`."""
    interval = every
    if isinstance(every, (int, float)) and not isinstance(every, bool) and 0 < every <= _LONGEST:
        interval = timedelta(seconds=every)
    if not isinstance(interval, timedelta) or interval <= timedelta(0):
        raise ConfigError(f"every must be a positive timedelta or number of seconds, not {every!r}")
    return interval


def _log(name: str, error: Exception) -> None:
    facts = {"statifier_router.rule": name}
    if isinstance(error, RuleFault):
        log.error("rule failed", extra=facts | {"statifier_router.fault": str(error)})
    else:
        log.error("rule failed", exc_info=error, extra=facts)
