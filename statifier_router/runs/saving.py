"""Saving a rule: what it needs is checked, and what its rows rely on is kept as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import IntegrityError

from statifier_router.dialect import is_unique_violation
from statifier_router.errors import ConfigError
from statifier_router.jsontext import decode, encode
from statifier_router.runs import rule_rows
from statifier_router.runs.bracket import writing
from statifier_router.runs.faults import UnsupportedVerb
from statifier_router.runs.rules import Rule
from statifier_router.runs.writers import has_verb

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.config import Config
    from statifier_router.runs.outbound import Outbound
    from statifier_router.schema import Schema

# The ids that a rule's rows hold are those of this entity and source at this target.
KEPT = ("target", "entity", "source")


def check_rule(outbound: Outbound, rule: Rule) -> None:
    """What can be told without the database; `ConfigError` names the field.

    A driver without a writer is left to the run, which says so at every tick: another process may have
    the writer.
    """
    if not isinstance(rule, Rule):
        raise ConfigError(f"rule must be a Rule, not {type(rule).__name__}")
    if outbound.lease < 2 * rule.call_timeout:
        raise ConfigError(
            f"lease ({outbound.lease}) must be at least twice the call_timeout of rule {rule.name!r} "
            f"({rule.call_timeout}): a job that waits for one answer must not lose its rule meanwhile"
        )
    _check_source(rule)
    writer = outbound.writers.get(rule.driver)
    if writer is None:
        return
    for verb in rule.verbs:
        if not has_verb(writer, verb):
            raise UnsupportedVerb(rule=rule.name, driver=rule.driver, verb=verb)


def _check_source(rule: Rule) -> None:
    entity = getattr(rule.source, "entity", None)
    if entity is not None and entity != rule.entity:
        raise ConfigError(
            f"source of rule {rule.name!r} is one of the entity {entity!r}, the rule's is {rule.entity!r}"
        )
    # A source of the host's own that says nothing of a scope is judged by its records.
    if hasattr(rule.source, "scope") and rule.source.scope != rule.scope:
        raise ConfigError(
            f"scope of rule {rule.name!r} is {rule.scope!r}, that of its source is {rule.source.scope!r}: "
            "give both the same"
        )


def save(config: Config, rule: Rule) -> None:
    """Write the rule's definition where it is a new one, under the lock of its row.

    Raises `ConfigError` where it has a new target, entity or source, and rows that stand for the old.
    """
    try:
        with writing(config) as connection:
            _save(connection, config, rule)
    except IntegrityError as error:
        if not is_unique_violation(error, f"{config.tables.prefix}rules_pk"):
            raise
        # Another process has saved it for the first time at this moment.
        with writing(config) as connection:
            _save(connection, config, rule)


def _save(connection: Connection, config: Config, rule: Rule) -> None:
    schema = config.schema
    of_rule = {"of_rule": rule.name}
    row = connection.execute(rule_rows.locked(schema), of_rule).one_or_none()
    values = of_rule | {"to_digest": rule.digest, "to_definition": encode(rule.definition)}
    if row is None:
        connection.execute(rule_rows.insert_one(schema), values)
        return
    if row.digest == rule.digest:
        return
    known: Any = decode(row.definition)
    changed = changed_fields(known, rule.definition)
    if changed and _has_rows(connection, schema, row):
        raise ConfigError(
            f"rule {rule.name!r} has rows, so its {changed[0]} must stay {known[changed[0]]!r}: the ids in "
            "them would address strangers' records. Save a rule with another name"
        )
    connection.execute(rule_rows.redefine(schema), values)


def _has_rows(connection: Connection, schema: Schema, row: Any) -> bool:
    if row.cursor is not None:
        return True
    return bool(connection.execute(rule_rows.has_rows(schema), {"of_rule": row.name}).scalar_one())


def changed_fields(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Which of the fields that must be kept differ."""
    return [name for name in KEPT if known.get(name) != wanted.get(name)]
