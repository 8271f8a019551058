"""Procrastinate itself, and what is asked of a host's app and configuration before anything is registered."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from statifier_router import dialect
from statifier_router.config import Config
from statifier_router.errors import ConfigError, MissingExtra
from statifier_router.text import checked

if TYPE_CHECKING:
    from procrastinate import Blueprint

T = TypeVar("T")

# Procrastinate's own limit for the name of a queue.
_QUEUE_LIMIT = 128


def check(app: object, config: object, queue: object) -> Config:
    """The configuration, where its engine and `app` fit together.

    Raises `MissingExtra`, or `ConfigError` naming the argument.
    """
    try:
        import procrastinate
    except ImportError as error:
        raise MissingExtra("procrastinate", "statifier_router.contrib.procrastinate") from error
    if not isinstance(app, procrastinate.Blueprint):
        raise ConfigError(f"app must be an App or a Blueprint of Procrastinate, not {type(app).__name__}")
    if not isinstance(config, Config):
        raise ConfigError(f"config must be a Config, not {type(config).__name__}")
    engine: Any = config.engine
    if dialect.is_async_engine(engine):
        raise ConfigError("config.engine is an AsyncEngine: give a Config over create_engine(url)")
    if engine.dialect.name != "postgresql" or engine.dialect.driver != "psycopg":
        raise ConfigError(
            "config.engine must be one of PostgreSQL by psycopg: Procrastinate works in the same database; "
            f"it is {engine.dialect.name}+{engine.dialect.driver}"
        )
    checked(queue, "queue", ConfigError, limit=_QUEUE_LIMIT)
    return config


def periodic(app: Blueprint, cron: object, field: str) -> Callable[[T], T]:
    """The decorator of a task that begins by this cron line, once registered by itself."""
    from croniter import croniter

    if not isinstance(cron, str) or not croniter.is_valid(cron):
        raise ConfigError(f"{field} must be a line of cron, as '*/5 * * * *', not {cron!r}")
    decorate: Any = app.periodic(cron=cron)

    def typed(task: T) -> T:
        decorate(task)
        return task

    return typed


def check_positive(value: object, field: str) -> None:
    """Raise `ConfigError` for what is no length of time."""
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise ConfigError(f"{field} must be a positive timedelta, not {value!r}")


def queueing_lock(config: Config, name: str) -> str:
    """Of a task that waits once at most: other tables of ours in the same database have their own."""
    tables = config.tables
    return f"{'' if tables.schema is None else tables.schema + '.'}{tables.prefix}{name}"
