"""Every exception of the library.

Expected outcomes are values (`statifier_router.outcomes`); what stands here are faults and misuse.
Each fault carries its facts as attributes, and a message that says what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from statifier_router.text import error_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statifier_router.outcomes import Outcome

Fault = Literal["binding", "execution", "message", "transient"]


class RouterError(Exception):
    """The base of everything this library raises on purpose."""


class ConfigError(RouterError):
    """The library was set up or called in a way it refuses; the message names the field."""


class BindingError(ConfigError):
    """A binding, a deduplication rule or a deferral rule is faulty; the message names the argument."""


class MessageError(RouterError):
    """A message, delivery, envelope or event cannot be built; the message names the field."""


class KeyInvalid(RouterError):
    """A door was handed a key that is not non-empty text within its limit."""


class MissingExtra(RouterError):
    """A feature needs an optional dependency; the message names the extra that brings it."""

    def __init__(self, extra: str, feature: str) -> None:
        self.extra = extra
        self.feature = feature
        super().__init__(f"{feature} needs the extra '{extra}': pip install 'statifier-router[{extra}]'")


class SchemaError(RouterError):
    """The library's tables are absent, outdated, or not the ones this version knows."""


class Unresolved(RouterError):
    """Raised by a host's chart resolver: there is no chart for this document, and why.

    A door turns it into `UnresolvedDocument`.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class RouteRefused(RouterError):
    """Raised by a route: the event was not handed off, and why. The sending chart hears it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class DeliveryError(RouterError):
    """One delivery failed; nothing of it was written.

    Attributes:
        fault: where the fault lies: `"binding"`, `"execution"`, `"message"` or `"transient"`.
        retryable: whether the same call may succeed later with nothing mended in between.
        binding_id: the binding (or plan) being served, None where none was.
        outcomes: what the same `route` call had committed before this fault.
    """

    fault: ClassVar[Fault]
    retryable: bool = False

    def __init__(self, message: str, *, binding_id: str | None = None) -> None:
        super().__init__(message)
        self.binding_id = binding_id
        self.outcomes: Sequence[Outcome] = ()


class UnresolvedDocument(DeliveryError):
    """The charts know no chart for the binding's document in the message's scope."""

    fault = "binding"

    def __init__(self, document: str, scope: str, reason: str, *, binding_id: str | None = None) -> None:
        reason = " ".join(error_text(reason).split())
        self.document = document
        self.scope = scope
        self.reason = reason
        super().__init__(
            f"no chart for document {document!r} in scope {scope!r}: {reason}; "
            "publish a chart for it, then hand the message over again",
            binding_id=binding_id,
        )


class ChartNotResolved(DeliveryError):
    """An execution's chart (named by its content hash) can no longer be had."""

    fault = "execution"

    def __init__(
        self,
        content_hash: str,
        execution_id: str,
        *,
        binding_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.content_hash = content_hash
        self.execution_id = execution_id
        self.reason = reason
        why = f" ({reason})" if reason else ""
        super().__init__(
            f"execution {execution_id} runs on chart {content_hash}, which is not to be had{why}; "
            "publish that revision beside the newer one, or migrate the execution",
            binding_id=binding_id,
        )


class ChartMismatch(DeliveryError):
    """The charts answered another chart than the one an execution runs on."""

    fault = "execution"

    def __init__(
        self, content_hash: str, execution_id: str, found: str, *, binding_id: str | None = None
    ) -> None:
        self.content_hash = content_hash
        self.execution_id = execution_id
        self.found = found
        super().__init__(
            f"execution {execution_id} runs on chart {content_hash}, but the charts answered "
            f"{found}; answer the revision that was asked for, or migrate the execution",
            binding_id=binding_id,
        )


class ExecutionNotFound(DeliveryError):
    """No execution has this id: for a door, an address names an execution whose row is gone."""

    fault = "execution"

    def __init__(self, execution_id: str, *, binding_id: str | None = None, hint: str | None = None) -> None:
        self.execution_id = execution_id
        super().__init__(
            f"execution {execution_id} does not exist; " + (hint or "check the id"),
            binding_id=binding_id,
        )


class ExecutionSuspended(DeliveryError):
    """The execution is on hold; resume it, then hand the message over again."""

    fault = "execution"
    retryable = True

    def __init__(self, execution_id: str, *, binding_id: str | None = None) -> None:
        self.execution_id = execution_id
        super().__init__(
            f"execution {execution_id} is suspended; resume it, then hand the message over again",
            binding_id=binding_id,
        )


class ExecutionExists(DeliveryError):
    """A host's `mint_execution_id` answered an id that an execution already has."""

    fault = "execution"

    def __init__(self, execution_id: str, *, binding_id: str | None = None) -> None:
        self.execution_id = execution_id
        super().__init__(
            f"an execution with the id {execution_id} exists already; "
            "mint_execution_id must answer a fresh id at every call",
            binding_id=binding_id,
        )


class StaleRevision(DeliveryError):
    """Another writer moved the execution while this step held what it took for the lock."""

    fault = "execution"
    retryable = True

    def __init__(self, execution_id: str, revision: int, *, binding_id: str | None = None) -> None:
        self.execution_id = execution_id
        self.revision = revision
        super().__init__(
            f"execution {execution_id} is no longer at revision {revision}: something stepped it "
            "without its lock; nothing was written, hand the message over again",
            binding_id=binding_id,
        )


class ReentrantStep(DeliveryError):
    """A door or an operator call for an execution whose own step is still open."""

    fault = "execution"

    def __init__(self, execution_id: str, *, binding_id: str | None = None) -> None:
        self.execution_id = execution_id
        super().__init__(
            f"execution {execution_id} is inside a step of its own in this transaction; "
            "call again after that step has ended",
            binding_id=binding_id,
        )


class ReentrantRoute(DeliveryError):
    """A route called `route` or `deliver` while it was running for an execution."""

    fault = "binding"

    def __init__(self, execution_id: str, *, binding_id: str | None = None) -> None:
        self.execution_id = execution_id
        super().__init__(
            f"a route running for execution {execution_id} called a door; a route hands off and "
            "returns: write a row, and deliver its answer as a message of its own",
            binding_id=binding_id,
        )


class OnCompleteFailed(DeliveryError):
    """The completion hook's route refused; the finish of the execution was undone."""

    fault = "execution"

    def __init__(self, route: str, reason: str, *, binding_id: str | None = None) -> None:
        self.route = route
        self.reason = reason
        super().__init__(
            f"the completion route {route!r} refused: {reason}; the finishing step was undone, "
            "mend the route and hand the message over again",
            binding_id=binding_id,
        )


class StepFailed(DeliveryError):
    """A chart failed on this event; nothing was written. The cause is chained where there is one."""

    fault = "message"

    def __init__(self, execution_id: str, reason: str, *, binding_id: str | None = None) -> None:
        self.execution_id = execution_id
        self.reason = reason
        super().__init__(
            f"the chart of execution {execution_id} failed: {reason}; nothing was written, "
            "mend the chart or set the message aside",
            binding_id=binding_id,
        )


class ExecutionBusy(DeliveryError):
    """The bounded wait for a lock ran out (`Config.lock_timeout`).

    `execution_id` is None when the wait was for a claim or an address.
    """

    fault = "transient"
    retryable = True

    def __init__(self, execution_id: str | None = None, *, binding_id: str | None = None) -> None:
        self.execution_id = execution_id
        what = f"execution {execution_id}" if execution_id else "a claim or an address"
        super().__init__(
            f"the wait for {what} ran out: another delivery holds it; hand the message over again",
            binding_id=binding_id,
        )


class IsolationConflict(DeliveryError):
    """A borrowed transaction stricter than READ COMMITTED cannot see what it raced with."""

    fault: ClassVar[Fault] = "transient"
    retryable = True

    def __init__(self, message: str | None = None, *, binding_id: str | None = None) -> None:
        super().__init__(
            message
            or "this transaction's snapshot is older than the row it raced with; roll back and "
            "restart the whole transaction",
            binding_id=binding_id,
        )


class DatabaseFault(DeliveryError):
    """A database fault that another try may mend: deadlock, serialization, a lost connection.

    `sqlstate` is None where the server sent none (the connection broke).
    """

    fault = "transient"
    retryable = True

    def __init__(self, sqlstate: str | None, *, binding_id: str | None = None) -> None:
        self.sqlstate = sqlstate
        what = f"SQLSTATE {sqlstate}" if sqlstate else "the connection broke or could not be made"
        super().__init__(
            f"the database could not finish the delivery ({what}); nothing is half written, "
            "hand the message over again",
            binding_id=binding_id,
        )
