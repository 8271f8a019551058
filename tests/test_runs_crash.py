"""A process that dies anywhere in a chain loses nothing, and sends nothing twice that a key can hold back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support import runs_workers
from tests.support.databases import Database
from tests.support.forks import Forks
from tests.support.runs_crashes import kill_at_every_point, lose_every_commit


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(runs_workers.__name__) as forks:
        yield forks


@pytest.mark.parametrize("variant", runs_workers.VARIANTS)
def test_a_process_killed_anywhere_in_a_chain(
    database: Database,
    forks: Forks,
    variant: str,
    record_property: Callable[[str, object], None],
) -> None:
    """SIGKILL at every statement and around every call, then others run until nothing is left to do.

    Every record is at the target in its current version, or its row says why not; one copy at most where
    keys are honoured; the request log and the records agree. The points tried are the statements that the
    server counted and the calls that the target counted. (50-runs, trap 8.)
    """
    report = kill_at_every_point(database, variant, forks)
    told = f"{database.kind}, {report}"
    print(told)
    record_property("crash", told)
    assert report.points == report.counted
    assert not report.wrong, "\n".join(map(str, report.wrong))


def test_a_connection_lost_at_any_commit(
    postgresql: Database, forks: Forks, record_property: Callable[[str, object], None]
) -> None:
    """Whether the commit was done or not: the process raises what it met, and nothing is lost or doubled.

    A commit that was done while nobody heard is no reason to write its outcome again.
    """
    report = lose_every_commit(postgresql, forks)
    print(report)
    record_property("crash", f"postgresql, {report}")
    assert report.points == report.counted
    assert not report.wrong, "\n".join(map(str, report.wrong))
