"""A target system in memory that does as it is told, and a writer for it: for tests of rules."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from attrs import evolve, field, frozen

from statifier_router.errors import ConfigError
from statifier_router.jsontext import Json, copied, plain
from statifier_router.runs.faults import Gone, RecordFault, Rejected, Throttled, TimedOut, Unavailable
from statifier_router.runs.writers import Classify, Created, WriteContext, WriterTraits

WRITES: Final = ("create", "update", "delete")
VERBS: Final = (*WRITES, "ping", "lookup")
# Of a call that is held: a test that forgot `release` fails instead of hanging.
_PATIENCE = 60.0


class _Own:
    """Stands for the address that the target itself gave."""

    def __repr__(self) -> str:
        return "OWN"


OWN: Final = _Own()


@frozen
class Reaction:
    """What a scripted target does with one call. Made by `lands`, `rejects` and their like."""

    taken: bool = True
    error: BaseException | None = None
    remote_id: Any = OWN
    held: Literal["no", "before", "after"] = "no"


def lands(remote_id: object = OWN) -> Reaction:
    """Take the call and answer. `remote_id` is answered to a create in place of the address it has."""
    return Reaction(remote_id=remote_id)


def rejects(message: str = "the target refused the record") -> Reaction:
    """Refuse this record."""
    return Reaction(taken=False, error=Rejected(message))


def throttles(retry_after: timedelta | datetime | float | str | None = None) -> Reaction:
    """Ask to be called less often."""
    return Reaction(taken=False, error=Throttled(retry_after))


def times_out(*, taken: bool = False) -> Reaction:
    """Answer nothing in time, `taken` or not: the caller cannot tell."""
    return Reaction(taken=taken, error=TimedOut())


def unavailable(*, taken: bool = False) -> Reaction:
    """Be out of order. `taken` says that the call took effect first: the fault is then in doubt."""
    return Reaction(taken=taken, error=Unavailable("the target is out of order", in_doubt=taken))


def gone() -> Reaction:
    """Say that the addressed record is not there."""
    return Reaction(taken=False, error=Gone("the target does not know the record"))


def breaks(error: BaseException, *, taken: bool = False) -> Reaction:
    """Raise `error`, whatever it is."""
    return Reaction(taken=taken, error=error)


def hangs(then: Reaction | None = None, *, taken_first: bool = False) -> Reaction:
    """Hold the call until `ScriptedTarget.release`, then do as `then` says, by default `lands()`.

    With `taken_first` the call takes effect before it is held, else after.
    """
    return evolve(then or lands(), held="after" if taken_first else "before")


@frozen(kw_only=True)
class Request:
    """One call as the target saw it. `took_effect` is False for a key that it knew already, too."""

    number: int
    verb: str
    remote_id: str | None
    payload: Json = field(repr=False)
    context: WriteContext | None
    took_effect: bool
    answer: str

    @property
    def source_id(self) -> str | None:
        """The record that was called for; None for a ping."""
        return None if self.context is None else self.context.source_id

    @property
    def key(self) -> str | None:
        """The key that was handed over; None for a ping."""
        return None if self.context is None else self.context.key


@frozen(kw_only=True)
class Held:
    """One record at the target: what it holds now, and the record of the source that it was made for."""

    remote_id: str
    source_id: str
    payload: Json
    signal: str


class ScriptedTarget:
    """A target system in memory. Every call takes effect, until it is told otherwise. Threads may share it.

    A `keyed` target honours keys: a call under a key that took effect before takes none again, and has
    the same answer. What was told for a record goes before what was told for the next calls, and that
    before what holds always.

    >>> target = ScriptedTarget(keyed=True)
    >>> target.on("p1", times_out(taken=True))
    >>> writer = ScriptedWriter(target)
    >>> [request.verb for request in target.requests]
    []
    """

    def __init__(self, *, keyed: bool = False) -> None:
        self.keyed = keyed
        self._condition = threading.Condition()
        self._requests: list[Request] = []
        self._records: dict[str, Held] = {}
        self._answers: dict[tuple[str, str], str | None] = {}
        self._of_record: dict[str, deque[Reaction]] = {}
        self._coming: deque[Reaction] = deque()
        self._always: dict[str, Reaction] = {}
        self._numbers = 0
        self._made = 0
        self._held = 0
        self._released = 0

    # --- told ---------------------------------------------------------------------------------------

    def on(self, source_id: str, *reactions: Reaction) -> None:
        """What to do with the next writes of one record, one reaction each."""
        with self._condition:
            self._of_record.setdefault(source_id, deque()).extend(_reactions(reactions))

    def coming(self, *reactions: Reaction) -> None:
        """What to do with the next writes, whichever record's, one reaction each."""
        with self._condition:
            self._coming.extend(_reactions(reactions))

    def always(self, reaction: Reaction | None, *, verbs: Iterable[str] = VERBS) -> None:
        """What to do with every call of these verbs from now on; None: take it again."""
        with self._condition:
            for verb in _verbs(verbs):
                self._always.pop(verb, None)
                if reaction is not None:
                    self._always[verb] = reaction

    def down(self) -> None:
        """Be out of order from now on, pings too, until `up`."""
        self.always(unavailable())

    def up(self) -> None:
        """Be in order again."""
        self.always(None)

    def forget(self, remote_id: str) -> None:
        """Lose a record, as if somebody had deleted it at the target."""
        with self._condition:
            self._records.pop(remote_id, None)

    def release(self) -> None:
        """Let every call that is held go on."""
        with self._condition:
            self._released = self._held
            self._condition.notify_all()

    def await_held(self, calls: int = 1, *, timeout: float = _PATIENCE) -> None:
        """Return once `calls` calls are held; `AssertionError` after `timeout` seconds."""
        with self._condition:
            held = self._condition.wait_for(lambda: self._held - self._released >= calls, timeout=timeout)
        assert held, f"fewer than {calls} calls are held"

    # --- looked at ----------------------------------------------------------------------------------

    @property
    def requests(self) -> list[Request]:
        """Every call, in the order in which they ended."""
        with self._condition:
            return list(self._requests)

    @property
    def records(self) -> Mapping[str, Held]:
        """What stands at the target, by address."""
        with self._condition:
            return dict(self._records)

    def copies(self, source_id: str) -> list[Held]:
        """What stands at the target for one record of the source: more than one is a duplicate."""
        return [held for held in self.records.values() if held.source_id == source_id]

    def calls(self, source_id: str, *verbs: str) -> list[Request]:
        """The calls for one record, of these verbs or of all."""
        return [
            each
            for each in self.requests
            if each.source_id == source_id and (not verbs or each.verb in verbs)
        ]

    # --- called -------------------------------------------------------------------------------------

    def call(
        self, verb: str, context: WriteContext | None, *, remote_id: str | None = None, payload: Json = None
    ) -> Any:
        """One call: the address for "create" and "lookup", None else. Raises what it was told to."""
        payload = plain(payload)
        with self._condition:
            reaction = self._reaction(verb, context)
            self._numbers += 1
            request = Request(
                number=self._numbers,
                verb=verb,
                remote_id=remote_id,
                payload=payload,
                context=context,
                took_effect=False,
                answer="",
            )
            if reaction.held == "before":
                self._hold()
            error, answer = reaction.error, None
            if reaction.taken:
                try:
                    request, answer = self._take(request)
                except RecordFault as fault:
                    error = error or fault
            if reaction.held == "after":
                self._hold()
            told = type(error).__name__ if error is not None else "landed"
            self._requests.append(evolve(request, answer=told))
        if error is not None:
            raise error
        return answer if reaction.remote_id is OWN or verb != "create" else reaction.remote_id

    def _reaction(self, verb: str, context: WriteContext | None) -> Reaction:
        if context is not None and verb in WRITES:
            for queue in (self._of_record.get(context.source_id), self._coming):
                if queue:
                    return queue.popleft()
        return self._always.get(verb, Reaction())

    def _hold(self) -> None:
        self._held += 1
        mine = self._held
        self._condition.notify_all()
        if not self._condition.wait_for(lambda: self._released >= mine, timeout=_PATIENCE):
            raise AssertionError("a call was held, and nobody called release()")

    def _take(self, request: Request) -> tuple[Request, str | None]:
        context = request.context
        if context is None:
            return request, None
        known = verb, _ = request.verb, context.key
        if verb == "lookup":
            return request, self._answers.get(("create", context.key))
        if self.keyed and known in self._answers:
            return request, self._answers[known]
        answer = self._change(request, context)
        self._answers[known] = answer
        return evolve(request, took_effect=True), answer

    def _change(self, request: Request, context: WriteContext) -> str | None:
        remote_id = request.remote_id
        if request.verb == "create":
            self._made += 1
            remote_id = f"r{self._made}"
        elif remote_id not in self._records:
            raise Gone(f"there is no record {remote_id!r}")
        assert remote_id is not None
        if request.verb == "delete":
            del self._records[remote_id]
            return None
        before = self._records.get(remote_id)
        self._records[remote_id] = Held(
            remote_id=remote_id,
            source_id=context.source_id if before is None else before.source_id,
            payload=copied(request.payload),
            signal=context.signal,
        )
        return remote_id if request.verb == "create" else None


class ScriptedWriter:
    """A writer for a `ScriptedTarget`, with the verbs that are named and no others.

    By default it says of the target what is so: whether it honours keys.

    >>> from statifier_router.runs.writers import has_verb
    >>> writer = ScriptedWriter(ScriptedTarget(), verbs=("create",))
    >>> has_verb(writer, "create"), has_verb(writer, "update")
    (True, False)
    """

    def __init__(
        self,
        target: ScriptedTarget,
        *,
        verbs: Iterable[str] = ("create", "update"),
        traits: WriterTraits | None = None,
        classify: Classify | None = None,
    ) -> None:
        self.target = target
        self.traits = traits or WriterTraits(honours_keys=target.keyed)
        has = set(_verbs(verbs))
        for verb in VERBS:
            if verb not in has:
                # A method that is None is not there: `has_verb` asks the object, not its class.
                setattr(self, verb, None)
        if classify is not None:
            self.classify = classify

    def create(self, payload: Json, context: WriteContext) -> Created:
        """Create at the target."""
        return Created(self.target.call("create", context, payload=payload))

    def update(self, remote_id: str, payload: Json, context: WriteContext) -> None:
        """Update at the target."""
        self.target.call("update", context, remote_id=remote_id, payload=payload)

    def delete(self, remote_id: str, context: WriteContext) -> None:
        """Delete at the target."""
        self.target.call("delete", context, remote_id=remote_id)

    def ping(self, timeout: timedelta) -> None:
        """Ask whether the target is in order."""
        self.target.call("ping", None)

    def lookup(self, context: WriteContext) -> Created | None:
        """What this key created, if it did."""
        found = self.target.call("lookup", context)
        return None if found is None else Created(found)


def _reactions(reactions: Iterable[Any]) -> list[Reaction]:
    checked = list(reactions)
    for each in checked:
        if not isinstance(each, Reaction):
            raise ConfigError(f"a reaction is made by lands(), rejects() and so on, not {each!r}")
    return checked


def _verbs(verbs: Iterable[str]) -> list[str]:
    checked = list(verbs)
    for each in checked:
        if each not in VERBS:
            raise ConfigError(f"verbs must be of {', '.join(VERBS)}, not {each!r}")
    return checked
