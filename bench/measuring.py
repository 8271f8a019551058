"""Ways that take turns, their medians and ratios, and the table that tells them."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import setting
import workload

# Does its work for about so many seconds; answers how many a second, and how many.
Way = Callable[[float], tuple[float, int]]

# As many messages has each client of pgbench to itself: the scripts say it too.
CLIENT = 1_000_000_000
FLOOR = Path(__file__).parent / "floor"


def repeating(work: Callable[[], None], each: int = 1) -> Way:
    """The way that does `work`, which counts as `each`, over and over in this process."""

    def way(seconds: float) -> tuple[float, int]:
        begun = time.perf_counter()
        count = 0
        while (spent := time.perf_counter() - begun) < seconds:
            work()
            count += each
        return count / spent, count

    return way


def floor(script: str, url: str, made: Any, program: str, clients: int = 1) -> Way:
    """The way that has pgbench do the plain statements of `bench/floor/<script>.sql`, prepared."""
    chart = workload.trivial()
    variables = {
        "m": 0,
        "keys": workload.KEYS,
        "binding": workload.binding().id,
        "scope": "acme",
        "document": "parcel",
        "bound": "5000ms",
        "digest": "5" * 64,
        "now": "2026-03-01 12:00:00.123456+00",
        "expires": "2026-03-04 12:00:00.123456+00",
        "hash": chart.content_hash,
        "position": '{"scans":1,"depot":"Lyon"}',
        "active": '["moving"]',
        "event": '{"name":"scanned","data":{"depot":"Lyon","weight":12,"scanner":{"id":"S-4711","line":3}}}',
        "details": '{"data":{"execution":{"id":"ex_01kj5rq1m8jm2yq3k7z8v4t0ab","scope":"acme","document":'
        '"parcel","key":"1234567"}},"content_hash":"' + chart.content_hash + '","interpreter":"function",'
        '"interpreter_version":"1"}',
    }
    parts = setting.parsed(url)
    environment = {
        **os.environ,
        "PGHOST": parts["host"],
        "PGPORT": parts.get("port", "5432"),
        "PGUSER": parts["user"],
        "PGPASSWORD": parts.get("password", ""),
        "PGOPTIONS": "-c synchronous_commit=off",
    }

    def way(seconds: float) -> tuple[float, int]:
        base = workload.numbers.reserve(clients * CLIENT)
        arguments = [f"-D{name}={value}" for name, value in {**variables, "base": base}.items()]
        told = subprocess.run(
            [
                program, "--no-vacuum", "--protocol=prepared", f"--client={clients}",
                f"--jobs={min(clients, 2)}", f"--time={max(1, round(seconds))}",
                f"--file={FLOOR / script}.sql", *arguments, parts["dbname"],
            ],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        ).stdout  # fmt: skip
        failed = int(_found(r"number of failed transactions: (\d+)", told))
        if failed:
            raise SystemExit(f"pgbench: {failed} transactions failed")
        count = int(_found(r"number of transactions actually processed: (\d+)", told))
        return float(_found(r"tps = ([\d.]+)", told)), count

    return way


def _found(pattern: str, told: str) -> str:
    found = re.search(pattern, told)
    if found is None:
        raise SystemExit(f"pgbench told nothing of {pattern!r}:\n{told}")
    return found[1]


def take_turns(
    ways: Mapping[str, Way], *, rounds: int, seconds: float, checked: Callable[[str, int], object]
) -> dict[str, list[float]]:
    """How many a second each way did in each round. `checked(name, count)` is called after each turn."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for name, way in ways.items():
        checked(name, way(min(seconds, 1.0))[1])
    for at in range(rounds):
        # Each goes first in some round: what comes after a rest is not always the same one.
        order = list(ways)
        for name in order[at % len(order) :] + order[: at % len(order)]:
            rate, count = ways[name](seconds)
            checked(name, count)
            rates[name].append(rate)
    return rates


def ratios(rates: Mapping[str, list[float]], name: str, to: str) -> float:
    """The median of the rounds' ratios."""
    pairs = zip(rates[name], rates[to], strict=True)
    return statistics.median([one / other for one, other in pairs])


def table(title: str, rates: Mapping[str, list[float]], to: str) -> list[dict[str, Any]]:
    """Print the medians and the ratios to the way `to`, and answer them."""
    print(f"\n{title}")
    print(f"  {'':44}{'median /s':>10}{'lowest':>9}{'highest':>9}{'ratio':>8}")
    rows = []
    for name, each in rates.items():
        ratio = ratios(rates, name, to)
        print(
            f"  {name:44}{statistics.median(each):>10,.0f}{min(each):>9,.0f}{max(each):>9,.0f}{ratio:>8.2f}"
        )
        rows.append({"way": name, "per_second": round(statistics.median(each), 1), "ratio": round(ratio, 3)})
    return rows
