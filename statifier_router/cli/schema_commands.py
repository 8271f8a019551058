"""`statifier-router migrate` and `verify`: the library's tables."""

from __future__ import annotations

import sys

import click

from statifier_router import dialect, migrations
from statifier_router.cli.answers import REFUSED, Answer, complain
from statifier_router.cli.commanding import command
from statifier_router.config import Config
from statifier_router.errors import ConfigError, SchemaError


@command("migrate")
@click.option("--to", type=int, help="The version to reach; by default the latest.")
@click.option("--down", is_flag=True, help="Go back, one version or to --to. DROPS what those versions hold.")
@click.option("--sql", "script", is_flag=True, help="Print the script instead, and connect to nothing.")
@click.option("--since", type=int, help="With --sql: the version the script starts from; by default 0.")
@click.option("--yes", is_flag=True, help="With --down: do not ask first.")
def migrate(
    config: Config, *, to: int | None, down: bool, script: bool, since: int | None, yes: bool
) -> Answer:
    """Bring the library's tables up to date.

    Of the configuration only its engine and its table names are used. It is one transaction; where two
    processes migrate at once, the second waits and finds nothing to do.
    """
    if script:
        return _script(config, since or 0, to, down=down)
    if since is not None:
        raise ConfigError("--since goes with --sql: without it the database itself says where it is")
    if down and not yes and sys.stdin.isatty():
        target = "one version" if to is None else f"to version {to}"
        click.confirm(f"Go back {target} and drop what is in those tables?", abort=True, err=True)
    with config.writer.begin() as connection:
        before = migrations.current(connection, tables=config.tables)
        if not down and to is not None and to < before:
            raise ConfigError(f"--to {to} is behind the tables, which are at version {before}; add --down")
        act = migrations.down if down else migrations.up
        versions = act(connection, tables=config.tables, to=to)
        after = migrations.current(connection, tables=config.tables)
    document = {"before": before, "after": after, "undone" if down else "applied": versions}
    if not versions:
        text = f"the tables {_named(config)} are at version {after}: nothing to do"
    elif down:
        text = f"the tables {_named(config)} went back from version {before} to {after}"
    else:
        text = f"the tables {_named(config)} went from version {before} to {after}"
    return Answer(document, lambda screen: screen.say(text))


def _script(config: Config, since: int, to: int | None, *, down: bool) -> Answer:
    if down and to is None:
        to = max(since - 1, 0)
    if down and to is not None and to >= since:
        raise ConfigError(f"--down from version {since} to {to} is no way back; give --since")
    kind = dialect.kind(config.engine)
    script = migrations.sql(kind, since=since, to=to, tables=config.tables)
    target = migrations.LATEST if to is None else to
    document = {"dialect": kind, "since": since, "to": target, "sql": script}
    return Answer(document, lambda screen: screen.say(script.rstrip()))


@command("verify")
def verify(config: Config) -> Answer:
    """Tell whether the tables are up to date.

    Nothing is changed. Exit code 1 where they are absent, older, newer, or not the library's.
    """
    with config.reader.connect() as connection:
        try:
            migrations.verify(connection, tables=config.tables)
        except SchemaError as error:
            problem = str(error)
            complain(f"error: {problem}")
            return Answer({"verified": False, "problem": problem}, lambda screen: None, REFUSED)
    document = {"verified": True, "version": migrations.LATEST}
    text = f"the tables {_named(config)} are at version {migrations.LATEST}, as this version needs them"
    return Answer(document, lambda screen: screen.say(text))


def _named(config: Config) -> str:
    schema = f"{config.tables.schema}." if config.tables.schema is not None else ""
    return f"{schema}{config.tables.prefix}*"
