"""A statement as libpq takes it, and its parameters as bytes; read from its text once a process."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from struct import Struct
from typing import Any

import psycopg
from attrs import field, frozen
from psycopg.pq import Format

Row = tuple[Any, ...]

# Of instants it is the same under every DateStyle and time zone of the session.
_BINARY, _TEXT = Format.BINARY, Format.TEXT

_INSTANT = "::TIMESTAMP WITH TIME ZONE"
_TEXTS = frozenset({"::VARCHAR", "::TEXT", "::JSON"})
# An array of them is a text like any other.
_PLACEHOLDER = re.compile(rf"%\((\w+)\)s((?:{'|'.join([_INSTANT, *sorted(_TEXTS)])})(?!\[))?|%%")
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_eight_bytes = Struct(">q").pack


@frozen(eq=False)
class Sendable:
    """One statement as libpq takes it: numbered parameters, and the names that they had.

    The texts among them come first, then texts that are often null, then instants, then what may be
    anything. `query` and `types` are what psycopg's registry of prepared statements knows it by. The types
    of the parameters are inferred from the text.
    """

    query: bytes
    texts: tuple[str, ...]
    nullable: tuple[str, ...]
    instants: tuple[str, ...]
    others: tuple[str, ...]
    types: tuple[int, ...] = ()
    # What makes a row of its values.
    make_row: Callable[[Sequence[Any]], Row] = tuple
    # Whether its text never comes again, so that to prepare it were a waste.
    is_once: bool = False
    formats: tuple[Format, ...] = field(init=False)
    # As the registry spells it.
    key: tuple[bytes, tuple[int, ...]] = field(init=False)
    _pick: Callable[[Mapping[str, Any]], tuple[Any, ...]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        derive = object.__setattr__
        derive(self, "key", (self.query, self.types))
        before = (_TEXT,) * len(self.texts + self.nullable)
        derive(self, "formats", before + (_BINARY,) * len(self.instants) + (_TEXT,) * len(self.others))
        # Of a single name it would answer no tuple.
        derive(self, "_pick", itemgetter(*self.texts) if len(self.texts) > 1 else self._picked)

    def _picked(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple([values[name] for name in self.texts])

    @classmethod
    def of(
        cls, pyformat: str, nullable: Collection[str] = (), make_row: Callable[[Sequence[Any]], Row] = tuple
    ) -> Sendable:
        """Of a text with `%(name)s::TYPE` in it, as SQLAlchemy writes it for psycopg.

        What is `nullable` is quicker to send as null, and slower as anything else. `make_row` is given
        the values of each row.

        >>> Sendable.of("SELECT %(a)s::TEXT, %(b)s::TEXT, %(a)s::TEXT, 7 %% 2").query
        b'SELECT $1::TEXT, $2::TEXT, $1::TEXT, 7 % 2'
        >>> Sendable.of("SELECT %(a)s::TIMESTAMP WITH TIME ZONE[]").instants
        ()
        """
        casts: dict[str, str] = {}
        for name, cast in _PLACEHOLDER.findall(pyformat):
            if name:
                casts[name] = cast or casts.get(name, "")
        texts = [name for name, cast in casts.items() if cast in _TEXTS]
        sure = tuple(name for name in texts if name not in nullable)
        rare = tuple(name for name in texts if name in nullable)
        instants = tuple(name for name, cast in casts.items() if cast == _INSTANT)
        others = tuple(name for name in casts if name not in texts and name not in instants)
        numbers = {name: at for at, name in enumerate([*sure, *rare, *instants, *others], 1)}

        def numbered(found: re.Match[str]) -> str:
            name, cast = found.groups()
            return "%" if name is None else f"${numbers[name]}{cast or ''}"

        query = _PLACEHOLDER.sub(numbered, pyformat).encode()
        return cls(query, sure, rare, instants, others, make_row=make_row)

    @classmethod
    def command(cls, text: bytes, *, is_once: bool = True) -> Sendable:
        """Of a text without parameters and rows."""
        return cls(text, (), (), (), (), is_once=is_once)

    def encoded(self, values: Mapping[str, Any]) -> list[bytes | None] | None:
        """The parameters, each in its format; None where only the cursor knows how to send one."""
        parameters: list[bytes | None] = []
        try:
            if self.texts:
                picked = self._pick(values)
                try:
                    # All at once. No text that is sent holds NUL, so that it parts them again.
                    parameters.extend("\x00".join(picked).encode().split(b"\x00"))
                except TypeError:
                    parameters = [_text(value) for value in picked]
                if len(parameters) != len(picked):
                    raise _nul()
            for name in self.nullable:
                value = values[name]
                parameters.append(None if value is None else _text(value))
            for name in self.instants:
                value = values[name]
                parameters.append(None if value is None else _instant(value))
            for name in self.others:
                value = values[name]
                parameters.append(b"%d" % value if type(value) is int else _text(value))
        except _Other:
            return None
        return parameters


class _Other(Exception):
    """A value of a type that psycopg's adapters are for."""


def _text(value: Any) -> bytes | None:
    if type(value) is not str:
        if value is None:
            return None
        raise _Other
    if "\x00" in value:
        raise _nul()
    return value.encode()


def _instant(value: Any) -> bytes:
    if type(value) is not datetime:
        raise _Other
    since = value - _EPOCH
    return _eight_bytes((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def _nul() -> psycopg.DataError:
    # libpq would send what stands before it.
    return psycopg.DataError("PostgreSQL text cannot hold NUL")
