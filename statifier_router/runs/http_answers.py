"""What the answer of an HTTP target means: a success and its address, or a fault."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Collection, Mapping
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from attrs import field, frozen

from statifier_router.errors import ConfigError
from statifier_router.paths import ABSENT, Names, parse, read
from statifier_router.refusals import one_line
from statifier_router.runs.faults import Gone, RecordFault, Rejected, Throttled, TimedOut, Unavailable
from statifier_router.runs.scrubbing import HIDDEN, scrubbed
from statifier_router.text import NAME_LIMIT, checked

Verb = Literal["create", "update", "delete", "ping"]
# None: a success.
Statuses = Mapping[int, type[RecordFault] | None]

# Of an answer's body, in the text of a fault.
_QUOTED: Final = 300
_GONE = frozenset({404, 410})
_TIMEOUTS = frozenset({408, 425})
# Control characters have no business in a log or on a terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@frozen(kw_only=True)
class HttpAnswer:
    """A whole answer: status, headers by name in lower case, and the body; None where it was too long."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None = field(repr=False)
    # What the request carried that no text may show.
    secrets: Collection[str] = field(default=(), repr=False)


def _path(path: object) -> Names:
    return parse(path, "path", ConfigError)


@frozen
class InJson:
    """The address stands in the answer's body, under this path (dotted, or a tuple of names).

    >>> InJson("data.id").of(HttpAnswer(status=201, headers={}, body=b'{"data": {"id": 7}}'))
    7
    """

    path: Names = field(converter=_path)

    def of(self, answer: HttpAnswer) -> object:
        """What stands there, whatever it is; None for nothing."""
        if answer.body is None:
            return None
        try:
            found = read(json.loads(answer.body), self.path)
        except (ValueError, RecursionError):
            return None
        return None if found is ABSENT else found


@frozen
class InHeader:
    """The address stands in a header; in `Location` it is the last part of the URL's path.

    >>> InHeader("Location").of(HttpAnswer(status=201, headers={"location": "/parcels/R7"}, body=b""))
    'R7'
    """

    name: str

    def __attrs_post_init__(self) -> None:
        checked(self.name, "name", ConfigError, limit=NAME_LIMIT)

    def of(self, answer: HttpAnswer) -> object:
        """What stands there; None for nothing."""
        name = self.name.lower()
        value = answer.headers.get(name)
        if value is None or name not in ("location", "content-location"):
            return value
        try:
            way = urlsplit(value.strip()).path
        except ValueError:
            return None
        return unquote(way.rstrip("/").rpartition("/")[2])


def fault_of(answer: HttpAnswer, verb: Verb, asked: str, *, statuses: Statuses) -> RecordFault | None:
    """The fault that an answer is; None for a success.

    `asked` says what was asked of whom. `statuses` goes before the rules that hold for every target:
    2xx is a success; 404 and 410 are `Gone` (but a create's own refusal); 408 and 425 are `TimedOut`;
    429, and 503 with a Retry-After, are `Throttled`; other 5xx are `Unavailable`; all else is
    `Rejected`.
    """
    status = answer.status
    kind = statuses[status] if status in statuses else _kind(answer, verb)
    if kind is None:
        return None
    message = f"{asked}: {status}"
    if 300 <= status < 400:
        message += " (a redirect that is not followed)"
    said = quoted(answer.body, answer.secrets)
    if said:
        message += f", {said}"
    return _made(kind, message, answer)


def _kind(answer: HttpAnswer, verb: Verb) -> type[RecordFault] | None:
    status = answer.status
    if 200 <= status < 300:
        return None
    if status in _GONE:
        return Rejected if verb == "create" else Gone
    if status in _TIMEOUTS:
        return TimedOut
    if status == 429 or (status == 503 and "retry-after" in answer.headers):
        return Throttled
    return Rejected if 300 <= status < 500 else Unavailable


def _made(kind: type[RecordFault], message: str, answer: HttpAnswer) -> RecordFault:
    if issubclass(kind, Throttled):
        return kind(answer.headers.get("retry-after"), message)
    if issubclass(kind, TimedOut):
        # "Too early" was not looked at; whoever answers "request timeout" may have begun.
        return kind(message, in_doubt=answer.status != 425)
    if issubclass(kind, Unavailable):
        # By its meaning 503 was not carried out. Of the others nobody knows.
        return kind(message, in_doubt=answer.status != 503)
    return kind(message)


def quoted(body: bytes | None, secrets: Collection[str]) -> str:
    """The beginning of a body as it may be shown: one line, without what the caller sent as credentials."""
    if not body:
        return ""
    text = body.decode("utf-8", "replace")
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return one_line(scrubbed(_CONTROLS.sub(" ", text)), _QUOTED)


def decoded(body: bytes, encoding: str, limit: int) -> bytes | None:
    """The body as it was before it was compressed; None where that is too long, or cannot be told."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        return None
    # 32 + 15: the header says which of the two it is.
    inflater = zlib.decompressobj(47)
    try:
        plain = inflater.decompress(body, limit + 1)
    except zlib.error:
        return None
    return plain if len(plain) <= limit and inflater.eof else None
