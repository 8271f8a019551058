"""A pure model of the inbound half: claims, addresses, executions, ledger, as the specification tells it.

It knows nothing of SQL or of the library's code. A property test plays the same acts on both.
"""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from typing import Any

import attrs

TERMINAL = ("completed", "failed", "cancelled")


class Refused(Exception):
    """What a door raises, by the name of its class; the model has undone the delivery."""


@attrs.frozen
class Rule:
    """What a binding and a plan have in common, and a binding's part in routing."""

    id: str
    document: str
    create: str = "if_absent"
    horizon: timedelta = timedelta(hours=1)
    per_scope: bool = False
    wants: str | None = None
    drops_unmatched: bool = True


@attrs.define
class Execution:
    """One execution of the model."""

    document: str
    status: str
    seen: list[str] | None
    revision: int
    ended_at: datetime | None
    doors: list[str]


@attrs.define
class Address:
    """One address of the model."""

    execution_id: str
    terminal_seen_at: datetime | None = None


@attrs.define
class Rows:
    """All that is kept, as it would be in the tables."""

    claims: dict[tuple[str, str, str], tuple[Any, datetime]] = attrs.field(factory=dict)
    addresses: dict[tuple[str, str, str], Address] = attrs.field(factory=dict)
    executions: dict[str, Execution] = attrs.field(factory=dict)
    ledger: list[tuple[Any, ...]] = attrs.field(factory=list)


# What a document's executions are once they are created; a document that is not here has no chart.
ON_CREATE = {"parcel": "active", "short": "completed"}


class Model:
    """The rows, and what each act does to them."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.minted = 0

    # --- doors ------------------------------------------------------------------------------------

    def route(
        self,
        rules: list[Rule],
        *,
        source: str,
        kind: str,
        parcel: Any,
        message_id: str,
        scope: str,
        do: str,
        now: datetime,
    ) -> list[str]:
        """The outcomes of one message, one after the other; stops where one raises."""
        told = []
        for rule in rules if source == "carrier" else []:
            if rule.wants not in (None, kind):
                told.append("no_match")
            elif not isinstance(parcel, str):
                self._record(rule.id, message_id, scope, "key_refused", None, None, "key", now)
                told.append("key_refused")
            else:
                told.append(self.deliver(rule, parcel, message_id, scope, do, now))
        if all(outcome == "no_match" for outcome in told):
            self._record(None, message_id, scope, "unrouted", None, None, "unrouted", now)
        return told

    def deliver(self, rule: Rule, key: str, message_id: str, scope: str, do: str, now: datetime) -> str:
        """One delivery; where it raises, nothing of it remains but the number of minted ids."""
        before = copy.deepcopy(self.rows)
        try:
            return self._deliver(rule, key, message_id, scope, do, now)
        except Refused:
            self.rows = before
            raise

    def _deliver(self, rule: Rule, key: str, message_id: str, scope: str, do: str, now: datetime) -> str:
        rows = self.rows
        claim = (rule.id, scope if rule.per_scope else "", message_id)
        content = (key, do)
        if claim in rows.claims and rows.claims[claim][1] >= now:
            reason = None if rows.claims[claim][0] == content else "content differs"
            return self._record(rule.id, message_id, scope, "duplicate", key, None, reason, now)
        rows.claims[claim] = (content, now + rule.horizon)
        place = (scope, rule.document, key)
        address = None if rule.create == "always_new" else rows.addresses.get(place)
        if address is None and rule.create == "never":
            return self._record(rule.id, message_id, scope, "dropped: no_execution", key, None, None, now)
        is_new = address is None
        if address is None:
            execution_id = self._create(rule.document, now)
            if rule.create == "if_absent":
                address = rows.addresses[place] = Address(execution_id)
        else:
            execution_id = address.execution_id
        outcome, reason = self._step(rule, execution_id, do, now, is_new)
        if outcome == "dropped: finished" and address is not None and address.terminal_seen_at is None:
            address.terminal_seen_at = now
        return self._record(rule.id, message_id, scope, outcome, key, execution_id, reason, now)

    def _create(self, document: str, now: datetime) -> str:
        self.minted += 1
        execution_id = f"run-{self.minted:04}"
        if document not in ON_CREATE:
            raise Refused("UnresolvedDocument")
        status = ON_CREATE[document]
        self.rows.executions[execution_id] = Execution(
            document, status, [], 0, None if status == "active" else now, ["create"]
        )
        return execution_id

    def _step(
        self, rule: Rule, execution_id: str, do: str, now: datetime, is_new: bool
    ) -> tuple[str, str | None]:
        execution = self.rows.executions[execution_id]
        if execution.status in TERMINAL:
            return "dropped: finished", None
        if execution.status == "suspended":
            raise Refused("ExecutionSuspended")
        if do in ("failed", "raised"):
            raise Refused("StepFailed")
        execution.revision += 1
        execution.doors.append("deliver" if rule.drops_unmatched else "deliver_event")
        assert execution.seen is not None
        if do in ("refused", "ignored"):
            if rule.drops_unmatched:
                return "dropped: unmatched_event", do
        else:
            execution.seen.append(f"scanned:{do}")
        if do in ("finished", "broken"):
            execution.status = "completed" if do == "finished" else "failed"
            execution.ended_at = now
        return "created_and_delivered" if is_new else "delivered", None

    def _record(
        self,
        binding_id: str | None,
        message_id: str,
        scope: str,
        outcome: str,
        key: str | None,
        execution_id: str | None,
        reason: str | None,
        now: datetime,
    ) -> str:
        self.rows.ledger.append((binding_id, message_id, scope, outcome, key, execution_id, reason, now))
        return outcome

    # --- operators and reapers --------------------------------------------------------------------

    def act(self, name: str, execution_id: str, now: datetime) -> str | bool:
        """An operator's act: the status it leads to, or False."""
        execution = self.rows.executions.get(execution_id)
        if execution is None:
            raise Refused("ExecutionNotFound")
        if execution.status in TERMINAL:
            return False
        status = {
            "cancel": "cancelled",
            "fail": "failed",
            "suspend": "suspended",
            "resume": "active",
        }[name]
        if status != execution.status:
            execution.status = status
            execution.revision += 1
            execution.doors.append(name)
            execution.ended_at = now if status in TERMINAL else None
        return status

    def reap_claims(self, now: datetime) -> int:
        """Drop the claims that expired before `now`."""
        kept = {claim: kept for claim, kept in self.rows.claims.items() if kept[1] >= now}
        gone = len(self.rows.claims) - len(kept)
        self.rows.claims = kept
        return gone

    def reap_addresses(self, rules: list[Rule], now: datetime) -> tuple[int, int]:
        """Stamp addresses newly seen ended, drop those past their horizon."""
        stamped = deleted = 0
        for place, address in list(self.rows.addresses.items()):
            horizon = max((rule.horizon for rule in rules if rule.document == place[1]), default=timedelta(0))
            execution = self.rows.executions.get(address.execution_id)
            if address.terminal_seen_at is not None:
                gone = address.terminal_seen_at + horizon <= now
            else:
                ended = execution is not None and execution.status in TERMINAL
                gone = execution is None or (ended and not horizon)
                if ended and not gone:
                    address.terminal_seen_at = now
                    stamped += 1
            if gone:
                del self.rows.addresses[place]
                deleted += 1
        return stamped, deleted

    def prune(self, before: datetime) -> int:
        """Forget positions and inputs of what ended before an instant."""
        pruned = 0
        for execution in self.rows.executions.values():
            ended = execution.ended_at is not None and execution.ended_at < before
            if ended and execution.status in TERMINAL and execution.seen is not None:
                execution.seen, execution.doors = None, []
                pruned += 1
        return pruned
