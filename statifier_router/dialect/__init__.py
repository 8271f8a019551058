"""The only place that asks which database this is: engines, borrowed connections, waits, faults."""

from statifier_router.dialect.bridging import check_bridged, is_async_engine, pause
from statifier_router.dialect.common import Kind, kind
from statifier_router.dialect.connections import (
    check_borrowed,
    lock_timeout_setting,
    restore_busy_timeout,
    set_busy_timeout,
)
from statifier_router.dialect.engines import (
    BEGIN_OPTION,
    check_pipeline,
    check_prepared,
    checked_url,
    create_engine,
    is_prepared,
    opening_options,
    owned_options,
    prepare,
    prepare_engine,
    reader_options,
)
from statifier_router.dialect.faults import (
    Trouble,
    is_serialization,
    is_unique_violation,
    trouble_of,
)
from statifier_router.dialect.held import Held, Link, begin, has_ended, in_full, pipes, still_open
from statifier_router.dialect.pipelines import Pipe
from statifier_router.dialect.prepared import Prepared, Row, together
from statifier_router.dialect.statements import bound_waits, insert_into

__all__ = [
    "BEGIN_OPTION",
    "Held",
    "Kind",
    "Link",
    "Pipe",
    "Prepared",
    "Row",
    "Trouble",
    "begin",
    "bound_waits",
    "check_borrowed",
    "check_bridged",
    "check_pipeline",
    "check_prepared",
    "checked_url",
    "create_engine",
    "has_ended",
    "in_full",
    "insert_into",
    "is_async_engine",
    "is_prepared",
    "is_serialization",
    "is_unique_violation",
    "kind",
    "lock_timeout_setting",
    "opening_options",
    "owned_options",
    "pause",
    "pipes",
    "prepare",
    "prepare_engine",
    "reader_options",
    "restore_busy_timeout",
    "set_busy_timeout",
    "still_open",
    "together",
    "trouble_of",
]
