"""The contract of writers finds each of fourteen bad writers, and nothing wrong with good ones."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree as ET

import pytest

from statifier_router import ConfigError
from statifier_router.runs import WriterTraits
from statifier_router.testing import (
    ScriptedTarget,
    ScriptedWriter,
    WriterContract,
    hangs,
    rejects,
    throttles,
    times_out,
    unavailable,
)
from tests.support.flawed_writer import FlawedWriter

ROOT = Path(__file__).parents[1]
POINTS = range(1, 15)


class TestFlawless(FlawedWriter):
    """The writer whose fourteen variants are found out keeps all fourteen points itself."""


class TestScriptedWriter(WriterContract):
    """The writer that tests of rules use keeps the contract."""

    not_applicable: ClassVar = {
        "secrets": "it has no credentials",
        "create_many": "one record a call",
        "update_many": "one record a call",
    }

    @pytest.fixture(autouse=True)
    def _target(self):
        self.target = ScriptedTarget(keyed=True)

    def writer(self):
        return ScriptedWriter(self.target, verbs=("create", "update", "delete", "ping", "lookup"))

    def texts(self):
        return [held.payload["text"] for held in self.target.records.values()]

    def forget(self, remote_id):
        self.target.forget(remote_id)

    def refused(self):
        self.target.coming(rejects())
        return {"text": "x"}

    def _always(self, reaction):
        target = ScriptedTarget()
        target.always(reaction)
        return ScriptedWriter(target, verbs=("create", "update", "delete", "ping"))

    def unreachable(self):
        return self._always(unavailable())

    def silent(self):
        return self._always(times_out())

    def out_of_order(self):
        return self._always(unavailable(taken=True))

    def throttling(self):
        return self._always(throttles("60"))


class TestMessages(WriterContract):
    """A writer of messages is asked nothing about addresses, and its target nothing about keys."""

    not_applicable: ClassVar = {
        **dict.fromkeys(
            ("address", "update", "delete", "lookup", "ping", "create_many", "update_many", "forget"),
            "messages are sent once, and nobody hears of them again",
        ),
        **dict.fromkeys(
            ("refused", "unreachable", "silent", "out_of_order", "throttling", "secrets"), "a list in memory"
        ),
    }

    @pytest.fixture(autouse=True)
    def _target(self):
        self.target = ScriptedTarget()

    def writer(self):
        return ScriptedWriter(self.target, verbs=("create",), traits=WriterTraits())

    def texts(self):
        return [held.payload["text"] for held in self.target.records.values()]


def ran(folder: Path, points: list[int], select: str) -> dict[str, list[tuple[str, bool]]]:
    """Per class, each test that a pytest of its own ran, and whether it passed."""
    classes = [f"class Test{point:02}(FlawedWriter):\n    flaw = {point}\n" for point in points]
    heading = "from tests.support.flawed_writer import FlawedWriter"
    (folder / "test_child.py").write_text("\n\n".join([heading, *classes]))
    (folder / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "-p", "no:cacheprovider", "-k", select, "--junitxml", "report.xml"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    results: dict[str, list[tuple[str, bool]]] = {}
    for case in ET.parse(folder / "report.xml").iter("testcase"):
        kind = case.attrib["classname"].rpartition(".")[2]
        assert not {each.tag for each in case} - {"failure"}, case.attrib
        results.setdefault(kind, []).append((case.attrib["name"], case.find("failure") is None))
    return results


def names(point: int) -> set[str]:
    return {name for name in vars(WriterContract) if name.startswith(f"test_point_{point:02}_")}


def test_each_bad_writer_fails_its_point(tmp_path):
    """For every point there is a writer that breaks it, and a test of that point that says so."""
    select = " or ".join(f"(Test{point:02} and point_{point:02})" for point in POINTS)
    found = ran(tmp_path, list(POINTS), select)
    assert set(found) == {f"Test{point:02}" for point in POINTS}
    for point in POINTS:
        results = found[f"Test{point:02}"]
        assert {name for name, _ in results} == names(point)
        assert not all(passed for _, passed in results), f"point {point} finds nothing wrong"


def test_what_is_not_defined_is_an_error_that_says_what_to_do():
    """Nothing is passed over in silence: a scenario is defined, or its absence has a reason."""
    with pytest.raises(NotImplementedError, match=r"'silent': define it, or say in not_applicable"):
        WriterContract().silent()


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        ({"upsert": "none"}, "names 'upsert'; it may name create,"),
        ({"silent": " "}, "must say why"),
        ({"silent": "none"}, "but Bad defines it"),
    ],
)
def test_a_reason_names_what_may_be_missing(reasons, told):
    """`not_applicable` is checked when the class is made: a slip in it would hide a point."""
    with pytest.raises(ConfigError, match=told):
        type("Bad", (FlawedWriter,), {"not_applicable": reasons})


def test_what_does_not_apply_is_in_the_report():
    """A point that a writer cannot be asked about is a test of that name, never a silent gap."""
    assert TestMessages.test_point_07_an_update_of_what_is_not_there_is_gone is None
    assert callable(TestMessages.test_point_07_update_does_not_apply)


def test_a_writer_that_never_gives_up_is_found_out(monkeypatch):
    """A call that outlasts its timeout by far fails the contract instead of hanging it."""
    monkeypatch.setattr("statifier_router.testing.writer_contract._PATIENCE", timedelta(0))
    target = ScriptedTarget()
    target.always(hangs())

    class Hanging(FlawedWriter):
        def silent(self):
            return ScriptedWriter(target, verbs=("create", "update", "delete"))

    with pytest.raises(AssertionError, match="a call had not ended"):
        Hanging().test_point_10_a_silent_target_times_out_in_time()
    target.always(None)
    target.release()
