"""Histories of a rule: what its source, its target, its operators and its processes may do, in any order.

A model that knows no SQL and none of the engine's code keeps what the source says now, what each target may
hold, and which operator said what. After every act `tests.support.judged` compares it with the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, Final

import attrs
from sqlalchemy import select

from statifier_router.runs import (
    ChainEnd,
    Changes,
    JobTimedOut,
    Policy,
    Rule,
    RuleFault,
    Unclassified,
    UnsupportedVerb,
    WriterTraits,
    record_change,
)
from statifier_router.testing import Clock
from statifier_router.testing.targets import ScriptedTarget
from tests.support import judged
from tests.support.chances import ALL_VERBS, CLOCKS, EDITS, IDS, REACTIONS, VALUES, VERBS
from tests.support.mortal import Freeze, Moment, Process

# Faults of the rule that a history may well meet.
EXPECTED: Final = (Unclassified, UnsupportedVerb, JobTimedOut)


_BY: Final = {"records": "source_id", "operations": "source_id", "breakers": "target", "rules": "name"}


def _read(name: str) -> Callable[[Any], Any]:
    @lru_cache
    def read(schema: Any) -> Any:
        table = getattr(schema, name)
        return select(table).order_by(*table.primary_key.columns)

    return read


_READ: Final = {name: _read(name) for name in ("records", "operations", "rules", "chains", "breakers")}


@attrs.define
class Known:
    """What the model knows of one record beside its versions."""

    # Creates that took effect and whose answer nobody got; of a keyed target they may come again.
    unknown: int = 0
    # An operator had it created anew although it may have been there; or it came without an address.
    excused: int = 0
    # A call of a process that had lost its rule reached the target behind the calls of its successor.
    overtaken: bool = False


class History:
    """One rule from the changes of parcels to a depot, two processes that run it, one that looks on."""

    def __init__(self, make_config: Any, database: Any, *, keyed: bool) -> None:
        self.clock = Clock()
        self.target = ScriptedTarget(keyed=keyed)
        self.verbs: tuple[str, ...] = ALL_VERBS
        self.says_keyed = keyed
        self.closed: str | None = None
        self.rule = Rule(
            "parcels",
            entity="parcel",
            source=Changes("parcel"),
            target="depot",
            driver="scripted",
            policy=Policy.UPSERT,
            batch_size=2,
        )
        self.current: dict[str, tuple[str, bool]] = {}
        self.known = {each: Known() for each in IDS}
        self.forgotten: set[str] = set()
        self.most_attempts = self.rule.retry.max_attempts
        self.cursor: Any = None
        self.lacked_delete = False
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._heard = 0
        self._standing_still = False
        self.processes = [
            Process(name, make_config, database, self.target, clock=self.clock) for name in ("a", "b", "eyes")
        ]
        for process in self.processes:
            process.watch = partial(judged.called, self)
            self._begin(process)
        self.eyes = self.processes[-1]

    def close(self) -> None:
        for process in self.processes:
            process.config.engine.dispose()

    def _begin(self, process: Process) -> None:
        process.begin(
            self.rule,
            verbs=self.verbs,
            traits=WriterTraits(honours_keys=self.says_keyed),
            health=lambda rule: self.closed,
        )

    # --- the source -----------------------------------------------------------------------------------

    def touch(self, which: int, value: int) -> None:
        """Another version of a record, or one that it had before."""
        self._change(IDS[which % len(IDS)], VALUES[value % len(VALUES)], deleted=False)

    def delete(self, which: int) -> None:
        """The record is deleted at its source."""
        source_id = IDS[which % len(IDS)]
        if source_id in self.current:
            self._change(source_id, self.current[source_id][0], deleted=True)

    def _change(self, source_id: str, value: str, *, deleted: bool) -> None:
        record_change(self.eyes.config, "parcel", source_id, {"value": value}, deleted=deleted)
        self.current[source_id] = (value, deleted)

    # --- the target -----------------------------------------------------------------------------------

    def react(self, how: str, times: int) -> None:
        """What the target does with its next writes."""
        self.target.coming(*[REACTIONS[how]] * times)

    def set_target(self, how: str) -> None:
        """What the target does from now on."""
        self.target.always(None if how == "up" else REACTIONS[how])

    def forget(self, which: int) -> None:
        """Somebody deletes a record at the target."""
        held = sorted(self.target.records)
        if held:
            self.forgotten.add(held[which % len(held)])
            self.target.forget(held[which % len(held)])

    # --- operators ------------------------------------------------------------------------------------

    def edit(self, which: int, process: int) -> None:
        """One process runs new code from now on; the others do when they begin again."""
        self.rule = attrs.evolve(self.rule, **EDITS[which % len(EDITS)])
        self.most_attempts = max(self.most_attempts, self.rule.retry.max_attempts)
        self._begin(self.processes[process % 2])
        self._begin(self.eyes)

    def redeploy(self, process: int) -> None:
        """A process begins again, with the newest code."""
        self._begin(self.processes[process % 2])

    def swap_writer(self, which: int, says_keyed: bool) -> None:
        """The writer has other verbs, and says of a target that honours keys that it does, or nothing."""
        self.verbs = VERBS[which % len(VERBS)]
        self.says_keyed = self.target.keyed and says_keyed
        self.lacked_delete = self.lacked_delete or "delete" not in self.verbs
        for process in self.processes:
            process.writer.has(self.verbs)
            process.writer.traits = WriterTraits(honours_keys=self.says_keyed)

    def pause(self) -> None:
        self.eyes.outbound.pause("parcels")

    def resume(self) -> None:
        self.eyes.outbound.resume("parcels")

    def close_route(self) -> None:
        self.closed = "it is down"

    def open_route(self) -> None:
        self.closed = None

    def park(self, which: int) -> None:
        self.eyes.outbound.park("parcels", [IDS[which % len(IDS)]], reason="by hand")

    def reset_breaker(self) -> None:
        self.eyes.outbound.reset_breaker("depot")

    def release(self, mode: str, which: int) -> None:
        """Release one record; adopt only what is there, recreate also what may be."""
        source_id = IDS[which % len(IDS)]
        copies = self.target.copies(source_id)
        row = self.rows("records").get(source_id)
        more: dict[str, Any] = {}
        if mode == "adopt":
            if not copies or self.rule.policy is Policy.CREATE_ONLY:
                # Under that policy the address is the last word, whatever version is there.
                return
            more["remote_id"] = copies[0].remote_id
        if mode == "recreate" and self.rule.policy is Policy.UPDATE_ONLY:
            return
        addressless = row is not None and mode == "retry" and row["error_kind"] == "unaddressable"
        if (mode == "recreate" or addressless) and (copies or source_id in self.rows("operations")):
            # It is there, or may be, and the operator says that it is not.
            self.known[source_id].excused += 1
        self.eyes.outbound.release("parcels", mode=mode, source_ids=[source_id], actor="ada", **more)

    def replay(self, which: int) -> None:
        if self.rule.policy is not Policy.CREATE_ONLY:
            self.eyes.outbound.replay("parcels", source_ids=[IDS[which % len(IDS)]], actor="ada")

    # --- the processes --------------------------------------------------------------------------------

    def advance(self, which: int) -> None:
        self.clock.advance(CLOCKS[which % len(CLOCKS)])

    def tick(self, process: int) -> None:
        self.processes[process % 2].outbound.tick()

    def job(self, process: int, jobs: int) -> None:
        """So many jobs of the chain that runs."""
        self.run(process, jobs=jobs)

    def chain(self, process: int) -> None:
        """A chain from its beginning to its end; where the last one is dead, in its place."""
        self.tick(process)
        self.run(process)

    def run(
        self,
        process: int,
        *,
        jobs: int | None = None,
        dies_in: int | None = None,
        freeze: tuple[Moment, int, list[tuple[Any, ...]]] | None = None,
    ) -> ChainEnd | None:
        """Do one job of the running chain, some jobs, or all of them.

        `dies_in` so many points the process dies. `freeze`: at the so-many-th moment of a kind it stands
        still while these acts are played, and then goes on. Answers how the chain ended, where it did.
        """
        runner = self.processes[process % 2]
        chain_id = self.running()
        if chain_id is None:
            return None
        runner.dies_in = dies_in
        if freeze is not None:
            moment, left, acts = freeze
            runner.freeze = Freeze(moment, left, lambda: self._meanwhile(runner, acts))
        try:
            return self._run(runner, chain_id, jobs)
        except BaseException as error:
            if runner.dead:
                # Whatever it came out as: a driver that is interrupted may say it in its own way.
                self._died(runner)
            elif isinstance(error, RuleFault):
                self.counts[f"fault {error.kind}"] += 1
                if not isinstance(error, EXPECTED):
                    self.problems.append(f"unexpected fault of the rule: {error!r}")
            else:
                raise
        finally:
            runner.dies_in = runner.freeze = None
            if not self._standing_still:
                self._hear()
            before, runner.thawed_over = runner.thawed_over, None
            if before is not None:
                self.counts["late answers"] += 1
                after = self.dump()
                if before != after:
                    self.problems.append(f"a job that had lost its rule wrote: {before} became {after}")
        return None

    def _run(self, runner: Process, chain_id: str, jobs: int | None) -> ChainEnd | None:
        if jobs is None:
            return runner.outbound.run_chain(chain_id)
        for _ in range(jobs):
            runner.outbound.run_job(chain_id)
        return None

    def _died(self, runner: Process) -> None:
        self.counts["crashes"] += 1
        self._begin(runner)
        for row in self.rows("operations").values():
            if not row["in_doubt"] and row["verb"] == "create":
                self.known[row["source_id"]].unknown += 1

    def _hear(self) -> None:
        """What the target did since: which answers nobody got, and which calls came too late."""
        late = {number for process in self.processes for number in process.late}
        unheard = {number for process in self.processes for number in process.unheard}
        requests = self.target.requests
        for request in requests[self._heard :]:
            if request.source_id is None or not request.took_effect:
                continue
            known = self.known[request.source_id]
            known.overtaken = request.number in late
            if request.verb == "create" and (request.number in unheard or request.answer != "landed"):
                known.unknown += 1
        self._heard = len(requests)

    def die(self, process: int, dies_in: int) -> None:
        """The process dies at a point of a whole chain, which it begins where nobody else has one."""
        self.clock.advance(timedelta(seconds=181))
        self.tick(process)
        self.run(process, dies_in=dies_in)

    def dies(self, process: int) -> None:
        """The process dies at its next point; played while it stands still."""
        self.processes[process % 2].dies_in = 0

    def thaw(self, process: int, moment: Moment, left: int, acts: list[tuple[Any, ...]]) -> None:
        """The process stands still in a chain, while all this happens, and goes on."""
        self.clock.advance(timedelta(seconds=181))
        self.tick(process)
        self.run(process, freeze=(moment, left, acts))

    def take_over(self, process: int) -> None:
        """Another process takes the rule, once everybody takes the last one for dead, and runs a chain."""
        self.clock.advance(timedelta(seconds=181))
        self.tick(process)
        self.run(process)
        self.counts["takeovers"] += 1

    def _meanwhile(self, runner: Process, acts: list[tuple[Any, ...]]) -> None:
        token = self.rows("rules")["parcels"]["lease_token"]
        self._standing_still = True
        for name, *arguments in acts:
            self.play(name, *arguments)
        self._standing_still = False
        if self.rows("rules")["parcels"]["lease_token"] != token:
            # Its answer is late now, if it ever comes.
            runner.thawed_over = self.dump()

    def play(self, name: str, *arguments: Any) -> None:
        """One act, by its name."""
        getattr(self, name)(*arguments)

    # --- looking --------------------------------------------------------------------------------------

    def rows(self, name: str) -> dict[str, dict[str, Any]]:
        return self.tables(name)[name]

    def tables(self, *names: str) -> dict[str, dict[str, dict[str, Any]]]:
        """The rows of some tables, by what names them beside the rule."""
        tables = {}
        with self.eyes.config.engine.connect() as connection:
            for name in names:
                rows = connection.execute(_READ[name](self.eyes.config.schema)).mappings()
                tables[name] = {row[_BY.get(name, "id")]: dict(row) for row in rows}
        return tables

    def running(self) -> str | None:
        """The chain that is not over."""
        return next((id for id, row in self.rows("chains").items() if row["state"] == "running"), None)

    def dump(self) -> dict[str, Any]:
        """Every table that a run writes, but the audit."""
        return self.tables(*_READ)

    # --- to the end -----------------------------------------------------------------------------------

    def mend(self) -> None:
        """Everything works again, and every process has the newest code."""
        self.target.up()
        self.target._coming.clear()
        self.closed = None
        self.verbs = ALL_VERBS
        self.says_keyed = self.target.keyed
        self.resume()
        for process in self.processes:
            self._begin(process)

    def quiesce(self) -> None:
        """Run chains until one has nothing to do."""
        self.mend()
        for _ in range(40):
            self.clock.advance(timedelta(hours=5))
            calls = len(self.target.requests)
            self.tick(0)
            end = self.run(0)
            waits = [row for row in self.rows("records").values() if row["status"] == "failed"]
            if end is ChainEnd.COMPLETED and not waits and calls == len(self.target.requests):
                return
        self.problems.append("the rule never came to rest")

    def finish(self) -> None:
        """Release what is parked until nothing is; a retry may tell first that the target lost a record."""
        self.rule = attrs.evolve(self.rule, policy=Policy.UPSERT)
        self.mend()
        for _ in range(3):
            self._release_all()
            self.quiesce()

    def _release_all(self) -> None:
        """As an operator does who has looked at the target."""
        for source_id, row in self.rows("records").items():
            if row["status"] not in ("exhausted", "remote_gone"):
                continue
            copies = self.target.copies(source_id)
            if row["error_kind"] == "unaddressable" and copies:
                mode = "adopt"
            elif row["status"] == "remote_gone":
                mode = "adopt" if copies else "recreate"
            else:
                mode = "retry"
            more: dict[str, Any] = {"remote_id": copies[0].remote_id} if mode == "adopt" else {}
            self.eyes.outbound.release("parcels", mode=mode, source_ids=[source_id], actor="ada", **more)
