"""A process that dies at any statement leaves nothing half done, and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import workers
from tests.support.crashes import kill_at_every_statement
from tests.support.databases import Database
from tests.support.forks import Forks


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks("tests.support.workers") as forks:
        yield forks


@pytest.mark.parametrize("scenario", workers.SCENARIOS)
def test_a_process_killed_at_any_statement_leaves_the_state_of_a_clean_delivery(
    database: Database, forks: Forks, scenario: str, record_property: pytest.RecordProperty
) -> None:
    """SIGKILL before and after every statement, then the message again: the state of one clean delivery.

    The points tried are the statements counted on the server. (20-delivery, trap 25.)
    """
    report = kill_at_every_statement(database, scenario, forks)
    print(f"{database.kind}, {report}")
    record_property("crash", str(report).splitlines()[0])
    assert report.points == report.counted
    assert report.all_clean, str(report)
    wanted = "duplicate" if scenario == "duplicate" else None
    for tried in report.tried:
        if tried.committed:
            assert tried.redelivered == "duplicate"
        elif wanted:
            assert tried.redelivered == wanted
        else:
            assert tried.redelivered != "duplicate"
