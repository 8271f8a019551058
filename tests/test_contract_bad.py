"""The contract of interpreters finds each of fourteen bad adapters, and nothing wrong with a good one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from statifier_router.testing import InterpreterContract
from tests.support.flawed import Flawed

ROOT = Path(__file__).parents[1]
POINTS = range(1, 15)


def ran(folder: Path, points: list[int], select: str) -> dict[str, list[tuple[str, bool]]]:
    """Per class, each test that a pytest of its own ran, and whether it passed."""
    classes = [f"class Test{point:02}(Flawed):\n    flaw = {point}\n" for point in points]
    (folder / "test_child.py").write_text("\n\n".join(["from tests.support.flawed import Flawed", *classes]))
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            select,
            "--junitxml",
            "report.xml",
        ],
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
    return {name for name in vars(InterpreterContract) if name.startswith(f"test_point_{point:02}_")}


def test_a_good_adapter_passes_every_point(tmp_path):
    """The adapter whose fourteen variants are found out keeps all fourteen points itself."""
    found = ran(tmp_path, [0], "Test00")["Test00"]
    assert {name for name, _ in found} == set().union(*(names(point) for point in POINTS))
    assert [name for name, passed in found if not passed] == []


def test_each_bad_adapter_fails_its_point(tmp_path):
    """For every point there is an adapter that breaks it, and a test of that point that says so."""
    select = " or ".join(f"(Test{point:02} and point_{point:02})" for point in POINTS)
    found = ran(tmp_path, list(POINTS), select)
    assert set(found) == {f"Test{point:02}" for point in POINTS}
    for point in POINTS:
        results = found[f"Test{point:02}"]
        assert {name for name, _ in results} == names(point)
        assert not all(passed for _, passed in results), f"point {point} finds nothing wrong"


def test_a_missing_scenario_is_an_error_that_says_what_to_do():
    """Nothing is passed over in silence: a scenario is defined, or its absence has a reason."""
    with pytest.raises(NotImplementedError, match=r"'counter': define it, or say in not_applicable"):
        InterpreterContract().counter()


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        ({"loops": "none"}, "names 'loops'; scenarios are"),
        ({"counter": "none"}, "which every adapter can express"),
        ({"looping": " "}, "must say why"),
        ({"looping": "none"}, "but Bad defines it"),
    ],
)
def test_a_reason_names_a_scenario_that_may_be_missing(reasons, told):
    """`not_applicable` is checked when the class is made: a slip in it would hide a point."""
    with pytest.raises(Exception, match=told):
        type("Bad", (Flawed,), {"not_applicable": reasons})


def test_a_subclass_that_can_do_more_is_asked_again():
    """What a parent class could not express, and its child can, is a test of the child again."""
    parent = type("Parent", (InterpreterContract,), {"not_applicable": {"looping": "none"}})
    child = type("Child", (parent,), {"not_applicable": {}, "looping": Flawed.looping})
    name = "test_point_06_an_endless_loop_ends_failed"
    assert getattr(parent, name) is None
    assert getattr(child, name) is getattr(InterpreterContract, name)
    assert child.test_point_06_looping_does_not_apply is None
