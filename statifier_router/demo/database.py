"""The demo's SQLite file: made anew by each run, and never in the place of anything else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from statifier_router import migrations
from statifier_router.dialect import create_engine
from statifier_router.errors import ConfigError

# What marks the file as the demo's own: "sr42" in the header field that SQLite keeps for its users.
APPLICATION_ID = 0x73723432
_MAGIC = b"SQLite format 3\x00"
_APPLICATION_ID_AT = 68


def make_new(path: Path) -> None:
    """Make the demo's database at `path`, in the place of an earlier run's.

    Raises `ConfigError` where the file is anything else, or cannot be written.
    """
    try:
        if path.exists():
            if not is_ours(path):
                raise ConfigError(
                    f"--database {path} exists and is not a database of the demo; it is left alone, "
                    "name another file"
                )
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        _mark(path)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"--database {path} cannot be written: {error}") from error
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        migrations.up(connection)
    engine.dispose()


def is_ours(path: Path) -> bool:
    """Whether the file is a database that the demo made. It is read without opening the database."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        header = file.read(100)
    mark = header[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4]
    return header.startswith(_MAGIC) and int.from_bytes(mark) == APPLICATION_ID


def _mark(path: Path) -> None:
    # Before the write-ahead log is switched on, so that the file itself holds it whenever a run ends.
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.commit()
