"""The one place that asks for the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def system_clock() -> datetime:
    """The instant it is, in UTC."""
    return datetime.now(UTC)


def unix_milliseconds() -> int:
    """The instant it is, in milliseconds since 1970, for ids that are ordered by time."""
    return time.time_ns() // 1_000_000


def as_utc(now: object, field: str, error: type[Exception]) -> datetime:
    """`now` in UTC; raises `error`, naming `field`, where it is not an aware datetime.

    A naive time is refused because nothing says which zone it was read in.
    """
    if type(now) is datetime and now.tzinfo is UTC:
        return now
    if not isinstance(now, datetime):
        raise error(f"{field} must be an aware datetime, not {type(now).__name__}")
    if now.tzinfo is None or now.utcoffset() is None:
        raise error(f"{field} must be an aware datetime: {now!r} has no time zone")
    try:
        return now.astimezone(UTC)
    except OverflowError as fault:
        raise error(f"{field} is outside the years 1 to 9999 once in UTC: {now!r}") from fault
