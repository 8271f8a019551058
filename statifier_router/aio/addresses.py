"""`statifier_router.addresses` for asyncio.

>>> find.__name__, by_execution.__name__, reap.__name__
('find', 'by_execution', 'reap')
"""

from __future__ import annotations

from statifier_router import addresses
from statifier_router.addresses import Address, Reaped
from statifier_router.aio.bridge import coroutine_of

__all__ = ["Address", "Reaped", "by_execution", "find", "reap"]

find = coroutine_of(addresses.find)
by_execution = coroutine_of(addresses.by_execution)
reap = coroutine_of(addresses.reap)
