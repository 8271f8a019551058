"""What one version of the tables is: statements to get there and back, and what then stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from statifier_router.dialect import Kind

if TYPE_CHECKING:
    from statifier_router.tables import Tables


@frozen(kw_only=True)
class Version:
    """One version, written down once and never edited after its release.

    In a statement `{prefix}` stands for the prefix, `{schema}` for the quoted schema with its dot, or
    for nothing. `columns` are those this version adds, by table without its prefix.
    """

    number: int
    columns: Mapping[str, tuple[str, ...]]
    ups: Mapping[Kind, tuple[str, ...]]
    downs: Mapping[Kind, tuple[str, ...]]

    def up(self, kind: Kind, tables: Tables) -> list[str]:
        """The statements that lead here from the version before, the version row among them."""
        statements = [*self.ups[kind], _RECORD[kind].format(number=self.number)]
        return [_render(statement, tables) for statement in statements]

    def down(self, kind: Kind, tables: Tables) -> list[str]:
        """The statements that lead back to the version before."""
        statements = list(self.downs[kind])
        if self.number > 1:  # The first version brought the version table and takes it away.
            statements.append(_FORGET.format(number=self.number))
        return [_render(statement, tables) for statement in statements]


# The database's own clock, so that a script that is run later tells when it was run.
_RECORD: Mapping[Kind, str] = {
    "postgresql": (
        'INSERT INTO {{schema}}"{{prefix}}schema_version" (version, applied_at) '
        "VALUES ({number}, CURRENT_TIMESTAMP)"
    ),
    "sqlite": (
        'INSERT INTO {{schema}}"{{prefix}}schema_version" (version, applied_at) '
        "VALUES ({number}, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))"
    ),
}
_FORGET = 'DELETE FROM {{schema}}"{{prefix}}schema_version" WHERE version = {number}'


def _render(statement: str, tables: Tables) -> str:
    schema = f'"{tables.schema}".' if tables.schema is not None else ""
    return statement.replace("{schema}", schema).replace("{prefix}", tables.prefix)
