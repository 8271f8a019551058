"""What the library logs, on standard error, where the host has not said where it goes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from statifier_router.cli.answers import clean
from statifier_router.refusals import one_line

_PREFIX = "statifier_router."
_LENGTH = 2_000


class _Line(logging.Formatter):
    """One line an event: its instant, its level, its name, and its facts."""

    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(
            f"{name.removeprefix(_PREFIX)}={value}"
            for name, value in vars(record).items()
            if name.startswith(_PREFIX)
        )
        line = f"{self.formatTime(record)} {record.levelname.lower()} {record.getMessage()}"
        if facts:
            line += f" ({facts})"
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line += f": {type(error).__name__}: {error}"
        return clean(one_line(line, _LENGTH))


@contextmanager
def on_standard_error() -> Iterator[None]:
    """Print what is logged in the block; nothing changes where a host has its own handlers."""
    log = logging.getLogger("statifier_router")
    if log.hasHandlers():
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
