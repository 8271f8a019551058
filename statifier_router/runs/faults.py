"""Where a fault goes: one of the record lands in the record's row, one of the rule ends its chain.

A writer raises the faults of records. The faults of rules are the library's own; a writer that raises one
means it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from statifier_router.errors import ConfigError, RouterError
from statifier_router.refusals import one_line
from statifier_router.runs.scrubbing import scrubbed

# Of a foreign error within one of ours, so that what to do next is never cut off.
_QUOTED_LIMIT = 1_000


class RecordFault(RouterError):
    """What one record met at its target; the rule goes on with the next one.

    `kind` is what the record's row calls it. `of_target` faults are counted by the breaker. `in_doubt`
    says that the call may have taken effect all the same.
    """

    kind: ClassVar[str] = "fault"
    of_target: ClassVar[bool] = False

    def __init__(self, message: str = "", *, in_doubt: bool = False) -> None:
        self.in_doubt = in_doubt
        super().__init__(message or type(self).__name__)


class Rejected(RecordFault):
    """The target understood the call and refused this record."""

    kind = "rejected"


class Throttled(RecordFault):
    """The target asks to be called less often; `retry_after` is how long it wants to be left alone.

    The breaker opens for that long. Without it, it is a fault of the record like any other. A writer may
    hand over a `timedelta`, seconds, an aware instant, or what stood in the header Retry-After.
    """

    kind = "throttled"

    def __init__(
        self, retry_after: timedelta | datetime | float | str | None = None, message: str = ""
    ) -> None:
        self.retry_after = retry_after
        super().__init__(message or "the target asks to be called less often")


class Unavailable(RecordFault):
    """The target cannot be reached, or says that it is out of order.

    `in_doubt=True` where the call may have been carried out before it said so.
    """

    kind = "unavailable"
    of_target = True


class TimedOut(RecordFault):
    """The target did not answer in time: whether it took the call nobody knows."""

    kind = "timed_out"
    of_target = True

    def __init__(self, message: str = "", *, in_doubt: bool = True) -> None:
        super().__init__(message or "the target did not answer in time", in_doubt=in_doubt)


class Gone(RecordFault):
    """The addressed record is not at the target any more. Out of a create it is a rejection."""

    kind = "gone"


class RuleFault(RouterError):
    """What every record of the rule would meet: its chain has failed, and nothing was written.

    `rule` is the rule's name, `source_id` the record in hand, where there was one.
    """

    kind: ClassVar[str] = "rule_fault"

    def __init__(self, message: str, *, rule: str, source_id: str | None = None) -> None:
        self.rule = rule
        self.source_id = source_id
        # It may quote what a writer or a source said.
        super().__init__(scrubbed(message))


class NoWriter(RuleFault):
    """The rule's driver has no writer in this process."""

    kind = "no_writer"

    def __init__(self, *, rule: str, driver: str, source_id: str | None = None) -> None:
        self.driver = driver
        super().__init__(
            f"rule {rule!r} needs a writer for the driver {driver!r}: "
            f"Outbound(..., writers={{{driver!r}: ...}})",
            rule=rule,
            source_id=source_id,
        )


class UnsupportedVerb(RuleFault, ConfigError):
    """The writer of the rule's driver lacks a verb that the rule needs."""

    kind = "unsupported_verb"

    def __init__(self, *, rule: str, driver: str, verb: str, source_id: str | None = None) -> None:
        self.driver = driver
        self.verb = verb
        super().__init__(
            f"rule {rule!r} needs the verb {verb!r}, which the writer of the driver {driver!r} "
            f"does not have: give it a method {verb}, or choose another policy",
            rule=rule,
            source_id=source_id,
        )


class LedgerRowAppeared(RuleFault):
    """A record that the scan found without a row has one when its outcome is to be written."""

    kind = "ledger_row_appeared"

    def __init__(self, *, rule: str, source_id: str) -> None:
        super().__init__(
            f"rule {rule!r}: a row of record {source_id!r} appeared that no run of this rule wrote; "
            "find out who writes into the table of records, and mend the row",
            rule=rule,
            source_id=source_id,
        )


class ImpossibleCandidate(RuleFault):
    """The source handed over a record that it should never have."""

    kind = "impossible_candidate"

    def __init__(self, problem: str, *, rule: str, source_id: str | None = None) -> None:
        self.problem = problem
        super().__init__(
            f"rule {rule!r}: its source handed over an impossible record: {problem}; mend the source",
            rule=rule,
            source_id=source_id,
        )


class Unclassified(RuleFault):
    """The writer raised something that is neither a fault of a record nor one of ours; it is chained."""

    kind = "unclassified"

    def __init__(self, error: BaseException, *, rule: str, source_id: str, driver: str) -> None:
        self.driver = driver
        super().__init__(
            f"rule {rule!r}: the writer of the driver {driver!r} raised {type(error).__name__}: "
            f"{one_line(scrubbed(error), _QUOTED_LIMIT)} at record {source_id!r}; "
            "let its `classify` tell which faults are a record's own, or park the record",
            rule=rule,
            source_id=source_id,
        )


class JobTimedOut(RuleFault):
    """A job outlasted its deadline, because a call outlasted its own timeout."""

    kind = "job_timed_out"

    def __init__(self, *, rule: str, source_id: str | None, deadline: timedelta) -> None:
        self.deadline = deadline
        super().__init__(
            f"rule {rule!r}: its job outlasted its deadline of {deadline}: "
            "the writer has to give up a call after `context.timeout`",
            rule=rule,
            source_id=source_id,
        )
