"""Where the library's tables stand: a prefix on every name, and optionally a database schema."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attrs import field, frozen

from statifier_router.errors import ConfigError

if TYPE_CHECKING:
    from attrs import Attribute

# PostgreSQL cuts longer names silently, and two cut names may then be one.
IDENTIFIER_LIMIT = 63
# The longest name a table, a constraint or an index may have after the prefix.
SUFFIX_LIMIT = 40
PREFIX_LIMIT = IDENTIFIER_LIMIT - SUFFIX_LIMIT

_NAME = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)


def _prefix(_: object, attribute: Attribute[str], value: object) -> None:
    name = f"tables.{attribute.name}"
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be text, not {type(value).__name__}")
    if value and not _NAME.fullmatch(value):
        raise ConfigError(f"{name} must be of the form [a-z_][a-z0-9_]*, or empty: {value!r}")
    if len(value) > PREFIX_LIMIT:
        raise ConfigError(
            f"{name} is {len(value)} bytes long, the limit is {PREFIX_LIMIT} "
            f"(an identifier has at most {IDENTIFIER_LIMIT})"
        )
    if value.startswith("sqlite_"):
        raise ConfigError(f"{name} begins with 'sqlite_', which SQLite keeps for itself: {value!r}")


def _schema(_: object, attribute: Attribute[str | None], value: object) -> None:
    name = f"tables.{attribute.name}"
    if value is None:
        return
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be text or None, not {type(value).__name__}")
    if not _NAME.fullmatch(value):
        raise ConfigError(f"{name} must be of the form [a-z_][a-z0-9_]*: {value!r}")
    if len(value) > IDENTIFIER_LIMIT:
        raise ConfigError(f"{name} is {len(value)} bytes long, the limit is {IDENTIFIER_LIMIT}: {value!r}")
    if value.startswith("pg_"):
        raise ConfigError(f"{name} begins with 'pg_', which PostgreSQL keeps for itself: {value!r}")


@frozen
class Tables:
    """The names of the library's tables.

    `schema` is a PostgreSQL schema (the migrations create it where it is absent) or the name of a
    database attached to every SQLite connection; None takes the connection's default. Both are
    lower-case ASCII, so that they are the same name quoted and unquoted. Raises `ConfigError`.

    >>> Tables().prefix
    'statifier_router_'
    >>> Tables(prefix="sr_", schema="events")
    Tables(prefix='sr_', schema='events')
    """

    prefix: str = field(default="statifier_router_", validator=_prefix)
    schema: str | None = field(default=None, validator=_schema)
