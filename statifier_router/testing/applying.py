"""What of a contract a subclass cannot be asked: left out by name, and named in the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def needs(*scenarios: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a test of a contract with the scenarios without which it says nothing."""

    def mark(test: Callable[..., Any]) -> Callable[..., Any]:
        test.needs = scenarios  # type: ignore[attr-defined]  # a mark on a function of our own
        return test

    return mark


def fit(cls: Any, contract: type, reasons: Mapping[str, str]) -> None:
    """Leave out of `cls` the tests of `contract` that need what `reasons` says cannot be had.

    Each leaves a test in its place that is named after what is missing.
    """
    for name, test in list(vars(contract).items()):
        needed = getattr(test, "needs", ())
        missing = [scenario for scenario in needed if scenario in reasons]
        if needed:
            setattr(cls, name, None if missing else test)
        for scenario in needed:
            # The report names what does not apply: nothing is left out in silence.
            stated = _does_not_apply(scenario, reasons) if scenario in missing else None
            setattr(cls, f"{name[:13]}_{scenario}_does_not_apply", stated)


def _does_not_apply(scenario: str, reasons: Mapping[str, str]) -> Callable[[Any], None]:
    def test(self: object) -> None:
        assert reasons[scenario].strip()

    test.__doc__ = f"{scenario!r} cannot be had; `not_applicable` says why."
    return test
