"""The tables as this version of the code knows them; 15-schema is their measure.

What a step changes is never indexed, so that PostgreSQL can update an execution in place.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import frozen
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    cast,
    text,
)
from sqlalchemy.types import TypeDecorator, UserDefinedType

from statifier_router.clock import as_utc
from statifier_router.tables import Tables

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Dialect
    from sqlalchemy.types import TypeEngine

TERMINAL = "status IN ('completed', 'failed', 'cancelled')"
NOT_TERMINAL = "status NOT IN ('completed', 'failed', 'cancelled')"


class _IsoInstant(TypeDecorator[datetime]):
    """An instant as text of one width, so that the order of the text is the order of time."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        del dialect
        return None if value is None else datetime.fromisoformat(value)


class Instant(TypeDecorator[datetime]):
    """An aware datetime, exact to the microsecond; it comes back in UTC.

    PostgreSQL keeps `timestamptz`, SQLite the text `YYYY-MM-DDTHH:MM:SS.ffffffZ`. A naive value is a
    `ValueError`, which SQLAlchemy hands on as a `StatementError`.
    """

    impl = DateTime(timezone=True).with_variant(_IsoInstant(), "sqlite")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a naive value; turn any other to UTC."""
        del dialect
        return None if value is None else as_utc(value, "an instant", ValueError)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        """Turn the value to UTC: the driver answers in the session's time zone."""
        del dialect
        return None if value is None else value.astimezone(UTC)


class _PostgresJsonText(UserDefinedType[str]):
    """PostgreSQL `json` written from and read as text, past the driver's own decoding."""

    cache_ok = True
    # Without it a parameter in INSERT .. SELECT is text, which the column refuses.
    render_bind_cast = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return cast(column, Text())


class JsonText(TypeDecorator[str]):
    """JSON that was encoded by us: its Python value is that text, character for character.

    PostgreSQL keeps `json` (`jsonb` reorders keys, rewrites numbers and refuses an escaped NUL), SQLite
    text.
    """

    impl = Text().with_variant(_PostgresJsonText(), "postgresql")
    cache_ok = True


# Bytewise comparison, whatever the database's locale; SQLite's own is bytewise.
_NAME: TypeEngine[str] = Text(collation="C").with_variant(Text(), "sqlite")
_BIG: TypeEngine[int] = BigInteger()
# Only a column of exactly the type INTEGER can be AUTOINCREMENT on SQLite.
_IDENTITY: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")


@frozen(eq=False)
class Schema:
    """The Core tables under one `Tables`; compared by identity."""

    tables: Tables
    metadata: MetaData
    claims: Table
    addresses: Table
    executions: Table
    inputs: Table
    ledger: Table
    charts: Table
    publications: Table
    schema_version: Table


@lru_cache(maxsize=64)
def schema_of(tables: Tables) -> Schema:
    """The tables under this prefix and schema; the same object for the same `tables`."""
    metadata = MetaData(schema=tables.schema)
    prefix = tables.prefix
    return Schema(
        tables=tables,
        metadata=metadata,
        claims=_claims(metadata, prefix),
        addresses=_addresses(metadata, prefix),
        executions=_executions(metadata, prefix),
        inputs=_inputs(metadata, prefix),
        ledger=_ledger(metadata, prefix),
        charts=_charts(metadata, prefix),
        publications=_publications(metadata, prefix),
        schema_version=_schema_version(metadata, prefix),
    )


def _name(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, _NAME, nullable=nullable)


def _json(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, JsonText(), nullable=nullable)


def _instant(name: str, *, nullable: bool = False) -> Column[datetime]:
    return Column(name, Instant(), nullable=nullable)


def _identity() -> Column[int]:
    return Column("id", _IDENTITY, Identity(), nullable=False)


def _claims(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}claims"
    return Table(
        name,
        metadata,
        _name("binding_id"),
        _name("scope"),
        _name("message_id"),
        _name("digest"),
        _instant("expires_at"),
        PrimaryKeyConstraint("binding_id", "scope", "message_id", name=f"{name}_pk"),
        Index(f"{name}_expires_at", "expires_at"),
    )


def _addresses(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}addresses"
    return Table(
        name,
        metadata,
        _identity(),
        _name("scope"),
        _name("document"),
        _name("key"),
        _name("execution_id"),
        _instant("inserted_at"),
        _instant("terminal_seen_at", nullable=True),
        PrimaryKeyConstraint("id", name=f"{name}_pk"),
        UniqueConstraint("scope", "document", "key", name=f"{name}_scope_document_key"),
        Index(f"{name}_execution_id", "execution_id"),
        sqlite_autoincrement=True,
    )


def _executions(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}executions"
    return Table(
        name,
        metadata,
        _name("id"),
        _name("document"),
        _name("scope"),
        _name("key"),
        _name("content_hash"),
        _name("interpreter"),
        _name("status"),
        # Empty once it was pruned.
        _json("position", nullable=True),
        _json("active"),
        Column("revision", _BIG, nullable=False),
        Column("deferred", Integer(), nullable=False, server_default=text("0")),
        _name("failure", nullable=True),
        _instant("created_at"),
        _instant("ended_at", nullable=True),
        PrimaryKeyConstraint("id", name=f"{name}_pk"),
        CheckConstraint(
            "status IN ('active', 'suspended', 'completed', 'failed', 'cancelled')",
            name=f"{name}_status",
        ),
        Index(
            f"{name}_content_hash",
            "content_hash",
            postgresql_where=text(NOT_TERMINAL),
            sqlite_where=text(NOT_TERMINAL),
        ),
        Index(
            f"{name}_ended_at",
            "ended_at",
            postgresql_where=text(TERMINAL),
            sqlite_where=text(TERMINAL),
        ),
        postgresql_with={"fillfactor": 85},
    )


def _inputs(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}inputs"
    return Table(
        name,
        metadata,
        _name("execution_id"),
        Column("seq", _BIG, nullable=False, autoincrement=False),
        _name("door"),
        _json("event", nullable=True),
        _name("message_id", nullable=True),
        _name("actor", nullable=True),
        _json("errors", nullable=True),
        _json("context", nullable=True),
        # What a create or a migration needs beyond an event, so that the log suffices alone.
        _json("details", nullable=True),
        _instant("at"),
        PrimaryKeyConstraint("execution_id", "seq", name=f"{name}_pk"),
    )


def _ledger(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}ledger"
    return Table(
        name,
        metadata,
        _identity(),
        _name("binding_id", nullable=True),
        _name("message_id"),
        _name("scope"),
        _name("outcome"),
        _name("key", nullable=True),
        _name("execution_id", nullable=True),
        _name("reason", nullable=True),
        _instant("inserted_at"),
        PrimaryKeyConstraint("id", name=f"{name}_pk"),
        Index(f"{name}_message_id", "message_id"),
        Index(f"{name}_binding_id_id", "binding_id", "id"),
        Index(f"{name}_execution_id", "execution_id"),
        sqlite_autoincrement=True,
    )


def _charts(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}charts"
    return Table(
        name,
        metadata,
        _name("content_hash"),
        _name("interpreter"),
        # Where it was first saved for; what runs on what is in `publications`.
        _name("document", nullable=True),
        _name("version", nullable=True),
        _name("source"),
        _instant("created_at"),
        _instant("retired_at", nullable=True),
        PrimaryKeyConstraint("content_hash", name=f"{name}_pk"),
    )


def _publications(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}publications"
    return Table(
        name,
        metadata,
        _name("document"),
        # A null in a key would be equal to nothing, so "in every scope" is a column of its own.
        Column("everywhere", Boolean(), nullable=False),
        _name("scope"),
        _name("content_hash"),
        _instant("published_at"),
        PrimaryKeyConstraint("document", "everywhere", "scope", name=f"{name}_pk"),
    )


def _schema_version(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}schema_version"
    return Table(
        name,
        metadata,
        Column("version", Integer(), nullable=False, autoincrement=False),
        _instant("applied_at"),
        PrimaryKeyConstraint("version", name=f"{name}_pk"),
    )
