"""Reaping and pruning: plain functions, batches, strict here and inclusive there, nothing else touched."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import event as sa_event
from sqlalchemy.exc import DBAPIError

from statifier_router import (
    BindingError,
    ConfigError,
    Dedupe,
    Plan,
    addresses,
    claims,
    deliver_event,
    executions,
    ledger,
)
from tests.support.charts import NOW, envelope, obedient, registry, scans
from tests.support.executors import OwnTables
from tests.support.rows import everything, written

SECOND = timedelta(seconds=1)
TINY = timedelta(microseconds=1)
HOUR = timedelta(hours=1)

only_postgresql = pytest.mark.parametrize(
    "database", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)


@pytest.fixture
def configure(database, make_config):
    """`configure(**kw)`: a configuration on each database."""

    def make(**kw):
        kw.setdefault("charts", registry(parcel=obedient(), letter=obedient("letter")))
        return make_config(database, **kw)

    return make


def put(config, key="P7", *, do="moved", message_id=None, now=NOW, document="parcel", horizon=HOUR):
    """One event to one address."""
    plan = Plan("jobs", document, dedupe=Dedupe(horizon))
    sent = envelope(message_id=message_id or f"{key}-{do}", now=now, data={"do": do})
    return deliver_event(config, plan, key, sent)


def ended(config, key="P7", **kw):
    """An execution that has ended, its address not stamped."""
    put(config, key, **kw)
    return put(config, key, do="finished", **kw)


def binding(horizon, **kw):
    return scans(dedupe=Dedupe(horizon), **kw)


# --- claims -----------------------------------------------------------------------------------------


def test_claims_expired_strictly_before(configure):
    """A claim goes where its expiry is strictly before `now`: at exactly `now` it still counts."""
    config = configure()
    put(config, horizon=SECOND)
    assert claims.reap(config, now=NOW + SECOND) == 0
    assert claims.reap(config, now=NOW + SECOND + TINY) == 1
    assert everything(config).claims == []


def test_claims_go_alone(configure):
    """The claim reaper touches nothing else; a message whose claim is gone is delivered again."""
    config = configure()
    put(config, message_id="m-1", horizon=SECOND)
    with written(config) as rows:
        assert claims.reap(config, now=NOW + HOUR) == 1
    assert rows.summary() == "-claims"
    assert put(config, message_id="m-1", now=NOW + HOUR).recorded == "delivered"


def test_claims_in_batches(configure):
    """At most `limit` a call, the oldest first: loop until 0."""
    config = configure()
    for number in range(5):
        put(config, message_id=f"m-{number}", now=NOW + number * SECOND, horizon=SECOND)
    assert claims.reap(config, now=NOW + HOUR, limit=2) == 2
    assert [row["message_id"] for row in everything(config).claims] == ["m-2", "m-3", "m-4"]
    assert [claims.reap(config, now=NOW + HOUR, limit=2) for _ in range(3)] == [2, 1, 0]


def test_claims_by_the_clock(configure):
    """Without `now` the configuration's clock tells it."""
    config = configure(clock=lambda: NOW + SECOND + TINY)
    put(config, horizon=SECOND)
    assert claims.reap(config) == 1


@only_postgresql
def test_claims_that_are_held_are_passed_over(configure):
    """A claim that a delivery is taking anew is skipped, not waited for."""
    config = configure()
    put(config, message_id="m-1", horizon=SECOND)
    put(config, message_id="m-2", horizon=SECOND)
    plan = Plan("jobs", "parcel")
    with config.engine.connect() as connection:
        deliver_event(config, plan, "P7", envelope(message_id="m-1", now=NOW + HOUR), connection=connection)
        assert claims.reap(config, now=NOW + HOUR) == 1
        connection.commit()
    assert [row["message_id"] for row in everything(config).claims] == ["m-1"]


# --- addresses --------------------------------------------------------------------------------------


def test_a_live_address_stays(configure):
    """The address of an execution that runs, or is suspended, is never touched, whatever its age."""
    config = configure()
    put(config, "P7")
    executions.suspend(config, put(config, "P8").execution_id)
    with written(config) as rows:
        reaped = addresses.reap(config, [binding(timedelta(0))], now=NOW + 1000 * HOUR)
    assert (reaped.stamped, reaped.deleted, reaped.next) == (0, 0, None)
    assert rows.nothing


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
def test_stamp_first_delete_later(configure, how):
    """A newly seen terminal row is stamped; it is deleted at exactly the horizon after its stamp, not a
    microsecond earlier; its execution is never touched.
    """
    config = configure()
    created = put(config)
    if how == "completed":
        put(config, do="finished")
    elif how == "failed":
        executions.fail(config, created.execution_id, reason="why")
    else:
        executions.cancel(config, created.execution_id)
    bindings = [binding(HOUR)]
    with written(config) as rows:
        reaped = addresses.reap(config, bindings, now=NOW + SECOND)
    assert (reaped.stamped, reaped.deleted) == (1, 0)
    assert rows.summary() == "~addresses"
    assert rows.changed["addresses"][0]["terminal_seen_at"] == NOW + SECOND
    with written(config) as rows:
        reaped = addresses.reap(config, bindings, now=NOW + SECOND + HOUR - TINY)
    assert (reaped.stamped, reaped.deleted, rows.nothing) == (0, 0, True)
    with written(config) as rows:
        reaped = addresses.reap(config, bindings, now=NOW + SECOND + HOUR)
    assert (reaped.stamped, reaped.deleted) == (0, 1)
    assert rows.summary() == "-addresses"
    assert executions.fetch(config, created.execution_id).status == how


def test_a_delivery_stamped_it(configure):
    """A stamp that a delivery left counts from where it is."""
    config = configure()
    ended(config)
    put(config, do="late", now=NOW + SECOND)
    assert addresses.reap(config, [binding(HOUR)], now=NOW + HOUR).deleted == 0
    assert addresses.reap(config, [binding(HOUR)], now=NOW + SECOND + HOUR).deleted == 1


def test_a_zero_horizon_deletes_at_once(configure):
    """Where the horizon is zero a terminal row is deleted without stamping."""
    config = configure()
    ended(config)
    with written(config) as rows:
        reaped = addresses.reap(config, [binding(timedelta(0))], now=NOW)
    assert (reaped.stamped, reaped.deleted) == (0, 1)
    assert rows.summary() == "-addresses"


def test_the_longest_horizon_of_enabled_bindings(configure):
    """The horizon is the longest among enabled bindings that name the document, and zero when none does;
    disabled ones and those of other documents do not count.
    """
    config = configure()
    ended(config)
    bindings = [
        binding(SECOND, id="a"),
        binding(HOUR, id="b"),
        binding(2 * HOUR, id="c", enabled=False),
        binding(3 * HOUR, id="d", document="letter"),
    ]
    addresses.reap(config, bindings, now=NOW)
    assert addresses.reap(config, bindings, now=NOW + HOUR - TINY).deleted == 0
    assert addresses.reap(config, bindings, now=NOW + HOUR).deleted == 1
    ended(config, "P8")
    addresses.reap(config, [binding(HOUR)], now=NOW)
    assert addresses.reap(config, bindings[2:], now=NOW).deleted == 1


def test_an_execution_that_is_gone(configure):
    """A row whose execution is gone goes at once, whatever the horizon."""
    config = configure()
    put(config)
    with config.engine.begin() as connection:
        connection.execute(config.schema.executions.delete())
        connection.execute(config.schema.inputs.delete())
    reaped = addresses.reap(config, [binding(HOUR)], now=NOW)
    assert (reaped.stamped, reaped.deleted) == (0, 1)


def test_after_the_address_is_reaped(configure):
    """The next event of a new message creates a new execution; the old one stays to be read."""
    config = configure()
    old = ended(config)
    addresses.reap(config, [], now=NOW)
    new = put(config, do="again")
    assert new.recorded == "created_and_delivered"
    assert new.execution_id != old.execution_id
    assert executions.fetch(config, old.execution_id).status == "completed"


def test_addresses_in_pages(configure):
    """A page by id: `next` is the last id of a full page, else None; `after` goes on from there."""
    config = configure()
    for number in range(5):
        ended(config, f"P{number}")
    ids = [row["id"] for row in everything(config).addresses]
    bindings = [binding(HOUR)]
    first = addresses.reap(config, bindings, now=NOW, limit=2)
    assert (first.stamped, first.next) == (2, ids[1])
    second = addresses.reap(config, bindings, now=NOW, limit=2, after=first.next)
    assert (second.stamped, second.next) == (2, ids[3])
    third = addresses.reap(config, bindings, now=NOW, limit=2, after=second.next)
    assert (third.stamped, third.next) == (1, None)
    # A full last page cannot know that it is the last; the one after it is empty.
    whole = addresses.reap(config, bindings, now=NOW, limit=5)
    assert (whole.stamped, whole.deleted, whole.next) == (0, 0, ids[4])
    empty = addresses.reap(config, bindings, now=NOW, limit=5, after=whole.next)
    assert (empty.stamped, empty.deleted, empty.next) == (0, 0, None)


def test_configured_bindings_by_default(configure):
    """`bindings=None` takes the configured ones."""
    config = configure(bindings=[binding(HOUR)])
    ended(config)
    assert addresses.reap(config, now=NOW).stamped == 1


def test_resolved_bindings_must_be_given(configure):
    """With a bindings resolver the host passes those of every scope; without them it is refused, for a
    horizon of zero would be a guess.
    """
    config = configure(bindings_resolver=lambda scope: [binding(HOUR)])
    ended(config)
    with written(config) as rows, pytest.raises(ConfigError, match="bindings"):
        addresses.reap(config, now=NOW)
    assert rows.nothing
    assert addresses.reap(config, [binding(HOUR)], now=NOW).stamped == 1


def test_reads_before_writes(sqlite, make_config):
    """All reads come before any write."""
    engine, statements = sqlite.engine(), []
    sa_event.listen(engine, "connect", lambda opened, _: opened.set_trace_callback(statements.append))
    config = make_config(sqlite, engine=engine, charts=registry(parcel=obedient()))
    ended(config, "P1")
    put(config, "P2")
    ended(config, "P3", now=NOW - HOUR)
    addresses.reap(config, [binding(HOUR)], now=NOW - HOUR)
    statements.clear()
    addresses.reap(config, [binding(HOUR)], now=NOW)
    kinds = [each.split()[0] for each in statements]
    kinds = [each for each in kinds if each not in ("BEGIN", "COMMIT", "PRAGMA")]
    assert kinds == sorted(kinds, key=lambda kind: kind != "SELECT")
    assert kinds.count("SELECT") >= 2
    assert len(kinds) > kinds.count("SELECT")


def test_a_failed_read_writes_nothing(database, make_config):
    """Where the status of one execution cannot be read, the whole page is left as it was."""

    class Failing(OwnTables):
        def fetch(self, connection, config, execution_id, *, lock):
            if fails and execution_id == fails[0]:
                raise LookupError("the host's store is away")
            return super().fetch(connection, config, execution_id, lock=lock)

    engine, fails = database.engine(), []
    OwnTables.create_tables(engine)
    config = make_config(database, engine=engine, charts=registry(parcel=obedient()), executor=Failing())
    ended(config, "P1")
    fails.append(ended(config, "P2").execution_id)
    with written(config) as rows, pytest.raises(LookupError):
        addresses.reap(config, [binding(HOUR)], now=NOW)
    assert rows.nothing
    fails.clear()
    assert addresses.reap(config, [binding(HOUR)], now=NOW).stamped == 2


def test_over_a_hosts_own_executor(database, make_config):
    """The status of an execution is asked of the configured executor."""
    engine = database.engine()
    OwnTables.create_tables(engine)
    config = make_config(database, engine=engine, charts=registry(parcel=obedient()), executor=OwnTables())
    put(config, "P1")
    ended(config, "P2")
    gone = put(config, "P3").execution_id
    table = OwnTables.own_tables["executions"]
    with config.engine.begin() as connection:
        connection.execute(table.delete().where(table.c.id == gone))
    reaped = addresses.reap(config, [binding(HOUR)], now=NOW)
    assert (reaped.stamped, reaped.deleted) == (1, 1)
    assert [row["key"] for row in everything(config).addresses] == ["P1", "P2"]


@only_postgresql
def test_an_address_that_is_held_is_passed_over(configure):
    """A row that another reaper holds is skipped, not waited for."""
    config = configure()
    ended(config, "P1")
    ended(config, "P2")
    with config.engine.connect() as connection:
        addresses.reap(config, [binding(HOUR)], now=NOW, limit=1, connection=connection)
        reaped = addresses.reap(config, [binding(HOUR)], now=NOW)
        assert reaped.stamped == 1
        connection.commit()
    assert [row["terminal_seen_at"] for row in everything(config).addresses] == [NOW, NOW]


def test_many_addresses_in_one_page(configure):
    """A page larger than one statement can name."""
    config = configure()
    table = config.schema.addresses
    with config.engine.begin() as connection:
        connection.execute(
            table.insert(),
            [
                {
                    "scope": "acme",
                    "document": "parcel",
                    "key": f"P{number}",
                    "execution_id": f"ex_{number}",
                    "inserted_at": NOW,
                    "terminal_seen_at": None,
                }
                for number in range(1203)
            ],
        )
    reaped = addresses.reap(config, [], now=NOW, limit=1203)
    assert (reaped.deleted, reaped.stamped) == (1203, 0)
    assert everything(config).addresses == []


# --- the ledger -------------------------------------------------------------------------------------


def test_ledger_rows_before(configure):
    """Rows written strictly before the instant go, in batches, the oldest ids first."""
    config = configure()
    for number in range(5):
        put(config, message_id=f"m-{number}", now=NOW + number * SECOND)
    before = NOW + 3 * SECOND
    with written(config) as rows:
        assert [ledger.prune(config, before=before, limit=2) for _ in range(3)] == [2, 1, 0]
    assert rows.summary() == "-ledger -ledger -ledger"
    assert [row.message_id for row in ledger.rows(config)] == ["m-3", "m-4"]


def test_ledger_ids_are_never_used_again(configure):
    """After the newest rows are pruned a new row has a higher id: a cursor never misses it."""
    config = configure()
    put(config, message_id="m-1")
    (old,) = ledger.rows(config)
    ledger.prune(config, before=NOW + HOUR)
    put(config, message_id="m-2")
    (new,) = ledger.rows(config, after=old.id)
    assert new.id > old.id


def test_ledger_rows_by_filter(configure):
    """`rows` filters by each field, oldest first, a page at a time."""
    config = configure()
    first = put(config, "P1")
    put(config, "P2", document="letter")
    put(config, "P1", do="ignored")
    put(config, "P1")
    rows = ledger.rows(config)
    assert [row.id for row in rows] == sorted(row.id for row in rows)
    assert [row.key for row in ledger.rows(config, execution_id=first.execution_id)] == ["P1", "P1"]
    assert [row.outcome for row in ledger.rows(config, message_id="P1-moved")] == [
        "created_and_delivered",
        "duplicate",
    ]
    assert [row.message_id for row in ledger.rows(config, outcome="duplicate")] == ["P1-moved"]
    assert len(ledger.rows(config, binding_id="jobs", scope="acme")) == 4
    assert ledger.rows(config, binding_id="jobs", scope="globex") == []
    assert ledger.rows(config, limit=2) == rows[:2]
    assert ledger.rows(config, limit=2, after=rows[1].id) == rows[2:]
    assert ledger.rows(config, after=rows[-1].id) == []


# --- executions -------------------------------------------------------------------------------------


def test_executions_are_pruned(configure):
    """Of executions that ended strictly before the instant, position and inputs go; the row stays, so
    that a late message still finds it ended. Live ones are never touched.
    """
    config = configure()
    live = put(config, "P1")
    old = ended(config, "P2")
    late = ended(config, "P3", now=NOW + SECOND)
    assert executions.prune(config, before=NOW) == 0
    with written(config) as rows:
        assert executions.prune(config, before=NOW + TINY) == 1
    assert rows.summary() == "~executions -inputs -inputs -inputs"
    assert rows.changed["executions"][0]["position"] is None
    pruned = executions.fetch(config, old.execution_id)
    assert (pruned.status, pruned.position, pruned.ended_at) == ("completed", None, NOW)
    assert executions.inputs(config, old.execution_id) == []
    assert executions.fetch(config, late.execution_id).position is not None
    assert executions.fetch(config, live.execution_id).position is not None
    assert executions.prune(config, before=NOW + TINY) == 0
    assert put(config, "P2", do="late").recorded == "dropped: finished"
    assert executions.cancel(config, old.execution_id) is False


def test_executions_in_batches(configure):
    """At most `limit` a call, those that ended first go first."""
    config = configure()
    for number in range(3):
        ended(config, f"P{number}", now=NOW + number * SECOND)
    assert executions.prune(config, before=NOW + HOUR, limit=1) == 1
    assert [row["position"] is None for row in everything(config).executions].count(True) == 1
    first = min(everything(config).executions, key=lambda row: row["ended_at"])
    assert first["position"] is None
    assert [executions.prune(config, before=NOW + HOUR, limit=1) for _ in range(3)] == [1, 1, 0]


@only_postgresql
def test_executions_that_are_held_are_passed_over(configure):
    """An execution whose row is locked is skipped."""
    config = configure()
    held = ended(config, "P1")
    ended(config, "P2")
    with config.engine.connect() as connection:
        executions.cancel(config, held.execution_id, connection=connection)
        assert executions.prune(config, before=NOW + HOUR) == 1
        connection.rollback()
    assert executions.fetch(config, held.execution_id).position is not None


# --- arguments --------------------------------------------------------------------------------------

_REAPERS = {
    "claims.reap": lambda config, now, **kw: claims.reap(config, now=now, **kw),
    "addresses.reap": lambda config, now, **kw: addresses.reap(config, [], now=now, **kw),
    "ledger.prune": lambda config, now, **kw: ledger.prune(config, before=now, **kw),
    "executions.prune": lambda config, now, **kw: executions.prune(config, before=now, **kw),
}


@pytest.mark.parametrize("name", _REAPERS)
@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"now": NOW.replace(tzinfo=None)}, "now|before"),
        ({"now": "2026-03-01"}, "now|before"),
        ({"limit": 0}, "limit"),
        ({"limit": -1}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": 1.0}, "limit"),
        ({"limit": None}, "limit"),
    ],
)
def test_bad_arguments(configure, name, arguments, field):
    """A naive instant, or a limit that is no positive integer, is a `ConfigError` naming the field."""
    config = configure()
    ended(config)
    with written(config) as rows, pytest.raises(ConfigError, match=field) as raised:
        _REAPERS[name](config, **({"now": NOW} | arguments))
    assert rows.nothing
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("after", ["1", True, 1.5])
def test_a_bad_cursor(configure, after):
    """`after` is the id that a page answered."""
    config = configure()
    with pytest.raises(ConfigError, match="after"):
        addresses.reap(config, [], after=after)
    with pytest.raises(ConfigError, match="after"):
        ledger.rows(config, after=after)


@pytest.mark.parametrize("bindings", ["scans", [1], {"a": 1}, 7])
def test_bad_bindings(configure, bindings):
    """What is no sequence of bindings is refused."""
    with pytest.raises(ConfigError, match="bindings"):
        addresses.reap(configure(), bindings)


def test_a_horizon_of_true(configure):
    """Trap 23. A horizon of True is refused at construction."""
    with pytest.raises(BindingError, match="horizon"):
        Dedupe(True)


def test_reapers_are_undone_with_their_transaction(configure):
    """In a caller's transaction they are the caller's to commit."""
    config = configure()
    ended(config)
    with config.engine.connect() as connection:
        assert claims.reap(config, now=NOW + 1000 * HOUR, connection=connection) == 2
        assert addresses.reap(config, [], now=NOW, connection=connection).deleted == 1
        assert ledger.prune(config, before=NOW + HOUR, connection=connection) == 2
        assert executions.prune(config, before=NOW + HOUR, connection=connection) == 1
        connection.rollback()
    assert everything(config).counts() == {
        "claims": 2,
        "addresses": 1,
        "executions": 1,
        "inputs": 3,
        "ledger": 2,
    }


def test_a_reaper_that_fails_leaves_all(database, configure):
    """A write that fails half way undoes the whole page."""
    from sqlalchemy import text

    config = configure()
    ended(config, "P1")
    ended(config, "P2", now=NOW - 2 * HOUR)
    addresses.reap(config, [binding(HOUR)], now=NOW - 2 * HOUR, limit=2)
    ended(config, "P3")
    statements = {
        "sqlite": [
            (
                "CREATE TRIGGER no_rows BEFORE DELETE ON statifier_router_addresses "
                "BEGIN SELECT RAISE(ABORT, 'not now'); END"
            )
        ],
        "postgresql": [
            (
                "CREATE FUNCTION no_rows() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'not now'; END $$"
            ),
            (
                "CREATE TRIGGER no_rows BEFORE DELETE ON statifier_router_addresses "
                "FOR EACH ROW EXECUTE FUNCTION no_rows()"
            ),
        ],
    }[database.kind]
    with config.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    with written(config) as rows, pytest.raises(DBAPIError, match="not now"):
        addresses.reap(config, [binding(HOUR)], now=NOW)
    assert rows.nothing
