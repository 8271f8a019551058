"""`statifier-router reap` and `prune`: what keeps the tables small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
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
from statifier_router.runs import Outbound, Pruned, prune_chains, prune_changes
from statifier_router.runs.bracket import reading as reading_rows
from statifier_router.runs.own_sources import readers

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


@command("prune", given="both")
@click.option("--ledger-before", metavar="WHEN", help="Delete ledger rows written before this.")
@click.option(
    "--executions-before",
    metavar="WHEN",
    help="Forget positions and input logs of executions that ended before this; their rows stay.",
)
@click.option(
    "--changes-before",
    metavar="WHEN",
    help="Delete changes written before this that newer ones supersede, and that every rule has passed.",
)
@click.option(
    "--messages-before",
    metavar="WHEN",
    help="Delete messages of the outbox written before this that every rule of their queue is done with.",
)
@click.option(
    "--chains-before",
    metavar="WHEN",
    help="Delete runs that ended before this, but for the newest of each rule.",
)
@_LIMIT
def prune(config: Config, outbound: Outbound | None, *, limit: int, **given: str | None) -> Answer:
    """Delete old ledger rows, input logs, changes, messages and runs.

    WHEN is an instant with its zone (2026-01-31T12:00:00Z) or an age (30d, 12h, 90m, 2w). Messages want an
    Outbound, whose message rules say when they are done with.
    """
    cuts = _cuts(config, given)
    if not cuts:
        raise ConfigError(
            "nothing to prune: give --ledger-before, --executions-before, --changes-before, "
            "--messages-before or --chains-before"
        )
    if "messages" in cuts and outbound is None:
        raise ConfigError("--messages-before wants an Outbound: give --outbound package.module:attribute")
    pruned: dict[str, int] = {}
    for name, cut in cuts.items():
        if name == "ledger":
            pruned[name] = _until_none(partial(ledger.prune, config, before=cut, limit=limit))
        elif name == "executions":
            pruned[name] = _until_none(partial(executions.prune, config, before=cut, limit=limit))
        elif name == "changes":
            pruned[name] = _page_by_page(partial(prune_changes, config, before=cut, limit=limit))
        elif name == "chains":
            pruned[name] = _until_none(partial(prune_chains, config, before=cut, limit=limit))
        else:
            assert outbound is not None
            pruned[name] = sum(
                _page_by_page(partial(outbound.prune_records, rule, before=cut, limit=limit))
                for rule in _readers_of_queues(outbound)
            )
    lines = [f"{name}: {count:,} pruned" for name, count in pruned.items()]
    return Answer({"before": cuts, "pruned": pruned}, lambda screen: screen.say("\n".join(lines)))


def _cuts(config: Config, given: Mapping[str, str | None]) -> dict[str, datetime]:
    """The instants that were given, by what they are for."""
    now = config.now()
    cuts = {}
    for name in ("ledger", "executions", "changes", "messages", "chains"):
        text = given[f"{name}_before"]
        if text is not None:
            field = f"--{name}-before"
            cuts[name] = instants.parse(text, field, now)
            if cuts[name] > now:
                raise ConfigError(f"{field} lies in the future: {text}")
    return cuts


def _page_by_page(act: Callable[..., Pruned]) -> int:
    total, after = 0, None
    while True:
        page = act(after=after)
        total += page.deleted
        after = page.next
        if after is None:
            return total


def _readers_of_queues(outbound: Outbound) -> list[str]:
    """One message rule for each queue: what it prunes, every rule of that queue is done with."""
    with reading_rows(outbound.config) as connection:
        found = readers(connection, outbound.config.schema)
    by_queue: dict[str, str] = {}
    for reader in found:
        if reader.table == "outbox" and reader.kind == "message":
            by_queue.setdefault(reader.name, reader.rule)
    return list(by_queue.values())


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
