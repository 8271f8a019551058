"""A transaction in two waits: BEGIN travels with its first statement, COMMIT with its last.

Between those two moments the connection is in its ordinary mode, so that anything may run on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define

from statifier_router.dialect.common import BEGIN, COMMIT
from statifier_router.dialect.held import Link, begin
from statifier_router.dialect.prepared import Prepared, Row

# What `1 / count(*)` raises where there was nothing to count.
_DIVISION_BY_ZERO = "22012"

Missed = Callable[[], Exception]


@define
class Pipe:
    """The transaction of one delivery, on a connection that the library owns."""

    connection: Link
    begun: bool = False
    _closing: tuple[Prepared, Mapping[str, Any], Missed] | None = None

    def begin(self) -> None:
        """Begin, where that has not travelled with a statement."""
        if not self.begun:
            self.begun = True
            begin(self.connection)

    def first(self, statement: Prepared, values: Mapping[str, Any]) -> Row | None:
        """Run a statement and answer its first row; BEGIN goes before it, in the same wait."""
        if self.begun:
            return statement.first(self.connection, values)
        # From here on there may be a transaction to roll back.
        self.begun = True
        found = statement.rows_between(self.connection, values, before=BEGIN)
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

    def close(self) -> None:
        """Send what was kept, and COMMIT with it; where nothing was kept, whoever commits does all."""
        if self._closing is None:
            return
        statement, values, missed = self._closing
        self._closing = None
        self._close(statement, values, missed, after=COMMIT)

    def _close(
        self, statement: Prepared, values: Mapping[str, Any], missed: Missed, *, after: bytes | None
    ) -> None:
        try:
            statement.rows_between(self.connection, values, after=after)
        except Exception as error:
            if getattr(getattr(error, "orig", None), "sqlstate", None) == _DIVISION_BY_ZERO:
                raise missed() from error
            raise
