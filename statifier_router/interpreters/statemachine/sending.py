"""`<send>`, `<cancel>` and `<log>` of a document, in the place of the library's own.

The library's send puts a delayed event where it blocks the sender, turns a target outside into an
error, and drops what it does not read (`typeexpr`, `<param location>`, `<content expr>`).
"""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import Any

from statemachine.io.model import Action, CancelAction, LogAction, SendAction

from statifier_router.errors import ConfigError
from statifier_router.interpreters.answers import checked_effect
from statifier_router.interpreters.statemachine.expressions import Compiled, Evaluator, writable
from statifier_router.interpreters.statemachine.faults import ERROR_COMMUNICATION, SendFailed, told
from statifier_router.interpreters.statemachine.scxml_engine import ScxmlEngine
from statifier_router.interpreters.statemachine.targets import INTERNAL
from statifier_router.interpreters.statemachine.values import SCXML_PROCESSOR, as_json
from statifier_router.jsontext import Json
from statifier_router.steps import Send

log = logging.getLogger("statifier_router")

# What a document's reading puts before an attribute that is to be evaluated. A character of the
# private use area: no name of a target or type begins with one.
EXPRESSION = "\ue000"

SCXML_TYPES = frozenset(
    {
        SCXML_PROCESSOR,
        "http://www.w3.org/TR/scxml/",
        "http://www.w3.org/TR/scxml",
        "scxml",
    }
)

_TYPE = re.compile(r"[A-Za-z]")
_TIME = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s)?\s*")


def compile_action(action: Action, evaluator: Evaluator) -> Compiled:
    """The callable of one action that is ours."""
    match action:
        case SendAction():
            return _Sending(action, evaluator).send
        case CancelAction():
            return _cancelling(action, evaluator)
        case LogAction():
            return _logging(action, evaluator)
    raise ConfigError(f"{type(action).__name__} is no action of a document")


class _Sending:
    """One `<send>`, compiled."""

    def __init__(self, action: SendAction, evaluator: Evaluator) -> None:
        compiled = evaluator.compile_value
        self.event = action.event
        self.event_expr = compiled(action.eventexpr) if action.eventexpr and not action.event else None
        self.target, self.target_expr = _text_or_expression(action.target, evaluator)
        self.type, self.type_expr = _text_or_expression(action.type, evaluator)
        self.send_id = action.id or None
        self.id_location = action.idlocation
        self.delay = delay_of(action.delay) if action.delay else None
        self.delay_expr = _delay_expression(action.delayexpr, evaluator) if action.delayexpr else None
        self.names = (action.namelist or "").split()
        self.params = [
            (param.name, compiled(param.expr if param.expr is not None else param.location or ""))
            for param in action.params
        ]
        self.content, self.content_expr = _text_or_expression(action.content, evaluator)
        self.literal = evaluator.eval_literal
        if self.target in INTERNAL and (action.delay or action.delayexpr):
            raise ConfigError(
                f"<send event={(action.event or action.eventexpr)!r}> is delayed and internal: an internal "
                "event is taken within the step, so drop the delay or the target"
            )

    def send(self, *args: Any, **kwargs: Any) -> None:
        machine = kwargs["machine"]
        engine: ScxmlEngine = machine._engine  # noqa: SLF001 - the engine is ours
        send_id = self.send_id
        try:
            if self.id_location is not None and send_id is None:
                send_id = engine.next_send_id()
                setattr(machine.model, writable(self.id_location, "<send> 'idlocation'"), send_id)
            event = self.event if self.event_expr is None else self.event_expr(**kwargs)
            send = Send(
                event or "",
                self._data(machine, kwargs),
                target=(self.target_expr(**kwargs) if self.target_expr else self.target) or None,
                type=self.type_expr(**kwargs) if self.type_expr else self.type,
                send_id=send_id,
                delay=self._delay(kwargs),
            )
            if send.type in SCXML_TYPES:
                send = Send(send.event, send.data, target=send.target, send_id=send_id, delay=send.delay)
            if send.type is not None and not _TYPE.match(send.type):
                raise ValueError(f"{send.type!r} is no type of send: a type is a name or a URI")
            checked_effect(send)
        except Exception as error:
            raise SendFailed(told(error), send_id) from error
        self._dispatch(engine, send)

    def _dispatch(self, engine: ScxmlEngine, send: Send) -> None:
        target = send.target
        if send.type is None and target in INTERNAL:
            engine.send_to_itself(send, internal=True)
        elif send.type is None and (target is None or target == engine.location):
            engine.send_to_itself(send, internal=False)
        elif self.target_expr or (target is not None and target.startswith("#_")) or target == "parent":
            why = (
                "a computed target reaches the session itself only" if self.target_expr else "no such session"
            )
            engine.raise_error(
                ERROR_COMMUNICATION,
                SendFailed(f"{send.event!r} was not sent to {target!r}: {why}", send.send_id),
            )
        else:
            engine.effects.append(send)

    def _data(self, machine: Any, kwargs: dict[str, Any]) -> Json:
        if self.content_expr is not None:
            return as_json(self.content_expr(**kwargs), "content")
        if self.content is not None:
            return as_json(self.literal(self.content), "content")
        variables = vars(machine.model)
        data: dict[str, Any] = {}
        for name in self.names:
            if name not in variables:
                raise NameError(f"namelist names {name!r}, which the datamodel does not have")
            data[name] = variables[name]
        for name, evaluate in self.params:
            data[name] = evaluate(**kwargs)
        return as_json(data, "data") if data else None

    def _delay(self, kwargs: dict[str, Any]) -> timedelta | None:
        delay = delay_of(self.delay_expr(**kwargs)) if self.delay_expr else self.delay
        return delay or None


def delay_of(value: Any) -> timedelta:
    """A delay as documents write it: `1.5s`, `150ms`, or milliseconds as a number."""
    if isinstance(value, str):
        match = _TIME.fullmatch(value)
        if match is None:
            raise ConfigError(f"delay {value!r} is no time: write it as '1.5s' or '150ms'")
        number, unit = match.groups()
        milliseconds = float(number) * (1000 if unit == "s" else 1)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        milliseconds = float(value)
    else:
        raise ConfigError(f"a delay must be a time such as '1.5s', not {type(value).__name__}")
    try:
        delay = timedelta(milliseconds=milliseconds)
    except (OverflowError, ValueError):
        raise ConfigError(f"delay {value!r} is too long") from None
    if delay < timedelta(0):
        raise ConfigError(f"delay {value!r} is negative")
    return delay


def _delay_expression(expr: str, evaluator: Evaluator) -> Compiled:
    # `delayexpr="1s"` is no expression, but documents have it.
    if _TIME.fullmatch(expr):
        return lambda **_: expr
    return evaluator.compile_value(expr)


def _text_or_expression(text: str | None, evaluator: Evaluator) -> tuple[str | None, Compiled | None]:
    if text is not None and text.startswith(EXPRESSION):
        return None, evaluator.compile_value(text.removeprefix(EXPRESSION))
    return text or None, None


def _cancelling(action: CancelAction, evaluator: Evaluator) -> Compiled:
    if not (action.sendid or action.sendidexpr):
        raise ConfigError("<cancel> must have a sendid or a sendidexpr")
    expression = evaluator.compile_value(action.sendidexpr) if action.sendidexpr else None

    def cancel(*args: Any, **kwargs: Any) -> None:
        send_id = expression(**kwargs) if expression else action.sendid
        kwargs["machine"]._engine.cancel_event(send_id)  # noqa: SLF001 - the engine is ours

    return cancel


def _logging(action: LogAction, evaluator: Evaluator) -> Compiled:
    expression = evaluator.compile_value(action.expr) if action.expr else None

    def write(*args: Any, **kwargs: Any) -> None:
        # Evaluated whether or not it is written: what it raises is told at every level of logging.
        value = expression(**kwargs) if expression else None
        log.debug(
            "chart.log",
            extra={"statifier_router.label": action.label, "statifier_router.value": value},
        )

    return write
