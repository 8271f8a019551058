"""What every interpreter owes, in fourteen points, as tests that an adapter runs with one subclass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from statifier_router.errors import RouterError
from statifier_router.jsontext import Json, encode
from statifier_router.steps import Cancel, Chart, Send
from statifier_router.testing.applying import fit, needs
from statifier_router.testing.probing import (
    Answer,
    ask,
    at,
    at_once,
    containers,
    copy_of,
    course,
    create,
    elsewhere,
    not_json,
    scribble,
    watched,
    within_patience,
)
from statifier_router.testing.scenarios import (
    ABSENT,
    HOSTILE,
    LATER,
    PROBE,
    REGIONS,
    SCRIPTS,
    Scenarios,
    check_not_applicable,
)

_THREADS = 8
_ROUNDS = 100
_ELSEWHERE: dict[tuple[type, int], list[Any]] = {}


class InterpreterContract(Scenarios):
    """The fourteen points of an interpreter. Subclass it, give it the scenarios, and run pytest.

    Each test is named after its point. A raise out of `step` counts as "failed", for the executor
    makes `StepFailed` of both. See `Scenarios` for what the subclass defines.

    >>> from statifier_router import Step
    >>> from statifier_router.interpreters import function
    >>> class TestMine(InterpreterContract):
    ...     not_applicable = {"looping": "a step is one call of the host's function"}
    ...     def counter(self):
    ...         return function.chart("counter", create=lambda data, now: Step(0), step=my_step)
    >>> TestMine.applies("looping")
    False
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_not_applicable(cls)
        fit(cls, InterpreterContract, cls.not_applicable)

    # --- 1 ------------------------------------------------------------------------------------------

    def test_point_01_the_position_handed_in_is_neither_changed_nor_kept(self) -> None:
        """`step` neither mutates nor aliases the position, and keeps nothing of what it answered."""
        for scenario, chart, position, name, data in self._every_step():
            handed = copy_of(position)
            answer = ask(chart, handed, name, data)
            assert encode(handed) == encode(position), (
                f"{scenario}: {name} changed the position it was handed"
            )
            if answer.moved:
                shared = set(containers(handed)) & set(containers(answer.position))
                assert not shared, f"{scenario}: {name} answered a part of the position it was handed"
            text = answer.text
            scribble(handed)
            scribble(answer.position)
            again = ask(chart, copy_of(position), name, data).text
            assert again == text, f"{scenario}: {name} kept hold of a position"

    def test_point_01_what_did_not_move_answers_its_position_and_status(self) -> None:
        """Anything but "moved" and "unknown" answers the position unchanged, and the status too."""
        for scenario, chart, position, name, data in self._every_step():
            before = copy_of(position)
            step = ask(chart, position, name, data).step
            if step is not None and step.outcome not in ("moved", "unknown"):
                assert step.position == before, f"{scenario}: {name} is {step.outcome} with another position"
                assert step.status == "active", f"{scenario}: {name} is {step.outcome} and {step.status}"

    # --- 2 ------------------------------------------------------------------------------------------

    def test_point_02_the_same_question_has_the_same_answer(self) -> None:
        """Same position, event and instant: a byte-identical answer, from a chart made anew too."""
        for scenario in self.scripted_scenarios():
            chart = self.chart_of(scenario)
            first = self._texts(scenario, chart)
            assert self._texts(scenario, chart) == first, f"{scenario}: a second course differs"
            assert self._texts(scenario, self.chart_of(scenario)) == first, (
                f"{scenario}: made anew, it differs"
            )

    def test_point_02_the_order_of_hashes_changes_nothing(self) -> None:
        """Processes with other orders of sets answer the same bytes."""
        scenarios = self.scripted_scenarios()
        here = [self._texts(scenario, self.chart_of(scenario)) for scenario in scenarios]
        for seed in (1, 2):
            for scenario, mine, theirs in zip(scenarios, here, _whole_courses(type(self), seed), strict=True):
                assert theirs["answers"] == mine, f"{scenario}: another process answers otherwise"

    @needs("parallel")
    def test_point_02_parallel_states_come_in_document_order(self) -> None:
        """Active states and the actions of parallel regions stand in document order."""
        chart = self.chart_of("parallel")
        position = create(chart).position
        moved = ask(chart, position, "advance")
        assert moved.step is not None, f"advance raised {moved.error!r}"
        for active in (create(chart).active, moved.step.active):
            in_order = len(active) == len(REGIONS) and all(
                region in leaf for region, leaf in zip(REGIONS, active, strict=True)
            )
            assert in_order, f"active is {active}, its regions are {REGIONS}"
        entered = [effect.data for effect in moved.effects]
        assert entered == [{"region": region} for region in REGIONS], f"entered in another order: {entered}"

    # --- 3 ------------------------------------------------------------------------------------------

    def test_point_03_a_position_is_json_only(self) -> None:
        """Every position is text keys, lists and finite numbers, of Python's own types."""
        for scenario in self.scripted_scenarios():
            for answer in course(self.chart_of(scenario), SCRIPTS[scenario]):
                problem = not_json(answer.position)
                assert problem is None, f"{scenario}: {problem}"

    @needs("keeping")
    def test_point_03_what_is_not_json_is_refused_never_altered(self) -> None:
        """A tuple, an infinite number, a key that is not text: told, and not kept as something else."""
        chart = self.chart_of("keeping")
        start = at(chart, ("keep", {"what": "kept"}))
        for name in ("keep_tuple", "keep_infinity", "keep_numeric_key"):
            answer = ask(chart, start, name)
            assert answer.told, f"{name} was altered in silence: {answer.text}"
            assert not_json(answer.position) is None

    def test_point_03_a_position_steps_the_same_in_another_process(self) -> None:
        """From the JSON text of every position on the way, another process goes on as this one."""
        courses: list[tuple[str, Json, list[tuple[str, Json]]]] = []
        here: list[list[str]] = []
        for scenario, chart, position, name, data in self._every_step():
            courses.append((scenario, position, [(name, data)]))
            here.append([ask(chart, position, name, data).text])
        theirs = [each["answers"] for each in elsewhere(type(self), courses, seed=3)]
        for (scenario, _, events), mine, other in zip(courses, here, theirs, strict=True):
            assert other == mine, f"{scenario}: restored elsewhere, {events[0][0]} answers otherwise"

    # --- 4, 5, 6 ------------------------------------------------------------------------------------

    def test_point_04_hostile_payload_keys_change_nothing(self) -> None:
        """Data is one mapping: no key of it is taken for an argument of the library's."""
        cases: list[tuple[str, str, dict[str, Json]]] = [
            ("counter", "add", {"by": 3}),
            ("guarded", "open", {"amount": 9}),
            ("guarded", "open", {"amount": 10}),
            ("finishing", "wait", {}),
        ]
        for scenario, name, data in cases:
            chart = self.chart_of(scenario)
            start = create(chart).position
            plain = ask(chart, start, name, data)
            assert plain.step is not None, f"{scenario}: {name} raised {plain.error!r}"
            for hostile in ({key: value} for key, value in HOSTILE.items()):
                answer = ask(chart, start, name, {**hostile, **data})
                assert answer.text == plain.text, f"{scenario}: {name} with {hostile} answers otherwise"
            assert ask(chart, start, name, {**HOSTILE, **data}).text == plain.text

    def test_point_05_a_guard_on_an_absent_field_never_moves(self) -> None:
        """Absent, null or of another kind: the guard does not let it pass."""
        chart = self.chart_of("guarded")
        start = create(chart)
        for data in ABSENT:
            answer = ask(chart, start.position, "open", data)
            assert not answer.moved, f"open moved with the data {data!r}"
            assert answer.position == start.position
            assert not answer.effects
        assert ask(chart, start.position, "open", {"amount": 10}).moved, (
            "open does not move with its field either"
        )

    @needs("looping")
    def test_point_06_an_endless_loop_ends_failed(self) -> None:
        """A chart that never comes to rest fails its step, and is as good as before for the next."""
        chart = self.chart_of("looping")
        start = create(chart).position
        before = encode(start)
        answer = within_patience(lambda: ask(chart, start, "spin"))
        assert answer.failed, f"an endless loop was answered {answer.text}"
        assert encode(answer.position) == before
        assert ask(chart, start, "rest").moved, "after a loop, the chart does not step any more"

    # --- 7, 8 ---------------------------------------------------------------------------------------

    def test_point_07_threads_on_one_chart_do_not_disturb_each_other(self) -> None:
        """Eight threads step one chart from positions of their own, each as if it were alone."""
        scenarios = [each for each in ("counter", "guarded", "parallel", "finishing") if self.applies(each)]
        charts = {scenario: self.chart_of(scenario) for scenario in scenarios}
        alone = {scenario: self._texts(scenario, charts[scenario]) for scenario in scenarios}

        def work(number: int) -> list[str]:
            wrong: list[str] = []
            for turn in range(_ROUNDS):
                scenario = scenarios[(number + turn) % len(scenarios)]
                if self._texts(scenario, charts[scenario]) != alone[scenario]:
                    wrong.append(scenario)
            return wrong

        wrong = [scenario for each in at_once(work, threads=_THREADS) for scenario in each]
        assert not wrong, f"{len(wrong)} of {_THREADS * _ROUNDS} courses went wrong ({sorted(set(wrong))})"

    def test_point_08_nothing_sleeps_and_no_thread_starts(self) -> None:
        """A step waits for nothing and leaves nothing running."""
        for scenario in self.scripted_scenarios():
            with watched() as seen:
                course(self.chart_of(scenario), SCRIPTS[scenario])
            assert not seen, f"{scenario}: {seen[0]}"

    @needs("delayed")
    def test_point_08_delays_are_handed_on(self) -> None:
        """A delayed send and its cancelling are effects; the chart itself waits for nothing."""
        chart = self.chart_of("delayed")
        start = create(chart).position
        with watched() as seen:
            later = ask(chart, start, "later")
            forgotten = ask(chart, later.position, "forget")
        assert not seen, seen[0]
        sent = [each for each in later.effects if isinstance(each, Send)]
        facts = [(each.event, each.target, each.send_id, each.delay) for each in sent]
        assert facts == [("reminder", PROBE, "r-1", LATER)], f"later answered the effects {later.effects}"
        assert forgotten.effects == (Cancel("r-1"),), f"forget answered the effects {forgotten.effects}"

    # --- 9, 10, 11 ----------------------------------------------------------------------------------

    def test_point_09_restoring_runs_no_entry_action(self) -> None:
        """A chart put where it stood does not enter its states again."""
        chart = self.chart_of("guarded")
        opened = ask(chart, create(chart).position, "open", {"amount": 10})
        assert _events(opened) == ["entered"], f"opening sent {_events(opened)}"
        for restored in (chart, self.chart_of("guarded")):
            poked = ask(restored, copy_of(opened.position), "poke")
            assert _events(poked) == ["poked"], f"restored and poked, it sent {_events(poked)}"
            ignored = ask(restored, copy_of(opened.position), "nobody_reacts")
            assert not ignored.effects, (
                f"restored for an event that nothing takes, it sent {_events(ignored)}"
            )

    def test_point_10_a_final_state_completes(self) -> None:
        """Reaching a top-level final state completes; another transition does not."""
        chart = self.chart_of("finishing")
        _, waited, finished = course(chart, SCRIPTS["finishing"])
        assert waited.step is not None, f"wait raised {waited.error!r}"
        assert waited.step.status == "active"
        _assert_completed(finished)

    @needs("finishing_with_pending")
    def test_point_10_a_final_state_completes_with_internal_events_queued(self) -> None:
        """What is still queued when a final state is reached changes nothing any more."""
        chart = self.chart_of("finishing_with_pending")
        _assert_completed(ask(chart, create(chart).position, "finish"))

    def test_point_11_a_finished_position_is_not_stepped(self) -> None:
        """The executor never asks; a chart that is asked all the same does not move from where it ended.

        It answers the position unchanged and without effects, as "ignored" or "refused", or fails.
        """
        for scenario in ("finishing", "finishing_with_pending"):
            if not self.applies(scenario):
                continue
            chart = self.chart_of(scenario)
            ended = at(chart, ("finish", {}))
            before = copy_of(ended)
            for name in ("finish", "wait", "nobody_reacts"):
                answer = ask(chart, copy_of(ended), name)
                stays = answer.failed or (
                    answer.step is not None and answer.step.outcome in ("ignored", "refused")
                )
                assert stays, f"{scenario}: finished, it answered {name} with {answer.text}"
                assert answer.position == before
                assert not answer.effects

    # --- 12, 13, 14 ---------------------------------------------------------------------------------

    def test_point_12_the_content_hash_names_the_definition(self) -> None:
        """SHA-256 in hexadecimal: the same for one definition, another for each edit, in every process."""
        scenarios = self.scripted_scenarios()
        hashes = {scenario: self.chart_of(scenario).content_hash for scenario in scenarios}
        for scenario, found in hashes.items():
            assert re.fullmatch("[0-9a-f]{64}", found), f"{scenario}: {found!r} is no SHA-256"
            assert self.chart_of(scenario).content_hash == found, (
                f"{scenario}: made anew, it has another hash"
            )
        assert len(set(hashes.values())) == len(hashes), f"two definitions have one hash: {hashes}"
        theirs = _whole_courses(type(self), 1)
        assert [each["content_hash"] for each in theirs] == list(hashes.values()), (
            "another process, another hash"
        )

    def test_point_13_an_error_inside_a_guard_is_told(self) -> None:
        """A guard that raises is told in `errors` or fails the step."""
        chart = self.chart_of("failing")
        answer = ask(chart, create(chart).position, "guard_fails")
        assert answer.told, f"a guard's error was swallowed: {answer.text}"

    def test_point_13_an_error_inside_an_action_is_told(self) -> None:
        """An action that raises is told in `errors` or fails the step; the chart steps on afterwards."""
        chart = self.chart_of("failing")
        start = create(chart).position
        answer = ask(chart, start, "action_fails")
        assert answer.told, f"an action's error was swallowed: {answer.text}"
        assert ask(chart, start, "fine").moved, "after an error, the chart does not step any more"

    @needs("refused_definitions")
    def test_point_14_what_cannot_be_honoured_is_refused_at_load_by_name(self) -> None:
        """`<invoke>`, an external `targetexpr` and their like do not load, and the message says which."""
        loaders = self.refused_definitions()
        assert loaders, "refused_definitions is empty: say in not_applicable why"
        for name, load in loaders.items():
            told = _refusal(load)
            assert told is not None, f"a definition with {name} was loaded"
            assert name in told, f"the refusal of {name} does not name it: {told}"

    # --- how --------------------------------------------------------------------------------------

    def _every_step(self) -> list[tuple[str, Chart, Json, str, Json]]:
        """Each step of each script: its chart, and a copy of the position that it starts from."""
        steps: list[tuple[str, Chart, Json, str, Json]] = []
        for scenario in self.scripted_scenarios():
            chart = self.chart_of(scenario)
            starts = [answer.position for answer in course(chart, SCRIPTS[scenario])]
            for (name, data), start in zip(SCRIPTS[scenario], starts, strict=False):
                steps.append((scenario, chart, copy_of(start), name, data))
        return steps

    def _texts(self, scenario: str, chart: Chart) -> list[str]:
        return [answer.text for answer in course(chart, SCRIPTS[scenario])]


def _whole_courses(kind: type[InterpreterContract], seed: int) -> list[Any]:
    """Every scripted course in a process of its own; two points ask for the same one."""
    asked = kind, seed
    if asked not in _ELSEWHERE:
        courses = [(scenario, None, SCRIPTS[scenario]) for scenario in kind.scripted_scenarios()]
        _ELSEWHERE[asked] = elsewhere(kind, courses, seed=seed)
    return _ELSEWHERE[asked]


def _refusal(load: Callable[[], object]) -> str | None:
    try:
        load()
    except RouterError as refused:
        return str(refused)
    return None


def _events(answer: Answer) -> list[str]:
    return [effect.event for effect in answer.effects if isinstance(effect, Send)]


def _assert_completed(answer: Answer) -> None:
    assert answer.step is not None, f"finish raised {answer.error!r}"
    assert answer.step.status == "completed", f"finish answered the status {answer.step.status!r}"
    assert answer.moved, f"finish answered {answer.step.outcome!r}"
