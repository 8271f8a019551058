"""The charts that the contract asks an adapter for, each with the behaviour it must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import ClassVar, Final

from statifier_router.errors import ConfigError
from statifier_router.jsontext import Json
from statifier_router.steps import Chart

PROBE: Final = "probe"
"""The `target` of every send in the scenarios: a name outside the chart."""

REGIONS: Final = ("zulu", "alpha", "mike")
"""The regions of `parallel`, in document order."""

LATER: Final = timedelta(days=2)
"""The delay of the send in `delayed`."""

Script = tuple[tuple[str, Json], ...]

# What each scenario is driven with where its whole course is compared.
SCRIPTS: Final[Mapping[str, Script]] = {
    "counter": (("add", {"by": 2}), ("nobody_reacts", {}), ("add", {"by": 40}), ("add", {"by": -3})),
    "counter_edited": (("add", {"by": 2}),),
    "guarded": (("open", {"amount": 9}), ("poke", {}), ("open", {"amount": 10}), ("poke", {}), ("open", {})),
    "finishing": (("wait", {}), ("finish", {})),
    "finishing_with_pending": (("finish", {}),),
    "parallel": (("nobody_reacts", {}), ("advance", {}), ("advance", {})),
    "looping": (("rest", {}),),
    "failing": (("fine", {}), ("guard_fails", {}), ("action_fails", {}), ("fine", {})),
    "keeping": (("keep", {"what": {"a": [1, 2.5, None, True, "ü"], "b": {}}}), ("keep", {"what": []})),
    "delayed": (("later", {}), ("forget", {})),
}

# Keys that one library or another takes for arguments of its own, and names that the scenarios use.
HOSTILE: Final[Mapping[str, Json]] = {
    "delay": "5s",
    "event": "finish",
    "name": "finish",
    "model": None,
    "state": "open",
    "self": {"state": "open"},
    "items": [["total", 1000]],
    "send_id": "r-1",
    "total": 1000,
    "data": {"by": 9, "amount": 99},
    "execution": {"id": "another"},
    "machine": False,
    "source": "probe",
    "target": "probe",
    "args": [1],
    "kwargs": {"by": 9},
    "__class__": "object",
}

# Data in which the field that `guarded` asks for is absent, null or of another kind.
ABSENT: Final[tuple[Json, ...]] = ({}, {"amount": None}, {"other": 10}, {"amount": {}}, [], "10", 10)

_ALWAYS = ("counter", "counter_edited", "guarded", "finishing", "failing")
_NAMES = (*SCRIPTS, "refused_definitions")


class Scenarios:
    """What a subclass of the contract gives: one chart a scenario, newly made at every call.

    A scenario that an adapter's library cannot express is named in `not_applicable` with the
    reason; its points then read `..._does_not_apply` in the report. `counter`, `counter_edited`,
    `guarded`, `finishing` and `failing` have to exist.

    The subclass stands at the top level of an importable file and is made without arguments:
    other processes make it too.
    """

    not_applicable: ClassVar[Mapping[str, str]] = {}

    def counter(self) -> Chart:
        """`add` with `{"by": n}` adds n to a total that begins at 0, and sends `counted`.

        The send's data is `{"total": total}`. Nothing reacts to any other event.
        """
        raise _missing("counter")

    def counter_edited(self) -> Chart:
        """`counter` after an edit: anything that makes it another revision."""
        raise _missing("counter_edited")

    def guarded(self) -> Chart:
        """Waiting: `open` with `{"amount": n}` opens where n >= 10, by a guard. Open: `poke` sends `poked`.

        Entering the open state sends `entered`; `poke` neither leaves nor enters a state. There is
        no other way on: `poke` while waiting and `open` while open are events that nothing reacts to.
        """
        raise _missing("guarded")

    def finishing(self) -> Chart:
        """`finish` ends in a top-level final state: the step completes. `wait` moves and does not end."""
        raise _missing("finishing")

    def finishing_with_pending(self) -> Chart:
        """`finish` ends in a final state while internal events that it raised itself are still queued."""
        raise _missing("finishing_with_pending")

    def parallel(self) -> Chart:
        """Three parallel regions `zulu`, `alpha`, `mike`, in this order, each of two states.

        `advance` moves each region once, from its first state to its second, whose entry sends
        `entered` with `{"region": name}`. The name of every leaf state holds its region's name.
        """
        raise _missing("parallel")

    def looping(self) -> Chart:
        """`spin` starts an endless chain of eventless transitions or internal events. `rest` just moves."""
        raise _missing("looping")

    def failing(self) -> Chart:
        """`guard_fails` has a guard that raises, `action_fails` an action that raises; `fine` moves."""
        raise _missing("failing")

    def keeping(self) -> Chart:
        """`keep` with `{"what": value}` keeps the value in the chart's data and moves.

        `keep_tuple` tries to keep a tuple, `keep_infinity` an infinite number, `keep_numeric_key` a
        mapping whose key is a number.
        """
        raise _missing("keeping")

    def delayed(self) -> Chart:
        """`later` sends `reminder` after two days under the send id `r-1`; `forget` cancels `r-1`.

        The send's target is `probe`, as in every scenario.
        """
        raise _missing("delayed")

    def refused_definitions(self) -> Mapping[str, Callable[[], object]]:
        """By name, loaders of definitions that the adapter must refuse: `invoke`, `targetexpr`, or its like.

        Each raises an error of `statifier_router` whose message holds the name.
        """
        raise _missing("refused_definitions")

    # --- how the scenarios are asked for ------------------------------------------------------------

    @classmethod
    def applies(cls, scenario: str) -> bool:
        """Whether this adapter has the scenario."""
        return scenario not in cls.not_applicable

    def chart_of(self, scenario: str) -> Chart:
        """The scenario's chart, newly made."""
        make: Callable[[], Chart] = getattr(self, scenario)
        return make()

    @classmethod
    def scripted_scenarios(cls) -> list[str]:
        """The scenarios of this adapter that have a script, in order."""
        return [name for name in SCRIPTS if cls.applies(name)]


def _missing(scenario: str) -> NotImplementedError:
    return NotImplementedError(
        f"the contract needs the scenario {scenario!r}: define it, "
        "or say in not_applicable why the library cannot express it"
    )


def check_not_applicable(cls: type[Scenarios]) -> None:
    """Raise `ConfigError` where `not_applicable` names no scenario, a needed one, or gives no reason."""
    for scenario, reason in cls.not_applicable.items():
        if scenario not in _NAMES:
            raise ConfigError(f"not_applicable names {scenario!r}; scenarios are {', '.join(_NAMES)}")
        if scenario in _ALWAYS:
            raise ConfigError(f"not_applicable names {scenario!r}, which every adapter can express")
        if not str(reason).strip():
            raise ConfigError(f"not_applicable[{scenario!r}] must say why in words")
        if getattr(cls, scenario) is not getattr(Scenarios, scenario):
            raise ConfigError(f"not_applicable names {scenario!r}, but {cls.__name__} defines it")
