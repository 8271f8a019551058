"""Bindings: which messages, which key, which document, which event; judged and compiled when built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, Literal, Never, Self

from attrs import field, frozen

from statifier_router.errors import BindingError
from statifier_router.jsontext import Json
from statifier_router.keys import Key, compile_key
from statifier_router.matching import Match, compile_match, kept
from statifier_router.paths import WHOLE, DataPaths, Path, Whole, compile_projection
from statifier_router.refusals import one_line
from statifier_router.text import NAME_LIMIT, checked
from statifier_router.view import View

Create = Literal["if_absent", "never", "always_new"]
Order = Literal["by_key", "none"]

RESERVED_NAMES: Final = frozenset({"mode", "batch", "window"})
RESERVED_IDS: Final = frozenset({"execution", "timer"})

_CREATE: Final = ("if_absent", "never", "always_new")
_ORDER: Final = ("by_key", "none")
# `now` plus the horizon is stored, and must stay within the years a datetime knows.
_LONGEST: Final = timedelta(days=36_500)


def _duration(value: object, name: str) -> timedelta:
    if not isinstance(value, timedelta):
        raise BindingError(f"{name} must be a timedelta, not {type(value).__name__}")
    if value > _LONGEST:
        raise BindingError(f"{name} must be at most {_LONGEST.days} days, not {value.days}")
    return value


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise BindingError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def _count(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BindingError(f"{name} must be an integer, not {type(value).__name__}")
    if value < 1:
        raise BindingError(f"{name} must be at least 1, not {value}")
    return value


def _horizon(value: timedelta) -> timedelta:
    if _duration(value, "horizon") < timedelta(0):
        raise BindingError(f"horizon must not be negative: {value}")
    return value


def _per_scope(value: bool) -> bool:  # noqa: FBT001 - a converter has one positional argument
    return _flag(value, "per_scope")


def _within(value: timedelta) -> timedelta:
    if _duration(value, "within") <= timedelta(0):
        raise BindingError(f"within must be longer than zero, not {value}")
    return value


def _limit(value: int) -> int:
    return _count(value, "limit")


@frozen
class Dedupe:
    """How long a message id is remembered, and whether each scope has ids of its own.

    Within `horizon` after a message was taken, another one of the same id is a duplicate, for the same
    binding, whatever its scope; with `per_scope=True`, only in the same scope. Choose by what the source
    promises: ids unique everywhere, or unique in a tenant only. A horizon shorter than the source's own
    redelivery lets a late copy through.

    >>> Dedupe(timedelta(days=7)).per_scope
    False
    """

    horizon: timedelta = field(default=timedelta(hours=72), converter=_horizon)
    per_scope: bool = field(default=False, converter=_per_scope)


@frozen
class Defer:
    """Keep an event that its execution does not take now, for at most `within`, at most `limit` of them.

    >>> Defer(timedelta(hours=1)).limit
    100
    """

    within: timedelta = field(converter=_within)
    limit: int = field(default=100, converter=_limit)


_DEDUPE: Final = Dedupe()


def _id(value: object) -> str:
    name = checked(value, "id", BindingError, limit=NAME_LIMIT)
    if name in RESERVED_IDS:
        raise BindingError(f"id {name!r} is reserved for the library's own deliveries")
    return name


def _one_of(value: object, name: str, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        choice = ", ".join(repr(item) for item in allowed)
        raise BindingError(f"{name} must be one of {choice}, not {one_line(repr(value), 80)}")


def _dedupe(value: object) -> None:
    if not isinstance(value, Dedupe):
        raise BindingError(f"dedupe must be a Dedupe, not {type(value).__name__}")


def _deferral(value: object, name: str, dedupe: Dedupe) -> None:
    if isinstance(value, str) and value == "drop":
        return
    if not isinstance(value, Defer):
        raise BindingError(f"{name} must be 'drop' or a Defer, not {one_line(repr(value), 80)}")
    if value.within > dedupe.horizon:
        # A duplicate that comes after the claim has gone would be kept, and stepped, a second time.
        raise BindingError(
            f"{name}: within ({value.within}) must not be longer than dedupe's horizon ({dedupe.horizon})"
        )


@frozen(kw_only=True, init=False)
class Binding:
    """Which messages of a source become which event of which execution of a document.

    Everything is judged and compiled here, once: a faulty argument raises `BindingError`, which names it,
    and a `match` in CEL without its extra raises `MissingExtra`.

    Attributes:
        id: its name in claims, outcomes and the ledger; to change it is to forget what was delivered.
        source: the source whose messages it sees.
        match: a callable over the view, a pattern (path to value, or to a list of allowed values), or CEL.
        key: a callable over the view, a path, or `join(...)`.
        document: whose executions are delivered to.
        event: the name of the event.
        data: the paths of the message that the chart is handed, or `WHOLE`; nothing by default.
        create: what to do where no execution is at the address.
        dedupe: how long a message id is remembered.
        unmatched: what becomes of an event that the execution does not react to.
        missing: what becomes of an event for which there is no execution (`create="never"`).
        order: `"none"` lets a front hand messages of one key over beside each other.
        enabled: a disabled binding sees no message.

    >>> binding = Binding(id="scans", source="carrier", match={"kind": "scan"}, key="parcel.id",
    ...                   document="parcel", event="scanned", data=("depot",))
    >>> binding.project({"kind": "scan", "parcel": {"id": "P7"}, "depot": "Lyon"})
    {'depot': 'Lyon'}
    """

    id: str
    source: str
    # Neither a pattern nor every callable can be hashed.
    match: Match = field(hash=False)
    key: Key = field(hash=False)
    document: str
    event: str
    data: tuple[Path, ...] | Literal[Whole.WHOLE]
    create: Create
    dedupe: Dedupe
    unmatched: Literal["drop"] | Defer
    missing: Literal["drop"] | Defer
    order: Order
    enabled: bool

    _match: Callable[[View], bool] = field(init=False, eq=False, repr=False)
    _key: Callable[[View], str] = field(init=False, eq=False, repr=False)
    _project: Callable[[Mapping[str, Json]], Json] = field(init=False, eq=False, repr=False)

    def __init__(
        self,
        *,
        id: str,
        source: str,
        match: Match,
        key: Key,
        document: str,
        event: str,
        data: DataPaths = (),
        create: Create = "if_absent",
        dedupe: Dedupe = _DEDUPE,
        unmatched: Literal["drop"] | Defer = "drop",
        missing: Literal["drop"] | Defer = "drop",
        order: Order = "by_key",
        enabled: bool = True,
        **later: Never,
    ) -> None:
        _refuse_unknown(later)
        _one_of(create, "create", _CREATE)
        _one_of(order, "order", _ORDER)
        _dedupe(dedupe)
        if isinstance(missing, Defer) and create != "never":
            raise BindingError(
                "missing: a Defer needs create='never'; otherwise the execution is created at once"
            )
        _deferral(unmatched, "unmatched", dedupe)
        _deferral(missing, "missing", dedupe)
        project = compile_projection(data, BindingError)
        self.__attrs_init__(
            id=_id(id),
            source=checked(source, "source", BindingError, limit=NAME_LIMIT),
            match=kept(match),
            key=key,
            document=checked(document, "document", BindingError, limit=NAME_LIMIT),
            event=checked(event, "event", BindingError, limit=NAME_LIMIT),
            data=WHOLE if data is WHOLE else tuple(data),
            create=create,
            dedupe=dedupe,
            unmatched=unmatched,
            missing=missing,
            order=order,
            enabled=_flag(enabled, "enabled"),
        )
        # A frozen class sets what it computes past its own refusal.
        object.__setattr__(self, "_match", compile_match(match))
        object.__setattr__(self, "_key", compile_key(key))
        object.__setattr__(self, "_project", project)

    def matches(self, view: View) -> bool:
        """Whether the message is for this binding; raises `MatchRefused` where that cannot be said."""
        return self._match(view)

    def key_of(self, view: View) -> str:
        """The key of the message's execution; raises `KeyRefusal` where there is none."""
        return self._key(view)

    def project(self, data: Mapping[str, Json]) -> Json:
        """What the chart is handed of the message's data; its values are not copies."""
        return self._project(data)


def _refuse_unknown(later: Mapping[str, object]) -> None:
    for name in later:
        if name in RESERVED_NAMES:
            raise BindingError(f"{name} is a name reserved for a later version; leave it out")
        raise BindingError(f"{name} is not an argument of Binding")


@frozen(init=False)
class Plan:
    """Where `deliver_event` delivers: a name for the claims and the ledger, and the document.

    `id`, `create` and `dedupe` mean what they mean for a `Binding`; a plan and a binding of one id share
    their claims. Raises `BindingError`, naming the argument.

    >>> Plan("reminders", "parcel", create="never").dedupe.horizon.days
    3
    """

    id: str
    document: str
    create: Create = "if_absent"
    dedupe: Dedupe = _DEDUPE

    def __init__(
        self,
        id: str,
        document: str,
        create: Create = "if_absent",
        dedupe: Dedupe = _DEDUPE,
    ) -> None:
        _fill(self, _id(id), document, create, dedupe)

    @classmethod
    def reserved(
        cls,
        id: str,
        document: str,
        create: Create,
        dedupe: Dedupe = _DEDUPE,
    ) -> Self:
        """A plan of the library itself, under one of the ids that are refused to hosts."""
        plan = cls.__new__(cls)
        _fill(plan, id, document, create, dedupe)
        return plan


def _fill(plan: Plan, plan_id: str, document: str, create: Create, dedupe: Dedupe) -> None:
    _one_of(create, "create", _CREATE)
    _dedupe(dedupe)
    plan.__attrs_init__(
        id=checked(plan_id, "id", BindingError, limit=NAME_LIMIT),
        document=checked(document, "document", BindingError, limit=NAME_LIMIT),
        create=create,
        dedupe=dedupe,
    )
