"""`statifier-router reap` and `prune`: what keeps the tables small."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import click
from attrs import define

from statifier_router import addresses, claims, executions, ledger
from statifier_router.bindings import Binding, Dedupe
from statifier_router.cli import instants, reading
from statifier_router.cli.answers import Answer
from statifier_router.cli.commanding import command
from statifier_router.config import Config, checked_bindings
from statifier_router.errors import ConfigError

_LIMIT = click.option(
    "--limit", type=int, default=1_000, show_default=True, help="Rows a transaction; all are done."
)


@define
class _Count:
    stamped: int = 0
    deleted: int = 0


@command("reap")
@_LIMIT
def reap(config: Config, *, limit: int) -> Answer:
    """Delete expired claims and old addresses.

    An old address is one whose execution ended a horizon ago: it is stamped when that is first seen, and
    deleted once the longest horizon of its document's bindings has passed since. Run it from time to
    time, for example once an hour.
    """
    now = config.now()
    done = _until_none(lambda: claims.reap(config, now=now, limit=limit))
    bindings = None if config.bindings_resolver is None else _of_every_scope(config)
    count = _Count()
    after: int | None = None
    while True:
        page = addresses.reap(config, bindings, now=now, limit=limit, after=after)
        count.stamped += page.stamped
        count.deleted += page.deleted
        after = page.next
        if after is None:
            break
    document = {
        "claims": {"deleted": done},
        "addresses": {"stamped": count.stamped, "deleted": count.deleted},
    }
    text = (
        f"claims: {done:,} deleted\naddresses: {count.deleted:,} deleted, {count.stamped:,} newly seen ended"
    )
    return Answer(document, lambda screen: screen.say(text))


@command("prune")
@click.option("--ledger-before", metavar="WHEN", help="Delete ledger rows written before this.")
@click.option(
    "--executions-before",
    metavar="WHEN",
    help="Forget positions and input logs of executions that ended before this; their rows stay.",
)
@_LIMIT
def prune(config: Config, *, ledger_before: str | None, executions_before: str | None, limit: int) -> Answer:
    """Delete old ledger rows and input logs.

    WHEN is an instant with its zone (2026-01-31T12:00:00Z) or an age (30d, 12h, 90m, 2w).
    """
    if ledger_before is None and executions_before is None:
        raise ConfigError("nothing to prune: give --ledger-before, --executions-before, or both")
    now = config.now()
    cuts = {}
    for name, given in (("ledger", ledger_before), ("executions", executions_before)):
        if given is not None:
            field = f"--{name}-before"
            cuts[name] = instants.parse(given, field, now)
            if cuts[name] > now:
                raise ConfigError(f"{field} lies in the future: {given}")
    acts = {"ledger": ledger.prune, "executions": executions.prune}
    pruned = {
        name: _until_none(partial(acts[name], config, before=cut, limit=limit)) for name, cut in cuts.items()
    }
    lines = [f"{name}: {count:,} pruned" for name, count in pruned.items()]
    return Answer({"before": cuts, "pruned": pruned}, lambda screen: screen.say("\n".join(lines)))


def _until_none(act: Callable[[], int]) -> int:
    total = 0
    while count := act():
        total += count
    return total


def _of_every_scope(config: Config) -> list[Binding]:
    """One binding a document, with the longest horizon that any scope with an address gives it.

    Ids may repeat from scope to scope, and nothing but document and horizon is read of these.
    """
    assert config.bindings_resolver is not None
    longest: dict[str, timedelta] = {}
    for scope in reading.scopes_of_addresses(config):
        answer = config.bindings_resolver(scope)
        for binding in checked_bindings(answer, "the answer of bindings_resolver"):
            if binding.enabled:
                known = longest.get(binding.document, timedelta(0))
                longest[binding.document] = max(known, binding.dedupe.horizon)
    return [
        Binding(
            id=f"horizon-{number}",
            source="none",
            match={},
            key="none",
            document=document,
            event="none",
            dedupe=Dedupe(horizon),
        )
        for number, (document, horizon) in enumerate(longest.items())
    ]
