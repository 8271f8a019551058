"""A day of parcels goes to another system that misbehaves, by a process that is killed on the way.

    python examples/outbound/run.py

Messages are routed to executions, which write records and outbox messages. Beside that runs

    statifier-router --config shipping:config work --every 1

and sends them. It is killed in the middle of a call, and started again. At the end the target's own request
log is held against the library's table of records. The exit code is 1 where the two do not agree.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import shipping
from target import Target

from statifier_router import migrations, route
from statifier_router.demo.messages import Arrival, day
from statifier_router.runs import Changes, Outbound

HERE = Path(__file__).parent
MESSAGES = 320
# The request in the middle of which the process is killed.
KILLED_AT = 25
# In seconds; it takes a few.
PATIENCE = 120

# What the target does to requests about these parcels: to the first, the second, ...; "always" to all.
MISDEEDS = {
    ("parcels", "P101"): ["slow"],
    ("parcels", "P134"): ["deaf"],
    ("parcels", "P112"): ["busy"],
    ("parcels", "P145"): ["slow"],
    ("parcels", "P102"): ["broken"],
    ("parcels", "P103"): ["strict", "always"],
    ("parcels", "P107"): ["vague"],
    ("notices", "P101"): ["slow"],
    ("notices", "P135"): ["deaf", "busy"],
    ("notices", "P149"): ["strict", "always"],
}


def misdeed(what: str, parcel: str, number: int) -> str | None:
    told = MISDEEDS.get((what, parcel), [])
    if told[-1:] == ["always"]:
        return told[0]
    return told[number - 1] if number <= len(told) else None


class Worker:
    """`statifier-router work` in a process of its own."""

    def __init__(self) -> None:
        self.kills = 0
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "statifier_router.cli", "--config", "shipping:config"]
        self._process = subprocess.Popen(
            [*command, "work", "--every", "1"],
            cwd=HERE,
            stdout=subprocess.DEVNULL,
            # It logs every fault: the target is to blame, and the page below tells of it.
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.kills += 1
        self._start()

    def end(self) -> int:
        """As an init system does: it finishes the call in hand."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)


def main() -> int:
    target = Target(misdeed)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[shipping.DATABASE] = str(Path(folder) / "outbound.db")
        os.environ[shipping.TARGET] = target.origin
        outbound = shipping.outbound()
        with outbound.config.engine.begin() as connection:
            migrations.up(connection)
        worker = Worker()
        target.on_request = lambda number: worker.kill() if number == KILLED_AT else None
        try:
            return play(outbound, target, worker)
        finally:
            worker.end()
            outbound.config.engine.dispose()
            target.close()


def play(outbound: Outbound, target: Target, worker: Worker) -> int:
    arrivals = day(datetime(2026, 5, 1, tzinfo=UTC), count=MESSAGES)
    half = len(arrivals) // 2
    hear(outbound, arrivals[:half])
    settle(outbound)
    lost = delivered_later(arrivals[half:], target)
    target.forget(lost)
    hear(outbound, arrivals[half:])
    settle(outbound)
    show_run(outbound, target, worker, arrivals, lost)
    show_missing(outbound)
    mend(outbound, target)
    settle(outbound)
    return show_agreement(outbound, target)


def hear(outbound: Outbound, arrivals: list[Arrival]) -> None:
    for arrival in arrivals:
        route(outbound.config, arrival.message)


def delivered_later(arrivals: list[Arrival], target: Target) -> str:
    """A parcel that the target holds, and of which more is to come."""
    held = {record["parcel"] for record in target.records.values() if record["state"] != "delivered"}
    scans = (arrival.message.data for arrival in arrivals if arrival.message.source == "carrier")
    delivered = {scan["parcel"] for scan in scans if scan["scan"] == "delivery"}
    return min((held & delivered) - {parcel for _, parcel in MISDEEDS})


def settle(outbound: Outbound) -> None:
    """Wait until a whole run of each rule began after this moment, and has left nothing to be tried again."""
    since, deadline = outbound.config.now(), time.monotonic() + PATIENCE
    while True:
        rules = outbound.rules()
        runs = [each.last_chain for each in rules if not each.counts["failed"]]
        ended = [run for run in runs if run and run.end == "COMPLETED" and run.started_at > since]
        if len(ended) == len(outbound.known_rules):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the runs did not come to rest: {rules}")
        time.sleep(0.1)


# --- What is printed --------------------------------------------------------------------------------


def show_run(outbound: Outbound, target: Target, worker: Worker, arrivals: list[Arrival], lost: str) -> None:
    parcels = {row.source_id for row in rows(outbound, "parcels")}
    print(
        f"{len(arrivals)} messages moved {len(parcels)} parcels. Two rules told another system of it by HTTP:"
    )
    print("'parcels' keeps a record of each current there, 'notices' sends a message when one has arrived.\n")
    print("What the other system did                   requests")
    for did, count in Counter(request.did for request in target.log).most_common():
        print(f"  {did:42}{count:>8}")
    assert worker.kills == 1
    print(f"\nThe process that sends was killed in the middle of request {KILLED_AT}, and started again;")
    print(f"and somebody deleted the record of {lost} over there.\n")
    print("What the library says of it      delivered    parked")
    for each in outbound.rules():
        print(f"  {each.name:31}{each.counts['delivered']:>9} {each.counts['parked']:>9}")


def show_missing(outbound: Outbound) -> None:
    print("\nNot there, and why    (statifier-router why RULE ID)")
    for rule in sorted(outbound.known_rules):
        for row in rows(outbound, rule):
            why = outbound.why(rule, row.source_id)
            if why.reason != "delivered":
                name = row.source_id if rule == "parcels" else f"{row.source_id[:14]}…"
                print(f"  {rule} {name}: {why.reason}")
                print(wrapped(why.text))
                print(wrapped(f"next: {why.advice}"))


def wrapped(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="      ", subsequent_indent="      ")


def mend(outbound: Outbound, target: Target) -> None:
    """What an operator does: the lost one is created anew, and the one that has no address is given it."""
    outbound.release("parcels", mode="recreate", status="remote_gone", actor="ada")
    (address,) = [each for each, record in target.records.items() if record["parcel"] == "P107"]
    outbound.release("parcels", mode="adopt", source_ids=["P107"], remote_id=address, actor="ada")
    print(
        "\nAn operator releases the lost one to be created anew, and looks up the address that was not told:"
    )
    print("  statifier-router release parcels --mode recreate --status remote_gone")
    print(f"  statifier-router release parcels --mode 'adopt {address}' P107")


def show_agreement(outbound: Outbound, target: Target) -> int:
    problems = [*parcels_disagree(outbound, target), *notices_disagree(outbound, target)]
    there = len([row for row in rows(outbound, "parcels") if row.status == "delivered"])
    told = len([row for row in rows(outbound, "notices") if row.status == "delivered"])
    print(f"\nIn the end: {there} parcels are there in their newest state, {told} notices were sent.")
    for problem in problems:
        print(f"  WRONG: {problem}")
    if not problems:
        print(
            "The request log and the table of records agree: none is missing without a reason, none is twice."
        )
    return 1 if problems else 0


# --- What must hold ---------------------------------------------------------------------------------


def rows(outbound: Outbound, rule: str) -> list:
    return outbound.records(rule, limit=1_000)


def parcels_disagree(outbound: Outbound, target: Target) -> list[str]:
    problems = []
    found = {row.source_id: row for row in rows(outbound, "parcels")}
    with outbound.config.engine.connect() as connection:
        newest = Changes("parcel").load(connection, list(found))
    for parcel, row in found.items():
        record = newest[parcel]
        held = [each for each, body in target.records.items() if body["parcel"] == parcel]
        taken = [request for request in target.log if request.took and request.parcel == parcel]
        created = [request for request in taken if request.path == "/parcels"]
        if len(held) > 1 or len(created) > 1 + (parcel in target.forgotten):
            problems.append(f"{parcel} was created twice")
        if row.status == "delivered":
            if held != [row.remote_id] or record is None or target.records[held[0]] != record.payload:
                problems.append(f"{parcel} is delivered, and the target has something else")
        elif held:
            problems.append(f"{parcel} is {row.status}, and the target has it")
    asked = {request.parcel for request in target.log if request.path != "/notices"}
    problems += [f"{parcel} was sent, and has no row" for parcel in sorted(asked - found.keys())]
    return problems


def notices_disagree(outbound: Outbound, target: Target) -> list[str]:
    problems = []
    taken = Counter(notice["data"]["parcel"] for notice in target.notices)
    problems += [f"the notice of {parcel} came twice" for parcel, count in taken.items() if count > 1]
    delivered = [row for row in rows(outbound, "notices") if row.status == "delivered"]
    if len(delivered) != len(target.notices):
        problems.append(f"{len(delivered)} notices are delivered, and the target has {len(target.notices)}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
