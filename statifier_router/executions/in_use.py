"""Which charts are in use: the content hashes of executions that have not ended."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from attrs import frozen
from sqlalchemy import Select, func, select, text

from statifier_router.config import Config
from statifier_router.schema import NOT_TERMINAL, Schema
from statifier_router.transactions import reading


@frozen
class HashInUse:
    """A chart's content hash, how many executions on it have not ended, and the id of one of them."""

    content_hash: str
    executions: int
    example: str


def hashes_in_use(config: Config, *, connection: Any = None) -> list[HashInUse]:
    """The hashes of executions that have not ended, by hash. Takes no lock, and asks no chart.

    Its cost grows with the number of executions that have not ended.
    """
    with reading(config, connection) as own:
        return [HashInUse(*row) for row in own.execute(_in_use(config.schema))]


@lru_cache
def _in_use(schema: Schema) -> Select[Any]:
    table = schema.executions
    return (
        select(table.c.content_hash, func.count(), func.min(table.c.id))
        # The literal condition of the partial index, which it takes.
        .where(text(NOT_TERMINAL))
        .group_by(table.c.content_hash)
        .order_by(table.c.content_hash)
    )
