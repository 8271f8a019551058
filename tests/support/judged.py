"""What must hold of a history after every act, and at its end."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statifier_router.runs import WriteContext
    from tests.support.histories import History
    from tests.support.mortal import Process

TERMINAL = ("exhausted", "remote_gone")


def always(history: History, *asked: str) -> None:
    """The invariants that hold whatever happened; `AssertionError` names the one that does not.

    `asked` are the records of which an operator asks why.
    """
    assert not history.problems, history.problems
    tables = history.dump()
    _rows(history, tables["records"])
    _operations(tables)
    _cursor(history, tables["rules"]["parcels"]["cursor"])
    _copies(history)
    _keys(history)
    for source_id in asked:
        if source_id in history.current:
            _why(history, source_id, tables["records"].get(source_id))


def called(history: History, process: Process, verb: str, context: WriteContext | None) -> None:
    """A call begins: what holds at this moment. A raise would be an answer of the target, so it is kept."""
    problems = history.problems
    history.counts["calls"] += 1
    if not process.no_transaction():
        problems.append(f"a transaction is open during {verb}")
    tables = history.tables("breakers", "operations")
    breaker = next(iter(tables["breakers"].values()), None)
    if breaker is not None and breaker["state"] == "open":
        if breaker["open_until"] > history.clock():
            problems.append(f"{verb} was called while the breaker was open")
        if breaker["probe_until"] is None:
            problems.append(f"{verb} was called, and nobody has the probe")
    if context is not None:
        flying = [row for row in tables["operations"].values() if not row["in_doubt"]]
        keys = [(row["source_id"], row["key"]) for row in flying]
        if keys != [(context.source_id, context.key)]:
            problems.append(f"{verb} of {context.source_id} is called, in flight are {keys}")


def at_rest(history: History) -> None:
    """What holds once a chain has nothing to do: each record is there, or its row says why not."""
    always(history, *history.current)
    tables = history.dump()
    records, operations = tables["records"], tables["operations"]
    assert all(row["in_doubt"] for row in operations.values()), operations
    lost = set(history.current) - set(records)
    assert not lost, f"lost: {lost}"
    for source_id, row in records.items():
        _, deleted = history.current[source_id]
        assert row["status"] != "failed", row
        if row["status"] == "suppressed" and row["error_kind"] == "deleted":
            assert deleted, f"lost: {source_id} {row}"
            if not history.lacked_delete and row["remote_id"] is None:
                _not_there(history, source_id, operations)
        if row["status"] == "delivered":
            assert is_current(history, source_id, row), f"stale: {source_id} {row}"


def released(history: History) -> None:
    """After everything parked was released by one who looked: all is there, or deleted, or not wanted."""
    at_rest(history)
    for source_id, row in history.rows("records").items():
        if row["status"] != "delivered":
            # A policy that was given up may have been the last to decide about a record.
            assert row["status"] == "suppressed", f"lost: {source_id} {row}"
            assert row["error_kind"] in ("deleted", "create_only", "update_only"), row


def is_current(history: History, source_id: str, row: dict[str, Any]) -> bool:
    """Whether the target has the source's version at the row's address, or lost it by its own doing."""
    if row["remote_id"] in history.forgotten or history.known[source_id].overtaken:
        return True
    held = history.target.records.get(row["remote_id"])
    value, deleted = history.current[source_id]
    return held is not None and not deleted and held.payload == {"value": value}


def _rows(history: History, records: dict[str, Any]) -> None:
    assert set(records) <= set(history.current), "a row of a record that no source ever had"
    for source_id, row in records.items():
        assert row["attempts"] <= history.most_attempts, row
        assert (row["status"] == "failed") == (row["next_attempt_at"] is not None), row
        assert row["status"] not in TERMINAL or row["last_error"], (source_id, row)


def _operations(tables: dict[str, Any]) -> None:
    flying = [row for row in tables["operations"].values() if not row["in_doubt"]]
    assert len(flying) <= 1, f"more than one operation is in flight: {flying}"
    running = [row for row in tables["chains"].values() if row["state"] == "running"]
    assert len(running) <= 1, running


def _cursor(history: History, stored: str | None) -> None:
    cursor = [] if stored is None else json.loads(stored)
    assert cursor >= (history.cursor or []), f"the cursor went back from {history.cursor} to {cursor}"
    history.cursor = cursor


def _copies(history: History) -> None:
    copies: dict[str, int] = defaultdict(int)
    for held in history.target.records.values():
        copies[held.source_id] += 1
    for source_id, count in copies.items():
        known = history.known[source_id]
        allowed = 1 + known.excused + (0 if history.target.keyed else known.unknown)
        assert count <= allowed, f"{count} copies of {source_id}, and {allowed} can be explained"


def _keys(history: History) -> None:
    """One key always goes with one payload, and one signal always with one payload."""
    by_key: dict[Any, Any] = {}
    by_signal: dict[Any, Any] = {}
    for request in history.target.requests:
        if request.verb not in ("create", "update"):
            continue
        assert request.context is not None
        assert by_key.setdefault((request.verb, request.key), request.payload) == request.payload, request
        signal = request.context.signal
        assert by_signal.setdefault(signal, request.payload) == request.payload, request


def _not_there(history: History, source_id: str, operations: dict[str, Any]) -> None:
    known = history.known[source_id]
    if source_id in operations or known.excused or known.overtaken or known.unknown:
        return
    assert not history.target.copies(source_id), f"{source_id} is deleted, and stands at the target"


def _why(history: History, source_id: str, row: dict[str, Any] | None) -> None:
    why = history.eyes.outbound.why("parcels", source_id)
    assert why.text, why
    if why.reason == "delivered":
        assert row is not None, why
        assert is_current(history, source_id, row), f"{why.text}, and it is not: {source_id} {row}"
    elif row is not None and row["status"] == "delivered":
        value, deleted = history.current[source_id]
        held = history.target.records.get(row["remote_id"])
        there = held is not None and held.payload == {"value": value} and not deleted
        # A version that came back is at the target before its row says so.
        assert not there or why.reason != "deleted", why
