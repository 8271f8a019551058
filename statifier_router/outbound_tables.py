"""The tables of the outbound half: what changed, and what delivery runs made of it."""

from __future__ import annotations

from typing import Any, TypedDict

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
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from statifier_router.columns import (
    BIG,
    IDENTITY,
    XID,
    instant_column,
    json_column,
    name_column,
)

PARKED = "status IN ('exhausted', 'remote_gone')"


class OutboundTables(TypedDict):
    """The tables by the names of their fields in `Schema`."""

    changes: Table
    rules: Table
    records: Table
    operations: Table
    chains: Table
    breakers: Table
    audit: Table


class current_transaction(FunctionElement[int]):  # noqa: N801 - SQL's functions are written in lower case
    """The id of the transaction that writes a row; 0 on SQLite, whose writers never overlap."""

    type = XID
    inherit_cache = True


@compiles(current_transaction)
def _current_transaction(element: Any, compiler: Any, **_: Any) -> str:
    del element, compiler
    return "pg_current_xact_id()"


@compiles(current_transaction, "sqlite")
def _current_transaction_of_sqlite(element: Any, compiler: Any, **_: Any) -> str:
    del element, compiler
    return "0"


def outbound_tables(metadata: MetaData, prefix: str) -> OutboundTables:
    """The tables under this prefix, in `metadata`."""
    return {
        "changes": _changes(metadata, f"{prefix}changes"),
        "rules": _rules(metadata, f"{prefix}rules"),
        "records": _records(metadata, f"{prefix}records"),
        "operations": _operations(metadata, f"{prefix}operations"),
        "chains": _chains(metadata, f"{prefix}chains"),
        "breakers": _breakers(metadata, f"{prefix}breakers"),
        "audit": _audit(metadata, f"{prefix}audit"),
    }


def xid_column() -> Column[int]:
    """The id of the transaction that wrote the row: what a scan is ordered by, below its horizon."""
    return Column("xid", XID, nullable=False, server_default=current_transaction())


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean(), nullable=False)


def _count(name: str) -> Column[int]:
    return Column(name, BIG, nullable=False, autoincrement=False)


def _changes(metadata: MetaData, name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("seq", IDENTITY, Identity(), nullable=False),
        xid_column(),
        name_column("entity"),
        name_column("source_id"),
        name_column("signal"),
        json_column("data", nullable=True),
        _flag("deleted"),
        instant_column("created_at"),
        PrimaryKeyConstraint("seq", name=f"{name}_pk"),
        # The order of a scan.
        Index(f"{name}_entity_xid_seq", "entity", "xid", "seq"),
        # The newest version of one record.
        Index(f"{name}_entity_source_id_seq", "entity", "source_id", "seq"),
        sqlite_autoincrement=True,
    )


def _rules(metadata: MetaData, name: str) -> Table:
    return Table(
        name,
        metadata,
        name_column("name"),
        name_column("digest"),
        # What the rule was when it was saved; its digest is that of this text.
        json_column("definition"),
        # The position up to which everything was concluded; empty before the first.
        json_column("cursor", nullable=True),
        _flag("paused"),
        name_column("lease_owner", nullable=True),
        # Counted up by every job that takes the rule: what an older one writes is told by it.
        _count("lease_token"),
        instant_column("lease_until", nullable=True),
        instant_column("closed_since", nullable=True),
        PrimaryKeyConstraint("name", name=f"{name}_pk"),
    )


def _records(metadata: MetaData, name: str) -> Table:
    failed, parked = text("status = 'failed'"), text(PARKED)
    return Table(
        name,
        metadata,
        name_column("rule"),
        name_column("source_id"),
        name_column("status"),
        name_column("remote_id", nullable=True),
        # Of the version that was last handled.
        name_column("signal"),
        Column("attempts", Integer(), nullable=False),
        instant_column("next_attempt_at", nullable=True),
        name_column("error_kind", nullable=True),
        name_column("last_error", nullable=True),
        instant_column("parked_at", nullable=True),
        instant_column("acknowledged_at", nullable=True),
        # How many versions were delivered: a version that comes back is sent under a key of its own.
        _count("generation"),
        _count("row_version"),
        instant_column("updated_at"),
        PrimaryKeyConstraint("rule", "source_id", name=f"{name}_pk"),
        CheckConstraint(
            "status IN ('delivered', 'suppressed', 'failed', 'exhausted', 'remote_gone')",
            name=f"{name}_status",
        ),
        CheckConstraint("(status = 'failed') = (next_attempt_at IS NOT NULL)", name=f"{name}_failed_is_due"),
        CheckConstraint(
            f"NOT ({PARKED}) OR (last_error IS NOT NULL AND parked_at IS NOT NULL)",
            name=f"{name}_parked_says_why",
        ),
        Index(
            f"{name}_due",
            "rule",
            "next_attempt_at",
            "source_id",
            postgresql_where=failed,
            sqlite_where=failed,
        ),
        Index(
            f"{name}_parked",
            "rule",
            "status",
            "parked_at",
            postgresql_where=parked,
            sqlite_where=parked,
        ),
        postgresql_with={"fillfactor": 85},
    )


def _operations(metadata: MetaData, name: str) -> Table:
    return Table(
        name,
        metadata,
        name_column("rule"),
        name_column("source_id"),
        name_column("verb"),
        name_column("key"),
        name_column("signal"),
        # Of a create, which is sent again as it was; an update sends what is current.
        json_column("payload", nullable=True),
        _flag("in_doubt"),
        _count("lease_token"),
        name_column("chain_id"),
        # Of the record's row when the operation was opened; empty where there was none.
        Column("row_version", BIG, nullable=True),
        instant_column("started_at"),
        PrimaryKeyConstraint("rule", "source_id", name=f"{name}_pk"),
        CheckConstraint("verb IN ('create', 'update', 'delete')", name=f"{name}_verb"),
    )


def _chains(metadata: MetaData, name: str) -> Table:
    running = text("state = 'running'")
    return Table(
        name,
        metadata,
        name_column("id"),
        name_column("rule"),
        name_column("state"),
        name_column("phase"),
        # The chain's start: what fell due later is left to the next chain.
        instant_column("due_before"),
        name_column("digest"),
        _count("job_seq"),
        instant_column("heartbeat_at"),
        # How far this chain's own scan came; ahead of the rule's cursor never, behind it by an overlap.
        json_column("position", nullable=True),
        name_column("end", nullable=True),
        name_column("fault_kind", nullable=True),
        name_column("fault_source_id", nullable=True),
        name_column("fault_text", nullable=True),
        json_column("counters"),
        PrimaryKeyConstraint("id", name=f"{name}_pk"),
        CheckConstraint("state IN ('running', 'finished', 'failed', 'cancelled')", name=f"{name}_state"),
        CheckConstraint("phase IN ('drain', 'scan')", name=f"{name}_phase"),
        Index(f"{name}_running", "rule", unique=True, postgresql_where=running, sqlite_where=running),
        Index(f"{name}_rule_id", "rule", "id"),
    )


def _breakers(metadata: MetaData, name: str) -> Table:
    return Table(
        name,
        metadata,
        name_column("target"),
        name_column("state"),
        # Faults of the target in a row.
        Column("failures", Integer(), nullable=False),
        instant_column("open_until", nullable=True),
        # Until when one job alone may try whether the target is back.
        instant_column("probe_until", nullable=True),
        # How often in a row it opened: the cool-down doubles with each.
        Column("trips", Integer(), nullable=False),
        PrimaryKeyConstraint("target", name=f"{name}_pk"),
        CheckConstraint("state IN ('closed', 'open')", name=f"{name}_state"),
    )


def _audit(metadata: MetaData, name: str) -> Table:
    return Table(
        name,
        metadata,
        name_column("id"),
        name_column("actor"),
        name_column("action"),
        json_column("selection"),
        _count("count"),
        name_column("reason", nullable=True),
        instant_column("at"),
        PrimaryKeyConstraint("id", name=f"{name}_pk"),
    )
