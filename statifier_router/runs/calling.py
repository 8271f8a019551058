"""The guard around a writer: whatever a call does, it comes out as an answer or as a fault of the rule."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from statifier_router.refusals import close_awaitable
from statifier_router.runs.faults import RecordFault, RuleFault, Unclassified, UnsupportedVerb
from statifier_router.runs.writers import Created, has_verb

if TYPE_CHECKING:
    from statifier_router.jsontext import Json
    from statifier_router.runs.writers import WriteContext

# UTF-8 bytes of an address at a target; the limit of keys elsewhere.
ADDRESS_LIMIT: Final = 512
# What targets, and languages that spell an absent value as text, answer in the place of an address.
_NO_ADDRESS: Final = frozenset({"", "0", "None"})


@frozen
class Landed:
    """The call took effect. `remote_id` is the usable address that a create answered; None for none."""

    remote_id: str | None = None


@frozen
class Refused:
    """The call met a fault of the record."""

    fault: RecordFault


Answer = Landed | Refused


def call(
    writer: Any,
    driver: str,
    verb: str,
    context: WriteContext,
    *,
    payload: Json = None,
    remote_id: str | None = None,
) -> Answer:
    """Call "create", "update" or "delete" of `writer`; no transaction may be open meanwhile.

    `driver` is the writer's name, for the faults of the rule that are raised: `UnsupportedVerb` where
    the verb is missing or raises `NotImplementedError`, whatever `RuleFault` the writer raises itself,
    and `Unclassified` for anything else that is no `RecordFault` and that its `classify` does not
    make one.
    """
    arguments = {
        "create": (payload, context),
        "update": (remote_id, payload, context),
        "delete": (remote_id, context),
    }[verb]
    asked = _Asked(writer, driver, verb, context.rule, context.source_id)
    answer = asked.answer(*arguments)
    if isinstance(answer, Refused):
        return answer
    return Landed(_address(asked, answer)) if verb == "create" else Landed()


def look_up(writer: Any, driver: str, context: WriteContext) -> Answer | None:
    """Whether the create of `context.key` took effect: its address, or None for no. Raises as `call`."""
    asked = _Asked(writer, driver, "lookup", context.rule, context.source_id)
    answer = asked.answer(context)
    if answer is None or isinstance(answer, Refused):
        return answer
    return Landed(_address(asked, answer))


def ping(writer: Any, driver: str, timeout: timedelta, *, rule: str, source_id: str) -> RecordFault | None:
    """What the target says to a ping: None where it is back. Raises as `call`."""
    answer = _Asked(writer, driver, "ping", rule, source_id).answer(timeout)
    return answer.fault if isinstance(answer, Refused) else None


def usable_address(remote_id: object) -> str | None:
    """The address as it is kept; None where nothing can be addressed by it.

    >>> usable_address("R-7"), usable_address(7), usable_address("None"), usable_address(" ")
    ('R-7', '7', None, None)
    """
    if isinstance(remote_id, int) and not isinstance(remote_id, bool):
        # Beyond this Python itself refuses to spell a number.
        remote_id = str(int(remote_id)) if remote_id.bit_length() <= 8 * ADDRESS_LIMIT else None
    if not isinstance(remote_id, str):
        return None
    address = str.__str__(remote_id)
    if address.strip() in _NO_ADDRESS or "\x00" in address:
        return None
    try:
        size = len(address.encode())
    except UnicodeEncodeError:
        return None
    return address if size <= ADDRESS_LIMIT else None


@frozen
class _Asked:
    """One call, and what its faults are told with."""

    writer: Any
    driver: str
    verb: str
    rule: str
    source_id: str

    def answer(self, *arguments: Any) -> Any:
        if not has_verb(self.writer, self.verb):
            raise self._unsupported()
        verb: Callable[..., Any] = getattr(self.writer, self.verb)
        try:
            answer = verb(*arguments)
        except RecordFault as fault:
            return Refused(fault)
        except RuleFault:
            raise
        except NotImplementedError as error:
            # A verb that is inherited, and that its class never meant to have.
            raise self._unsupported() from error
        except Exception as error:
            return Refused(self._classified(error))
        if close_awaitable(answer):
            raise self.unclassified(TypeError(f"{self.verb} answered an awaitable: a writer is not awaited"))
        return answer

    def unclassified(self, error: Exception) -> Unclassified:
        fault = Unclassified(error, rule=self.rule, source_id=self.source_id, driver=self.driver)
        fault.__cause__ = error
        return fault

    def _classified(self, error: Exception) -> RecordFault:
        classify = getattr(self.writer, "classify", None)
        try:
            fault = classify(error) if callable(classify) else None
        except RuleFault:
            raise
        except Exception as second:
            raise self.unclassified(second) from second
        if not isinstance(fault, RecordFault):
            raise self.unclassified(error) from error
        fault.__cause__ = error
        return fault

    def _unsupported(self) -> UnsupportedVerb:
        return UnsupportedVerb(rule=self.rule, driver=self.driver, verb=self.verb, source_id=self.source_id)


def _address(asked: _Asked, answer: object) -> str | None:
    # None is a plain success that has no address. Anything else is a slip in the writer, which must not
    # pass for a delivery: nobody knows what it means.
    if answer is None:
        return None
    if not isinstance(answer, Created):
        raise asked.unclassified(
            TypeError(f"{asked.verb} answered {type(answer).__name__}: answer Created(remote_id)")
        )
    return usable_address(answer.remote_id)
