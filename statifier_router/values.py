"""Values that are made for every delivery, and what it costs to make them.

A frozen attrs class takes three times as long to make as one that is not, names of arguments double that
again, and a delivery makes a dozen.
What never leaves the package is frozen to the type checker, and only to it (`made_often`). What does is
made by `unchecked` where all its parts are known to be good, and as a `quick` class is where a host makes it.
"""

from __future__ import annotations

from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from attrs import frozen as made_often
else:
    from attrs import define as made_often

__all__ = ["made_often", "quick", "unchecked"]

T = TypeVar("T")

# A class, typed as the function that it looks like.
_FACTORY: Any = attrs.Factory


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
    fields = attrs.fields(found)
    lines = ["self = new(thawed)"]
    for each in fields:
        lines += _defaulted(each)
        lines.append(f"self.{each.name} = {each.alias}")
    lines += ["self.__class__ = cls", "return self"]
    made: Callable[..., T] = _compiled(found, "make", [_taken(each) for each in fields], lines)
    return made


def quick(cls: type[T]) -> type[T]:
    """Have a frozen attrs class made in less time, by its own name; converters and signature stay.

    Classes derived from it are made as attrs makes them. No slot for weak references, as of `unchecked`.

    >>> @quick
    ... @attrs.frozen(weakref_slot=False)
    ... class Box:
    ...     size: int = attrs.field(converter=int)
    >>> Box("3")
    Box(size=3)
    """
    found: Any = cls
    fields = attrs.fields(found)
    as_attrs = found.__init__
    handed = ", ".join(f"{each.alias}={each.alias}" for each in fields)
    lines = [f"if self.__class__ is not cls: return as_attrs(self, {handed})"]
    for each in fields:
        lines += _defaulted(each)
        if each.converter is not None:
            lines.append(f"{each.alias} = convert_{each.name}({each.alias})")
    # Only now: what a converter raised would leave something behind that is not frozen.
    lines.append("turn(self, '__class__', thawed)")
    lines += [f"self.{each.name} = {each.alias}" for each in fields]
    lines.append("self.__class__ = cls")
    by_place = [_taken(each) for each in fields if not each.kw_only]
    by_name = [_taken(each) for each in fields if each.kw_only]
    takes = ["self", *by_place, *(["*", *by_name] if by_name else [])]
    made = _compiled(found, "__init__", takes, lines, as_attrs=as_attrs)
    # For whoever asks for the signature and the annotations.
    found.__init__ = update_wrapper(made, as_attrs)
    return cls


def _taken(field: Any) -> str:
    if field.default is attrs.NOTHING:
        return str(field.alias)
    return f"{field.alias}={'nothing' if _has_factory(field) else f'default_{field.name}'}"


def _defaulted(field: Any) -> list[str]:
    return (
        [f"if {field.alias} is nothing: {field.alias} = make_{field.name}()"] if _has_factory(field) else []
    )


def _has_factory(field: Any) -> bool:
    return isinstance(field.default, _FACTORY)


def _compiled(cls: Any, name: str, takes: list[str], lines: list[str], **known: Any) -> Any:
    """A function of these lines, as attrs makes the methods of a class."""
    known |= {
        "new": object.__new__,
        "turn": object.__setattr__,
        "nothing": attrs.NOTHING,
        "cls": cls,
        "thawed": _thawed(cls),
    }
    for each in attrs.fields(cls):
        if each.validator is not None or (_has_factory(each) and each.default.takes_self):
            raise TypeError(f"{cls.__name__}.{each.name}: neither validators nor factories of the instance")
        known[f"convert_{each.name}"] = each.converter
        known[f"make_{each.name}"] = each.default.factory if _has_factory(each) else None
        known[f"default_{each.name}"] = each.default
    body = "\n    ".join(lines)
    # The names in it are those of a class of ours.
    exec(f"def {name}({', '.join(takes)}):\n    {body}", known)  # noqa: S102 - nothing else is as quick
    return known[name]


def _thawed(cls: Any) -> type:
    """A class laid out as the given one is, so that an instance may turn into one of it.

    It has the attribute setting of any other class: what is frozen spends its time there.
    """
    own = {
        each.name: attrs.field(default=each.default, alias=each.alias)
        for each in attrs.fields(cls)
        if not each.inherited
    }
    thawed: dict[str, Any] = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return attrs.make_class(
        cls.__name__,
        own,
        bases=cls.__bases__,
        class_body=thawed,
        slots=True,
        weakref_slot=False,
        init=False,
        eq=False,
        repr=False,
    )
