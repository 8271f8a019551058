"""How long a target wants to be left alone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Final

# A target that names a year, by a slip or on purpose, is asked again before that.
LONGEST: Final = timedelta(hours=1)

_SECONDS = re.compile(r"[0-9]{1,300}(?:\.[0-9]{0,300})?")


def wait_asked_for(value: object, now: datetime) -> timedelta | None:
    """The wait from `now` on, at most an hour; None where `value` asks for none that can be understood.

    `value` is seconds, a `timedelta`, an aware instant, or the text of a header Retry-After: seconds or
    an HTTP date. What is negative, zero or in the past asks for nothing; so does a naive time, which
    may be any.

    >>> wait_asked_for("120", datetime(2026, 1, 1, tzinfo=UTC))
    datetime.timedelta(seconds=120)
    >>> wait_asked_for("Thu, 01 Jan 2026 00:00:30 GMT", datetime(2026, 1, 1, tzinfo=UTC))
    datetime.timedelta(seconds=30)
    """
    wait = _wait(value, now)
    return None if wait is None or wait <= timedelta(0) else min(wait, LONGEST)


def _wait(value: object, now: datetime) -> timedelta | None:
    if isinstance(value, str):
        text = value.strip()
        value = float(text) if _SECONDS.fullmatch(text) else _date(text)
    if isinstance(value, timedelta):
        return value
    if isinstance(value, datetime):
        return None if value.utcoffset() is None else value - now
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not isfinite(value):
        return None
    # A number of seconds may be longer than a timedelta can be.
    longest = LONGEST.total_seconds()
    return timedelta(seconds=float(max(-longest, min(value, longest))))


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    # The oldest of the three forms of an HTTP date names no zone: all of them are GMT.
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
