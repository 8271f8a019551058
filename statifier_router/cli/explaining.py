"""Why a message did what it did: everything that is written down of it, binding by binding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from attrs import frozen

from statifier_router import addresses
from statifier_router.addresses import Address
from statifier_router.bindings import Binding
from statifier_router.claims import Claim
from statifier_router.cli import outgoing, reading
from statifier_router.cli.outgoing import Sent
from statifier_router.cli.reading import Moment, Story
from statifier_router.config import Config, checked_bindings
from statifier_router.deferrals import KeptEvent
from statifier_router.executor import Execution
from statifier_router.ledger import LedgerRow


@frozen
class Declared:
    """What a binding says, for whoever reads an explanation."""

    source: str
    document: str
    event: str
    create: str
    enabled: bool


@frozen
class Held:
    """A claim on the message. `scope` is empty unless the binding deduplicates per scope."""

    scope: str
    expires_at: datetime
    expired: bool


@frozen
class Reached:
    """An execution that the message came to, its address, the inputs this message made, and their sends."""

    execution_id: str
    address: Address | None
    execution: Execution | None
    inputs: tuple[Moment, ...]
    states_not_told: str | None
    sends: tuple[Sent, ...] = ()


@frozen
class Part:
    """What one binding made of the message; `declared` is None where the configuration has no such.

    `kept` is the event that it keeps of it, while it does.
    """

    binding_id: str
    declared: Declared | None
    claims: tuple[Held, ...]
    ledger: tuple[LedgerRow, ...]
    executions: tuple[Reached, ...]
    kept: tuple[KeptEvent, ...] = ()

    @property
    def known(self) -> bool:
        """Whether anything is written down of the message under this binding."""
        return bool(self.claims or self.ledger)


@frozen
class Explanation:
    """Everything known of a message; `unrouted` are the rows that say no binding took it."""

    message_id: str
    known: bool
    scopes: tuple[str, ...]
    unrouted: tuple[LedgerRow, ...]
    bindings: tuple[Part, ...]


def explain(config: Config, message_id: str, scope: str | None = None) -> Explanation:
    """Read it all, in `scope` only where one is given. Nothing is locked or changed."""
    rows = [row for row in reading.ledger_of(config, message_id) if scope in (None, row.scope)]
    claims = _claims_in(reading.claims_of(config, message_id), scope, rows)
    scopes = sorted({row.scope for row in rows} | {claim.scope for claim in claims if claim.scope})
    declared = _declared(config, scopes if scope is None else [scope])
    ids = [*declared, *_others(rows, claims, declared)]
    kept = [each for each in outgoing.kept_of(config, message_id) if scope in (None, each.scope)]
    parts = tuple(_part(config, id, declared.get(id), rows, claims, kept) for id in ids)
    return Explanation(
        message_id=message_id,
        known=bool(rows or claims),
        scopes=tuple(scopes),
        unrouted=tuple(row for row in rows if row.binding_id is None),
        bindings=parts,
    )


def _claims_in(claims: Sequence[Claim], scope: str | None, rows: Sequence[LedgerRow]) -> list[Claim]:
    """Those of the scope; one without a scope belongs to it where the binding wrote a row there."""
    if scope is None:
        return list(claims)
    written = {row.binding_id for row in rows}
    return [
        claim
        for claim in claims
        if claim.scope == scope or (claim.scope == "" and claim.binding_id in written)
    ]


def _declared(config: Config, scopes: Sequence[str]) -> dict[str, Binding]:
    if config.bindings_resolver is None:
        return {binding.id: binding for binding in config.bindings}
    found: dict[str, Binding] = {}
    for scope in scopes:
        answer = config.bindings_resolver(scope)
        for binding in checked_bindings(answer, "the answer of bindings_resolver"):
            found.setdefault(binding.id, binding)
    return found


def _others(rows: Iterable[LedgerRow], claims: Iterable[Claim], declared: dict[str, Binding]) -> list[str]:
    """Bindings that are written down but not configured: removed ones, plans, the library's own."""
    written = [row.binding_id for row in rows] + [claim.binding_id for claim in claims]
    return sorted({id for id in written if id is not None and id not in declared})


def _part(
    config: Config,
    id: str,
    binding: Binding | None,
    rows: Sequence[LedgerRow],
    claims: Sequence[Claim],
    kept: Sequence[KeptEvent],
) -> Part:
    now = config.now()
    own = tuple(row for row in rows if row.binding_id == id)
    held = tuple(
        Held(claim.scope, claim.expires_at, claim.expires_at < now)
        for claim in claims
        if claim.binding_id == id
    )
    said = None
    if binding is not None:
        said = Declared(binding.source, binding.document, binding.event, binding.create, binding.enabled)
    reached = tuple(_reached(config, *each) for each in _executions(config, binding, own))
    return Part(id, said, held, own, reached, tuple(each for each in kept if each.binding_id == id))


def _executions(config: Config, binding: Binding | None, rows: Sequence[LedgerRow]) -> list[tuple[str, str]]:
    """Each execution with the message's id, in the order of the rows that lead to it."""
    found: dict[str, str] = {}
    for row in rows:
        if row.execution_id is not None:
            found.setdefault(row.execution_id, row.message_id)
        elif binding is not None and row.key is not None and binding.create != "always_new":
            # A duplicate's row names the key only.
            address = addresses.find(config, row.scope, binding.document, row.key)
            if address is not None:
                found.setdefault(address.execution_id, row.message_id)
    return list(found.items())


def _reached(config: Config, execution_id: str, message_id: str) -> Reached:
    story = reading.story_of(config, execution_id)
    if story is None:
        return Reached(execution_id, addresses.by_execution(config, execution_id), None, (), None)
    inputs = _inputs_of(story, message_id)
    sends = _sends_of(config, story, inputs) if inputs else ()
    return Reached(execution_id, story.address, story.execution, inputs, story.gap, sends)


def _inputs_of(story: Story, message_id: str) -> tuple[Moment, ...]:
    return tuple(moment for moment in story.moments if moment.input.message_id == message_id)


def _sends_of(config: Config, story: Story, inputs: Sequence[Moment]) -> tuple[Sent, ...]:
    """What the execution sent in the steps of these inputs."""
    log = [moment.input for moment in story.moments]
    by_seq = dict(zip((row.seq for row in log), outgoing.revisions(log), strict=True))
    steps = {by_seq[moment.input.seq] for moment in inputs}
    found = outgoing.outgoing_of(config, story.execution.id).sends
    return tuple(sent for sent in found if sent.revision in steps)
