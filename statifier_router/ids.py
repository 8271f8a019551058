"""Identifiers that the library mints."""

from __future__ import annotations

from ulid import ULID


def execution_id() -> str:
    """A fresh execution id: `ex_` and a ULID in lower case, ordered by the time it was minted.

    Time order keeps index inserts at the right edge of the tree.
    """
    return f"ex_{ULID()}".lower()
