"""Whether the connections that a rule uses are healthy: the host knows, and is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from statifier_router.errors import ConfigError
from statifier_router.refusals import close_awaitable

if TYPE_CHECKING:
    from statifier_router.runs.rules import Rule


class ConnectionHealth(Protocol):
    """What a host knows of its connections. A plain callable with the same signature is one too."""

    def closed(self, rule: Rule) -> str | None:
        """Why the rule's source or target must not be used now; None where both may be.

        Asked before every call, in a transaction of the library's: answer from memory.
        """
        ...


@frozen
class _AlwaysOpen:
    def closed(self, rule: Rule) -> str | None:
        return None


@frozen
class _Asked:
    """A plain callable as a `ConnectionHealth`."""

    _ask: Callable[[Rule], str | None]

    def closed(self, rule: Rule) -> str | None:
        return self._ask(rule)


ALWAYS_OPEN: ConnectionHealth = _AlwaysOpen()


def closed(health: ConnectionHealth, rule: Rule) -> str | None:
    """What the host says of the rule's connections; `TypeError` where it is neither text nor None.

    True may mean healthy or closed: it must not pass for either.
    """
    answer: object = health.closed(rule)
    if answer is not None and not isinstance(answer, str):
        close_awaitable(answer)
        raise TypeError(
            f"health answered {type(answer).__name__}: answer why the connections are closed, as text, "
            "or None where they are open"
        )
    return answer


def checked_health(value: object) -> ConnectionHealth:
    """`value` as a `ConnectionHealth`; `ConfigError` where it is none."""
    if callable(getattr(value, "closed", None)):
        return value  # type: ignore[return-value]  # it has the method
    if callable(value):
        return _Asked(value)
    raise ConfigError(f"health must be a ConnectionHealth or a callable, not {type(value).__name__}")
