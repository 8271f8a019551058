"""Numbered versions of the tables, each frozen as it was released; nothing migrates by itself.

Everything happens in the caller's transaction, which the caller commits: call it from a script, from a
host's own migration, or by `statifier-router migrate`. Where two processes migrate at once, the second
waits for the first and then finds nothing to do.

>>> print(sql("sqlite").splitlines()[1])
BEGIN IMMEDIATE;
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import Connection, column, inspect, select, table
from sqlalchemy.orm import Session

from statifier_router import dialect as databases
from statifier_router.errors import ConfigError, SchemaError
from statifier_router.migrations import v0001, v0002, v0003, v0004
from statifier_router.tables import Tables

if TYPE_CHECKING:
    from sqlalchemy import ColumnClause

    from statifier_router.dialect import Kind
    from statifier_router.migrations.version import Version

__all__ = ["LATEST", "current", "down", "sql", "up", "verify"]

_VERSIONS: tuple[Version, ...] = (v0001.VERSION, v0002.VERSION, v0003.VERSION, v0004.VERSION)

LATEST = len(_VERSIONS)

_DEFAULT = Tables()


def up(
    connection: Connection | Session, *, tables: Tables = _DEFAULT, to: int | None = None
) -> tuple[int, ...]:
    """Bring the tables up to version `to` (the latest); answer the versions applied, none when there.

    Runs in the caller's transaction and waits for another process that migrates the same tables. A
    PostgreSQL schema that is absent is created. Raises `ConfigError` for a connection on which this
    could not be undone (autocommit, SQLite not prepared, a level above READ COMMITTED), and
    `SchemaError` where the tables are newer or not the library's.
    """
    target = _number("to", LATEST if to is None else to)
    borrowed = _borrow(connection)
    _lock(borrowed, tables)
    found = _known(borrowed, tables)
    if found >= target:
        return ()
    if found == 0:
        _make_room(borrowed, tables)
    for version in _VERSIONS[found:target]:
        _run(borrowed, version.up(databases.kind(borrowed), tables))
    return tuple(range(found + 1, target + 1))


def down(
    connection: Connection | Session, *, tables: Tables = _DEFAULT, to: int | None = None
) -> tuple[int, ...]:
    """Undo versions down to `to`, **dropping what they hold**; answer the versions undone.

    Without `to` one version is undone; `to=0` removes every table. Otherwise as `up`. A schema that
    `up` created stays.
    """
    target = None if to is None else _number("to", to)
    borrowed = _borrow(connection)
    _lock(borrowed, tables)
    found = _known(borrowed, tables)
    if target is None:
        target = max(found - 1, 0)
    for version in reversed(_VERSIONS[target:found]):
        _run(borrowed, version.down(databases.kind(borrowed), tables))
    return tuple(range(found, target, -1))


def current(connection: Connection | Session, *, tables: Tables = _DEFAULT) -> int:
    """The version the tables are at, 0 where there are none; it only reads.

    Raises `SchemaError` where a table of that name is not the library's.
    """
    return _found(_connection(connection), tables)


def verify(connection: Connection | Session, *, tables: Tables = _DEFAULT) -> None:
    """Raise `SchemaError`, with the line that mends it, unless the tables are those of this version.

    Refused are tables that are absent, outdated, newer, or not the library's. It only reads.
    """
    borrowed = _connection(connection)
    found = _known(borrowed, tables)
    mend = "run: statifier-router migrate, or migrations.up(connection) and commit"
    if tables != _DEFAULT:
        mend = f"run: statifier-router migrate, or migrations.up(connection, tables={tables}) and commit"
    if found == 0:
        raise SchemaError(f"the tables {_named(tables, '*')} are not in this database; {mend}")
    if found < LATEST:
        raise SchemaError(
            f"the tables {_named(tables, '*')} are at version {found}, "
            f"this version of the library needs {LATEST}; {mend}"
        )
    _verify_columns(borrowed, tables, found)


def sql(dialect: str, *, since: int = 0, to: int | None = None, tables: Tables = _DEFAULT) -> str:
    """The script that leads from version `since` to version `to` (the latest), in one transaction.

    For whoever applies changes by hand; `dialect` is `"postgresql"` or `"sqlite"`. A `to` below
    `since` gives the way back. It needs no connection. Raises `ConfigError`.

    >>> "CREATE TABLE" in sql("postgresql", since=0, to=1)
    True
    """
    if dialect == "postgresql":
        kind: Kind = "postgresql"
        opening = ["BEGIN", f"SELECT pg_advisory_xact_lock({_lock_key(tables)})"]
    elif dialect == "sqlite":
        kind = "sqlite"
        opening = ["BEGIN IMMEDIATE"]
    else:
        raise ConfigError(f"dialect must be 'postgresql' or 'sqlite', not {dialect!r}")
    start = _number("since", since)
    target = _number("to", LATEST if to is None else to)
    statements = opening
    if start == 0 and kind == "postgresql" and tables.schema is not None:
        statements.append(_create_schema(tables.schema))
    for version in _VERSIONS[start:target]:
        statements += version.up(kind, tables)
    for version in reversed(_VERSIONS[target:start]):
        statements += version.down(kind, tables)
    statements.append("COMMIT")
    title = f"-- statifier_router: tables {_named(tables, '*')} from version {start} to {target}\n"
    return title + "".join(f"{statement};\n" for statement in statements)


# --- The caller's connection ----------------------------------------------------------------------


def _connection(connection: object) -> Connection:
    if isinstance(connection, Session):
        return connection.connection()
    if isinstance(connection, Connection):
        return connection
    raise ConfigError(
        f"connection must be a sqlalchemy Connection or Session, not {type(connection).__name__}"
    )


def _borrow(connection: object) -> Connection:
    borrowed = _connection(connection)
    databases.check_borrowed(borrowed)
    return borrowed


def _lock(connection: Connection, tables: Tables) -> None:
    """Wait for another process that migrates; what is read afterwards is what it left.

    SQLite needs nothing: the transaction began IMMEDIATE.
    """
    if databases.kind(connection) == "sqlite":
        return
    row = _row(
        connection,
        f"SELECT pg_advisory_xact_lock({_lock_key(tables)}), current_setting('transaction_isolation')",
    )
    if row[1] not in ("read committed", "read uncommitted"):
        # The snapshot may be older than what the process before us committed.
        raise ConfigError(
            f"connection is in a transaction at {str(row[1]).upper()}; migrate at READ COMMITTED: "
            'engine.execution_options(isolation_level="READ COMMITTED")'
        )


def _lock_key(tables: Tables) -> int:
    named = f"statifier_router migrations {tables.schema or ''}.{tables.prefix}"
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:8], "big", signed=True)


def _run(connection: Connection, statements: list[str]) -> None:
    for statement in statements:
        # No parameters, so that the driver reads no placeholder into the text.
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _row(connection: Connection, statement: str) -> Any:
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).one()


# --- What stands ----------------------------------------------------------------------------------


def _found(connection: Connection, tables: Tables) -> int:
    """The version by the version table, judged by nothing else; 0 where there is none."""
    databases.kind(connection)
    name = f"{tables.prefix}schema_version"
    inspector = inspect(connection)
    if not inspector.has_table(name, schema=tables.schema):
        return 0
    columns = {each["name"] for each in inspector.get_columns(name, schema=tables.schema)}
    if not columns.issuperset(v0001.VERSION.columns["schema_version"]):
        _refuse_foreign(tables, f"the table {_named(tables, 'schema_version')} has other columns")
    version: ColumnClause[int] = column("version")
    statement = select(version).select_from(table(name, schema=tables.schema)).order_by(version)
    rows = list(connection.scalars(statement))
    if not rows or rows != list(range(1, len(rows) + 1)):
        _refuse_foreign(
            tables, f"the table {_named(tables, 'schema_version')} does not hold versions from 1 on"
        )
    return len(rows)


def _known(connection: Connection, tables: Tables) -> int:
    found = _found(connection, tables)
    if found > LATEST:
        raise SchemaError(
            f"the tables {_named(tables, '*')} are at version {found}, newer than version {LATEST}, the "
            "latest that this version of the library knows; run: pip install --upgrade statifier-router"
        )
    return found


def _verify_columns(connection: Connection, tables: Tables, found: int) -> None:
    wanted: dict[str, set[str]] = {}
    for version in _VERSIONS[:found]:
        for name, columns in version.columns.items():
            wanted.setdefault(f"{tables.prefix}{name}", set()).update(columns)
    standing = inspect(connection).get_multi_columns(schema=tables.schema, filter_names=list(wanted))
    names = {key[1]: {each["name"] for each in columns} for key, columns in standing.items()}
    for name, needed in wanted.items():
        if name not in names:
            _refuse_foreign(tables, f"version {found} has a table {name}, which is absent")
        if missing := sorted(needed - names[name]):
            _refuse_foreign(tables, f"version {found} has a column {name}.{missing[0]}, which is absent")


def _make_room(connection: Connection, tables: Tables) -> None:
    """Before the first version: the schema is there, and none of the names is taken."""
    inspector = inspect(connection)
    if tables.schema is not None:
        if databases.kind(connection) == "postgresql":
            _run(connection, [_create_schema(tables.schema)])
        elif tables.schema not in inspector.get_schema_names():
            raise ConfigError(
                f"tables.schema names no database attached to this SQLite connection: {tables.schema!r}; "
                "attach it to every connection, or leave the schema out"
            )
    for name in v0001.VERSION.columns:
        if inspector.has_table(f"{tables.prefix}{name}", schema=tables.schema):
            _refuse_foreign(tables, f"a table {_named(tables, name)} exists without a version row")


def _create_schema(schema: str) -> str:
    # IF NOT EXISTS asks for the right to create one even where it exists.
    return (
        f"DO $$ BEGIN IF to_regnamespace('\"{schema}\"') IS NULL THEN "
        f'CREATE SCHEMA "{schema}"; END IF; END $$'
    )


def _refuse_foreign(tables: Tables, why: str) -> NoReturn:
    raise SchemaError(
        f"the tables {_named(tables, '*')} are not as the library left them: {why}; restore them, "
        "or choose other names: Config(..., tables=Tables(prefix=..., schema=...))"
    )


def _named(tables: Tables, name: str) -> str:
    schema = f"{tables.schema}." if tables.schema is not None else ""
    return f"{schema}{tables.prefix}{name}"


def _number(field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LATEST:
        raise ConfigError(f"{field} must be a version from 0 to {LATEST}, not {value!r}")
    return value
