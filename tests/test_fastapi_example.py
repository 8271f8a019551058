"""`examples/fastapi/`: what its endpoint answers to a sender that retries what is not a 2xx."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from statifier_router import ChartRegistry, executions, ledger

EXAMPLE = Path(__file__).parents[1] / "examples" / "fastapi"
SCAN = {"id": "m-1", "kind": "scan", "parcel": {"id": "P7"}}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's modules, imported as a server imports them, and forgotten after the test."""
    monkeypatch.syspath_prepend(EXAMPLE)
    before = set(sys.modules)
    import app
    import parcels

    yield app, parcels
    for name in ("app", "parcels"):
        if name not in before:
            del sys.modules[name]


@pytest.fixture
def app_of(modules, database, make_config):
    """The application over a configuration; its own, unless a test says otherwise."""
    app, parcels = modules

    def make(**changes: Any) -> tuple[Any, TestClient]:
        config = make_config(database, **{"charts": parcels.CHARTS, "bindings": parcels.BINDINGS, **changes})
        return config, TestClient(app.create_app(config))

    return make


def test_what_is_recorded_is_a_success(app_of):
    """A sender must not repeat a duplicate, a message of no interest, or one that was refused a key."""
    config, client = app_of()

    answers = [
        client.post("/webhooks/carrier", json=body)
        for body in (
            SCAN,
            SCAN,
            {**SCAN, "id": "m-2"},
            {"id": "m-3", "kind": "hello"},
            {"id": "m-4", "kind": "scan"},
        )
    ]

    assert [answer.status_code for answer in answers] == [200] * 5
    assert [answer.json()["outcomes"] for answer in answers] == [
        ["created_and_delivered"],
        ["duplicate"],
        ["delivered"],
        ["no_match"],
        ["key_refused"],
    ]
    assert len(ledger.rows(config)) == 5


def test_a_body_that_is_no_message_is_the_senders_fault(app_of):
    """No retry mends it, so it is a 4xx that names the field; nothing is written."""
    config, client = app_of()

    nameless = client.post("/webhooks/carrier", json={"kind": "scan"})
    not_json = client.post("/webhooks/carrier", content=b"{", headers={"content-type": "application/json"})

    assert (nameless.status_code, not_json.status_code) == (400, 422)
    assert "message_id" in nameless.json()["detail"]
    assert ledger.rows(config) == []


def test_what_a_retry_mends_is_asked_for_again(app_of):
    """A retryable fault is 503 with Retry-After, and the same message succeeds afterwards."""
    config, client = app_of()
    client.post("/webhooks/carrier", json=SCAN)
    (row,) = ledger.rows(config)
    executions.suspend(config, row.execution_id)

    held = client.post("/webhooks/carrier", json={**SCAN, "id": "m-2"})
    executions.resume(config, row.execution_id)
    again = client.post("/webhooks/carrier", json={**SCAN, "id": "m-2"})

    assert (held.status_code, held.headers["retry-after"]) == (503, "5")
    assert again.json() == {"outcomes": ["delivered"]}


def test_what_no_retry_mends_is_told(app_of):
    """A document without a chart is not asked for again, and the answer says what to do."""
    _, client = app_of(charts=ChartRegistry())

    answer = client.post("/webhooks/carrier", json=SCAN)

    assert answer.status_code == 422
    assert "publish a chart" in answer.json()["detail"]


def test_its_own_configuration_makes_its_database(modules, tmp_path, monkeypatch, make_config):
    """Started with nothing at hand, it migrates a SQLite file and serves."""
    app, parcels = modules
    monkeypatch.chdir(tmp_path)

    answer = TestClient(app.create_app()).post("/webhooks/carrier", json=SCAN)

    assert answer.json() == {"outcomes": ["created_and_delivered"]}
    make_config.watch(parcels.configure("sqlite:///webhooks.db"))
