"""Several processes that deliver at once, each with its own connection, for so many seconds."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import workload


def _work(url: str, keys: list[str], seconds: float, ready: Any, told: Any, base: int) -> None:
    from statifier_router import Delivery, deliver

    made = workload.config(url)
    to = workload.binding()
    # Statements are prepared, modules are warm.
    count = 0
    for _ in range(20):
        count += 1
        deliver(
            made,
            to,
            keys[count % len(keys)],
            Delivery(str(base + count), "acme", workload.NOW, workload.DATA),
        )
    ready.wait()
    begun = time.perf_counter()
    warm = count
    while (spent := time.perf_counter() - begun) < seconds:
        count += 1
        deliver(
            made,
            to,
            keys[count % len(keys)],
            Delivery(str(base + count), "acme", workload.NOW, workload.DATA),
        )
    made.engine.dispose()
    told.put((count - warm, count, spent))


def at_once(url: str, keys: list[list[str]], seconds: float) -> tuple[float, int]:
    """One process for each list of keys; answers how many a second all did, and how many messages."""
    context = multiprocessing.get_context("spawn")
    ready, told = context.Barrier(len(keys)), context.Queue()
    processes = [
        context.Process(
            target=_work,
            args=(url, own, seconds, ready, told, workload.numbers.reserve(1_000_000_000)),
        )
        for own in keys
    ]
    for process in processes:
        process.start()
    answers = [told.get() for _ in processes]
    for process in processes:
        process.join()
    rate = sum(count / spent for count, _, spent in answers)
    return rate, sum(all_of_them for _, all_of_them, _ in answers)
