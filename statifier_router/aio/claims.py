"""`statifier_router.claims` for asyncio.

>>> reap.__name__
'reap'
"""

from __future__ import annotations

from statifier_router import claims
from statifier_router.aio.bridge import coroutine_of

__all__ = ["reap"]

reap = coroutine_of(claims.reap)
