"""The end of a chain that a fault of the rule ends: nothing of the record in hand is written."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING

from attrs import define

from statifier_router.runs import breaker, chains, leases, visits
from statifier_router.runs.bracket import writing
from statifier_router.runs.ends import ChainEnd
from statifier_router.runs.faults import RuleFault, UnsupportedVerb
from statifier_router.runs.scrubbing import scrubbed

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.runs.leases import Taken
    from statifier_router.runs.outbound import Outbound
    from statifier_router.runs.visits import Opened

log = logging.getLogger("statifier_router")


@define
class InHand:
    """What a job holds at the moment: the record, the open call, the probe of the target's breaker."""

    source_id: str | None = None
    opened: Opened | None = None
    # Until when this job alone may try the target.
    probe: datetime | None = None
    # Within a transaction: the record whose operation is settled, and still has its row.
    spent: str | None = None


def fail(outbound: Outbound, taken: Taken, error: BaseException, in_hand: InHand) -> None:
    """Write that the chain failed, on a fresh connection. What hinders that is logged, never raised.

    A chain that was interrupted (by a signal, say) counts as cancelled. An operation that is open stays
    open, and the next chain settles it; but a verb that is not there at all was never called.
    """
    try:
        with writing(outbound.config) as connection:
            now = outbound.config.now()
            if leases.fenced(connection, outbound, taken, now) is not None:
                _fail(connection, outbound, taken, error, in_hand, now)
    except Exception:
        log.exception("failed chain not written", extra={"statifier_router.chain": taken.chain.id})


def _fail(
    connection: Connection,
    outbound: Outbound,
    taken: Taken,
    error: BaseException,
    in_hand: InHand,
    now: datetime,
) -> None:
    config, rule, opened = outbound.config, taken.rule, in_hand.opened
    if isinstance(error, UnsupportedVerb) and opened is not None and not opened.call.resumed:
        visits.settle(connection, config.schema, rule, opened.view.source_id)
    if (probe := in_hand.probe) is not None:
        breaker.changed(connection, config.schema, rule.target, lambda known: breaker.freed(known, probe))
    failed = isinstance(error, Exception)
    chains.end(
        connection,
        config,
        taken.chain.id,
        "failed" if failed else "cancelled",
        ChainEnd.FAILED if failed else ChainEnd.CANCELLED,
        now,
        kind=error.kind if isinstance(error, RuleFault) else type(error).__name__,
        source_id=getattr(error, "source_id", None) or in_hand.source_id,
        text=scrubbed(error) or type(error).__name__,
    )
    leases.give_back(connection, config, taken, now)
