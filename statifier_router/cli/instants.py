"""Points in time as a person types them, and as they are shown."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from statifier_router.clock import as_utc
from statifier_router.errors import ConfigError

_AGE = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse(text: str, field: str, now: datetime) -> datetime:
    """An instant with its zone (`2026-01-31T12:00:00Z`), or an age before `now` (`30d`, `12h`).

    Units are s, m, h, d and w. Raises `ConfigError`, naming `field`.

    >>> from datetime import UTC
    >>> parse("36h", "--ledger-before", datetime(2026, 1, 31, 12, tzinfo=UTC)).isoformat()
    '2026-01-30T00:00:00+00:00'
    """
    age = _AGE.fullmatch(text)
    if age is not None:
        try:
            return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
        except OverflowError:
            raise ConfigError(f"{field}: {text} reaches back before the year 1") from None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{field} must be an instant such as 2026-01-31T12:00:00Z or an age such as 30d, not {text!r}"
        ) from None
    if instant.tzinfo is None:
        raise ConfigError(f"{field} has no time zone: {text!r}; write it as 2026-01-31T12:00:00Z")
    return as_utc(instant, field, ConfigError)


def duration(text: str, field: str) -> timedelta:
    """A length of time: a number and its unit, one of s, m, h, d and w. Raises `ConfigError`.

    >>> duration("90m", "--spread")
    datetime.timedelta(seconds=5400)
    """
    found = _AGE.fullmatch(text)
    if found is None:
        raise ConfigError(f"{field} must be a number and its unit such as 30s, 15m or 2h, not {text!r}")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def shown(instant: datetime) -> str:
    """To the second, in UTC, as tables show it."""
    return f"{instant:%Y-%m-%d %H:%M:%S}"
