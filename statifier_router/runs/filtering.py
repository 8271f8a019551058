"""The filters by which operators choose records: checked at the edge."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from attrs import field, frozen

from statifier_router.clock import as_utc
from statifier_router.errors import ConfigError
from statifier_router.runs.standing import STATUSES
from statifier_router.text import KEY_LIMIT, NAME_LIMIT, checked


@frozen
class Filters:
    """Which filters are given, and their parameters; `told` is how an audit row spells them."""

    names: frozenset[str] = frozenset()
    values: dict[str, Any] = field(factory=dict)
    told: dict[str, Any] = field(factory=dict)


def filters(
    *,
    rule: str | None = None,
    status: str | None = None,
    error_kind: str | None = None,
    since: datetime | None = None,
    acknowledged: bool | None = None,
    statuses: Iterable[str] = STATUSES,
) -> Filters:
    """The filters that are given. Raises `ConfigError` for one that can fit nothing."""
    given: dict[str, Any] = {}
    if rule is not None:
        given["rule"] = rule
    if status is not None:
        given["status"] = checked_status(status, statuses)
    if error_kind is not None:
        given["error_kind"] = checked(error_kind, "error_kind", ConfigError, limit=NAME_LIMIT)
    if since is not None:
        given["since"] = as_utc(since, "since", ConfigError)
    names = set(given)
    if acknowledged is not None:
        if not isinstance(acknowledged, bool):
            raise ConfigError(f"acknowledged must be True, False or None, not {acknowledged!r}")
        names.add("acknowledged" if acknowledged else "not_acknowledged")
    told = {name: value for name, value in given.items() if name != "rule"}
    if since is not None:
        told["since"] = given["since"].isoformat()
    return Filters(frozenset(names), {f"of_{name}": value for name, value in given.items()}, told)


def checked_status(status: object, among: Iterable[str] = STATUSES) -> str:
    """A status that a record can have; else `ConfigError`."""
    if not isinstance(status, str) or status not in among:
        raise ConfigError(f"status must be one of {', '.join(among)}, not {status!r}")
    return status


def checked_source_id(source_id: object) -> str:
    """The id of a record; `ConfigError` for what no record can have as one."""
    return checked(source_id, "source_id", ConfigError, limit=KEY_LIMIT)


def checked_source_ids(source_ids: object) -> tuple[str, ...]:
    """Ids, each once, in the order in which they came."""
    if isinstance(source_ids, (str, bytes)) or not isinstance(source_ids, Iterable):
        raise ConfigError(f"source_ids must be a sequence of ids, not {type(source_ids).__name__}")
    return tuple(dict.fromkeys(checked_source_id(each) for each in source_ids))
