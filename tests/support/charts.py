"""Charts that do what their events say, one that calls back into the test, and what is routed to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from statifier_router import Binding, Chart, ChartRegistry, Delivery, Envelope, Event, Message, Step, emit
from statifier_router.interpreters import function
from statifier_router.interpreters.function import FunctionChart

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)

# --- charts -----------------------------------------------------------------------------------------


def obedient(
    name: str = "parcel", *, version: str = "1", on_create: str = "moved", tag: str = ""
) -> FunctionChart:
    """A chart whose event says what its step answers: `data["do"]`, else the event's name.

    Known: moved, refused, ignored, unknown, failed, raised, finished, broken (ends as failed), erred
    (moves, having handled an error), sent; any other moves. Its position keeps what moved it.
    `on_create` is what the create answers; `tag` stands in the position, to tell revisions apart.
    """

    def create(data: Any, now: datetime) -> Step:
        position = {"who": data["execution"], "seen": [], "at": now.isoformat(), "tag": tag}
        return _obeyed(on_create, position, on_create)

    def step(position: Any, event: Event, now: datetime) -> Step:
        do = event.data.get("do", event.name) if isinstance(event.data, dict) else event.name
        position["seen"].append(event.name if do == event.name else f"{event.name}:{do}")
        position["at"] = now.isoformat()
        return _obeyed(do, position, event.name)

    return function.chart(name, create=create, step=step, version=f"{version} {on_create} {tag}")


def _obeyed(do: str, position: Any, name: str) -> Step:
    if do in ("refused", "ignored"):
        # An answer that moves nothing may say any position: it is not taken.
        return Step(position, outcome=do, active=["open"])  # type: ignore[arg-type]  # one of the two
    if do == "unknown":
        return Step(position, outcome="unknown", active=["open"])
    if do == "failed":
        return Step(position, outcome="failed", errors=[f"{name} cannot be"])
    if do == "raised":
        raise ValueError(f"{name} raised")
    if do == "finished":
        return Step(position, active=["done"], status="completed")
    if do == "broken":
        return Step(position, active=["wreck"], status="failed", errors=["it broke"])
    if do == "erred":
        return Step(position, active=["open"], errors=["a guard failed", "an action failed"])
    if do == "sent":
        emit("notice", target="elsewhere")
    return Step(position, active=["open"])


class Calling:
    """A chart whose steps call the test: `hook(position, event, now)`, which may answer a `Step`.

    A hook stands in force only inside `calling`, so that folding the log later calls nobody.
    """

    interpreter = "calling"
    interpreter_version = "1"

    def __init__(self, name: str = "calling") -> None:
        self.content_hash = f"hash of {name}"
        self.hook: Callable[[Any, Event, datetime], Step | None] | None = None
        self.create_hook: Callable[[Any, datetime], None] | None = None

    def create(self, *, data: Any, now: datetime) -> Step:
        """Begin with nothing seen."""
        if self.create_hook is not None:
            self.create_hook(data, now)
        return Step({"seen": []}, active=["open"])

    def step(self, position: Any, event: Event, *, event_id: str, now: datetime) -> Step:
        """Note the event, unless the hook answers something else."""
        if self.hook is not None:
            answer = self.hook(position, event, now)
            if answer is not None:
                return answer
        return Step({"seen": [*position["seen"], event.name]}, active=["open"])

    @contextmanager
    def calling(self, hook: Callable[[Any, Event, datetime], Any]) -> Iterator[None]:
        """Have the steps in the block call `hook`; what it answers counts where it is a `Step`."""

        def checked(position: Any, event: Event, now: datetime) -> Step | None:
            answer = hook(position, event, now)
            return answer if isinstance(answer, Step) else None

        self.hook = checked
        try:
            yield
        finally:
            self.hook = None

    @contextmanager
    def creating(self, hook: Callable[[Any, datetime], None]) -> Iterator[None]:
        """Have the creates in the block call `hook`."""
        self.create_hook = hook
        try:
            yield
        finally:
            self.create_hook = None


def registry(**charts: Chart) -> ChartRegistry:
    """A registry with these charts, by document."""
    made = ChartRegistry()
    for document, chart in charts.items():
        made.publish(document, chart)
    return made


class Asked:
    """A chart source that notes what it was asked, and may be told to fail."""

    def __init__(self, **charts: Chart) -> None:
        self.registry = registry(**charts)
        self.documents: list[tuple[str, str]] = []
        self.hashes: list[str] = []
        self.failures: list[Exception] = []

    def resolve(self, scope: str, document: str) -> Chart:
        """As the registry does; raises the next of `failures` while there is one."""
        self.documents.append((scope, document))
        if self.failures:
            raise self.failures.pop(0)
        return self.registry.resolve(scope, document)

    def by_hash(self, content_hash: str) -> Chart | None:
        """As the registry does."""
        self.hashes.append(content_hash)
        return self.registry.by_hash(content_hash)


# --- what is routed to them -------------------------------------------------------------------------


def scans(**changes: Any) -> Binding:
    """A binding of the source `carrier` that hands the chart `do`; arguments change it."""
    arguments: dict[str, Any] = {
        "id": "scans",
        "source": "carrier",
        "match": {},
        "key": "parcel",
        "document": "parcel",
        "event": "scanned",
        "data": ("do",),
    }
    return Binding(**(arguments | changes))


def message(message_id: str = "m-1", parcel: Any = "P7", *, scope: str = "acme", **data: Any) -> Message:
    """A message of the carrier about one parcel."""
    return Message("carrier", message_id, scope, {"parcel": parcel, **data})


def delivery(
    message_id: str = "m-1", *, scope: str = "acme", now: datetime = NOW, data: Any = None
) -> Delivery:
    """What `deliver` delivers."""
    return Delivery(message_id, scope, now, {} if data is None else data)


def envelope(
    name: str = "scanned",
    message_id: str = "e-1",
    *,
    scope: str = "acme",
    now: datetime = NOW,
    data: Any = None,
) -> Envelope:
    """What `deliver_event` delivers."""
    return Envelope(Event(name, {} if data is None else data), message_id, scope, now)
