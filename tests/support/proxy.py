"""A proxy in front of PostgreSQL that knows the protocol: it counts, reads, and cuts on request.

It holds back what a client sends until the client asks for an answer (a query, a sync, a flush), so that
a statement can be kept from the server whole, together with its parse and its parameters.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import attrs
from sqlalchemy import make_url

Verdict = Literal["forward", "cut", "cut_after"]
OnStatement = Callable[[int, str], Verdict | None]

_SSL_REQUEST, _GSS_REQUEST, _CANCEL_REQUEST = 80877103, 80877104, 80877102
# Query, function call, sync: what the server ends with ReadyForQuery. A flush (H) it only answers.
_ENDED = frozenset({b"Q", b"F", b"S"})
# Parse, bind, describe, execute, close: nobody waits for these alone.
_HELD = frozenset({b"P", b"B", b"D", b"E", b"C"})
_PATIENCE = 30.0


@attrs.frozen
class Statement:
    """One statement as it came by: its number (from 1), its SQL, the number of its connection."""

    n: int
    sql: str
    connection: int


class Proxy:
    """Listens on 127.0.0.1 and passes on to the server of `url`; a context manager.

    `on_statement(n, sql)` is called in the connection's own thread, before the server sees statement `n`,
    and may wait. It answers "forward" (or None), "cut" (the server never sees the statement; both sides
    are closed) or "cut_after" (the server has done it, the client never hears). By the time the client
    sees a cut, the server has ended the connection, and with it the transaction. An error that it raises
    cuts, and is raised again by `close`.
    """

    def __init__(self, url: str, on_statement: OnStatement | None = None) -> None:
        self._target = make_url(url)
        self.on_statement = on_statement
        self._lock = threading.Lock()
        self._statements: list[Statement] = []
        self._turns = 0
        self._connections: list[_Connection] = []
        self._errors: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL with which a client reaches the server through this proxy."""
        host, port = self._listener.getsockname()[:2]
        query = {key: value for key, value in self._target.query.items() if key not in ("host", "port")}
        through = self._target.set(host=host, port=port, query=query)
        return through.render_as_string(hide_password=False)

    @property
    def statements(self) -> list[Statement]:
        """Every statement since the start or the last `reset`, in order."""
        with self._lock:
            return list(self._statements)

    @property
    def turns(self) -> int:
        """How often a client asked for an answer: a query, a sync or a flush, each a wait for the server."""
        with self._lock:
            return self._turns

    def reset(self) -> None:
        """Count from the beginning again; open connections stay open."""
        with self._lock:
            self._statements.clear()
            self._turns = 0

    def close(self) -> None:
        """Stop listening, close every connection, and raise what a callback raised."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_PATIENCE)
        for connection in self._connections:
            connection.close()
        if self._errors:
            raise self._errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                server = self._connect()
            except OSError:
                client.close()
                continue
            connection = _Connection(self, len(self._connections) + 1, client, server)
            self._connections.append(connection)
            connection.start()

    def _connect(self) -> socket.socket:
        host = self._target.query.get("host") or self._target.host or "127.0.0.1"
        port = self._target.query.get("port") or self._target.port or 5432
        assert isinstance(host, str)
        assert isinstance(port, (str, int))
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(Path(host) / f".s.PGSQL.{port}"))
            return server
        server = socket.create_connection((host, int(port)))
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server

    # --- called by the connections ------------------------------------------------------------------

    def seen(self, sql: str, connection: int) -> Verdict:
        """Count a statement and ask what becomes of it."""
        with self._lock:
            n = len(self._statements) + 1
            self._statements.append(Statement(n, sql, connection))
        if self.on_statement is None:
            return "forward"
        try:
            return self.on_statement(n, sql) or "forward"
        except BaseException as error:
            self._errors.append(error)
            return "cut"

    def asked(self) -> None:
        """Count a turn."""
        with self._lock:
            self._turns += 1


class _Connection:
    """One client and its server; a thread for each direction."""

    def __init__(self, proxy: Proxy, number: int, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._number = number
        self._client = client
        self._server = server
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        # How many ReadyForQuery are owed by the server, the one of the startup included.
        self._owed = 1
        self._ready = threading.Condition()
        self._server_gone = threading.Event()
        self._silent = False
        self._directions = 2
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._forth, self._back)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for side in (self._client, self._server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_PATIENCE)

    # --- from the client ------------------------------------------------------------------------------

    def _forth(self) -> None:
        try:
            with self._client.makefile("rb") as stream:
                if self._start_up(stream.read):
                    self._pass_on(_messages(stream.read))
        except OSError:
            pass
        finally:
            # The server hears of the end, and its last words still reach `_back`.
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_WR)
            self._leave()

    def _start_up(self, read: Callable[[int], bytes]) -> bool:
        while True:
            head = read(8)
            if len(head) < 8:
                return False
            length, code = struct.unpack("!ii", head)
            rest = read(length - 8)
            if code in (_SSL_REQUEST, _GSS_REQUEST):
                self._client.sendall(b"N")
                continue
            self._server.sendall(head + rest)
            return bool(code != _CANCEL_REQUEST)

    def _pass_on(self, messages: Iterator[tuple[bytes, bytes]]) -> None:
        held: list[tuple[bytes, bytes]] = []
        for kind, body in messages:
            held.append((kind, body))
            if kind in _HELD:
                continue
            if not self._send(held):
                return
            held.clear()

    def _send(self, held: list[tuple[bytes, bytes]]) -> bool:
        """Pass on what was held back, statement by statement; False where the connection was cut."""
        passing: list[tuple[bytes, bytes]] = []
        for kind, body in held:
            sql = self._statement(kind, body)
            verdict = "forward" if sql is None else self._proxy.seen(sql, self._number)
            if verdict == "cut":
                self._to_server(passing)
                self._cut()
                return False
            passing.append((kind, body))
            # A flush with nothing before it asks for nothing: libpq sends one after the sync of a pipeline.
            if kind in _ENDED or (kind == b"H" and len(passing) > 1):
                self._proxy.asked()
            if verdict == "cut_after":
                self._silent = True
                if kind not in _ENDED:
                    passing.append((b"S", b""))
                self._to_server(passing)
                self._wait_until_ready()
                self._cut()
                return False
        self._to_server(passing)
        return True

    def _statement(self, kind: bytes, body: bytes) -> str | None:
        """The SQL that this message has the server execute, if any; keeps the names of the others."""
        if kind == b"Q":
            return _text(body.split(b"\0")[0])
        if kind == b"P":
            name, sql = body.split(b"\0")[:2]
            self._prepared[name] = _text(sql)
        elif kind == b"B":
            portal, name = body.split(b"\0")[:2]
            self._portals[portal] = self._prepared.get(name, "")
        elif kind == b"E":
            return self._portals.get(body.split(b"\0")[0], "")
        return None

    def _to_server(self, messages: list[tuple[bytes, bytes]]) -> None:
        with self._ready:
            self._owed += sum(kind in _ENDED for kind, _ in messages)
        self._server.sendall(
            b"".join(kind + struct.pack("!i", len(body) + 4) + body for kind, body in messages)
        )

    def _wait_until_ready(self) -> None:
        with self._ready:
            self._ready.wait_for(lambda: self._owed <= 0 or self._server_gone.is_set(), _PATIENCE)

    def _cut(self) -> None:
        self._silent = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)
        self._server_gone.wait(_PATIENCE)
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    # --- from the server ------------------------------------------------------------------------------

    def _back(self) -> None:
        try:
            with self._server.makefile("rb") as stream:
                for kind, body in _messages(stream.read):
                    if not self._silent:
                        self._client.sendall(kind + struct.pack("!i", len(body) + 4) + body)
                    if kind == b"Z":
                        with self._ready:
                            self._owed -= 1
                            self._ready.notify_all()
        except OSError:
            pass
        finally:
            self._server_gone.set()
            with self._ready:
                self._ready.notify_all()
            if not self._silent:
                with contextlib.suppress(OSError):
                    self._client.shutdown(socket.SHUT_RDWR)
            self._leave()

    def _leave(self) -> None:
        with self._ready:
            self._directions -= 1
            last = self._directions == 0
        if last:
            self._client.close()
            self._server.close()


def _messages(read: Callable[[int], bytes]) -> Iterator[tuple[bytes, bytes]]:
    while True:
        head = read(5)
        if len(head) < 5:
            return
        (length,) = struct.unpack("!i", head[1:])
        body = read(length - 4)
        if len(body) < length - 4:
            return
        yield head[:1], body


def _text(sql: bytes) -> str:
    return sql.decode("utf-8", "replace")
