"""Executors that a host might bring: one over tables of its own, one derived from the default."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Row,
    Table,
    Text,
    insert,
    select,
    update,
)

from statifier_router import (
    Chart,
    Config,
    Discarded,
    Event,
    Execution,
    ExecutionExists,
    KeyedEffect,
    SQLExecutor,
    Step,
    StepContext,
    StepFailed,
    Stepped,
)
from statifier_router.jsontext import decode, encode
from statifier_router.schema import Instant

_metadata = MetaData()
_machines = Table(
    "host_machines",
    _metadata,
    Column("id", Text, primary_key=True),
    Column("document", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("interpreter", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("position", Text, nullable=False),
    Column("active", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("failure", Text),
    Column("created_at", Instant(), nullable=False),
    Column("ended_at", Instant()),
)
_steps = Table(
    "host_steps",
    _metadata,
    Column("execution_id", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("event", Text),
    PrimaryKeyConstraint("execution_id", "seq"),
)


class OwnTables:
    """A host's own executor: its own two tables, and nothing of the library's."""

    own_tables: ClassVar[dict[str, Table]] = {"executions": _machines, "inputs": _steps}

    @staticmethod
    def create_tables(engine: Engine) -> None:
        """Make the two tables."""
        _metadata.create_all(engine)

    def fetch(
        self, connection: Connection, config: Config, execution_id: str, *, lock: bool
    ) -> Execution | None:
        """The machine, or None."""
        statement = select(_machines).where(_machines.c.id == execution_id)
        row = connection.execute(statement.with_for_update() if lock else statement).one_or_none()
        return None if row is None else _execution(row)

    def create(self, context: StepContext, execution_id: str, chart: Chart) -> Stepped:
        """A machine at revision 0."""
        if self.fetch(context.connection, context.config, execution_id, lock=False) is not None:
            raise ExecutionExists(execution_id)
        try:
            answer = chart.create(data={"execution": {"id": execution_id}}, now=context.now)
        except Exception as error:
            raise StepFailed(execution_id, str(error)) from error
        _hand_on(context, execution_id, answer)
        execution = Execution(
            id=execution_id,
            document=context.document,
            scope=context.scope,
            key=context.key,
            content_hash=chart.content_hash,
            interpreter=chart.interpreter,
            status=answer.status,
            position=answer.position,
            active=answer.active,
            revision=0,
            failure="; ".join(answer.errors) or None,
            created_at=context.now,
            ended_at=None if answer.status == "active" else context.now,
        )
        context.connection.execute(insert(_machines).values(_row(execution)))
        self._log(context, execution, None)
        return Stepped(execution, answer)

    def step(
        self, context: StepContext, execution: Execution, chart: Chart, event: Event
    ) -> Stepped | Discarded:
        """Move the machine."""
        if execution.terminal:
            return Discarded(execution)
        try:
            answer = chart.step(execution.position, event, event_id=context.message_id, now=context.now)
        except Exception as error:
            raise StepFailed(execution.id, str(error)) from error
        _hand_on(context, execution.id, answer)
        moved = answer.outcome in ("moved", "unknown")
        after = attrs.evolve(
            execution,
            status=answer.status,
            position=answer.position if moved else execution.position,
            active=answer.active if moved else execution.active,
            revision=execution.revision + 1,
            failure="; ".join(answer.errors) or None,
            ended_at=None if answer.status == "active" else context.now,
        )
        context.connection.execute(
            update(_machines).where(_machines.c.id == execution.id).values(_row(after))
        )
        self._log(context, after, event)
        return Stepped(after, answer)

    def _log(self, context: StepContext, execution: Execution, event: Event | None) -> None:
        context.connection.execute(
            insert(_steps).values(
                execution_id=execution.id,
                seq=execution.revision,
                event=None if event is None else encode({"name": event.name, "data": event.data}),
            )
        )


class Watching(SQLExecutor):
    """The default executor, noting what it was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def fetch(
        self, connection: Connection, config: Config, execution_id: str, *, lock: bool
    ) -> Execution | None:
        """As the default does."""
        self.calls.append("lock" if lock else "fetch")
        return super().fetch(connection, config, execution_id, lock=lock)

    def create(self, context: StepContext, execution_id: str, chart: Chart) -> Stepped:
        """As the default does."""
        self.calls.append("create")
        return super().create(context, execution_id, chart)

    def step(
        self, context: StepContext, execution: Execution, chart: Chart, event: Event
    ) -> Stepped | Discarded:
        """As the default does."""
        self.calls.append("step")
        return super().step(context, execution, chart, event)


def _hand_on(context: StepContext, execution_id: str, answer: Step) -> None:
    for index, effect in enumerate(answer.effects):
        context.effects(KeyedEffect(effect, f"{execution_id}:{context.message_id}:{index}", index, 0))


def _row(execution: Execution) -> dict[str, Any]:
    values = attrs.asdict(execution, recurse=False)
    return values | {
        "position": encode(execution.position),
        "active": encode(list(execution.active)),
    }


def _execution(row: Row[Any]) -> Execution:
    values = dict(row._mapping)
    values["position"] = decode(values["position"])
    values["active"] = tuple(decode(values["active"]))  # type: ignore[arg-type]  # a list of texts
    return Execution(**values)
