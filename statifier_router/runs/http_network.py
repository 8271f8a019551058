"""Sockets that all keep to one deadline: however a server dawdles, a call ends in time.

The timeouts of HTTP libraries begin anew with every byte.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from typing import Final

from attrs import frozen

# Of what is written at once, so that the deadline is looked at between two pieces.
_PIECE: Final = 262_144
_READ: Final = 65_536


class NoConnection(Exception):
    """The target cannot be reached: nothing was sent."""


class Late(Exception):
    """The deadline passed after something may have been sent."""


class Broken(Exception):
    """The connection broke, or what came over it is no answer, after something may have been sent."""


@frozen
class Deadline:
    """When a call has to be over, on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    def left(self) -> float:
        """Seconds; zero or less once it has passed."""
        return self.at - time.monotonic()


class Wire:
    """One connection, plain or by TLS. Made by `connect`."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self.idle_since = 0.0

    def send(self, content: bytes, deadline: Deadline) -> None:
        """Send all of it. Raises `Late` and `Broken`."""
        rest = memoryview(content)
        try:
            while rest:
                self._bound(deadline)
                rest = rest[self._socket.send(rest[:_PIECE]) :]
        except TimeoutError:
            raise Late("the request was not taken in time") from None
        except OSError as error:
            raise Broken(_reason(error)) from None

    def receive(self, deadline: Deadline) -> bytes:
        """What came, at least one byte; nothing at the end. Raises `Late` and `Broken`."""
        try:
            self._bound(deadline)
            return self._socket.recv(_READ)
        except TimeoutError:
            raise Late("no whole answer in time") from None
        except OSError as error:
            raise Broken(_reason(error)) from None

    def is_usable(self) -> bool:
        """Whether an idle connection is still open, and nothing came that nobody asked for."""
        try:
            self._socket.settimeout(0)
            if isinstance(self._socket, ssl.SSLSocket):
                # Read, not looked at: what TLS says to itself must not pass for an answer.
                self._socket.recv(1)
            else:
                self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _bound(self, deadline: Deadline) -> None:
        left = deadline.left()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)


def connect(host: str, port: int, context: ssl.SSLContext | None, deadline: Deadline) -> Wire:
    """A connection to the first address of the host that takes one. Raises `NoConnection`."""
    addresses = _resolved(host, port, deadline)
    problem = f"{host} has no address"
    for tried, address in enumerate(addresses):
        left = deadline.left()
        if left <= 0:
            break
        try:
            # An address that does not answer must leave time for the others.
            opened = socket.create_connection(address, left / (len(addresses) - tried))
        except TimeoutError:
            problem = "the connection was not taken in time"
        except OSError as error:
            problem = _reason(error)
        else:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return Wire(opened if context is None else _secured(opened, host, context, deadline))
    raise NoConnection(problem)


def _secured(opened: socket.socket, host: str, context: ssl.SSLContext, deadline: Deadline) -> socket.socket:
    try:
        # The system counts this down over the whole handshake.
        opened.settimeout(max(deadline.left(), 0.001))
        return context.wrap_socket(opened, server_hostname=host)
    except TimeoutError:
        opened.close()
        raise NoConnection("TLS was not agreed upon in time") from None
    except (OSError, ValueError) as error:
        opened.close()
        raise NoConnection(f"TLS: {_reason(error)}") from None


def _resolved(host: str, port: int, deadline: Deadline) -> list[tuple[str, int]]:
    """The addresses of a host. The system's resolver keeps to no timeout: it is asked in a thread."""
    try:
        return _addresses(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    answers: list[list[tuple[str, int]] | Exception] = []

    def ask() -> None:
        try:
            answers.append(_addresses(host, port, 0))
        except (OSError, UnicodeError) as error:
            answers.append(error)

    asked = threading.Thread(target=ask, daemon=True)
    asked.start()
    asked.join(max(deadline.left(), 0))
    if not answers:
        raise NoConnection(f"the name {host} was not resolved in time")
    (answer,) = answers
    if isinstance(answer, Exception):
        raise NoConnection(f"{host}: {_reason(answer)}")
    return answer


def _addresses(host: str, port: int, flags: int) -> list[tuple[str, int]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(str(address[0]), int(address[1])) for *_, address in found]


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return error.reason or type(error).__name__
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
