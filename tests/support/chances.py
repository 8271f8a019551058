"""What may happen in a history, and one act of it by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from statifier_router.runs import Policy, RetryPolicy
from statifier_router.testing.targets import breaks, lands, rejects, throttles, times_out, unavailable

IDS: Final = ("p0", "p1", "p2", "p3")
VALUES: Final = ("A", "B", "C")
ALL_VERBS: Final = ("create", "update", "delete", "lookup", "ping")
VERBS: Final = (
    ALL_VERBS,
    ("create", "update"),
    ("create", "update", "delete"),
    ("create", "update", "lookup"),
    ("create",),
)
REACTIONS: Final = {
    "down": unavailable(),
    "half": unavailable(taken=True),
    "slow, not taken": times_out(),
    "slow, taken": times_out(taken=True),
    "refusing": rejects(),
    "throttling": throttles(120),
    "broken": breaks(ValueError("what is this?")),
    "addressless": lands(""),
}
EDITS: Final[tuple[dict[str, Any], ...]] = (
    {"batch_size": 1},
    {"batch_size": 3},
    {"retry": RetryPolicy(max_attempts=3)},
    {"retry": RetryPolicy()},
    {"on_unknown_create": "park"},
    {"on_unknown_create": "retry"},
    {"on_unclassified": "park"},
    {"policy": Policy.CREATE_ONLY},
    {"policy": Policy.UPSERT},
    {"policy": Policy.UPDATE_ONLY},
    {"policy": Policy.UPSERT},
    {"policy": Policy.UPSERT},
)
CLOCKS: Final = (
    timedelta(seconds=1),
    timedelta(seconds=61),
    timedelta(seconds=91),
    timedelta(seconds=181),
    timedelta(minutes=16),
    timedelta(hours=5),
)
MODES: Final = ("retry", "recreate", "adopt", "dismiss")


def chance(generator: random.Random, names: Sequence[str] | None = None) -> tuple[Any, ...]:
    """One act by chance, for the long form."""
    pick, number = generator.choice, generator.randrange
    name = pick(names or _OFTEN)
    which: int = number(len(IDS))
    arguments: dict[str, tuple[Any, ...]] = {
        "touch": (which, number(len(VALUES))),
        "delete": (which,),
        "react": (pick(list(REACTIONS)), 1 + number(6)),
        "set_target": (pick([*["up"] * 6, "down", "slow, not taken", "slow, taken", "refusing"]),),
        "forget": (which,),
        "edit": (number(len(EDITS)), number(2)),
        "redeploy": (number(2),),
        "swap_writer": (number(len(VERBS)), bool(number(2))),
        "park": (which,),
        "release": (pick(MODES), which),
        "replay": (which,),
        "advance": (number(len(CLOCKS)),),
        "tick": (number(2),),
        "die": (number(2), number(40)),
        "take_over": (number(2),),
        "job": (number(2), 1),
        "chain": (number(2),),
    }
    if name == "thaw":
        meanwhile = [chance(generator, _MEANWHILE) for _ in range(1 + number(3))]
        if number(3):
            meanwhile.append(("take_over", 1))
        return (name, 0, pick(["scan", "before", "after"]), number(2), meanwhile)
    return (name, *arguments.get(name, ()))


_OFTEN: Final = (
    *("touch",) * 14,
    *("die",) * 10,
    *("take_over",) * 6,
    *("thaw",) * 4,
    *("react",) * 4,
    *("chain",) * 3,
    *("advance",) * 3,
    *("delete",) * 2,
    *("release",) * 2,
    *("resume",) * 4,
    *("open_route",) * 3,
    "tick",
    "job",
    "set_target",
    "set_target",
    "forget",
    "edit",
    "redeploy",
    "redeploy",
    "swap_writer",
    "pause",
    "close_route",
    "park",
    "reset_breaker",
    "replay",
)
_MEANWHILE: Final = (
    *("touch",) * 4,
    *("advance",) * 2,
    *("react",) * 2,
    "delete",
    "edit",
    "swap_writer",
    "pause",
    "park",
    "release",
    "replay",
    "tick",
    "reset_breaker",
    "forget",
)
