"""The proxy sees what a client really sends, and cuts where it is told to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tests.support.databases import Database
from tests.support.proxy import OnStatement, Proxy, Verdict


@pytest.fixture
def table(unmigrated_postgresql: Database) -> Database:
    """A database with the table `host`."""
    with unmigrated_postgresql.bare_engine().begin() as connection:
        connection.execute(text("CREATE TABLE host (id INTEGER PRIMARY KEY)"))
    return unmigrated_postgresql


@pytest.fixture
def proxy(table: Database) -> Iterator[Proxy]:
    """A proxy in front of it."""
    with Proxy(table.url) as proxy:
        yield proxy


def _connect(proxy: Proxy, **kw: Any) -> psycopg.Connection:
    url = make_url(proxy.url)
    assert url.host == "127.0.0.1"
    return psycopg.connect(
        host=url.host, port=url.port, user=url.username, password=url.password, dbname=url.database, **kw
    )


def _unkept(proxy: Proxy, **kw: Any) -> contextlib.closing[psycopg.Connection]:
    """A connection that may be lost: its block commits nothing."""
    return contextlib.closing(_connect(proxy, **kw))


def _rows(database: Database) -> list[int]:
    with database.bare_engine().connect() as connection:
        return list(connection.scalars(text("SELECT id FROM host ORDER BY id")))


def _at(number: int, verdict: Verdict) -> OnStatement:
    return lambda n, sql: verdict if n == number else "forward"


def _at_commit(verdict: Verdict) -> OnStatement:
    return lambda n, sql: verdict if sql == "COMMIT" else None


def test_statements_are_read_in_both_protocols(proxy: Proxy) -> None:
    """A simple query and an extended one each count once, with their SQL."""
    with _connect(proxy) as connection:
        connection.execute("SELECT 1")
        connection.execute("SELECT %s::int", (2,))
    assert [(one.n, one.sql) for one in proxy.statements] == [
        (1, "BEGIN"),
        (2, "SELECT 1"),
        (3, "SELECT $1::int"),
        (4, "COMMIT"),
    ]
    assert proxy.turns == 4


def test_a_prepared_statement_keeps_its_text(proxy: Proxy) -> None:
    """The SQL is known where the client names a statement that it prepared before."""
    with _connect(proxy, autocommit=True) as connection:
        for value in range(3):
            assert connection.execute("SELECT %s::int", (value,), prepare=True).fetchone() == (value,)
    assert [one.sql for one in proxy.statements] == ["SELECT $1::int"] * 3
    # To prepare is a turn of its own.
    assert proxy.turns == 4


def test_a_pipeline_is_one_turn(proxy: Proxy) -> None:
    """Statements sent together are counted each, and waited for once."""
    with _connect(proxy, autocommit=True) as connection:
        with connection.pipeline():
            for value in range(3):
                connection.execute("INSERT INTO host VALUES (%s)", (value,))
        assert len(proxy.statements) == 3
        assert proxy.turns == 1
        proxy.reset()
        with connection.pipeline() as pipeline:
            connection.execute("BEGIN")
            first = connection.execute("SELECT count(*) FROM host")
            pipeline.sync()
            assert first.fetchone() == (3,)
            connection.execute("COMMIT")
    assert [one.sql for one in proxy.statements] == ["BEGIN", "SELECT count(*) FROM host", "COMMIT"]
    assert proxy.turns == 2


def test_a_flush_in_a_pipeline_is_a_turn(proxy: Proxy) -> None:
    """A client that fetches within a pipeline waits, although there is no ReadyForQuery."""
    with _connect(proxy, autocommit=True) as connection, connection.pipeline():
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert proxy.turns == 1


def test_copy_and_large_values_pass(proxy: Proxy) -> None:
    """What is not a statement goes through as it is."""
    with _connect(proxy) as connection, connection.cursor() as cursor:
        with cursor.copy("COPY host FROM STDIN") as copy:
            for value in range(1000):
                copy.write_row((value,))
        cursor.execute("SELECT count(*), repeat('x', 3000000) FROM host")
        assert [len(str(value)) for value in cursor.fetchone() or ()] == [4, 3000000]
        assert cursor.execute("SELECT length(%s::text)", ("y" * 3000000,)).fetchone() == (3000000,)


def test_an_error_passes(proxy: Proxy) -> None:
    """The server's errors reach the client, and the connection stays usable."""
    with _connect(proxy, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM absent WHERE id = %s", (1,))
        with pytest.raises(psycopg.errors.UndefinedTable), connection.pipeline():
            connection.execute("SELECT * FROM absent")
            connection.execute("SELECT 1")
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_cut_statement_never_reaches_the_server(table: Database) -> None:
    """With "cut" the client loses its connection, and nothing of the statement was done."""
    with Proxy(table.url, _at(2, "cut")) as proxy, _unkept(proxy, autocommit=True) as connection:
        connection.execute("INSERT INTO host VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO host VALUES (%s)", (2,))
        assert connection.closed
        assert _rows(table) == [1]


def test_a_commit_may_be_lost_on_either_way(table: Database) -> None:
    """A COMMIT that is cut is undone; one that is cut afterwards is done, and the client knows neither."""
    cases: list[tuple[Verdict, int, list[int]]] = [("cut", 1, []), ("cut_after", 2, [2])]
    for verdict, value, kept in cases:
        with Proxy(table.url, _at_commit(verdict)) as proxy, _unkept(proxy) as connection:
            connection.execute("INSERT INTO host VALUES (%s)", (value,))
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
            assert _rows(table) == kept


def test_the_transaction_has_ended_when_the_client_sees_the_cut(table: Database) -> None:
    """Nobody need wait for the server to notice: its locks are gone by then."""
    with Proxy(table.url, _at(3, "cut")) as proxy, _unkept(proxy) as connection:
        connection.execute("LOCK TABLE host")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        with table.bare_engine().begin() as other:
            other.execute(text("LOCK TABLE host NOWAIT"))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("verdict", ["cut", "cut_after"])
def test_a_pipeline_is_cut_between_its_statements(table: Database, number: int, verdict: Verdict) -> None:
    """In a pipeline the statements before the cut reach the server, those after it do not."""
    with Proxy(table.url, _at(number, verdict)) as proxy, _unkept(proxy, autocommit=True) as connection:
        with pytest.raises(psycopg.OperationalError), connection.pipeline():
            connection.execute("BEGIN")
            connection.execute("INSERT INTO host VALUES (1)")
            connection.execute("COMMIT")
            connection.execute("INSERT INTO host VALUES (2)")
        committed = [1] if (number, verdict) in {(3, "cut_after"), (4, "cut"), (4, "cut_after")} else []
        alone = [2] if (number, verdict) == (4, "cut_after") else []
        assert _rows(table) == committed + alone
        assert len(proxy.statements) == number


def test_connections_are_told_apart(proxy: Proxy) -> None:
    """Each statement knows its connection, and numbers run across all."""
    with _connect(proxy, autocommit=True) as one, _connect(proxy, autocommit=True) as two:
        one.execute("SELECT 1")
        two.execute("SELECT 2")
        one.execute("SELECT 3")
    assert [(each.n, each.connection) for each in proxy.statements] == [(1, 1), (2, 2), (3, 1)]


def test_a_callback_may_hold_a_statement(table: Database) -> None:
    """While the callback waits, so does this client, and no other."""
    reached, go = threading.Event(), threading.Event()

    def hold(n: int, sql: str) -> None:
        if sql == "SELECT 'held'":
            reached.set()
            go.wait(30)

    with Proxy(table.url, hold) as proxy, _connect(proxy, autocommit=True) as one, _connect(proxy) as two:
        thread = threading.Thread(target=lambda: one.execute("SELECT 'held'"))
        thread.start()
        assert reached.wait(30)
        assert two.execute("SELECT 2").fetchone() == (2,)
        assert thread.is_alive()
        go.set()
        thread.join(30)
        assert not thread.is_alive()


def test_an_error_in_a_callback_is_not_lost(table: Database) -> None:
    """The client is cut, and closing the proxy raises the error."""

    def fail(n: int, sql: str) -> None:
        raise ZeroDivisionError

    proxy = Proxy(table.url, fail)
    with _unkept(proxy, autocommit=True) as connection, pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    with pytest.raises(ZeroDivisionError):
        proxy.close()


def test_sqlalchemy_goes_through(proxy: Proxy) -> None:
    """An engine on the proxy's URL works, and its statements are read."""
    with create_engine(proxy.url, poolclass=NullPool).begin() as connection:
        proxy.reset()
        connection.execute(text("INSERT INTO host VALUES (:id)"), {"id": 7})
    assert [one.sql for one in proxy.statements] == [
        "BEGIN",
        "INSERT INTO host VALUES ($1)",
        "COMMIT",
    ]
