"""The HTTP writer keeps the contract of writers, against a real server on loopback."""

from __future__ import annotations

from typing import ClassVar

import pytest

from statifier_router.runs import HttpWriter, InHeader, InJson, WriterTraits
from statifier_router.testing import WriterContract
from tests.support.http_target import REFUSED, HttpTarget, answers, closed_port

SECRET = "hunter2-hunter2"
ONE_BY_ONE = {"create_many": "one record a request", "update_many": "one record a request"}


class _Http(WriterContract):
    """What both share: a target a test, and writers that are closed at its end."""

    __test__ = False
    options: ClassVar = {}

    @pytest.fixture(autouse=True)
    def _targets(self):
        self.made = []
        self.target = HttpTarget()
        self.other = HttpTarget()
        yield
        for each in self.made:
            each.close()
        self.target.close()
        self.other.close()

    def to(self, url):
        writer = HttpWriter(url, headers={"Authorization": f"Bearer {SECRET}"}, ping_url=url, **self.options)
        self.made.append(writer)
        return writer

    def writer(self):
        return self.to(self.target.url)

    def texts(self):
        return [record["text"] for record in self.target.records.values()]

    def refused(self):
        return REFUSED

    def unreachable(self):
        return self.to(f"http://127.0.0.1:{closed_port()}/parcels")

    def silent(self):
        self.other.always = lambda exchange: exchange.hang()
        return self.to(self.other.url)

    def out_of_order(self):
        # A bad day of a proxy: it quotes what it was sent.
        self.other.always = lambda exchange: exchange.answer(502, exchange.seen.headers)
        return self.to(self.other.url)

    def throttling(self):
        self.other.always = answers(429, {"error": SECRET}, Retry_After="60")
        return self.to(self.other.url)

    def secrets(self):
        return [SECRET]


class TestState(_Http):
    """A target of records, with addresses in the body."""

    __test__ = True
    not_applicable: ClassVar = {"lookup": "a subclass may have one", **ONE_BY_ONE}
    options: ClassVar = {
        "address": InJson("id"),
        "delete": True,
        "traits": WriterTraits(honours_keys=True),
    }

    def forget(self, remote_id):
        del self.target.records[remote_id]


class TestLocation(TestState):
    """The same with addresses in the header Location, and PATCH."""

    options: ClassVar = {
        "address": InHeader("Location"),
        "update": "PATCH",
        "delete": True,
        "traits": WriterTraits(honours_keys=True),
    }


class TestMessages(_Http):
    """A target of messages: creates only."""

    __test__ = True
    options: ClassVar = {"address": None}
    not_applicable: ClassVar = {
        **ONE_BY_ONE,
        **dict.fromkeys(("address", "update", "delete", "lookup", "forget"), "messages have no address"),
    }
