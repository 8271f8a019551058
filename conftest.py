"""What the doctests of the package need: nothing but a place of their own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_directory(request: pytest.FixtureRequest) -> None:
    """An example that names a file finds an empty directory, and leaves nothing in the checkout."""
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
