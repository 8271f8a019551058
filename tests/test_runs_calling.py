"""The guard around a writer, usable addresses, credentials in errors, and how long a target asks to wait."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from statifier_router import ConfigError
from statifier_router.runs import (
    Changes,
    Created,
    Gone,
    NoWriter,
    Policy,
    Record,
    RecordFault,
    Rejected,
    RetryPolicy,
    Rule,
    RuleFault,
    Throttled,
    TimedOut,
    Unavailable,
    UnsupportedVerb,
    WriteContext,
)
from statifier_router.runs.calling import Landed, Refused, call, look_up, ping, usable_address
from statifier_router.runs.faults import Unclassified
from statifier_router.runs.retry_after import LONGEST, wait_asked_for
from statifier_router.runs.scrubbing import scrubbed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONTEXT = WriteContext(
    rule="parcels",
    source_id="p1",
    key="k",
    signal="s",
    attempt=1,
    in_doubt=False,
    timeout=timedelta(seconds=1),
)


class Answering:
    """A writer whose every verb does the same, and that keeps what it was handed."""

    def __init__(self, answer=None, *, raises=None):
        self.answer = answer
        self.raises = raises
        self.handed = []

    def _do(self, *arguments):
        self.handed.append(arguments)
        if self.raises is not None:
            raise self.raises
        return self.answer

    create = update = delete = lookup = ping = _do


def called(writer, verb="create"):
    return call(writer, "http", verb, CONTEXT, payload={"a": 1}, remote_id="R1")


# --- answers ----------------------------------------------------------------------------------------


def test_each_verb_is_handed_what_its_protocol_says():
    """create(payload, context), update(remote_id, payload, context), delete(remote_id, context)."""
    writer = Answering(Created("R1"))
    assert called(writer) == Landed("R1")
    assert called(writer, "update") == Landed()
    assert called(writer, "delete") == Landed()
    assert writer.handed == [({"a": 1}, CONTEXT), ("R1", {"a": 1}, CONTEXT), ("R1", CONTEXT)]


@pytest.mark.parametrize("answer", [None, Created("R1"), "R1", 7, False, object()])
@pytest.mark.parametrize("verb", ["update", "delete"])
def test_an_update_that_answers_whatever_it_likes_is_a_success(verb, answer):
    """Only a create's answer has a meaning."""
    assert called(Answering(answer), verb) == Landed()


@pytest.mark.parametrize(
    ("remote_id", "kept"),
    [
        ("R-7", "R-7"),
        (" 7 ", " 7 "),
        ("00", "00"),
        ("none", "none"),
        (7, "7"),
        (-7, "-7"),
        ("x" * 512, "x" * 512),
        ("é" * 256, "é" * 256),
        (None, None),
        ("", None),
        (" \t\n", None),
        ("0", None),
        (" 0", None),
        (0, None),
        ("None", None),
        (False, None),
        (True, None),
        (1.5, None),
        (b"R1", None),
        ([], None),
        ("x" * 513, None),
        ("é" * 257, None),
        ("a\x00b", None),
        ("\ud800", None),
        (10**600, None),
        (10**100_000, None),
    ],
    ids=lambda value: repr(value)[:12] if not isinstance(value, int) or abs(value) < 10 else "long",
)
def test_what_a_record_can_be_addressed_by(remote_id, kept):
    """Empty, blank, 0, "None", what is no text or number, and what cannot be kept: unaddressable."""
    assert usable_address(remote_id) == kept
    assert called(Answering(Created(remote_id))) == Landed(kept)


def test_a_subclass_of_text_is_reduced():
    """What is kept is what was answered, not what its class makes of it."""

    class Id(str):
        __slots__ = ()

        def __str__(self):
            return "other"

    assert type(usable_address(Id("R1"))) is str
    assert usable_address(Id("R1")) == "R1"


def test_a_create_that_answers_nothing_is_a_success_without_an_address():
    """For a message rule that is delivered; for a state rule the record cannot be addressed."""
    assert called(Answering(None)) == Landed(None)


@pytest.mark.parametrize("answer", ["R1", 7, {"id": "R1"}, True])
def test_a_create_that_answers_something_else_never_passes_for_a_delivery(answer):
    """Nobody knows what it means: a fault of the rule that says what to answer."""
    with pytest.raises(Unclassified, match=r"answer Created\(remote_id\)") as raised:
        called(Answering(answer))
    assert raised.value.source_id == "p1"


@pytest.mark.parametrize("verb", ["create", "update", "delete"])
def test_an_asynchronous_writer_never_passes_for_a_delivery(verb):
    """A coroutine is work that was not done. It is closed: nothing warns of it later."""

    async def nothing():
        raise AssertionError("never run")

    with pytest.raises(Unclassified, match="awaitable"):
        called(Answering(nothing()), verb)


# --- faults -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [Rejected("no"), Throttled(3), Unavailable(), TimedOut(), Gone(), RecordFault("own")]
)
@pytest.mark.parametrize("verb", ["create", "update", "delete"])
def test_a_fault_of_the_record_is_an_answer(verb, fault):
    """It comes back as it was raised; what becomes of it is decided elsewhere."""
    assert called(Answering(raises=fault), verb) == Refused(fault)


def test_a_fault_of_the_rule_raised_by_the_writer_stays_what_it_is():
    """The guard makes nothing else of it, and asks no `classify`."""

    class Writer(Answering):
        def classify(self, error):
            raise AssertionError("not asked")

    fault = NoWriter(rule="other", driver="inner")
    with pytest.raises(NoWriter) as raised:
        called(Writer(raises=fault))
    assert raised.value is fault


@pytest.mark.parametrize("verb", ["create", "update", "delete"])
def test_a_verb_that_is_not_there_is_unsupported(verb):
    """Absent, None, or inherited and raising NotImplementedError: one fault, which names everything."""

    class Inherited:
        def create(self, payload, context):
            raise NotImplementedError

        def update(self, remote_id, payload, context):
            raise NotImplementedError("later")

        def delete(self, remote_id, context):
            raise NotImplementedError

        def classify(self, error):
            return Rejected("hidden")

    class Without:
        create = update = delete = None

    for writer in (Inherited(), Without(), object()):
        with pytest.raises(UnsupportedVerb, match=f"'parcels' needs the verb '{verb}'") as raised:
            called(writer, verb)
        facts = raised.value.rule, raised.value.driver, raised.value.verb, raised.value.source_id
        assert facts == ("parcels", "http", verb, "p1")


def test_anything_else_is_unclassified():
    """A fault of the rule that names the record, with what was raised chained."""
    error = LookupError("no such field")
    with pytest.raises(Unclassified, match=r"raised LookupError: no such field at record 'p1'") as raised:
        called(Answering(raises=error))
    assert raised.value.__cause__ is error
    assert isinstance(raised.value, RuleFault)


def test_a_classify_hook_can_make_a_fault_of_the_record():
    """The driver knows its own exceptions; what was raised stays chained."""

    class Writer(Answering):
        def classify(self, error):
            return Rejected("bad field") if isinstance(error, LookupError) else None

    error = LookupError("x")
    answer = called(Writer(raises=error))
    assert isinstance(answer, Refused)
    assert isinstance(answer.fault, Rejected)
    assert answer.fault.__cause__ is error
    with pytest.raises(Unclassified, match="OSError"):
        called(Writer(raises=OSError()))


def test_a_faulty_classify_hook_hides_nothing():
    """What it raises is unclassified itself, with what it was asked about; a wrong answer is none."""

    class Raising(Answering):
        def classify(self, error):
            raise ZeroDivisionError("slip")

    class Wrong(Answering):
        def classify(self, error):
            return "rejected"

    class Ruling(Answering):
        def classify(self, error):
            raise NoWriter(rule="r", driver="d")

    first = LookupError("x")
    with pytest.raises(Unclassified, match="ZeroDivisionError") as raised:
        called(Raising(raises=first))
    assert raised.value.__cause__.__context__ is first
    with pytest.raises(Unclassified, match="LookupError"):
        called(Wrong(raises=LookupError()))
    with pytest.raises(NoWriter):
        called(Ruling(raises=LookupError()))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_process_is_not_held_up(error):
    """It is no fault of anything."""
    with pytest.raises(error):
        called(Answering(raises=error()))


def test_an_unclassified_fault_tells_no_credentials_and_survives_a_bad_text():
    """Its text goes into the chain's row; an exception that cannot be spelt is still named."""

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    with pytest.raises(Unclassified) as raised:
        called(Answering(raises=OSError("GET https://me:hunter2@host failed\n" + "x" * 5000)))
    assert "hunter2" not in str(raised.value)
    assert str(raised.value).endswith("or park the record")
    with pytest.raises(Unclassified, match="Mute"):
        called(Answering(raises=Mute()))


# --- lookup and ping ----------------------------------------------------------------------------------


def test_a_lookup_answers_the_address_or_that_nothing_is_there():
    """Found, not found, or a fault; the same guard."""
    assert look_up(Answering(Created("R1")), "http", CONTEXT) == Landed("R1")
    assert look_up(Answering(Created(" ")), "http", CONTEXT) == Landed(None)
    assert look_up(Answering(None), "http", CONTEXT) is None
    fault = TimedOut()
    assert look_up(Answering(raises=fault), "http", CONTEXT) == Refused(fault)
    with pytest.raises(UnsupportedVerb):
        look_up(object(), "http", CONTEXT)
    with pytest.raises(Unclassified):
        look_up(Answering("R1"), "http", CONTEXT)


def test_a_ping_answers_a_fault_or_nothing():
    """None where the target is back."""
    fault = Unavailable()
    asked = {"rule": "parcels", "source_id": "p1"}
    assert ping(Answering(), "http", CONTEXT.timeout, **asked) is None
    assert ping(Answering(raises=fault), "http", CONTEXT.timeout, **asked) is fault
    with pytest.raises(Unclassified):
        ping(Answering(raises=LookupError()), "http", CONTEXT.timeout, **asked)


# --- credentials --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer S3CRET",
        "Authorization: Bearer a b S3CRET",
        "Authorization: ApiKey S3CRET",
        "authorization=Basic S3CRET==",
        "Authorization: Digest username=me, response=S3CRET",
        "{'Authorization': 'Bearer S3CRET'}",
        '{"Authorization": "Token S3CRET"}',
        "[(b'authorization', b'Bearer S3CRET')]",
        "[('X-Api-Key', 'S3CRET')]",
        "[(b'x-api-key', b'S3CRET')]",
        "sent Bearer S3CRET, got 401",
        "Cookie: a=1; session=S3CRET",
        "password=S3CRET host=h",
        "password='S3 S3CRET' host=h",
        "PASSWORD: S3CRET",
        "pwd=S3CRET;server=h",
        '{"password": "S3CRET", "a": 1}',
        '{"password": "with \\" in it S3CRET", "a": 1}',
        '{\\"password\\": \\"S3CRET\\"}',
        "'client_secret': 'S3CRET'",
        "client_secret => S3CRET",
        "access_token=S3CRET&x=1",
        "refreshToken=S3CRET",
        "token_v2=S3CRET",
        "api_key=S3CRET",
        "apikey: S3CRET",
        "API-KEY: S3CRET",
        "X-Api-Key: S3CRET",
        "aws_secret_access_key = S3CRET",
        "private_key=S3CRET",
        "passphrase=S3CRET",
        "webhook-signature: v1,S3CRET",
        "https://me:S3CRET@host/path",
        "https://me:a@S3CRET@host/path",
        "https://S3CRET@host",
        "postgresql+psycopg://me:S3CRET@host:5432/db",
        "Proxy-Authorization: Basic S3CRET",
        "token eyJhbGciOiJIUzI1NiJ9.S3CRETeyJzdWIi.S3CRET",
        "bad key whsec_S3CRETS3CRET",
        "x" * 15_990 + " https://me:S3CRET@host",
    ],
)
def test_credentials_are_not_kept(text):
    """In headers, JSON, representations, query strings and URLs, in any case."""
    assert "S3CRET" not in scrubbed(text)


@pytest.mark.parametrize(
    "text",
    [
        "404 Not Found",
        "no answer from https://host:8443/parcels/7?page=2",
        "user@example.com is taken",
        "field 'weight' must be positive: -3",
        "the key of this record is taken",
        "https://host/a?mail=me@example.com",
        "",
    ],
)
def test_what_is_no_credential_stays(text):
    """An operator needs the rest of the text."""
    assert scrubbed(text) == text


def test_what_stands_beside_a_credential_stays():
    """The name says what was hidden."""
    assert scrubbed("POST https://me:pw@host/x?token=abc&page=2: 500") == (
        "POST https://***@host/x?token=***&page=2: 500"
    )
    assert scrubbed('{"password": "abc", "weight": 3}') == '{"password": ***", "weight": 3}'


def test_a_kept_error_is_storable_and_2000_characters_long():
    """Cut after hiding: nothing that was hidden comes back at the end."""
    assert len(scrubbed("é" * 5000)) == 2000
    assert scrubbed("a\x00b\ud800") == "a␀b\\ud800"
    text = "x" * 1990 + " https://me:hunter2@host"
    assert "hunter" not in scrubbed(text)


@pytest.mark.parametrize(
    "piece",
    ["password", "password ", "eyJ", "-eyJ", "://", "basic ", "token\\", "cookie:", "a", '"', "secret='"],
)
def test_hiding_takes_time_in_proportion_to_the_text(piece):
    """No text, however made, holds up a run."""
    text = piece * (1_000_000 // len(piece))
    begun = time.process_time()
    scrubbed(text)
    assert time.process_time() - begun < 1


# --- Retry-After --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (120, 120),
        (0.5, 0.5),
        ("120", 120),
        (" 120 ", 120),
        ("1.5", 1.5),
        (timedelta(minutes=2), 120),
        (NOW + timedelta(minutes=2), 120),
        ((NOW + timedelta(minutes=2)).astimezone(timezone(timedelta(hours=9))), 120),
        ("Thu, 01 Jan 2026 00:02:00 GMT", 120),
        ("Thursday, 01-Jan-26 00:02:00 GMT", 120),
        ("Thu Jan  1 00:02:00 2026", 120),
        ("Thu, 01 Jan 2026 09:02:00 +0900", 120),
        # A year, as seconds, as a date, as a time; and more than any of them can be.
        (31_536_000, 3600),
        ("31536000", 3600),
        (timedelta(days=365), 3600),
        (NOW + timedelta(days=365), 3600),
        ("Fri, 01 Jan 2027 00:00:00 GMT", 3600),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600),
        (10**400, 3600),
        ("9" * 200, 3600),
        (1e308, 3600),
        (timedelta.max, 3600),
    ],
    ids=str,
)
def test_a_wait_that_is_asked_for(value, seconds):
    """Seconds, a time, an instant or a header; an hour at most."""
    assert wait_asked_for(value, NOW) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        "0",
        -1,
        "-1",
        -(10**400),
        -1e308,
        timedelta(0),
        timedelta(seconds=-1),
        timedelta.min,
        NOW,
        NOW - timedelta(days=1),
        datetime(2026, 1, 1, 0, 2),  # noqa: DTZ001 - a naive time may be any
        "Wed, 31 Dec 2025 00:00:00 GMT",
        "soon",
        "",
        "1e9",
        "١٢٠",
        "120 seconds",
        "Thu, 99 Jan 2026 00:02:00 GMT",
        "9" * 5000,
        float("nan"),
        float("inf"),
        True,
        b"120",
        [120],
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_asks_for_no_wait(value):
    """Negative, past, naive, or not understood: as if nothing had been said."""
    assert wait_asked_for(value, NOW) is None


def test_the_longest_wait_is_an_hour():
    """Clamped so that a slip of the target's does not stop a rule for long."""
    assert timedelta(hours=1) == LONGEST


A_RULE = {
    "entity": "parcel",
    "source": Changes("parcel"),
    "target": "t",
    "driver": "d",
    "policy": Policy.UPSERT,
}

# --- values -------------------------------------------------------------------------------------------


def test_what_is_handed_over_is_made_by_place_or_by_name():
    """Records and contexts have their fields in the order in which the API names them."""
    assert Record("p1", "v1", 7, {"a": 1}, "s", True) == Record(
        source_id="p1", signal="v1", position=7, payload={"a": 1}, scope="s", deleted=True
    )
    made = WriteContext("parcels", "p1", "k", "v1", 1, False, timedelta(seconds=30))
    assert (made.rule, made.source_id, made.key, made.signal) == ("parcels", "p1", "k", "v1")
    assert (made.attempt, made.in_doubt, made.timeout) == (1, False, timedelta(seconds=30))


def test_a_source_is_an_object_as_a_writer_is():
    """A class in the place of an object is refused at the edge, and not at every tick."""

    class Source:
        def scan(self, connection, after, limit):
            return []

        def load(self, connection, source_ids):
            return {}

    with pytest.raises(ConfigError, match="source must be a ChangeSource, an object: make one of Source"):
        Rule("parcels", entity="parcel", source=Source, target="t", driver="d", policy=Policy.UPSERT)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: RetryPolicy(waits=timedelta(1)), "retry.waits"),
        (lambda: RetryPolicy(waits=(timedelta.max,)), "retry.waits"),
        (lambda: Rule("parcels", **A_RULE, call_timeout=timedelta.max), "call_timeout"),
        (lambda: Rule("parcels", **A_RULE, job_deadline=timedelta.max), "job_deadline"),
    ],
)
def test_a_time_without_a_date_at_its_end_is_refused(make, field):
    """A time that no calendar reaches is refused where it is given, not in the middle of a run."""
    with pytest.raises(ConfigError, match=field):
        make()
