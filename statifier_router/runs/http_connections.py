"""Requests and answers of HTTP/1.1 over connections that are kept open. Imported only with the extra `http`.

Every answer is known to belong to its request: a connection over which more came is not used again.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import h11
import httpx2
from attrs import frozen

from statifier_router.runs.http_network import Broken, Deadline, Late, Wire, connect

Header = tuple[bytes, bytes]
Origin = tuple[str, str, int]

# Bytes of a head, or of what stands between two pieces of a body.
_HEAD_LIMIT: Final = 65_536
# Servers close what is idle after as little as two seconds. A request that crosses that is in doubt.
_IDLE_SECONDS: Final = 1.5
_IDLE_CONNECTIONS: Final = 10


@frozen
class Received:
    """One answer. The body is None where it was longer than the limit."""

    status: int
    headers: Sequence[Header]
    body: bytes | None


class Connections:
    """Connections by origin (scheme, host, port), used by one call at a time. Threads may share it."""

    def __init__(self, ssl_context: ssl.SSLContext | None, body_limit: int) -> None:
        self._ssl_context = ssl_context
        self._body_limit = body_limit
        self._lock = threading.Lock()
        self._idle: dict[Origin, list[Wire]] = {}

    def exchange(self, origin: Origin, request: h11.Request, body: bytes, deadline: Deadline) -> Received:
        """Send the request, and read its answer. Raises `NoConnection`, `Late` and `Broken`."""
        wire = self._taken(origin) or self._opened(origin, deadline)
        reusable = False
        try:
            state = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)
            try:
                _send(wire, state, request, body, deadline)
                received = _receive(wire, state, self._body_limit, deadline)
            except h11.RemoteProtocolError as error:
                raise Broken(str(error)) from None
            # Not where the server closes, or where bytes came beyond the answer.
            reusable = (
                received.body is not None
                and state.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}
                and state.trailing_data == (b"", False)
            )
        finally:
            if reusable:
                self._keep(origin, wire)
            else:
                wire.close()
        return received

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            wires = [wire for idle in self._idle.values() for wire in idle]
            self._idle.clear()
        for wire in wires:
            wire.close()

    def _opened(self, origin: Origin, deadline: Deadline) -> Wire:
        scheme, host, port = origin
        return connect(host, port, self._secure() if scheme == "https" else None, deadline)

    def _secure(self) -> ssl.SSLContext:
        # Made once, and only where it is needed: it reads every certificate of the system.
        with self._lock:
            if self._ssl_context is None:
                self._ssl_context = httpx2.create_ssl_context()
            return self._ssl_context

    def _taken(self, origin: Origin) -> Wire | None:
        """The connection that was used last, where it may be used again."""
        while True:
            with self._lock:
                idle = self._idle.get(origin)
                wire = idle.pop() if idle else None
            if wire is None:
                return None
            if time.monotonic() - wire.idle_since < _IDLE_SECONDS and wire.is_usable():
                return wire
            wire.close()

    def _keep(self, origin: Origin, wire: Wire) -> None:
        wire.idle_since = time.monotonic()
        with self._lock:
            idle = self._idle.setdefault(origin, [])
            idle.append(wire)
            outdated = idle.pop(0) if len(idle) > _IDLE_CONNECTIONS else None
        if outdated is not None:
            outdated.close()


def _send(wire: Wire, state: h11.Connection, request: h11.Request, body: bytes, deadline: Deadline) -> None:
    content = state.send(request) or b""
    if body:
        content += state.send(h11.Data(data=body)) or b""
    content += state.send(h11.EndOfMessage()) or b""
    # A server may answer before it has read everything, and close: the answer is still to be had.
    with suppress(Broken):
        wire.send(content, deadline)


def _receive(wire: Wire, state: h11.Connection, limit: int, deadline: Deadline) -> Received:
    status, headers, chunks, size = 0, list[Header](), list[bytes](), 0
    while True:
        event = state.next_event()
        if event is h11.NEED_DATA:
            content = wire.receive(deadline)
            if not content and state.their_state is h11.SEND_RESPONSE:
                raise Broken("it was closed without an answer")
            state.receive_data(content)
        elif isinstance(event, h11.Response):
            status, headers = event.status_code, list(event.headers)
        elif isinstance(event, h11.InformationalResponse):
            if event.status_code == 101:
                # It speaks something else from here on.
                raise Broken("the server changed the protocol unasked")
            if deadline.left() <= 0:
                raise Late("no whole answer in time")
        elif isinstance(event, h11.Data):
            size += len(event.data)
            if size > limit:
                return Received(status, headers, None)
            chunks.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage) or event is h11.PAUSED:
            return Received(status, headers, b"".join(chunks))
        else:
            raise Broken("it was closed within the answer")
