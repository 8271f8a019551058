"""A connection of the pool without the proxy that SQLAlchemy hands out with it.

To make that proxy, to guard it against being forgotten and to take it apart again costs as much as a trip
to the database. Nobody sees it where a transaction of ours begins and ends here. It is made as soon as
somebody asks for it; and at once where anybody listens to the pool, where it pings, where it logs, and
where it is of another kind. The pool's limits, queue, recycling and invalidation are its own all the while.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from sqlalchemy.pool import QueuePool

if TYPE_CHECKING:
    from sqlalchemy import PoolProxiedConnection

try:
    from sqlalchemy.event.attr import _EmptyListener as Unheard
    from sqlalchemy.pool.base import _ConnectionFairy as Proxy
    from sqlalchemy.pool.base import _ConnectionRecord as Record
    from sqlalchemy.util.queue import Queue
except ImportError:
    # Another SQLAlchemy than the one this was written for: its proxies do everything.
    Unheard = Proxy = Record = Queue = None  # type: ignore[assignment,misc]  # they are looked at before they are used

_NEEDED = ("get_connection", "checkin", "_checkin_failed", "fairy_ref")
KNOWN = (
    Record is not None
    and all(hasattr(Record, name) for name in _NEEDED)
    and hasattr(Unheard, "parent_listeners")
)


def take(pool: Any) -> Any:
    """An entry of the pool, which is its holder's until `give_back`; None where the proxy has to be made.

    Its `dbapi_connection` is open. Waits and raises as the pool does.
    """
    if type(pool) is not QueuePool or not KNOWN:
        return None
    heard = pool.dispatch
    out, back, reset = heard.checkout, heard.checkin, heard.reset
    if (
        type(out) is not Unheard
        or type(back) is not Unheard
        or type(reset) is not Unheard
        # Of listeners to every pool.
        or out.parent_listeners
        or back.parent_listeners
        or reset.parent_listeners
        or pool._pre_ping  # noqa: SLF001 - what `pool_pre_ping` said
        or pool.logger.isEnabledFor(logging.DEBUG)
    ):
        return None
    entry: Any = None
    idle = pool._pool  # noqa: SLF001 - its queue
    try:
        if type(idle) is Queue and idle.queue:
            # As `Queue.get` does it, without the clock. It would wake whoever waits to put: nobody does.
            with idle.mutex:
                if idle.queue:
                    entry = idle.queue.pop() if idle.use_lifo else idle.queue.popleft()
        if entry is None:
            entry = pool._do_get()  # noqa: SLF001 - what every kind of pool defines for this
        entry.get_connection()
    except BaseException as error:
        if entry is not None:
            entry._checkin_failed(error, _fairy_was_created=False)  # noqa: SLF001 - as SQLAlchemy does then
        raise
    return entry


def give_back(pool: Any, entry: Any) -> None:
    """Return an entry for which no proxy was made. No transaction may be open on it."""
    reset = pool.dispatch.reset
    if type(reset) is not Unheard or reset.parent_listeners:
        # Somebody has begun to listen meanwhile.
        proxy: Any = proxied(pool, entry)
        proxy._close_special(transaction_reset=True)  # noqa: SLF001 - as SQLAlchemy does after a commit
        return
    entry.checkin(_fairy_was_created=False)


def proxied(pool: Any, entry: Any) -> PoolProxiedConnection:
    """The proxy of an entry that was taken; it gives the entry back when it is closed or forgotten."""
    proxy: Any = Proxy(pool, entry.dbapi_connection, entry, pool._should_log_debug())  # noqa: SLF001 - as SQLAlchemy does
    entry.fairy_ref = weakref.ref(proxy, _nothing)
    proxy._counter = 1  # noqa: SLF001 - how often it is to be closed
    made: PoolProxiedConnection = proxy
    return made


def spent(pool: Any) -> PoolProxiedConnection:
    """A proxy of nothing, which serves nobody: what it stood for was given back."""
    nothing: Any = None
    proxy: Any = Proxy(pool, nothing, nothing, echo=False)
    proxy._finalizer.detach()  # noqa: SLF001 - nothing else takes that back
    made: PoolProxiedConnection = proxy
    return made


def _nothing(_: object) -> None:
    """SQLAlchemy's own reason: a weak reference with a callback is cleared before any other callback runs."""
