"""Deferrals: events that came early, kept until their execution takes them.

>>> from statifier_router import deferrals
>>> from statifier_router.doctest_support import config
>>> deferrals.sweep(config())
Swept(offered=0, landed=0, expired=0)
"""

from __future__ import annotations

from statifier_router.deferrals.sweeping import KeptEvent, Swept, pending, sweep

__all__ = ["KeptEvent", "Swept", "pending", "sweep"]
