"""Messages from lines of JSON: one object a line, each line judged alone."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import IO, Any

from attrs import frozen

from statifier_router.clock import as_utc
from statifier_router.errors import MessageError
from statifier_router.messages import Message

_REQUIRED = ("source", "message_id", "scope", "data")
_ALLOWED = frozenset({*_REQUIRED, "context", "now"})
_BLOCK = 65_536
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@frozen
class Line:
    """One line that is not blank: the message it holds, or why it holds none.

    `size` is in bytes and counts the blank lines before it.
    """

    number: int
    size: int
    message: Message | None = None
    now: datetime | None = None
    problem: str | None = None


def read(stream: Iterable[bytes]) -> Iterator[Line]:
    """The lines of a stream, one at a time; blank ones are passed over.

    >>> [line] = read([b'{"source": "carrier", "message_id": "m-1", "scope": ""}'])
    >>> line.problem
    'data is missing'
    """
    size = 0
    for number, raw in enumerate(stream, 1):
        size += len(raw)
        text = raw.removeprefix(_BYTE_ORDER_MARK) if number == 1 else raw
        if not text.strip():
            continue
        try:
            message, now = _message(text)
        except MessageError as error:
            yield Line(number, size, problem=str(error))
        else:
            yield Line(number, size, message, now)
        size = 0


class Arriving:
    r"""The lines of a stream, as blocks of them arrive: nobody waits for one while another is at hand.

    >>> from io import BytesIO
    >>> lines = Arriving(BytesIO(b"one\ntwo"))
    >>> [(line, lines.drained) for line in lines]
    [(b'one\n', True), (b'two', True)]
    """

    def __init__(self, file: IO[bytes]) -> None:
        # Whatever is there, at most so much; a plain `read` would wait for the whole of it.
        self._read: Callable[[int], bytes] = getattr(file, "read1", None) or file.read
        self._at_hand: deque[bytes] = deque()

    @property
    def drained(self) -> bool:
        """Whether the next line that is not blank has still to arrive."""
        return not any(line.strip() for line in self._at_hand)

    def __iter__(self) -> Iterator[bytes]:
        begun: list[bytes] = []
        while block := self._read(_BLOCK):
            *whole, rest = block.split(b"\n")
            if whole:
                whole[0] = b"".join([*begun, whole[0]])
                begun.clear()
                self._at_hand.extend(whole)
            if rest:
                begun.append(rest)
            while self._at_hand:
                yield self._at_hand.popleft() + b"\n"
        if begun:
            yield b"".join(begun)


def _message(text: bytes) -> tuple[Message, datetime | None]:
    fields = _object(text)
    for name in _REQUIRED:
        if name not in fields:
            raise MessageError(f"{name} is missing")
    for name in fields:
        if name not in _ALLOWED:
            raise MessageError(
                f"{name!a} is not a field of a message; it has source, message_id, scope, data, "
                "and may have context and now"
            )
    now = None if fields.get("now") is None else _instant(fields["now"])
    message = Message(
        fields["source"],
        fields["message_id"],
        fields["scope"],
        fields["data"],
        context={} if fields.get("context") is None else fields["context"],
    )
    return message, now


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise MessageError(f"the line is not UTF-8 (byte {error.start + 1})") from None
    except json.JSONDecodeError as error:
        raise MessageError(f"the line is not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise MessageError("the line is nested too deeply") from None
    except ValueError:
        raise MessageError("the line holds a number that is too long") from None
    if not isinstance(value, dict):
        raise MessageError(f"the line must hold a JSON object, not {_kind(value)}")
    return value


def _instant(value: object) -> datetime:
    if not isinstance(value, str):
        raise MessageError(f"now must be text such as '2026-01-31T12:00:00Z', not {_kind(value)}")
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        raise MessageError(
            f"now must be an instant such as '2026-01-31T12:00:00Z', not {value[:80]!a}"
        ) from None
    return as_utc(instant, "now", MessageError)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean"}
    return names.get(type(value), "a number")
