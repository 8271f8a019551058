"""SCXML documents: sends, system variables, the time, errors, refusals, and what makes a revision."""

import hashlib
import json
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from statifier_router import NO_DATA, Cancel, Event, Send
from statifier_router.errors import ConfigError, MissingExtra, RouterError
from statifier_router.interpreters import statemachine
from statifier_router.interpreters.statemachine.structure import BadPosition

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DATA = {"execution": {"id": "e-1", "scope": "acme", "document": "parcel", "key": "P7"}}


def load(body, data=""):
    return statemachine.scxml(
        f'<scxml name="parcel" version="1.0"><datamodel>{data}</datamodel>{body}</scxml>'
    )


def create(chart):
    return chart.create(data=DATA, now=NOW)


def step(chart, position, name, data=None, **event):
    return chart.step(position, Event(name, {} if data is None else data, **event), event_id="m-1", now=NOW)


def entering(content, data=""):
    """The first step of a chart whose one state does `content` when it is entered."""
    return create(load(f'<state id="a"><onentry>{content}</onentry></state>', data))


def evaluated(expr, data=""):
    """The value of an expression, as the position keeps it."""
    step = entering(f'<assign location="found" expr="{expr}"/>', f'<data id="found"/>{data}')
    assert step.errors == ()
    return step.position["data"]["found"]


# -- Effects ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("send", "expected"),
    [
        ('event="e" target="billing"', Send("e", target="billing")),
        ('eventexpr="\'e.\' + kind" target="billing"', Send("e.x", target="billing")),
        ('event="e" target="billing" type="sms"', Send("e", target="billing", type="sms")),
        ('event="e" target="billing" typeexpr="kind + \'ms\'"', Send("e", target="billing", type="xms")),
        ('event="e" target="billing" type="scxml"', Send("e", target="billing")),
        ('event="e" type="sms"', Send("e", type="sms")),
        ('event="e" target="billing" id="s-1"', Send("e", target="billing", send_id="s-1")),
        ('event="e" target="billing" namelist="kind n"', Send("e", {"kind": "x", "n": 2}, target="billing")),
        ('event="e" delay="1.5s"', Send("e", delay=timedelta(seconds=1.5))),
        ('event="e" delay="250ms"', Send("e", delay=timedelta(milliseconds=250))),
        ('event="e" delayexpr="str(n) + \'s\'"', Send("e", delay=timedelta(seconds=2))),
        ('event="e" delayexpr="n * 1000"', Send("e", delay=timedelta(seconds=2))),
        ('event="e" delayexpr="3s"', Send("e", delay=timedelta(seconds=3))),
        ('event="e" delay="0s" target="billing"', Send("e", target="billing")),
        ('event="e" delay="1s" target="billing"', Send("e", target="billing", delay=timedelta(seconds=1))),
        ('event="e" delay="1s" target="#_scxml_e-1"', Send("e", delay=timedelta(seconds=1))),
        (
            'event="e" delay="1s" targetexpr="\'#_scxml_\' + _sessionid"',
            Send("e", delay=timedelta(seconds=1)),
        ),
    ],
)
def test_a_send_is_handed_on(send, expected):
    """Everything that a <send> says is in the effect; the time it takes is relative."""
    data = '<data id="kind" expr="\'x\'"/><data id="n" expr="2"/>'
    stepped = entering(f"<send {send}/>", data)
    assert stepped.errors == ()
    assert stepped.effects == (expected,)


@pytest.mark.parametrize(
    ("content", "data"),
    [
        ('<param name="a" expr="n"/><param name="b" location="n"/>', {"a": 2, "b": 2}),
        ('<param name="a" expr="[n, {\'k\': None}]"/>', {"a": [2, {"k": None}]}),
        ("<content>{&quot;k&quot;: [true, null]}</content>", {"k": [True, None]}),
        ("<content>two words</content>", "two words"),
        ("<content>17</content>", 17),
        ('<content expr="n + 1"/>', 3),
        ("<content><b x='1'>t</b></content>", '<b x="1">t</b>'),
        ("", None),
    ],
)
def test_what_a_send_carries(content, data):
    """Params, content and its expression arrive as JSON."""
    stepped = entering(f'<send event="e" target="billing">{content}</send>', '<data id="n" expr="2"/>')
    assert stepped.effects == (Send("e", data, target="billing"),)


def test_effects_keep_their_order():
    """Sends and cancels are handed on in the order in which the chart made them."""
    stepped = entering(
        """<send event="a" delay="1s" id="t"/><cancel sendid="t"/>
           <if cond="n == 2"><send event="b" target="x"/>
           <else/><send event="never" target="x"/></if>
           <foreach array="[1, 2]" item="i">
             <send event="c" target="x"><param name="i" expr="i"/></send></foreach>""",
        '<data id="n" expr="2"/><data id="i"/>',
    )
    assert stepped.effects == (
        Send("a", delay=timedelta(seconds=1), send_id="t"),
        Cancel("t"),
        Send("b", target="x"),
        Send("c", {"i": 1}, target="x"),
        Send("c", {"i": 2}, target="x"),
    )


def test_a_send_to_itself_is_taken_in_the_same_step():
    """Internal events first, then those a chart sent itself, each settled before the next."""
    chart = load(
        """<state id="a"><transition event="go" target="b"/></state>
           <state id="b"><onentry>
               <send event="later"><param name="n" expr="1"/></send>
               <send event="at.once" target="#_internal"><param name="n" expr="2"/></send>
               <raise event="raised"/></onentry>
             <transition event="*">
               <assign location="log" expr="log + [[_event.name, _event.type]]"/></transition>
             <transition event="never" target="a"/></state>""",
        '<data id="log" expr="[]"/>',
    )
    stepped = step(chart, create(chart).position, "go")
    assert stepped.effects == ()
    assert stepped.position["data"]["log"] == [
        ["at.once", "internal"],
        ["raised", "internal"],
        ["later", "external"],
    ]


def test_generated_ids_are_counted():
    """`idlocation` names an id that no other send of the execution has, the same at every replay."""
    chart = load(
        """<state id="a"><transition event="go">
           <send event="x" delay="1s" idlocation="one"/><send event="x" delay="1s" idlocation="two"/>
           </transition></state>""",
        '<data id="one"/><data id="two"/>',
    )
    first = step(chart, create(chart).position, "go")
    second = step(chart, json.loads(json.dumps(first.position)), "go")
    ids = [effect.send_id for effect in (*first.effects, *second.effects)]
    assert len(set(ids)) == 4
    assert ids == [
        *(first.position["data"][name] for name in ("one", "two")),
        *(second.position["data"][name] for name in ("one", "two")),
    ]
    assert step(chart, create(chart).position, "go") == first


@pytest.mark.parametrize(
    ("send", "event", "sendid"),
    [
        ('event="e" target="#_parent" id="s"', "error.communication", "s"),
        ('event="e" target="#_nobody"', "error.communication", None),
        ('event="e" target="#_scxml_other" id="s"', "error.communication", "s"),
        ('event="e" type="27" id="s"', "error.execution", "s"),
        ('event="e" namelist="nothing" id="s"', "error.execution", "s"),
        ('event="e" delayexpr="\'soon\'" id="s"', "error.execution", "s"),
        ('event="e" delayexpr="0 - 5"', "error.execution", None),
        ('eventexpr="None"', "error.execution", None),
        ('event="e" targetexpr="_event.origin"', "error.execution", None),
    ],
)
def test_a_send_that_cannot_be_made_is_an_error_of_the_chart(send, event, sendid):
    """The chart hears which send it was, the step tells it, and the rest of the block is not run."""
    chart = load(
        f"""<state id="a"><onentry><send {send}/></onentry>
            <transition event="error.*" target="b">
              <assign location="heard" expr="[_event.name, _event.sendid]"/></transition></state>
            <state id="b"/>""",
        '<data id="heard"/>',
    )
    created = create(chart)
    assert created.active == ("b",)
    assert created.position["data"]["heard"] == [event, sendid]
    assert created.effects == ()
    assert len(created.errors) == 1


def test_a_computed_target_outside_is_told():
    """`_event.origin` of an event from elsewhere is another execution: not the session itself."""
    chart = load(
        """<state id="a"><transition event="ask">
             <send event="answer" targetexpr="_event.origin"/></transition>
           <transition event="answer" target="b"/>
           <transition event="own"><send event="ask"/></transition></state><state id="b"/>"""
    )
    position = create(chart).position
    outside = step(chart, position, "ask", origin="e-2")
    assert outside.active == ("a",)
    assert outside.effects == ()
    assert "e-2" in outside.errors[0]
    assert step(chart, position, "own").active == ("b",)


# -- What expressions see -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        ("_sessionid", "e-1"),
        ("_name", "parcel"),
        ("execution.id", "e-1"),
        ("execution['key']", "P7"),
        ("now", "2026-01-02T03:04:05.000000+00:00"),
        ("In('a')", True),
        ("In('elsewhere')", False),
        ("_event", None),
        ("_ioprocessors['scxml'].location", "#_scxml_e-1"),
        ("[true, false, null]", [True, False, None]),
        ("[x for x in [1, 2, 3] if x &gt; n]", [3]),
        ("sum(x * n for x in [1, 2])", 6),
        ("limit(5)", 2),
        ("math.floor(2.5)", 2),
        ("row.name", "first"),
        ("list(row.items())[0][0]", "name"),
    ],
)
def test_names_of_an_expression(expr, value):
    """System variables, the execution, the instant, the datamodel, and the document's own functions."""
    chart = statemachine.scxml(
        f"""<scxml name="parcel"><datamodel><data id="n" expr="2"/><data id="found"/>
            <data id="row">{{"name": "first"}}</data></datamodel>
            <script>
                import math
                def limit(value):
                    return min(value, math.inf, 2)
            </script>
            <state id="a"><onentry><assign location="found" expr="{expr}"/></onentry></state></scxml>"""
    )
    created = create(chart)
    assert created.errors == ()
    assert created.position["data"]["found"] == value
    assert "limit" not in created.position["data"]


def test_the_event():
    """`_event` says what came, from where and under which id; its data is read by field."""
    chart = load(
        """<state id="a"><transition event="scan">
           <assign location="seen" expr="[_event.name, _event.type, _event.origin, _event.sendid,
                                         _event.invokeid]"/>
           <assign location="fields" expr="[_event.data.depot.city, _event.data['lines'][0].sku,
                                           _event.data.get('none', 7), 'depot' in _event.data,
                                           len(_event.data)]"/>
           <assign location="depot" expr="_event.data.depot"/>
           <assign location="depot.city" expr="depot.city.upper()"/>
           </transition>
           <transition event="later" cond="depot.city == 'LYON'" target="b"/></state><state id="b"/>""",
        '<data id="seen"/><data id="fields"/><data id="depot"/>',
    )
    data = {"depot": {"city": "Lyon"}, "lines": [{"sku": "k"}]}
    stepped = step(chart, create(chart).position, "scan", data, origin="e-2", send_id="s-9")
    kept = stepped.position["data"]
    assert stepped.errors == ()
    assert kept["seen"] == ["scan", "external", "e-2", "s-9", ""]
    assert kept["fields"] == ["Lyon", "k", 7, True, 2]
    assert kept["depot"] == {"city": "LYON"}
    assert data["depot"] == {"city": "Lyon"}
    assert step(chart, json.loads(json.dumps(stepped.position)), "later").active == ("b",)


@pytest.mark.parametrize("data", [{}, None, 5, "text", [1, {"a": 2}], {"a": None}])
def test_event_data_of_every_kind(data):
    """The data of an event need not be an object."""
    chart = load(
        '<state id="a"><transition event="e"><assign location="d" expr="_event.data"/></transition></state>',
        '<data id="d" expr="0"/>',
    )
    stepped = chart.step(create(chart).position, Event("e", data), event_id="m", now=NOW)
    assert stepped.position["data"]["d"] == data


def test_the_time_is_the_steps():
    """A chart that asks for the time gets that of the delivery, in UTC, whatever its zone was."""
    chart = load(
        '<state id="a"><transition event="e"><assign location="at" expr="now"/></transition></state>',
        '<data id="at"/>',
    )
    position = create(chart).position
    for now in (NOW, NOW.astimezone(timezone(timedelta(hours=5)))):
        stepped = chart.step(position, Event("e"), event_id="m", now=now)
        assert stepped.position["data"]["at"] == "2026-01-02T03:04:05.000000+00:00"


def test_system_variables_cannot_be_assigned():
    """What the interpreter says of itself is not the document's to change."""
    for name in ("_sessionid", "_event", "_name", "_active", "model", "machine", "__class__"):
        stepped = entering(f'<assign location="{name}" expr="1"/>')
        assert len(stepped.errors) == 1
        assert stepped.position["data"] == DATA


def test_a_script_binds_variables():
    """What a script binds is kept; names that begin with an underscore are its own."""
    stepped = entering(
        "<script>\n  total = sum(n * 2 for n in rows)\n  rows.append(total)\n  _t = 1\n</script>",
        '<data id="rows" expr="[1, 2]"/>',
    )
    assert stepped.errors == ()
    assert stepped.position["data"] == {**DATA, "rows": [1, 2, 6], "total": 6}


def test_the_execution_is_the_hosts_to_name():
    """A document may declare `execution`; its value comes from outside. Other data is its own."""
    chart = load('<state id="a"/>', '<data id="execution" expr="5"/>')
    assert create(chart).position["data"] == DATA
    assert chart.create(data={}, now=NOW).position["data"] == {"execution": None}


# -- Errors -------------------------------------------------------------------------------------------


def test_an_error_in_the_datamodel_is_told():
    """One variable that cannot be computed leaves the others as they are."""
    created = create(load('<state id="a"/>', '<data id="x" expr="1 / 0"/><data id="y" expr="2"/>'))
    assert created.errors == ("ZeroDivisionError: division by zero",)
    assert created.position["data"] == {**DATA, "x": None, "y": 2}


def test_an_error_while_an_error_is_handled_is_told():
    """The library drops it, lest a handler fail for ever."""
    chart = load(
        """<state id="a"><transition event="go"><assign location="x" expr="1 / 0"/></transition>
           <transition event="error.execution"><assign location="x" expr="[].pop()"/></transition></state>""",
        '<data id="x"/>',
    )
    stepped = step(chart, create(chart).position, "go")
    assert stepped.errors == ("ZeroDivisionError: division by zero", "IndexError: pop from empty list")


def test_the_same_step_tells_the_same_error():
    """An address in an error's text would differ from process to process."""
    chart = load(
        '<state id="a"><transition event="go"><assign location="x" expr="{}[object()]"/></transition>'
        "</state>",
        '<data id="x"/>',
    )
    stepped = step(chart, create(chart).position, "go")
    assert stepped.errors == ("KeyError: <object object>",)


def test_an_error_in_a_condition_of_an_if_is_told():
    """The branch is not taken, and the chart hears why."""
    stepped = entering('<if cond="missing"><assign location="x" expr="1"/></if>', '<data id="x"/>')
    assert stepped.errors == ("NameError: name 'missing' is not defined",)


def test_log_prints_nothing(capsys):
    """The library prints; a log is for whoever asks for it, and its errors are told."""
    stepped = entering('<log label="here" expr="1 + 1"/><log expr="missing"/>')
    assert capsys.readouterr() == ("", "")
    assert stepped.errors == ("NameError: name 'missing' is not defined",)


def test_events_sent_without_end_fail_the_step():
    """Sending itself an event for each event is a loop like any other."""
    chart = load(
        """<state id="a"><transition event="go"><send event="go"/></transition>
           <transition event="quiet"/></state>"""
    )
    position = create(chart).position
    stepped = step(chart, position, "go")
    assert stepped.outcome == "failed"
    assert stepped.position is position
    assert step(chart, position, "quiet").outcome == "moved"


def test_as_many_microsteps_as_there_may_be():
    """A chart that settles at the thousandth microstep has settled."""
    chart = load(
        """<state id="a"><transition event="go" target="b"/></state>
           <state id="b"><transition cond="n &lt; limit">
             <assign location="n" expr="n + 1"/></transition></state>""",
        '<data id="n" expr="0"/><data id="limit" expr="999"/>',
    )
    position = create(chart).position
    assert step(chart, position, "go").position["data"]["n"] == 999
    more = {**position, "data": {**position["data"], "limit": 1000}}
    assert step(chart, more, "go").outcome == "failed"


# -- Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<scxml", "not XML"),
        ("<html/>", "no <scxml>"),
        ("<!DOCTYPE scxml [<!ENTITY a 'b'>]><scxml><state id='a'/></scxml>", "DOCTYPE"),
        ("<scxml><state id='a'/><state id='a'/></scxml>", "'a'"),
        ("<scxml><state id='a'><transition event='e' target='b'/></state></scxml>", "'b'"),
        ("<scxml><datamodel><data id='x' src='file:x.json'/></datamodel><state id='a'/></scxml>", "src"),
        ("<scxml><script src='x.py'/><state id='a'/></scxml>", "src"),
        ("<scxml><datamodel><data id='state'/></datamodel><state id='a'/></scxml>", "'state'"),
        ("<scxml><state id='a'><onentry><send event='e' delay='soon'/></onentry></state></scxml>", "'soon'"),
        (
            "<scxml><state><onexit><send event='e' delay='1s' target='internal'/></onexit></state></scxml>",
            "delayed and internal",
        ),
        ("<scxml><state id='a'><onentry><cancel/></onentry></state></scxml>", "sendid"),
        ("<scxml><script>def</script><state id='a'/></scxml>", "SyntaxError"),
        (
            "<scxml><parallel id='p'><state id='a'><invoke src='x'/></state></parallel></scxml>",
            "<invoke> in state 'a'",
        ),
    ],
)
def test_a_document_is_refused_at_load(text, says):
    """The error is one line and names what is wrong."""
    with pytest.raises(ConfigError) as caught:
        statemachine.scxml(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [None, b"<scxml/>", 5])
def test_a_document_is_text(text):
    """Bytes are refused: which encoding they are in is the caller's to know."""
    with pytest.raises(ConfigError, match="text"):
        statemachine.scxml(text)


@pytest.mark.parametrize(
    "position",
    [
        None,
        {},
        [],
        {"states": ["a"]},
        {"states": "a", "data": {}},
        {"states": ["nowhere"], "data": {}},
        {"states": [], "data": {}},
        {"states": ["a", "p"], "data": {}},
        {"states": ["r1"], "data": {}},
        {"states": ["r1", "a"], "data": {}},
        {"states": ["a"], "data": []},
        {"states": ["a"], "data": {}, "history": {"h": ["a"]}},
        {"states": ["a"], "data": {}, "extra": 1},
    ],
)
def test_a_position_of_another_chart_is_refused(position):
    """Unknown states, or states that cannot be active together, are no position of this chart."""
    chart = load('<state id="a"/><parallel id="p"><state id="r1"/><state id="r2"/></parallel>')
    with pytest.raises(BadPosition):
        chart.step(position, Event("e"), event_id="m", now=NOW)
    with pytest.raises(BadPosition):
        chart.configuration(position)


def test_states_are_renamed_for_a_migration():
    """A position of one revision becomes one of another by its states' new names."""
    old = load(
        """<state id="c"><history id="h"><transition target="c1"/></history>
           <state id="c1"><transition event="out" target="b"/></state></state>
           <state id="b"/>"""
    )
    new = load(
        """<state id="k"><history id="h"><transition target="k1"/></history><state id="k1"/></state>
           <state id="b"><transition event="back" target="h"/></state>"""
    )
    position = step(old, create(old).position, "out").position
    with pytest.raises(BadPosition):
        new.configuration(position)
    renamed = new.rename(position, {"c": "k", "c1": "k1"})
    assert new.configuration(renamed) == ("b",)
    assert step(new, renamed, "back").active == ("k1",)


# -- What makes a revision ----------------------------------------------------------------------------


def test_the_hash_is_that_of_the_text():
    """SHA-256 of the document's bytes: another space is another revision."""
    text = "<scxml><state id='ä'/></scxml>"
    chart = statemachine.scxml(text)
    assert chart.content_hash == hashlib.sha256(text.encode()).hexdigest()
    assert chart.source == text
    assert statemachine.scxml(text + " ").content_hash != chart.content_hash
    assert chart.interpreter == "scxml"
    assert chart.answers_checked


def test_the_library_is_an_extra(monkeypatch):
    """Without it, the error names the extra."""
    monkeypatch.setitem(sys.modules, "statemachine", None)
    with pytest.raises(MissingExtra, match=r"statifier-router\[statemachine\]") as caught:
        statemachine.scxml("<scxml><state id='a'/></scxml>")
    assert caught.value.extra == "statemachine"
    with pytest.raises(MissingExtra):
        statemachine.chart(object, version="1")


def test_a_byte_order_mark_and_namespaces():
    """Documents come with marks, declarations and prefixes."""
    chart = statemachine.scxml(
        '\ufeff<?xml version="1.0" encoding="UTF-8"?><s:scxml xmlns:s="http://www.w3.org/2005/07/scxml">'
        '<s:state id="a"><s:transition event="e" target="z"/></s:state><s:final id="z"/></s:scxml>'
    )
    assert step(chart, create(chart).position, "e").status == "completed"


def test_large_data_and_every_plane():
    """A megabyte and every plane of Unicode pass through a position unharmed."""
    chart = load(
        '<state id="a"><transition event="e"><assign location="d" expr="_event.data"/></transition></state>',
        '<data id="d"/>',
    )
    data = {"big": "x" * (1 << 20), "".join(chr(plane << 16 | 0x41) for plane in range(17)): "\x00"}
    stepped = step(chart, create(chart).position, "e", data)
    assert stepped.position["data"]["d"] == data
    again = step(chart, json.loads(json.dumps(stepped.position)), "e", data)
    assert again.position == stepped.position


def test_no_position_is_kept_by_a_failure():
    """A step that failed leaves nothing behind in the machine that made it."""
    chart = load(
        """<state id="a"><transition event="loop" target="b"/>
           <transition event="odd"><assign location="x" expr="{1}"/></transition>
           <transition event="n"><assign location="x" expr="x + 1"/></transition></state>
           <state id="b"><transition target="a">
             <assign location="x" expr="x + 1"/><raise event="loop"/></transition></state>""",
        '<data id="x" expr="0"/>',
    )
    position = create(chart).position
    assert step(chart, position, "loop").outcome == "failed"
    with pytest.raises(RouterError):
        step(chart, position, "odd")
    assert step(chart, position, "n").position == {**position, "data": {**DATA, "x": 1}}


# -- What charts are made of ----------------------------------------------------------------------------


def test_donedata_of_a_nested_final():
    """Its parameters may have any names: the library would lose those that are its own."""
    names = ("state", "data", "send_id", "machine", "error", "event", "target")
    params = "".join(f'<param name="{name}" expr="\'{name}\'"/>' for name in names)
    chart = load(
        f"""<state id="c"><state id="c1"><transition event="e" target="cf"/></state>
              <final id="cf"><donedata>{params}</donedata></final>
              <transition event="done.state.c" target="d">
                <assign location="got" expr="_event.data"/></transition>
            </state><state id="d"/>""",
        '<data id="got"/>',
    )
    stepped = step(chart, create(chart).position, "e")
    assert stepped.active == ("d",)
    assert stepped.position["data"]["got"] == {name: name for name in names}


def test_an_outermost_parallel_ends_with_its_regions():
    """Once every region rests in a final, the execution is completed, and stays it when restored."""
    region = """<state id="{0}"><state id="{0}1"><transition event="{0}" target="{0}f"/></state>
                <final id="{0}f"/></state>"""
    chart = load(f'<parallel id="p">{region.format("a")}{region.format("b")}</parallel>')
    half = step(chart, create(chart).position, "b")
    assert (half.active, half.status) == (("a1", "bf"), "active")
    done = step(chart, half.position, "a")
    assert (done.active, done.status, done.donedata) == (("af", "bf"), "completed", NO_DATA)
    assert step(chart, json.loads(json.dumps(done.position)), "a").status == "completed"


def test_a_chart_that_ends_where_it_begins():
    """A create may complete the execution, with donedata and effects."""
    chart = load(
        """<state id="a"><transition target="z"><send event="e" target="billing"/></transition></state>
           <final id="z"><donedata><content expr="{'n': 1}"/></donedata></final>"""
    )
    created = create(chart)
    assert (created.status, created.donedata, created.effects) == (
        "completed",
        {"n": 1},
        (Send("e", target="billing"),),
    )


def test_internal_transitions_and_branches():
    """An internal transition does not leave its state; loops and branches see the event and the states."""
    chart = load(
        """<state id="s" initial="s1"><onentry><assign location="n" expr="n + 1"/></onentry>
             <transition event="int" type="internal" target="s2"/><transition event="ext" target="s2"/>
             <transition event="each"><foreach array="_event.data.lines" item="line" index="at">
               <if cond="line.size == 2 &amp;&amp; at === 1"><assign location="n" expr="n + 100"/>
               <elseif cond="In('s2')"/><assign location="n" expr="n + 10"/>
               <else/><assign location="n" expr="n + 1000"/></if></foreach></transition>
             <state id="s1"/><state id="s2"/></state>""",
        '<data id="n" expr="0"/><data id="line"/><data id="at"/>',
    )
    position = step(chart, create(chart).position, "int").position
    assert position["data"]["n"] == 1
    position = step(chart, position, "ext").position
    assert position["data"]["n"] == 2
    stepped = step(chart, position, "each", {"lines": [{"size": 2}, {"size": 2}]})
    assert stepped.errors == ()
    assert stepped.position["data"]["n"] == 112
