"""Whether a text is one of many, which travel as one parameter: the statement is the same for any number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Boolean, Text, bindparam
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from statifier_router.jsontext import encode

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Dialect
    from sqlalchemy.types import TypeEngine


class _Texts(TypeDecorator[Sequence[str]]):
    """Texts as an array of PostgreSQL, and as JSON where there are none."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(ARRAY(Text()) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Sequence[str] | None, dialect: Dialect) -> Any:
        assert value is not None
        return list(value) if dialect.name == "postgresql" else encode(list(value))


class _Among(FunctionElement[bool]):
    type = Boolean()
    inherit_cache = True

    def self_group(self, against: Any = None) -> Any:
        """As it is: compared with 1, as SQLite's other truths are, it would find no index."""
        del against
        return self


@compiles(_Among)
def _among(element: Any, compiler: Any, **kw: Any) -> str:
    column, texts = (compiler.process(each, **kw) for each in element.clauses)
    return f"{column} = ANY ({texts})"


@compiles(_Among, "sqlite")
def _among_of_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    column, texts = (compiler.process(each, **kw) for each in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({texts}))"  # noqa: S608 - compiled, both


def among(column: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
    """Whether the column's text is one of those that the parameter has."""
    return _Among(column, bindparam(parameter, type_=_Texts()))
