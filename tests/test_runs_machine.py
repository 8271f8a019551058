"""Whatever happens to a rule, in whatever order: what has to hold of it, after every act and at the end.

A state machine plays the acts of `tests.support.histories`; `tests.support.judged` has what must hold. The
long form, by the thousand, is bench/runs_histories.py.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support import judged
from tests.support.chances import CLOCKS, EDITS, IDS, MODES, REACTIONS, VALUES, VERBS
from tests.support.histories import History

records = st.integers(0, len(IDS) - 1)
values = st.integers(0, len(VALUES) - 1)
runners = st.integers(0, 1)
edits = st.integers(0, len(EDITS) - 1)
writers = st.tuples(st.integers(0, len(VERBS) - 1), st.booleans())
clocks = st.integers(0, len(CLOCKS) - 1)
# A chain over a page or two has about forty points.
points = st.integers(0, 60)

# What others do while a process stands still. The last one takes its rule.
meanwhile = st.tuples(
    st.lists(
        st.one_of(
            st.tuples(st.just("touch"), records, values),
            st.tuples(st.just("delete"), records),
            st.tuples(st.just("advance"), clocks),
            st.tuples(st.just("edit"), edits, runners),
            st.tuples(st.just("park"), records),
            st.tuples(st.just("release"), st.sampled_from(MODES), records),
            st.tuples(st.just("replay"), records),
            st.tuples(st.just("forget"), records),
            st.tuples(st.just("react"), st.sampled_from(list(REACTIONS)), st.just(1)),
            st.tuples(st.just("pause")),
            st.tuples(st.just("reset_breaker")),
        ),
        max_size=3,
    ),
    st.sampled_from([[("take_over", 1)], [("take_over", 1)], []]),
).map(lambda acts: [*acts[0], *acts[1]])


class Machine(RuleBasedStateMachine):
    """The acts, in any order. Each example has a database of its own."""

    make_config = database = None

    def __init__(self):
        super().__init__()
        self.history = None
        self.asked = 0

    @initialize(keyed=st.booleans(), first=st.lists(st.tuples(records, values), min_size=1, max_size=4))
    def begin(self, keyed, first):
        self.database.clear()
        self.history = History(self.make_config, self.database, keyed=keyed)
        for which, value in first:
            self.history.touch(which, value)

    # --- source and target --------------------------------------------------------------------------------

    @rule(which=records, value=values)
    def touch(self, which, value):
        """Another version, or one that was there before: A, B, A."""
        self.history.touch(which, value)

    @rule(which=records)
    def delete(self, which):
        self.history.delete(which)

    @rule(how=st.sampled_from(list(REACTIONS)), times=st.integers(1, 6))
    def react(self, how, times):
        self.history.react(how, times)

    @rule(how=st.sampled_from(["up", "down", "slow, not taken", "slow, taken", "refusing", "throttling"]))
    def set_target(self, how):
        self.history.set_target(how)

    @rule(which=records)
    def forget(self, which):
        self.history.forget(which)

    # --- operators ------------------------------------------------------------------------------------------

    @rule(which=edits, runner=runners)
    def edit(self, which, runner):
        self.history.edit(which, runner)

    @rule(runner=runners)
    def redeploy(self, runner):
        self.history.redeploy(runner)

    @rule(writer=writers)
    def swap_writer(self, writer):
        self.history.swap_writer(*writer)

    @rule()
    def pause(self):
        self.history.pause()
        self.history.chain(0)
        self.history.resume()

    @rule()
    def close_route(self):
        self.history.close_route()
        self.history.chain(0)
        self.history.open_route()

    @rule(mode=st.sampled_from(MODES), which=records)
    def release(self, mode, which):
        self.history.release(mode, which)

    @rule(which=records)
    def park(self, which):
        self.history.park(which)

    @rule(which=records)
    def replay(self, which):
        self.history.replay(which)

    @rule()
    def reset_breaker(self):
        self.history.reset_breaker()

    # --- processes ------------------------------------------------------------------------------------------

    @rule(which=clocks)
    def advance(self, which):
        self.history.advance(which)

    @rule(runner=runners)
    def tick(self, runner):
        self.history.tick(runner)

    @rule(runner=runners)
    def one_job(self, runner):
        self.history.job(runner, 1)

    @rule(runner=runners)
    def chain(self, runner):
        self.history.chain(runner)

    @rule(runner=runners, dies_in=points)
    def crash(self, runner, dies_in):
        self.history.die(runner, dies_in)

    @rule(runner=runners)
    def take_over(self, runner):
        self.history.take_over(runner)

    @rule(moment=st.sampled_from(["scan", "before", "after"]), left=st.integers(0, 2), acts=meanwhile)
    def thaw(self, moment, left, acts):
        self.history.thaw(0, moment, left, acts)

    # --- what holds -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.history is not None)
    @invariant()
    def holds(self):
        # One record after the other: asking is what takes longest here.
        self.asked += 1
        judged.always(self.history, IDS[self.asked % len(IDS)])

    def teardown(self):
        if self.history is None:
            return
        try:
            self.history.quiesce()
            judged.at_rest(self.history)
            self.history.finish()
            judged.released(self.history)
        finally:
            self.history.close()


@pytest.mark.parametrize(("kind", "examples"), [("sqlite", 16), ("postgresql", 8)])
def test_histories(kind, examples, request, make_config):
    """After every act the invariants hold; and at rest each record is at the target in its current
    version, or its row says why not: none is lost, none stale, none twice at a target that honours keys.
    """
    database = request.getfixturevalue(kind)
    machine = type("Machine", (Machine,), {"make_config": make_config, "database": database})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
