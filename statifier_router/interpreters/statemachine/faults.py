"""What can go wrong inside a step, and how it is told."""

from __future__ import annotations

import re

from statifier_router.errors import RouterError
from statifier_router.text import error_text

ERROR_EXECUTION = "error.execution"
ERROR_COMMUNICATION = "error.communication"

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class EndlessLoop(RouterError):
    """One step did not settle; its chart fires transitions or sends itself events without end."""


class Refusal(Exception):
    """A validator raised: the library's way to refuse an event. The cause is chained."""


class SendFailed(RouterError):
    """A send of a document was not made; `send_id` is what its error event carries."""

    def __init__(self, message: str, send_id: str | None) -> None:
        self.send_id = send_id
        super().__init__(message)


def told(error: BaseException) -> str:
    """An error's text. Addresses of objects are left out: the same step must tell the same."""
    if isinstance(error, SendFailed):
        return error_text(error)
    return error_text(_ADDRESS.sub("", f"{type(error).__name__}: {error}"))
