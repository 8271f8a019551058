"""What a rule is: which changed records go to which target, and by which policy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from attrs import Attribute, field, frozen

from statifier_router.errors import ConfigError
from statifier_router.jsontext import Json, canonical, digest
from statifier_router.paging import checked_limit
from statifier_router.text import NAME_LIMIT, checked

if TYPE_CHECKING:
    from statifier_router.runs.records import ChangeSource

# Of every time that is given, so that an instant that far ahead still has a date.
LONGEST = timedelta(days=36_500)
# Faults of a target in a row that open its breaker.
TRIP_AFTER = 5


class Policy(Enum):
    """Which verbs a rule uses."""

    UPSERT = "upsert"
    CREATE_ONLY = "create_only"
    UPDATE_ONLY = "update_only"


def _waits(value: Sequence[Any]) -> tuple[timedelta, ...]:
    if not isinstance(value, Iterable):
        raise ConfigError(f"retry.waits must be a sequence of timedeltas, not {value!r}")
    waits = tuple(value)
    if not waits:
        raise ConfigError("retry.waits must name at least one wait")
    for wait in waits:
        if not isinstance(wait, timedelta) or not timedelta(0) < wait <= LONGEST:
            raise ConfigError(
                f"retry.waits must be positive timedeltas of at most {LONGEST.days:,} days, not {wait!r}"
            )
    return waits


def _attempts(_: object, attribute: Attribute[int], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"retry.{attribute.name} must be a positive integer, not {value!r}")


def _share(_: object, attribute: Attribute[float], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ConfigError(f"retry.{attribute.name} must be from 0 up to, not including, 1, not {value!r}")


@frozen(kw_only=True)
class RetryPolicy:
    """How often a record is tried, and after which waits; the last wait serves for all further ones.

    `spread` is the share by which a wait is made longer or shorter, by a hash of rule, record and
    attempt: the same in every process, and different from record to record.

    >>> RetryPolicy().wait("parcels", "p1", 1) == RetryPolicy().wait("parcels", "p1", 1)
    True
    """

    max_attempts: int = field(default=5, validator=_attempts)
    waits: tuple[timedelta, ...] = field(
        default=(timedelta(minutes=5), timedelta(minutes=15), timedelta(hours=1), timedelta(hours=4)),
        converter=_waits,
    )
    spread: float = field(default=0.2, validator=_share)

    def wait(self, rule: str, source_id: str, attempt: int) -> timedelta:
        """The wait after attempt number `attempt` (from 1) failed."""
        base = self.waits[min(attempt, len(self.waits)) - 1]
        named = canonical([rule, source_id, attempt]).encode()
        share = int.from_bytes(hashlib.sha256(named).digest()[:8]) / 2**64
        return base * (1 + self.spread * (2 * share - 1))


def _name(value: object, attribute: Attribute[Any]) -> str:
    return checked(value, attribute.name, ConfigError, limit=NAME_LIMIT)


def _checked_name(instance: object, attribute: Attribute[Any], value: object) -> None:
    del instance
    _name(value, attribute)


def _optional_name(instance: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None:
        _checked_name(instance, attribute, value)


def _positive(instance: object, attribute: Attribute[Any], value: object) -> None:
    del instance
    if not isinstance(value, timedelta) or not timedelta(0) < value <= LONGEST:
        raise ConfigError(
            f"{attribute.name} must be a positive timedelta of at most {LONGEST.days:,} days, not {value!r}"
        )


def _one_of(*allowed: str) -> Any:
    def validate(instance: object, attribute: Attribute[Any], value: object) -> None:
        del instance
        if value not in allowed:
            raise ConfigError(
                f"{attribute.name} must be one of {', '.join(map(repr, allowed))}, not {value!r}"
            )

    return validate


def _policy(instance: object, attribute: Attribute[Any], value: object) -> None:
    del instance
    if not isinstance(value, Policy):
        raise ConfigError(f"{attribute.name} must be a Policy, not {value!r}")


def _retry(instance: object, attribute: Attribute[Any], value: object) -> None:
    del instance
    if not isinstance(value, RetryPolicy):
        raise ConfigError(f"{attribute.name} must be a RetryPolicy, not {type(value).__name__}")


def _source(instance: object, attribute: Attribute[Any], value: object) -> None:
    del instance
    if isinstance(value, type):
        raise ConfigError(f"{attribute.name} must be a ChangeSource, an object: make one of {value.__name__}")
    for method in ("scan", "load"):
        if not callable(getattr(value, method, None)):
            raise ConfigError(f"{attribute.name} must be a ChangeSource: it has no method {method}")


@frozen
class Rule:
    """One entity's changed records, and the one target that they go to.

    A `state` rule keeps the target's copy of each record current, and needs its address there. A
    `message` rule creates once for each record and never updates. `job_deadline` is by default as long
    as the breaker lets a target fail, twice over. `uniform_refusals` equal refusals in a row without a
    success end the chain, as the rule is then suspect rather than its records. Raises `ConfigError`,
    naming the field.
    """

    name: str = field(validator=_checked_name)
    entity: str = field(kw_only=True, validator=_checked_name)
    source: ChangeSource = field(kw_only=True, validator=_source)
    target: str = field(kw_only=True, validator=_checked_name)
    driver: str = field(kw_only=True, validator=_checked_name)
    policy: Policy = field(kw_only=True, validator=_policy)
    kind: Literal["state", "message"] = field(
        default="state", kw_only=True, validator=_one_of("state", "message")
    )
    scope: str | None = field(default=None, kw_only=True, validator=_optional_name)
    batch_size: int = field(default=100, kw_only=True)
    retry: RetryPolicy = field(factory=RetryPolicy, kw_only=True, validator=_retry)
    call_timeout: timedelta = field(default=timedelta(seconds=30), kw_only=True, validator=_positive)
    job_deadline: timedelta = field(default=None, kw_only=True)
    on_unknown_create: Literal["retry", "park"] = field(
        default="retry", kw_only=True, validator=_one_of("retry", "park")
    )
    on_unclassified: Literal["fail", "park"] = field(
        default="fail", kw_only=True, validator=_one_of("fail", "park")
    )
    uniform_refusals: int | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        checked_limit(self.batch_size, "batch_size")
        if self.uniform_refusals is not None:
            checked_limit(self.uniform_refusals, "uniform_refusals")
        # Long enough that a target that answers nothing opens its breaker before the job is given up.
        least = TRIP_AFTER * self.call_timeout
        deadline: Any = self.job_deadline
        if deadline is None:
            object.__setattr__(self, "job_deadline", 2 * least)
        elif isinstance(deadline, timedelta) and deadline > 10 * LONGEST:
            raise ConfigError(f"job_deadline must be at most {10 * LONGEST.days:,} days, not {deadline!r}")
        elif not isinstance(deadline, timedelta) or deadline <= least:
            raise ConfigError(
                f"job_deadline must be longer than {TRIP_AFTER} times the call_timeout ({least}), "
                f"not {deadline!r}"
            )
        if self.kind == "message" and self.policy is Policy.UPDATE_ONLY:
            raise ConfigError("policy must be Policy.CREATE_ONLY for a message rule, which never updates")

    @property
    def verbs(self) -> tuple[str, ...]:
        """The verbs that a writer must have for this rule."""
        if self.policy is Policy.CREATE_ONLY or self.kind == "message":
            return ("create",)
        if self.policy is Policy.UPDATE_ONLY:
            return ("update",)
        return ("create", "update")

    @property
    def definition(self) -> Mapping[str, Json]:
        """Everything about the rule as JSON: what is stored, shown, and compared."""
        return {
            "entity": self.entity,
            "source": source_identity(self.source),
            "target": self.target,
            "driver": self.driver,
            "policy": self.policy.value,
            "kind": self.kind,
            "scope": self.scope,
            "batch_size": self.batch_size,
            "retry": {
                "max_attempts": self.retry.max_attempts,
                "waits": [wait.total_seconds() for wait in self.retry.waits],
                "spread": self.retry.spread,
            },
            "call_timeout": self.call_timeout.total_seconds(),
            "job_deadline": self.job_deadline.total_seconds(),
            "on_unknown_create": self.on_unknown_create,
            "on_unclassified": self.on_unclassified,
            "uniform_refusals": self.uniform_refusals,
        }

    @property
    def digest(self) -> str:
        """One text for equal definitions: a chain ends where its rule's is another one."""
        return digest(self.definition)


def source_identity(source: object) -> str:
    """What a source is called where rules are compared: its own `identity`, else its class."""
    own = getattr(source, "identity", None)
    if isinstance(own, str):
        return own
    return f"{type(source).__module__}.{type(source).__qualname__}"
