"""JSON as the library keeps it: checked once at the edge, one canonical spelling for digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Union

# Recursive, read-only in spirit: `Mapping` and `Sequence` let callers hand over what they have.
Json = Union[None, bool, int, float, str, "Sequence[Json]", "Mapping[str, Json]"]

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
        return _plain(value)
    except RecursionError:
        raise NotJson("is nested too deeply, or contains itself") from None


def _plain(value: object) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # A subclass (a text enum) is reduced to the text it is.
        return _text(value if type(value) is str else str.__str__(value))
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


def _plain_mapping(value: Mapping[object, object]) -> dict[str, Json]:
    result: dict[str, Json] = {}
    name: object = None
    try:
        for name, item in value.items():
            if not isinstance(name, str):
                raise NotJson("is under a key that is not text")
            result[_text(name if type(name) is str else str.__str__(name))] = _plain(item)
    except NotJson as fault:
        # The place is put together only where there is something to report.
        fault.steps.append(f"[{ascii(name)[:_NAME_SHOWN]}]")
        raise
    return result


def _plain_list(value: list[object]) -> list[Json]:
    result: list[Json] = []
    try:
        for item in value:
            result.append(_plain(item))  # noqa: PERF401 - its length is the place of a fault
    except NotJson as fault:
        fault.steps.append(f"[{len(result)}]")
        raise
    return result


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


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_CANONICAL = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def encode(value: Json) -> str:
    """The compact text that is stored. Keys keep their order."""
    return _ENCODER.encode(value)


def decode(text: str) -> Json:
    """The value of a stored text."""
    value: Json = json.loads(text)
    return value


def canonical(value: Json) -> str:
    """One text for equal values: sorted keys, no spaces."""
    return _CANONICAL.encode(value)


def digest(value: Json) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
