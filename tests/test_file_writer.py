"""The writer of files keeps the contract, and its file survives processes that die and share it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from statifier_router import ConfigError
from statifier_router.runs import Created, Gone, TimedOut, Unavailable
from statifier_router.runs.file_locks import locked
from statifier_router.runs.file_writer import FileWriter
from statifier_router.testing import WriterContract
from statifier_router.testing.writer_scenarios import about

ROOT = Path(__file__).parents[1]


class TestFileWriter(WriterContract):
    """The fourteen points."""

    not_applicable: ClassVar = {
        "ping": "a file is asked by writing to it",
        "create_many": "one line a call",
        "update_many": "one line a call",
        "refused": "it takes any JSON",
        "silent": "a file answers at once; a lock that is taken is a case of its own below",
        "out_of_order": "as silent",
        "throttling": "as silent",
        "secrets": "it has no credentials",
    }

    @pytest.fixture(autouse=True)
    def _path(self, tmp_path):
        self.path = tmp_path / "target.jsonl"

    def writer(self):
        return FileWriter(self.path)

    def texts(self):
        return [record["text"] for record in self.writer().records().values()]

    def forget(self, remote_id):
        self.writer().delete(remote_id, about(version=99))

    def unreachable(self):
        return FileWriter(self.path.parent / "nowhere" / "target.jsonl")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "target.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_what_was_called(path):
    """One line of JSON a call, whatever is in the payload."""
    writer = FileWriter(path)
    assert writer.create({"text": "a\nb "}, about()) == Created("7031-1")
    writer.update("7031-1", {"text": "c"}, about(version=2))
    writer.delete("7031-1", about(version=3))
    assert lines(path) == [
        {
            "verb": "create",
            "id": "7031-1",
            "key": "7031-1",
            "source_id": "p1",
            "payload": {"text": "a\nb "},
        },
        {"verb": "update", "id": "7031-1", "key": "7031-2", "source_id": "p1", "payload": {"text": "c"}},
        {"verb": "delete", "id": "7031-1", "key": "7031-3", "source_id": "p1"},
    ]
    assert path.read_bytes().count(b"\n") == 3
    assert writer.records() == {}


def test_every_key_takes_effect_once_also_after_a_restart(path):
    """An old update that comes again does not undo a newer one."""
    FileWriter(path).create({"n": 1}, about())
    for version in (2, 3, 2):
        FileWriter(path).update("7031-1", {"n": version}, about(version=version))
    FileWriter(path).create({"n": 1}, about(again=True))
    assert [line["verb"] for line in lines(path)] == ["create", "update", "update"]
    assert FileWriter(path).records() == {"7031-1": {"n": 3}}


def test_two_writers_see_what_the_other_wrote(path):
    """Each reads what was appended since, before it writes."""
    first, second = FileWriter(path), FileWriter(path)
    first.create({"n": 1}, about())
    second.update("7031-1", {"n": 2}, about(version=2))
    first.update("7031-1", {"n": 3}, about(version=3))
    second.update("7031-1", {"n": 2}, about(version=2))
    assert first.records() == {"7031-1": {"n": 3}}
    assert second.lookup(about()) == Created("7031-1")


def test_a_line_that_was_not_finished_is_cut_off(path):
    """It was never acknowledged: the call comes again, and the file is whole."""
    writer = FileWriter(path)
    writer.create({"n": 1}, about("p1"))
    whole = path.read_bytes()
    writer.create({"n": 2}, about("p2"))
    for length in range(len(whole), path.stat().st_size):
        path.write_bytes(path.read_bytes()[:length] if length else b"")
        again = FileWriter(path)
        assert again.lookup(about("p2")) is None
        assert path.read_bytes() == whole
        again.create({"n": 2}, about("p2"))
        assert [line["payload"] for line in lines(path)] == [{"n": 1}, {"n": 2}]


def test_a_file_that_was_replaced_or_emptied_is_read_anew(path):
    """What was known of the old one does not hold for the new one."""
    writer = FileWriter(path)
    writer.create({"n": 1}, about())
    path.unlink()
    assert writer.lookup(about()) is None
    writer.create({"n": 1}, about())
    path.write_bytes(b"")
    with pytest.raises(Gone):
        writer.update("7031-1", {"n": 2}, about(version=2))
    other = path.with_name("other")
    FileWriter(other).create({"n": 5}, about("p5"))
    other.replace(path)
    assert writer.lookup(about("p5")) is not None


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "[]",
        "{}",
        '{"verb":"create","id":"a","key":"b"}',
        '{"verb":"drop","id":"a","key":"b"}',
        "[" * 99999,
    ],
)
def test_a_line_of_somebody_else_is_told(path, line):
    """Never passed over: what it means nobody knows."""
    path.write_text(line + "\n")
    with pytest.raises(
        Unavailable, match=r"target.jsonl holds a line that no writer of files wrote"
    ) as raised:
        FileWriter(path).create({}, about())
    assert not raised.value.in_doubt


def test_a_lock_that_is_taken_is_waited_for_no_longer_than_the_timeout(path):
    """By another process (another opening of the lock file) or by a thread of this one: `TimedOut`."""
    lock = path.with_name("target.jsonl.lock")
    writer = FileWriter(path)
    with locked(lock, threading.Lock(), timedelta(0)):
        with pytest.raises(TimedOut, match=r"another process has target\.jsonl locked") as raised:
            writer.create({}, about(timeout=timedelta(milliseconds=50)))
        assert not raised.value.in_doubt
    with writer._mine, pytest.raises(TimedOut):
        writer.create({}, about(timeout=timedelta(milliseconds=50)))
    writer.create({}, about())


def test_a_disk_that_is_full_leaves_the_call_in_doubt(path, monkeypatch):
    """What was written of the line is found out by the next call."""
    writer = FileWriter(path)
    writer.create({"n": 1}, about("p1"))

    def full(number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(Unavailable, match="No space left") as raised:
            writer.create({"n": 2}, about("p2"))
    assert raised.value.in_doubt
    assert writer.lookup(about("p2")) == Created("7032-1")
    writer.create({"n": 2}, about("p2"))
    assert len(lines(path)) == 2


CHILD = """
import sys
from statifier_router.runs.file_writer import FileWriter
from statifier_router.testing.writer_scenarios import about

path, name = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
writer = FileWriter(path, fsync=False)
for number in range(200):
    writer.create({"of": name, "n": number}, about(f"{name}{number}"))
    writer.create({"of": name, "n": number}, about(f"shared{number}"))
"""


def test_processes_share_a_file(path):
    """Two at once: no line torn, and of what both create one stands there."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), name],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.communicate("go\n", timeout=120)
        assert child.returncode == 0
    assert len(lines(path)) == 600
    assert len(FileWriter(path).records()) == 600


@pytest.mark.parametrize("path", [None, 7, "", "/", b"x"])
def test_a_path_names_a_file(path):
    """Anything else is refused when the writer is made."""
    with pytest.raises(ConfigError, match="path must name a file"):
        FileWriter(path)
