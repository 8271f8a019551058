"""One request to an HTTP target and its whole answer, or a fault. Imported only with the extra `http`."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import h11
import httpx2
from attrs import define, field

from statifier_router.errors import ConfigError
from statifier_router.runs.faults import TimedOut, Unavailable
from statifier_router.runs.http_answers import HttpAnswer, decoded, quoted
from statifier_router.runs.http_connections import Connections
from statifier_router.runs.http_network import Broken, Deadline, Late, NoConnection

_DEFAULTS: Final = {
    "Accept": "application/json",
    # A small body may be a large one once it is unpacked.
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "statifier-router",
}
# Headers that a target may quote. Whatever else was sent may be a credential.
_PUBLIC: Final = frozenset(
    (
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "host"),
        *("idempotency-key", "user-agent", "webhook-id", "webhook-timestamp"),
    )
)
# A shorter value is no credential, and would be found everywhere.
_SHORTEST_SECRET: Final = 6
_REDIRECTS: Final = 3
_PORTS: Final = {"http": 80, "https": 443}


@define
class _Call:
    """One call: until when it lasts, and what was sent for it."""

    deadline: Deadline
    sent: list[httpx2.Request] = field(factory=list)


class Sender:
    """Sends requests to the allowed hosts only, within a deadline, and reads no more than `body_limit`."""

    def __init__(
        self,
        *,
        urls: Iterable[str],
        auth: Any,
        hosts: Collection[str],
        body_limit: int,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        for url in urls:
            _checked_url(url)
        self._auth, self._password = _auth(auth)
        # As they are asked for: a name may be spelt in two ways.
        self._hosts = frozenset(_checked_url(f"http://{_bracketed(host)}/").raw_host for host in hosts)
        self._body_limit = body_limit
        self._connections = Connections(ssl_context, body_limit)

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: timedelta
    ) -> HttpAnswer:
        """One request, with redirects within its host and what authentication asks for.

        Raises `Unavailable`, in doubt unless nothing was sent, and `TimedOut`, in doubt.
        """
        asked = f"{method} to {urlsplit(url).netloc}"
        merged = httpx2.Headers(_DEFAULTS)
        merged.update(headers)
        if body is None:
            del merged["Content-Type"]
        request = httpx2.Request(method, url, headers=merged, content=body)
        call = _Call(Deadline.after(timeout.total_seconds()))
        # What a foreign error says may quote what was sent: it is not chained.
        try:
            return self._authorised(request, call)
        except NoConnection as error:
            raise Unavailable(f"{asked}: no connection, {self._said(error, call)}") from None
        except Late as error:
            raise TimedOut(f"{asked}: {self._said(error, call)}") from None
        except Broken as error:
            message = f"{asked}: the answer broke off, {self._said(error, call)}"
            raise Unavailable(message, in_doubt=True) from None
        except h11.LocalProtocolError as error:
            raise ConfigError(f"{asked}: {self._said(error, call)}") from None

    def close(self) -> None:
        """Close the idle connections."""
        self._connections.close()

    # --- how ----------------------------------------------------------------------------------------

    def _authorised(self, request: httpx2.Request, call: _Call) -> HttpAnswer:
        if self._auth is None:
            return self._followed(request, call)
        flow = self._auth.sync_auth_flow(request)
        try:
            request = next(flow)
            while True:
                answer = self._followed(request, call)
                response = httpx2.Response(
                    answer.status,
                    # The body is unpacked already.
                    headers={
                        name: value for name, value in answer.headers.items() if name != "content-encoding"
                    },
                    content=answer.body or b"",
                    request=request,
                )
                try:
                    request = flow.send(response)
                except StopIteration:
                    return answer
        finally:
            flow.close()

    def _followed(self, request: httpx2.Request, call: _Call) -> HttpAnswer:
        for _ in range(_REDIRECTS):
            answer = self._exchanged(request, call)
            onward = _onward(str(request.url), answer)
            if onward is None:
                return answer
            headers = httpx2.Headers(request.headers)
            del headers["Host"]
            request = httpx2.Request(request.method, onward, headers=headers, content=request.read())
        return self._exchanged(request, call)

    def _exchanged(self, request: httpx2.Request, call: _Call) -> HttpAnswer:
        url = request.url
        if url.raw_host not in self._hosts:
            raise ConfigError(f"hosts does not name {url.host}, which a request was to go to")
        call.sent.append(request)
        received = self._connections.exchange(
            (url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]),
            h11.Request(method=request.method, target=url.raw_path, headers=request.headers.raw),
            request.read(),
            call.deadline,
        )
        headers: dict[str, str] = {}
        for raw_name, raw_value in received.headers:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        body = received.body
        if body is not None:
            body = decoded(body, headers.get("content-encoding", "").strip().lower(), self._body_limit)
        return HttpAnswer(
            status=received.status, headers=headers, body=body, secrets=tuple(self._secrets(call))
        )

    def _secrets(self, call: _Call) -> set[str]:
        found = {
            part
            for request in call.sent
            for name, value in request.headers.items()
            if name.lower() not in _PUBLIC
            for part in (value, value.partition(" ")[2])
        }
        if self._password is not None:
            found.add(self._password)
        return {each for each in found if len(each) >= _SHORTEST_SECRET}

    def _said(self, error: Exception, call: _Call) -> str:
        text = str(error) or type(error).__name__
        return quoted(text.encode("utf-8", "replace"), self._secrets(call))


def _checked_url(url: str) -> httpx2.URL:
    try:
        return httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ConfigError(f"the URL to {urlsplit(url).hostname} is none: {error}") from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _onward(url: str, answer: HttpAnswer) -> str | None:
    """Where a redirect leads that keeps method and body, within the host; None for no such redirect."""
    if answer.status not in (307, 308) or "location" not in answer.headers:
        return None
    try:
        onward = urljoin(url, answer.headers["location"].strip())
        here, there = urlsplit(url), urlsplit(onward)
        same = (there.hostname, there.username, there.password) == (here.hostname, None, None)
        # To another port only from http to https, which is never gone back.
        upgraded = (here.scheme, there.scheme) == ("http", "https")
        kept = (here.scheme, here.port) == (there.scheme, there.port)
        valid = bool(httpx2.URL(onward).host)
    except (ValueError, httpx2.InvalidURL):
        return None
    return onward if same and (kept or upgraded) and valid else None


def _auth(auth: Any) -> tuple[httpx2.Auth | None, str | None]:
    if auth is None or isinstance(auth, httpx2.Auth):
        return auth, None
    if isinstance(auth, tuple) and len(auth) == 2 and all(isinstance(part, str) for part in auth):
        return httpx2.BasicAuth(*auth), auth[1]
    raise ConfigError("auth must be (user, password), an httpx2.Auth or None")
