"""The pages of `docs/`: their code runs, on both databases where they differ, and prints what they say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import pages

DOCS = Path(__file__).parents[1] / "docs"
HOW_TO = sorted(page for page in (DOCS / "how-to").glob("*.md") if page.name != "index.md")


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


def test_the_tutorial(folder, names):
    """A reader who types it in sees what it says."""
    pages.run(DOCS / "tutorial.md", folder, names)


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_a_how_to_guide(page, database, folder, names, monkeypatch):
    """Each guide goes on from what its index page sets up, and stands for itself."""
    monkeypatch.setenv("DATABASE_URL", database.url)
    pages.run(DOCS / "how-to" / "index.md", folder, names)
    pages.run(page, folder, names)


def test_every_page_is_in_the_contents():
    """A page that no contents name is one that nobody finds."""
    listed = (DOCS / "how-to" / "index.md").read_text(encoding="utf-8")
    assert [page.stem for page in HOW_TO if f"\n{page.stem}\n" not in listed] == []
