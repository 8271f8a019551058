"""Holding a rule, letting it go on, and closing a breaker by hand."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from sqlalchemy import Executable, bindparam, null, update

from statifier_router.errors import ConfigError
from statifier_router.jsontext import decode
from statifier_router.runs import asking_statements, auditing, rule_rows
from statifier_router.runs.asking import rule_name
from statifier_router.runs.bracket import reading, writing
from statifier_router.schema import Schema
from statifier_router.text import NAME_LIMIT, checked

if TYPE_CHECKING:
    from statifier_router.runs.outbound import Outbound


def pause(outbound: Outbound, rule: object, *, actor: str, reason: str | None) -> bool:
    """See `Outbound.pause`."""
    return _set_paused(outbound, rule, "pause", actor, reason, paused=True)


def resume(outbound: Outbound, rule: object, *, actor: str, reason: str | None) -> bool:
    """See `Outbound.resume`."""
    return _set_paused(outbound, rule, "resume", actor, reason, paused=False)


def _set_paused(
    outbound: Outbound, rule: object, action: str, actor: str, reason: str | None, *, paused: bool
) -> bool:
    schema = outbound.config.schema
    name = rule_name(outbound, rule)
    done = auditing.entry(actor, action, {"rule": name}, reason=reason)
    with writing(outbound.config) as connection:
        row = connection.execute(rule_rows.locked(schema), {"of_rule": name}).one()
        if row.paused == paused:
            return False
        connection.execute(_pause(schema), {"of_rule": name, "to_paused": paused})
        auditing.write(connection, schema, done, count=1, at=outbound.config.now())
    return True


@lru_cache
def _pause(schema: Schema) -> Executable:
    table = schema.rules
    return update(table).where(table.c.name == bindparam("of_rule")).values(paused=bindparam("to_paused"))


def reset_breaker(outbound: Outbound, target: str, *, actor: str, reason: str | None) -> bool:
    """See `Outbound.reset_breaker`."""
    schema = outbound.config.schema
    target = checked(target, "target", ConfigError, limit=NAME_LIMIT)
    done = auditing.entry(actor, "breaker reset", {"target": target}, reason=reason)
    with writing(outbound.config) as connection:
        changed = connection.execute(_close(schema), {"of_target": target}).rowcount
        if changed:
            auditing.write(connection, schema, done, count=1, at=outbound.config.now())
            return True
    _check_target(outbound, target)
    return False


@lru_cache
def _close(schema: Schema) -> Executable:
    """Close a breaker that is open or has counted a fault."""
    table = schema.breakers
    return (
        update(table)
        .where(
            table.c.target == bindparam("of_target"),
            (table.c.state != "closed") | (table.c.failures > 0) | (table.c.trips > 0),
        )
        .values(state="closed", failures=0, trips=0, open_until=null(), probe_until=null())
    )


def _check_target(outbound: Outbound, target: str) -> None:
    """Raise where no rule has this target: it is a mistyped one."""
    schema = outbound.config.schema
    with reading(outbound.config) as connection:
        rules = connection.execute(asking_statements.rules(schema)).mappings().all()
        known = {row["target"] for row in connection.execute(asking_statements.breakers(schema)).mappings()}
    known |= {str(_target(row["definition"])) for row in rules}
    known |= {rule.target for rule in outbound.known_rules.values()}
    if target not in known:
        raise ConfigError(f"no target is named {target!r}; there are: {', '.join(sorted(known)) or 'none'}")


def _target(definition: str) -> object:
    found = decode(definition)
    return found["target"] if isinstance(found, dict) else None
