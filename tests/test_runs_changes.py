"""Changes of records, from the host's transaction or a chart's step to the target."""

from __future__ import annotations

from datetime import timedelta

import pytest

from statifier_router import OutboxRoute, Plan, RecordRoute, deliver_event
from statifier_router.runs import ChainEnd, Changes, Outbound, Outbox, Policy, Rule, record_change
from statifier_router.testing import Clock
from statifier_router.testing.targets import ScriptedTarget, ScriptedWriter, times_out, unavailable
from tests.support.charts import NOW, envelope, registry
from tests.support.told import to, told

HOUR = timedelta(hours=1)


class Host:
    """A state rule over changes, a message rule over the outbox; a target for each."""

    def __init__(self, config, clock):
        self.config, self.clock = config, clock
        self.records, self.mail = ScriptedTarget(), ScriptedTarget()
        self.outbound = Outbound(
            config,
            writers={
                "records": ScriptedWriter(self.records, verbs=("create", "update", "delete")),
                "mail": ScriptedWriter(self.mail),
            },
            rules=[
                Rule(
                    "parcels", entity="parcel", source=Changes("parcel"), target="depot", driver="records",
                    policy=Policy.UPSERT, batch_size=3,
                ),
                Rule(
                    "notices", entity="notice", source=Outbox("notices"), target="mail", driver="mail",
                    policy=Policy.CREATE_ONLY, kind="message", batch_size=3,
                ),
            ],
        )  # fmt: skip

    def tick(self):
        """Run everything that is to be run."""
        for chain_id in self.outbound.tick():
            assert self.outbound.run_chain(chain_id) is ChainEnd.COMPLETED

    def change(self, source_id, data, **kw):
        """A version of a record."""
        record_change(self.config, "parcel", source_id, data, **kw)

    def step(self, message_id, *effects):
        """A step of a chart."""
        deliver_event(
            self.config, Plan("jobs", "a"), "K1", envelope("go", message_id, data={"effects": list(effects)})
        )

    @property
    def calls(self):
        """What the target of the state rule was told: verb, record, payload."""
        return [(each.verb, each.source_id, each.payload) for each in self.records.requests]

    @property
    def there(self):
        """What it holds."""
        return {each.source_id: each.payload for each in self.records.records.values()}


@pytest.fixture
def host(database, make_config):
    clock = Clock(NOW)
    routes = {"records": RecordRoute("parcel", record_id="id"), "mail": OutboxRoute("notices")}
    return Host(make_config(database, clock=clock, charts=registry(a=told("a")), routes=routes), clock)


def test_versions_between_two_runs_are_one(host):
    """The target is told the newest version of each record, once; pages in between do not matter."""
    for number in range(20):
        host.change(f"P{number % 7}", number)
    host.tick()
    assert sorted(host.calls) == sorted(("create", f"P{number % 7}", number) for number in range(13, 20))
    host.tick()
    assert len(host.calls) == 7


def test_a_version_that_comes_back(host):
    """A, B, A. Between two runs that is no change, and nothing is sent; with a run after each it is two."""
    host.change("P1", "A")
    host.tick()
    host.change("P1", "B")
    host.change("P1", "A")
    host.tick()
    assert host.calls == [("create", "P1", "A")]
    for data in ("B", "A"):
        host.change("P1", data)
        host.tick()
    assert host.calls[1:] == [("update", "P1", "B"), ("update", "P1", "A")]
    assert len({each.key for each in host.records.requests}) == 3


def test_the_same_version_once_more(host):
    """It is read, and known."""
    host.change("P1", {"a": 1, "b": 2})
    host.tick()
    host.change("P1", {"b": 2, "a": 1})
    host.tick()
    assert len(host.calls) == 1


def test_a_deletion(host):
    """The target's record is deleted; a record that was never there is not created for it. One that comes
    back is created anew.
    """
    host.change("P1", 1)
    host.change("P2", 1, deleted=True)
    host.tick()
    host.change("P1", 1, deleted=True)
    host.tick()
    host.tick()
    assert [(verb, source_id) for verb, source_id, _ in host.calls] == [("create", "P1"), ("delete", "P1")]
    assert host.there == {}
    host.change("P1", 1)
    host.tick()
    assert host.there == {"P1": 1}


def test_a_version_that_is_written_while_a_record_fails(host):
    """The drain sends the newest one, whatever the scan has passed."""
    host.records.coming(unavailable())
    host.change("P1", "A")
    host.tick()
    host.change("P1", "B")
    host.tick()
    assert len(host.calls) == 1
    host.clock.advance(HOUR)
    host.tick()
    assert host.there == {"P1": "B"}


def test_an_old_payload_that_lands_late_is_followed_by_the_new_one(host):
    """A create in doubt is sent again as it was, and the version of today follows."""
    host.records.on("P1", times_out(taken=False))
    host.change("P1", "A")
    host.tick()
    host.change("P1", "B")
    host.clock.advance(HOUR)
    host.tick()
    assert host.calls == [("create", "P1", "A"), ("create", "P1", "A"), ("update", "P1", "B")]


def test_a_chart_records_and_sends(host):
    """What a step appends and hands off is carried on, each by its own rule, once."""
    host.step("e-1", to("records", "parcel", {"id": "P1", "n": 1}), to("mail", "hello", {"n": 1}))
    host.step("e-2", to("records", "parcel", {"id": "P1", "n": 2}), to("mail", "again", {"n": 2}))
    host.tick()
    assert host.there == {"P1": {"id": "P1", "n": 2}}
    assert [each.payload["name"] for each in host.mail.requests] == ["hello", "again"]
    host.tick()
    assert len(host.mail.requests) == 2


def test_a_change_exists_for_a_run_when_it_is_committed(host):
    """Not before, and not where it was rolled back."""
    with host.config.engine.connect() as connection:
        host.change("P1", 1, connection=connection)
        connection.rollback()
        host.change("P2", 1, connection=connection)
        if connection.dialect.name == "postgresql":
            host.tick()
            assert host.calls == []
        connection.commit()
    host.tick()
    assert host.there == {"P2": 1}
