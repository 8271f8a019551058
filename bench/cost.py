"""The library's own time in the client: its CPU less that of the bare driver doing the same statements.

    python bench/cost.py
    python bench/cost.py --instructions

The bare driver is psycopg with its cursor, given the statements and values of one delivery that was
recorded. CPU time counts what the process spent, in the kernel too, and not what it waited; the medians
of the rounds count. `--instructions` counts instructions under valgrind in place of time: unlike time they
do not depend on what else the machine does.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import setting
import workload

from statifier_router import Delivery, deliver

EACH = 200


class Recording(psycopg.Cursor[Any]):
    """A cursor that keeps what it is told to execute."""

    ran: ClassVar[list[tuple[Any, dict[str, Any]]]] = []

    def execute(self, query: Any, params: Any = None, **kw: Any) -> Any:
        if params:
            self.ran.append((query, dict(params)))
        return super().execute(query, params, **kw)


def recorded(url: str) -> list[tuple[Any, dict[str, Any]]]:
    """The two statements of a delivery to an existing execution, with their values."""
    made = workload.config(url)
    kw = {"connect_args": {"cursor_factory": Recording, "options": "-c synchronous_commit=off"}}
    engine = workload.create_engine(url, **kw)
    made = workload.Config(engine, charts=made.charts, bindings=made.bindings)
    for _ in range(2):
        Recording.ran.clear()
        number = str(next(workload.numbers))
        deliver(made, workload.binding(), "1", Delivery(number, "acme", workload.NOW, workload.DATA))
    engine.dispose()
    assert len(Recording.ran) == 2, Recording.ran
    return list(Recording.ran)


def bare(url: str, statements: list[tuple[Any, dict[str, Any]]], *, pipelined: bool) -> Callable[[], None]:
    """The same statements by the driver alone: in a transaction of its own, or in two pipelines."""
    (opening, opening_values), (closing, closing_values) = statements
    connection = psycopg.connect(setting.conninfo(url), autocommit=pipelined)

    def work() -> None:
        number = next(workload.numbers)
        key = str(number % workload.KEYS + 1)
        opening_values.update(message_id=str(number), at_key=key)
        cursor = connection.cursor()
        if pipelined:
            with connection.pipeline():
                connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                cursor.execute(opening, opening_values)
        else:
            cursor.execute(opening, opening_values)
        (row,) = cursor.fetchall()
        cursor.close()
        closing_values.update(
            execution_id=row[3], from_revision=row[12], ledger_key=key,
            ledger_message_id=str(number), input_0_message_id=str(number),
        )  # fmt: skip
        cursor = connection.cursor()
        if pipelined:
            with connection.pipeline():
                cursor.execute(closing, closing_values)
                connection.execute("COMMIT")
        else:
            cursor.execute(closing, closing_values)
        assert cursor.fetchall()
        cursor.close()
        connection.commit()

    return work


def ways(url: str) -> dict[str, Callable[[], None]]:
    statements = recorded(url)
    return {
        "the driver alone": bare(url, statements, pipelined=False),
        "deliver": workload.delivering(workload.config(url)),
        "route": workload.routing(workload.config(url)),
        "the driver alone, pipelined": bare(url, statements, pipelined=True),
        "deliver, pipelined": workload.delivering(workload.config(url, pipeline=True)),
    }


OWN = {
    "deliver": "the driver alone",
    "route": "the driver alone",
    "deliver, pipelined": "the driver alone, pipelined",
}


def prepared(url: str) -> None:
    made = workload.config(url)
    workload.migrate(made)
    workload.fill(made)
    made.engine.dispose()


def measured(url: str, rounds: int) -> dict[str, Any]:
    prepared(url)
    spent: dict[str, list[float]] = {}
    every = ways(url)
    for work in every.values():
        # Each key once: what a connection remembers of addresses it then has.
        for _ in range(workload.KEYS):
            work()
    for _ in range(rounds):
        for name, work in every.items():
            begun = time.process_time()
            for _ in range(EACH):
                work()
            spent.setdefault(name, []).append((time.process_time() - begun) / EACH * 1e6)
    return _told("client CPU", "µs", {name: statistics.median(each) for name, each in spent.items()})


def _told(title: str, unit: str, figures: dict[str, float]) -> dict[str, Any]:
    print(f"\nOne delivery in the client: {title}")
    rows = []
    for name, figure in figures.items():
        own = figure - figures[OWN[name]] if name in OWN else None
        row = {"way": name, unit: round(figure, 1), "own": None if own is None else round(own, 1)}
        rows.append(row)
        print(f"  {name:32}{figure:>10,.0f} {unit}" + ("" if own is None else f"{own:>10,.0f} of its own"))
    return {f"cost, {title}": rows}


# --- instructions -----------------------------------------------------------------------------------

SWITCH = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(void) { CALLGRIND_DUMP_STATS; CALLGRIND_STOP_INSTRUMENTATION; }
"""


def instructions(url: str) -> dict[str, Any]:
    """Instructions of one delivery in user space, by callgrind; needs valgrind and a C compiler."""
    prepared(url)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="statifier_router_bench_") as place:
        directory = Path(place)
        (directory / "switch.c").write_text(SWITCH)
        library = directory / "switch.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, directory / "switch.c"], check=True)
        for name in ("the driver alone", *OWN, "the driver alone, pipelined"):
            out = directory / "out"
            subprocess.run(
                [
                    "valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}",
                    sys.executable, __file__, "--url", url, "--counted", name, "--switch", library,
                ],
                check=True,
                capture_output=True,
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )  # fmt: skip
            found = re.search(r"^summary: (\d+)", Path(f"{out}.1").read_text(), re.MULTILINE)
            assert found is not None
            figures[name] = int(found[1]) / EACH / 1000
    return _told("instructions (thousands)", "k", figures)


def counted(url: str, name: str, switch: str) -> None:
    """Under valgrind: warm up, then do it with the counter running."""
    work = ways(url)[name]
    for _ in range(workload.KEYS):
        work()
    counter = ctypes.CDLL(switch)
    counter.begin()
    for _ in range(EACH):
        work()
    counter.end()
    os._exit(0)


def main() -> None:
    parser = setting.arguments(__doc__)
    parser.add_argument("--instructions", action="store_true", help="count instructions, not time")
    parser.add_argument("--counted", help="for its own use")
    parser.add_argument("--switch", help="for its own use")
    options = parser.parse_args()
    if options.counted:
        counted(options.url, options.counted, options.switch)
    setting.pin(options.core)
    with setting.server(options.url) as server, setting.database(server) as url:
        print(
            json.dumps(instructions(url) if options.instructions else measured(url, max(options.rounds, 9)))
        )


if __name__ == "__main__":
    main()
