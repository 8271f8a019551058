"""One message to one execution, in one transaction.

`_deliver` is the walk of a message: claim, address, create or step, ledger, in that order. Both doors
run it; what differs between them is in the `Task`, and in whether a savepoint brackets it.

20-delivery is the rule for every line here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statifier_router import charts, ids, keeping
from statifier_router.ambient import Frame
from statifier_router.config import Config
from statifier_router.driving import Driving, Input, OutgoingFor
from statifier_router.errors import (
    ConfigError,
    DeliveryError,
    ExecutionBusy,
    ExecutionNotFound,
    ExecutionSuspended,
    IsolationConflict,
)
from statifier_router.executions import SQLExecutor
from statifier_router.executor import TERMINAL, Discarded, Execution, Executor
from statifier_router.keeping import Keeper
from statifier_router.merged_plan import MergedActs
from statifier_router.outcomes import (
    Deferred,
    Dropped,
    Duplicate,
    Outcome,
    known_created,
    known_delivered,
)
from statifier_router.plain_plan import Acts, PlainActs
from statifier_router.steps import Chart
from statifier_router.tasks import Task
from statifier_router.text import NAME_LIMIT, checked
from statifier_router.transactions import refuse_open_step, run
from statifier_router.values import made_often

_ADDRESS_TRIES = 3


@made_often
class _Delivering:
    """What the walk carries from act to act."""

    config: Config
    frame: Frame
    task: Task
    acts: Acts
    executor: Executor
    outgoing_for: OutgoingFor


def perform(
    config: Config,
    task: Task,
    *,
    executor: Executor,
    outgoing_for: OutgoingFor,
    settle: Callable[[Frame], None],
    connection: Any = None,
    savepoint: bool,
) -> Outcome:
    """Make the delivery in the transaction in force, or in one of its own.

    Raises `DeliveryError`; whatever is raised, nothing of this delivery remains.
    """
    return run(
        config,
        lambda frame: within(
            config, frame, task, executor=executor, outgoing_for=outgoing_for, settle=settle
        ),
        connection=connection,
        savepoint=savepoint,
        pipelined=config.pipeline and not savepoint and type(executor) is SQLExecutor,
        binding_id=task.binding_id,
    )


def within(
    config: Config,
    frame: Frame,
    task: Task,
    *,
    executor: Executor,
    outgoing_for: OutgoingFor,
    settle: Callable[[Frame], None],
) -> Outcome:
    """Make the delivery in the transaction of `frame`, whose owner undoes it where it raises."""
    acts = _acts(config, frame, executor, task)
    try:
        # As `as_door` does it, in fewer calls.
        frame.depth += 1
        outcome = _deliver(_Delivering(config, frame, task, acts, executor, outgoing_for))
        if frame.depth == 1:
            settle(frame)
    except DeliveryError as error:
        if error.binding_id is None:
            error.binding_id = task.binding_id
        raise
    else:
        return outcome
    finally:
        frame.depth -= 1


def _acts(config: Config, frame: Frame, executor: Executor, task: Task) -> Acts:
    """The plan of statements: merged on PostgreSQL, unless a host's own executor does the writing."""
    if frame.link.dialect.name == "postgresql" and type(executor) is SQLExecutor:
        merged = MergedActs(config, frame, executor, task)
        if task.create == "if_absent" and config.mint_execution_id is None and not merged.expects_address():
            merged.minted = minted(config, frame, task)
        return merged
    return PlainActs(config, frame, executor, task)


def walk(
    config: Config, frame: Frame, task: Task, acts: Acts, executor: Executor, outgoing_for: OutgoingFor
) -> Outcome:
    """Walk the task through its acts, in the transaction of `frame`. Raises `DeliveryError`."""
    return _deliver(_Delivering(config, frame, task, acts, executor, outgoing_for))


def _deliver(d: _Delivering) -> Outcome:
    if not d.acts.claim():
        return Duplicate(d.task.binding_id, content_differs=d.acts.record_duplicate())
    execution_id, is_new = _address(d)
    if execution_id is None:
        result = _missing(d)
    elif is_new:
        result = _create(d, execution_id)
    else:
        result = _existing(d, execution_id)
    d.acts.record(
        result.outcome.recorded,
        execution_id=getattr(result.outcome, "execution_id", None),
        reason=result.reason,
    )
    _keep_and_offer(d, result, is_new=is_new)
    return result.outcome


@made_often
class _Result:
    """What became of the task: its outcome, the execution as it stands, and whether that is a step on."""

    outcome: Outcome
    reason: str | None = None
    execution: Execution | None = None
    stepped: bool = False


# --- Address --------------------------------------------------------------------------------------


def _address(d: _Delivering) -> tuple[str | None, bool]:
    """The execution at the task's address, and whether this delivery is to create it."""
    if d.task.create == "always_new":
        return minted(d.config, d.frame, d.task), True
    found = d.acts.look_up()
    if d.task.create == "never":
        if not found.snapshot_is_fresh:
            raise _StaleSnapshot(
                "create='never' needs a READ COMMITTED transaction: a stricter one answers from a "
                "snapshot that may be older than the execution it asks for"
            )
        return found.execution_id, False
    if found.execution_id is not None:
        return found.execution_id, False
    fresh = minted(d.config, d.frame, d.task)
    for _ in range(_ADDRESS_TRIES):
        if d.acts.add_address(fresh):
            return fresh, True
        # Another delivery was first. Its row, seen by this following statement, names the one
        # execution; it is empty only where the address was reaped in this instant.
        found = d.acts.look_up()
        if found.execution_id is not None:
            return found.execution_id, False
    raise ExecutionBusy


def minted(config: Config, frame: Frame, task: Task) -> str:
    """The new execution's id. Another attempt at this delivery finds the same, so keys stay equal."""
    what = (task.binding_id, task.message_id, task.scope, task.document, task.key)
    if what not in frame.minted:
        mint = config.mint_execution_id
        if mint is None:
            frame.minted[what] = ids.execution_id()
        else:
            answer = mint(task.scope, task.document, task.key)
            frame.minted[what] = checked(
                answer, "the answer of mint_execution_id", ConfigError, limit=NAME_LIMIT
            )
    return frame.minted[what]


class _StaleSnapshot(IsolationConflict, ConfigError):
    """Both: found at delivery, and mended only by another isolation level, so never retryable."""

    fault = "binding"
    retryable = False


# --- Create or step -------------------------------------------------------------------------------


def _create(d: _Delivering, execution_id: str) -> _Result:
    chart = charts.for_document(d.config, d.task.scope, d.task.document)
    created = _driving(d, execution_id).create(chart, d.acts.create)
    if created.execution.terminal:
        return _finished(d, created.execution)
    return _step(d, created.execution, chart, is_new=True)


def _existing(d: _Delivering, execution_id: str) -> _Result:
    refuse_open_step(d.frame, execution_id)
    execution = d.acts.lock(execution_id)
    if execution is not None and not isinstance(execution, Execution):
        raise TypeError(
            f"the executor's fetch answered {type(execution).__name__}: it must answer an Execution or None"
        )
    if execution is None:
        raise ExecutionNotFound(
            execution_id,
            hint="its address outlived it; addresses.reap removes that, and the next message "
            "creates a new one",
        )
    if execution.status in TERMINAL:
        return _finished(d, execution)
    if execution.status == "suspended":
        raise ExecutionSuspended(execution_id)
    chart = charts.for_hash(d.config, execution.content_hash, execution.id)
    return _step(d, execution, chart, is_new=False)


def _step(d: _Delivering, execution: Execution, chart: Chart, *, is_new: bool) -> _Result:
    task = d.task
    stepped = _driving(d, execution.id).step(execution, chart, task.event, d.acts.step)
    if isinstance(stepped, Discarded):
        return _finished(d, stepped.execution)
    after, answer = stepped.execution, stepped.step.outcome
    if answer in ("refused", "ignored"):
        if task.unmatched is not None:
            if keeping.is_full(_keeper(d), execution, task.unmatched):
                return _Result(Dropped(task.binding_id, "deferral_full", execution.id))
            return _Result(Deferred(task.binding_id, execution.id), execution=execution)
        if task.drops_unmatched:
            dropped = Dropped(task.binding_id, "unmatched_event", execution.id)
            return _Result(dropped, answer, after, stepped=True)
    outcome = known_created if is_new else known_delivered
    return _Result(outcome(task.binding_id, execution.id), None, after, True)  # noqa: FBT003 - by name costs more


def _finished(d: _Delivering, execution: Execution) -> _Result:
    if d.task.create != "always_new":
        d.acts.stamp(execution.id)
    return _Result(Dropped(d.task.binding_id, "finished", execution.id), execution=execution)


# --- Kept events ----------------------------------------------------------------------------------


def _missing(d: _Delivering) -> _Result:
    """No execution, and none to create: drop the message, or keep it by its address."""
    task = d.task
    if task.missing is None:
        return _Result(Dropped(task.binding_id, "no_execution"))
    keeping.lock_place(d.frame.connection, d.config, task.scope, task.document, task.key)
    # A creation that held the lock has committed by now.
    found = d.acts.look_up()
    if found.execution_id is not None:
        return _existing(d, found.execution_id)
    if not keeping.keep_by_place(_keeper(d), task, task.missing):
        return _Result(Dropped(task.binding_id, "deferral_full"))
    return _Result(Deferred(task.binding_id, None))


def _keep_and_offer(d: _Delivering, result: _Result, *, is_new: bool) -> None:
    """Keep the event that waits, and offer what waited for this step."""
    task, execution = d.task, result.execution
    if execution is None:
        return
    if isinstance(result.outcome, Deferred) and task.unmatched is not None:
        d.frame.flush()
        execution = keeping.keep(_keeper(d), task, task.unmatched, execution)
    # What `always_new` makes is at no address.
    at_address = is_new and task.create != "always_new"
    adopts = at_address and d.acts.adopts and d.config.keeps_missing(task.document)
    if adopts:
        d.frame.flush()
        execution = keeping.adopt(_keeper(d), execution)
    if (result.stepped or adopts) and keeping.may_be_kept(execution):
        keeping.offer(_keeper(d), execution, task.now)


def _keeper(d: _Delivering) -> Keeper:
    return Keeper(d.config, d.frame, d.executor, d.outgoing_for)


def _driving(d: _Delivering, execution_id: str) -> Driving:
    task = d.task
    return Driving(
        d.config,
        d.frame,
        d.executor,
        d.outgoing_for,
        Input(
            execution_id,
            task.scope,
            task.document,
            task.key,
            task.message_id,
            task.now,
            task.context,
            task.door,
            task.claim.digest,
            d.acts.gathered,
        ),
        d.acts.journal,
        task.unmatched is not None,
    )
