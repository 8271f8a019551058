"""The adapter on the page about charts: what a reader copies passes the kit that the page speaks of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import pages

DOCS = Path(__file__).parents[1] / "docs"


def test_the_adapter_of_the_page_passes_the_kit(tmp_path):
    """As it stands there, in a folder of its own, with nothing but the library."""
    for block in pages.blocks(DOCS / "how-to" / "charts.md", "py"):
        name = block.code.partition("\n")[0].removeprefix("# ")
        assert name in ("tables.py", "test_tables.py")
        (tmp_path / name).write_text(block.code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "statifier_router.testing.plugin", "test_tables.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(DOCS.parent)]),
        },
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
