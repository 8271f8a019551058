"""Deliveries against what peers do, on the same server, taking turns in the same run.

    python bench/peers.py

Each peer is installed by pip into an environment of its own, in a temporary directory; one that cannot be
installed or run is told as such. None of them does what a delivery does; what each does instead stands
beside its figure. A delivery here claims the message, finds or makes the address, locks the execution,
steps it, and writes state, input and ledger row, all in one transaction.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import measuring
import setting
import workload

HERE = Path(__file__).parent / "peer"

# Program, what to install, and what one unit of its work is.
PEERS = {
    "DBOS": (
        "dbos_send.py",
        ["dbos", "psycopg[binary]"],
        "get or create a workflow and send it a message: accepted, not yet received; no step",
    ),
    "procrastinate": (
        "procrastinate_defer.py",
        ["procrastinate", "psycopg[binary]"],
        "defer one job with a lock: accepted, not yet run; no state",
    ),
    "eventsourcing": (
        "eventsourcing_save.py",
        ["eventsourcing[postgres]", "psycopg[binary]"],
        "get an aggregate, trigger an event, save: no dedupe, no address",
    ),
    "harel": (
        "harel_process.py",
        ["harel[postgres]", "psycopg[binary]"],
        "process one event of a durable execution on PostgreSQL: no address, no dedupe by message",
    ),
    "xstate-statemachine": (
        "xstate_dispatch.py",
        ["xstate-statemachine"],
        "one envelope through its dispatcher with inbox, over its SQLite store",
    ),
}


def install(place: Path, packages: list[str]) -> Path | str:
    """The Python of a new environment with these packages; or why there is none."""
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *packages], capture_output=True, text=True, check=False
    )
    return python if done.returncode == 0 else "cannot be installed: " + _last(done.stderr)


def run(python: Path, program: str, url: str, seconds: float) -> dict[str, float] | str:
    """What the peer's program told; or why it told nothing."""
    try:
        done = subprocess.run(
            [python, HERE / program, json.dumps(setting.parsed(url)), str(seconds)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120 + seconds,
            cwd=HERE,
            # For those that do not say it themselves: no commit here waits for the disk.
            env={**os.environ, "PGOPTIONS": "-c synchronous_commit=off"},
        )
    except subprocess.TimeoutExpired:
        return "does not end"
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"count"'):
            told: dict[str, float] = json.loads(line)
            return told
    return "cannot be run: " + _last(done.stderr)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1][:200] if lines else "nothing was said"


def versions(python: Path, packages: list[str]) -> str:
    name = packages[0].partition("[")[0]
    done = subprocess.run(
        [python, "-c", f"import importlib.metadata as m; print(m.version('{name}'))"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def measured(server: str, rounds: int, seconds: float) -> dict[str, Any]:
    told: list[dict[str, Any]] = []
    print("\nPeers (median /s of the rounds; ratio: deliver's rate over the peer's, in the same rounds)")
    with (
        tempfile.TemporaryDirectory(prefix="statifier_router_peers_") as place,
        setting.database(server) as url,
    ):
        made = workload.config(url)
        workload.migrate(made)
        workload.fill(made)
        recount = workload.Recount(made)
        ours = measuring.repeating(workload.delivering(made))
        recount.check(delivered=ours(1.0)[1])
        for name, (program, packages, does) in PEERS.items():
            row: dict[str, Any] = {"peer": name, "does": does}
            told.append(row)
            python = install(Path(place) / name, packages)
            if isinstance(python, str):
                row["trouble"] = python
                print(f"  {name:28} {python}")
                continue
            row["version"] = versions(python, packages)
            theirs, our_rates = [], []
            for _ in range(rounds):
                with setting.database(server) as own:
                    answer = run(python, program, own, seconds)
                if isinstance(answer, str):
                    row["trouble"] = answer
                    break
                theirs.append(answer["per_second"])
                rate, count = ours(seconds)
                recount.check(delivered=count)
                our_rates.append(rate)
            if "trouble" in row:
                print(f"  {name:28} {row['trouble']}")
                continue
            both = {"deliver": our_rates, name: theirs}
            row["per_second"] = round(sorted(theirs)[len(theirs) // 2], 1)
            row["deliver_per_second"] = round(sorted(our_rates)[len(our_rates) // 2], 1)
            row["ratio"] = round(measuring.ratios(both, "deliver", name), 2)
            print(
                f"  {name + ' ' + row['version']:28}{row['per_second']:>8,.0f}  deliver "
                f"{row['deliver_per_second']:>7,.0f}  ratio {row['ratio']:>5.2f}  ({does})"
            )
        made.engine.dispose()
    return {"peers": told}


def main() -> None:
    options = setting.arguments(__doc__).parse_args()
    setting.pin(options.core)
    with setting.server(options.url) as server:
        print(json.dumps(measured(server, options.rounds, options.seconds)))


if __name__ == "__main__":
    sys.exit(main())
