"""`record_change`: a host says that a record of its own has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statifier_router import change_table
from statifier_router.errors import ConfigError
from statifier_router.jsontext import Json, NotJson, plain
from statifier_router.text import KEY_LIMIT, NAME_LIMIT, checked
from statifier_router.transactions import run

if TYPE_CHECKING:
    from statifier_router.ambient import Frame
    from statifier_router.config import Config


def record_change(
    config: Config,
    entity: str,
    source_id: str,
    data: Json,
    *,
    signal: str | None = None,
    deleted: bool = False,
    connection: Any = None,
) -> None:
    """Append one version of a record to `changes`, for the rules of its entity to carry on.

    In the transaction in force, or that of `connection`, the version exists exactly when that transaction
    commits; without either in one of its own. Versions of one record are in the order in which they were
    appended: write them while the transaction holds the record's own row locked, or is the only one to write
    it. `signal` tells versions apart and is compared for equality only; by default the digest of `data` and
    `deleted`, so that the same version once more is not sent again. A `deleted` record may carry its last
    data, or None. Raises `ConfigError`, naming the argument.

    >>> from statifier_router.doctest_support import config
    >>> from statifier_router.runs import record_change
    >>> record_change(config(), "parcel", "P7", {"state": "held"})
    """
    if not isinstance(deleted, bool):
        raise ConfigError(f"deleted must be True or False, not {deleted!r}")
    try:
        said = plain(data)
    except NotJson as fault:
        raise ConfigError(f"data{fault.path} {fault.problem}") from fault
    row = change_table.row_of(
        entity=checked(entity, "entity", ConfigError, limit=NAME_LIMIT),
        source_id=checked(source_id, "source_id", ConfigError, limit=KEY_LIMIT),
        data=said,
        signal=None if signal is None else checked(signal, "signal", ConfigError, limit=KEY_LIMIT),
        deleted=deleted,
        now=config.now(),
    )

    def append(frame: Frame) -> None:
        change_table.append(frame.connection, config.schema, row)

    run(config, append, connection=connection)
