"""How a binding's own program fails: told in one line, for the outcome and the ledger.

The two exceptions never reach a host: `route` turns them into `KeyRefused`.
"""

from __future__ import annotations

from inspect import isawaitable

from statifier_router.text import ERROR_LIMIT, error_text

# What a foreign exception says may quote the message; a person needs its beginning only.
_QUOTED_LIMIT = 200


class Refusal(Exception):
    """A program of a binding could not judge a message; `detail` says why, in one line."""

    def __init__(self, detail: str) -> None:
        self.detail = error_text(one_line(detail, ERROR_LIMIT))
        super().__init__(self.detail)


class MatchRefused(Refusal):
    """`match` raised, or answered something other than True, False and None."""


class KeyRefusal(Refusal):
    """`key` raised, or answered something that cannot be a key."""


def one_line(text: str, limit: int) -> str:
    """`text` without line breaks, at most `limit` characters long."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def told(fault: BaseException) -> str:
    """The class of an exception and the beginning of what it says."""
    name = type(fault).__name__
    try:
        said = one_line(str(fault), _QUOTED_LIMIT)
    except Exception:
        # A foreign `__str__` that fails must not hide the refusal.
        return name
    return f"{name}: {said}" if said else name


def close_awaitable(answer: object) -> bool:
    """Whether the answer is an awaitable; a coroutine is closed, so that nothing warns of it later."""
    if not isawaitable(answer):
        return False
    close = getattr(answer, "close", None)
    if callable(close):
        close()
    return True
