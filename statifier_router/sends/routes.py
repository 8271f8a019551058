"""Routes: the named one-way destinations of sends, and how one is called."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from attrs import field, frozen
from sqlalchemy import Connection

from statifier_router import outbox
from statifier_router.ambient import Frame, running_route
from statifier_router.config import Config
from statifier_router.dialect import Link, in_full
from statifier_router.errors import ConfigError, RouteRefused
from statifier_router.executor import EffectRefused
from statifier_router.messages import Event
from statifier_router.refusals import close_awaitable
from statifier_router.savepoints import in_own_savepoint
from statifier_router.schema import Schema
from statifier_router.text import NAME_LIMIT, checked, error_text


@frozen
class RouteContext:
    """For whom a route hands off: the sending execution as it was before the step, and the step's time.

    `connection` is the delivery's own: what a route writes on it exists exactly when the step does.
    `context` is the opaque text that came with the driving message.
    """

    link: Link = field(repr=False, alias="connection")
    execution_id: str
    scope: str
    document: str
    key: str = field(repr=False)
    send_id: str | None
    route: str
    now: datetime
    context: Mapping[str, str] = field(repr=False)
    schema: Schema | None = field(default=None, repr=False, kw_only=True)

    @property
    def connection(self) -> Connection:
        """The delivery's own."""
        return in_full(self.link)


@runtime_checkable
class Route(Protocol):
    """A one-way destination. A plain callable with the signature of `hand_off` is a route too."""

    def hand_off(self, event: Event, key: str, context: RouteContext) -> None:
        """Hand the event off durably; raise `RouteRefused(reason)` where it was not.

        `key` stays equal when the same step is driven again: hand off once per key. Anything else
        that is raised takes the whole delivery with it. May be called again for a delivery that was
        rolled back; what it did outside the transaction stays done.
        """
        ...


def _queue(value: str) -> str:
    return checked(value, "queue", ConfigError, limit=NAME_LIMIT)


@frozen
class OutboxRoute:
    """Hands off by a row in the outbox, under `queue`; at most one row a key.

    >>> OutboxRoute("notices").queue
    'notices'
    """

    queue: str = field(converter=_queue)

    # It only inserts rows of the library's own: no statement of a stranger can break the delivery.
    writes_rows_only = True

    def hand_off(self, event: Event, key: str, context: RouteContext) -> None:
        """Insert the row in the delivery's transaction."""
        if context.schema is None:
            raise ConfigError("OutboxRoute needs the context that the library hands it")
        outbox.add(context.link, context.schema, self.row_of(event, key, context))

    def row_of(self, event: Event, key: str, context: RouteContext) -> dict[str, Any]:
        """The row, for whoever writes it together with others."""
        return outbox.row_of(
            queue=self.queue,
            key=key,
            execution_id=context.execution_id,
            scope=context.scope,
            event=event,
            context=context.context,
            now=context.now,
        )


def instance_of(config: Config, scope: str, name: str) -> Any:
    """The route of this name in this scope, or None where no route of that name is registered."""
    if name not in config.routes:
        return None
    return config.route_overrides.get(scope, {}).get(name, config.routes[name])


def hand_off(
    frame: Frame, instance: Any, event: Event, key: str, context: RouteContext
) -> EffectRefused | None:
    """Call a route; answers why it refused. A host's own runs marked, and in its own savepoint."""
    call = getattr(instance, "hand_off", instance)
    if getattr(instance, "writes_rows_only", False):
        try:
            call(event, key, context)
        except RouteRefused as refused:
            return EffectRefused(error_text(refused.reason))
        return None

    def work() -> None:
        with running_route(context.execution_id):
            answer = call(event, key, context)
        # Taken for a hand-off, either of these would be a send lost in silence.
        if close_awaitable(answer):
            raise ConfigError(
                f"route {context.route!r} answered an awaitable, which nobody awaits: "
                "a route is a plain function, not async"
            )
        if isinstance(answer, (BaseException, EffectRefused)):
            raise ConfigError(
                f"route {context.route!r} returned {type(answer).__name__}: raise RouteRefused(reason) "
                "where it was not handed off"
            )

    try:
        in_own_savepoint(frame, work)
    except RouteRefused as refused:
        return EffectRefused(error_text(refused.reason))
    return None
