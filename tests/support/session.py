"""One run of the tests: a directory of its own, shared by every process of the run.

The process that begins the run holds a lock on a file for as long as it lives. Whoever must outlast
the others (the keeper of the server) waits for that lock, and so ends with the run however it ended.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DIRECTORY = "STATIFIER_ROUTER_TEST_DIRECTORY"

# A socket's path may have about a hundred bytes; below the directory it takes some twenty.
_LONGEST = 70


class Session:
    """A run that this process began; `end` tells everything that waits for it."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sr_", dir=_temporary()))
        # A server started by root runs as another user, who must get in.
        self.directory.chmod(0o755)
        self._lock = (self.directory / "session.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.directory / "id").write_text(secrets.token_hex(4))
        os.environ[DIRECTORY] = str(self.directory)

    def end(self) -> None:
        """Release the run's lock, wait for the keeper to end, and remove the directory."""
        os.environ.pop(DIRECTORY, None)
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._lock.close()
        with locked(self.directory / "keeper.lock"):
            pass
        shutil.rmtree(self.directory, ignore_errors=True)


def directory() -> Path:
    """The directory of the run that this process belongs to."""
    return Path(os.environ[DIRECTORY])


def session_id() -> str:
    """A text that no other run has; the databases of this run carry it in their names."""
    return (directory() / "id").read_text()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of one file, waiting for whoever holds it."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def reachable(path: Path) -> bool:
    """Whether any user may walk to `path`."""
    return all(place.stat().st_mode & 0o001 for place in (path, *path.parents))


def _temporary() -> str:
    """The temporary directory, or another one where that is too deep for a socket or closed to a server."""
    for place in (Path(tempfile.gettempdir()).resolve(), Path("/tmp"), Path("/var/tmp")):
        if len(str(place)) <= _LONGEST and (os.geteuid() != 0 or reachable(place)):
            return str(place)
    raise RuntimeError("no temporary directory suits a server: set TMPDIR to a short path open to all users")
