"""Reading an SCXML document: refusals by name, and what the library would read amiss set right.

The library's reader does the reading. Before it, states without an id get one that is the same in
every process, and attributes that it drops are put where it looks; after it, states stand in
document order again, and sends, cancels, logs and the datamodel are taken out of its hands.
"""

from __future__ import annotations

import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from attrs import frozen
from statemachine.io.actions import DoneDataCallable
from statemachine.io.interpreter import Interpreter
from statemachine.io.model import (
    Action,
    CancelAction,
    DataItem,
    ExecutableContent,
    ForeachAction,
    IfAction,
    LogAction,
    ScriptAction,
    SendAction,
    State,
    StateMachineDefinition,
)
from statemachine.io.scxml.reader import SCXMLReader, parse_scxml, strip_namespaces
from statemachine.statemachine import StateChart

from statifier_router.errors import ConfigError
from statifier_router.interpreters.statemachine import targets
from statifier_router.interpreters.statemachine.expressions import (
    ActionContent,
    Compiled,
    Evaluator,
    writable,
)
from statifier_router.interpreters.statemachine.sending import EXPRESSION, compile_action

_STATES = frozenset({"state", "parallel", "final"})


@frozen(eq=False)
class Variable:
    """One `<data>`: how its first value comes about."""

    name: str
    expression: Compiled | None
    literal: Any


@frozen(eq=False)
class Document:
    """A document, compiled: the library's class, and what it does not do for us."""

    name: str
    chart_class: type[StateChart[Any]]
    variables: tuple[Variable, ...]
    scripts: tuple[Compiled, ...]
    donedata: dict[str, Callable[..., Any]]


def read(text: str) -> Document:
    """Compile a document. Raises `ConfigError`, naming what it cannot have."""
    root = _parsed(text)
    ids = _prepared(root)
    try:
        definition = parse_scxml(ET.tostring(root, encoding="unicode"))
        evaluator = Evaluator(compile_action)
        name = definition.name or "statechart"
        _in_document_order(definition.states, ids)
        _take_actions(definition)
        donedata = _take_donedata(definition, evaluator)
        variables, scripts = _take_datamodel(definition, evaluator)
        host = _Host(reader=SCXMLReader(), evaluator=evaluator)
        host.process_definition(definition, location=name)
        chart_class = host.scs[name]
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the document does not load: {type(error).__name__}: {error}") from error
    for state in chart_class.states:
        _mend(state)
    return Document(name, chart_class, variables, scripts, donedata)


class _Host(Interpreter):
    """The library's runtime without its sessions: the system variables are the engine's."""

    def definition_kwargs(self, definition: Any) -> dict[str, Any]:
        kwargs = super().definition_kwargs(definition)
        del kwargs["prepare_event"]
        return kwargs


class _NoDoctype(ET.TreeBuilder):
    """Refuses a document type, whose entities could expand without bound."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:
        raise ConfigError("the document has a DOCTYPE: take it out, entities are not expanded")


def _parsed(text: str) -> ET.Element:
    try:
        parser = ET.XMLParser(target=_NoDoctype())  # noqa: S314 - document types are refused, and charts are code
        root = ET.fromstring(text.removeprefix("\ufeff"), parser=parser)  # noqa: S314 - the same
    except (ET.ParseError, ValueError) as error:
        raise ConfigError(f"the document is not XML: {error}") from error
    strip_namespaces(root)
    found = root if root.tag == "scxml" else root.find(".//scxml")
    if found is None:
        raise ConfigError("the document has no <scxml> element")
    return found


# -- Before the library reads -------------------------------------------------------------------------


def _prepared(root: ET.Element) -> dict[str, int]:
    """Refuse, mend, and answer the place of every state in the document."""
    ids: dict[str, int] = {}
    for element, state in _elements(root, None):
        tag = element.tag
        if tag in _STATES or tag == "history":
            if not element.get("id"):
                element.set("id", f"__auto_{len(ids) + 1}")
            name = element.attrib["id"]
            if name in ids:
                raise ConfigError(f"two states are called {name!r}: give each its own id")
            ids[name] = len(ids)
        elif tag == "invoke":
            raise ConfigError(
                f"<invoke> in state {state!r} is not supported: send to a route, and let its answer "
                "come back as a message"
            )
        elif tag == "send":
            _prepare_send(element, state, root)
        elif tag in {"data", "script"}:
            _prepare_code(element, state)
    return ids


def _elements(element: ET.Element, state: str | None) -> Iterator[tuple[ET.Element, str | None]]:
    """Every element of the document with the state it stands in; what `<content>` holds is data."""
    for child in list(element):
        yield child, state
        if child.tag != "content":
            yield from _elements(child, child.get("id") if child.tag in _STATES else state)


def _prepare_send(element: ET.Element, state: str | None, root: ET.Element) -> None:
    what = f"<send event={(element.get('event') or element.get('eventexpr'))!r}> in state {state!r}"
    expr = element.get("targetexpr")
    if expr is not None:
        if element.get("target"):
            raise ConfigError(f"{what} has both a target and a targetexpr")
        if not targets.reaches_only_itself(expr, root):
            raise ConfigError(
                f"{what} has the targetexpr {expr!r}, which may reach outside: targetexpr is supported "
                "for the session itself only, so write each target out"
            )
        element.set("target", EXPRESSION + expr)
    if element.get("typeexpr") is not None:
        element.set("type", EXPRESSION + element.attrib["typeexpr"])
    content = element.find("content")
    if content is not None:
        if content.get("expr") is not None:
            content.text = EXPRESSION + content.attrib["expr"]
        elif len(content):
            # The library drops markup; as text it arrives unchanged.
            content.text = (content.text or "") + "".join(
                ET.tostring(child, encoding="unicode") for child in content
            )


def _prepare_code(element: ET.Element, state: str | None) -> None:
    if element.get("src") is not None:
        name = f" id={element.get('id')!r}" if element.tag == "data" else ""
        raise ConfigError(
            f"<{element.tag}{name}> has a src: write its content into the document, whose hash is to cover it"
        )
    if element.tag == "script":
        element.text = textwrap.dedent(element.text or "")
    elif len(element):
        element.text = (element.text or "") + "".join(
            ET.tostring(child, encoding="unicode") for child in element
        )


# -- After the library has read ------------------------------------------------------------------------


def _in_document_order(states: dict[str, State], ids: dict[str, int]) -> None:
    """The library reads states, finals and parallels in three passes."""
    for name in sorted(states, key=lambda name: ids.get(name, -1)):
        state = states.pop(name)
        states[name] = state
        _in_document_order(state.states, ids)


def _all_states(states: dict[str, State]) -> Iterator[State]:
    for state in states.values():
        yield state
        yield from _all_states(state.states)


def _take_actions(definition: StateMachineDefinition) -> None:
    """Put our own actions in the place of the library's, in every block."""
    for state in _all_states(definition.states):
        transitions = [*state.transitions, *(t for h in state.history.values() for t in h.transitions)]
        blocks = [*state.onentry, *state.onexit, *(t.on for t in transitions if t.on is not None)]
        for block in blocks:
            _replace_in(block.actions)


def _replace_in(actions: list[Action]) -> None:
    for index, action in enumerate(actions):
        match action:
            case SendAction() | CancelAction() | LogAction():
                content = ActionContent(type(action).__name__)
                content.action = action
                actions[index] = ScriptAction(content)
            case IfAction(branches=branches):
                for branch in branches:
                    _replace_in(branch.actions)
            case ForeachAction(content=ExecutableContent(actions=inner)):
                _replace_in(inner)


def _take_donedata(definition: StateMachineDefinition, evaluator: Evaluator) -> dict[str, Callable[..., Any]]:
    """The donedata of the outermost finals, which the library computes and drops."""
    found: dict[str, Callable[..., Any]] = {}
    for state in definition.states.values():
        if state.donedata is not None:
            if state.donedata.params or state.donedata.content_expr is not None:
                found[state.id] = DoneDataCallable(state.donedata, evaluator)
            state.donedata = None
    return found


def _take_datamodel(
    definition: StateMachineDefinition, evaluator: Evaluator
) -> tuple[tuple[Variable, ...], tuple[Compiled, ...]]:
    """The datamodel, which the library gives to the first machine of a class and to no other."""
    datamodel = definition.datamodel
    if datamodel is None:
        return (), ()
    definition.datamodel = None
    items = (_variable(item, evaluator) for item in datamodel.data)
    variables = tuple(variable for variable in items if variable is not None)
    scripts = tuple(evaluator.compile_top_script(script.content) for script in datamodel.scripts)
    return variables, scripts


def _variable(item: DataItem, evaluator: Evaluator) -> Variable | None:
    try:
        writable(item.id, "<data>")
    except ValueError:
        raise ConfigError(
            f"<data id={item.id!r}> cannot be a variable: it is no identifier, or a name that "
            "python-statemachine keeps for itself"
        ) from None
    if item.expr is not None and evaluator.defines(item.id, item.expr):
        return None
    if item.expr is not None:
        return Variable(item.id, evaluator.compile_value(item.expr), None)
    text = re.sub(r"\s+", " ", item.content or "").strip()
    return Variable(item.id, None, evaluator.eval_literal(text) if text else None)


def _mend(state: Any) -> None:
    """Let nothing be taken for a callback because of its name, and no state be entered by default twice.

    The library calls what is named like `on_enter_paid`, be it a state or an event. And it adds an
    initial transition to the first state inside where the document's own leads deeper, whose
    actions it then drops.
    """
    initial = [transition for transition in state.transitions if transition.initial]
    for added in initial[1:]:
        state.transitions.transitions.remove(added)
    for specs in (state._specs, *(t._specs for t in state.transitions)):  # noqa: SLF001 - made here, for us
        specs.items = [spec for spec in specs.items if not spec.is_convention]
        specs.conventional_specs.clear()
    for inner in (*state.states, *state.history):
        _mend(inner)
