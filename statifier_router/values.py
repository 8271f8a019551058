"""Values that are made for every delivery, and what it costs to make them.

A frozen attrs class takes three times as long to make as one that is not, names of arguments double that
again, and a delivery makes a dozen.
What never leaves the package is frozen to the type checker, and only to it (`made_often`). What does is
made by `unchecked` where all its parts are known to be good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from attrs import frozen as made_often
else:
    from attrs import define as made_often

__all__ = ["made_often", "unchecked"]

T = TypeVar("T")


def unchecked(cls: Callable[..., T]) -> Callable[..., T]:
    """What makes instances of a frozen attrs class without its converters, for parts that need none.

    It takes them by place, in the order of the fields, or by name. What it makes is of the class itself,
    frozen and all. The class must be without a slot for weak references of its own: the language lets no
    instance turn into one of those.

    >>> @attrs.frozen(weakref_slot=False)
    ... class Box:
    ...     size: int = attrs.field(converter=int)
    >>> box = unchecked(Box)(3)
    >>> type(box) is Box, box == Box(3)
    (True, True)
    """
    found: Any = cls

    def become(self: Any) -> None:
        self.__class__ = cls

    own = {
        each.name: attrs.field(default=each.default, alias=each.alias)
        for each in attrs.fields(found)
        if not each.inherited
    }
    # Laid out as the class is, so that an instance may turn into one of it; with the attribute setting of
    # any other class, which is what the time goes into.
    thawed: dict[str, Any] = {
        "__setattr__": object.__setattr__,
        "__delattr__": object.__delattr__,
        "__attrs_post_init__": become,
    }
    return attrs.make_class(
        found.__name__,
        own,
        bases=found.__bases__,
        class_body=thawed,
        slots=True,
        weakref_slot=False,
        eq=False,
        repr=False,
    )
