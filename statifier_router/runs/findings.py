"""What `doctor` answers."""

from __future__ import annotations

from typing import Literal

from attrs import frozen


@frozen(kw_only=True)
class Finding:
    """One thing that an operator should know. `severity` "notice" is for what may be as it is meant."""

    kind: str
    severity: Literal["problem", "notice"]
    rule: str | None
    text: str
    advice: str
