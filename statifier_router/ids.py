"""Identifiers that the library mints."""

from __future__ import annotations

import os
import threading

from statifier_router.clock import unix_milliseconds

# Crockford's alphabet without I, L, O and U, in the lower case that ids are kept in.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
# Two letters at once: ten bits.
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
# Of 26 letters of five bits, the two bits at the top being zero, the twelve last.
_LOWER = (1 << 60) - 1
_RANDOM_BITS = 80
_LAST = (1 << _RANDOM_BITS) - 1


class _Mint:
    """Mints ULIDs, each greater than the one before it in this process.

    Within one millisecond (and while the clock stands or goes back) the random part is counted up, as
    the ULID specification has it; it begins anew with the next, at random.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a process that was forked: its parent goes on with the same numbers."""
        self._lock = threading.Lock()
        self._at = self._random = 0

    def next(self) -> int:
        """The next ULID, as the number that it is."""
        now = unix_milliseconds()
        with self._lock:
            if now > self._at:
                self._at = now
                # The first bit is left free, so that counting up does not soon run out of numbers.
                self._random = int.from_bytes(os.urandom(10)) >> 1
            elif self._random < _LAST:
                self._random += 1
            else:
                self._at += 1
                self._random = 0
            return self._at << _RANDOM_BITS | self._random


_mint = _Mint()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mint.forget)


def execution_id() -> str:
    """A fresh execution id: `ex_` and a ULID in lower case, ordered by the time it was minted.

    Later ones of a process are greater, whichever thread asks. Time order keeps index inserts at the
    right edge of the tree.
    """
    return "ex_" + _ulid()


def chain_id() -> str:
    """A fresh id of a chain of jobs, ordered as those of executions are."""
    return "ch_" + _ulid()


def audit_id() -> str:
    """A fresh id of a row of the audit table, ordered as those of executions are."""
    return "au_" + _ulid()


def _ulid() -> str:
    number = _mint.next()
    # In two halves: short numbers are quick to shift.
    pairs, upper, lower = _PAIRS, number >> 60, number & _LOWER
    return (
        f"{pairs[upper >> 60]}{pairs[upper >> 50 & 1023]}{pairs[upper >> 40 & 1023]}"
        f"{pairs[upper >> 30 & 1023]}{pairs[upper >> 20 & 1023]}{pairs[upper >> 10 & 1023]}"
        f"{pairs[upper & 1023]}{pairs[lower >> 50]}{pairs[lower >> 40 & 1023]}{pairs[lower >> 30 & 1023]}"
        f"{pairs[lower >> 20 & 1023]}{pairs[lower >> 10 & 1023]}{pairs[lower & 1023]}"
    )
