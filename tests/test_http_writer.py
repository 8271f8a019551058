"""What the HTTP writer sends, what it refuses to be set up with, and what it never tells."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import socket
import subprocess
import sys
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest

from statifier_router import ConfigError
from statifier_router.runs import (
    Created,
    Gone,
    HttpWriter,
    InHeader,
    InJson,
    Rejected,
    StandardWebhooks,
    Unavailable,
    UnsupportedVerb,
    WriterTraits,
)
from statifier_router.runs.calling import Landed, call, look_up
from statifier_router.runs.writers import has_verb
from statifier_router.testing.writer_scenarios import about
from tests.support.http_target import HttpTarget, answers

NOW = datetime(2026, 1, 1, 12, 0, 0, 999_999, tzinfo=UTC)
ROOT = Path(__file__).parents[1]


@pytest.fixture
def target():
    server = HttpTarget()
    yield server
    server.close()


@pytest.fixture
def to(target):
    made = []

    def make(url=None, *, address=InJson("id"), kind=HttpWriter, **options):  # noqa: B008 - a frozen value
        made.append(kind(url or target.url, address=address, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


# --- requests -----------------------------------------------------------------------------------------


def test_the_requests_of_the_three_verbs(target, to):
    """POST to the URL, PUT and DELETE to the address under it, each with the key; JSON as it is stored."""
    writer = to(delete=True)
    assert writer.create({"text": "naïve"}, about()) == Created("R1")
    writer.update("R1", {"text": "b"}, about(version=2))
    writer.delete("R1", about(version=3))
    seen = [(each.method, each.path, each.body) for each in target.requests]
    assert seen == [
        ("POST", "/parcels", '{"text":"naïve"}'.encode()),
        ("PUT", "/parcels/R1", b'{"text":"b"}'),
        ("DELETE", "/parcels/R1", b""),
    ]
    assert [each.headers["idempotency-key"] for each in target.requests] == ["7031-1", "7031-2", "7031-3"]
    assert [each.headers.get("content-type") for each in target.requests] == [
        "application/json",
        "application/json",
        None,
    ]
    assert {each.headers["user-agent"] for each in target.requests} == {"statifier-router"}


def test_updates_by_patch_and_other_names_for_the_key(target, to):
    """As the target wants it; or no key at all."""
    writer = to(update="PATCH", key_header="X-Request-Id")
    writer.create({}, about())
    writer.update("R1", {}, about(version=2))
    assert [(each.method, each.headers["x-request-id"]) for each in target.requests] == [
        ("POST", "7031-1"),
        ("PATCH", "7031-2"),
    ]
    to(key_header=None).create({}, about())
    assert "idempotency-key" not in target.requests[-1].headers


def test_headers_of_the_hosts_own(target, to):
    """They go before the defaults, and never before the key; a function is asked for each request."""
    tokens = iter(["Bearer first1", "Bearer second"])
    writer = to(headers=lambda: {"authorization": next(tokens), "content-type": "application/vnd.api+json"})
    writer.create({}, about())
    writer.create({}, about("p2"))
    assert [each.headers["authorization"] for each in target.requests] == ["Bearer first1", "Bearer second"]
    assert {each.headers["content-type"] for each in target.requests} == {"application/vnd.api+json"}
    to(headers={"Idempotency-Key": "mine"}).create({}, about("p3"))
    assert target.requests[-1].headers["idempotency-key"] == about("p3").key


def test_a_url_with_a_query_keeps_it(target, to):
    """The address goes into the path."""
    writer = to(f"{target.url}?tenant=a")
    writer.create({}, about())
    with pytest.raises(Gone):
        writer.update("x", {}, about())
    assert [each.path for each in target.requests] == ["/parcels?tenant=a", "/parcels/x?tenant=a"]


@pytest.mark.parametrize("address", ["a/b", "a?b=c", "a#b", "50%", "ä ö", "a\\b", "...", "%2e", "x" * 500])
@pytest.mark.parametrize("where", [InJson("id"), InHeader("X-Id")])
def test_an_address_is_one_part_of_the_path_whatever_it_holds(target, to, address, where):
    """The record that was created is the one that is updated."""
    target.ids.extend([address, "b"])
    if isinstance(where, InHeader):
        if not address.isascii() or not address.isprintable():
            return
        target.coming(answers(201, X_Id=address))
        target.records[address] = {}
    writer = to(address=where)
    assert writer.create({}, about()) == Created(address)
    writer.update(address, {"n": 2}, about(version=2))
    assert target.records[address] == {"n": 2}


@pytest.mark.parametrize("address", [".", ".."])
def test_an_address_that_would_lead_elsewhere_is_refused(target, to, address):
    """It is none when a create answers it, and nothing is sent to it."""
    target.ids.append(address)
    writer = to(delete=True)
    assert writer.create({}, about()) == Created(None)
    for verb in (lambda: writer.update(address, {}, about()), lambda: writer.delete(address, about())):
        with pytest.raises(Rejected, match="cannot stand in a URL"):
            verb()
    assert len(target.requests) == 1


@pytest.mark.parametrize(
    ("location", "address"),
    [
        ("/parcels/R7", "R7"),
        ("https://elsewhere/parcels/R7/", "R7"),
        ("R7", "R7"),
        ("/parcels/a%2Fb", "a/b"),
        ("/parcels/R7?x=1#y", "R7"),
        ("/", None),
        ("", None),
        ("/parcels/..", None),
        ("http://[bad", None),
    ],
)
def test_an_address_in_location_is_the_last_part_of_its_path(target, to, location, address):
    """No other part of it is used: updates go to the URL of the writer."""
    target.coming(answers(201, Location=location or " "))
    assert to(address=InHeader("location")).create({}, about()) == Created(address)


def test_a_path_into_the_body(target, to):
    """Dotted, or a tuple where a name holds a dot."""
    for path, body in (("data.item.id", {"data": {"item": {"id": 7}}}), (("a.b", "c"), {"a.b": {"c": "7"}})):
        target.coming(answers(200, body))
        assert to(address=InJson(path)).create({}, about()) == Created("7")


def test_a_target_of_messages_has_no_other_verb(target, to):
    """Nothing is read from its answer."""
    writer = to(address=None)
    target.coming(answers(202, {"id": "R1"}))
    assert writer.create({}, about()) == Created(None)
    assert [verb for verb in ("create", "update", "delete", "ping", "lookup") if has_verb(writer, verb)] == [
        "create"
    ]
    with pytest.raises(UnsupportedVerb):
        call(writer, "http", "update", about(), payload={}, remote_id="x")


def test_the_verbs_that_are_asked_for_are_there(to):
    """Update by default, delete and ping on demand."""
    verbs = ("create", "update", "delete", "ping")
    assert [has_verb(to(), verb) for verb in verbs] == [True, True, False, False]
    every = to(update=None, delete=True, ping_url="http://127.0.0.1/")
    assert [has_verb(every, verb) for verb in verbs] == [True, False, True, True]
    assert to(traits=WriterTraits(refusal_settles=True)).traits.refusal_settles


def test_a_subclass_shapes_bodies_and_looks_records_up(target, to):
    """What integrators write themselves: a body of the target's own shape, and a lookup by source id."""

    class Wrapping(HttpWriter):
        def body(self, payload, context):
            return {"properties": payload, "external_id": context.source_id}

        def lookup(self, context):
            answer = self.ask("GET", f"{target.url}/R1", context)
            address = InJson("external_id").of(answer)
            return Created("R1") if address == context.source_id else None

    writer = to(kind=Wrapping, headers={"X-Token": "sesame-opens"})
    assert look_up(writer, "http", about()) is None
    writer.create({"n": 1}, about())
    assert target.records["R1"] == {"properties": {"n": 1}, "external_id": "p1"}
    assert look_up(writer, "http", about()) == Landed("R1")
    assert target.requests[-1].headers["x-token"] == "sesame-opens"
    with pytest.raises(ConfigError, match="hosts does not name elsewhere"):
        writer.ask("GET", "http://elsewhere.example/", about())


# --- authentication and signatures -----------------------------------------------------------------------


def test_user_and_password(target, to):
    """Basic authentication; a flow of httpx2 works as well."""
    to(auth=("me", "hunter2hunter2")).create({}, about())
    assert target.requests[0].headers["authorization"] == (
        "Basic " + base64.b64encode(b"me:hunter2hunter2").decode()
    )


def test_a_flow_of_authentication(target, to):
    """It sees whole answers, and may ask again; the same key goes along."""

    class Challenge(httpx2.Auth):
        requires_response_body = True

        def auth_flow(self, request):
            response = yield request
            if response.status_code == 401:
                request.headers["Authorization"] = f"Token {response.json()['nonce']}"
                yield request

    target.coming(answers(401, {"nonce": "sesame-opens"}, Content_Encoding=""))
    assert to(auth=Challenge()).create({"n": 1}, about()) == Created("R1")
    assert target.requests[1].headers["authorization"] == "Token sesame-opens"
    assert {each.headers["idempotency-key"] for each in target.requests} == {"7031-1"}
    assert target.requests[1].json == {"n": 1}


def test_a_flow_that_asks_another_host_needs_it_allowed(target, to):
    """A server of tokens is named in `hosts`, or it is not asked."""

    class Elsewhere(httpx2.Auth):
        def auth_flow(self, request):
            yield httpx2.Request("POST", f"http://localhost:{target.origin.rpartition(':')[2]}/token")
            yield request

    with pytest.raises(ConfigError, match="hosts does not name localhost"):
        to(auth=Elsewhere()).create({}, about())
    assert not target.requests
    target.coming(answers(200))
    assert to(auth=Elsewhere(), hosts=["127.0.0.1", "LOCALHOST"]).create({}, about()) == Created("R1")


@pytest.mark.parametrize(
    "spelt",
    [
        "m\N{LATIN SMALL LETTER U WITH DIAERESIS}nchen.example",
        "xn--mnchen-3ya.example",
        "XN--mnchen-3ya.EXAMPLE",
    ],
)
@pytest.mark.parametrize("allowed", [None, "xn--mnchen-3ya.example"])
def test_a_host_with_letters_of_its_own_is_the_same_host(target, to, monkeypatch, spelt, allowed):
    """However it is spelt in the URL, the resolver is asked for its ASCII form."""
    real = socket.getaddrinfo
    asked = []

    def ours(host, port, *arguments, **options):
        if host == "127.0.0.1":
            return real(host, port, *arguments, **options)
        if options.get("flags"):
            raise socket.gaierror
        asked.append(host)
        return real("127.0.0.1", port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", ours)
    hosts = None if allowed is None else [allowed, spelt.lower()]
    url = target.url.replace("127.0.0.1", spelt)
    assert to(url, hosts=hosts).create({}, about()) == Created("R1")
    assert asked == ["xn--mnchen-3ya.example"]


def test_a_signature_can_be_verified(target, to):
    """Three headers: the key, the second of the attempt, and an HMAC over both and the body."""
    key = b"0123456789abcdef0123456789abcdef"
    signer = StandardWebhooks("whsec_" + base64.b64encode(key).decode())
    writer = to(signer=signer, delete=True, clock=lambda: NOW)
    writer.create({"text": "naïve"}, about())
    writer.delete("R1", about(version=2))
    for seen in target.requests:
        signed = f"{seen.headers['idempotency-key']}.1767268800.".encode() + seen.body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert seen.headers["webhook-id"] == seen.headers["idempotency-key"]
        assert seen.headers["webhook-timestamp"] == "1767268800"
        assert seen.headers["webhook-signature"] == f"v1,{expected}"


def test_the_example_of_the_scheme():
    """The signature that the scheme's own documents give for their example."""
    signer = StandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signer.headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', datetime.fromtimestamp(1614265330, UTC)
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "secret", ["whsec_!!!", "", b"", b"x" * 23, b"x" * 65, "c2hvcnQ=", None, 7, "whsec_" + "ä" * 32]
)
def test_a_secret_is_what_the_scheme_says(secret):
    """24 to 64 bytes; no message quotes it."""
    with pytest.raises(ConfigError, match="secret must") as raised:
        StandardWebhooks(secret)
    assert "!!!" not in str(raised.value)
    assert "c2hvcnQ" not in str(raised.value)


def test_a_signer_shows_no_secret():
    """Nor does a writer."""
    assert "abc" not in repr(StandardWebhooks(b"abc" * 10))


# --- what is told -------------------------------------------------------------------------------------


def test_a_fault_quotes_the_answer_without_what_was_sent(target, to, caplog):
    """A target that echoes the request gives no credential away, nor does any log."""
    caplog.set_level(logging.DEBUG)
    writer = to(
        f"{target.url}?api_key=query-secret",
        headers={"Authorization": "Bearer header-secret", "X-Weird": "weird-secret"},
        auth=("me", "password-secret"),
        signer=StandardWebhooks(b"0123456789abcdef01234567"),
        clock=lambda: NOW,
    )

    def echo(exchange):
        exchange.answer(422, {"sent": exchange.seen.headers, "line": exchange.seen.path, "why": "no weight"})

    target.always = echo
    with pytest.raises(Rejected, match=r"POST to 127\.0\.0\.1:[0-9]+: 422, ") as raised:
        writer.create({}, about())
    told = "".join(traceback.format_exception(raised.value)) + caplog.text
    for secret in ("header-secret", "weird-secret", "query-secret", "password-secret"):
        assert secret not in told
    assert base64.b64encode(b"me:password-secret").decode() not in told
    assert target.requests[0].headers["webhook-signature"] not in told


def test_a_quotation_is_one_short_line(target, to):
    """Control characters of a foreign body reach no terminal."""
    target.always = answers(400, b"\x1b[2Jline\n\nother\x00\xff " + b"x" * 5_000)
    with pytest.raises(Rejected) as raised:
        to().create({}, about())
    said = str(raised.value).partition(": 400, ")[2]
    assert said.startswith("[2Jline other \N{REPLACEMENT CHARACTER} xxx")
    assert len(said) <= 300


def test_garbage_that_quotes_the_request_tells_nothing(target, to):
    """An answer that is none may hold what was sent, too."""
    secret = f"Bearer header-{target.__class__.__name__}"
    target.always = lambda exchange: exchange.raw(secret.encode() + b"\r\n\r\n")
    with pytest.raises(Unavailable, match="the answer broke off") as raised:
        to(headers={"Authorization": secret}).create({}, about())
    assert secret not in "".join(traceback.format_exception(raised.value))


def test_a_create_without_an_address_is_logged(target, to, caplog):
    """The record will be parked; the log says which, and never what."""
    target.coming(answers(201, {"secret": "x"}))
    to().create({"text": "payload"}, about())
    (record,) = (each for each in caplog.records if each.name == "statifier_router")
    assert record.getMessage() == "create answered no usable address"
    assert vars(record)["statifier_router.source_id"] == "p1"
    assert vars(record)["statifier_router.status"] == 201


def test_no_environment_variable_leads_requests_elsewhere(target, to, monkeypatch):
    """A proxy of the surroundings would see every record."""
    other = HttpTarget()
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, other.origin)
    to().create({}, about())
    assert len(target.requests) == 1
    assert not other.requests
    other.close()


def test_no_cookie_is_kept(target, to):
    """Calls know nothing of each other."""
    target.coming(answers(201, {"id": "1"}, Set_Cookie="session=abc; Path=/"))
    writer = to()
    writer.create({}, about())
    writer.create({}, about("p2"))
    assert "cookie" not in target.requests[1].headers


# --- set up -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": None}, "url must be text"),
        ({"url": "parcels.example"}, "url must begin with http:// or https:// and a host"),
        ({"url": "ftp://parcels.example"}, "url must begin with"),
        ({"url": "http://"}, "url must begin with"),
        ({"url": "http://[bad"}, "url is no URL"),
        ({"url": "http://h:99999/"}, "url is no URL"),
        ({"url": "http://me:hunter2@h/"}, "url must hold no user and no password"),
        ({"url": "http://h/#x"}, "url must hold no fragment"),
        ({"url": "http://h/a b"}, "url must hold no fragment, blank"),
        ({"url": "http://h/a\n"}, "url must hold no fragment, blank"),
        ({"ping_url": "nowhere"}, "ping_url must begin with"),
        ({"ping_url": "http://other/", "hosts": ["h"]}, "hosts does not name other"),
        ({"hosts": "h"}, "hosts must be a collection"),
        ({"hosts": [7]}, "hosts must be names"),
        ({"hosts": []}, "hosts does not name h"),
        ({"address": "id"}, "address must be InJson, InHeader or None"),
        ({"update": "POST"}, "update must be 'PUT', 'PATCH' or None"),
        ({"traits": {}}, "traits must be WriterTraits"),
        ({"headers": []}, "headers must be a mapping"),
        ({"headers": {"a b": "x"}}, "a name in headers must be the name of a header"),
        ({"headers": {7: "x"}}, "a name in headers must be the name of a header"),
        ({"headers": {"X": "hunter2\n"}}, "without line breaks"),
        ({"headers": {"X": "hünter2"}}, "must be ASCII text"),
        ({"headers": {"X": b"hunter2"}}, "must be ASCII text"),
        ({"auth": "hunter2"}, r"auth must be \(user, password\)"),
        ({"key_header": ""}, "key_header must be the name of a header"),
        ({"statuses": []}, "statuses must be a mapping"),
        ({"statuses": {"404": None}}, "statuses must be numbers from 100 to 599"),
        ({"statuses": {600: None}}, "statuses must be numbers from 100 to 599"),
        ({"statuses": {404: "gone"}}, r"statuses\[404\] must be a class of record faults"),
        ({"statuses": {404: ValueError}}, r"statuses\[404\] must be a class of record faults"),
        ({"body_limit": 0}, "body_limit must be a positive integer"),
        ({"body_limit": True}, "body_limit must be a positive integer"),
    ],
)
def test_what_is_refused_at_the_edge(options, told):
    """The message names the argument, and quotes no credential."""
    with pytest.raises(ConfigError, match=told) as raised:
        HttpWriter(options.pop("url", "http://h/"), address=options.pop("address", InJson("id")), **options)
    assert "nter2" not in str(raised.value)


def test_headers_that_a_function_answers_are_looked_at_too(target, to):
    """A credential that was read with its line break is refused before a library quotes it."""
    with pytest.raises(ConfigError, match=r"headers\['X'\] must be ASCII text without line breaks") as raised:
        to(headers=lambda: {"X": "hunter2\n"}).create({}, about())
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(("kind", "value"), [(InJson, ""), (InJson, 7), (InHeader, ""), (InHeader, None)])
def test_where_an_address_stands_is_a_name(kind, value):
    """Checked when it is said."""
    with pytest.raises(ConfigError):
        kind(value)


def test_without_its_extra_it_can_be_imported_and_not_made(tmp_path):
    """The message names the extra."""
    code = """
import sys
sys.modules["httpx2"] = None
from statifier_router import MissingExtra
from statifier_router.runs import HttpWriter, InJson
try:
    HttpWriter("http://h/", address=InJson("id"))
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ("HttpWriter needs the extra 'http': pip install 'statifier-router[http]'\n"), (
        done.stderr
    )


def test_importing_runs_loads_no_http(tmp_path):
    """The extra costs those nothing who do not use it."""
    code = "import sys, statifier_router.runs; print({'httpx2', 'h11', 'httpcore2'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"


def test_a_timeout_of_the_context_is_the_only_one(target, to):
    """Nothing else gives up sooner."""
    target.coming(lambda exchange: (exchange.target.over.wait(0.5), target.serve(exchange)))
    assert to().create({}, about(timeout=timedelta(days=30))) == Created("R1")
