"""A writer to a target that speaks HTTP and JSON."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from urllib.parse import quote, urlsplit, urlunsplit

from statifier_router.clock import system_clock
from statifier_router.errors import ConfigError, MissingExtra
from statifier_router.jsontext import Json, encode
from statifier_router.runs.calling import usable_address
from statifier_router.runs.faults import RecordFault, Rejected, Throttled
from statifier_router.runs.http_answers import HttpAnswer, InHeader, InJson, Statuses, Verb, fault_of
from statifier_router.runs.writers import NO_TRAITS, Created, WriteContext, WriterTraits

if TYPE_CHECKING:
    from statifier_router.runs.http_sending import Sender
    from statifier_router.runs.signing import StandardWebhooks

log = logging.getLogger("statifier_router")

BODY_LIMIT: Final = 1_048_576
"""Bytes of an answer's body that are read, by default."""

# An HTTP token: letters, digits and a few signs.
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


class HttpWriter:
    """Creates by POST to `url`, updates by PUT or PATCH to `url`/address, as JSON. Needs the extra `http`.

    Args:
        url: where creates go.
        address: where a create's answer has the record's address: `InJson("id")`,
            `InHeader("Location")`, or None for a target of messages, which has no other verb.
        update: the method of updates, None for a target that takes none.
        delete: whether records are deleted there, by DELETE.
        ping_url: what a ping asks for by GET; any answer of a target that is in order will do.
        headers: what every request carries, or a function that answers it anew for each.
        auth: user and password, or an `httpx2.Auth`.
        key_header: the header that carries `context.key`; None for none.
        traits: what the target is known to do; say `honours_keys` only where it really does.
        statuses: what a status means where the target has its own mind: a class of faults, or None for
            a success. `fault_of` has the rules for all others.
        signer: signs every body.
        hosts: the hosts that may be talked to; by default those of `url` and `ping_url`.
        body_limit: bytes of an answer that are read.
        ssl_context: in place of the system's own certificates.
        clock: the instant of a signature.

    A call ends within `context.timeout` as a whole, names resolved and bodies read. 307 and 308 are
    followed on the same host; no other redirect is, and no environment variable or cookie is heeded.
    Faults name the host, never a URL or a header. Connections are kept open: `close` it, or use it as
    a context manager. Threads may share it. Raises `ConfigError`, naming the argument, and
    `MissingExtra`.

    >>> writer = HttpWriter("https://parcels.example/v1/parcels", address=InJson("id"), update="PATCH")
    >>> writer
    HttpWriter('parcels.example')
    >>> writer.close()
    """

    def __init__(
        self,
        url: str,
        *,
        address: InJson | InHeader | None,
        update: Literal["PUT", "PATCH"] | None = "PUT",
        delete: bool = False,
        ping_url: str | None = None,
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        auth: Any = None,
        key_header: str | None = "Idempotency-Key",
        traits: WriterTraits = NO_TRAITS,
        statuses: Statuses | None = None,
        signer: StandardWebhooks | None = None,
        hosts: Collection[str] | None = None,
        body_limit: int = BODY_LIMIT,
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], datetime] = system_clock,
    ) -> None:
        self._url = _checked_url(url, "url")
        self._ping_url = None if ping_url is None else _checked_url(ping_url, "ping_url")
        if not isinstance(address, (InJson, InHeader, type(None))):
            raise ConfigError(f"address must be InJson, InHeader or None, not {address!r}")
        if update not in ("PUT", "PATCH", None):
            raise ConfigError(f"update must be 'PUT', 'PATCH' or None, not {update!r}")
        if not isinstance(traits, WriterTraits):
            raise ConfigError(f"traits must be WriterTraits, not {type(traits).__name__}")
        self.traits = traits
        self._address = address
        self._update = update
        self._headers = headers if callable(headers) else _checked_headers({} if headers is None else headers)
        self._key_header = None if key_header is None else _checked_token(key_header, "key_header")
        self._statuses = _checked_statuses({} if statuses is None else statuses)
        self._signer = signer
        self._clock = clock
        # A verb that is None is not there.
        if address is None or update is None:
            setattr(self, "update", None)  # noqa: B010 - a method is hidden on purpose
        if address is None or not delete:
            setattr(self, "delete", None)  # noqa: B010 - the same
        if ping_url is None:
            setattr(self, "ping", None)  # noqa: B010 - the same
        self._sender = _sender(
            urls=[each for each in (self._url, self._ping_url) if each is not None],
            auth=auth,
            hosts=_checked_hosts(hosts, self._url, self._ping_url),
            body_limit=_checked_size(body_limit, "body_limit"),
            ssl_context=ssl_context,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({urlsplit(self._url).hostname!r})"

    # --- verbs --------------------------------------------------------------------------------------

    def create(self, payload: Json, context: WriteContext) -> Created:
        """POST the record; its address is read from the answer."""
        answer = self._call("create", "POST", self._url, context, payload)
        if self._address is None:
            return Created()
        address = usable_address(self._address.of(answer))
        if address is None or not _fits_url(address):
            log.warning(
                "create answered no usable address",
                extra={
                    "statifier_router.rule": context.rule,
                    "statifier_router.source_id": context.source_id,
                    "statifier_router.status": answer.status,
                },
            )
            return Created()
        return Created(address)

    def update(self, remote_id: str, payload: Json, context: WriteContext) -> None:
        """PUT or PATCH the record at its address."""
        assert self._update is not None
        self._call("update", self._update, self._at(remote_id), context, payload)

    def delete(self, remote_id: str, context: WriteContext) -> None:
        """DELETE the record at its address."""
        self._call("delete", "DELETE", self._at(remote_id), context)

    def ping(self, timeout: timedelta) -> None:
        """GET the URL of pings. A refusal is an answer, too: the target is there."""
        assert self._ping_url is not None
        method = "GET"
        answer = self._sender.send(method, self._ping_url, self._sent_headers(), None, timeout)
        fault = self._fault("ping", method, self._ping_url, answer)
        if fault is not None and (fault.of_target or isinstance(fault, Throttled)):
            raise fault

    # --- for subclasses -----------------------------------------------------------------------------

    def body(self, payload: Json, context: WriteContext) -> Json:
        """What is sent for a payload: by default the payload itself. A subclass may wrap or reshape it."""
        return payload

    def ask(self, method: str, url: str, context: WriteContext) -> HttpAnswer:
        """One request of a subclass's own, for its `lookup` say, with everything that writes carry.

        Its host has to be among `hosts`. Answers whatever the status is; raises `Unavailable` and
        `TimedOut`.
        """
        url = _checked_url(url, "url")
        return self._sender.send(method, url, self._sent_headers(), None, context.timeout)

    # --- how ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections that are kept open; the next call opens another one."""
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(
        self, verb: Verb, method: str, url: str, context: WriteContext, payload: Json = None
    ) -> HttpAnswer:
        headers = self._sent_headers()
        body = None if verb == "delete" else encode(self.body(payload, context)).encode()
        if self._key_header is not None:
            headers[self._key_header] = context.key
        if self._signer is not None:
            headers.update(self._signer.headers(context.key, body or b"", self._clock()))
        answer = self._sender.send(method, url, headers, body, context.timeout)
        fault = self._fault(verb, method, url, answer)
        if fault is not None:
            raise fault
        return answer

    def _fault(self, verb: Verb, method: str, url: str, answer: HttpAnswer) -> RecordFault | None:
        asked = f"{method} to {urlsplit(url).netloc}"
        return fault_of(answer, verb, asked, statuses=self._statuses)

    def _sent_headers(self) -> dict[str, str]:
        return _checked_headers(self._headers() if callable(self._headers) else self._headers)

    def _at(self, remote_id: str) -> str:
        """The URL of one record: its address is one part of the path, whatever it holds."""
        if not _fits_url(remote_id):
            raise Rejected("the record's address cannot stand in a URL")
        parts = urlsplit(self._url)
        path = f"{parts.path.rstrip('/')}/{quote(remote_id, safe='')}"
        return urlunsplit(parts._replace(path=path))


def _fits_url(address: str) -> bool:
    # On the way they are taken for "here" and "one up", spelt in whatever way.
    return address not in (".", "..")


def _sender(**options: Any) -> Sender:
    try:
        from statifier_router.runs.http_sending import Sender
    except ModuleNotFoundError as error:
        if error.name not in ("httpx2", "h11"):
            raise
        raise MissingExtra("http", "HttpWriter") from None
    return Sender(**options)


def _checked_url(url: object, field: str) -> str:
    # No message quotes it: a part of it may be a credential.
    if not isinstance(url, str):
        raise ConfigError(f"{field} must be text, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{field} is no URL: {error}") from None
    del port
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{field} must begin with http:// or https:// and a host")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{field} must hold no user and no password: hand them over as auth=")
    if parts.fragment or any(each.isspace() or not each.isprintable() for each in url):
        raise ConfigError(f"{field} must hold no fragment, blank or control character")
    return url


def _checked_hosts(hosts: object, *urls: str | None) -> frozenset[str]:
    of_urls = frozenset(str(urlsplit(url).hostname) for url in urls if url is not None)
    if hosts is None:
        return of_urls
    if isinstance(hosts, (str, bytes)) or not isinstance(hosts, Collection):
        raise ConfigError(f"hosts must be a collection of names, not {type(hosts).__name__}")
    if not all(isinstance(host, str) and host for host in hosts):
        raise ConfigError("hosts must be names")
    named = frozenset(host.lower() for host in hosts)
    for host in sorted(of_urls - named):
        raise ConfigError(f"hosts does not name {host}, which is in a URL")
    return named


def _checked_headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers must be a mapping, not {type(headers).__name__}")
    for name, value in headers.items():
        _checked_token(name, "a name in headers")
        # A line break at its end comes with a credential that was read from a file.
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise ConfigError(f"headers[{name!r}] must be ASCII text without line breaks and controls")
    return dict(headers)


def _checked_token(name: object, field: str) -> str:
    if not isinstance(name, str) or not name or not _TOKEN.issuperset(name.lower()):
        raise ConfigError(f"{field} must be the name of a header, not {name!r}")
    return name


def _checked_size(size: object, field: str) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigError(f"{field} must be a positive integer, not {size!r}")
    return size


def _checked_statuses(statuses: object) -> Statuses:
    if not isinstance(statuses, Mapping):
        raise ConfigError(f"statuses must be a mapping, not {type(statuses).__name__}")
    for status, meaning in statuses.items():
        if isinstance(status, bool) or not isinstance(status, int) or not 100 <= status <= 599:
            raise ConfigError(f"statuses must be numbers from 100 to 599, not {status!r}")
        known = meaning is None or (isinstance(meaning, type) and issubclass(meaning, RecordFault))
        if not known:
            raise ConfigError(f"statuses[{status}] must be a class of record faults or None, not {meaning!r}")
    return dict(statuses)
