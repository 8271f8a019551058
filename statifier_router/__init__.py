"""Events from other systems to the one durable state machine each belongs to, exactly once.

Start with `create_engine`, `migrations.up`, a `ChartRegistry`, a `Binding` and a `Config`; then hand
each `Message` to `route`.
"""

from __future__ import annotations

from statifier_router import (
    addresses,
    claims,
    deferrals,
    executions,
    interpreters,
    ledger,
    migrations,
    timers,
)
from statifier_router.batches import Routed, deliver_many, route_many
from statifier_router.bindings import Binding, Dedupe, Defer, Plan
from statifier_router.chart_store import ChartStore
from statifier_router.charts import ChartRegistry
from statifier_router.config import Config
from statifier_router.dialect import create_engine, prepare_engine
from statifier_router.errors import (
    BindingError,
    ChartMismatch,
    ChartNotResolved,
    ConfigError,
    DatabaseFault,
    DeliveryError,
    ExecutionBusy,
    ExecutionExists,
    ExecutionNotFound,
    ExecutionSuspended,
    IsolationConflict,
    KeyInvalid,
    MessageError,
    MissingExtra,
    OnCompleteFailed,
    ReentrantRoute,
    ReentrantStep,
    RouteRefused,
    RouterError,
    SchemaError,
    StaleRevision,
    StepFailed,
    Unresolved,
    UnresolvedDocument,
)
from statifier_router.executions import SQLExecutor
from statifier_router.executor import (
    Discarded,
    EffectRefused,
    Execution,
    Executor,
    KeyedEffect,
    StepContext,
    Stepped,
)
from statifier_router.interpreters.emitting import cancel, emit
from statifier_router.jsontext import Json
from statifier_router.keys import join
from statifier_router.messages import Delivery, Envelope, Event, Message
from statifier_router.outcomes import (
    CreatedAndDelivered,
    Deferred,
    Delivered,
    Dropped,
    Duplicate,
    KeyRefused,
    NoMatch,
    Outcome,
)
from statifier_router.paths import WHOLE
from statifier_router.routing import deliver, deliver_event, route
from statifier_router.sends import OutboxRoute, RecordRoute, Route, RouteContext
from statifier_router.steps import NO_DATA, Cancel, Chart, Send, Step
from statifier_router.tables import Tables
from statifier_router.view import Missing, get

__all__ = [
    "NO_DATA",
    "WHOLE",
    "Binding",
    "BindingError",
    "Cancel",
    "Chart",
    "ChartMismatch",
    "ChartNotResolved",
    "ChartRegistry",
    "ChartStore",
    "Config",
    "ConfigError",
    "CreatedAndDelivered",
    "DatabaseFault",
    "Dedupe",
    "Defer",
    "Deferred",
    "Delivered",
    "Delivery",
    "DeliveryError",
    "Discarded",
    "Dropped",
    "Duplicate",
    "EffectRefused",
    "Envelope",
    "Event",
    "Execution",
    "ExecutionBusy",
    "ExecutionExists",
    "ExecutionNotFound",
    "ExecutionSuspended",
    "Executor",
    "IsolationConflict",
    "Json",
    "KeyInvalid",
    "KeyRefused",
    "KeyedEffect",
    "Message",
    "MessageError",
    "Missing",
    "MissingExtra",
    "NoMatch",
    "OnCompleteFailed",
    "OutboxRoute",
    "Outcome",
    "Plan",
    "RecordRoute",
    "ReentrantRoute",
    "ReentrantStep",
    "Route",
    "RouteContext",
    "RouteRefused",
    "Routed",
    "RouterError",
    "SQLExecutor",
    "SchemaError",
    "Send",
    "StaleRevision",
    "Step",
    "StepContext",
    "StepFailed",
    "Stepped",
    "Tables",
    "Unresolved",
    "UnresolvedDocument",
    "addresses",
    "cancel",
    "claims",
    "create_engine",
    "deferrals",
    "deliver",
    "deliver_event",
    "deliver_many",
    "emit",
    "executions",
    "get",
    "interpreters",
    "join",
    "ledger",
    "migrations",
    "prepare_engine",
    "route",
    "route_many",
    "timers",
]
