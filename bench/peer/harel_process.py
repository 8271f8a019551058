"""harel: process one event of a durable execution over its PostgreSQL store. No inbox, no address."""

from __future__ import annotations

import sys

import psycopg
from harel import DurableRunner, Event, definition_from_dsl
from harel.engine.store.postgres import PostgresStore
from measure_peer import given, measure

SOURCE = """
event Scanned {}

machine parcel {
  initial Moving
  state Moving {}
  state Held {}
  final Done success

  from Moving to Held on Scanned
  from Held to Moving on Scanned
}
"""
KEYS = 100
parts, seconds = given(sys.argv)
store = PostgresStore(psycopg.connect(**parts, options="-c synchronous_commit=off"))
definition = definition_from_dsl(SOURCE, "parcel")
runner = DurableRunner(store, {definition.id: definition})
ids = [runner.create(definition.id).id for _ in range(KEYS)]


def work(number: int) -> None:
    runner.process(ids[number % KEYS], Event(kind="Scanned"))


measure(work, seconds)
