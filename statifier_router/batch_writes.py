"""What a batch writes at its end: the rows that it has in memory, one statement a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from statifier_router import arrays as columns
from statifier_router import batch_statements as statements
from statifier_router import change_table, ledger, outbox
from statifier_router.batch_acts import Known
from statifier_router.batch_effects import Effects, give_up
from statifier_router.executions import rows
from statifier_router.executor import Execution
from statifier_router.jsontext import encode
from statifier_router.schema import Schema


def write(connection: Connection, schema: Schema, known: Known, loaded: Mapping[str, Execution]) -> None:
    """Write everything; `loaded` are the executions as they were locked.

    Raises `Undone` where an execution's id is taken, or its revision is another by now: item by item it
    is told which delivery that is.
    """
    _write_created(connection, schema, known)
    _write_stepped(connection, schema, known, loaded)
    _write_inputs(connection, schema, known)
    _write_addresses(connection, schema, known)
    _write_effects(connection, schema, known.effects)
    if known.ledger:
        values = [ledger.as_values(entry) for entry in known.ledger]
        statements.recorded(schema).count(connection, columns.arrays(values, values[0]))


def _write_created(connection: Connection, schema: Schema, known: Known) -> None:
    if not known.created:
        return
    # Sorted: it waits where another transaction is inserting the same id.
    values = [rows.as_values(_execution(known, each)) for each in sorted(known.created)]
    written = statements.created(schema).count(connection, columns.arrays(values, values[0]))
    if written != len(values):
        give_up()


def _write_stepped(
    connection: Connection, schema: Schema, known: Known, loaded: Mapping[str, Execution]
) -> None:
    if not known.stepped:
        return
    values: list[dict[str, Any]] = []
    for each, moved in known.stepped.items():
        before, after = loaded[each], _execution(known, each)
        values.append(
            {
                "id": each,
                "from_revision": before.revision,
                "revision": after.revision,
                "status": after.status,
                "failure": after.failure,
                "ended_at": after.ended_at,
                "position": encode(after.position) if moved else None,
                "active": encode(list(after.active)) if moved else None,
            }
        )
    written = statements.moved(schema).count(connection, columns.arrays(values, values[0]))
    if written != len(values):
        give_up()


def _execution(known: Known, execution_id: str) -> Execution:
    execution = known.executions[execution_id]
    assert execution is not None
    return execution


def _write_inputs(connection: Connection, schema: Schema, known: Known) -> None:
    if not known.inputs:
        return
    before: Counter[str] = Counter()
    values = []
    for execution_id, row in known.inputs:
        values.append({"execution_id": execution_id, "seq": before[execution_id], **row.values()})
        before[execution_id] += 1
    statements.logged(schema).count(connection, columns.arrays(values, values[0]))


def _write_addresses(connection: Connection, schema: Schema, known: Known) -> None:
    # Inserted for a creation that then failed.
    idle = [(*place, each) for place, each in known.added.items() if known.places[place] is None]
    if idle:
        names = (*statements.PLACE, "execution_id")
        statements.removed(schema).count(connection, columns.keyed(idle, names))
    if known.stamps:
        places = sorted(known.stamps)
        seen = [known.stamps[place] for place in places]
        values = columns.keyed(places, statements.PLACE) | {
            "execution_id": columns.array([execution_id for execution_id, _ in seen]),
            "terminal_seen_at": columns.array([at for _, at in seen]),
        }
        statements.stamped(schema).count(connection, values)


def _write_effects(connection: Connection, schema: Schema, effects: Effects) -> None:
    # First: what the batch arms bears its own cancellations.
    if effects.cancels:
        names = ("execution_id", "send_id")
        statements.cancelled(schema).count(connection, columns.keyed(list(effects.cancels), names))
    if effects.timers:
        statements.armed(schema).count(connection, columns.arrays(effects.timers, statements.ARMED))
    if effects.outbox:
        statements.sent(schema).count(connection, columns.arrays(effects.outbox, outbox.ADDED))
    if effects.changes:
        statements.changed(schema).count(connection, columns.arrays(effects.changes, change_table.ADDED))
