"""The tables as this version of the code knows them; 15-schema is their measure.

What a step changes is never indexed, so that PostgreSQL can update an execution in place.
"""

from __future__ import annotations

from functools import lru_cache

from attrs import frozen
from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    text,
)

from statifier_router.columns import (
    BIG,
    IDENTITY,
    Instant,
    JsonText,
    instant_column,
    json_column,
    name_column,
)
from statifier_router.outbound_tables import outbound_tables, xid_column
from statifier_router.tables import Tables

__all__ = ["NOT_TERMINAL", "TERMINAL", "Instant", "JsonText", "Schema", "schema_of"]

TERMINAL = "status IN ('completed', 'failed', 'cancelled')"
NOT_TERMINAL = "status NOT IN ('completed', 'failed', 'cancelled')"


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
    timers: Table
    outbox: Table
    deferred: Table
    changes: Table
    rules: Table
    records: Table
    operations: Table
    chains: Table
    breakers: Table
    audit: Table
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
        timers=_timers(metadata, prefix),
        outbox=_outbox(metadata, prefix),
        deferred=_deferred(metadata, prefix),
        **outbound_tables(metadata, prefix),
        schema_version=_schema_version(metadata, prefix),
    )


def _identity() -> Column[int]:
    return Column("id", IDENTITY, Identity(), nullable=False)


def _claims(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}claims"
    return Table(
        name,
        metadata,
        name_column("binding_id"),
        name_column("scope"),
        name_column("message_id"),
        name_column("digest"),
        instant_column("expires_at"),
        PrimaryKeyConstraint("binding_id", "scope", "message_id", name=f"{name}_pk"),
        Index(f"{name}_expires_at", "expires_at"),
    )


def _addresses(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}addresses"
    return Table(
        name,
        metadata,
        _identity(),
        name_column("scope"),
        name_column("document"),
        name_column("key"),
        name_column("execution_id"),
        instant_column("inserted_at"),
        instant_column("terminal_seen_at", nullable=True),
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
        name_column("id"),
        name_column("document"),
        name_column("scope"),
        name_column("key"),
        name_column("content_hash"),
        name_column("interpreter"),
        name_column("status"),
        # Empty once it was pruned.
        json_column("position", nullable=True),
        json_column("active"),
        Column("revision", BIG, nullable=False),
        Column("deferred", Integer(), nullable=False, server_default=text("0")),
        name_column("failure", nullable=True),
        instant_column("created_at"),
        instant_column("ended_at", nullable=True),
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
        name_column("execution_id"),
        Column("seq", BIG, nullable=False, autoincrement=False),
        name_column("door"),
        json_column("event", nullable=True),
        name_column("message_id", nullable=True),
        name_column("actor", nullable=True),
        json_column("errors", nullable=True),
        json_column("context", nullable=True),
        # What a create or a migration needs beyond an event, so that the log suffices alone.
        json_column("details", nullable=True),
        instant_column("at"),
        PrimaryKeyConstraint("execution_id", "seq", name=f"{name}_pk"),
    )


def _ledger(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}ledger"
    return Table(
        name,
        metadata,
        _identity(),
        name_column("binding_id", nullable=True),
        name_column("message_id"),
        name_column("scope"),
        name_column("outcome"),
        name_column("key", nullable=True),
        name_column("execution_id", nullable=True),
        name_column("reason", nullable=True),
        instant_column("inserted_at"),
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
        name_column("content_hash"),
        name_column("interpreter"),
        # Where it was first saved for; what runs on what is in `publications`.
        name_column("document", nullable=True),
        name_column("version", nullable=True),
        name_column("source"),
        instant_column("created_at"),
        instant_column("retired_at", nullable=True),
        PrimaryKeyConstraint("content_hash", name=f"{name}_pk"),
    )


def _publications(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}publications"
    return Table(
        name,
        metadata,
        name_column("document"),
        # A null in a key would be equal to nothing, so "in every scope" is a column of its own.
        Column("everywhere", Boolean(), nullable=False),
        name_column("scope"),
        name_column("content_hash"),
        instant_column("published_at"),
        PrimaryKeyConstraint("document", "everywhere", "scope", name=f"{name}_pk"),
    )


def _timers(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}timers"
    pending = text("state = 'pending'")
    return Table(
        name,
        metadata,
        name_column("key"),
        name_column("execution_id"),
        name_column("send_id", nullable=True),
        name_column("target", nullable=True),
        json_column("event"),
        json_column("context", nullable=True),
        instant_column("due_at"),
        name_column("state"),
        Column("tries", Integer(), nullable=False),
        instant_column("next_try_at"),
        name_column("last_error", nullable=True),
        PrimaryKeyConstraint("key", name=f"{name}_pk"),
        CheckConstraint("state IN ('pending', 'fired', 'discarded', 'cancelled')", name=f"{name}_state"),
        Index(
            f"{name}_next_try_at_key",
            "next_try_at",
            "key",
            postgresql_where=pending,
            sqlite_where=pending,
        ),
        Index(
            f"{name}_execution_id_send_id",
            "execution_id",
            "send_id",
            postgresql_where=pending,
            sqlite_where=pending,
        ),
    )


def _outbox(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}outbox"
    return Table(
        name,
        metadata,
        _identity(),
        name_column("queue"),
        name_column("key"),
        name_column("execution_id"),
        name_column("scope"),
        json_column("event"),
        json_column("context", nullable=True),
        instant_column("created_at"),
        xid_column(),
        PrimaryKeyConstraint("id", name=f"{name}_pk"),
        UniqueConstraint("key", name=f"{name}_key"),
        Index(f"{name}_queue_id", "queue", "id"),
        # The order of a scan: ids of transactions that overlap do not appear in their own.
        Index(f"{name}_queue_xid_id", "queue", "xid", "id"),
        sqlite_autoincrement=True,
    )


def _deferred(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}deferred"
    by_address = text("execution_id IS NULL")
    return Table(
        name,
        metadata,
        _identity(),
        name_column("scope"),
        name_column("document"),
        name_column("key"),
        # Empty while it is kept by its address, for an execution that is still to come.
        name_column("execution_id", nullable=True),
        name_column("binding_id"),
        name_column("message_id"),
        json_column("event"),
        json_column("context", nullable=True),
        instant_column("until"),
        instant_column("created_at"),
        PrimaryKeyConstraint("id", name=f"{name}_pk"),
        Index(f"{name}_execution_id_id", "execution_id", "id"),
        Index(
            f"{name}_scope_document_key",
            "scope",
            "document",
            "key",
            postgresql_where=by_address,
            sqlite_where=by_address,
        ),
        Index(f"{name}_until", "until"),
        sqlite_autoincrement=True,
    )


def _schema_version(metadata: MetaData, prefix: str) -> Table:
    name = f"{prefix}schema_version"
    return Table(
        name,
        metadata,
        Column("version", Integer(), nullable=False, autoincrement=False),
        instant_column("applied_at"),
        PrimaryKeyConstraint("version", name=f"{name}_pk"),
    )
