"""The lives of a pull request, an issue and a workflow run, as charts.

Each is a table of states: which event leads where. A rule may look at the event's data (a guard).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from statifier_router import ChartRegistry, Event, Json, Step
from statifier_router.interpreters import function

# Where an event leads; more than one rule where it depends on the event's data, the first that fits.
Rule = str | list[tuple[Callable[[Any], bool], str]]


def _conclusion(*wanted: str) -> Callable[[Any], bool]:
    return lambda data: data.get("workflow_run", {}).get("conclusion") in wanted


def _review(state: str) -> Callable[[Any], bool]:
    return lambda data: data["review"]["state"] == state


PULL_REQUEST: dict[str, dict[str, Rule]] = {
    "open": {
        "opened": "open",
        "reopened": "open",
        "pushed_to": "open",
        "drafted": "draft",
        "closed": "closed",
        "merged": "merged",
        "reviewed": [
            (_review("approved"), "approved"),
            (_review("changes_requested"), "changes_requested"),
            (_review("commented"), "open"),
        ],
    },
    "draft": {"pushed_to": "draft", "ready": "open", "closed": "closed"},
    "approved": {"pushed_to": "open", "review_dismissed": "open", "closed": "closed", "merged": "merged"},
    "changes_requested": {
        "pushed_to": "open",
        "review_dismissed": "open",
        "closed": "closed",
        "merged": "merged",
    },
    "closed": {"reopened": "open"},
    "merged": {},
}

ISSUE: dict[str, dict[str, Rule]] = {
    "open": {"opened": "open", "triaged": "triaged", "commented": "open", "closed": "closed", "gone": "gone"},
    "triaged": {"triaged": "triaged", "commented": "triaged", "closed": "closed", "gone": "gone"},
    "closed": {"reopened": "open", "commented": "closed", "gone": "gone"},
    "gone": {},
}

WORKFLOW_RUN: dict[str, dict[str, Rule]] = {
    "queued": {
        "requested": [(_conclusion("action_required"), "waiting"), (lambda data: True, "queued")],
        "started": "running",
        "job_completed": "running",
        "completed": [
            (_conclusion("success", "neutral", "skipped"), "succeeded"),
            (_conclusion("failure", "timed_out", "cancelled", "startup_failure"), "failed"),
        ],
    },
    "succeeded": {},
    "failed": {},
}
WORKFLOW_RUN["waiting"] = WORKFLOW_RUN["running"] = WORKFLOW_RUN["queued"]


def table(name: str, states: dict[str, dict[str, Rule]], *, initial: str) -> function.FunctionChart:
    def at(state: str) -> Step:
        return Step(state, active=[state], status="active" if states[state] else "completed")

    def create(data: Json, now: datetime) -> Step:
        return at(initial)

    def step(position: Any, event: Event, now: datetime) -> Step:
        rule = states[position].get(event.name)
        if rule is None:
            return Step(position, outcome="ignored")
        if isinstance(rule, str):
            return at(rule)
        for guard, target in rule:
            if guard(event.data):
                return at(target)
        return Step(position, outcome="refused")

    return function.chart(name, create=create, step=step)


def charts() -> ChartRegistry:
    registry = ChartRegistry()
    registry.publish("pull_request", table("pull_request", PULL_REQUEST, initial="open"))
    registry.publish("issue", table("issue", ISSUE, initial="open"))
    registry.publish("workflow_run", table("workflow_run", WORKFLOW_RUN, initial="queued"))
    return registry
