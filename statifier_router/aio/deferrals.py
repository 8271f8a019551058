"""`statifier_router.deferrals` for asyncio.

>>> pending.__name__, sweep.__name__
('pending', 'sweep')
"""

from __future__ import annotations

from statifier_router import deferrals
from statifier_router.aio.bridge import coroutine_of
from statifier_router.deferrals import KeptEvent, Swept

__all__ = ["KeptEvent", "Swept", "pending", "sweep"]

pending = coroutine_of(deferrals.pending)
sweep = coroutine_of(deferrals.sweep)
