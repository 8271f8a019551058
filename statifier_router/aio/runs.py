"""What of `statifier_router.runs` a host calls from its own transactions, for asyncio.

Runs themselves are for a process of their own, over an `Engine`.

>>> record_change.__name__
'record_change'
"""

from __future__ import annotations

from statifier_router.aio.bridge import coroutine_of
from statifier_router.runs import changing

__all__ = ["record_change"]

record_change = coroutine_of(changing.record_change)
