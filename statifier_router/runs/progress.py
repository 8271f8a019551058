"""What a chain has done so far, kept with it from job to job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from statifier_router.jsontext import decode, digest, encode
from statifier_router.runs.faults import Gone, RecordFault, Rejected
from statifier_router.runs.scrubbing import scrubbed
from statifier_router.runs.settling import Settled

_NUMBERS = re.compile(r"\d+")


def fingerprint(kind: str, text: str) -> str:
    """One text for faults that are alike: numbers in it (of a request, of a record) do not count.

    >>> fingerprint("rejected", "request 17: field 'sum' is missing")
    "rejected: request 0: field 'sum' is missing"
    """
    return f"{kind}: {_NUMBERS.sub('0', text)}"


@frozen(kw_only=True)
class Counters:
    """How many records came to which status, and how many refusals in a row were alike."""

    counts: Mapping[str, int] = field(factory=dict)
    refusals: int = 0
    refused_as: str | None = None

    @classmethod
    def read(cls, text: str) -> Counters:
        """What `text` made."""
        stored: Any = decode(text)
        refused_as = stored.pop("refused_as", None)
        refusals = stored.pop("refusals", 0)
        return cls(counts=stored, refusals=refusals, refused_as=refused_as)

    @property
    def text(self) -> str:
        """As JSON."""
        stored: dict[str, Any] = dict(self.counts)
        if self.refused_as is not None:
            stored |= {"refusals": self.refusals, "refused_as": self.refused_as}
        return encode(stored)

    def passed_over(self, count: int) -> Counters:
        """So many records more needed neither a call nor a row."""
        return self._counted("passed_over", count) if count else self

    def after(self, settled: Settled) -> Counters:
        """One record's outcome more."""
        if settled.goes_on:
            return self
        status = "passed_over" if settled.outcome is None else settled.outcome.status
        return self._counted(status, 1)

    def heard(self, fault: RecordFault | None) -> Counters:
        """One answer of the target more; `fault` is None for a success."""
        if fault is None:
            return evolve(self, refusals=0, refused_as=None)
        if not isinstance(fault, (Rejected, Gone)):
            return self
        # Its digest: what a target says is not kept where numbers are.
        alike = digest(fingerprint(fault.kind, scrubbed(fault)))[:16]
        return evolve(self, refusals=self.refusals + 1 if alike == self.refused_as else 1, refused_as=alike)

    def is_suspect(self, limit: int | None) -> bool:
        """Whether so many refusals in a row were alike that the rule is suspect, rather than its records."""
        return limit is not None and self.refusals >= limit

    def _counted(self, name: str, count: int) -> Counters:
        return evolve(self, counts={**self.counts, name: self.counts.get(name, 0) + count})
