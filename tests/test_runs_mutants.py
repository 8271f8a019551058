"""Each decision that makes runs safe, with a scenario that fails where the engine decides otherwise.

A scenario passes on the engine as it is. `tests.support.mutants` spoils one function at a time, and the
scenario that is named after the mutant has to notice.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import delete, insert

from statifier_router.runs import ChainEnd, LedgerRowAppeared
from statifier_router.testing.targets import rejects, times_out, unavailable
from tests.support import judged
from tests.support.chances import IDS
from tests.support.histories import History
from tests.support.mortal import Freeze
from tests.support.mutants import MUTANTS

HOUR = timedelta(hours=1)


@pytest.fixture
def history(database, make_config):
    """A rule over a target that honours keys."""
    made = History(make_config, database, keyed=True)
    yield made
    made.close()


def settled(history):
    """Everything works again, and chains run until nothing is left to do: all must be well."""
    history.quiesce()
    judged.at_rest(history)


def died_in_call(history):
    """A process begins a chain and dies in its first call, which took effect."""
    history.tick(0)
    history.run(0, freeze=("after", 0, [("dies", 0)]))
    assert history.counts["crashes"] == 1


def appear(history, source_id):
    """Somebody writes a row past the library."""
    schema = history.eyes.config.schema
    with history.eyes.config.engine.begin() as connection:
        connection.execute(
            insert(schema.records).values(
                rule="parcels",
                source_id=source_id,
                status="delivered",
                remote_id="of a stranger",
                signal="of a stranger",
                attempts=0,
                generation=1,
                row_version=1,
                updated_at=history.clock(),
            )
        )


def vanish(history, source_id):
    """A record goes away at its source without a trace."""
    changes = history.eyes.config.schema.changes
    with history.eyes.config.engine.begin() as connection:
        connection.execute(delete(changes).where(changes.c.source_id == source_id))
    history.current[source_id] = (history.current[source_id][0], True)


# --- the scenarios, by the names of the mutants ----------------------------------------------------------


def a_fresh_key_per_attempt(history):
    """A create that took effect and timed out is sent again under its key: one copy."""
    history.touch(0, 0)
    history.target.coming(times_out(taken=True))
    history.chain(0)
    settled(history)
    keys = [request.key for request in history.target.requests if request.verb == "create"]
    assert len(set(keys)) == 1


def any_refusal_settles_doubt(history):
    """A refusal says nothing of the call before it: the create stays in doubt, under its key."""
    history.swap_writer(1, True)
    history.touch(0, 0)
    history.target.coming(times_out(taken=True), rejects())
    history.chain(0)
    history.touch(0, 1)
    history.clock.advance(HOUR)
    history.chain(0)
    assert [row["in_doubt"] for row in history.rows("operations").values()] == [True]
    settled(history)


def no_follow_up_update(history):
    """An old payload lands, and the current version follows it."""
    history.swap_writer(1, True)
    history.touch(0, 0)
    history.target.coming(times_out(taken=True))
    history.chain(0)
    history.touch(0, 1)
    history.chain(0)
    history.clock.advance(HOUR)
    history.chain(0)
    assert [request.verb for request in history.target.requests] == ["create", "create", "update"]
    settled(history)


def open_operations_are_not_swept(history):
    """A job dies behind its create, and the record goes away without a trace: it goes at the target too."""
    history.touch(0, 0)
    died_in_call(history)
    vanish(history, "p0")
    history.quiesce()
    assert not history.target.records
    assert not history.rows("operations")


def an_unfenced_outcome(history):
    """A job frozen in its call, thawed behind a whole chain of another one, writes nothing."""
    history.touch(0, 0)
    history.touch(1, 0)
    history.thaw(0, "after", 0, [("take_over", 1)])
    assert history.counts["late answers"] == 1
    settled(history)


def the_cursor_before_the_last_outcome(history):
    """A job dies in the middle of a page: the records behind are still before the cursor."""
    history.edit(1, 0)
    for which in range(3):
        history.touch(which, 0)
    died_in_call(history)
    settled(history)


def the_due_limit_is_not_frozen(history):
    """What falls due again while the chain lasts waits for the next one."""
    for process in history.processes:
        process.outbound.tick_interval = 9 * HOUR
    history.edit(0, 0)
    for which in range(2):
        history.touch(which, 0)
        history.target.on(IDS[which], *[rejects()] * 3)
    history.chain(0)
    history.clock.advance(HOUR)
    for process in history.processes:
        process.outbound.tick_interval = 9 * HOUR
    history.tick(0)
    for _ in range(3):
        history.job(0, 1)
        history.clock.advance(HOUR)
    history.run(0)
    assert [len(history.target.calls(source_id)) for source_id in IDS[:2]] == [2, 2]
    settled(history)


def the_signal_is_read_again_after_the_write(history):
    """A record that changes during its call is sent again."""
    history.touch(0, 0)
    history.thaw(0, "after", 0, [("touch", 0, 1)])
    settled(history)


def on_conflict_do_update(history):
    """A row that appears during the call is a fault of the rule, and stays as it is."""
    history.touch(0, 0)
    history.tick(0)
    runner = history.processes[0]
    runner.freeze = Freeze("before", 0, lambda: appear(history, "p0"))
    fault = None
    try:
        runner.outbound.run_chain(history.running())
    except LedgerRowAppeared as raised:
        fault = raised
    assert fault is not None
    assert history.rows("records")["p0"]["remote_id"] == "of a stranger"


def the_breaker_is_checked_only_at_the_job_s_start(history):
    """The fifth fault of the target in a row opens the breaker: no call follows in that job."""
    history.edit(1, 0)
    for which in range(4):
        history.touch(which, 0)
    history.target.always(unavailable())
    history.chain(0)
    history.clock.advance(HOUR)
    history.tick(0)
    assert history.run(0) is ChainEnd.BREAKER_OPEN
    assert len(history.target.requests) == 5
    judged.always(history)


# --- what histories found once ----------------------------------------------------------------------------


def test_why_of_a_version_that_came_back_behind_an_open_call(history):
    """A, B, A: the row is of version A, the source too; but a call with B was left open. It is in doubt."""
    history.touch(0, 0)
    history.chain(0)
    history.touch(0, 1)
    died_in_call(history)
    history.touch(0, 0)
    history.clock.advance(HOUR)
    assert history.eyes.outbound.why("parcels", "p0").reason == "in_doubt"
    judged.always(history, "p0")
    settled(history)


def test_why_of_a_record_that_went_away_behind_an_open_call(history):
    """No row, and no record at the source, but a create was left open: the rule does know it."""
    history.touch(0, 0)
    died_in_call(history)
    vanish(history, "p0")
    history.clock.advance(HOUR)
    assert history.eyes.outbound.why("parcels", "p0").reason == "in_doubt"
    history.quiesce()
    assert history.eyes.outbound.why("parcels", "p0").reason == "deleted"


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        a_fresh_key_per_attempt,
        any_refusal_settles_doubt,
        no_follow_up_update,
        open_operations_are_not_swept,
        an_unfenced_outcome,
        the_cursor_before_the_last_outcome,
        the_due_limit_is_not_frozen,
        the_signal_is_read_again_after_the_write,
        on_conflict_do_update,
        the_breaker_is_checked_only_at_the_job_s_start,
    )
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(history, name):
    """The scenario passes on the engine as it is."""
    SCENARIOS[name](history)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_dies(history, name, monkeypatch):
    """The scenario notices that the engine decides otherwise."""
    MUTANTS[name](monkeypatch, history)
    with pytest.raises(AssertionError):
        SCENARIOS[name](history)
