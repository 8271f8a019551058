"""Parameters of a statement of ours, as libpq takes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.adapt import Transformer
from sqlalchemy import BigInteger, DateTime, Text, bindparam, select, text

from statifier_router.dialect import Prepared, wire
from statifier_router.dialect.wire import Sendable
from tests.support.databases import Database

STATEMENT = "SELECT %(n)s::BIGINT, %(a)s::TEXT, %(at)s::TIMESTAMP WITH TIME ZONE, %(b)s::TEXT, %(rare)s::TEXT"
AT = datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def _encoded(**values: Any) -> Any:
    given = {"n": 1, "a": "a", "at": AT, "b": "b", "rare": None, **values}
    return Sendable.of(STATEMENT, ["rare"]).encoded(given)


def test_texts_come_first_and_the_numbers_follow_them() -> None:
    """Texts, rare ones, instants, the rest: each placeholder bears the number of its parameter."""
    sendable = Sendable.of(STATEMENT, ["rare"])
    assert sendable.query == (
        b"SELECT $5::BIGINT, $1::TEXT, $4::TIMESTAMP WITH TIME ZONE, $2::TEXT, $3::TEXT"
    )
    assert _encoded() == [b"a", b"b", None, (-1).to_bytes(8, signed=True), b"1"]


@pytest.mark.parametrize(
    ("values", "parameters"),
    [
        ({"a": None}, [None, b"b"]),
        ({"a": "", "b": ""}, [b"", b""]),
        ({"a": "ü", "b": "\x01\n"}, ["ü".encode(), b"\x01\n"]),
    ],
)
def test_texts(values: dict[str, Any], parameters: list[bytes | None]) -> None:
    """Any text is sent as it is, and null as null, whether or not null was foreseen."""
    assert _encoded(**values)[:2] == parameters


def test_one_text_and_none() -> None:
    """A single text is not taken for a sequence of letters, and a statement may have none."""
    assert Sendable.of("SELECT %(a)s::TEXT").encoded({"a": "xyz"}) == [b"xyz"]
    assert Sendable.of("SELECT 1").encoded({}) == []


@pytest.mark.parametrize("name", ["a", "b", "rare"])
@pytest.mark.parametrize("value", ["\x00", "x\x00", "x\x00y", "\x00\x00"])
def test_nul_is_refused(name: str, value: str) -> None:
    """Wherever NUL stands, nothing is sent: libpq would send what stands before it."""
    with pytest.raises(psycopg.DataError, match="NUL"):
        _encoded(**{name: value})
    other = "b" if name == "a" else "a"
    with pytest.raises(psycopg.DataError, match="NUL"):
        _encoded(**{name: value, other: None})


@pytest.mark.parametrize("name", ["a", "rare", "at", "n"])
@pytest.mark.parametrize("value", [b"bytes", 1.5, timedelta(1), ["list"]])
def test_other_types_go_through_the_cursor(name: str, value: Any) -> None:
    """What only psycopg's adapters know how to send is left to them."""
    assert _encoded(**{name: value}) is None


def test_the_server_reads_what_was_sent(postgresql: Database) -> None:
    """Each value comes back, by the statement unprepared and prepared, and after the registry forgot it."""
    statement = Prepared(
        select(
            bindparam("n", type_=BigInteger),
            bindparam("a", type_=Text),
            bindparam("at", type_=DateTime(timezone=True)),
            bindparam("rare", type_=Text),
        ),
        nullable=("rare",),
    )
    with postgresql.engine().begin() as connection:
        for number in range(20):
            rare = f"é{number}" if number % 3 else None
            values = {"n": number, "a": "ü", "at": AT, "rare": rare}
            found = statement.first(connection, values)
            assert found == (number, "ü", AT, rare)
            if number == 12:
                names = "SELECT count(*) FROM pg_prepared_statements"
                assert connection.execute(text(names)).scalar_one() > 0
                connection.execute(text("DEALLOCATE ALL"))


def test_an_interruption_while_the_reader_is_made_leaves_none(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader is kept once it has its loaders: one without them would read where nothing is."""
    at_first = [KeyboardInterrupt()]

    class Interrupted(Transformer):
        def set_pgresult(self, *args: Any, **kw: Any) -> None:
            if at_first:
                raise at_first.pop()
            super().set_pgresult(*args, **kw)

    monkeypatch.setattr(wire, "Transformer", Interrupted)
    statement = Prepared(select(bindparam("a", type_=Text)))
    with postgresql.engine().begin() as connection:
        connection.execute(text("SELECT 1"))
        with pytest.raises(KeyboardInterrupt):
            statement.first(connection, {"a": "x"})
        assert statement.first(connection, {"a": "y"}) == ("y",)
        assert statement.first(connection, {"a": "z"}) == ("z",)
