"""Random histories of a rule with crashes at random points, the long form of tests/test_runs_machine.py.

    python bench/runs_histories.py                          # both databases, 350 histories each
    python bench/runs_histories.py --kind sqlite --histories 2000 --seed 7
    python bench/runs_histories.py --mutant no_follow_up_update --histories 50

A history is forty acts by chance: the source changes, the target fails in each of its ways, operators act,
processes die between two statements or around a call, stand still and thaw behind their successor. After
each act the invariants are checked; at the end everything works again, chains run until there is nothing to
do, and each record must be at the target in its current version, or its row say why not. Counted are the
histories, the crashes, and the records that were lost, stale or twice at a target that honours keys.
With `--mutant` one function of the engine is spoiled, and histories should go wrong. Ends with 1 where one
did, and with a mutant where none did. A history that went wrong is played again with `--only SEED`.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest

from bench.crash import database_of
from tests.support import judged, servers, session
from tests.support.chances import IDS, chance
from tests.support.folding import Configs
from tests.support.histories import History
from tests.support.mutants import MUTANTS

# How a problem begins that is one of the three promises.
PROMISES = ((r"lost: ", "lost"), (r"stale: ", "stale"), (r"\d+ copies of ", "duplicate"))


def main() -> int:
    arguments = _arguments()
    # What a run logs about faults is what is provoked here.
    logging.disable(logging.CRITICAL)
    run = session.Session()
    try:
        wrong = sum(_one_kind(kind, arguments) for kind in arguments.kind or ("sqlite", "postgresql"))
    finally:
        servers.drop_databases()
        run.end()
    return int(not wrong if arguments.mutant else bool(wrong))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=["sqlite", "postgresql"], action="append", help="only this one")
    parser.add_argument("--histories", type=int, default=350, help="on each database")
    parser.add_argument("--acts", type=int, default=40, help="of each history")
    parser.add_argument("--seed", type=int, default=1, help="of the first history")
    parser.add_argument("--only", type=int, help="play the history with this seed alone, and tell its acts")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="spoil this function of the engine")
    return parser.parse_args()


def _one_kind(kind: str, arguments: argparse.Namespace) -> int:
    counts: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    first = arguments.seed if arguments.only is None else arguments.only
    number = arguments.histories if arguments.only is None else 1
    began = time.monotonic()
    with database_of(kind) as database:
        for seed in range(first, first + number):
            database.clear()
            counted, problem = _play(database, seed, arguments)
            counts += counted
            if problem is not None:
                wrong[_promise(problem)] += 1
                print(f"{kind}: history {seed}: {problem[:500]}", flush=True)
        database.dispose()
    print(
        f"{kind}: {number} histories of {arguments.acts} acts in {time.monotonic() - began:.0f} s, "
        f"{counts['crashes']} crashes, {counts['takeovers']} takeovers, {counts['late answers']} late "
        f"answers, {counts['calls']} calls; {wrong['lost']} lost, {wrong['stale']} stale, "
        f"{wrong['duplicate']} duplicate, {wrong['other']} wrong otherwise",
        flush=True,
    )
    return wrong.total()


def _play(database: Any, seed: int, arguments: argparse.Namespace) -> tuple[Counter[str], str | None]:
    generator = random.Random(seed)
    history = History(Configs(), database, keyed=seed % 4 > 0)
    with pytest.MonkeyPatch.context() as monkeypatch:
        if arguments.mutant:
            MUTANTS[arguments.mutant](monkeypatch, history)
        try:
            for number in range(arguments.acts):
                act = chance(generator)
                if arguments.only is not None:
                    print(*act)
                history.play(*act)
                judged.always(history, IDS[number % len(IDS)])
            history.quiesce()
            judged.at_rest(history)
            history.finish()
            judged.released(history)
        except AssertionError as error:
            return history.counts, str(error)
        except Exception as error:
            # A mutant may spoil a history in any way; the engine must not.
            return history.counts, f"{type(error).__name__}: {error}"
        finally:
            history.close()
    return history.counts, None


def _promise(problem: str) -> str:
    found = (name for begins, name in PROMISES if re.match(begins, problem))
    return next(found, "other")


if __name__ == "__main__":
    sys.exit(main())
