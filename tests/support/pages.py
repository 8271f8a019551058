"""The code blocks of Markdown pages, and what the page says that they print; and a way to run them."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs

_ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")
_LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@attrs.frozen
class Block:
    """One block of code, the line of the page it begins at, and what the page says it prints, if it does."""

    language: str
    code: str
    line: int
    prints: str | None

    @property
    def file(self) -> str | None:
        """The file that a Python block belongs to, where its first line names one."""
        named = _FILE.match(self.code) if self.language == "python" else None
        return named.group(1) if named else None


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page in these languages (`python` alone by default), in order.

    A block of `text` is what the last block of code before it prints.
    """
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    expects = False
    for fence in _FENCE.finditer(text):
        language, content = fence.groups()
        if language in (languages or ("python",)):
            found.append(Block(language, content, text.count("\n", 0, fence.start()) + 2, None))
            expects = True
        elif language == "text" and expects:
            found[-1] = attrs.evolve(found[-1], prints=content)
            expects = False
        else:
            expects = False
    return found


def run(page: Path, folder: Path, names: dict[str, Any]) -> None:
    """Run a page's Python blocks, and its calls of our own command, in the current process and `folder`.

    A block that names a file is appended to it; any other runs in `names`. What a block prints is
    compared with what the page says, where `...` stands for anything. `AssertionError` names the line.
    """
    for block in blocks(page, "python", "sh"):
        where = f"{page.name}:{block.line}"
        if block.language == "sh":
            printed = _run_commands(block.code, folder, where)
        elif block.file is not None:
            with (folder / block.file).open("a", encoding="utf-8") as file:
                file.write(block.code)
            # What comes next is run as in a new session: with the file as it is now.
            before = sys.modules.pop(block.file.removesuffix(".py"), None)
            engine = getattr(before, "engine", None)
            if engine is not None:
                engine.dispose()
            importlib.invalidate_caches()
            continue
        else:
            printed = _run_python(block, where, names)
        if block.prints is not None and printed is not None:
            agrees = doctest.OutputChecker().check_output(block.prints, printed, _LOOSE)
            assert agrees, f"{where} prints\n{printed}\nwhere the page says\n{block.prints}"


def _run_python(block: Block, where: str, names: dict[str, Any]) -> str:
    # Empty lines in front, so that a traceback has the page's own line numbers.
    code = compile("\n" * (block.line - 1) + block.code, where, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    return printed.getvalue()


def _run_commands(code: str, folder: Path, where: str) -> str | None:
    """What our own commands print; None for a block of others, which a page only shows."""
    lines = [line for line in code.replace("\\\n", " ").splitlines() if line.strip()]
    if not all(line.startswith("statifier-router ") for line in lines):
        return None
    printed = ""
    for line in lines:
        done = subprocess.run(
            [sys.executable, "-m", "statifier_router.cli", *shlex.split(line)[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(_ROOT), "COLUMNS": "110"},
        )
        assert done.returncode == 0, f"{where}: {line} ended with {done.returncode}\n{done.stderr}"
        printed += done.stdout
    return printed
