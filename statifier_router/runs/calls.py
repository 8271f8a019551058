"""A call is made, with no transaction open; what it answers, or raises, is brought back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from statifier_router.runs import calling, chain_rows, record_rows
from statifier_router.runs.bracket import reading
from statifier_router.runs.faults import Unclassified
from statifier_router.runs.heard import Answered, Asked, Heard, Pinged, Pinging
from statifier_router.runs.progress import fingerprint
from statifier_router.runs.scrubbing import scrubbed
from statifier_router.runs.settling import Answer, NotThere, Unclassifiable
from statifier_router.runs.writers import WriteContext

if TYPE_CHECKING:
    from statifier_router.runs.job import Job
    from statifier_router.runs.visits import Opened

log = logging.getLogger("statifier_router")

# So many equal faults in a row at one record, and it is the record's own.
EQUAL_FAULTS: Final = 3


def make(job: Job, asked: Asked) -> Heard:
    """Make the call. Raises the faults of the rule that `calling` raises."""
    if isinstance(asked, Pinging):
        rule = job.rule
        fault = calling.ping(
            job.writer, rule.driver, rule.call_timeout, rule=rule.name, source_id=asked.source_id
        )
        return Pinged(fault)
    try:
        return Answered(asked, _answer(job, asked))
    except Unclassified as fault:
        if not is_records_own(job, asked, fault):
            raise
        log.error(
            "record parked after three equal faults that the writer did not classify",
            extra={
                "statifier_router.rule": job.rule.name,
                "statifier_router.source_id": asked.view.source_id,
            },
        )
        return Answered(asked, Unclassifiable(fault))


def _answer(job: Job, opened: Opened) -> Answer:
    view, call, rule = opened.view, opened.call, job.rule
    context = WriteContext(
        rule=rule.name,
        source_id=view.source_id,
        key=call.key,
        signal=call.signal,
        attempt=view.attempts + 1,
        in_doubt=call.resumed,
        timeout=rule.call_timeout,
    )
    if call.verb == "lookup":
        found = calling.look_up(job.writer, rule.driver, context)
        return NotThere() if found is None else found
    return calling.call(
        job.writer, rule.driver, call.verb, context, payload=call.payload, remote_id=call.remote_id
    )


def is_records_own(job: Job, opened: Opened, fault: Unclassified) -> bool:
    """Whether a fault that the writer did not classify is taken for the record's own, and parks it.

    Only where the rule says so: the last chains failed alike at this record, and others were delivered.
    """
    if job.rule.on_unclassified != "park":
        return False
    schema, source_id = job.outbound.config.schema, opened.view.source_id
    of_rule = {"of_rule": job.rule.name}
    before = EQUAL_FAULTS - 1
    with reading(job.outbound.config) as connection:
        ended = connection.execute(chain_rows.last_ended(schema), of_rule | {"limit": before}).all()
        others = connection.execute(
            record_rows.other_delivered(schema), of_rule | {"of_source_id": source_id}
        )
        if not others.scalar_one():
            return False
    alike = fingerprint(Unclassified.kind, scrubbed(fault))
    equal = [
        row
        for row in ended
        if row.fault_kind == Unclassified.kind
        and row.fault_source_id == source_id
        and fingerprint(row.fault_kind, row.fault_text or "") == alike
    ]
    return len(equal) == before
