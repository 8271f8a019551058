"""Claims: the row that makes a second hand-over of a message a duplicate, until it expires."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from attrs import field
from sqlalchemy import Executable, bindparam, delete, func, literal_column, select, true, tuple_

from statifier_router import dialect
from statifier_router.ambient import Frame
from statifier_router.clock import as_utc
from statifier_router.config import Config
from statifier_router.dialect import Link, Prepared
from statifier_router.errors import ConfigError
from statifier_router.paging import checked_limit
from statifier_router.schema import Schema
from statifier_router.transactions import run
from statifier_router.values import made_often

__all__ = ["reap"]


@made_often
class Claim:
    """The identity of one message at one binding, what it carried, and until when it counts.

    `scope` is empty unless the binding deduplicates per scope.
    """

    binding_id: str
    scope: str
    message_id: str
    digest: str = field(repr=False)
    expires_at: datetime


def take(link: Link, schema: Schema, claim: Claim, now: datetime, lock_timeout: str | None) -> bool:
    """Take the claim, in one statement; False where the message was taken before.

    Waits for another transaction's uncommitted claim on the same message. A stored expiry equal to
    `now` still counts. `lock_timeout` bounds this and every later wait of the transaction.
    """
    kind = dialect.kind(link)
    bounded = lock_timeout is not None and kind == "postgresql"
    values = as_values(claim, now, lock_timeout)
    return _take(schema, kind, bounded=bounded).first(link, values) is not None


def as_values(claim: Claim, now: datetime, lock_timeout: str | None) -> dict[str, Any]:
    """The parameters of `taking`."""
    return {
        "binding_id": claim.binding_id,
        "scope": claim.scope,
        "message_id": claim.message_id,
        "digest": claim.digest,
        "expires_at": claim.expires_at,
        "now": now,
        "lock_timeout": lock_timeout,
    }


@lru_cache
def _take(schema: Schema, kind: str, *, bounded: bool) -> Prepared:
    return Prepared(taking(schema, kind, bounded=bounded))


def taking(schema: Schema, kind: str, *, bounded: bool) -> Any:
    """The insert that answers a row where the claim was taken, and none for a duplicate.

    With `bounded` it also sets the lock timeout, for its own wait and every later one.
    """
    table = schema.claims
    inserting = dialect.insert_into(kind, table)
    if bounded:
        # The setting is made by the very statement whose wait it governs, so it costs no trip.
        # The claim's row is selected from it: a part that nothing refers to would never run.
        made = func.set_config(literal_column("'lock_timeout'"), bindparam("lock_timeout"), true())
        setting = select(made.label("made")).cte("setting")
        row = select(*(bindparam(column.name, type_=column.type) for column in table.c)).where(
            setting.c.made.is_not(None)
        )
        inserting = inserting.from_select([column.name for column in table.c], row)
    else:
        inserting = inserting.values({column.name: bindparam(column.name) for column in table.c})
    return inserting.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={
            "digest": inserting.excluded.digest,
            "expires_at": inserting.excluded.expires_at,
        },
        where=table.c.expires_at < bindparam("now", type_=table.c.expires_at.type),
    ).returning(table.c.binding_id)


def reap(config: Config, *, now: datetime | None = None, limit: int = 1000, connection: Any = None) -> int:
    """Delete at most `limit` claims whose expiry is strictly before `now`, oldest first.

    One transaction; claims that a delivery holds are passed over. Answers how many it deleted: call
    until 0.
    """
    instant = config.now() if now is None else as_utc(now, "now", ConfigError)
    limit = checked_limit(limit)

    def work(frame: Frame) -> int:
        statement = _reap(config.schema)
        return frame.connection.execute(statement, {"now": instant, "limit": limit}).rowcount

    return run(config, work, connection=connection)


@lru_cache
def _reap(schema: Schema) -> Executable:
    table = schema.claims
    identity = tuple_(*table.primary_key.columns)
    expired = (
        select(*table.primary_key.columns)
        .where(table.c.expires_at < bindparam("now", type_=table.c.expires_at.type))
        .order_by(table.c.expires_at)
        .limit(bindparam("limit"))
        .with_for_update(skip_locked=True)
    )
    return delete(table).where(identity.in_(expired))
