"""The code blocks of Markdown pages, and what the page says that they print."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@attrs.frozen
class Block:
    """One Python block: its code, the line of the page it begins at, and the text block after it if any."""

    code: str
    line: int
    prints: str | None


def blocks(page: Path) -> list[Block]:
    """The Python blocks of a page, in order.

    A `text` block with nothing but one short paragraph between is what the Python block before it prints.
    """
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end_of_code = None
    for fence in _FENCE.finditer(text):
        language, content = fence.groups()
        if language == "python":
            found.append(Block(content, text.count("\n", 0, fence.start()) + 2, None))
            end_of_code = fence.end()
        elif language == "text" and end_of_code is not None and found:
            found[-1] = attrs.evolve(found[-1], prints=content)
            end_of_code = None
        else:
            end_of_code = None
    return found
