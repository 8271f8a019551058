"""JSON as the library keeps it: checked once at the edge, one canonical spelling for digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, Union

# Recursive, read-only in spirit: `Mapping` and `Sequence` let callers hand over what they have.
Json = Union[None, bool, int, float, str, "Sequence[Json]", "Mapping[str, Json]"]

# Far below what Python refuses to spell.
_SMALL = 1 << 62

# Of a name that stands in the place of a fault: a message may carry names of any length.
_NAME_SHOWN = 80


class NotJson(ValueError):
    """A value that JSON cannot carry unchanged; `path` says where it stands, `problem` what it is."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.steps: list[str] = []
        super().__init__(problem)

    @property
    def path(self) -> str:
        """Where the value stands, outermost name first; empty for the value itself."""
        return "".join(reversed(self.steps))

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.steps else self.problem


def plain(value: object) -> Json:
    """A copy of `value` made of dict, list, str, int, float, bool and None only.

    Raises `NotJson` for anything JSON would alter or lose: a set, a tuple, a datetime, NaN, a key
    that is not text, a lone surrogate.
    """
    try:
        # Most of what is asked about is an object.
        return _plain_mapping(value) if type(value) is dict else _plain(value)
    except RecursionError:
        raise NotJson("is nested too deeply, or contains itself") from None


def _plain(value: object) -> Json:
    # The types themselves first: what comes out of a parser is of nothing else.
    kind = type(value)
    if kind is str:
        assert isinstance(value, str)
        return value if value.isascii() else _text(value)
    if kind is dict:
        assert isinstance(value, dict)
        return _plain_mapping(value)
    if value is None or kind is bool:
        return value  # type: ignore[return-value]  # kind tells more than the checker sees
    return _plain_of_class(value)


def _plain_of_class(value: object) -> Json:
    if isinstance(value, str):
        # A subclass (a text enum) is reduced to the text it is.
        return _text(str.__str__(value))
    if isinstance(value, int):
        return _integer(value if type(value) is int else int(value))
    if isinstance(value, float):
        if not isfinite(value):
            raise NotJson(f"{value} is not a number that JSON can carry")
        return value if type(value) is float else float(value)
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, list):
        return _plain_list(value)
    raise NotJson(f"{type(value).__name__} is not JSON")


def _plain_mapping(value: Mapping[Any, Any]) -> dict[str, Json]:
    result: dict[str, Json] = {}
    name: object = None
    try:
        for name, item in value.items():
            own = name if type(name) is str and name.isascii() else _name(name)
            kind = type(item)
            if kind is str:
                result[own] = item if item.isascii() else _text(item)
            elif kind is int and -_SMALL < item < _SMALL:
                result[own] = item
            elif kind is dict:
                result[own] = _plain_mapping(item)
            else:
                result[own] = _plain(item)
    except NotJson as fault:
        # The place is put together only where there is something to report.
        fault.steps.append(f"[{ascii(name)[:_NAME_SHOWN]}]")
        raise
    return result


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise NotJson("is under a key that is not text")
    return _text(name if type(name) is str else str.__str__(name))


def _plain_list(value: list[object]) -> list[Json]:
    result: list[Json] = []
    try:
        for item in value:
            result.append(_plain(item))  # noqa: PERF401 - its length is the place of a fault
    except NotJson as fault:
        fault.steps.append(f"[{len(result)}]")
        raise
    return result


def copied(value: Json) -> Json:
    """A copy of what `plain` answered, which is not checked again."""
    if type(value) is dict:
        made = value.copy()
        for name, item in made.items():
            if type(item) is dict or type(item) is list:
                # To set what is there already leaves the order, and whoever walks it, alone.
                made[name] = copied(item)
        return made
    if type(value) is list:
        return [copied(item) if type(item) is dict or type(item) is list else item for item in value]
    return value


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotJson("holds a lone surrogate, which is not Unicode text") from None
    return value


def _integer(value: int) -> int:
    # Python refuses to spell or read much longer ones (sys.set_int_max_str_digits, 4,300 digits).
    if value.bit_length() > 14_000:
        raise NotJson("is an integer of more than 4,200 digits")
    return value


def _encoding(*, sort_keys: bool) -> Callable[[Json], str]:
    """The encoder of the standard library, which makes its working part anew for each value, made once."""
    encoder = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys
    )
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    # No memory of what it is in: `plain` made sure that nothing contains itself.
    skips, allows_nan = False, False
    chunks = make(
        None, encoder.default, json.encoder.encode_basestring, None, ":", ",", sort_keys, skips, allows_nan
    )

    def encode_whole(value: Json) -> str:
        return "".join(chunks(value, 0))

    return encode_whole


# One text, as it stands in stored JSON.
quoted: Callable[[str], str] = json.encoder.encode_basestring
# The compact text that is stored. Keys keep their order.
encode = _encoding(sort_keys=False)
# One text for equal values: sorted keys, no spaces.
canonical = _encoding(sort_keys=True)
_scan: Callable[[str, int], tuple[Json, int]] = vars(json.JSONDecoder())["scan_once"]


@lru_cache(maxsize=256)
def encode_names(names: tuple[str, ...]) -> str:
    """The stored text of a few names that come up again and again."""
    return encode(names)


def decode(text: str) -> Json:
    """The value of a stored text."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        value, end = None, -1
    if end != len(text):
        # Not as `encode` wrote it: with spaces around it, or faulty.
        value = json.loads(text)
    return value


def digest_of_parts(*, data: Json, event: str, key: str) -> str:
    """The digest of an object of these three, in this order, which is the canonical one."""
    text = f'{{"data":{canonical(data)},"event":{quoted(event)},"key":{quoted(key)}}}'
    return hashlib.sha256(text.encode()).hexdigest()


def digest(value: Json) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
