"""Drawing an outline with its active states: as Mermaid text, and as text for Graphviz.

The libraries' own drawings leave out what a state inside a region reacts to as a whole, and take names
and guards into the drawing's language as they come; here every name is made safe.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from attrs import field, frozen

from statifier_router.interpreters.outline import Arrow, Box, Outline

# A guard may be a long expression; a drawing has room for its beginning.
_TEXT_LIMIT = 80
_FILL, _LINE = "#40e0d0", "#333333"
_RESERVED = frozenset({"state", "note", "end", "class", "classdef", "direction", "default", "style", "click"})


def mermaid(outline: Outline, active: Collection[str]) -> str:
    """A `stateDiagram-v2`, in which the states of `active` have the class `active`.

    >>> boxes = (Box("open", "open"), Box("done", "done", "final"))
    >>> parcel = Outline("parcel", boxes, (Arrow("open", ("done",), ("signed",)),), ("open",))
    >>> print(mermaid(parcel, ["open"]))
    stateDiagram-v2
        direction LR
        open
        done
        [*] --> open
        done --> [*]
        open --> done : signed
        classDef active fill:#40e0d0,stroke:#333333,stroke-width:2px
        class open active
    """
    return "\n".join(_Mermaid(outline).lines(active))


def dot(outline: Outline, active: Collection[str]) -> str:
    """The same in the language of Graphviz's `dot`.

    >>> boxes = (Box("open", "open"),)
    >>> dot(Outline("parcel", boxes, (), ("open",)), ["open"]).splitlines()[0]
    'digraph "parcel" {'
    """
    return "\n".join(_Dot(outline).lines(active))


def _cut(text: str) -> str:
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= _TEXT_LIMIT else line[: _TEXT_LIMIT - 1] + "…"


@frozen
class _Drawing:
    """What both languages need: where each state is, and which arrows are drawn as arrows."""

    outline: Outline
    paths: dict[str, tuple[Box, ...]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "paths", self.outline.paths())

    def drawn(self) -> Iterator[tuple[Arrow, str]]:
        """Each arrow between two states, with one of its targets; none twice."""
        seen = set()
        for arrow in self.outline.arrows:
            for target in arrow.targets:
                what = (arrow.source, target, arrow.text)
                if not self._stays(arrow, target) and what not in seen:
                    seen.add(what)
                    yield arrow, target

    def reactions(self, box: Box) -> list[str]:
        """What a state reacts to without being left for another, in words."""
        return list(
            dict.fromkeys(
                arrow.text or "always"
                for arrow in self.outline.arrows
                if arrow.source == box.id
                and (not arrow.targets or all(self._stays(arrow, target) for target in arrow.targets))
            )
        )

    def _stays(self, arrow: Arrow, target: str) -> bool:
        return arrow.source == target

    def first_leaf(self, id: str) -> str:
        """The state without states inside that is entered first."""
        box = self.paths[id][-1]
        while box.inside:
            wanted = box.initial[0] if box.initial else None
            entered = next((each for each in box.inside if each.id == wanted), box.inside[0])
            box = entered
        return box.id


class _Mermaid(_Drawing):
    def lines(self, active: Collection[str]) -> Iterator[str]:
        names = self._names()
        yield "stateDiagram-v2"
        yield "    direction LR"
        yield from self._level(self.outline.boxes, self.outline.initial, None, names, "    ")
        marked = [names[id] for id in self.paths if id in active]
        if marked:
            yield f"    classDef active fill:{_FILL},stroke:{_LINE},stroke-width:2px"
            yield from (f"    class {name} active" for name in marked)

    def _names(self) -> dict[str, str]:
        """A name for each state that Mermaid takes: its own where that is one."""
        names: dict[str, str] = {}
        taken: set[str] = set()
        for id in self.paths:
            name = re.sub(r"\W", "_", id, flags=re.ASCII)
            if not re.match(r"[A-Za-z_]", name) or name.lower() in _RESERVED:
                name = f"s_{name}"
            while name.lower() in taken:
                name += "_"
            taken.add(name.lower())
            names[id] = name
        return names

    def _level(
        self,
        boxes: tuple[Box, ...],
        initial: tuple[str, ...],
        around: Box | None,
        names: dict[str, str],
        pad: str,
    ) -> Iterator[str]:
        """The states of one level, how it is entered and left, and the arrows within it."""
        regions = around is not None and around.kind == "parallel"
        for index, box in enumerate(boxes):
            if index and regions:
                yield f"{pad}--"
            yield from self._box(box, names, pad)
        if not regions:
            yield from (f"{pad}[*] --> {names[id]}" for id in initial if id in names)
        yield from (f"{pad}{names[box.id]} --> [*]" for box in boxes if box.kind == "final")
        for source, target, text in self._lines():
            if self._scope(source, target) is around:
                label = f" : {_safe(text, 2 * _TEXT_LIMIT)}" if text else ""
                yield f"{pad}{names[source]} --> {names[target]}{label}"

    def _box(self, box: Box, names: dict[str, str], pad: str) -> Iterator[str]:
        name, reactions = names[box.id], self.reactions(box)
        label = {"history": "H", "deep history": "H*"}.get(box.kind, box.label)
        if not box.inside:
            yield f"{pad}{name}" if label == name else f'{pad}state "{_safe(label)}" as {name}'
            yield from (f"{pad}{name} : on {_safe(text)}" for text in reactions)
            return
        # A state with states inside has no room for lines of its own but its title.
        title = label + "".join(f" · on {_cut(text)}" for text in reactions)
        yield f"{pad}state {name} {{" if title == name else f'{pad}state "{_safe(title, 400)}" as {name} {{'
        yield from self._level(box.inside, box.initial, box, names, f"{pad}    ")
        yield f"{pad}}}"

    def _lines(self) -> Iterator[tuple[str, str, str]]:
        """The arrows between states that Mermaid takes for ends, and their texts."""
        for arrow, target in self.drawn():
            source, text = arrow.source, arrow.text
            if self._cannot_be_an_end(source):
                text = f"{text} (anywhere in {self.paths[source][-1].label})".strip()
                source = self.first_leaf(source)
            yield source, self.first_leaf(target) if self._cannot_be_an_end(target) else target, text

    def _cannot_be_an_end(self, id: str) -> bool:
        """Mermaid fails on arrows that begin or end at a state with states inside a parallel one."""
        path = self.paths[id]
        return bool(path[-1].inside) and any(box.kind == "parallel" for box in path[:-1])

    def _scope(self, source: str, target: str) -> Box | None:
        """The innermost state around both ends in which an arrow can stand."""
        around: Box | None = None
        for one, other in zip(self.paths[source][:-1], self.paths[target][:-1], strict=False):
            if one is not other:
                break
            if one.kind != "parallel":
                # Within one, an arrow would belong to a region.
                around = one
        return around


def _safe(text: str, limit: int = _TEXT_LIMIT) -> str:
    """Text in a label: what means something to Mermaid or to HTML is written as a number."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    # No text at all is no label to it.
    return re.sub(r'[#;:"<>%&\\`]', lambda found: f"#{ord(found.group())};", line or "–")


class _Dot(_Drawing):
    def lines(self, active: Collection[str]) -> Iterator[str]:
        yield f"digraph {_quoted(self.outline.name)} {{"
        yield "  compound=true; rankdir=LR; fontname=Helvetica; fontsize=11;"
        yield '  node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica, fontsize=11];'
        yield "  edge [fontname=Helvetica, fontsize=9];"
        yield from self._level(self.outline.boxes, self.outline.initial, "top", active, "  ")
        for arrow, target in self.drawn():
            yield f"  {self._arrow(arrow.source, target, arrow.text)}"
        yield "}"

    def _level(
        self, boxes: tuple[Box, ...], initial: tuple[str, ...], of: str, active: Collection[str], pad: str
    ) -> Iterator[str]:
        for box in boxes:
            yield from self._box(box, active, pad)
        for id in initial:
            if id in self.paths:
                start = _quoted(f"initial {of} {id}")
                yield f'{pad}{start} [shape=point, label="", width=0.12];'
                head = f" [lhead={_quoted(f'cluster {id}')}]" if self.paths[id][-1].inside else ""
                yield f"{pad}{start} -> {_quoted(self.first_leaf(id))}{head};"

    def _box(self, box: Box, active: Collection[str], pad: str) -> Iterator[str]:
        label = {"history": "H", "deep history": "H*"}.get(box.kind, box.label)
        text = _quoted("\n".join([label, *(f"on {_cut(each)}" for each in self.reactions(box))]))
        fill = f', fillcolor="{_FILL}", penwidth=2' if box.id in active else ""
        if not box.inside:
            shape = ", shape=circle" if "history" in box.kind else ", peripheries=2" * (box.kind == "final")
            yield f"{pad}{_quoted(box.id)} [label={text}{shape}{fill}];"
            return
        yield f"{pad}subgraph {_quoted(f'cluster {box.id}')} {{"
        style = "dashed" if box.kind == "parallel" else "rounded"
        yield f"{pad}  label={text}; style={style};"
        entered = () if box.kind == "parallel" else box.initial
        yield from self._level(box.inside, entered, box.id, active, f"{pad}  ")
        yield f"{pad}}}"

    def _arrow(self, source: str, target: str, text: str) -> str:
        # An arrow is cut off at the border of a state only where it crosses that border.
        tail = self._cut_off("ltail", source, target)
        head = self._cut_off("lhead", target, source)
        ends = f"{_quoted(self.first_leaf(source))} -> {_quoted(self.first_leaf(target))}"
        return f"{ends} [label={_quoted(_cut(text))}{tail}{head}];"

    def _cut_off(self, side: str, id: str, other: str) -> str:
        box = self.paths[id][-1]
        if not box.inside or box in self.paths[other]:
            return ""
        return f", {side}={_quoted(f'cluster {id}')}"


def _quoted(text: str) -> str:
    cleaned = "".join(each if each.isprintable() or each == "\n" else " " for each in text)
    escaped = cleaned.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
