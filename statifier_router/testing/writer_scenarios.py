"""What the contract of writers asks for: a target, and the states in which a call can find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final

from statifier_router.errors import ConfigError
from statifier_router.jsontext import Json
from statifier_router.runs.calling import Answer, Landed, call, look_up
from statifier_router.runs.writers import WriteContext

VERBS: Final = ("create", "update", "delete", "lookup", "ping", "create_many", "update_many")
_SCENARIOS: Final = (
    *("address", "forget", "refused", "unreachable", "silent", "out_of_order", "throttling", "secrets"),
)
_NAMES = (*VERBS, *_SCENARIOS)
# A call that ends is never cut off by this on a slow machine.
_AMPLE = timedelta(seconds=30)


class WriterScenarios:
    """What a subclass of the contract gives. Each test begins with a target that holds nothing.

    A verb that the writer does not have, and a scenario that its target cannot be brought into, is
    named in `not_applicable` with the reason; its points then read `..._does_not_apply` in the
    report. `"address"` stands for a target whose creates answer no address, as those of messages.
    Fixtures of pytest work in the subclass as in any class of tests.
    """

    not_applicable: ClassVar[Mapping[str, str]] = {}
    some_address: ClassVar[str] = "R1"
    """Text of the form that the target's addresses have; whether it addresses anything does not matter."""

    def writer(self) -> Any:
        """A writer for the target. Asked twice in one test: another one, for the same target."""
        raise _missing("writer")

    def texts(self) -> Sequence[str]:
        """The texts of all records that the target holds now, in any order."""
        raise _missing("texts")

    def payload(self, text: str) -> Json:
        """A record that says `text`, as the target wants its records."""
        return {"text": text}

    def planted(self, text: str, context: WriteContext) -> str:
        """The address of a record that says `text`, at the target now; by default created there."""
        answer = self.call("create", context, text=text)
        assert isinstance(answer, Landed), f"a create met {answer}"
        assert answer.remote_id is not None, "a create answered no usable address"
        return answer.remote_id

    def forget(self, remote_id: str) -> None:
        """Delete a record at the target, behind the writer's back."""
        raise _missing("forget")

    def refused(self) -> Json:
        """A payload that the target refuses, whoever sends it and however often."""
        raise _missing("refused")

    def unreachable(self) -> Any:
        """A writer for a target that cannot be reached: nobody listens there."""
        raise _missing("unreachable")

    def silent(self) -> Any:
        """A writer for a target that takes calls and does not answer."""
        raise _missing("silent")

    def out_of_order(self) -> Any:
        """A writer for a target that answers that it is out of order."""
        raise _missing("out_of_order")

    def throttling(self) -> Any:
        """A writer for a target that answers that it is called too often."""
        raise _missing("throttling")

    def secrets(self) -> Sequence[str]:
        """The credentials that the writers of these scenarios use: no fault may tell them."""
        raise _missing("secrets")

    # --- how it is asked for ------------------------------------------------------------------------

    @classmethod
    def applies(cls, name: str) -> bool:
        """Whether this writer has the verb, or its target the scenario."""
        return name not in cls.not_applicable

    def call(
        self,
        verb: str,
        context: WriteContext,
        *,
        text: str = "",
        payload: Json = None,
        remote_id: str | None = None,
        writer: Any = None,
    ) -> Answer:
        """One call as a run makes it; a fault of the rule is raised, and is never right here."""
        handed = self.payload(text) if payload is None else payload
        used = self.writer() if writer is None else writer
        return call(used, "contract", verb, context, payload=handed, remote_id=remote_id)

    def look_up(self, context: WriteContext) -> Answer | None:
        """One lookup as a run makes it."""
        return look_up(self.writer(), "contract", context)


def about(
    source_id: str = "p1", *, version: int = 1, timeout: timedelta = _AMPLE, again: bool = False
) -> WriteContext:
    """What a call is made for: one version of one record; `again` after a call that is in doubt."""
    return WriteContext(
        rule="contract",
        source_id=source_id,
        key=f"{source_id.encode().hex()[:80]}-{version}",
        signal=f"signal {version}",
        attempt=2 if again else 1,
        in_doubt=again,
        timeout=timeout,
    )


def check_not_applicable(cls: type[WriterScenarios]) -> None:
    """Raise `ConfigError` where `not_applicable` names nothing of the contract's, or gives no reason."""
    for name, reason in cls.not_applicable.items():
        if name not in _NAMES:
            raise ConfigError(f"not_applicable names {name!r}; it may name {', '.join(_NAMES)}")
        if not str(reason).strip():
            raise ConfigError(f"not_applicable[{name!r}] must say why in words")
        own = getattr(WriterScenarios, name, None)
        if own is not None and getattr(cls, name) is not own:
            raise ConfigError(f"not_applicable names {name!r}, but {cls.__name__} defines it")


def _missing(scenario: str) -> NotImplementedError:
    return NotImplementedError(
        f"the contract needs {scenario!r}: define it, or say in not_applicable why it cannot be had"
    )
