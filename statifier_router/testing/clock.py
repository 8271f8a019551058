"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from statifier_router.clock import as_utc
from statifier_router.errors import ConfigError

_START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """For `Config(clock=...)`: answers the same instant until it is moved. Threads may share it.

    >>> from datetime import timedelta
    >>> clock = Clock()
    >>> clock()
    datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    >>> clock.advance(timedelta(hours=3)).hour
    3
    """

    def __init__(self, start: datetime = _START) -> None:
        self._lock = threading.Lock()
        self._now = as_utc(start, "start", ConfigError)

    def __call__(self) -> datetime:
        """The instant at which it stands."""
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Move on by `by` and answer the new instant. Raises `ConfigError` where that would go back."""
        if not isinstance(by, timedelta):
            raise ConfigError(f"by must be a timedelta, not {type(by).__name__}")
        if by < timedelta(0):
            raise ConfigError(f"by must not be negative, it is {by}: set the clock to go back")
        with self._lock:
            self._now += by
            return self._now

    def set(self, now: datetime) -> datetime:
        """Move to `now`, also backward. Raises `ConfigError` for a naive time."""
        instant = as_utc(now, "now", ConfigError)
        with self._lock:
            self._now = instant
        return instant

    def __repr__(self) -> str:
        return f"Clock({self._now.isoformat()})"
