"""A transaction in two waits: BEGIN travels with its first statement, COMMIT with its last.

The same goes for a savepoint and its release, within a transaction that is open. Between those two
moments the connection is in its ordinary mode, so that anything may run on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define

from statifier_router.dialect.common import BEGIN, COMMIT
from statifier_router.dialect.held import Link, begin, command
from statifier_router.dialect.prepared import Prepared, Row

# What `1 / count(*)` raises where there was nothing to count.
_DIVISION_BY_ZERO = "22012"

Missed = Callable[[], Exception]


@define
class Pipe:
    """The transaction of one delivery, on a connection that the library owns; or its savepoint.

    `opening` goes before the first statement, `ending` behind the last.
    """

    connection: Link
    opening: bytes = BEGIN
    ending: bytes = COMMIT
    begun: bool = False
    _closing: tuple[Prepared, Mapping[str, Any], Missed] | None = None

    def begin(self) -> None:
        """Begin, where that has not travelled with a statement."""
        if self.begun:
            return
        self.begun = True
        if self.opening == BEGIN:
            begin(self.connection)
        else:
            command(self.connection, self.opening)

    def first(self, statement: Prepared, values: Mapping[str, Any]) -> Row | None:
        """Run a statement and answer its first row; BEGIN goes before it, in the same wait."""
        if self.begun:
            return statement.first(self.connection, values)
        # From here on there may be a transaction to roll back.
        self.begun = True
        found = statement.rows_between(self.connection, values, before=self.opening)
        return found[0] if found else None

    def defer(self, statement: Prepared, values: Mapping[str, Any], missed: Missed) -> None:
        """Keep the last statement of the delivery, so that it travels with COMMIT.

        It must fail where it wrote nothing, with a division by zero, which comes out as `missed()`.
        """
        self._closing = (statement, values, missed)

    def flush(self) -> None:
        """Run what was kept now, because more statements follow."""
        if self._closing is not None:
            statement, values, missed = self._closing
            self._closing = None
            self._close(statement, values, missed, after=None)

    def close(self) -> bool:
        """Send what was kept, and the ending with it. False where nothing was kept, and nothing is sent."""
        if self._closing is None:
            return False
        statement, values, missed = self._closing
        self._closing = None
        self._close(statement, values, missed, after=self.ending)
        return True

    def end(self) -> None:
        """Close; where nothing was kept, the ending goes by itself, as long as there is something to end."""
        if not self.close() and self.begun:
            command(self.connection, self.ending)

    def _close(
        self, statement: Prepared, values: Mapping[str, Any], missed: Missed, *, after: bytes | None
    ) -> None:
        try:
            statement.rows_between(self.connection, values, after=after)
        except Exception as error:
            if getattr(getattr(error, "orig", None), "sqlstate", None) == _DIVISION_BY_ZERO:
                raise missed() from error
            raise
