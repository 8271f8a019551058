"""The README: its example runs as it is pasted, and its commands are those that CI runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.pages import blocks

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def paste(folder: Path) -> str:
    """Run the README's one example in `folder`, in a process of its own; answers what it printed."""
    (block,) = blocks(README)
    file = folder / "example.py"
    file.write_text(block.code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, file],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_example_prints_what_the_readme_says(tmp_path):
    """A newcomer pastes it, runs it, and sees these very lines."""
    (block,) = blocks(README)
    assert paste(tmp_path) == block.prints


def test_the_example_run_again_finds_duplicates(tmp_path):
    """What was taken stays taken, in the file that the first run left."""
    paste(tmp_path)
    assert paste(tmp_path).splitlines() == [
        "d-1 duplicate",
        "d-1 duplicate",
        "c-1 duplicate",
        "d-0 duplicate",
        "d-2 key_refused",
    ]


def test_the_example_is_about_thirty_lines():
    """It is to be read in one piece."""
    (block,) = blocks(README)
    assert len(block.code.splitlines()) <= 35


def test_its_links_lead_somewhere():
    """Each link of the map names a file or a folder of the repository."""
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_command_for_the_tests_is_the_one_of_ci():
    """What a reader is told to install is what every run of CI installs and proves."""
    text = README.read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (extra,) = re.findall(r"pip install -q -e '(\.\[dev\])'", text)
    assert f"pip\" install -q -e '{extra}'" in ci
