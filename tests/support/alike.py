"""Rows and answers in a spelling that does not depend on minted ids, to compare two runs."""

from __future__ import annotations

import re
from difflib import unified_diff
from typing import Any

import attrs
from sqlalchemy import select

from tests.support.rows import everything

Row = dict[str, Any]

_MORE = ("timers", "outbox", "changes", "deferred")
# Drawn from a counter that goes on, whatever is emptied.
_NUMBERS = {"changes": ("xid", "seq"), "outbox": ("xid", "id")}
# The rows of these are numbered, if at all, in an order that nobody reads.
_UNORDERED = frozenset({"claims", "addresses", "executions", "inputs", "timers"})
_MINTED = re.compile(r"ex_[0-9a-z]{26}")


@attrs.frozen
class Spelled:
    """What stands in the tables, line by line, and what was answered."""

    tables: dict[str, list[str]]
    answers: list[str]


def spelled(config: Any, answers: Any) -> Spelled:
    """All rows, and these answers (outcomes, or errors in their place), with names for minted ids."""
    tables = _tables(config)
    names = _names(tables["inputs"], tables["executions"])
    told: dict[str, list[str]] = {}
    for name, rows in tables.items():
        drawn = _NUMBERS.get(name, ("id",))
        lines = [_renamed(repr(_unnumbered(row, names, drawn)), names) for row in rows]
        told[name] = sorted(lines) if name in _UNORDERED else lines
    return Spelled(told, [_renamed(_told(answer), names) for answer in answers])


def _tables(config: Any) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = attrs.asdict(everything(config))
    with config.engine.connect() as connection:
        for name in _MORE:
            table = getattr(config.schema, name)
            rows = connection.execute(select(table).order_by(*table.primary_key.columns))
            found[name] = [dict(row) for row in rows.mappings()]
    return found


def _names(inputs: list[Row], executions: list[Row]) -> dict[str, str]:
    """An execution goes by its place and by what created it."""
    first = {row["execution_id"]: row for row in inputs if row["seq"] == 0}
    names: dict[str, str] = {}
    for row in executions:
        by = first.get(row["id"], {})
        # The message of a send bears its sender's id.
        message_id = _MINTED.sub("<sender>", str(by.get("message_id")))
        names[row["id"]] = f"<{row['scope']}/{row['document']}/{row['key']} by {message_id} {by.get('at')}>"
    assert len(set(names.values())) == len(names)
    return names


def _unnumbered(row: Row, names: dict[str, str], drawn: tuple[str, ...]) -> Row:
    return {name: value for name, value in row.items() if name not in drawn or value in names}


def _renamed(text: str, names: dict[str, str]) -> str:
    # What was minted and then undone has no name.
    return _MINTED.sub(lambda found: names.get(found.group(), "<gone>"), text)


def _told(answer: Any) -> str:
    if isinstance(answer, Exception):
        facts = {name: value for name, value in vars(answer).items() if not name.startswith("_")}
        return f"{type(answer).__name__} {facts} {answer}"
    return repr(answer)


def unlike(one: Spelled, other: Spelled) -> list[str]:
    """Where two runs differ, line by line."""
    pairs = [("answers", one.answers, other.answers)]
    pairs += [(name, lines, other.tables[name]) for name, lines in one.tables.items()]
    return [
        f"{name}: {line}"
        for name, first, second in pairs
        for line in unified_diff(first, second, n=0, lineterm="")
    ]
