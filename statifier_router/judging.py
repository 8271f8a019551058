"""What a message is to the bindings: not for one, refused by it, or a delivery to make.

Nothing here asks the database: it is the part of routing that is known before any transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from attrs import frozen

from statifier_router import ledger, tasks
from statifier_router.bindings import Binding
from statifier_router.config import Config, checked_bindings
from statifier_router.messages import Message
from statifier_router.outcomes import KeyRefused, NoMatch
from statifier_router.refusals import KeyRefusal, MatchRefused
from statifier_router.tasks import Task
from statifier_router.text import error_text
from statifier_router.view import View


@frozen
class Settled:
    """What is known without a delivery: an outcome, a ledger row that tells of it, or both."""

    outcome: NoMatch | KeyRefused | None = None
    entry: ledger.Entry | None = None


Judgement = Task | Settled


def bindings_of(config: Config, scope: str) -> Sequence[Binding]:
    """The bindings of a scope: the configured ones, or what the host's resolver answers, checked."""
    if config.bindings_resolver is None:
        return config.bindings
    return checked_bindings(config.bindings_resolver(scope), "the answer of bindings_resolver")


def judged(
    config: Config, bindings: Sequence[Binding], message: Message, now: datetime
) -> Iterator[Judgement]:
    """One judgement for each enabled binding of the message's source, each made when it is asked for.

    Where none of them takes the message, and such are recorded, the last tells that.
    """
    view = View(message.data)
    why = "no enabled binding"
    for binding in bindings:
        if not binding.enabled or binding.source != message.source:
            continue
        judgement = _judge(binding, message, view, now)
        if isinstance(judgement, Task) or isinstance(judgement.outcome, KeyRefused):
            why = ""
        elif why:
            why = "no binding matched"
        yield judgement
    if why and config.record_unrouted:
        yield Settled(entry=_unrouted(message, now, why))


def _judge(binding: Binding, message: Message, view: View, now: datetime) -> Judgement:
    try:
        if not binding.matches(view):
            return Settled(NoMatch(binding.id))
        key = binding.key_of(view)
    except MatchRefused as refusal:
        return _refused(KeyRefused(binding.id, "match", refusal.detail), message, now)
    except KeyRefusal as refusal:
        return _refused(KeyRefused(binding.id, "key", refusal.detail), message, now)
    data = binding.project(message.data)
    return tasks.of_message(binding, key, message, now, data)


def _refused(refused: KeyRefused, message: Message, now: datetime) -> Settled:
    entry = ledger.Entry(
        binding_id=refused.binding_id,
        message_id=message.message_id,
        scope=message.scope,
        outcome=refused.recorded,
        inserted_at=now,
        reason=error_text(f"{refused.stage}: {refused.detail}"),
    )
    return Settled(refused, entry)


def _unrouted(message: Message, now: datetime, why: str) -> ledger.Entry:
    return ledger.Entry(
        binding_id=None,
        message_id=message.message_id,
        scope=message.scope,
        outcome="unrouted",
        inserted_at=now,
        reason=error_text(f"{why} of source {message.source!r}"),
    )
