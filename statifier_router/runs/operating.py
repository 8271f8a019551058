"""What operators do with an `Outbound`: ask, release, park, pause, replay."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from statifier_router.runs import (
    asking,
    doctoring,
    explaining,
    parking,
    pausing,
    pruning,
    rebasing,
    releasing,
    replaying,
)
from statifier_router.runs.acting import Progress
from statifier_router.runs.findings import Finding
from statifier_router.runs.parking import Parked
from statifier_router.runs.pruning import Pruned
from statifier_router.runs.rebasing import Rebased
from statifier_router.runs.releasing import Released
from statifier_router.runs.standing import BreakerStatus, ChainStatus, RecordRow, RuleStatus
from statifier_router.runs.whys import Why

if TYPE_CHECKING:
    from statifier_router.runs.outbound import Outbound


class Operators:
    """The operators' half of `Outbound`.

    A rule is given by its name, or as the `Rule`; one that another process has saved will do. A name that
    nobody knows is a `ConfigError`, which lists those that there are. Asking takes no lock. Every act
    locks the rule's row for a moment at a time, as a run does, and leaves one row in the audit table:
    who (`actor`), what, to which records, to how many, and why (`reason`).
    """

    # --- asking ---------------------------------------------------------------------------------------

    def rules(self) -> list[RuleStatus]:
        """How every rule stands: its state, what to do next, its last run, its records by status.

        A rule that does nothing because nothing is to be done and one that is set up wrongly have
        different states. Counts all records of all rules.

        >>> from statifier_router.doctest_support import outbound
        >>> [(rule.name, rule.state) for rule in outbound().rules()]
        [('parcels', 'never ran')]
        """
        return asking.rules(self._outbound)

    def chains(self, rule: object, *, limit: int = 20) -> list[ChainStatus]:
        """The runs of a rule, the newest first.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().chains("parcels")
        []
        """
        return asking.chains(self._outbound, rule, limit=limit)

    def records(
        self, rule: object, *, status: str | None = None, limit: int = 100, after: str | None = None
    ) -> list[RecordRow]:
        """The records of a rule in the order of their ids, at most `limit`, behind the id `after`.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().records("parcels", status="failed")
        []
        """
        return asking.records(self._outbound, rule, status=status, limit=limit, after=after)

    def parked(
        self,
        rule: object = None,
        *,
        status: str | None = None,
        error_kind: str | None = None,
        since: datetime | None = None,
        acknowledged: bool | None = False,
        limit: int = 100,
        after: RecordRow | None = None,
    ) -> list[RecordRow]:
        """The records that wait for an operator, those parked first on top; filters add up.

        They are "exhausted" (given up) or "remote_gone" (the target has lost them). `since` is when they
        were parked. `acknowledged`: False for those that nobody has dismissed, True for the dismissed
        ones, None for both. `after` is the last one of the page before.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().parked(error_kind="rejected")
        []
        """
        return asking.parked(
            self._outbound,
            rule,
            status=status,
            error_kind=error_kind,
            since=since,
            acknowledged=acknowledged,
            limit=limit,
            after=after,
        )

    def count_parked(
        self,
        rule: object = None,
        *,
        status: str | None = None,
        error_kind: str | None = None,
        since: datetime | None = None,
        acknowledged: bool | None = False,
    ) -> int:
        """How many `parked` would answer without a limit.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().count_parked("parcels")
        0
        """
        return asking.count_parked(
            self._outbound,
            rule,
            status=status,
            error_kind=error_kind,
            since=since,
            acknowledged=acknowledged,
        )

    def breakers(self) -> list[BreakerStatus]:
        """The breakers of all targets that ever failed.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().breakers()
        []
        """
        return asking.breakers(self._outbound)

    def why(self, rule: object, source_id: str) -> Why:
        """The one reason why a record is, or is not, at its target now, and what to do next.

        Asks the rule's source where this process has it.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().why("parcels", "P7").reason
        'unknown'
        """
        return explaining.why(self._outbound, rule, source_id)

    def doctor(self) -> list[Finding]:
        """What is wrong now, or will be at the next run, and what mends it.

        >>> from statifier_router.doctest_support import outbound
        >>> [finding.kind for finding in outbound().doctor()]
        ['never_ran']
        """
        return doctoring.doctor(self._outbound)

    # --- acting on records ----------------------------------------------------------------------------

    def release(
        self,
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
        """Offer parked or failed records again, or take them off the list of those that are parked.

        Chosen are the records named in `source_ids`, those that fit the filters, or both; without either
        all that are parked and not dismissed. Failed ones, which are tried again anyway, are chosen by
        name or by `status="failed"`. `mode` is one of:

        - "retry": from the first attempt. A call in doubt is sent again under its own key.
        - "recreate": without the address that it had at the target, which must not have it any more: a
          create follows, under a new key. What was in doubt is taken for not done.
        - "adopt": one record has the address `remote_id` at the target; an update follows where the rule
          updates. What was in doubt is taken for done.
        - "dismiss": it stays as it is, and is listed no more.

        They are due at once, or evenly over `spread`. A hundred thousand take some seconds, in
        transactions of a few hundred; what was committed before a fault stays, and is in the audit row.
        `dry_run` counts and writes nothing.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().release("parcels", mode="retry", actor="ada", dry_run=True).count
        0
        """
        return releasing.release(
            self._outbound,
            rule,
            mode=mode,
            actor=actor,
            source_ids=source_ids,
            status=status,
            error_kind=error_kind,
            since=since,
            remote_id=remote_id,
            dry_run=dry_run,
            spread=spread,
            reason=reason,
            progress=progress,
        )

    def park(self, rule: object, source_ids: Iterable[str], *, reason: str, actor: str = "host") -> Parked:
        """Set records aside, so that no run offers them until they are released.

        For one that makes every run fail. It need not have a row yet, where its source knows it or a call
        of it is open; such a call is in doubt from then on.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().park("parcels", ["P7"], reason="breaks the writer", actor="ada").unknown
        1
        """
        return parking.park(self._outbound, rule, source_ids, reason=reason, actor=actor)

    def replay(
        self,
        rule: object,
        *,
        source_ids: Iterable[str] | None = None,
        since: datetime | None = None,
        actor: str = "host",
        dry_run: bool = False,
        spread: timedelta | None = None,
        reason: str | None = None,
        progress: Progress | None = None,
    ) -> Released:
        """Offer records again that were delivered or suppressed, as they are now, under new keys.

        Chosen are those named, those handled `since`, or both. A state rule updates them at the target; a
        message rule sends them a second time.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().replay("parcels", source_ids=["P7"], actor="ada").unknown
        1
        """
        return replaying.replay(
            self._outbound,
            rule,
            source_ids=source_ids,
            since=since,
            actor=actor,
            dry_run=dry_run,
            spread=spread,
            reason=reason,
            progress=progress,
        )

    # --- acting on rules ------------------------------------------------------------------------------

    def pause(self, rule: object, *, actor: str = "host", reason: str | None = None) -> bool:
        """Have no run of the rule begin, and one that is under way end after the call in hand.

        Answers whether it was not paused before.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().pause("parcels", actor="ada")
        True
        """
        return pausing.pause(self._outbound, rule, actor=actor, reason=reason)

    def resume(self, rule: object, *, actor: str = "host", reason: str | None = None) -> bool:
        """Let the runs of a paused rule begin again, where they stopped. Answers whether it was paused.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().resume("parcels", actor="ada")
        False
        """
        return pausing.resume(self._outbound, rule, actor=actor, reason=reason)

    def reset_breaker(self, target: str, *, actor: str = "host", reason: str | None = None) -> bool:
        """Close the breaker of a target, as after a success. Answers whether it had counted a fault.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().reset_breaker("carrier", actor="ada")
        False
        """
        return pausing.reset_breaker(self._outbound, target, actor=actor, reason=reason)

    # --- upkeep ---------------------------------------------------------------------------------------

    def prune_changes(self, *, before: datetime, limit: int = 1000, after: int | None = None) -> Pruned:
        """Delete rows of `changes` that nobody needs, a page of them; the same as `runs.prune_changes`.

        >>> from datetime import UTC, datetime
        >>> from statifier_router.doctest_support import outbound
        >>> outbound().prune_changes(before=datetime(2026, 1, 1, tzinfo=UTC)).next is None
        True
        """
        return pruning.prune_changes(self._outbound.config, before=before, limit=limit, after=after)

    def prune_chains(self, *, before: datetime, limit: int = 1000) -> int:
        """Delete at most `limit` chains that ended before `before`; answers how many. Call until that is 0.

        The newest 20 of each rule that have ended stay: how a rule stands is judged by them.

        >>> from datetime import UTC, datetime
        >>> from statifier_router.doctest_support import outbound
        >>> outbound().prune_chains(before=datetime(2026, 1, 1, tzinfo=UTC))
        0
        """
        return pruning.prune_chains(self._outbound.config, before=before, limit=limit)

    def prune_records(
        self, rule: object, *, before: datetime, limit: int = 1000, after: int | None = None
    ) -> Pruned:
        """Look at `limit` messages of a message rule's queue behind `after`; delete those that are done with.

        A message goes, along with its records, once every rule that reads it has delivered or suppressed
        it, or had it dismissed, before `before`. One without the other would be sent again. The records
        of a state rule are never deleted: `ConfigError`. One transaction, under the locks of those rules;
        call it with the answer's `next` until that is None.
        """
        return pruning.prune_records(self._outbound, rule, before=before, limit=limit, after=after)

    def rebase(self, *, actor: str = "host", reason: str | None = None) -> Rebased:
        """Mend the order of changes and messages after a dump and restore into another server; PostgreSQL.

        All rows that are there come before every new one, in the order of their numbers; every rule goes
        on where it had read everything, paused ones included. What is read a second time is known by its
        signal and not sent again. One transaction, which writes every row of both tables; it does no harm
        where nothing was to be mended. Raises `ConfigError` while a run is under way.

        >>> from statifier_router.doctest_support import outbound
        >>> outbound().rebase(actor="ada").rules
        ()
        """
        return rebasing.rebase(self._outbound, actor=actor, reason=reason)

    @property
    def _outbound(self) -> Outbound:
        return cast("Outbound", cast("Any", self))
