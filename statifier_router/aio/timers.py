"""`statifier_router.timers` for asyncio.

>>> fire_due.__name__, pending.__name__
('fire_due', 'pending')
"""

from __future__ import annotations

from statifier_router import timers
from statifier_router.aio.bridge import coroutine_of
from statifier_router.timers import Fired, Timer

__all__ = ["Fired", "Timer", "fire_due", "pending"]

fire_due = coroutine_of(timers.fire_due)
pending = coroutine_of(timers.pending)
