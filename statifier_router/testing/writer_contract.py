"""What every writer owes, in fourteen points, as tests that an integrator runs with one subclass."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from statifier_router.jsontext import encode
from statifier_router.runs.calling import Answer, Landed, Refused, usable_address
from statifier_router.runs.faults import Gone, RecordFault, Rejected, Throttled, TimedOut, Unavailable
from statifier_router.runs.writers import Created, WriterTraits, has_verb
from statifier_router.testing.applying import fit, needs
from statifier_router.testing.probing import at_once, copy_of, scribble
from statifier_router.testing.writer_scenarios import VERBS, WriterScenarios, about, check_not_applicable

T = TypeVar("T")

_THREADS = 8
# How long a silent target is waited for, and how long a writer may take at most to give up: it is the
# difference between a bound and none that is told.
_SHORT: Final = timedelta(milliseconds=500)
_PATIENCE: Final = timedelta(seconds=20)

# Texts that break what quotes, splices or transcodes them.
AWKWARD: Final = (
    "naïve façade, 漢字, עברית, 🚚",
    'it\'s "quoted" \\ and %s {braced} $1 :name ?',
    "lines\nand\ttabs\r\n",
    "'; DROP TABLE parcels; --",
    "</text><script>&amp;",
    "null",
    " blank at both ends ",
    "long " * 2_000,
)
SOURCE_IDS: Final = ("a/b?c=d#e&f", "x\r\nX-Evil: 1", "naïve 漢字", 'it\'s "so"', "../..", "%2e%2e", " ")


class WriterContract(WriterScenarios):
    """The fourteen points of a writer. Subclass it, say how its target is reached, and run pytest.

    Each test is named after its point. See `WriterScenarios` for what the subclass defines. A writer
    that keeps all of it can be relied on by a rule: every fault goes where it belongs.

    >>> class TestMine(WriterContract):
    ...     not_applicable = {"delete": "the target keeps what it has", "ping": "it has no such call"}
    ...     def writer(self):
    ...         return MyWriter(self.url)
    >>> TestMine.applies("delete"), TestMine.applies("update")
    (False, True)
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_not_applicable(cls)
        fit(cls, WriterContract, cls.not_applicable)

    # --- 1, 2, 3 ------------------------------------------------------------------------------------

    def test_point_01_the_writer_has_the_verbs_it_is_said_to_have(self) -> None:
        """Every verb is a method, or its absence has a reason; `traits` and `classify` are of their kind."""
        writer = self.writer()
        for verb in VERBS:
            assert has_verb(writer, verb) == self.applies(verb), (
                f"{verb}: a verb is a method of the writer, or stands in not_applicable"
            )
        traits = getattr(writer, "traits", None)
        assert traits is None or isinstance(traits, WriterTraits), (
            f"traits must be WriterTraits, not {traits!r}"
        )
        classify = getattr(writer, "classify", None)
        assert classify is None or callable(classify), f"classify must be a method, not {classify!r}"

    @needs("create")
    def test_point_02_a_create_is_at_the_target(self) -> None:
        """What was handed over stands there, once for each record."""
        _landed(self.call("create", about("p1"), text="first"))
        assert sorted(self.texts()) == ["first"]
        _landed(self.call("create", about("p2"), text="second"))
        assert sorted(self.texts()) == ["first", "second"]

    @needs("create", "address")
    def test_point_02_a_create_answers_where_the_record_is(self) -> None:
        """A usable address: text that is not blank, not "0", not "None"; another one for each record."""
        addresses = [_landed(self.call("create", about(each), text=each)).remote_id for each in ("p1", "p2")]
        assert None not in addresses, "a create answered no usable address"
        assert len(set(addresses)) == 2, f"two records have one address: {addresses}"

    @needs("update")
    def test_point_03_an_update_replaces_the_addressed_record_and_no_other(self) -> None:
        """By its address, from another writer too, as after a restart; as often as it comes."""
        address = self.planted("first", about("p1"))
        self.planted("other", about("p2"))
        for _ in range(2):
            _landed(self.call("update", about("p1", version=2), text="second", remote_id=address))
            assert sorted(self.texts()) == ["other", "second"]
        _landed(self.call("update", about("p1", version=3), text="first", remote_id=address))
        assert sorted(self.texts()) == ["first", "other"]

    # --- 4, 5, 6 ------------------------------------------------------------------------------------

    @needs("create")
    def test_point_04_the_payload_is_neither_changed_nor_kept(self) -> None:
        """What is handed over is the library's: it may be sent again as it is."""
        handed = copy_of(self.payload("first"))
        before = encode(handed)
        _landed(self.call("create", about(), payload=handed))
        assert encode(handed) == before, "create changed the payload it was handed"
        scribble(handed)
        assert list(self.texts()) == ["first"], "the target shares the payload"

    @needs("update")
    def test_point_04_the_payload_of_an_update_is_neither_changed_nor_kept(self) -> None:
        """As of a create."""
        address = self.planted("first", about())
        handed = copy_of(self.payload("second"))
        before = encode(handed)
        _landed(self.call("update", about(version=2), payload=handed, remote_id=address))
        assert encode(handed) == before, "update changed the payload it was handed"
        scribble(handed)
        assert list(self.texts()) == ["second"], "the target shares the payload"

    @needs("create")
    def test_point_05_text_arrives_unchanged(self) -> None:
        """Every script, quotes, line breaks, blanks and long texts."""
        for number, text in enumerate(AWKWARD):
            _landed(self.call("create", about(f"p{number}"), text=text))
        assert sorted(self.texts()) == sorted(AWKWARD)

    @needs("create")
    def test_point_06_any_id_of_the_source_will_do(self) -> None:
        """What reads like a path, a header or a query is a name and nothing else."""
        for source_id in SOURCE_IDS:
            _landed(self.call("create", about(source_id), text=f"of {source_id!r}"))
        assert sorted(self.texts()) == sorted(f"of {source_id!r}" for source_id in SOURCE_IDS)

    @needs("update")
    def test_point_06_an_address_is_one_name(self) -> None:
        """No part of it is taken for a path or a query: what only looks like an address reaches nothing."""
        address = self.planted("first", about())
        for other in _lookalikes(address):
            fault = _refused(self.call("update", about(version=2), text="second", remote_id=other))
            assert isinstance(fault, (Gone, Rejected)), f"the address {other!r} met {fault!r}"
            assert list(self.texts()) == ["first"], f"the address {other!r} reached the record {address!r}"

    # --- 7, 8 ---------------------------------------------------------------------------------------

    @needs("update", "forget")
    def test_point_07_an_update_of_what_is_not_there_is_gone(self) -> None:
        """The target forgot the record: `Gone`, and it is not made anew behind the ledger's back."""
        address = self.planted("first", about())
        self.forget(address)
        fault = _refused(self.call("update", about(version=2), text="second", remote_id=address))
        assert isinstance(fault, Gone), f"an update of a forgotten record met {fault!r}, not Gone"
        assert not list(self.texts())

    @needs("create", "refused")
    def test_point_08_a_refusal_is_a_rejection_of_this_record(self) -> None:
        """`Rejected`: nothing stands at the target, and the next record is served."""
        for again in (False, True):
            fault = _refused(self.call("create", about(again=again), payload=self.refused()))
            assert isinstance(fault, Rejected), f"a refused record met {fault!r}, not Rejected"
            assert not fault.in_doubt, "a refusal is no doubt: the target has said what it did"
            assert not list(self.texts())
        _landed(self.call("create", about("p2"), text="other"))
        assert list(self.texts()) == ["other"]

    @needs("update", "refused")
    def test_point_08_a_refused_update_changes_nothing(self) -> None:
        """`Rejected`, and the record stands as it was."""
        address = self.planted("first", about())
        fault = _refused(self.call("update", about(version=2), payload=self.refused(), remote_id=address))
        assert isinstance(fault, Rejected), f"a refused update met {fault!r}, not Rejected"
        assert list(self.texts()) == ["first"]

    # --- 9, 10, 11 ----------------------------------------------------------------------------------

    @needs("unreachable")
    def test_point_09_a_target_that_cannot_be_reached_is_unavailable(self) -> None:
        """`Unavailable`, and not in doubt: nothing was sent."""
        for verb, fault in self._faults_of(self.unreachable()):
            assert isinstance(fault, Unavailable), f"{verb} met {fault!r}, not Unavailable"
            assert not fault.in_doubt, f"{verb} is in doubt, but it cannot have taken effect"

    @needs("unreachable", "ping")
    def test_point_09_a_ping_tells_that_the_target_is_not_back(self) -> None:
        """A fault of the record where nobody listens, and nothing where somebody does."""
        _ping(self.writer())
        try:
            _ping(self.unreachable())
        except RecordFault as fault:
            assert fault.of_target, f"a ping met {fault!r}, which is no fault of the target"  # noqa: PT017
        else:
            raise AssertionError("a ping of a target that cannot be reached raised nothing")

    @needs("silent")
    def test_point_10_a_silent_target_times_out_in_time(self) -> None:
        """`TimedOut` and in doubt, soon after `context.timeout`."""
        writer = self.silent()
        for verb, fault in _ends(lambda: self._faults_of(writer, timeout=_SHORT)):
            assert isinstance(fault, TimedOut), f"{verb} met {fault!r}, not TimedOut"
            assert fault.in_doubt, f"{verb} may have taken effect: it is in doubt"

    @needs("silent", "ping")
    def test_point_10_a_ping_of_a_silent_target_ends_in_time(self) -> None:
        """A fault of the record, soon after its timeout."""
        writer = self.silent()

        def asked() -> bool:
            try:
                writer.ping(_SHORT)
            except RecordFault:
                return True
            return False

        assert _ends(asked), "a ping that nobody answered raised nothing"

    @needs("out_of_order")
    def test_point_11_a_target_that_is_out_of_order_is_unavailable(self) -> None:
        """`Unavailable` (or `TimedOut`): what the breaker counts, and never the record's own fault."""
        for verb, fault in self._faults_of(self.out_of_order()):
            assert isinstance(fault, (Unavailable, TimedOut)), f"{verb} met {fault!r}, not Unavailable"

    @needs("throttling")
    def test_point_11_a_target_that_is_called_too_often_throttles(self) -> None:
        """`Throttled`, with what the target said of how long."""
        for verb, fault in self._faults_of(self.throttling()):
            assert isinstance(fault, Throttled), f"{verb} met {fault!r}, not Throttled"

    # --- 12, 13, 14 ---------------------------------------------------------------------------------

    @needs("create")
    def test_point_12_the_same_key_takes_effect_once_where_keys_are_honoured(self) -> None:
        """A call that comes again, from another process too, has the same answer and makes no copy.

        A writer that does not say `honours_keys` in its traits is only asked to serve the second call.
        """
        first = _landed(self.call("create", about(), text="first"))
        second = _landed(self.call("create", about(again=True), text="first"))
        traits = getattr(self.writer(), "traits", None)
        if traits is not None and traits.honours_keys:
            assert second == first, f"under one key, {first} and then {second}"
            assert list(self.texts()) == ["first"], "the second call under one key made a copy"

    @needs("create", "lookup")
    def test_point_12_a_lookup_tells_what_a_create_came_to(self) -> None:
        """The address where it took effect, None where it did not; the target stays as it is."""
        assert self.look_up(about(again=True)) is None, "a lookup found what was never created"
        made = _landed(self.call("create", about(), text="first"))
        assert self.look_up(about(again=True)) == made
        assert self.look_up(about("p2", again=True)) is None, "a lookup found another record"
        assert list(self.texts()) == ["first"]

    @needs("delete")
    def test_point_12_a_delete_takes_the_addressed_record_away(self) -> None:
        """That one and no other; deleted again, it is `Gone` or nothing happens."""
        address = self.planted("first", about("p1"))
        self.planted("other", about("p2"))
        _landed(self.call("delete", about("p1", version=2), remote_id=address))
        assert list(self.texts()) == ["other"]
        again = self.call("delete", about("p1", version=2, again=True), remote_id=address)
        assert isinstance(again, Landed) or isinstance(again.fault, Gone), f"deleted again: {again}"
        assert list(self.texts()) == ["other"]

    @needs("secrets")
    def test_point_13_no_fault_tells_a_credential(self) -> None:
        """Neither its text nor that of what caused it: both are kept, logged and shown."""
        secrets = list(self.secrets())
        assert all(secrets), "secrets() must name the credentials"
        for scenario in ("unreachable", "silent", "out_of_order", "throttling"):
            if not self.applies(scenario):
                continue
            for verb, fault in self._faults_of(getattr(self, scenario)(), timeout=_SHORT):
                said = "".join(traceback.format_exception(fault))
                assert not any(each in said for each in secrets), f"{scenario}: {verb} tells a credential"

    @needs("create")
    def test_point_14_threads_may_share_a_writer(self) -> None:
        """Two jobs of one process may use it at once: each record lands once, with its own text."""
        writer = self.writer()

        def work(number: int) -> list[Answer]:
            return [
                self.call("create", about(f"p{number}-{turn}"), text=f"{number}-{turn}", writer=writer)
                for turn in range(3)
            ]

        landed = [_landed(each) for every in at_once(work, threads=_THREADS) for each in every]
        assert sorted(self.texts()) == sorted(
            f"{number}-{turn}" for number in range(_THREADS) for turn in range(3)
        )
        addresses = [each.remote_id for each in landed if each.remote_id is not None]
        assert len(set(addresses)) == len(addresses), "two records have one address"

    @needs("create_many")
    def test_point_14_many_creates_have_an_answer_each(self) -> None:
        """In the order of the items; every one of them is at the target."""
        answers = self.writer().create_many([(self.payload(text), about(text)) for text in ("a", "b", "c")])
        assert len(answers) == 3, f"three items had {len(answers)} answers"
        for answer in answers:
            assert isinstance(answer, Created), f"an item met {answer!r}"
            assert usable_address(answer.remote_id) or not self.applies("address")
        assert sorted(self.texts()) == ["a", "b", "c"]

    @needs("update_many")
    def test_point_14_many_updates_have_an_answer_each(self) -> None:
        """In the order of the items: None, or the fault of that one alone."""
        addresses = {text: self.planted(text, about(text)) for text in ("a", "b", "c")}
        if self.applies("forget"):
            self.forget(addresses["b"])
        answers = self.writer().update_many(
            [
                (address, self.payload(text.upper()), about(text, version=2))
                for text, address in addresses.items()
            ]
        )
        assert len(answers) == 3, f"three items had {len(answers)} answers"
        if self.applies("forget"):
            assert isinstance(answers[1], Gone), f"an update of a forgotten record met {answers[1]!r}"
        else:
            assert answers[1] is None
        assert [answers[0], answers[2]] == [None, None]
        assert set("AC") <= set(self.texts())

    # --- how --------------------------------------------------------------------------------------

    def _faults_of(self, writer: Any, **options: Any) -> list[tuple[str, RecordFault]]:
        """What each verb meets at a target that does not serve it."""
        called: dict[str, Any] = {"text": "x", "remote_id": self.some_address, "writer": writer}
        return [
            (verb, _refused(self.call(verb, about(**options), **called)))
            for verb in ("create", "update", "delete")
            if self.applies(verb)
        ]


def _landed(answer: Answer) -> Landed:
    assert isinstance(answer, Landed), f"met {answer.fault!r} where nothing was wrong"
    return answer


def _refused(answer: Answer) -> RecordFault:
    assert isinstance(answer, Refused), "passed for a success"
    return answer.fault


def _ping(writer: Any) -> None:
    writer.ping(timedelta(seconds=30))


def _lookalikes(address: str) -> list[str]:
    return [
        f"x/../{address}",
        f"../{address}",
        f"./{address}",
        f"{address}/",
        f"{address}?x=1",
        f"{address}#x",
        f"%{ord(address[0]):02x}{address[1:]}",
        f"{address} ",
        f"{address}\n",
        f"{address}' OR '1'='1",
    ]


def _ends(work: Callable[[], T]) -> T:
    """What `work` answers; `AssertionError` where it does not end in good time."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE.total_seconds())
    if errors:
        raise errors[0]
    assert answers, f"told to give up after {_SHORT}, a call had not ended after {_PATIENCE}"
    return answers[0]
