"""`ChartStore`: every revision in use loads in every process, or says why not; retirement and creation
take turns.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import types
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from sqlalchemy import delete, event, text
from sqlalchemy.pool import NullPool

from statifier_router import (
    ChartNotResolved,
    ChartStore,
    Config,
    ConfigError,
    CreatedAndDelivered,
    DatabaseFault,
    Delivered,
    ExecutionBusy,
    Plan,
    SchemaError,
    Send,
    Step,
    Tables,
    Unresolved,
    UnresolvedDocument,
    aio,
    ambient,
    chart_store,
    chart_table,
    deliver_event,
    executions,
    migrations,
    route,
)
from statifier_router.interpreters import function, loading, statemachine
from tests.support import processes, stored
from tests.support.awaiting import url_of
from tests.support.charts import NOW, Calling, envelope, obedient
from tests.support.racing import PLANS, TIMEOUT, Beside, WritingPlainly, blocked, open_transaction, threads

SECOND = timedelta(seconds=1)
PLAN = Plan("jobs", "parcel")

# Bound to names of this module, so that they can be saved.
obeying = obedient()
obeying_2 = obedient(version="2")
obeying_3 = obedient(version="3")
calling = Calling()


def _arm(position: Any, event: Any, now: Any) -> Step:
    ends = event.name == "end"
    effects = [] if ends else [Send("later", delay=timedelta(hours=1))]
    return Step(position, status="completed" if ends else "active", effects=effects)


def _send(position: Any, event: Any, now: Any) -> Step:
    """A step that sends to another document's execution."""
    target = {"document": "neighbour", "key": "N1"}
    return Step(position, effects=[Send("hello", {"to": target}, target="neighbour")])


arming = function.chart("arming", create=lambda data, now: Step({}), step=_arm)


@pytest.fixture
def store(database) -> ChartStore:
    # It keeps no connection: the logs are folded, and charts asked for, after the database's own end.
    return ChartStore(database.engine(poolclass=NullPool))


@pytest.fixture
def configure(database, make_config):
    """`configure(store, **kw)`: a configuration whose charts are the store's."""

    def make(store, **kw):
        return make_config(database, charts=store, **kw)

    return make


@pytest.fixture
def beside() -> Iterator[Beside]:
    with threads() as beside:
        yield beside


@pytest.fixture
def module(tmp_path, monkeypatch):
    """`module(text)`: writes a module that this process and its children can import, and imports it anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = set()

    def write(source: str | None, name: str = "shipped_charts") -> str:
        names.add(name)
        sys.modules.pop(name, None)
        file = Path(tmp_path, f"{name}.py")
        if source is None:
            file.unlink()
        else:
            file.write_text(source)
        importlib.invalidate_caches()
        return name

    def make(source: str, name: str = "shipped_charts") -> Any:
        return importlib.import_module(write(source, name))

    make.write = write
    make.directory = str(tmp_path)
    yield make
    for name in names:
        sys.modules.pop(name, None)


def put(config, name="scanned", message_id="e-1", key="P7"):
    return deliver_event(config, PLAN, key, envelope(name, f"{message_id} {key}"))


# --- other processes ----------------------------------------------------------------------------------


def test_every_kind_of_chart_loads_in_a_fresh_process(database, store):
    """SCXML by its text, Python charts by `module:name`, with version and hash; each answers alike there."""
    for kind, chart in stored.EVERY.items():
        store.save(chart, document=kind, now=NOW)
    rows = {row.content_hash: row for row in store.charts()}
    for kind, source, version in [
        ("scxml", stored.SCXML, None),
        ("class", "tests.support.stored:of_class", "7"),
        ("function", "tests.support.stored:of_functions", "3"),
        ("flat", "tests.support.stored:flat", "1"),
        ("nested", "tests.support.stored:nested", "1"),
    ]:
        chart, row = stored.EVERY[kind], rows[stored.EVERY[kind].content_hash]
        assert (row.source, row.version, row.document, row.created_at) == (source, version, kind, NOW)
        assert (row.interpreter, row.retired_at, row.unloadable) == (chart.interpreter, None, None)
    answers = processes.run("tests.support.stored:told", database.url, list(rows))
    here = {chart.content_hash: stored.course(chart) for chart in stored.EVERY.values()}
    assert answers == here


def test_live_executions_go_on_in_another_process(database, store, configure):
    """The next messages may come to a process that never saw the charts."""
    config = configure(store, bindings=stored.bindings())
    created = {}
    for kind, chart in stored.EVERY.items():
        store.save(chart, document=kind)
        outcomes = route(config, stored.message(kind, "m-1"), now=NOW)
        (created[kind],) = [each.execution_id for each in outcomes if isinstance(each, CreatedAndDelivered)]
    assert processes.run("tests.support.stored:routed", database.url) == {
        kind: ["delivered", "delivered"] for kind in stored.EVERY
    }
    for kind, id in created.items():
        execution = executions.fetch(config, id)
        assert (execution.status, execution.content_hash) == ("completed", stored.EVERY[kind].content_hash)
        assert execution.position.get("data", execution.position)["scans"] == 2


# --- revisions that are gone --------------------------------------------------------------------------


GONE = {
    "another revision": (stored.shipped("2"), "shipped_charts:parcel is another revision now, "),
    "no module": (None, "ModuleNotFoundError: No module named 'shipped_charts'"),
    "no name": ("parcels = 1\n", "AttributeError: module 'shipped_charts' has no attribute 'parcel'"),
    "no chart": ("parcel = 1\n", "shipped_charts:parcel must be a Chart; int has no text content_hash"),
    "faulty": ("parcel = 1 / 0\n", "ZeroDivisionError: division by zero"),
    "no Python": ("parcel = (\n", "SyntaxError: '(' was never closed"),
    "ends the program": ("raise SystemExit(3)\n", "SystemExit: 3"),
}


@pytest.mark.parametrize("how", GONE)
@pytest.mark.no_fold(reason="the chart of the log is gone")
def test_a_hash_in_use_that_no_longer_loads(database, store, configure, module, how):
    """The door tells both hashes' worth: which is gone, why, and the two cures; nothing is written."""
    text, why = GONE[how]
    chart = module(stored.shipped("1")).parcel
    store.save(chart, document="parcel")
    id = put(configure(store)).execution_id
    module.write(text)
    fresh = ChartStore(database.engine(poolclass=NullPool))
    assert fresh.by_hash(chart.content_hash) is None
    assert why in fresh.why_not(chart.content_hash)
    assert why in fresh.charts()[0].unloadable
    config = configure(fresh)
    with pytest.raises(ChartNotResolved) as raised:
        put(config, message_id="e-2")
    assert (raised.value.content_hash, raised.value.execution_id) == (chart.content_hash, id)
    for part in (chart.content_hash, why, "publish that revision beside the newer one", "migrate"):
        assert part in str(raised.value)
    assert "\n" not in str(raised.value)
    assert executions.fetch(config, id).revision == 1
    with pytest.raises(UnresolvedDocument, match="does not load") as unresolved:
        put(config, key="P8")
    assert why in unresolved.value.reason
    if how == "another revision":
        asked = (database.url, [chart.content_hash], module.directory)
        assert why in processes.run("tests.support.stored:told", *asked)[chart.content_hash]


@pytest.mark.no_fold(reason="its module is gone by then; the test folds for itself")
def test_both_cures(database, store, configure, module):
    """The old revision under a name of its own beside the new loads again; or an execution is moved over."""
    old = module(stored.shipped("1")).parcel
    store.save(old, document="parcel")
    first, second = (put(configure(store), key=key).execution_id for key in ("P1", "P2"))
    new = module(stored.shipped("2")).parcel
    fresh = ChartStore(database.engine(poolclass=NullPool))
    fresh.save(new, document="parcel")
    config = configure(fresh)
    with pytest.raises(ChartNotResolved):
        put(config, "scanned", "e-2", "P1")
    executions.migrate(config, first, new, mapping={})
    assert isinstance(put(config, "scanned", "e-2", "P1"), Delivered)
    beside = module(stored.shipped("1"), "shipped_before").parcel
    ChartStore(database.engine()).save(beside)
    assert isinstance(put(config, "scanned", "e-2", "P2"), Delivered)
    assert executions.fetch(config, first).content_hash == new.content_hash
    assert executions.fetch(config, second).content_hash == old.content_hash
    assert executions.fetch(config, second).position == {"scans": 2}
    assert all(executions.replay(config, id).agrees for id in (first, second))


# --- documents, scopes, revisions ---------------------------------------------------------------------


def test_saving_again_goes_back_to_an_earlier_revision(store, configure):
    """The last one saved is for new executions; each existing one keeps its own."""
    config = configure(store)
    hashes = []
    for number, chart in enumerate([obeying, obeying_2, obeying_3, obeying]):
        store.save(chart, document="parcel")
        assert store.resolve("acme", "parcel") is chart
        hashes.append(
            executions.fetch(config, put(config, "scanned", "e-1", f"P{number}").execution_id).content_hash
        )
    charts = [obeying, obeying_2, obeying_3, obeying]
    assert hashes == [chart.content_hash for chart in charts]
    for number in range(4):
        assert isinstance(put(config, "scanned", "e-2", f"P{number}"), Delivered)
    assert len(store.charts()) == 3


def test_a_scope_may_have_its_own(database, store):
    """A chart saved in a scope goes before the one for every scope; the empty scope is a scope."""
    store.save(obeying_2, document="parcel", scope="acme")
    with pytest.raises(Unresolved):
        store.resolve("globex", "parcel")
    store.save(obeying, document="parcel")
    store.save(obeying_3, document="parcel", scope="")
    for reader in (store, ChartStore(database.engine())):
        assert reader.resolve("acme", "parcel") is obeying_2
        assert reader.resolve("globex", "parcel") is obeying
        assert reader.resolve("", "parcel") is obeying_3
        assert reader.by_hash(obeying_2.content_hash) is obeying_2


def test_a_chart_may_be_kept_without_a_document(store):
    """For executions that still run on it, beside the one that new executions run on."""
    store.save(obeying)
    assert store.by_hash(obeying.content_hash) is obeying
    with pytest.raises(Unresolved) as raised:
        store.resolve("acme", "parcel")
    assert raised.value.reason == "no chart was saved for it"
    assert store.by_hash("nothing") is None
    assert store.why_not("nothing") == "it was never saved"
    assert store.why_not(obeying.content_hash) is None


def test_the_charts_come_in_pages(store):
    """By hash, each with whether it still loads."""
    for chart in (obeying, obeying_2, obeying_3):
        store.save(chart, document="parcel", now=NOW)
    hashes = sorted(chart.content_hash for chart in (obeying, obeying_2, obeying_3))
    assert [row.content_hash for row in store.charts(limit=2)] == hashes[:2]
    assert [row.content_hash for row in store.charts(limit=2, after=hashes[1])] == hashes[2:]
    with pytest.raises(ConfigError, match="limit"):
        store.charts(limit=0)


# --- what is refused ----------------------------------------------------------------------------------


class _Odd(Calling):
    """A chart of a host's own, whose facts a test changes."""


odd = _Odd()


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("content_hash", None, "content_hash"),
        ("content_hash", "a\x00b", "content_hash"),
        ("content_hash", "\ud800", "content_hash"),
        ("content_hash", "ü" * 100, "content_hash"),
        ("interpreter", "i" * 200, "interpreter"),
        ("version", 3, "version"),
        ("version", "v\x00", "version"),
        ("create", None, "create"),
    ],
)
def test_a_chart_that_cannot_be_kept(store, monkeypatch, name, value, field):
    """The faulty field is named, in one line, and nothing is written."""
    monkeypatch.setattr(odd, name, value, raising=False)
    with pytest.raises(ConfigError, match=field) as raised:
        store.save(odd, document="parcel")
    assert "\n" not in str(raised.value)
    assert store.charts() == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"document": ""}, "document"),
        ({"document": 7}, "document"),
        ({"document": "d" * 129}, "document"),
        ({"document": "parcel", "scope": 7}, "scope"),
        ({"document": "parcel", "scope": "s" * 129}, "scope"),
        ({"scope": "acme"}, "scope"),
        ({"document": "parcel", "now": NOW.replace(tzinfo=None)}, "now"),
    ],
)
def test_bad_arguments(store, arguments, field):
    with pytest.raises(ConfigError, match=field):
        store.save(obeying, **arguments)
    assert store.charts() == []


def test_a_store_needs_a_prepared_engine_and_tables(database):
    with pytest.raises(ConfigError, match="prepare"):
        ChartStore(database.bare_engine())
    with pytest.raises(ConfigError, match="engine"):
        ChartStore(database.url)
    with pytest.raises(ConfigError, match="tables"):
        ChartStore(database.engine(), tables="statifier_router_")


def test_a_python_chart_must_be_importable(store, monkeypatch):
    """One that no module's name is bound to cannot be had by another process."""
    for chart in (obedient(version="bound to nothing"), [obedient(version="in a list")][0]):
        with pytest.raises(ConfigError, match="bind it to a name"):
            store.save(chart)
    main = types.ModuleType("__main__")
    main.chart = obedient(version="of the main script")
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, main)
    # What else lies in `sys.modules` is nobody's business.
    monkeypatch.setitem(sys.modules, "no_module", object())
    monkeypatch.setitem(sys.modules, "nothing", None)
    with pytest.raises(ConfigError, match="main script"):
        store.save(main.chart)
    assert store.charts() == []


def test_the_module_that_makes_a_chart_is_the_one_that_is_kept(store, module):
    """Not one that imports it, whatever their names and whichever was imported first."""
    made = module(stored.shipped("1"), "shipped_made").parcel
    user = "from shipped_made import parcel\nother = [parcel]\n"
    assert module(user, "shipped_a_user").parcel is made
    assert module(user + "def f():\n    parcel = 1\n", "shipped_z_user").parcel is made
    store.save(made)
    assert [row.source for row in store.charts()] == ["shipped_made:parcel"]


class _Impostor:
    """Among the modules, as cffi's libraries do it: it says that it is one, and has no names."""

    __slots__ = ()

    @property
    def __class__(self):
        return types.ModuleType


def test_what_only_passes_itself_off_as_a_module_is_passed_over(store, module, monkeypatch):
    """Extensions put such objects among the modules; a chart is found all the same."""
    monkeypatch.setitem(sys.modules, "shipped_impostor", _Impostor())
    store.save(module(stored.shipped("1"), "shipped_made").parcel)
    assert [row.source for row in store.charts()] == ["shipped_made:parcel"]


def test_a_text_of_a_host_s_own_chart_is_not_taken_for_scxml(store, monkeypatch):
    """An attribute `source` is the chart's text only where an adapter of ours can compile it."""
    monkeypatch.setattr(odd, "source", "a text of the host's", raising=False)
    store.save(odd)
    assert [row.source for row in store.charts()] == [f"{__name__}:odd"]


# --- transactions, pools, threads ---------------------------------------------------------------------


@pytest.mark.parametrize("how", ["plain", "merged", "pipelined", "two engines"])
def test_a_pool_of_one_connection_suffices(database, make_config, how):
    """Inside a delivery, and in one that it sends, the store reads on the delivery's own connection."""
    tiny = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1}
    engine = database.engine(**tiny)
    store = ChartStore(database.engine(**tiny) if how == "two engines" else engine)
    store.save(obeying, document="parcel")
    store.save(calling, document="relay")
    # Another process's: nothing is compiled yet.
    store = ChartStore(store._engine)
    kw: dict[str, Any] = {"executor": WritingPlainly()} if how == "plain" else {}
    if how == "pipelined" and database.kind == "postgresql":
        kw["pipeline"] = True
    config = make_config(database, engine=engine, charts=store, **kw)
    if how == "two engines":
        # A connection of the store's own could not be had: the pool is empty.
        held = store._engine.connect()

    def relay(position, event, now):
        deliver_event(config, PLAN, "P7", envelope(event.name, "e-inner"))

    with calling.calling(relay):
        created = deliver_event(config, Plan("relays", "relay"), "R1", envelope())
    assert isinstance(created, CreatedAndDelivered)
    assert put(config, "scanned", "e-2").recorded == "delivered"
    if how == "two engines":
        held.close()


def test_a_store_serves_asyncio(database):
    """Over an `AsyncEngine` it reads on the coroutine's transaction, with a pool of one."""
    ChartStore(database.engine()).save(obeying, document="parcel")

    async def main():
        engine = aio.create_engine(url_of(database), pool_size=1, max_overflow=0, pool_timeout=1)
        config = Config(engine, charts=ChartStore(engine))
        try:
            return [await aio.deliver_event(config, PLAN, "P7", envelope("e", f"e-{n}")) for n in range(2)]
        finally:
            await engine.dispose()

    outcomes = asyncio.run(main())
    assert [each.recorded for each in outcomes] == ["created_and_delivered", "delivered"]


def test_a_chart_is_compiled_once_a_process(database, store, monkeypatch):
    """However many threads ask for it at once, all get one object, and later nothing is read."""
    store.save(stored.scxml, document="parcel")
    fresh = ChartStore(database.engine(poolclass=NullPool))
    barrier, found = threading.Barrier(8), []

    def ask():
        barrier.wait(10)
        found.append(fresh.by_hash(stored.scxml.content_hash))

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(TIMEOUT)
    assert len(found) == 8
    assert len({id(chart) for chart in found}) == 1
    statements = []
    event.listen(fresh._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    monkeypatch.setattr(loading, "load", None)
    assert fresh.by_hash(stored.scxml.content_hash) is found[0]
    assert statements == []
    assert fresh.resolve("acme", "parcel") is found[0]
    assert len([one for one in statements if "SELECT" in one]) == 1


def test_what_was_saved_in_a_transaction_that_is_undone(store, configure):
    """Inside a delivery a save is part of it: undone, nothing of it remains, also in this process."""
    store.save(calling, document="relay")
    config = configure(store)

    def hook(position, event, now):
        store.save(obeying, document="parcel")
        assert store.resolve("acme", "parcel") is obeying
        raise ValueError("no")

    with calling.calling(hook), pytest.raises(Exception, match="no"):
        deliver_event(config, Plan("relays", "relay"), "R1", envelope())
    with pytest.raises(Unresolved):
        store.resolve("acme", "parcel")
    fresh = ChartStore(store._engine)
    assert fresh.by_hash(obeying.content_hash) is None


# --- retirement ---------------------------------------------------------------------------------------


def test_a_chart_in_use_cannot_be_retired(store, configure):
    """An active execution, a suspended one: each keeps it; their end lets it go."""
    store.save(obeying, document="parcel")
    config = configure(store)
    id = put(config).execution_id
    with pytest.raises(ConfigError, match="in use by 1 executions that have not ended"):
        store.retire(obeying.content_hash)
    executions.suspend(config, id)
    with pytest.raises(ConfigError, match="in use by 1 executions"):
        store.retire(obeying.content_hash)
    executions.resume(config, id)
    put(config, "finished", "e-2")
    assert store.retire(obeying.content_hash, now=NOW) is True
    assert store.charts()[0].retired_at == NOW
    assert store.retire(obeying.content_hash) is False
    assert store.retire("nothing") is False
    with pytest.raises(Unresolved) as raised:
        store.resolve("acme", "parcel")
    assert raised.value.reason == f"its chart {obeying.content_hash} is retired"
    with pytest.raises(UnresolvedDocument, match="is retired"):
        put(config, key="P8")
    # What has ended on it can still be read and replayed.
    fresh = ChartStore(store._engine)
    assert fresh.by_hash(obeying.content_hash) is obeying
    assert executions.replay(configure(fresh), id).agrees
    assert put(config, "late", "e-3").recorded == "dropped: finished"
    store.save(obeying)
    assert isinstance(put(config, key="P8"), CreatedAndDelivered)


def test_a_pending_timer_keeps_its_chart(store, configure):
    """Also where its execution has ended; one that was discarded does not."""
    from statifier_router import timers

    store.save(arming, document="parcel")
    config = configure(store)
    put(config, "arm", "e-1")
    put(config, "arm", "e-2")
    put(config, "end", "e-3")
    with pytest.raises(ConfigError, match="in use by 2 pending timers"):
        store.retire(arming.content_hash)
    assert timers.fire_due(config, now=NOW + timedelta(hours=2)).discarded == 2
    assert store.retire(arming.content_hash) is True


def test_another_chart_s_executions_keep_nothing(store, configure):
    """Only what runs on this very hash counts, moved over or not."""
    store.save(obeying, document="parcel")
    config = configure(store)
    id = put(config).execution_id
    store.save(obeying_2, document="parcel")
    executions.migrate(config, id, obeying_2, mapping={})
    assert store.retire(obeying.content_hash) is True
    with pytest.raises(ConfigError, match="in use"):
        store.retire(obeying_2.content_hash)


def test_nothing_is_moved_to_a_retired_chart(store, configure):
    """An execution that runs on a chart keeps it from being retired; so none is moved to one that is."""
    store.save(obeying, document="parcel")
    store.save(obeying_2)
    config = configure(store)
    id = put(config).execution_id
    store.retire(obeying_2.content_hash)
    with pytest.raises(ConfigError, match="is retired; save it again first"):
        executions.migrate(config, id, obeying_2, mapping={})
    assert executions.fetch(config, id).content_hash == obeying.content_hash


@pytest.fixture(params=PLANS)
def racing(request, postgresql, make_config):
    """Two stores and configurations on PostgreSQL, each with an engine of its own, under both plans."""
    ChartStore(postgresql.engine()).save(obeying, document="parcel")

    def make(**kw):
        store = ChartStore(postgresql.engine(poolclass=NullPool))
        executor = WritingPlainly() if request.param == "plain" else None
        config = make_config(
            postgresql,
            engine=store._engine,
            charts=store,
            executor=executor,
            lock_timeout=timedelta(minutes=1),
            **kw,
        )
        return store, config

    return make


@pytest.mark.parametrize("lent", ["its own", "a host's engine"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_retirement_waits_for_a_creation(postgresql, racing, beside, ending, lent):
    """It is seen blocked by the creation; then the chart is in use, or it is retired after all."""
    _, creator = racing()
    other, _ = racing()
    engine = creator.engine if lent == "its own" else postgresql.bare_engine()
    with engine.connect() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        created = deliver_event(creator, PLAN, "P7", envelope(), connection=connection)
        retiring = beside(other.retire, obeying.content_hash)
        blocked(postgresql, pid, retiring)
        getattr(connection, ending)()
        if ending == "rollback":
            assert retiring.result(TIMEOUT) is True
        else:
            with pytest.raises(ConfigError, match="in use by 1 executions"):
                retiring.result(TIMEOUT)
            assert executions.fetch(creator, created.execution_id).status == "active"


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_creation_waits_for_a_retirement(postgresql, racing, beside, ending):
    """It is seen blocked by the retirement; then the document is unresolved, or it is created after all."""
    retirer, config = racing()
    _, creator = racing()
    with open_transaction(config) as (connection, pid):
        with ambient.entered(connection, {}):
            assert retirer.retire(obeying.content_hash) is True
        creating = beside(put, creator)
        blocked(postgresql, pid, creating)
        getattr(connection, ending)()
        if ending == "rollback":
            assert isinstance(creating.result(TIMEOUT), CreatedAndDelivered)
        else:
            with pytest.raises(UnresolvedDocument, match="is retired"):
                creating.result(TIMEOUT)
            assert executions.fetch(creator, "none") is None


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_retirement_waits_for_a_migration(postgresql, racing, beside, ending):
    """An execution that is being moved to a chart keeps it as a creation does."""
    store, config = racing()
    other, _ = racing()
    id = put(config).execution_id
    store.save(obeying_2)
    with open_transaction(config) as (connection, pid):
        executions.migrate(config, id, obeying_2, mapping={}, connection=connection)
        retiring = beside(other.retire, obeying_2.content_hash)
        blocked(postgresql, pid, retiring)
        getattr(connection, ending)()
        if ending == "rollback":
            assert retiring.result(TIMEOUT) is True
        else:
            with pytest.raises(ConfigError, match="in use"):
                retiring.result(TIMEOUT)


def test_creations_on_one_chart_do_not_wait_for_each_other(racing):
    """Each holds the chart's row, shared: two open ones stand side by side."""
    _, one = racing()
    _, two = racing()
    with open_transaction(one) as (first, _), open_transaction(two) as (second, _):
        deliver_event(one, PLAN, "P1", envelope(message_id="e-1"), connection=first)
        deliver_event(two, PLAN, "P2", envelope(message_id="e-2"), connection=second)
        first.commit()
        second.commit()


def test_on_sqlite_the_one_writer_is_the_order(sqlite, make_config, beside):
    """A retirement waits for the transaction that creates, and a creation for one that retires."""
    store = ChartStore(sqlite.engine())
    store.save(obeying, document="parcel")
    config = make_config(sqlite, charts=store, lock_timeout=timedelta(minutes=1))
    other = ChartStore(sqlite.engine())
    with open_transaction(config) as (connection, _):
        deliver_event(config, PLAN, "P7", envelope(), connection=connection)
        retiring = beside(other.retire, obeying.content_hash)
        connection.commit()
    with pytest.raises(ConfigError, match="in use"):
        retiring.result(TIMEOUT)
    store.save(obeying_2, document="parcel")
    with open_transaction(config) as (connection, _):
        with ambient.entered(connection, {}):
            assert store.retire(obeying_2.content_hash) is True
        creating = beside(put, config, "scanned", "e-2", "P8")
        connection.commit()
    with pytest.raises(UnresolvedDocument, match="is retired"):
        creating.result(TIMEOUT)


def test_a_retirement_does_not_judge_by_an_old_snapshot(postgresql, make_config):
    """In a transaction stricter than READ COMMITTED it is refused: an execution could be overlooked."""
    store = ChartStore(postgresql.engine())
    store.save(obeying, document="parcel")
    strict = store._engine.execution_options(isolation_level="REPEATABLE READ")
    with (
        strict.connect() as connection,
        ambient.entered(connection, {}),
        pytest.raises(ConfigError, match="REPEATABLE READ"),
    ):
        store.retire(obeying.content_hash)
    assert store.retire(obeying.content_hash) is True


# --- faults -------------------------------------------------------------------------------------------

CALLS = {
    "save": lambda store: store.save(obeying, document="parcel"),
    "resolve": lambda store: store.resolve("acme", "parcel"),
    "by_hash": lambda store: store.by_hash("hash"),
    "why_not": lambda store: store.why_not("hash"),
    "retire": lambda store: store.retire("hash"),
    "charts": lambda store: store.charts(),
}


@pytest.mark.parametrize("call", CALLS)
def test_without_tables_outside_a_door(unmigrated, call):
    """Every call says which tables are missing and what makes them."""
    store = ChartStore(unmigrated.engine())
    with pytest.raises(
        SchemaError, match=r"statifier_router_charts.*run: statifier-router migrate"
    ) as raised:
        CALLS[call](store)
    assert "\n" not in str(raised.value)


def test_without_tables_inside_a_door(unmigrated, make_config):
    """Tables of a version before the charts': the door raises `SchemaError`."""
    engine = unmigrated.engine()
    with engine.begin() as connection:
        migrations.up(connection, to=1)
    with pytest.raises(SchemaError):
        put(make_config(unmigrated, charts=ChartStore(engine)))


def test_without_tables_of_its_own_inside_a_door(database, make_config):
    """A store under other names than the configuration's says which are missing."""
    tables = Tables(prefix="elsewhere_")
    engine = database.engine(poolclass=NullPool)
    store = ChartStore(engine, tables=tables)
    config = make_config(database, engine=engine, charts=store)
    with pytest.raises(SchemaError, match=r"elsewhere_charts.*Tables\(prefix='elsewhere_'") as raised:
        put(config)
    assert "\n" not in str(raised.value)
    with engine.begin() as connection:
        migrations.up(connection, tables=tables)
    store.save(obeying, document="parcel")
    assert isinstance(put(config), CreatedAndDelivered)
    with engine.begin() as connection:
        connection.execute(delete(store._schema.charts))
    forgetful = attrs.evolve(config, charts=ChartStore(engine, tables=tables))
    with pytest.raises(ChartNotResolved, match="it was never saved"):
        put(forgetful, "scanned", "e-2")


def test_a_wait_that_runs_out(database, store, configure, monkeypatch):
    """A save or a retirement is bounded too, and says what it waited for."""
    store.save(obeying, document="parcel")
    config = configure(store)
    monkeypatch.setattr(chart_store, "PATIENCE", timedelta(milliseconds=50))
    impatient = ChartStore(
        database.engine(connect_args={"timeout": 0.05} if database.kind == "sqlite" else {})
    )
    if database.kind == "sqlite":

        @event.listens_for(impatient._engine, "connect")
        def hurry(opened, entry):
            opened.execute("PRAGMA busy_timeout = 50")

    with open_transaction(config) as (connection, _):
        deliver_event(config, PLAN, "P7", envelope(), connection=connection)
        for call in ("retire", "save"):
            with pytest.raises(ExecutionBusy, match="the wait for the chart store ran out") as raised:
                impatient.retire(obeying.content_hash) if call == "retire" else impatient.save(obeying)
            assert (raised.value.execution_id, raised.value.retryable) == (None, True)
        connection.commit()


def test_a_database_that_is_not_there(tmp_path):
    """A lost or refused connection is told as a fault that another call may mend."""
    from statifier_router import create_engine

    store = ChartStore(create_engine("postgresql://nobody@127.0.0.1:1/nothing"))
    for call in CALLS.values():
        with pytest.raises(DatabaseFault, match=r"the connection broke or could not be made.*call again"):
            call(store)


def test_the_statements_take_their_indexes(postgresql):
    """Whether a chart is in use is asked of the partial indexes, not of every execution."""
    store = ChartStore(postgresql.engine())
    with store._engine.connect() as connection:
        connection.execute(text("SET enable_seqscan = off"))
        plans = []
        for statement in (chart_table.running(store._schema), chart_table.timers(store._schema)):
            compiled = statement.compile(store._engine, compile_kwargs={"literal_binds": False})
            sql = f"EXPLAIN {compiled}"
            lines = connection.exec_driver_sql(sql, {"content_hash": "hash"}).scalars()
            plans.append("\n".join(lines))
    assert "statifier_router_executions_content_hash" in plans[0]
    assert "statifier_router_timers_next_try_at_key" in plans[1] or "timers_execution_id_send_id" in plans[1]


def test_a_scxml_text_is_kept_to_the_byte(store, database):
    """Whatever Unicode it holds, the text that comes back has the same hash."""
    text = "<?xml version='1.0'?>\r\n<scxml name='ä\u2028𝔘'><state id='é'/><!-- \t: --></scxml>\n"
    chart = statemachine.scxml(text)
    store.save(chart, document="parcel")
    fresh = ChartStore(database.engine(poolclass=NullPool))
    assert fresh.by_hash(chart.content_hash).source == text
