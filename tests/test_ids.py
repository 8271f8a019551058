"""Ids of executions: ordered by time, one to each, whatever threads and processes ask for them."""

from __future__ import annotations

import os
import threading
from itertools import pairwise

from ulid import ULID

from statifier_router import ids

THREADS, EACH = 8, 30_000


def test_an_id_is_a_ulid():
    """`ex_` and a ULID in lower case, which says when it was minted."""
    one = ids.execution_id()
    assert one.startswith("ex_")
    assert len(one) == 29
    assert str(ULID.from_str(one[3:].upper())).lower() == one[3:]


def test_ids_of_many_threads():
    """None twice; each thread's, and those that threads hand to each other, rise without one inversion."""
    together = threading.Barrier(THREADS)
    turn = threading.Lock()
    minted: list[list[str]] = [[] for _ in range(THREADS)]
    in_turn: list[str] = []

    def mint(own: list[str]) -> None:
        together.wait()
        for n in range(EACH):
            if n % 10:
                own.append(ids.execution_id())
            else:
                with turn:
                    own.append(ids.execution_id())
                    in_turn.append(own[-1])

    threads = [threading.Thread(target=mint, args=(own,)) for own in minted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inversions = sum(before >= after for row in (*minted, in_turn) for before, after in pairwise(row))
    print(f"{THREADS} threads, {THREADS * EACH} ids, {inversions} inversions")
    assert inversions == 0
    assert len({one for own in minted for one in own}) == THREADS * EACH


def test_a_clock_that_goes_back(monkeypatch):
    """Ids go on rising; they begin anew at random only with a later millisecond."""
    instants = iter([5_000, 4_000, 5_000, 5_001])
    monkeypatch.setattr(ids, "unix_milliseconds", lambda: next(instants))
    monkeypatch.setattr(ids, "_mint", ids._Mint())
    minted = [ids.execution_id() for _ in range(4)]
    assert minted == sorted(set(minted))
    assert [ULID.from_str(one[3:].upper()).milliseconds for one in minted] == [5_000, 5_000, 5_000, 5_001]


def test_a_millisecond_that_runs_out_of_numbers(monkeypatch):
    """The next id takes the next millisecond."""
    monkeypatch.setattr(ids, "unix_milliseconds", lambda: 5_000)
    mint = ids._Mint()
    mint.next()
    mint._random = ids._LAST
    assert mint.next() == 5_001 << 80


def test_ids_after_a_fork():
    """Parent and children go on from the same state and mint no id twice."""
    ids.execution_id()
    ends = []
    for _ in range(4):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                with os.fdopen(writing, "w") as told:
                    told.write("\n".join(ids.execution_id() for _ in range(2_000)))
            finally:
                os._exit(0)
        os.close(writing)
        ends.append((child, reading))
    minted = [ids.execution_id() for _ in range(2_000)]
    for child, reading in ends:
        with os.fdopen(reading) as told:
            minted += told.read().split("\n")
        os.waitpid(child, 0)
    assert len(minted) == len(set(minted)) == 10_000


def test_a_fork_while_an_id_is_being_minted():
    """The child's lock is its own: it is free, whoever held the parent's."""
    with ids._mint._lock:
        child = os.fork()
        if child == 0:
            ids.execution_id()
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
