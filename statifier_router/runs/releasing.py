"""Releasing records: parked and failed ones are offered again, or taken off the list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import frozen

from statifier_router import dialect
from statifier_router.errors import ConfigError
from statifier_router.jsontext import decode
from statifier_router.runs import acting_statements as statements
from statifier_router.runs import auditing, error_kinds, rule_rows
from statifier_router.runs.acting import Chunk, Progress, Selection, Tally, act, total_of
from statifier_router.runs.asking import rule_name
from statifier_router.runs.bracket import reading
from statifier_router.runs.calling import ADDRESS_LIMIT, usable_address
from statifier_router.runs.filtering import checked_source_ids, filters
from statifier_router.runs.rules import Policy
from statifier_router.runs.standing import PARKED, STATUSES

if TYPE_CHECKING:
    from statifier_router.runs.outbound import Outbound

MODES = ("retry", "recreate", "adopt", "dismiss")
FAILED_OR_PARKED = ("failed", *PARKED)


@frozen(kw_only=True)
class Released:
    """What a release did, or with `dry_run` would do.

    `count` records were changed. Not changed: `busy` ones, whose call is in flight (ask again in a
    moment); those that were `passed_over`, because the mode does not take the status they have; `unknown`
    ones, of which the rule has no row. They are due from `due_from` to `due_until`, None for a mode
    that makes nothing due. `audit_id` is None where nothing was changed.
    """

    rule: str
    mode: str
    count: int
    busy: int
    passed_over: int
    unknown: int
    dry_run: bool
    due_from: datetime | None = None
    due_until: datetime | None = None
    audit_id: str | None = None


def release(
    outbound: Outbound,
    rule: object,
    *,
    mode: str,
    actor: str,
    source_ids: Iterable[str] | None = None,
    status: str | None = None,
    error_kind: str | None = None,
    since: datetime | None = None,
    remote_id: str | None = None,
    dry_run: bool = False,
    spread: timedelta | None = None,
    reason: str | None = None,
    progress: Progress | None = None,
) -> Released:
    """See `Outbound.release`."""
    mode, remote_id = checked_mode(mode, remote_id)
    named = None if source_ids is None else checked_source_ids(source_ids)
    spread = checked_spread(spread, mode)
    name = rule_name(outbound, rule)
    if mode == "adopt":
        if named is None or len(named) != 1:
            raise ConfigError("mode 'adopt' takes exactly one id in source_ids, and its address in remote_id")
        return _adopt(outbound, name, named, remote_id, actor, reason, dry_run=dry_run)
    if mode == "recreate" and definition_of(outbound, name)["policy"] == Policy.UPDATE_ONLY.value:
        raise ConfigError(
            f"mode 'recreate' cannot serve rule {name!r}, whose policy never creates; "
            "give a record its address with mode 'adopt'"
        )
    takes = PARKED if mode == "dismiss" else FAILED_OR_PARKED
    chosen = filters(
        rule=name,
        # What is named is meant; what is not, are the records that wait for somebody.
        status=status,
        error_kind=error_kind,
        since=since,
        acknowledged=False if named is None or mode == "dismiss" else None,
        statuses=takes,
    )
    error_kinds.check(outbound, name, error_kind)
    if named is None and status is None:
        takes = PARKED
    selection = Selection(rule=name, statuses=takes, filters=chosen, source_ids=named)
    done = auditing.entry(actor, f"release {mode}", selection.told, reason=reason)
    config, now = outbound.config, outbound.config.now()
    if mode == "dismiss":
        tally = act(config, selection, _dismiss, done, dry_run=dry_run, progress=progress)
        return released(name, mode, tally, dry_run=dry_run)
    due = due_at(now, spread, partial(total_of, config, selection))
    change = partial(_offer_again, due=due, anew=mode == "recreate", forget=mode == "recreate")
    tally = act(config, selection, change, done, dry_run=dry_run, progress=progress)
    return released(name, mode, tally, dry_run=dry_run, now=now, spread=spread)


def released(
    rule: str,
    mode: str,
    tally: Tally,
    *,
    dry_run: bool,
    now: datetime | None = None,
    spread: timedelta | None = None,
) -> Released:
    """The answer of an act that was done."""
    return Released(
        rule=rule,
        mode=mode,
        count=tally.count,
        busy=tally.busy,
        passed_over=tally.passed_over,
        unknown=tally.unknown,
        dry_run=dry_run,
        due_from=now,
        due_until=None if now is None else now + (spread or timedelta(0)),
        audit_id=tally.audit_id,
    )


# --- Arguments ------------------------------------------------------------------------------------


def checked_mode(mode: object, remote_id: object) -> tuple[str, str | None]:
    """The mode and the address that goes with `adopt`, which may be spelled "adopt ID" as well."""
    if isinstance(mode, str) and mode.startswith(("adopt ", "adopt:")) and remote_id is None:
        mode, remote_id = "adopt", mode[len("adopt ") :].strip()
    if not isinstance(mode, str) or mode not in MODES:
        raise ConfigError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if mode != "adopt":
        if remote_id is not None:
            raise ConfigError(f"remote_id goes with mode 'adopt', not with {mode!r}")
        return mode, None
    address = usable_address(remote_id)
    if address is None:
        raise ConfigError(
            "remote_id must be the address of the record at its target, a text of at most "
            f"{ADDRESS_LIMIT} bytes, not {remote_id!r}"
        )
    return mode, address


def checked_spread(spread: object, mode: str) -> timedelta | None:
    """Over how long records become due; `ConfigError` for a mode that makes none due."""
    if spread is None:
        return None
    if mode in ("dismiss", "adopt"):
        raise ConfigError(f"spread does not go with mode {mode!r}")
    if not isinstance(spread, timedelta) or not timedelta(0) <= spread <= timedelta(days=366):
        raise ConfigError(f"spread must be a timedelta of at most a year, not {spread!r}")
    return spread


def definition_of(outbound: Outbound, rule: str) -> dict[str, Any]:
    """What a saved rule is."""
    with reading(outbound.config) as connection:
        row = connection.execute(rule_rows.one(outbound.config.schema), {"of_rule": rule}).one()
    found: Any = decode(row.definition)
    return dict(found)


# --- What is done to a chunk ----------------------------------------------------------------------


def due_at(now: datetime, spread: timedelta | None, total: Callable[[], int]) -> Callable[[int], datetime]:
    """When the record at a place among all becomes due: evenly over the spread, the first at once."""
    if not spread:
        return lambda place: now
    count = max(total(), 1)
    return lambda place: now + spread * min(place / count, 1)


def offer_again(chunk: Chunk, *, due: Callable[[int], datetime], anew: bool, forget: bool) -> None:
    """Make the records of a chunk due. An operation in doubt is resumed as it was, unless `forget`."""
    places = {source_id: chunk.at + place for place, source_id in enumerate(chunk.source_ids)}
    rows = [{"source_id": each, "next_attempt_at": due(places[each])} for each in chunk.fit]
    kind = dialect.kind(chunk.connection)
    statement = statements.make_due(chunk.schema, kind, anew=anew, forget=forget)
    common = {"of_rule": chunk.rule, "now": chunk.now}
    if kind == "sqlite":
        each_row = [
            {**common, "of_source_id": row["source_id"], "due_at": row["next_attempt_at"]} for row in rows
        ]
        chunk.connection.execute(statement, each_row)
    else:
        columns = {f"{statements.GIVEN}{name}": [row[name] for row in rows] for name in statements.DUE}
        chunk.connection.execute(statement, common | columns | {"source_ids": chunk.fit})
    if opened := chunk.with_operation():
        if forget:
            chunk.execute(statements.drop_operations(chunk.schema), source_ids=opened)
        else:
            chunk.execute(statements.keep_operations(chunk.schema, doubt=False), source_ids=opened)


def _offer_again(chunk: Chunk, *, due: Callable[[int], datetime], anew: bool, forget: bool) -> int:
    if chunk.fit:
        offer_again(chunk, due=due, anew=anew, forget=forget)
    return 0


def _dismiss(chunk: Chunk) -> int:
    if chunk.fit:
        chunk.execute(statements.acknowledge(chunk.schema), source_ids=list(chunk.fit))
        if opened := chunk.with_operation():
            chunk.execute(statements.keep_operations(chunk.schema, doubt=False), source_ids=opened)
    return 0


def _adopt(
    outbound: Outbound,
    rule: str,
    named: Sequence[str],
    remote_id: str | None,
    actor: str,
    reason: str | None,
    *,
    dry_run: bool,
) -> Released:
    """Give one record its address at the target, and settle what is in doubt about it."""
    definition = definition_of(outbound, rule)
    # Where no update ever follows, the record is there once it has an address.
    follows = definition["kind"] == "state" and definition["policy"] != Policy.CREATE_ONLY.value
    selection = Selection(rule=rule, statuses=STATUSES, filters=filters(rule=rule), source_ids=tuple(named))
    told = selection.told | {"remote_id": remote_id}
    done = auditing.entry(actor, "release adopt", told, reason=reason)

    def change(chunk: Chunk) -> int:
        for source_id in chunk.fit:
            (row,) = chunk.execute(statements.rows_of(chunk.schema), source_ids=[source_id])
            operation = chunk.operations.get(source_id)
            chunk.execute(
                statements.settle(chunk.schema),
                of_source_id=source_id,
                to_remote_id=remote_id,
                to_status="failed" if follows else "delivered",
                to_due=chunk.now if follows else None,
                to_signal=row.signal if operation is None else operation.signal,
            )
            chunk.execute(statements.drop_operations(chunk.schema), source_ids=[source_id])
        return 0

    now = outbound.config.now()
    tally = act(outbound.config, selection, change, done, dry_run=dry_run)
    return released(rule, "adopt", tally, dry_run=dry_run, now=now if follows else None)
