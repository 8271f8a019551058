"""The types of columns: instants, JSON as text, names that compare bytewise."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, DateTime, Integer, Text, cast
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.types import TypeDecorator, UserDefinedType

from statifier_router.clock import as_utc

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Dialect
    from sqlalchemy.types import TypeEngine


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


class _TransactionId(UserDefinedType[int]):
    """PostgreSQL `xid8`, which counts on for ever and compares by age, as an integer of Python."""

    cache_ok = True
    # An integer is not cast to it; its text is.
    render_bind_cast = True

    def get_col_spec(self, **_: Any) -> str:
        return "XID8"

    def bind_processor(self, dialect: Dialect) -> Any:
        del dialect
        return lambda value: None if value is None else str(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        del dialect, coltype
        return lambda value: None if value is None else int(value)


# What SQLAlchemy finds in a database it would otherwise warn of, here and in a host's autogenerate.
ischema_names.setdefault("xid8", _TransactionId)

# Bytewise comparison, whatever the database's locale; SQLite's own is bytewise.
NAME: TypeEngine[str] = Text(collation="C").with_variant(Text(), "sqlite")
BIG: TypeEngine[int] = BigInteger()
# Only a column of exactly the type INTEGER can be AUTOINCREMENT on SQLite.
IDENTITY: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")
# The id of a transaction; on SQLite an integer that is always 0.
XID: TypeEngine[int] = _TransactionId().with_variant(Integer(), "sqlite")


def name_column(name: str, *, nullable: bool = False) -> Column[str]:
    """A column of text that compares bytewise."""
    return Column(name, NAME, nullable=nullable)


def json_column(name: str, *, nullable: bool = False) -> Column[str]:
    """A column of JSON that was encoded by us."""
    return Column(name, JsonText(), nullable=nullable)


def instant_column(name: str, *, nullable: bool = False) -> Column[datetime]:
    """A column of instants."""
    return Column(name, Instant(), nullable=nullable)
