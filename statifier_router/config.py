"""`Config`: everything a door needs to know, checked once, when it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from attrs import field, frozen
from sqlalchemy import Engine

from statifier_router import clock as clocks
from statifier_router import dialect
from statifier_router.bindings import Binding, Defer
from statifier_router.errors import ConfigError
from statifier_router.executor import Executor
from statifier_router.schema import Schema, schema_of
from statifier_router.steps import Chart
from statifier_router.tables import Tables
from statifier_router.text import NAME_LIMIT, checked

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

DEFAULT_LOCK_TIMEOUT = timedelta(seconds=5)


class Charts(Protocol):
    """Where charts come from: by document for a new execution, by hash for an existing one."""

    def resolve(self, scope: str, document: str) -> Chart:
        """The chart on which a new execution of this document runs; raises `Unresolved`."""
        ...

    def by_hash(self, content_hash: str) -> Chart | None:
        """The revision with this hash, or None."""
        ...


@frozen
class _TwoCallables:
    """The two resolver callables of a host, as one `Charts`."""

    _resolver: Callable[[str, str], Chart]
    _chart_resolver: Callable[[str], Chart | None]

    def resolve(self, scope: str, document: str) -> Chart:
        return self._resolver(scope, document)

    def by_hash(self, content_hash: str) -> Chart | None:
        return self._chart_resolver(content_hash)


def checked_bindings(value: object, name: str) -> tuple[Binding, ...]:
    """`value` as a tuple of bindings whose ids are distinct; else `ConfigError`, naming `name`.

    Both `Config(bindings=...)` and the answer of a bindings resolver go through here.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise ConfigError(f"{name} must be a sequence of Binding, not {type(value).__name__}")
    seen: set[str] = set()
    for binding in value:
        if not isinstance(binding, Binding):
            raise ConfigError(f"{name} holds a {type(binding).__name__}, which is not a Binding")
        if binding.id in seen:
            raise ConfigError(
                f"{name} has two bindings with the id {binding.id!r}: a second one would find "
                "the first one's messages duplicates; give each its own id"
            )
        seen.add(binding.id)
    return tuple(value)


def _as_given(engine: Engine | AsyncEngine) -> Engine:
    # Whoever has a plain engine reads one; who has an AsyncEngine works with their own name for it.
    return cast("Engine", engine)


@frozen(kw_only=True, eq=False)
class Config:
    """The library's configuration. Making one checks every field and never connects.

    A faulty field raises `ConfigError`, naming it. The callables are plain functions under asyncio too.

    Attributes:
        engine: a SQLAlchemy engine that `create_engine` or `prepare_engine` made ready; an
            `AsyncEngine` for the coroutines of `statifier_router.aio`, and for them alone.
        charts: an object with `resolve(scope, document)` and `by_hash(content_hash)`; or give the
            two callables `resolver` and `chart_resolver` in its place.
        bindings: the bindings, in the order in which they are tried; or `bindings_resolver`, called
            once a `route` with the message's scope.
        executor: None for `SQLExecutor()`.
        routes: where sends go, by the name that a send gives as its target.
        route_overrides: for a scope, another instance of some of those routes.
        send_type: the type that a send may name beside none, for targets among `routes`.
        on_complete: the route to which the end of every execution is handed.
        lock_timeout: the longest single wait for a lock, in a transaction that the library opens.
        retries: how often a delivery is tried again after a deadlock, a serialization failure or a
            lost connection.
        pipeline: on PostgreSQL, a delivery in a transaction of its own takes two waits in place of
            four: what begins it travels with its first statement, what commits it with its last.
        on_chart_error: "commit" keeps the errors that a chart handled itself on the input row;
            "reject" makes them `StepFailed`.
        record_unrouted: whether a message that no binding took leaves a ledger row.
        clock: answers an aware datetime; None for the system's.
        mint_execution_id: answers a fresh id for (scope, document, key); None for a ULID.
        around_delivery: called once around each whole door, `(scope, door, work)`; must call `work`
            exactly once and answer what it answered.

    >>> from statifier_router import ChartRegistry, Config, create_engine
    >>> Config(create_engine("sqlite:///parcels.db"), charts=ChartRegistry()).retries
    5
    """

    engine: Engine = field(kw_only=False, converter=_as_given)
    charts: Charts | None = None
    resolver: Callable[[str, str], Chart] | None = None
    chart_resolver: Callable[[str], Chart | None] | None = None
    bindings: Sequence[Binding] = ()
    bindings_resolver: Callable[[str], Sequence[Binding]] | None = None
    executor: Executor | None = None
    routes: Mapping[str, Any] = field(factory=dict)
    route_overrides: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    send_type: str | None = None
    on_complete: str | None = None
    tables: Tables = Tables()
    lock_timeout: timedelta = DEFAULT_LOCK_TIMEOUT
    retries: int = 5
    on_chart_error: Literal["commit", "reject"] = "commit"
    record_unrouted: bool = True
    pipeline: bool = False
    clock: Callable[[], datetime] | None = None
    mint_execution_id: Callable[[str, str, str], str] | None = None
    around_delivery: Callable[[str, str, Callable[[], Any]], Any] | None = None

    # Derived once here, so that no delivery works anything out again.
    schema: Schema = field(init=False, repr=False)
    chart_source: Charts = field(init=False, repr=False)
    # Grows: a binding that `deliver` is handed need not be one of the configured ones.
    kept_documents: set[str] = field(init=False, repr=False)
    # Of an AsyncEngine, the one behind it.
    opener: Engine = field(init=False, repr=False)
    writer: Engine = field(init=False, repr=False)
    reader: Engine = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        engine = dialect.check_prepared(self.engine)
        derive = object.__setattr__
        derive(self, "chart_source", _charts(self.charts, self.resolver, self.chart_resolver))
        derive(self, "bindings", checked_bindings(self.bindings, "bindings"))
        if self.bindings_resolver is not None and self.bindings:
            raise ConfigError("bindings and bindings_resolver exclude each other: give one of them")
        _check_executor(self.executor)
        _check_sends(self)
        if not isinstance(self.tables, Tables):
            raise ConfigError(f"tables must be a Tables, not {type(self.tables).__name__}")
        _check_numbers(self)
        if self.on_chart_error not in ("commit", "reject"):
            raise ConfigError(f"on_chart_error must be 'commit' or 'reject', not {self.on_chart_error!r}")
        for name in ("bindings_resolver", "clock", "mint_execution_id", "around_delivery"):
            value = getattr(self, name)
            if value is not None:
                _check_callable(name, value)
        derive(self, "routes", MappingProxyType(dict(self.routes)))
        overrides = {scope: dict(routes) for scope, routes in self.route_overrides.items()}
        derive(self, "route_overrides", MappingProxyType(overrides))
        derive(self, "schema", schema_of(self.tables))
        kept = (each.document for each in self.bindings if isinstance(each.missing, Defer))
        derive(self, "kept_documents", set(kept))
        if self.pipeline:
            dialect.check_pipeline(self.engine)
        derive(self, "opener", dialect.opening_options(engine))
        derive(self, "writer", dialect.owned_options(engine))
        derive(self, "reader", dialect.reader_options(engine))

    def keeps_missing(self, document: str) -> bool:
        """Whether a binding may keep events of this document before their execution exists."""
        return self.bindings_resolver is not None or document in self.kept_documents

    def now(self) -> datetime:
        """The instant it is by this configuration's clock, in UTC."""
        if self.clock is None:
            return clocks.system_clock()
        return clocks.as_utc(self.clock(), "the answer of clock", ConfigError)


def _charts(charts: Any, resolver: Any, chart_resolver: Any) -> Charts:
    if charts is not None:
        if resolver is not None or chart_resolver is not None:
            raise ConfigError("charts excludes resolver and chart_resolver: give one or the other")
        for method in ("resolve", "by_hash"):
            if not callable(getattr(charts, method, None)):
                raise ConfigError(f"charts must have a method {method}; {type(charts).__name__} has none")
            _check_callable(f"charts.{method}", getattr(charts, method))
        source: Charts = charts
        return source
    if resolver is None and chart_resolver is None:
        raise ConfigError("charts is missing: give charts=ChartRegistry(), or resolver and chart_resolver")
    for name, value in (("resolver", resolver), ("chart_resolver", chart_resolver)):
        if value is None:
            raise ConfigError(f"{name} is missing: resolver and chart_resolver go together")
        _check_callable(name, value)
    return _TwoCallables(resolver, chart_resolver)


def _check_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise ConfigError(f"{name} must be callable, not {type(value).__name__}")
    if iscoroutinefunction(value):
        raise ConfigError(f"{name} must be a plain function, not a coroutine function: nobody would await it")


def _check_executor(executor: object) -> None:
    if executor is None:
        return
    for method in ("fetch", "create", "step"):
        if not callable(getattr(executor, method, None)):
            raise ConfigError(f"executor must have a method {method}; {type(executor).__name__} has none")


def _check_sends(config: Config) -> None:
    _check_routes("routes", config.routes)
    if not isinstance(config.route_overrides, Mapping):
        raise ConfigError("route_overrides must be a mapping from scope to routes")
    for scope, routes in config.route_overrides.items():
        _check_routes(f"route_overrides[{scope!r}]", routes)
        for name in routes:
            if name not in config.routes:
                raise ConfigError(
                    f"route_overrides[{scope!r}] overrides {name!r}, which routes does not have: a "
                    "scope may have another instance of a route, not a route of its own"
                )
    if config.send_type is not None:
        checked(config.send_type, "send_type", ConfigError, limit=NAME_LIMIT)
    if config.on_complete is not None and config.on_complete not in config.routes:
        raise ConfigError(f"on_complete names {config.on_complete!r}, which routes does not have")


def _check_routes(name: str, routes: object) -> None:
    if not isinstance(routes, Mapping):
        raise ConfigError(f"{name} must be a mapping from name to route")
    for route, instance in routes.items():
        checked(route, f"a name in {name}", ConfigError, limit=NAME_LIMIT)
        if route == "execution":
            raise ConfigError(f"{name} names 'execution', which is the target of executions")
        if iscoroutinefunction(getattr(instance, "hand_off", instance)):
            raise ConfigError(
                f"{name}[{route!r}] must be a plain function, not a coroutine function: nobody would await it"
            )
        if not callable(getattr(instance, "hand_off", instance)):
            raise ConfigError(f"{name}[{route!r}] must be a route: callable, or with a method hand_off")


def _check_numbers(config: Config) -> None:
    timeout = config.lock_timeout
    if not isinstance(timeout, timedelta):
        raise ConfigError(f"lock_timeout must be a timedelta, not {type(timeout).__name__}")
    # PostgreSQL counts it in whole milliseconds in 32 bits, and reads 0 as "for ever".
    if not timedelta(milliseconds=1) <= timeout <= timedelta(days=24):
        raise ConfigError(f"lock_timeout must be from 1 millisecond to 24 days, not {timeout}")
    if isinstance(config.retries, bool) or not isinstance(config.retries, int):
        raise ConfigError(f"retries must be an integer, not {type(config.retries).__name__}")
    if config.retries < 0:
        raise ConfigError(f"retries must not be negative, it is {config.retries}")
    for name in ("record_unrouted", "pipeline"):
        if not isinstance(getattr(config, name), bool):
            raise ConfigError(f"{name} must be True or False")
