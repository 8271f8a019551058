"""Statements of ours through psycopg's own libpq, past its cursor.

A cursor does for every execution what ours need once: it reads the text, names the parameters, picks
their types. Here a statement is read once a process; what is left is to send, to wait and to read.
Waiting, interruption, errors and the registry of prepared statements are psycopg's, and so is the
rule of what is prepared when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus

from statifier_router.dialect.common import BEGIN, COMMIT
from statifier_router.dialect.sendable import Row, Sendable

__all__ = ["Sendable", "command", "fetched", "fetched_between", "told_together", "touched"]

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn, PGresult

try:
    from psycopg._preparing import Prepare
except ImportError:
    # Another psycopg than the one this was written for: its cursor does everything.
    _NO = _SHOULD = None
else:
    _NO, _SHOULD = Prepare.NO, Prepare.SHOULD

# Plain numbers: an enumeration's members are looked up anew at every use.
_IN_TRANSACTION = int(TransactionStatus.INTRANS)
_GOOD = frozenset({int(ExecStatus.TUPLES_OK), int(ExecStatus.COMMAND_OK)})
_FAILED = int(ExecStatus.FATAL_ERROR)
_BINARY = Format.BINARY

_CURSOR = psycopg.Cursor

# What comes with every transaction is prepared as a statement is: the server would read it anew each time.
_REPEATED = {text: Sendable.command(text, is_once=False) for text in (BEGIN, COMMIT)}

# Where a pooled connection keeps what reads the rows of each statement.
_READERS = "statifier_router_readers"


def fetched(
    driver: Any, info: dict[str, Any], statement: Sendable, values: Mapping[str, Any]
) -> list[Row] | None:
    """Run a statement in the transaction that is open, and answer its rows.

    None where it has to go through the cursor; it has not been sent then.
    """
    if not _carries(driver, in_transaction=True):
        return None
    parameters = statement.encoded(values)
    if parameters is None:
        return None
    return _rows(driver, info, statement, _run(driver, statement, parameters))


def touched(driver: Any, statement: Sendable, values: Mapping[str, Any]) -> int | None:
    """As `fetched`, and answer how many rows it touched."""
    if not _carries(driver, in_transaction=True):
        return None
    parameters = statement.encoded(values)
    if parameters is None:
        return None
    return _run(driver, statement, parameters).command_tuples or 0


def fetched_between(
    driver: Any,
    info: dict[str, Any],
    statement: Sendable,
    values: Mapping[str, Any],
    *,
    before: bytes | None = None,
    after: bytes | None = None,
) -> list[Row] | None:
    """Run a statement between two commands that travel with it, in one wait, and answer its rows.

    The first of the three that fails keeps those behind it from being run. None as of `fetched`.
    """
    if not _carries(driver, in_transaction=before is None):
        return None
    parameters = statement.encoded(values)
    if parameters is None:
        return None
    (result,) = _run_together(driver, [(statement, parameters)], before, after)
    return _rows(driver, info, statement, result)


def told_together(
    driver: Any, info: dict[str, Any], asked: Sequence[tuple[Sendable, Mapping[str, Any]]]
) -> list[tuple[list[Row], int]] | None:
    """Run statements one behind the other in one wait; of each its rows, and how many it touched.

    The first that fails keeps those behind it from being run. None as of `fetched`.
    """
    if not _carries(driver, in_transaction=True):
        return None
    sent: list[tuple[Sendable, Sequence[bytes | None]]] = []
    for statement, values in asked:
        parameters = statement.encoded(values)
        if parameters is None:
            return None
        sent.append((statement, parameters))
    results = _run_together(driver, sent, None, None)
    return [
        (_rows(driver, info, statement, result), result.command_tuples or 0)
        for (statement, _), result in zip(sent, results, strict=True)
    ]


def command(driver: psycopg.Connection[Any], text: bytes) -> None:
    """Run a command without parameters."""
    pgconn = driver.pgconn
    pgconn.send_query(text)
    results = driver.wait(generators.execute(pgconn))
    if not results or results[-1].status not in _GOOD:
        _checked(results)


def _carries(driver: psycopg.Connection[Any], *, in_transaction: bool) -> bool:
    """Whether our statements may go past this connection's cursor.

    Not where the host has a cursor class of its own, which is to see them; nor where text is not sent
    in UTF-8, nor where the driver is itself in the middle of something.
    """
    pgconn = driver.pgconn
    return (
        _SHOULD is not None
        and driver.cursor_factory is _CURSOR
        and (not in_transaction or pgconn.transaction_status == _IN_TRANSACTION)
        and not pgconn.pipeline_status
        and pgconn.parameter_status(b"client_encoding") == b"UTF8"
    )


def _run(
    driver: psycopg.Connection[Any], statement: Sendable, parameters: Sequence[bytes | None]
) -> PGresult:
    # psycopg's registry, so that whatever makes it forget its prepared statements does so for ours too.
    pgconn, registry = driver.pgconn, driver._prepared  # noqa: SLF001
    results: list[PGresult]
    known = _name_of(registry, statement)
    if known is not None:
        pgconn.send_query_prepared(known, parameters, statement.formats, _BINARY)
        results = driver.wait(generators.execute(pgconn))
        if results and results[-1].status in _GOOD:
            return results[-1]
        return _checked(results)
    preparing, name = registry.get(statement)  # type: ignore[arg-type]  # it asks for `query` and `types` alone
    if preparing is _SHOULD:
        pgconn.send_prepare(name, statement.query)
        _checked(driver.wait(generators.execute(pgconn)))
    _send(pgconn, statement, parameters, b"" if preparing is _NO else name)
    key = registry.maybe_add_to_cache(statement, preparing, name)  # type: ignore[arg-type]  # the same
    results = driver.wait(generators.execute(pgconn))
    if key is not None:
        registry.validate(key, preparing, name, results)
        driver.wait(registry.maintain_gen(driver))
    return _checked(results)


def _run_together(
    driver: psycopg.Connection[Any],
    asked: Sequence[tuple[Sendable, Sequence[bytes | None]]],
    before: bytes | None,
    after: bytes | None,
) -> list[PGresult]:
    """Of statements that differ, between two commands, the results; in one wait."""
    pgconn, registry = driver.pgconn, driver._prepared  # noqa: SLF001 - as in `_run`
    at, places = 0, []
    # Those that the registry has still to be told of.
    unknown: list[tuple[Sendable, int, Any, bytes]] = []
    first = 0 if before is None else 1
    sent = [*_commands(before), *asked, *_commands(after)]
    pgconn.enter_pipeline_mode()
    try:
        for statement, parameters in sent:
            known = _name_of(registry, statement)
            if known is not None:
                pgconn.send_query_prepared(known, parameters, statement.formats, _BINARY)
            elif statement.is_once:
                pgconn.send_query_params(statement.query, None)
            else:
                preparing, name = registry.get(statement)  # type: ignore[arg-type]  # it asks for two fields alone
                if preparing is _SHOULD:
                    pgconn.send_prepare(name, statement.query)
                    at += 1
                _send(pgconn, statement, parameters, b"" if preparing is _NO else name)
                unknown.append((statement, at, preparing, name))
            places.append(at)
            at += 1
        pgconn.pipeline_sync()
        # The last answer is to the sync.
        answers = driver.wait(_answers(pgconn, at + 1))
        pgconn.exit_pipeline_mode()
    except BaseException:
        # Whatever is still on its way: nobody may take it for the answer to something else.
        driver.close()
        raise
    for answer in answers[:-1]:
        _checked(answer)
    for statement, place, preparing, name in unknown:
        key = registry.maybe_add_to_cache(statement, preparing, name)  # type: ignore[arg-type]  # the same
        if key is not None:
            registry.validate(key, preparing, name, answers[place])
            driver.wait(registry.maintain_gen(driver))
    return [answers[place][0] for place in places[first : first + len(asked)]]


def _commands(text: bytes | None) -> list[tuple[Sendable, Sequence[bytes | None]]]:
    return [] if text is None else [(_REPEATED.get(text) or Sendable.command(text), ())]


def _name_of(registry: Any, statement: Sendable) -> bytes | None:
    """The name of a statement that is prepared already; it counts as used.

    As the registry's `get` and `maybe_add_to_cache` do it together, for what is nearly always the case.
    """
    names = getattr(registry, "_names", None)
    if not names or registry.prepare_threshold is None:
        return None
    name: bytes | None = names.get(statement.key)
    if name is not None:
        names.move_to_end(statement.key)
    return name


def _send(pgconn: PGconn, statement: Sendable, parameters: Sequence[bytes | None], name: bytes) -> None:
    if name:
        pgconn.send_query_prepared(name, parameters, statement.formats, _BINARY)
    else:
        pgconn.send_query_params(
            statement.query, parameters, param_formats=statement.formats, result_format=_BINARY
        )


def _answers(pgconn: PGconn, count: int) -> PQGen[list[list[PGresult]]]:
    yield from generators.send(pgconn)
    answers = []
    for _ in range(count):
        answers.append((yield from generators.fetch_many(pgconn)))  # noqa: PERF401 - it yields on its way
    return answers


def _rows(driver: Any, info: dict[str, Any], statement: Sendable, result: PGresult) -> list[Row]:
    count = result.ntuples
    if not count:
        return []
    readers = info.get(_READERS)
    if readers is None:
        readers = info[_READERS] = {}
    reader = readers.get(statement)
    if reader is None:
        reader = Transformer(driver)
        reader.set_pgresult(result)
        # Only now: one without loaders, left behind by an interruption, would read where nothing is.
        readers[statement] = reader
    else:
        reader.set_pgresult(result, set_loaders=False)
    rows: list[Row] = reader.load_rows(0, count, statement.make_row)
    reader.set_pgresult(None, set_loaders=False)
    return rows


def _checked(results: Sequence[PGresult]) -> PGresult:
    """The one result of a statement, where it is a good one."""
    if not results:
        raise psycopg.OperationalError("the server closed the connection")
    result = results[-1]
    if result.status in _GOOD:
        return result
    if result.status == _FAILED:
        raise error_from_result(result)
    raise psycopg.InterfaceError(f"unexpected answer: {ExecStatus(result.status).name}")
