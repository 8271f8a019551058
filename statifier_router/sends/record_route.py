"""`RecordRoute`: an event becomes a version of a record, for delivery runs to carry out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from attrs import field, frozen

from statifier_router import change_table
from statifier_router.errors import ConfigError, RouteRefused
from statifier_router.messages import Event
from statifier_router.paths import ABSENT, Path, parse, read, spell
from statifier_router.refusals import KeyRefusal, close_awaitable
from statifier_router.sends.routes import RouteContext
from statifier_router.text import KEY_LIMIT, NAME_LIMIT, checked
from statifier_router.view import Missing, View

RecordId = Path | Callable[[View], str]
_Program = Callable[[Event], object]


def _entity(value: str) -> str:
    return checked(value, "entity", ConfigError, limit=NAME_LIMIT)


def _record_id(value: RecordId) -> _Program:
    """The program of a `record_id`; raises `ConfigError` for what is none."""
    if isinstance(value, str | tuple):
        names = parse(value, "record_id", ConfigError)

        def at_path(event: Event) -> object:
            found = read(event.data, names)
            if found is ABSENT:
                raise RouteRefused(f"record_id: the event's data has no field {spell(names)!r}")
            return found

        return at_path
    if not callable(value):
        raise ConfigError(
            f"record_id must be a callable, a dotted path or join(...), not {type(value).__name__}"
        )
    return lambda event: _called(value, event)


def _called(program: Callable[[View], Any], event: Event) -> object:
    if not isinstance(event.data, dict):
        raise RouteRefused("record_id: the event's data is no object, so it has no fields")
    try:
        found = program(View(event.data))
    except (Missing, KeyRefusal) as fault:
        raise RouteRefused(f"record_id: {fault}") from fault
    if close_awaitable(found):
        raise ConfigError("record_id answered an awaitable; it must be a plain function, not async")
    return found


@frozen
class RecordRoute:
    """Hands off by a row in `changes`: the event's data is the newest version of a record of `entity`.

    `record_id` says which record: a path into the event's data, `join(...)`, or a callable over a view of
    it. What has no id there, or one that is not text, is refused, and the chart hears it. Each call appends a
    row; the same version once more is told by its signal, a digest of the data, and not sent again.

    A scope's records are kept apart by an entity of their own: `Config.route_overrides` gives the scope
    another `RecordRoute` under the same name.

    >>> RecordRoute("parcel", record_id="parcel.id").entity
    'parcel'
    """

    entity: str = field(converter=_entity)
    record_id: RecordId = field()
    _program: _Program = field(init=False, repr=False, eq=False)

    # It only inserts rows of the library's own: no statement of a stranger can break the delivery.
    writes_rows_only = True

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_program", _record_id(self.record_id))

    def hand_off(self, event: Event, key: str, context: RouteContext) -> None:
        """Append the row in the delivery's transaction."""
        if context.schema is None:
            raise ConfigError("RecordRoute needs the context that the library hands it")
        change_table.append(context.link, context.schema, self.row_of(event, context.now))

    def row_of(self, event: Event, now: datetime) -> dict[str, Any]:
        """The row, for whoever writes it together with others. Raises `RouteRefused`."""
        source_id = self._program(event)
        if not isinstance(source_id, str):
            raise RouteRefused(
                f"record_id must be text, not {type(source_id).__name__}; join(...) renders integers as text"
            )
        return change_table.row_of(
            entity=self.entity,
            source_id=checked(source_id, "record_id", RouteRefused, limit=KEY_LIMIT),
            data=event.data,
            signal=None,
            deleted=False,
            now=now,
        )
