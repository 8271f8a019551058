"""`reap` and `prune`: everything that is due, in batches, and counted."""

from __future__ import annotations

import sys
import types
from datetime import timedelta

import attrs
import pytest

from statifier_router import Dedupe, Message, executions, ledger, route
from tests.support import charts
from tests.support.charts import NOW
from tests.support.command_line import run

CONFIG = ("--config", "the_host:config")


@pytest.fixture
def at(database, make_config, monkeypatch):
    """`at(later, **kw)`: the configuration of the commands, its clock that much later."""
    module = types.ModuleType("the_host")
    monkeypatch.setitem(sys.modules, "the_host", module)
    first = make_config(database, charts=charts.registry(parcel=charts.obedient()), bindings=[charts.scans()])

    def at(later=timedelta(0), **kw):
        module.config = attrs.evolve(first, clock=lambda: NOW + later, **kw)
        return module.config

    return at


def deliver(config, count=5, *, scope="acme"):
    for number in range(count):
        data = {"parcel": f"P{number}", "do": "finished"}
        route(config, Message("carrier", f"m-{scope}-{number}", scope, data))


def test_reap_goes_on_until_nothing_is_due(at):
    """Claims go when they have expired, addresses a horizon after their execution was seen ended."""
    deliver(at())
    nothing = run("reap", "--json", *CONFIG).json
    assert nothing == {"claims": {"deleted": 0}, "addresses": {"stamped": 5, "deleted": 0}}
    at(timedelta(days=4))
    due = run("reap", "--limit", "2", "--json", *CONFIG).json
    assert due == {"claims": {"deleted": 5}, "addresses": {"stamped": 0, "deleted": 5}}
    assert run("reap", *CONFIG).out == "claims: 0 deleted\naddresses: 0 deleted, 0 newly seen ended\n"


def test_bindings_that_are_resolved_are_those_of_every_scope_with_an_address(at):
    """The longest horizon of any scope counts; ids may be the same in each."""
    horizons = {"acme": timedelta(hours=1), "umbrella": timedelta(days=30)}

    def resolver(scope):
        return [charts.scans(dedupe=Dedupe(horizons[scope]))]

    resolving = {"bindings": (), "bindings_resolver": resolver}
    config = at(**resolving)
    deliver(config, 2, scope="acme")
    deliver(config, 2, scope="umbrella")
    assert run("reap", "--json", *CONFIG).json["addresses"] == {"stamped": 4, "deleted": 0}
    at(timedelta(days=2), **resolving)
    assert run("reap", "--json", *CONFIG).json["addresses"] == {"stamped": 0, "deleted": 0}
    at(timedelta(days=31), **resolving)
    assert run("reap", "--json", *CONFIG).json["addresses"] == {"stamped": 0, "deleted": 4}


def test_prune_takes_ages_and_instants(at):
    deliver(at())
    config = at(timedelta(hours=3))
    none = run("prune", "--ledger-before", "4h", "--executions-before", "2026-03-01T12:00:00Z", *CONFIG)
    assert none.out == "ledger: 0 pruned\nexecutions: 0 pruned\n"
    done = run("prune", "--ledger-before", "180m", "--executions-before", "2h", "--limit", "2", *CONFIG)
    assert done.out == "ledger: 0 pruned\nexecutions: 5 pruned\n"
    last = run("prune", "--ledger-before", "2026-03-01T13:00:01+01:00", "--json", *CONFIG).json
    assert last == {"before": {"ledger": "2026-03-01T12:00:01Z"}, "pruned": {"ledger": 5}}
    assert ledger.rows(config) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to prune: give --ledger-before, --executions-before,"),
        (["--ledger-before", "soon"], "--ledger-before must be an instant such as"),
        (["--ledger-before", "-3d"], "--ledger-before must be an instant such as"),
        (["--executions-before", "2026-01-01"], "--executions-before has no time zone: '2026-01-01'"),
        (["--executions-before", "2026-03-02T00:00:00Z"], "--executions-before lies in the future"),
        (["--ledger-before", "999999w"], "--ledger-before: 999999w reaches back before the year 1"),
        (["--ledger-before", "1d", "--limit", "0"], "limit must be from 1 to 1,000,000, not 0"),
    ],
)
def test_a_faulty_cut_is_one_line_that_names_it_and_prunes_nothing(at, arguments, says):
    config = at()
    deliver(config)
    done = run("prune", *arguments, *CONFIG)
    assert (done.code, done.out) == (2, "")
    assert says in done.error
    assert len(ledger.rows(config)) == 5
    assert executions.inputs(config, ledger.rows(config)[0].execution_id)
