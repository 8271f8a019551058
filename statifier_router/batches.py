"""The doors for many: `deliver_many` and `route_many`, one transaction for all.

On PostgreSQL a batch is tried as a set (`batch_set`). Where that does not fit, and on SQLite, which has
no trips to save, it goes item by item, each under a savepoint. Both do the same to the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar

from attrs import define, field, frozen

from statifier_router import batch_set, delivery, dialect, ledger, tasks
from statifier_router.ambient import Frame
from statifier_router.batch_effects import Undone
from statifier_router.batch_set import Answer, Judged
from statifier_router.bindings import Binding
from statifier_router.clock import as_utc
from statifier_router.config import Config
from statifier_router.errors import ConfigError, DeliveryError, ExecutionBusy, KeyInvalid, MessageError
from statifier_router.executions import SQLExecutor
from statifier_router.judging import Judgement, bindings_of, judged
from statifier_router.messages import Delivery, Message
from statifier_router.outcomes import KeyRefused, NoMatch, Outcome
from statifier_router.routing import check_config, refuse_inside_route
from statifier_router.savepoints import bracketed, in_own_savepoint, pipelined, travels
from statifier_router.sends import Sending
from statifier_router.tasks import Task
from statifier_router.transactions import around, joinable, run

T = TypeVar("T")

log = logging.getLogger("statifier_router")


@frozen
class Routed:
    """What became of one message of a batch.

    `outcomes` are those that `route` would answer. With an `error` they are the ones before it: later
    bindings were not delivered to.
    """

    message: Message
    outcomes: list[Outcome]
    error: DeliveryError | None = None


def deliver_many(
    config: Config, items: Sequence[tuple[Binding, str, Delivery]], *, connection: Any = None
) -> list[Outcome | DeliveryError]:
    """Deliver many messages in one transaction: each item is what `deliver` takes.

    Answers an outcome for each item, in order, the same as one `deliver` after the other would. Where one
    fails, it alone is undone, and its `DeliveryError` stands in its place.

    The transaction is tried again, whole, on transient faults; a wait for a lock that runs out is the
    `ExecutionBusy` of its item. Locks are held until the commit, so keep batches to some hundred items.
    A faulty item raises `ConfigError`, `KeyInvalid` or `MessageError`, naming it, before anything is
    done; whatever else a host's own code raises takes the whole batch with it.

    >>> from datetime import datetime, UTC
    >>> from statifier_router import Delivery, deliver_many
    >>> from statifier_router.doctest_support import config
    >>> configured = config()
    >>> scans, now = configured.bindings[0], datetime(2026, 1, 1, tzinfo=UTC)
    >>> items = [(scans, "P7", Delivery(f"m-{n}", "acme", now, {})) for n in (1, 2)]
    >>> [outcome.recorded for outcome in deliver_many(configured, items)]
    ['created_and_delivered', 'delivered']
    """
    check_config(config)
    given = [_item(at, each) for at, each in enumerate(_listed("items", items))]
    refuse_inside_route()
    answers = _Batch(config, given, connection).run()
    return [answer.outcomes[0] if answer.error is None else answer.error for answer in answers]


def route_many(
    config: Config, messages: Sequence[Message], *, now: datetime | None = None, connection: Any = None
) -> list[Routed]:
    """Route many messages in one transaction; answers one `Routed` for each, in order.

    Each message is routed as `route` does it, and each delivery is undone alone where it fails: that
    ends its message, whose earlier deliveries stay, and the batch goes on. `now` is the one instant of
    all rows. A resolver of bindings is asked once for each scope. For the rest see `deliver_many`.

    >>> from statifier_router import Message, route_many
    >>> from statifier_router.doctest_support import config
    >>> [routed] = route_many(config(), [Message("carrier", "m-1", "acme", {"parcel": "P7"})])
    >>> routed.outcomes
    [CreatedAndDelivered(binding_id='scans', execution_id='ex_1')]
    """
    check_config(config)
    given = _listed("messages", messages)
    for at, message in enumerate(given):
        if not isinstance(message, Message):
            raise MessageError(f"messages[{at}] must be a Message, not {type(message).__name__}")
    instant = config.now() if now is None else as_utc(now, "now", MessageError)
    return route_each(config, [(message, instant) for message in given], connection=connection)


def route_each(
    config: Config, messages: Sequence[tuple[Message, datetime]], *, connection: Any = None
) -> list[Routed]:
    """`route_many` for messages of which each has its own instant."""
    refuse_inside_route()
    joinable(config, connection)
    # Before the transaction, so that a resolver which asks a database needs no second connection.
    resolved = _resolved(config, messages)
    items = [
        _Item(
            f"messages[{at}]",
            message.scope,
            "route",
            partial(judged, config, resolved[message.scope], message, now),
        )
        for at, (message, now) in enumerate(messages)
    ]
    answers = _Batch(config, items, connection).run()
    return [
        Routed(message, answer.outcomes, answer.error)
        for (message, _), answer in zip(messages, answers, strict=True)
    ]


# --- What is handed over --------------------------------------------------------------------------


def _resolved(config: Config, messages: Sequence[tuple[Message, datetime]]) -> dict[str, Sequence[Binding]]:
    resolved: dict[str, Sequence[Binding]] = {}
    for at, (message, _) in enumerate(messages):
        if message.scope not in resolved:
            with _noted(f"messages[{at}]"):
                resolved[message.scope] = bindings_of(config, message.scope)
    return resolved


@frozen
class _Item:
    """One item before it is judged."""

    name: str
    scope: str
    door: Literal["deliver", "route"]
    judge: Callable[[], Iterator[Judgement]]
    minted: dict[tuple[str, ...], str] = field(factory=dict)


def _listed(name: str, value: Iterable[T]) -> list[T]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} must be a sequence, not {type(value).__name__}")
    return list(value)


def _item(at: int, given: object) -> _Item:
    name = f"items[{at}]"
    if not isinstance(given, (tuple, list)) or len(given) != 3:
        raise ConfigError(f"{name} must be a tuple of a Binding, a key and a Delivery")
    try:
        task = tasks.of_binding(*given)
    except (ConfigError, KeyInvalid, MessageError) as error:
        raise type(error)(f"{name}: {error}") from None
    return _Item(name, task.scope, "deliver", lambda: iter((task,)))


# --- The transaction ------------------------------------------------------------------------------


@contextmanager
def _noted(name: str) -> Iterator[None]:
    """Tell on whatever takes the whole batch with it at which item it was raised."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, DeliveryError) and not travels(error):
            error.add_note(f"statifier_router: raised at {name}; nothing of the batch was written")
        raise


@define
class _Batch:
    config: Config
    items: Sequence[_Item]
    connection: Any
    _sending: Sending = field(init=False)
    # Inside another delivery, which alone may settle a transient fault.
    _nested: bool = field(init=False)
    _judged: list[Judged] | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._sending = Sending.of(self.config)
        self._nested = isinstance(joinable(self.config, self.connection), Frame)

    def run(self) -> list[Answer]:
        """The answers, once they are committed, or left to the owner of the transaction that was joined."""
        if not self.items:
            return []
        if self._may_be_set():
            # Once: another try, and the other form, find the same.
            self._judged = [_judge(item) for item in self.items]
        answers = run(self.config, self._work, connection=self.connection)
        if log.isEnabledFor(logging.DEBUG):
            _tell(answers)
        return answers

    def _work(self, frame: Frame) -> list[Answer]:
        answers = self._as_set(frame)
        if answers is None:
            answers = [self._alone(frame, at) for at in range(len(self.items))]
        return answers

    # --- As a set ---------------------------------------------------------------------------------

    def _may_be_set(self) -> bool:
        """Whether the set form is worth a look. A host's `around_delivery` sees each item done alone."""
        return (
            dialect.kind(self.config.writer) == "postgresql"
            and type(self._sending.executor) is SQLExecutor
            and self.config.around_delivery is None
            and not self._nested
        )

    def _as_set(self, frame: Frame) -> list[Answer] | None:
        """The answers, or None where nothing was done."""
        items = self._judged
        if items is None or not batch_set.fits([task for item in items for task in item.tasks]):
            return None
        try:
            return in_own_savepoint(
                frame, lambda: batch_set.deliver(self.config, frame, items, sending=self._sending)
            )
        except Undone:
            log.debug("batch not done as a set")
        except Exception as error:
            # Item by item it is told for which of them the wait ran out.
            if not self._forgiven(frame, error):
                raise
        return None

    # --- Item by item -----------------------------------------------------------------------------

    def _alone(self, frame: Frame, at: int) -> Answer:
        item = self.items[at]
        judgements = item.judge() if self._judged is None else iter(self._judged[at].judgements)
        outcomes: list[Outcome] = []

        def work() -> Outcome | list[Outcome]:
            for judgement in judgements:
                self._settle(frame, judgement, outcomes)
            return outcomes[0] if item.door == "deliver" else outcomes

        own, frame.minted = frame.minted, item.minted
        if not self._nested:
            # So many in each transaction, were it alone.
            frame.hops = 0
        try:
            with _noted(item.name):
                around(self.config, item.scope, item.door, work)
        except DeliveryError as error:
            if self._takes_all(frame, error):
                raise
            error.outcomes = tuple(outcomes)
            return Answer(outcomes, error)
        finally:
            frame.minted = own
        return Answer(outcomes)

    def _settle(self, frame: Frame, judgement: Judgement, outcomes: list[Outcome]) -> None:
        if isinstance(judgement, Task):
            outcomes.append(self._deliver(frame, judgement))
            return
        entry = judgement.entry
        if entry is not None:
            bracketed(frame, lambda frame: ledger.write(frame.connection, self.config.schema, entry))
        if judgement.outcome is not None:
            outcomes.append(judgement.outcome)

    def _deliver(self, frame: Frame, task: Task) -> Outcome:
        sending = self._sending

        def work(frame: Frame) -> Outcome:
            return delivery.within(
                self.config,
                frame,
                task,
                executor=sending.executor,
                outgoing_for=sending.outgoing,
                settle=sending.settle,
            )

        try:
            if self._pipelines(frame):
                return pipelined(frame, work)
            return bracketed(frame, work, refuse_doomed=not self._nested)
        except Exception as error:
            if isinstance(error, DeliveryError) or not self._forgiven(frame, error):
                raise
            raise ExecutionBusy(_waited_for(frame), binding_id=task.binding_id) from error

    def _pipelines(self, frame: Frame) -> bool:
        """Whether the savepoint of an item can travel with the statements of the merged plan."""
        return type(self._sending.executor) is SQLExecutor and not self._nested and dialect.pipes(frame.link)

    # --- Faults -----------------------------------------------------------------------------------

    def _takes_all(self, frame: Frame, error: DeliveryError) -> bool:
        """Whether the fault of one item is one of the whole transaction."""
        if frame.doomed is not None or not dialect.still_open(frame.connection):
            return True
        return travels(error) and (self._nested or not isinstance(error, ExecutionBusy))

    def _forgiven(self, frame: Frame, error: Exception) -> bool:
        """Whether it is a wait that ran out, and all that it left behind is undone.

        Nobody but this transaction's owner may settle it.
        """
        fault = error if frame.doomed is None else frame.doomed
        if self._nested or not dialect.still_open(frame.connection) or not _is_busy(fault):
            return False
        frame.doomed = None
        return True


def _judge(item: _Item) -> Judged:
    with _noted(item.name):
        return Judged(item.name, list(item.judge()), item.minted)


def _is_busy(fault: Exception) -> bool:
    trouble = dialect.trouble_of(fault)
    return isinstance(fault, ExecutionBusy) or (trouble is not None and trouble.kind == "busy")


def _waited_for(frame: Frame) -> str | None:
    """The execution whose lock was waited for in vain, None for a claim or an address."""
    waiting_for, suspect = frame.waiting_for, frame.suspect
    frame.waiting_for = frame.suspect = None
    if suspect is None:
        return waiting_for
    # It looks by locking what is free.
    return in_own_savepoint(frame, lambda: suspect(frame.connection), undo_when=lambda _: True)


def _tell(answers: Iterable[Answer]) -> None:
    for answer in answers:
        for outcome in answer.outcomes:
            if isinstance(outcome, (NoMatch, KeyRefused)):
                continue
            log.debug(
                "delivered",
                extra={
                    "statifier_router.binding_id": outcome.binding_id,
                    "statifier_router.outcome": outcome.recorded,
                },
            )
