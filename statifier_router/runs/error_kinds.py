"""The error kinds that a record's row can have, so that one that is mistyped is not taken for none found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statifier_router.errors import ConfigError
from statifier_router.runs import asking_statements as statements
from statifier_router.runs import deciding, faults, settling
from statifier_router.runs.bracket import reading
from statifier_router.runs.standing import PARKED_BY_HAND

if TYPE_CHECKING:
    from statifier_router.runs.outbound import Outbound

KNOWN: Final = frozenset(
    {
        faults.Rejected.kind,
        faults.Throttled.kind,
        faults.Unavailable.kind,
        faults.TimedOut.kind,
        faults.Gone.kind,
        faults.Unclassified.kind,
        deciding.DELETED,
        deciding.CREATE_ONLY,
        deciding.UPDATE_ONLY,
        deciding.UNKNOWN_CREATE,
        settling.UNADDRESSABLE,
        settling.OUTDATED,
        PARKED_BY_HAND,
    }
)


def check(outbound: Outbound, rule: str | None, error_kind: str | None) -> None:
    """`ConfigError` for a kind that is none of ours and that no record has, for a writer may have its own."""
    if error_kind is None or error_kind in KNOWN:
        return
    values = {"of_error_kind": error_kind} | ({} if rule is None else {"of_rule": rule})
    statement = statements.any_of_kind(outbound.config.schema, of_rule=rule is not None)
    with reading(outbound.config) as connection:
        found = connection.execute(statement, values).first()
    if found is None:
        whose = "no record" if rule is None else f"no record of rule {rule!r}"
        raise ConfigError(
            f"error_kind {error_kind!r} is that of {whose}, and none of {', '.join(sorted(KNOWN))}"
        )
