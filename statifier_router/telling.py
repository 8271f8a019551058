"""What the caller of an outermost door is told of a fault that its database work met."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from statifier_router import dialect, migrations
from statifier_router.ambient import Frame
from statifier_router.config import Config
from statifier_router.dialect import Trouble, trouble_of
from statifier_router.errors import (
    DatabaseFault,
    DeliveryError,
    ExecutionBusy,
    IsolationConflict,
    SchemaError,
)

_WAIT = "_statifier_router_wait"


def note_wait(error: BaseException, frame: Frame) -> None:
    """Keep on the error what was being waited for, or how to find out: the frame is about to end."""
    # An exception may refuse attributes; then the error is told without it.
    with suppress(AttributeError):
        if not hasattr(error, _WAIT):
            setattr(error, _WAIT, (frame.waiting_for, frame.suspect))


def _waited_for(config: Config, error: Exception, borrowed: Connection | None) -> str | None:
    """The execution whose lock was waited for in vain, None for a claim or an address."""
    wait: tuple[str | None, Callable[[Connection], str | None] | None]
    wait = getattr(error, _WAIT, (None, None))
    execution_id, suspect = wait
    if suspect is None:
        return execution_id
    try:
        if borrowed is not None:
            return suspect(borrowed)
        with config.writer.connect() as connection:
            return suspect(connection)
    except SQLAlchemyError:
        # Whatever befalls the asking, the wait that ran out is what the caller is told.
        return None


def raise_translated(
    config: Config,
    error: Exception,
    binding_id: str | None,
    *,
    borrowed: Connection | None = None,
) -> NoReturn:
    """Raise `error` as what the caller of an outermost door is told."""
    if isinstance(error, DeliveryError):
        if error.binding_id is None:
            error.binding_id = binding_id
        raise error
    trouble = trouble_of(error)
    if trouble is None:
        raise error
    if trouble.kind == "schema":
        _probe_schema(config, error, borrowed)
        raise error
    raise _told(config, error, trouble, binding_id, borrowed) from error


def _told(
    config: Config,
    error: Exception,
    trouble: Trouble,
    binding_id: str | None,
    borrowed: Connection | None,
) -> DeliveryError:
    if trouble.kind == "busy":
        waited_for = _waited_for(config, error, borrowed)
        return ExecutionBusy(waited_for, binding_id=binding_id)
    if borrowed is not None and dialect.is_serialization(error):
        return IsolationConflict(binding_id=binding_id)
    return DatabaseFault(trouble.sqlstate, binding_id=binding_id)


def _probe_schema(config: Config, error: Exception, borrowed: Connection | None) -> None:
    """Raise `SchemaError` where the tables are not what this version needs.

    A statement that met a missing table may also have been the host's own: the error alone does
    not tell.
    """
    try:
        if borrowed is not None:
            migrations.verify(borrowed, tables=config.tables)
            return
        with config.reader.connect() as connection:
            migrations.verify(connection, tables=config.tables)
    except SchemaError as fault:
        raise fault from error
