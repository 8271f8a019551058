"""Timers: delayed sends, fired by a function that the host schedules.

>>> from statifier_router import timers
>>> from statifier_router.doctest_support import config
>>> timers.fire_due(config())
Fired(fired=0, discarded=0, failed=0)
"""

from __future__ import annotations

from statifier_router.timers.firing import Fired, Timer, fire_due, pending

__all__ = ["Fired", "Timer", "fire_due", "pending"]
