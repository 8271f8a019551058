"""`assert_outcomes`: what the doors answered, against what a test expects of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from statifier_router.errors import ConfigError, DeliveryError
from statifier_router.outcomes import Outcome

Expected = Outcome | type[Outcome] | type[Exception] | str | tuple[str, str]
_OUTCOMES: tuple[type[Any], ...] = get_args(Outcome)
_WORDS = frozenset(
    {"delivered", "created_and_delivered", "duplicate", "deferred", "key_refused", "no_match"}
    | {f"dropped: {why}" for why in ("no_execution", "finished", "unmatched_event", "deferral_full")}
)


def assert_outcomes(outcomes: object, *expected: Expected) -> None:
    """Assert that a door's outcomes are the expected ones, one by one and in their order.

    `outcomes` is what a door answered: one outcome, or a list of them (or of `DeliveryError`). Each
    expectation is the ledger's spelling ("delivered", "dropped: finished"), a pair of binding id and
    spelling, a class, or a whole outcome. Raises `AssertionError` with a table of both; `ConfigError`
    for an expectation that no outcome can meet.

    >>> from statifier_router import CreatedAndDelivered, NoMatch
    >>> answered = [CreatedAndDelivered("scans", "ex_1"), NoMatch("alerts")]
    >>> assert_outcomes(answered, "created_and_delivered", ("alerts", "no_match"))
    >>> assert_outcomes(answered, CreatedAndDelivered, "delivered")
    Traceback (most recent call last):
    AssertionError: the outcomes are not the expected ones:
        1. scans: created_and_delivered (ex_1)
      * 2. alerts: no_match
           expected: delivered
    """
    found = _listed(outcomes)
    for each in expected:
        _check(each)
    lines: list[str] = []
    wrong = len(found) != len(expected)
    for index in range(max(len(found), len(expected))):
        have = found[index] if index < len(found) else None
        want = expected[index] if index < len(expected) else None
        met = have is not None and want is not None and _meets(have, want)
        wrong = wrong or not met
        shown = "nothing" if have is None else _shown(have)
        lines.append(f"  {' ' if met else '*'} {index + 1}. {shown}")
        if not met:
            lines.append(f"       expected: {'nothing' if want is None else _shown(want)}")
    if wrong:
        raise AssertionError("\n".join(["the outcomes are not the expected ones:", *lines]))


def _listed(outcomes: object) -> list[object]:
    if isinstance(outcomes, (*_OUTCOMES, Exception)):
        return [outcomes]
    if isinstance(outcomes, Iterable) and not isinstance(outcomes, (str, Mapping)):
        return list(outcomes)
    raise ConfigError(f"outcomes must be what a door answered, not {type(outcomes).__name__}")


def _check(expected: object) -> None:
    word = expected[1] if isinstance(expected, tuple) and len(expected) == 2 else expected
    if isinstance(word, str):
        if word not in _WORDS:
            raise ConfigError(f"{word!r} is no outcome; outcomes are {', '.join(sorted(_WORDS))}")
    elif not isinstance(word, (*_OUTCOMES, type)):
        raise ConfigError(
            f"expected {expected!r} is none of: an outcome, its class, its spelling, (binding id, spelling)"
        )


def _meets(have: object, want: object) -> bool:
    if isinstance(want, type):
        return isinstance(have, want)
    if isinstance(want, str):
        return getattr(have, "recorded", None) == want
    if isinstance(want, tuple):
        return (getattr(have, "binding_id", None), getattr(have, "recorded", None)) == want
    return have == want


def _shown(value: object) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple):
        return f"{value[0]}: {value[1]}"
    if isinstance(value, DeliveryError):
        return f"{value.binding_id}: {type(value).__name__}: {value}"
    if not isinstance(value, _OUTCOMES):
        return str(value)
    facts = [getattr(value, name, None) for name in ("execution_id", "stage", "detail")]
    if getattr(value, "content_differs", False):
        facts.append("content differs")
    told = ", ".join(fact for fact in facts if fact)
    return f"{value.binding_id}: {value.recorded}" + (f" ({told})" if told else "")
