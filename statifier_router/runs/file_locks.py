"""A lock on a file, for processes and threads alike; the system takes it away from a process that dies."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

# Between two looks at a lock that another process has, in seconds.
_PAUSE: Final = 0.01


class LockTaken(Exception):
    """Somebody else had the lock all the time."""


if sys.platform == "win32":
    import msvcrt

    def _try(number: int) -> None:
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)

    def _free(number: int) -> None:
        os.lseek(number, 0, os.SEEK_SET)
        msvcrt.locking(number, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _free(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_UN)


@contextmanager
def locked(path: Path, mine: threading.Lock, timeout: timedelta) -> Iterator[None]:
    """Hold the lock `mine` among this process's threads, and that of the file among processes.

    The file is made where it is not there, and stays. Raises `LockTaken` after `timeout`, and `OSError`
    where the file cannot be opened.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    if not mine.acquire(timeout=max(0.0, timeout.total_seconds())):
        raise LockTaken
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _take(number, deadline)
            try:
                yield
            finally:
                _free(number)
        finally:
            os.close(number)
    finally:
        mine.release()


def _take(number: int, deadline: float) -> None:
    waiting = threading.Event()
    while True:
        try:
            _try(number)
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= deadline:
                raise LockTaken from None
            waiting.wait(_PAUSE)
        else:
            return
