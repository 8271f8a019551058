"""What a connection remembers of addresses is a hint: it saves work, and a wrong one loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from statifier_router import (
    Config,
    CreatedAndDelivered,
    Delivered,
    SQLExecutor,
    create_engine,
    deliver,
    executions,
    ids,
)
from statifier_router.seen_addresses import GENERATION, SeenAddresses
from tests.support.charts import delivery, obedient, registry, scans
from tests.support.databases import Database
from tests.support.proxy import Proxy
from tests.support.racing import disposing

SCANS = scans()


@pytest.fixture
def engine(postgresql: Database) -> Iterator[Engine]:
    """One connection, so that what it has seen is what every delivery finds."""
    engine = postgresql.engine(pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


@pytest.fixture
def config(postgresql: Database, make_config: Any, engine: Engine) -> Any:
    return make_config(postgresql, engine=engine, charts=registry(parcel=obedient()))


@pytest.fixture
def mints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every id that was minted for an execution."""
    minted: list[str] = []
    mint = ids.execution_id

    def noted() -> str:
        minted.append(mint())
        return minted[-1]

    monkeypatch.setattr(ids, "execution_id", noted)
    return minted


def _forget(engine: Engine) -> None:
    """As `addresses.reap` leaves it: the executions are ended and gone from their addresses."""
    with engine.begin() as own:
        own.execute(text("DELETE FROM statifier_router_addresses"))


def test_where_an_address_is_expected_no_id_is_minted(config: Any, mints: list[str]) -> None:
    """Created, seen, expected; another connection expects nothing."""
    outcomes = [deliver(config, SCANS, "P7", delivery(f"m-{number}")) for number in range(4)]
    assert [type(outcome) for outcome in outcomes] == [CreatedAndDelivered, Delivered, Delivered, Delivered]
    assert len(mints) == 2
    config.engine.dispose()
    deliver(config, SCANS, "P7", delivery("m-4"))
    assert len(mints) == 3


def test_an_address_that_is_gone_is_made_anew(config: Any, engine: Engine, mints: list[str]) -> None:
    """The message that expected it creates an execution as the first did, and the next ones step that."""
    first = [deliver(config, SCANS, "P7", delivery(f"m-{number}")) for number in range(3)]
    _forget(engine)
    second = [deliver(config, SCANS, "P7", delivery(f"n-{number}")) for number in range(3)]
    assert [type(outcome) for outcome in second] == [CreatedAndDelivered, Delivered, Delivered]
    (old,), (new,) = ({outcome.execution_id for outcome in outcomes} for outcomes in (first, second))
    assert old != new
    assert executions.fetch(config, new).revision == 3
    assert new in mints


def test_it_is_the_place_that_is_expected(config: Any, mints: list[str]) -> None:
    """Another key, scope or document is another place."""
    for number in range(3):
        deliver(config, SCANS, "P7", delivery(f"m-{number}"))
    before = len(mints)
    assert isinstance(deliver(config, SCANS, "P8", delivery("n-1")), CreatedAndDelivered)
    assert isinstance(deliver(config, SCANS, "P7", delivery("n-2", scope="other")), CreatedAndDelivered)
    assert len(mints) == before + 2


def test_what_was_undone_is_not_expected(config: Any) -> None:
    """A creation that failed leaves no address, and the next message creates."""
    for number in range(2):
        with pytest.raises(Exception, match="failed"):
            deliver(config, SCANS, "P7", delivery(f"m-{number}", data={"do": "failed"}))
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-9")), CreatedAndDelivered)


@pytest.mark.parametrize("pipeline", [False, True])
def test_with_a_mint_of_the_hosts(
    postgresql: Database, make_config: Any, engine: Engine, pipeline: bool
) -> None:
    """It is asked only where an id is needed, whatever was seen."""
    asked: list[str] = []

    def mint(scope: str, document: str, key: str) -> str:
        asked.append(key)
        return f"own-{len(asked)}"

    config = make_config(
        postgresql,
        engine=engine,
        charts=registry(parcel=obedient()),
        mint_execution_id=mint,
        pipeline=pipeline,
    )
    for number in range(3):
        deliver(config, SCANS, "P7", delivery(f"m-{number}"))
    _forget(engine)
    deliver(config, SCANS, "P7", delivery("m-9"))
    assert asked == ["P7", "P7"]


def test_pipelined_and_gone(postgresql: Database, make_config: Any, engine: Engine) -> None:
    """The statements that a wrong hint costs run in the transaction that is open already."""
    config = make_config(postgresql, engine=engine, charts=registry(parcel=obedient()), pipeline=True)
    for number in range(3):
        deliver(config, SCANS, "P7", delivery(f"m-{number}"))
    _forget(engine)
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-8")), CreatedAndDelivered)
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-9")), Delivered)


def test_a_hosts_executor_is_not_concerned(postgresql: Database, make_config: Any, engine: Engine) -> None:
    """The plain plan looks the address up by a statement of its own."""

    class Own(SQLExecutor):
        pass

    config = make_config(postgresql, engine=engine, charts=registry(parcel=obedient()), executor=Own())
    for number in range(3):
        deliver(config, SCANS, "P7", delivery(f"m-{number}"))
    _forget(engine)
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-9")), CreatedAndDelivered)


def test_no_more_than_two_generations_are_kept() -> None:
    """Whatever passes, a bounded number is remembered; what keeps coming is never forgotten."""
    seen = SeenAddresses()
    for place in range(10 * GENERATION):
        seen.add(place)
        if place % 1000 == 0:
            seen.add(-1)
    assert -1 in seen
    kept = sum(place in seen for place in range(10 * GENERATION))
    assert GENERATION - 1 <= kept <= 2 * GENERATION
    seen.discard(-1)
    assert -1 not in seen


def test_what_a_hint_costs_on_the_wire(postgresql: Database) -> None:
    """Right: the four trips of any delivery, with no word of an insert. Wrong: one more, once."""
    with Proxy(postgresql.url) as proxy, disposing(create_engine(proxy.url, pool_size=1)) as engine:
        config = Config(engine, charts=registry(parcel=obedient()), bindings=[SCANS])
        for number in range(2):
            deliver(config, SCANS, "P7", delivery(f"m-{number}"))

        def counted(message_id: str, scope: str = "acme") -> tuple[int, bool]:
            proxy.reset()
            deliver(config, SCANS, "P7", delivery(message_id, scope=scope))
            adds = any("INSERT INTO statifier_router_addresses" in one.sql for one in proxy.statements)
            return proxy.turns, adds

        assert counted("m-2") == (4, False)
        _forget(engine)
        assert counted("m-3") == (5, True)
        # Whoever has just found none expects none.
        assert counted("m-4") == (4, True)
        assert counted("m-5") == (4, False)
        # The same key of another scope is another place: nothing was expected there.
        assert counted("m-6", "other") == (4, True)
