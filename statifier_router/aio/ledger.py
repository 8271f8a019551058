"""`statifier_router.ledger` for asyncio.

>>> rows.__name__, prune.__name__
('rows', 'prune')
"""

from __future__ import annotations

from statifier_router import ledger
from statifier_router.aio.bridge import coroutine_of
from statifier_router.ledger import LedgerRow

__all__ = ["LedgerRow", "prune", "rows"]

rows = coroutine_of(ledger.rows)
prune = coroutine_of(ledger.prune)
