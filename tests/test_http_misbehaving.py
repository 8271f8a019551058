"""Servers that misbehave: whatever comes back, or does not, is the right fault, in time and in bounds."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
from datetime import timedelta

import pytest
import trustme

from statifier_router.runs import (
    Created,
    Gone,
    HttpWriter,
    InHeader,
    InJson,
    Rejected,
    Throttled,
    TimedOut,
    Unavailable,
)
from statifier_router.testing.writer_scenarios import about
from tests.support.http_target import HttpTarget, answers, closed_port, repeats, says, silent

SHORT = timedelta(milliseconds=300)
HEAD = b"HTTP/1.1 201 Created\r\n"


@pytest.fixture
def target():
    server = HttpTarget()
    yield server
    server.close()


@pytest.fixture
def writer(target):
    with HttpWriter(target.url, address=InJson("id"), ping_url=target.url, body_limit=10_000) as made:
        yield made


# --- silence, dripping, breaking off ------------------------------------------------------------------


@pytest.mark.parametrize(
    "behaviour",
    [
        lambda exchange: exchange.hang(),
        lambda exchange: exchange.drip(HEAD),
        lambda exchange: exchange.drip(HEAD + b"Content-Length: 5000\r\n\r\n"),
        lambda exchange: (
            exchange.raw(HEAD + b"Content-Length: 5000\r\n\r\n", close=False),
            exchange.drip(b"{"),
        ),
        lambda exchange: (exchange.raw(HEAD + b"Content-Length: 5000\r\n\r\n"), exchange.hang()),
        lambda exchange: (
            exchange.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n"),
            exchange.drip(b"1\r\na\r\n" * 500),
        ),
        repeats(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        repeats(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
    ],
    ids=["nothing", "head", "head and body", "body", "half", "chunks", "continue", "hints"],
)
def test_a_server_that_dawdles_times_out_as_a_whole(target, writer, behaviour):
    """However many bytes come on the way: in doubt, as it may have done what it was asked."""
    target.coming(behaviour, behaviour)
    for call in (
        lambda: writer.create({}, about(timeout=SHORT)),
        lambda: writer.update("R1", {}, about(timeout=SHORT)),
    ):
        with pytest.raises(TimedOut) as raised:
            call()
        assert raised.value.in_doubt


@pytest.mark.parametrize(
    "behaviour",
    [
        lambda exchange: exchange.reset(),
        says(b""),
        says(b"HTTP/1.1 20"),
        says(HEAD + b"Content-Le"),
        says(HEAD + b'Content-Length: 5000\r\n\r\n{"id": "R1"}'),
        says(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc"),
        says(HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"),
        says(HEAD + b"Content-Length: abc\r\n\r\n"),
        says(HEAD + b"Content-Length: -1\r\n\r\n"),
        says(HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        says(b"\x16\x03\x01\x00\xa5\x01\x00"),
        says(b"hello\r\n\r\n"),
        says(b"HTTP/9.9 banana split\r\n\r\n"),
        says(b"HTTP/1.1 2000 Too many\r\n\r\n"),
        says(HEAD + b"no colon\r\n\r\n"),
        says(HEAD + b"na\x00me: value\r\n\r\n"),
        repeats(HEAD, b"X-Endless: and so on\r\n"),
        repeats(HEAD + b"X-Endless: ", b"and so on"),
        answers(101, Connection="Upgrade", Upgrade="websocket"),
        answers(500, {"error": "oops"}),
        answers(502, b"<html>"),
        answers(504),
        answers(599),
    ],
)
def test_an_answer_that_is_none_leaves_the_call_in_doubt(target, writer, behaviour):
    """`Unavailable`: the request went out, and what became of it the server has not said."""
    target.coming(behaviour, behaviour)
    for call in (lambda: writer.create({}, about()), lambda: writer.update("R1", {}, about())):
        with pytest.raises(Unavailable) as raised:
            call()
        assert raised.value.in_doubt
    assert writer.create({}, about()) == Created("R1")


def test_a_server_that_does_not_take_the_request_times_out(target, writer):
    """A body that is larger than every buffer on the way is not waited for longer than the rest."""
    target.reads = False
    target.coming(lambda exchange: exchange.hang())
    with pytest.raises(TimedOut) as raised:
        writer.create({"text": "x" * 50_000_000}, about(timeout=timedelta(seconds=2)))
    assert raised.value.in_doubt


def test_a_refusal_before_the_body_was_read_is_heard(target, writer):
    """The server answers and closes while the body is still on its way."""
    target.reads = False
    target.coming(answers(413, {"error": "too large"}, Connection="close"))
    with pytest.raises((Rejected, Unavailable)):
        writer.create({"text": "x" * 5_000_000}, about())


# --- no connection -------------------------------------------------------------------------------------


def test_nobody_listens():
    """`Unavailable`, and not in doubt: nothing was sent."""
    with (
        HttpWriter(f"http://127.0.0.1:{closed_port()}/", address=None) as writer,
        pytest.raises(Unavailable, match="no connection, Connection refused") as raised,
    ):
        writer.create({}, about())
    assert not raised.value.in_doubt


def test_a_name_that_nobody_knows(monkeypatch):
    """As nobody listening."""

    def unknown(host, port, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with (
        HttpWriter("http://parcels.invalid/", address=None) as writer,
        pytest.raises(Unavailable, match="Name or service not known") as raised,
    ):
        writer.create({}, about())
    assert not raised.value.in_doubt


def test_a_resolver_that_hangs_is_not_waited_for(monkeypatch):
    """The system's resolver keeps to no timeout; the call does."""
    over = threading.Event()
    real = socket.getaddrinfo

    def hanging(host, port, **options):
        if options.get("flags"):
            return real(host, port, **options)
        over.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    with (
        HttpWriter("http://parcels.invalid/", address=None) as writer,
        pytest.raises(Unavailable, match="not resolved in time") as raised,
    ):
        writer.create({}, about(timeout=SHORT))
    assert not raised.value.in_doubt
    over.set()


def test_the_next_address_of_a_host_is_tried(target, monkeypatch):
    """One that refuses, or takes nobody, leaves time for the others."""
    real = socket.getaddrinfo
    port = int(target.origin.rpartition(":")[2])

    def several(host, number, *arguments, **options):
        if host != "parcels.test":
            return real(host, number, *arguments, **options)
        if options.get("flags"):
            raise socket.gaierror
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", each)) for each in (closed_port(), port)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", several)
    with HttpWriter("http://parcels.test/parcels", address=InJson("id")) as writer:
        assert writer.create({}, about()) == Created("R1")


def test_tls_with_a_server_that_speaks_none(target):
    """Nothing was sent: not in doubt."""
    with (
        HttpWriter(target.url.replace("http", "https"), address=None) as writer,
        pytest.raises(Unavailable, match="TLS") as raised,
    ):
        writer.create({}, about())
    assert not raised.value.in_doubt


def test_tls_with_a_server_that_says_nothing():
    """The handshake, too, is within the deadline."""
    with (
        silent() as origin,
        HttpWriter(origin.replace("http", "https"), address=None) as writer,
        pytest.raises(Unavailable, match="TLS was not agreed upon in time") as raised,
    ):
        writer.create({}, about(timeout=SHORT))
    assert not raised.value.in_doubt


def test_tls(target):
    """A certificate that is trusted will do; a strange one is told, and nothing is sent."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    target.secure(context)
    url = target.url.replace("http", "https")
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    with HttpWriter(url, address=InJson("id"), ssl_context=trusted) as writer:
        for number in (1, 2):
            assert writer.create({"n": number}, about(f"p{number}")) == Created(f"R{number}")
        target.coming(lambda exchange: exchange.drip(HEAD))
        with pytest.raises(TimedOut):
            writer.create({}, about("p3", timeout=SHORT))
    with (
        HttpWriter(url, address=InJson("id")) as writer,
        pytest.raises(Unavailable, match=r"TLS: .*certificate") as raised,
    ):
        writer.create({}, about("p4"))
    assert not raised.value.in_doubt


# --- bodies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behaviour",
    [
        answers(201, b"{" + b" " * 20_000),
        repeats(HEAD + b"Content-Length: 99999999999\r\n\r\n", b" " * 1000),
        repeats(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n"),
        repeats(HEAD + b"Connection: close\r\n\r\n", b" " * 1000),
        answers(201, gzip.compress(b" " * 50_000_000), Content_Encoding="gzip"),
    ],
    ids=["long", "longer", "endless chunks", "endless", "unpacked"],
)
def test_a_body_that_is_too_long_is_not_read(target, writer, behaviour):
    """The target has said that it is done. An address that lies beyond the limit is none."""
    target.coming(behaviour, behaviour)
    assert writer.create({}, about()) == Created(None)
    writer.update("R1", {}, about())
    target.coming(answers(200))
    writer.update("R1", {}, about())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"OK",
        b"<html>",
        b"{",
        b"[" * 9_000,
        b'{"id": ' + b"9" * 5_000 + b"}",
        b'\xff\xfe{"id": 1}',
        b"null",
        b"[]",
        b'"R1"',
        b"{}",
        b'{"id": null}',
        b'{"id": ""}',
        b'{"id": " "}',
        b'{"id": 0}',
        b'{"id": "0"}',
        b'{"id": "None"}',
        b'{"id": false}',
        b'{"id": 1.5}',
        b'{"id": []}',
        b'{"id": {"id": "R1"}}',
        b'{"id": ".."}',
        b'{"id": "."}',
        b'{"id": "\\u0000"}',
        b'{"id": "\\ud800"}',
        b'{"id": "' + b"x" * 600 + b'"}',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_success_without_a_usable_address(target, writer, body):
    """The record is there, and cannot be addressed: for an update that is no matter."""
    target.coming(answers(201, body), answers(200, body))
    assert writer.create({}, about()) == Created(None)
    writer.update("R1", {}, about())


@pytest.mark.parametrize("status", [200, 201, 202, 203, 206, 207, 299])
def test_every_2xx_is_a_success(target, writer, status):
    """Whatever it is called."""
    target.coming(answers(status, {"id": 7}), answers(204))
    assert writer.create({}, about()) == Created("7")
    writer.update("R1", {}, about())


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "deflate"])
def test_a_body_that_was_compressed_unasked_is_read(target, writer, encoding):
    """It was asked to be left as it is."""
    import zlib

    packed = zlib.compress(b'{"id": "R1"}') if encoding == "deflate" else gzip.compress(b'{"id": "R1"}')
    target.coming(answers(201, packed, Content_Encoding=encoding))
    assert writer.create({}, about()) == Created("R1")
    assert target.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("br", b"\x0b\x02"), ("gzip", b"none"), ("gzip", gzip.compress(b"{}", mtime=0)[:-9])],
)
def test_a_body_that_cannot_be_unpacked_has_no_address(target, writer, encoding, body):
    """The target has said that it is done."""
    target.coming(answers(201, body, Content_Encoding=encoding))
    assert writer.create({}, about()) == Created(None)


def test_an_old_server_that_closes_to_say_that_it_is_done(target, writer):
    """HTTP/1.0, no length."""
    target.coming(says(b'HTTP/1.0 201 Created\r\n\r\n{"id": "R1"}'))
    assert writer.create({}, about()) == Created("R1")


# --- connections ---------------------------------------------------------------------------------------


def test_connections_are_kept_open_and_opened_again(target, writer):
    """One serves many calls. One that the server closed, announced or not, is not used again."""
    for number in range(3):
        writer.create({}, about(f"p{number}"))
    assert [seen.connection for seen in target.requests] == [1, 1, 1]

    def closes(exchange):
        target.serve(exchange)
        exchange.close_connection = True
        exchange.connection.shutdown(socket.SHUT_RDWR)
        closed.set()

    closed = threading.Event()
    target.coming(closes)
    writer.create({}, about("p3"))
    assert closed.wait(30)
    writer.create({}, about("p4"))
    target.coming(answers(201, {"id": "x"}, Connection="close"))
    writer.create({}, about("p5"))
    writer.create({}, about("p6"))
    assert [seen.connection for seen in target.requests] == [1, 1, 1, 1, 2, 2, 3]
    writer.close()
    writer.create({}, about("p7"))
    assert target.requests[-1].connection == 4


def test_what_a_server_says_unasked_is_not_taken_for_the_next_answer(target, writer):
    """More bytes than it announced, or a second answer: the connection is not used again."""
    extra = b'HTTP/1.1 201 Created\r\nContent-Length: 15\r\n\r\n{"id": "wrong"}'
    target.coming(
        says(HEAD + b'Content-Length: 12\r\n\r\n{"id": "R1"}' + extra, close=False),
        answers(201, {"id": "right"}),
    )
    assert writer.create({}, about("p1")) == Created("R1")
    assert writer.create({}, about("p2")) == Created("right")


# --- redirects -----------------------------------------------------------------------------------------


@pytest.fixture
def other():
    server = HttpTarget()
    yield server
    server.close()


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_within_the_host_keeps_method_body_and_headers(target, writer, status):
    """Relative or whole."""
    target.coming(
        answers(status, Location="/parcels?x=1"), answers(status, Location=target.url), target.serve
    )
    assert writer.create({"text": "a"}, about()) == Created("R1")
    assert [(seen.method, seen.json) for seen in target.requests] == [("POST", {"text": "a"})] * 3
    assert {seen.headers["idempotency-key"] for seen in target.requests} == {about().key}


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305])
def test_a_redirect_that_changes_the_request_is_a_rejection(target, writer, status):
    """It is not followed: a POST that becomes a GET writes nothing."""
    target.coming(answers(status, Location="/parcels"))
    with pytest.raises(Rejected, match=f"{status} .a redirect that is not followed"):
        writer.create({}, about())
    assert len(target.requests) == 1


@pytest.mark.parametrize(
    "location",
    [
        "{other}/parcels",
        "//{other_host}/parcels",
        "http://user:pass@{host}/parcels",
        "http://[bad/",
        "http://",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "http://127.0.0.1:99999/",
        "\\\\{other_host}\\x",
        "",
    ],
)
def test_no_redirect_leads_away(target, other, writer, location):
    """Another host, port or scheme is never asked, whatever credentials the request carries."""
    host, other_host = target.origin.removeprefix("http://"), other.origin.removeprefix("http://")
    where = location.format(other=other.origin, other_host=other_host, host=host)
    target.always = answers(307, Location=where or " ")
    with pytest.raises(Rejected):
        writer.create({}, about())
    assert not other.requests


def test_a_redirect_from_http_to_https_is_followed(target, other, writer):
    """On the same host; the other way nothing is followed. Here, nobody speaks TLS."""
    target.always = answers(308, Location=other.url.replace("http", "https"))
    with pytest.raises(Unavailable, match="TLS: "):
        writer.create({}, about())
    assert not other.requests


def test_redirects_end(target, writer):
    """In a circle: after the third."""
    target.always = answers(308, Location="/parcels")
    with pytest.raises(Rejected):
        writer.create({}, about())
    assert len(target.requests) == 4


# --- statuses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "of_create", "of_update"),
    [
        *((status, Rejected, Rejected) for status in (400, 401, 403, 405, 409, 412, 413, 415, 422, 428, 451)),
        (404, Rejected, Gone),
        (410, Rejected, Gone),
        (408, TimedOut, TimedOut),
        (425, TimedOut, TimedOut),
        (429, Throttled, Throttled),
        *((status, Unavailable, Unavailable) for status in (500, 501, 502, 503, 504, 507, 520)),
    ],
)
def test_what_a_status_means(target, writer, status, of_create, of_update):
    """The same fault whatever the body; the body's beginning is told."""
    target.always = answers(status, {"error": "that is why"})
    calls = (
        (lambda: writer.create({}, about()), of_create),
        (lambda: writer.update("R1", {}, about()), of_update),
    )
    for call, kind in calls:
        with pytest.raises(kind, match=f"127.0.0.1:[0-9]+: {status}, .*that is why") as raised:
            call()
        assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("status", "in_doubt"), [(408, True), (425, False), (503, False), (500, True), (502, True), (504, True)]
)
def test_which_statuses_leave_the_call_in_doubt(target, writer, status, in_doubt):
    """Those after which the target may have done it all the same."""
    target.always = answers(status)
    with pytest.raises((TimedOut, Unavailable)) as raised:
        writer.create({}, about())
    assert raised.value.in_doubt is in_doubt


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("said", ["120", "Fri, 31 Dec 1999 23:59:59 GMT", "-5", "soon"])
def test_how_long_a_target_wants_to_be_left_alone_is_handed_on(target, writer, status, said):
    """As it was said; what it means is judged elsewhere."""
    target.always = answers(status, Retry_After=said)
    with pytest.raises(Throttled) as raised:
        writer.create({}, about())
    assert raised.value.retry_after == said


def test_a_target_with_a_mind_of_its_own(target):
    """`statuses` goes before everything: a class of faults, or None for a success."""
    statuses = {409: None, 404: Unavailable, 200: Rejected, 302: None, 503: Gone}
    with HttpWriter(target.url, address=InHeader("X-Id"), statuses=statuses) as writer:
        target.coming(answers(409, X_Id="R9"), answers(302, X_Id="R8"))
        assert writer.create({}, about()) == Created("R9")
        assert writer.create({}, about()) == Created("R8")
        for status, kind in ((404, Unavailable), (200, Rejected), (503, Gone)):
            target.coming(answers(status, Retry_After="5"))
            with pytest.raises(kind):
                writer.update("R1", {}, about())


def test_a_ping_asks_whether_anybody_is_there(target, writer):
    """A refusal is an answer of a target that is in order; 5xx and 429 are not."""
    writer.ping(SHORT)
    assert target.requests[0].method == "GET"
    for status in (401, 404, 405, 302):
        target.coming(answers(status))
        writer.ping(timedelta(seconds=30))
    for status, kind in ((500, Unavailable), (503, Unavailable), (429, Throttled)):
        target.coming(answers(status))
        with pytest.raises(kind):
            writer.ping(timedelta(seconds=30))
    target.coming(lambda exchange: exchange.drip(HEAD))
    with pytest.raises(TimedOut):
        writer.ping(SHORT)
