"""A small interpreter that keeps the contract, and fourteen of it that each break one point."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from attrs import define, field, frozen

from statifier_router import Cancel, ConfigError, Event, Send, Step
from statifier_router.jsontext import Json, digest, plain
from statifier_router.steps import Effect
from statifier_router.testing import InterpreterContract

REGIONS = ("zulu", "alpha", "mike")
_counter = itertools.count()


@define
class Run:
    """One step under way."""

    at: list[str]
    data: dict[str, Any]
    effects: list[Effect] = field(factory=list)
    waiting: list[str] = field(factory=list)
    named: bool = False
    moved: bool = False


Guard = Callable[[Any], bool]
Action = Callable[[Run, Any], None]


@frozen
class Rule:
    """`event` leads from `source` to `target` (None: no state is left) where `guard` lets it pass."""

    event: str
    source: str
    target: str | None
    action: Action | None = None
    guard: Guard | None = None


@define(eq=False)
class Chart:
    """A chart of rules over one or more regions. `flaw` is the point that it breaks, 0 for none."""

    name: str
    start: list[str]
    rules: list[Rule]
    entries: Mapping[str, Action] = field(factory=dict)
    version: str = "1"
    flaw: int = 0
    interpreter: str = "flawed"
    interpreter_version: str = "1"
    _shared: Run | None = None

    @property
    def content_hash(self) -> str:
        """The hash of the definition; under flaw 12 of this very object."""
        rules: list[Json] = [[rule.event, rule.source, rule.target] for rule in self.rules]
        named: Json = {"name": self.name, "version": self.version, "rules": rules}
        return digest([id(self)] if self.flaw == 12 else named)

    def create(self, *, data: Json, now: datetime) -> Step:
        """The start."""
        return Step(self._position(Run(list(self.start), {"total": 0})), active=self.start)

    def step(self, position: Json, event: Event, *, event_id: str, now: datetime) -> Step:
        """One event, and what it leads to."""
        own: Any = position if self.flaw == 1 else plain(position)
        run = Run(own["at"], own["data"]) if self.flaw == 1 else Run(list(own["at"]), own["data"])
        if self.flaw != 11 and self._finished(run):
            return Step(position, outcome="ignored")
        if self.flaw == 9:
            for state in run.at:
                self._enter(run, state, {})
        self._shared = run
        self._handle(run if self.flaw != 7 else self._late(), event)
        if self.flaw == 7:
            run = self._late()
        for microstep in itertools.count():
            if not run.waiting or (self._finished(run) and self.flaw != 10):
                break
            if microstep == 1000:
                return Step(position, outcome="moved" if self.flaw == 6 else "failed")
            self._handle(run, Event(run.waiting.pop(0)))
        if not run.moved:
            return Step(position, outcome="refused" if run.named else "ignored", effects=run.effects)
        status = "completed" if self._finished(run) else "active"
        return Step(
            self._position(run),
            active=run.at,
            status="completed" if status == "completed" else "active",
            effects=run.effects,
        )

    def _late(self) -> Run:
        for _ in range(200):
            pass
        assert self._shared is not None
        return self._shared

    def _position(self, run: Run) -> Any:
        at: Any = tuple(run.at) if self.flaw == 3 else run.at
        stamp = {"stamp": next(_counter)} if self.flaw == 2 else {}
        return {"at": at, "data": run.data if self.flaw in (1, 3) else plain(run.data), **stamp}

    def _finished(self, run: Run) -> bool:
        return all(state == "done" for state in run.at)

    def _handle(self, run: Run, event: Event) -> None:
        data: Any = event.data
        if self.flaw == 4:
            self._fire(run, event.name, **data)
            return
        self._take(run, event.name, data)

    def _fire(self, run: Run, name: str, **data: Any) -> None:
        self._take(run, name, data)

    def _take(self, run: Run, name: str, data: Any) -> None:
        for index, state in enumerate(run.at):
            for rule in self.rules:
                if rule.event != name or rule.source not in (state, "*"):
                    continue
                run.named = True
                if not self._passes(rule, data):
                    continue
                run.moved = True
                self._act(run, rule.action, data)
                if rule.target is not None:
                    run.at[index] = rule.target
                    self._enter(run, rule.target, data)
                break

    def _passes(self, rule: Rule, data: Any) -> bool:
        if rule.guard is None:
            return True
        try:
            return rule.guard(data)
        except Exception:
            if self.flaw == 5:
                return True
            if self.flaw == 13:
                return False
            raise

    def _act(self, run: Run, action: Action | None, data: Any) -> None:
        if action is None:
            return
        try:
            action(run, data)
        except Exception:
            if self.flaw != 13:
                raise
        delayed = any(isinstance(effect, Send) and effect.delay for effect in run.effects)
        if delayed and self.flaw == 8:
            threading.Thread(target=print, daemon=True).start()

    def _enter(self, run: Run, state: str, data: Any) -> None:
        self._act(run, self.entries.get(state), data)


def _send(
    event: str, data: Json = None, *, send_id: str | None = None, delay: timedelta | None = None
) -> Action:
    def action(run: Run, _: Any) -> None:
        run.effects.append(Send(event, data, target="probe", send_id=send_id, delay=delay))

    return action


def _count(run: Run, data: Any) -> None:
    run.data["total"] += data["by"]
    run.effects.append(Send("counted", {"total": run.data["total"]}, target="probe"))


def _raise(*events: str) -> Action:
    return lambda run, _: run.waiting.extend(events)


def _keep(what: Callable[[Any], Any]) -> Action:
    def action(run: Run, data: Any) -> None:
        run.data["kept"] = what(data)

    return action


def _boom(*_: Any) -> bool:
    raise LookupError("boom")


def _boom_in_action(*_: Any) -> None:
    _boom()


def _cancel(run: Run, _: Any) -> None:
    run.effects.append(Cancel("r-1"))


class Flawed(InterpreterContract):
    """The contract over `Chart`; a subclass sets `flaw`."""

    flaw: ClassVar[int] = 0

    def chart(
        self, name: str, *rules: Rule, entries: Mapping[str, Action] | None = None, **options: Any
    ) -> Chart:
        """A chart of one region that begins at `a`, unless told otherwise."""
        start = options.pop("start", ["a"])
        return Chart(name, start, list(rules), entries or {}, flaw=self.flaw, **options)

    def counter(self) -> Chart:
        """As the contract says; so all below."""
        return self.chart("counter", Rule("add", "a", None, _count))

    def counter_edited(self) -> Chart:
        return self.chart("counter", Rule("add", "a", None, _count), version="2")

    def guarded(self) -> Chart:
        return self.chart(
            "guarded",
            Rule("open", "a", "b", guard=lambda data: bool(data["amount"] >= 10)),
            Rule("poke", "b", None, _send("poked")),
            entries={"b": _send("entered")},
        )

    def finishing(self) -> Chart:
        return self.chart("finishing", Rule("wait", "*", "a"), Rule("finish", "a", "done"))

    def finishing_with_pending(self) -> Chart:
        rules = Rule("wait", "*", "a"), Rule("finish", "a", "done", _raise("wait"))
        return self.chart("finishing_with_pending", *rules)

    def parallel(self) -> Chart:
        return self.chart(
            "parallel",
            *(Rule("advance", f"{region}1", f"{region}2") for region in REGIONS),
            entries={f"{region}2": _send("entered", {"region": region}) for region in REGIONS},
            start=[f"{region}1" for region in REGIONS],
        )

    def looping(self) -> Chart:
        return self.chart("looping", Rule("spin", "*", None, _raise("spin")), Rule("rest", "a", "b"))

    def failing(self) -> Chart:
        return self.chart(
            "failing",
            Rule("guard_fails", "a", "b", guard=_boom),
            Rule("action_fails", "a", "b", _boom_in_action),
            Rule("fine", "a", "a"),
        )

    def keeping(self) -> Chart:
        return self.chart(
            "keeping",
            Rule("keep", "a", None, _keep(lambda data: data["what"])),
            Rule("keep_tuple", "a", None, _keep(lambda data: (1, 2))),
            Rule("keep_infinity", "a", None, _keep(lambda data: float("inf"))),
            Rule("keep_numeric_key", "a", None, _keep(lambda data: {1: 2})),
        )

    def delayed(self) -> Chart:
        later = _send("reminder", send_id="r-1", delay=timedelta(days=2))
        return self.chart("delayed", Rule("later", "a", None, later), Rule("forget", "a", None, _cancel))

    def refused_definitions(self) -> Mapping[str, Callable[[], object]]:
        def load() -> None:
            if self.flaw != 14:
                raise ConfigError("<invoke> is refused: it would run beside the step")

        return {"invoke": load}
