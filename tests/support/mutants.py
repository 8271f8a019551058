"""What the engine must not do, each as one function of it that is replaced.

A mutant takes pytest's `monkeypatch` and the history that it is to spoil.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import attrs
from sqlalchemy import bindparam, false, literal_column, select, update

from statifier_router import dialect
from statifier_router.dialect import Prepared
from statifier_router.runs import (
    deciding,
    job,
    leases,
    pages,
    record_rows,
    recording,
    settling,
)
from statifier_router.runs.bracket import writing
from statifier_router.runs.positions import stored
from tests.support.histories import History

Mutant = Callable[[Any, History], None]


def a_fresh_key_per_attempt(monkeypatch: Any, history: History) -> None:
    decide, numbers = deciding.decide, itertools.count()

    def decide_anew(view: Any) -> Any:
        decision = decide(view)
        if isinstance(decision, deciding.Call):
            return attrs.evolve(decision, key=f"key {next(numbers)}")
        return decision

    monkeypatch.setattr(deciding, "decide", decide_anew)


def any_refusal_settles_doubt(monkeypatch: Any, history: History) -> None:
    monkeypatch.setattr(settling, "doubt_remains", lambda call, fault, traits: fault.in_doubt)


def no_follow_up_update(monkeypatch: Any, history: History) -> None:
    monkeypatch.setattr(deciding, "needs_follow_up", lambda view, operation: False)


def open_operations_are_not_swept(monkeypatch: Any, history: History) -> None:
    nothing = record_rows.left_open(history.eyes.config.schema).where(false())
    monkeypatch.setattr(pages, "left_open", lambda schema: nothing)


def an_unfenced_outcome(monkeypatch: Any, history: History) -> None:
    fenced = leases.fenced

    def unfenced(connection: Any, outbound: Any, taken: Any, now: Any) -> Any:
        rules = outbound.config.schema.rules
        token = dialect.in_full(connection).execute(select(rules.c.lease_token)).scalar_one()
        return fenced(connection, outbound, attrs.evolve(taken, token=token), now)

    monkeypatch.setattr(leases, "fenced", unfenced)


def the_cursor_before_the_last_outcome(monkeypatch: Any, history: History) -> None:
    page_of = job.Job.page

    def page(self: Any) -> Any:
        page = page_of(self)
        if page.phase == "scan" and page.candidates:
            rules = self.outbound.config.schema.rules
            with writing(self.outbound.config) as connection:
                moved = update(rules).values(cursor=stored(page.candidates[-1].position))
                connection.execute(moved.where(rules.c.name == self.rule.name))
        return page

    monkeypatch.setattr(job.Job, "page", page)


def the_due_limit_is_not_frozen(monkeypatch: Any, history: History) -> None:
    monkeypatch.setattr(pages, "due_limit", lambda due_before: history.clock())


def the_signal_is_read_again_after_the_write(monkeypatch: Any, history: History) -> None:
    settle = recording.settle

    def settle_anew(job: Any, connection: Any, page: Any, heard: Any, now: Any) -> None:
        source_id = heard.opened.view.source_id
        newest = job.rule.source.load(dialect.in_full(connection), [source_id])[source_id]
        call = attrs.evolve(heard.opened.call, signal=newest.signal)
        opened = attrs.evolve(heard.opened, call=call)
        settle(job, connection, page, attrs.evolve(heard, opened=opened), now)

    monkeypatch.setattr(recording, "settle", settle_anew)


def on_conflict_do_update(monkeypatch: Any, history: History) -> None:
    def forgiving(schema: Any) -> Any:
        table = schema.records
        values: dict[str, Any] = {name: bindparam(f"to_{name}") for name in record_rows.WRITTEN}
        named: dict[str, Any] = {"rule": bindparam("of_rule"), "source_id": bindparam("of_source_id")}
        inserted = dialect.insert_into(history.eyes.config.engine.dialect.name, table).values(
            **values, **named, row_version=literal_column("1"), updated_at=bindparam("now")
        )
        index = [table.c.rule, table.c.source_id]
        set_ = {name: inserted.excluded[name] for name in record_rows.WRITTEN}
        return Prepared(inserted.on_conflict_do_update(index_elements=index, set_=set_))

    monkeypatch.setattr(record_rows, "insert_record", forgiving)


def the_breaker_is_checked_only_at_the_job_s_start(monkeypatch: Any, history: History) -> None:
    go_on = job.Job.go_on

    def go_on_anyhow(self: Any, connection: Any, page: Any, facts: Any, target: Any, now: Any) -> Any:
        return go_on(self, connection, page, facts, self.taken.facts.breaker, now)

    monkeypatch.setattr(job.Job, "go_on", go_on_anyhow)


MUTANTS: Final[dict[str, Mutant]] = {
    mutant.__name__: mutant
    for mutant in (
        a_fresh_key_per_attempt,
        any_refusal_settles_doubt,
        no_follow_up_update,
        open_operations_are_not_swept,
        an_unfenced_outcome,
        the_cursor_before_the_last_outcome,
        the_due_limit_is_not_frozen,
        the_signal_is_read_again_after_the_write,
        on_conflict_do_update,
        the_breaker_is_checked_only_at_the_job_s_start,
    )
}
