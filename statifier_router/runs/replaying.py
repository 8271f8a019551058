"""Replay: records that were delivered are offered again, as they are now."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from statifier_router.errors import ConfigError
from statifier_router.runs import auditing
from statifier_router.runs.acting import Chunk, Progress, Selection, act, total_of
from statifier_router.runs.asking import rule_name
from statifier_router.runs.filtering import checked_source_ids, filters
from statifier_router.runs.releasing import (
    Released,
    checked_spread,
    definition_of,
    due_at,
    offer_again,
    released,
)
from statifier_router.runs.rules import Policy

if TYPE_CHECKING:
    from statifier_router.runs.outbound import Outbound

TAKES = ("delivered", "suppressed")


def replay(
    outbound: Outbound,
    rule: object,
    *,
    source_ids: Iterable[str] | None = None,
    since: datetime | None = None,
    actor: str,
    dry_run: bool = False,
    spread: timedelta | None = None,
    reason: str | None = None,
    progress: Progress | None = None,
) -> Released:
    """See `Outbound.replay`."""
    if source_ids is None and since is None:
        raise ConfigError("nothing to replay: give source_ids, since, or both")
    named = None if source_ids is None else checked_source_ids(source_ids)
    spread = checked_spread(spread, "replay")
    name = rule_name(outbound, rule)
    definition = definition_of(outbound, name)
    if definition["kind"] == "state" and definition["policy"] == Policy.CREATE_ONLY.value:
        raise ConfigError(
            f"rule {name!r} creates and never updates, so its records cannot be sent again: save it with "
            "Policy.UPSERT, or release single records with mode 'recreate' once the target has lost them"
        )
    selection = Selection(
        rule=name, statuses=TAKES, filters=filters(rule=name, since=since), source_ids=named
    )
    done = auditing.entry(actor, "replay", selection.told, reason=reason)
    config, now = outbound.config, outbound.config.now()
    due = due_at(now, spread, partial(total_of, config, selection))

    def change(chunk: Chunk) -> int:
        if chunk.fit:
            # What was sent under the last key is done: a target that honours keys would do nothing.
            offer_again(chunk, due=due, anew=True, forget=False)
        return 0

    tally = act(config, selection, change, done, dry_run=dry_run, progress=progress)
    return released(name, "replay", tally, dry_run=dry_run, now=now, spread=spread)
