"""A process that dies at any statement leaves nothing half done, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        pytest.param("sqlite", "plain", marks=pytest.mark.sqlite),
        pytest.param("postgresql", "merged", marks=pytest.mark.postgresql),
        pytest.param("postgresql", "plain", marks=pytest.mark.postgresql),
    ],
)
def test_a_process_killed_at_any_statement_leaves_the_state_of_a_clean_delivery(
    request: pytest.FixtureRequest,
    forks: Forks,
    kind: str,
    plan: str,
    scenario: str,
    record_property: Callable[[str, object], None],
) -> None:
    """SIGKILL before and after every statement, then the message again: the state of one clean delivery.

    The points tried are the statements counted on the server. (20-delivery, trap 25.)
    """
    database: Database = request.getfixturevalue(kind)
    report = kill_at_every_statement(database, scenario, forks, plan)
    print(f"{kind}, {plan} plan, {report}")
    record_property("crash", f"{kind}, {plan} plan, {report}".splitlines()[0])
    assert report.points == report.counted
    assert report.all_clean, str(report)
    for tried in report.tried:
        was_taken = tried.committed or scenario == "duplicate"
        assert (tried.redelivered == "duplicate") == was_taken, str(tried)
