"""The pages of `docs/`: their code runs, on both databases where they differ, and prints what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import statifier_router
from statifier_router import (
    CreatedAndDelivered,
    Deferred,
    Delivered,
    DeliveryError,
    Dropped,
    Duplicate,
    KeyRefused,
    Tables,
    migrations,
    runs,
)
from statifier_router.cli.program import program
from statifier_router.schema import schema_of
from tests.support import pages
from tests.test_statements import CASES

DOCS = Path(__file__).parents[1] / "docs"
HOW_TO = sorted(page for page in (DOCS / "how-to").glob("*.md") if page.name != "index.md")
# Of a queue that there is on PostgreSQL alone.
QUEUED = DOCS / "how-to" / "outgrow-one-machine.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory whose modules can be imported, and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def names(make_config: Any) -> Iterator[dict[str, Any]]:
    """What a page's blocks define; at the end its engine is closed and its executions are folded."""
    defined: dict[str, Any] = {"__name__": "page"}
    yield defined
    if "config" in defined:
        defined["config"].engine.dispose()
        make_config.watch(defined["config"])


@pytest.mark.parametrize("page", ["tutorial.md", "outbound-tutorial.md"])
def test_a_tutorial(page, folder, names):
    """A reader who types it in sees what it says."""
    pages.run(DOCS / page, folder, names)


@pytest.mark.parametrize("page", [page for page in HOW_TO if page != QUEUED], ids=lambda page: page.stem)
def test_a_how_to_guide(page, database, folder, names, monkeypatch):
    """Each guide goes on from what its index page sets up, and stands for itself."""
    monkeypatch.setenv("DATABASE_URL", database.url)
    pages.run(DOCS / "how-to" / "index.md", folder, names)
    pages.run(page, folder, names)
    # Where a page's executions run on charts of its own.
    names["config"] = names.get("trial") or names.get("service") or names["config"]


def test_the_how_to_guide_of_the_queue(postgresql, folder, names, monkeypatch):
    """As the others, with Procrastinate on PostgreSQL."""
    monkeypatch.setenv("DATABASE_URL", postgresql.url)
    pages.run(DOCS / "how-to" / "index.md", folder, names)
    pages.run(QUEUED, folder, names)


@pytest.mark.parametrize("page", ["test-your-charts", "write-a-writer"])
def test_the_example_of_a_test(page, folder):
    """The test that a reader copies passes, with nothing but the library's own plugin."""
    file = DOCS / "how-to" / f"{page}.md"
    for block in [*pages.blocks(DOCS / "how-to" / "index.md"), *pages.blocks(file)]:
        if block.file:
            (folder / block.file).write_text(block.code, encoding="utf-8")
    (example,) = [block for block in pages.blocks(file, "py") if re.search(r"def test_|Contract", block.code)]
    (folder / "test_parcels.py").write_text(example.code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "statifier_router.testing.plugin", "test_parcels.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join([str(folder), str(DOCS.parent)]),
        },
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


REFERENCE = (DOCS / "reference.md").read_text(encoding="utf-8")


def _documented(name: str) -> bool:
    """By autodoc, by name, or as a module whose members are."""
    named = rf"auto\w+:: (statifier_router\.)?{name}$|`{name}`|automodule:: statifier_router\.{name}$"
    return bool(re.search(named, REFERENCE, re.MULTILINE))


def test_the_reference_has_every_public_name():
    """A name that is exported and not on the page is one that nobody can rely on."""
    described = {"interpreters", *(n for n in statifier_router.__all__ if _is_error(n))}
    assert [
        name for name in statifier_router.__all__ if name not in described and not _documented(name)
    ] == []


def test_the_reference_has_every_name_of_runs():
    """As of the package's own."""
    missing = [name for name in runs.__all__ if not _documented(rf"runs\.{name}") and not _documented(name)]
    assert missing == []


def _is_error(name: str) -> bool:
    """The errors are documented as one module."""
    found = getattr(statifier_router.errors, name, None)
    return isinstance(found, type) and found.__module__ == "statifier_router.errors"


def test_the_reference_has_every_table_and_column():
    """The page is what an operator reads before a query, so it must not fall behind the schema."""
    tables = Tables()
    for table in schema_of(tables).metadata.tables.values():
        name = table.name.removeprefix(tables.prefix)
        row = re.search(rf"^\| `{name}` \|[^|]*\|([^|]*)\|$", REFERENCE, re.MULTILINE)
        assert row, f"the table {name} is not on the page"
        told = re.findall(r"`(\w+)`(\??)", row.group(1))
        assert told == [(column.name, "?" if column.nullable else "") for column in table.columns], name


def test_the_reference_has_every_command():
    """A command that the page does not name is found by nobody."""
    rows = dict(re.findall(r"^\| `([a-z]+)([^`]*)` \|", REFERENCE, re.MULTILINE))
    everywhere = {"--config", "--outbound", "--json"}
    for name, command in program.commands.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not everywhere & {*parameter.opts}:
                assert parameter.opts[0] in rows[name], f"{name} {parameter.opts[0]}"
    assert set(program.commands) <= set(rows)


def test_the_reference_has_every_outcome_and_fault():
    """Spellings in the ledger, and for each error of a delivery whether a retry may mend it."""
    for outcome in (
        CreatedAndDelivered("b", "e"),
        Delivered("b", "e"),
        Duplicate("b"),
        Dropped("b", "no_execution"),
        Dropped("b", "finished"),
        Dropped("b", "unmatched_event"),
        Dropped("b", "deferral_full"),
        Deferred("b", "e"),
        KeyRefused("b", "key", "d"),
    ):
        assert f"| `{outcome.recorded}` |" in REFERENCE
    for error in DeliveryError.__subclasses__():
        if error.__module__ == "statifier_router.errors":
            wanted = f"| {error.fault} | {'yes' if error.retryable else 'no'} |"
            assert re.search(rf"`{error.__name__}`[^|]*{re.escape(wanted)}", REFERENCE), error


def test_the_pages_speak_of_the_newest_tables():
    """What a host copies into a migration of its own, and the list of versions, end with the newest one."""
    migrate = (DOCS / "how-to" / "migrate-the-tables.md").read_text(encoding="utf-8")
    assert {int(number) for number in re.findall(r"\bto=(\d+)", migrate)} == {0, migrations.LATEST}
    upgrading = (DOCS / "upgrading.md").read_text(encoding="utf-8")
    versions = [int(number) for number in re.findall(r"^\| (\d+) \|", upgrading, re.MULTILINE)]
    assert versions == list(range(1, migrations.LATEST + 1))


def test_the_page_on_performance_has_the_counts_of_the_tests():
    """The numbers are those that are counted on the wire, case by case."""
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)`[^|]* \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) >= 8
    for case, merged, plain in rows:
        assert CASES[case][2:] == (int(plain), int(merged)), case


def test_every_page_is_in_the_contents():
    """A page that no contents name is one that nobody finds."""
    listed = (DOCS / "how-to" / "index.md").read_text(encoding="utf-8")
    assert [page.stem for page in HOW_TO if f"\n{page.stem}\n" not in listed] == []
