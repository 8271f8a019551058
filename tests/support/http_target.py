"""A small HTTP target on loopback that can be told to misbehave, one request at a time or always."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs

Behaviour = Callable[["Exchange"], None]
# Between two bytes of what drips, in seconds.
_DRIP = 0.02
REFUSED = "refused"


@attrs.frozen
class Seen:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class Exchange(BaseHTTPRequestHandler):
    """One connection; a behaviour is handed it with the request read."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    target: HttpTarget
    seen: Seen

    def setup(self) -> None:
        """Number the connection."""
        super().setup()
        self.number = self.target.opened()

    def handle_any(self) -> None:
        """Read the request whole, and do as the target says."""
        if self.target.reads:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        else:
            body = b""
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.seen = Seen(self.command, self.path, headers, body, self.number)
        behave = self.target.next_behaviour(self.seen)
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            behave(self)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the base class asks for them

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""

    def answer(self, status: int, body: object = b"", headers: dict[str, str] | None = None) -> None:
        """A whole answer; a body that is not bytes goes out as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if status not in (204, 304):
            self.wfile.write(content)

    def raw(self, content: bytes, *, close: bool = True) -> None:
        """These bytes and nothing else."""
        self.wfile.write(content)
        self.wfile.flush()
        self.close_connection = close

    def drip(self, content: bytes) -> None:
        """These bytes, one at a time, and then blanks, until the client or the test has enough."""
        while not self.target.over.wait(_DRIP):
            self.raw(content[:1] or b" ")
            content = content[1:]

    def hang(self) -> None:
        """Nothing, until the test is over."""
        self.close_connection = True
        self.target.over.wait()

    def reset(self) -> None:
        """Break the connection off, unread bytes and all."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Both files hold the socket open.
        self.rfile.close()
        self.connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of the tests."""


class HttpTarget:
    """Records under /parcels: POST creates, PUT and PATCH replace, DELETE deletes, GET shows or finds.

    A `keyed` one honours Idempotency-Key. What does not parse, or says "refused", is refused.
    """

    def __init__(self, *, keyed: bool = True) -> None:
        self.keyed = keyed
        self.records: dict[str, Any] = {}
        self.requests: list[Seen] = []
        self.always: Behaviour = self.serve
        self.reads = True
        self.over = threading.Event()
        # What the next record is called, where a test wants to say.
        self.ids: deque[Any] = deque()
        self._coming: deque[Behaviour] = deque()
        self._keys: dict[tuple[str, str], tuple[int, Any]] = {}
        self._lock = threading.Lock()
        self._connections = 0
        self._made = 0
        handler = type("Bound", (Exchange,), {"target": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        """Where creates go."""
        return f"{self.origin}/parcels"

    def coming(self, *behaviours: Behaviour) -> None:
        """What to do with the next requests, one each."""
        self._coming.extend(behaviours)

    def next_behaviour(self, seen: Seen) -> Behaviour:
        """Note a request, and say what is done with it."""
        with self._lock:
            self.requests.append(seen)
            return self._coming.popleft() if self._coming else self.always

    def opened(self) -> int:
        """The number of a new connection."""
        with self._lock:
            self._connections += 1
            return self._connections

    def close(self) -> None:
        """Stop, and let go of whatever hangs."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def secure(self, context: ssl.SSLContext) -> None:
        """Speak TLS from now on."""
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )

    # --- as it should be ----------------------------------------------------------------------------

    def serve(self, exchange: Exchange) -> None:
        """Answer as a good target does."""
        seen = exchange.seen
        with self._lock:
            key = seen.method, seen.headers.get("idempotency-key", "")
            known = self.keyed and key[1] != "" and key in self._keys
            status, body = self._keys[key] if known else self._done(seen)
            if status < 300 and not known:
                self._keys[key] = status, body
        headers = {"Location": f"/parcels/{body['id']}"} if status == 201 else {}
        exchange.answer(status, b"" if body is None else body, headers)

    def _done(self, seen: Seen) -> tuple[int, Any]:
        parts = urlsplit(seen.path)
        rest = parts.path.removeprefix("/parcels")
        address = unquote(rest[1:])
        if rest == parts.path or rest[:1] not in ("", "/") or "/" in rest[1:]:
            return 404, {"error": "no such path"}
        if seen.method == "GET":
            return 200, self.records.get(address, {})
        if seen.method == "POST" and not address:
            return self._created(seen.json)
        if address not in self.records:
            return 404, {"error": "no such parcel"}
        if seen.method == "DELETE":
            del self.records[address]
            return 204, None
        if seen.json == REFUSED:
            return 422, {"error": "not a parcel"}
        self.records[address] = seen.json
        return 200, {"id": address}

    def _created(self, record: Any) -> tuple[int, Any]:
        if record == REFUSED:
            return 422, {"error": "not a parcel"}
        self._made += 1
        address = self.ids.popleft() if self.ids else f"R{self._made}"
        self.records[str(address)] = record
        return 201, {"id": address}


def answers(status: int, body: object = b"", **headers: str) -> Behaviour:
    """The same answer to whatever is asked; underscores in names of headers stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda exchange: exchange.answer(status, body, named)


def says(content: bytes, *, close: bool = True) -> Behaviour:
    """These bytes, which need be no HTTP."""
    return lambda exchange: exchange.raw(content, close=close)


def repeats(beginning: bytes, content: bytes) -> Behaviour:
    """A beginning, and then the same bytes as fast as they are taken, without an end."""

    def behave(exchange: Exchange) -> None:
        exchange.raw(beginning)
        while not exchange.target.over.is_set():
            exchange.raw(content)

    return behave


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """The origin of a port that takes connections and never reads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def closed_port() -> int:
    """A port of loopback at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
    return number
