"""The state diagram of an execution: what it shows, that no name breaks it; the story over a migration."""

from __future__ import annotations

import re
import sys
import types

import attrs
import pytest

from statifier_router import ChartRegistry, Plan, deliver_event, executions
from statifier_router.interpreters import drawing, statemachine, transitions
from statifier_router.interpreters.outline import Arrow, Box, Outline
from tests.support.charts import envelope, obedient, registry
from tests.support.command_line import run
from tests.test_migrate import PAIRS, RENAMED

CONFIG = ("--config", "the_host:config")

ORDER = """
<scxml name="order" initial="open">
  <parallel id="open">
    <transition event="noted"/>
    <transition event="closed" cond="_event.data.sum &gt;= 100" target="done"/>
    <state id="pay" initial="unpaid">
      <transition event="paid.*" target="paid"/>
      <state id="unpaid"/>
      <state id="paid"><transition event="again" target="paid"/><transition event="seen"/></state>
    </state>
    <state id="ship" initial="here">
      <history id="last" type="deep"><transition target="here"/></history>
      <state id="here"><transition cond="In('paid')" target="on-its-way"/></state>
      <state id="on-its-way"/>
    </state>
  </parallel>
  <state id="held"><transition event="back" target="last"/></state>
  <final id="done"/>
</scxml>
"""
DRAWN = """\
stateDiagram-v2
    direction LR
    state "open · on noted" as open {
        state pay {
            unpaid
            paid
            paid : on again
            paid : on seen
            [*] --> unpaid
            unpaid --> paid : paid.* (anywhere in pay)
        }
        --
        state ship {
            here
            state "on-its-way" as on_its_way
            state "H*" as last
            [*] --> here
            here --> on_its_way : [In('paid')]
            last --> here
        }
    }
    held
    done
    [*] --> open
    done --> [*]
    open --> done : closed [_event.data.sum #62;= 100]
    held --> last : back
    classDef active fill:#40e0d0,stroke:#333333,stroke-width:2px
    class paid active
    class on_its_way active
"""

order = statemachine.scxml(ORDER)
machine = transitions.chart(
    "order",
    states=[
        {
            "name": "open",
            "parallel": [
                {
                    "name": "pay",
                    "initial": "unpaid",
                    "children": ["unpaid", "paid"],
                    "transitions": [["pay", "unpaid", "paid"]],
                },
                {"name": "ship", "initial": "here", "children": ["here", "gone"]},
            ],
        },
        {"name": "the end", "final": True},
    ],
    transitions=[
        {"trigger": "noted", "source": "open", "dest": None},
        {"trigger": "sent", "source": "open_ship_here", "dest": "open_ship_gone", "unless": "is_lost"},
        ["closed", "open", "the end"],
    ],
    initial="open",
    model=type("Order", (), {"is_lost": lambda self: False}),
    version="1",
    hierarchical=True,
)


@pytest.fixture
def given(sqlite, make_config, monkeypatch):
    """`given(charts)`: the configuration that the commands find."""

    def given(charts, **kw):
        module = types.ModuleType("the_host")
        module.config = make_config(sqlite, charts=charts, **kw)
        monkeypatch.setitem(sys.modules, "the_host", module)
        return module.config

    return given


def put(config, name="scanned", message_id=None):
    sent = envelope(name, message_id or f"e {name}")
    return deliver_event(config, Plan("jobs", "parcel"), "P7", sent).execution_id


# --- what is drawn ------------------------------------------------------------------------------------


def test_a_chart_is_drawn_with_its_active_states():
    """Regions, history, guards, what a state reacts to without leaving it, and where the execution stands."""
    assert drawing.mermaid(order.outline(), ("paid", "on-its-way")) + "\n" == DRAWN


def test_a_machine_of_transitions_is_drawn():
    """Transitions of nested scopes and those of the whole chart, by the names that positions use."""
    drawn = drawing.mermaid(machine.outline(), ("open_pay_paid", "open_ship_here")).splitlines()
    lines = [line.strip() for line in drawn]
    for line in [
        'state "open · on noted" as open {',
        'state "paid" as open_pay_paid',
        "open_pay_unpaid --> open_pay_paid : pay",
        "open_ship_here --> open_ship_gone : sent [not is_lost]",
        "open --> the_end : closed",
        "the_end --> [*]",
        "[*] --> open",
        "class open_pay_paid active",
        "class open_ship_here active",
    ]:
        assert lines.count(line) == 1, line
    assert lines.count("--") == 1


@pytest.mark.parametrize("kind", PAIRS)
def test_every_state_and_arrow_of_each_kind_is_there(kind):
    """One box a state; every event is somewhere; at each level one state is entered first."""
    outline = PAIRS[kind][0].outline()
    names = {path[-1].label for path in outline.paths().values()} | set(outline.paths())
    assert {"moving", "road", "air", "held", "delivered"} <= {name.rpartition("_")[2] for name in names}
    events = {event for arrow in outline.arrows for event in arrow.events}
    assert {"scanned", "fly", "stop", "go", "signed"} <= events
    for text in (drawing.mermaid(outline, ()), drawing.dot(outline, ())):
        for event in ("scanned", "fly", "stop", "go", "signed"):
            assert event in text
    assert "active" not in drawing.mermaid(outline, ())


HOSTILE = [
    "end", "state", "note", "a-b", "a.b", "a_b", "A_B", "1st", 'x"y', "<b>", "%%{init: {}}%%", "a;b:c#d",
    "--> z", "line\nbreak", "\x1b[2J", "{}", "[*]", " ", "état", "\u2028", "\\n", "`x`",
]  # fmt: skip


def test_no_name_breaks_the_drawing():
    """Whatever states, events and guards are called: each is one name and one line, and nothing is markup."""
    boxes = tuple(Box(f"in {name}", name, "state", (Box(name, name),), (name,)) for name in HOSTILE)
    arrows = tuple(Arrow(name, (HOSTILE[0], name), (name,), (name,)) for name in HOSTILE)
    outline = Outline("\n".join(HOSTILE), boxes, arrows, ("in end",))
    lines = drawing.mermaid(outline, HOSTILE).splitlines()
    names = [line.split()[1] for line in lines if line.strip().startswith("class ")]
    assert len({name.lower() for name in names}) == len(HOSTILE)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in names)
    assert not {"end", "state", "note"} & set(names)
    told = re.compile(r'\s*(state )?("[^"<>%;`]*(#\d+;[^"<>%;`]*)*" as )?\w+( \{)?|\s*\}|\s*\[\*\] --> \w+')
    arrow = re.compile(r"\s*\w+ (--> \w+|: on)( : )?[^:;<>%`\x00-\x1f]*(#\d+;[^:;<>%`]*)*")
    for line in lines[2:]:
        if not line.strip().startswith("class"):
            assert told.fullmatch(line) or arrow.fullmatch(line), line
    for line in drawing.dot(outline, HOSTILE).splitlines():
        assert len(re.findall(r'(?<!\\)(?:\\\\)*"', line)) % 2 == 0, line
        assert "\x1b" not in line


def test_a_long_guard_is_cut():
    """A drawing has room for the beginning of an expression."""
    outline = Outline("c", (Box("a", "a"), Box("b", "b")), (Arrow("a", ("b",), ("go",), ("x" * 900,)),))
    assert max(len(line) for line in drawing.mermaid(outline, ()).splitlines()) < 200
    assert max(len(line) for line in drawing.dot(outline, ()).splitlines()) < 200


# --- the command --------------------------------------------------------------------------------------


def test_the_command_prints_it(given):
    """Nothing but the diagram, so that it can be handed to whatever draws Mermaid."""
    config = given(registry(parcel=order))
    id = put(config, "paid")
    assert run("execution", id, "--diagram", *CONFIG).out == DRAWN
    assert run("execution", id, "--diagram=mermaid", *CONFIG).out == DRAWN
    document = run("execution", id, "--diagram", "--json", *CONFIG).json
    assert document == {
        "execution_id": id,
        "active": ["paid", "on-its-way"],
        "format": "mermaid",
        "diagram": DRAWN.removesuffix("\n"),
    }


@pytest.fixture
def graphviz(tmp_path, monkeypatch):
    """`graphviz(script)`: a program `dot` in the place of Graphviz's; without one, none is found."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()

    def install(script):
        program = tmp_path / "bin" / "dot"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return install


def test_an_svg_is_drawn_by_graphviz(given, graphviz, tmp_path):
    """It is asked for an SVG of the whole chart; what it answers is the file."""
    id = put(given(registry(parcel=order)), "paid")
    graphviz('[ "$1" = -Tsvg ] && /bin/cat')
    file = tmp_path / "order.svg"
    done = run("execution", id, "--diagram=svg", str(file), *CONFIG)
    assert (done.code, done.err, done.out) == (0, "", f"the diagram is in {file}\n")
    drawn = file.read_text()
    assert drawn == drawing.dot(order.outline(), ("paid", "on-its-way"))
    assert re.findall(r'"([\w-]+)" \[.*#40e0d0', drawn) == ["paid", "on-its-way"]
    document = run("execution", id, "--diagram=svg", str(file), "--json", *CONFIG).json
    assert document["file"] == str(file)


def test_without_graphviz_it_says_so(given, graphviz, tmp_path):
    """One line: what is missing, and what can be had without it."""
    id = put(given(registry(parcel=order)))
    done = run("execution", id, "--diagram=svg", str(tmp_path / "order.svg"), *CONFIG)
    assert (done.code, done.out) == (1, "")
    assert "Graphviz, whose program dot is not on the path" in done.error
    assert "--diagram" in done.error
    assert not (tmp_path / "order.svg").exists()
    graphviz("echo 'it is\nbroken' >&2; exit 3")
    done = run("execution", id, "--diagram=svg", str(tmp_path / "order.svg"), *CONFIG)
    assert (done.code, "dot failed with code 3: it is broken" in done.error) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--diagram=svg"], "--diagram=svg needs a FILE"),
        (["--diagram", "--", "file.svg"], "a FILE goes with --diagram=svg"),
        (["file.svg"], "a FILE goes with --diagram=svg"),
        (["--diagram=png"], "'png' is not one of 'mermaid', 'svg'"),
    ],
)
def test_what_does_not_go_together(given, arguments, told):
    id = put(given(registry(parcel=order)))
    done = run("execution", *CONFIG, id, *arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.error


def test_a_file_that_cannot_be_written(given, graphviz, tmp_path):
    graphviz("/bin/cat")
    id = put(given(registry(parcel=order)))
    done = run("execution", id, "--diagram=svg", str(tmp_path / "nowhere" / "order.svg"), *CONFIG)
    assert (done.code, done.out) == (1, "")
    assert "nowhere" in done.error


def test_a_chart_of_functions_has_none(given):
    """Its states are known to its code alone, and that is said in one line."""
    id = put(given(registry(parcel=obedient())))
    done = run("execution", id, "--diagram", *CONFIG)
    assert (done.code, done.out) == (1, "")
    assert "a chart of 'function', of which there is no diagram" in done.error
    done = run("execution", "ex_none", "--diagram", *CONFIG)
    assert (done.code, done.error) == (1, "error: execution ex_none does not exist; check the id")


@pytest.mark.no_fold(reason="its chart is gone")
def test_a_chart_that_is_gone_cannot_be_drawn(given, monkeypatch):
    config = given(registry(parcel=order))
    id = put(config)
    module = types.ModuleType("the_host")
    module.config = attrs.evolve(config, charts=ChartRegistry())
    monkeypatch.setitem(sys.modules, "the_host", module)
    done = run("execution", id, "--diagram", *CONFIG)
    assert (done.code, done.out) == (1, "")
    assert "which is not to be had" in done.error


# --- the story over a migration -----------------------------------------------------------------------


def moved(given):
    """An execution that was moved to another revision between two inputs of each."""
    old, new, _ = PAIRS["scxml"]
    charts = registry(parcel=old)
    charts.publish("newer", new)
    config = given(charts)
    id = put(config, "fly")
    executions.suspend(config, id)
    executions.migrate(config, id, new, mapping=RENAMED, actor="ada")
    executions.resume(config, id)
    put(config, "stop")
    return config, id, new


def states(document):
    return [
        (each["input"]["door"], each["before"], each["after"], each["status"]) for each in document["inputs"]
    ]


def test_each_part_of_the_story_is_told_by_its_own_chart(given):
    """The inputs before a migration by the old revision, those after it by the new one."""
    config, id, _ = moved(given)
    document = run("execution", id, "--json", *CONFIG).json
    assert document["states_not_told"] is None
    assert states(document) == [
        ("create", None, ["road"], "active"),
        ("deliver_event", ["road"], ["air"], "active"),
        ("suspend", ["air"], ["air"], "suspended"),
        ("migrate", ["air"], ["wings"], "suspended"),
        ("resume", ["wings"], ["wings"], "active"),
        ("deliver_event", ["wings"], ["held"], "active"),
    ]
    assert "air → wings" in run("execution", id, *CONFIG).out
    assert executions.replay(config, id).agrees


@pytest.mark.no_fold(reason="the chart it was created on is gone")
def test_where_the_old_chart_is_gone_the_rest_is_told(given, monkeypatch):
    """A migration says anew where the execution stands."""
    config, id, new = moved(given)
    module = types.ModuleType("the_host")
    module.config = attrs.evolve(config, charts=registry(parcel=new))
    monkeypatch.setitem(sys.modules, "the_host", module)
    document = run("execution", id, "--json", *CONFIG).json
    assert "which is not to be had" in document["states_not_told"]
    assert states(document)[:3] == [
        (door, None, None, None) for door in ("create", "deliver_event", "suspend")
    ]
    assert states(document)[3:] == [
        ("migrate", None, ["wings"], None),
        ("resume", ["wings"], ["wings"], "active"),
        ("deliver_event", ["wings"], ["held"], "active"),
    ]
