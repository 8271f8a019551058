"""What the peers' programs share. They run in environments of their own, without this project."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

KEYS = 1_000


def given(arguments: list[str]) -> tuple[dict[str, str], float]:
    """The parts of the server's address, and for how many seconds to work."""
    return json.loads(arguments[1]), float(arguments[2])


def measure(work: Callable[[int], None], seconds: float) -> None:
    """Do `work` over and over, and tell how often it was done; this ends the program."""
    number = 0
    for number in range(1, 101):
        work(number)
    begun = time.perf_counter()
    count = 0
    while (spent := time.perf_counter() - begun) < seconds:
        count += 1
        work(number + count)
    sys.stdout.write("\n" + json.dumps({"count": count, "per_second": count / spent}) + "\n")
    sys.stdout.flush()
    # Threads of a library may wait for an hour.
    import os

    os._exit(0)
