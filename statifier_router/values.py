"""Values that are made for every delivery.

A frozen attrs class takes twice as long to make as one that is not, and a delivery makes a dozen. What
never leaves the package is frozen to the type checker, and only to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import frozen as made_often
else:
    from attrs import define as made_often

__all__ = ["made_often"]
