"""A writer of lines of JSON into a file: a target to try rules with, and one that keeps what it was told."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

from attrs import define, field

from statifier_router.errors import ConfigError
from statifier_router.jsontext import Json, copied, decode, encode
from statifier_router.runs.faults import Gone, TimedOut, Unavailable
from statifier_router.runs.file_locks import LockTaken, locked
from statifier_router.runs.writers import Created, WriteContext, WriterTraits

_FIELDS: Final = {"create": "payload", "update": "payload", "delete": None}


@define
class _Read:
    """What stands in the file, as far as it was read."""

    file: tuple[int, int] = (0, 0)
    size: int = 0
    records: dict[str, Json] = field(factory=dict)
    keys: set[tuple[str, str]] = field(factory=set)


class FileWriter:
    """Appends each call as one line of JSON: verb, id, key, source id and payload.

    The id is the key of the create. A call whose key stands in the file already takes no effect again.
    Each line is on the disk before the call returns (`fsync=False` leaves that to the system). Threads
    and processes may share the file: a lock file beside it, named `path` and ".lock", orders them, and
    a line that a killed process left unfinished is cut off.

    >>> from datetime import timedelta
    >>> writer = FileWriter("parcels.jsonl")
    >>> context = WriteContext(rule="parcels", source_id="P7", key="k1", signal="1", attempt=1,
    ...                        in_doubt=False, timeout=timedelta(seconds=5))
    >>> writer.create({"weight": 3}, context)
    Created(remote_id='k1')
    >>> writer.records()
    {'k1': {'weight': 3}}
    """

    traits: ClassVar[WriterTraits] = WriterTraits(honours_keys=True)

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = True) -> None:
        try:
            self.path = Path(path)
        except TypeError:
            raise ConfigError(f"path must name a file, not {path!r}") from None
        if not self.path.name:
            raise ConfigError(f"path must name a file, not {path!r}")
        self._fsync = fsync
        self._mine = threading.Lock()
        self._read = _Read()

    def create(self, payload: Json, context: WriteContext) -> Created:
        """Append the record, and answer its key as its address."""
        self._write("create", context.key, payload, context)
        return Created(context.key)

    def update(self, remote_id: str, payload: Json, context: WriteContext) -> None:
        """Append the record's new version. `Gone` where no record has this id."""
        self._write("update", remote_id, payload, context)

    def delete(self, remote_id: str, context: WriteContext) -> None:
        """Append that the record is no more. `Gone` where no record has this id."""
        self._write("delete", remote_id, None, context)

    def lookup(self, context: WriteContext) -> Created | None:
        """Whether a create under this key stands in the file."""
        with self._opened(context) as read:
            return Created(context.key) if ("create", context.key) in read.keys else None

    def records(self) -> Mapping[str, Json]:
        """The newest version of every record in the file, by id. Waits for no lock."""
        read = _Read()
        if self.path.exists():
            self._catch_up(read, cut=False)
        return read.records

    # --- how ----------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, context: WriteContext) -> Iterator[_Read]:
        """The file locked and read up to its end."""
        name = self.path.name
        with ExitStack() as held:
            try:
                lock = self.path.with_name(f"{name}.lock")
                held.enter_context(locked(lock, self._mine, context.timeout))
                self._catch_up(self._read, cut=True)
            except LockTaken:
                raise TimedOut(f"another process has {name} locked", in_doubt=False) from None
            except OSError as error:
                raise Unavailable(f"opening {name}: {_said(error)}") from error
            yield self._read

    def _write(self, verb: str, remote_id: str, payload: Json, context: WriteContext) -> None:
        with self._opened(context) as read:
            if (verb, context.key) in read.keys:
                return
            if verb != "create" and remote_id not in read.records:
                raise Gone(f"no record of {self.path.name} has this id")
            line: dict[str, Json] = {
                "verb": verb,
                "id": remote_id,
                "key": context.key,
                "source_id": context.source_id,
            }
            if verb != "delete":
                line["payload"] = payload
            self._append(read, (encode(line) + "\n").encode())
            _note(read, line)

    def _append(self, read: _Read, line: bytes) -> None:
        with self.path.open("ab") as file:
            try:
                file.write(line)
                file.flush()
                if self._fsync:
                    os.fsync(file.fileno())
            except OSError as error:
                # The next call cuts off what may have been written of it, or finds it whole.
                raise Unavailable(f"writing to {self.path.name}: {_said(error)}", in_doubt=True) from error
        read.size += len(line)

    def _catch_up(self, read: _Read, *, cut: bool) -> None:
        """Read what was appended since; all of it where the file is another one, or shorter."""
        if not self.path.exists():
            _forget(read)
            # The directory, too, has to know of a new file.
            self.path.touch()
            _sync_directory(self.path.parent)
        with self.path.open("r+b" if cut else "rb") as file:
            found = os.fstat(file.fileno())
            if (found.st_dev, found.st_ino) != read.file or found.st_size < read.size:
                _forget(read)
                read.file = found.st_dev, found.st_ino
            file.seek(read.size)
            appended = file.read()
            whole = appended.rfind(b"\n") + 1
            for line in appended[:whole].split(b"\n")[:-1]:
                _note(read, self._line(line))
                read.size += len(line) + 1
            if cut and whole < len(appended):
                file.truncate(read.size)

    def _line(self, text: bytes) -> Mapping[str, Any]:
        try:
            line = decode(text.decode())
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict) or not _is_ours(line):
            raise Unavailable(f"{self.path.name} holds a line that no writer of files wrote; take it out")
        return line


def _note(read: _Read, line: Mapping[str, Any]) -> None:
    read.keys.add((line["verb"], line["key"]))
    if line["verb"] == "delete":
        read.records.pop(line["id"], None)
    else:
        read.records[line["id"]] = copied(line["payload"])


def _is_ours(line: Mapping[str, Any]) -> bool:
    verb = line.get("verb")
    if verb not in _FIELDS or (verb != "delete" and "payload" not in line):
        return False
    return isinstance(line.get("id"), str) and isinstance(line.get("key"), str)


def _forget(read: _Read) -> None:
    read.file = (0, 0)
    read.size = 0
    read.records.clear()
    read.keys.clear()


def _sync_directory(path: Path) -> None:
    if os.name == "nt":
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _said(error: OSError) -> str:
    return error.strerror or type(error).__name__
