"""`statifier_router.executions` for asyncio.

>>> fetch.__name__, cancel.__name__
('fetch', 'cancel')
"""

from __future__ import annotations

from statifier_router import executions
from statifier_router.aio.bridge import coroutine_of
from statifier_router.executions import Input, Replayed

__all__ = [
    "Input",
    "Replayed",
    "cancel",
    "fail",
    "fetch",
    "inputs",
    "migrate",
    "prune",
    "replay",
    "resume",
    "suspend",
]

fetch = coroutine_of(executions.fetch)
inputs = coroutine_of(executions.inputs)
cancel = coroutine_of(executions.cancel)
fail = coroutine_of(executions.fail)
suspend = coroutine_of(executions.suspend)
resume = coroutine_of(executions.resume)
migrate = coroutine_of(executions.migrate)
replay = coroutine_of(executions.replay)
prune = coroutine_of(executions.prune)
