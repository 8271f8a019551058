"""Whatever a command raises, as one line and an exit code."""

from __future__ import annotations

import click
from sqlalchemy.exc import DBAPIError

from statifier_router.cli.answers import MISUSED, REFUSED
from statifier_router.errors import (
    ConfigError,
    DeliveryError,
    KeyInvalid,
    MessageError,
    MissingExtra,
    RouterError,
)
from statifier_router.refusals import one_line, told

TRACEBACK_VARIABLE = "STATIFIER_ROUTER_TRACEBACK"

_MISUSE = (ConfigError, MissingExtra, MessageError, KeyInvalid)
_LENGTH = 2_000


def line_and_code(error: BaseException) -> tuple[str, int]:
    """One line that says what went wrong and what to do, and the code to exit with."""
    line, code = _line_and_code(error)
    return one_line(line, _LENGTH), code


def _line_and_code(error: BaseException) -> tuple[str, int]:
    if isinstance(error, click.UsageError):
        where = f"; see: {error.ctx.command_path} --help" if error.ctx is not None else ""
        return error.format_message().rstrip(".") + where, MISUSED
    if isinstance(error, click.ClickException):
        return error.format_message(), MISUSED
    if isinstance(error, DeliveryError):
        return delivery_fault(error), REFUSED
    if isinstance(error, _MISUSE):
        return str(error), MISUSED
    if isinstance(error, RouterError):
        return str(error), REFUSED
    if isinstance(error, DBAPIError):
        return f"the database refused: {_said(error)}", REFUSED
    if isinstance(error, OSError):
        return told(error), REFUSED
    what = told(error) if isinstance(error, Exception) else type(error).__name__
    return f"{what} (set {TRACEBACK_VARIABLE}=1 to see where it was raised)", REFUSED


def delivery_fault(error: DeliveryError) -> str:
    """What a delivery's fault says, with what the database said where it lies there."""
    cause = error.__cause__
    if isinstance(cause, DBAPIError):
        return f"{error} ({_said(cause)})"
    return str(error)


def _said(error: DBAPIError) -> str:
    """The driver's own words: SQLAlchemy's would add the statement and its parameters."""
    text = str(error.orig).strip() if error.orig is not None else ""
    return one_line(text, 300) or type(error.orig).__name__
