"""Which of GitHub's webhooks mean what: to pull requests, to issues and to workflow runs.

The source of a message is `github.` and the name of its event, as the header `X-GitHub-Event` gives it.
A key is the repository and the number in it, so that pull request 2 of two repositories are two lives.
"""

from __future__ import annotations

from datetime import timedelta

from statifier_router import Binding, Defer, OutboxRoute, join

PULL_REQUEST = join("repository.full_name", "pull_request.number")
ISSUE = join("repository.full_name", "issue.number")
WORKFLOW_RUN = join("repository.full_name", "workflow_run.id")
WORKFLOW_RUN_OF_JOB = join("repository.full_name", "workflow_job.run_id")

# What happens to a pull request or an issue itself begins its life, whatever it is: the webhook may be
# younger than they are, and GitHub promises no order.
LIVES = [
    Binding(
        id="pull-request-opened",
        source="github.pull_request",
        match={"action": "opened"},
        key=PULL_REQUEST,
        document="pull_request",
        event="opened",
        data=("pull_request.draft", "pull_request.title"),
    ),
    Binding(
        id="pull-request-reopened",
        source="github.pull_request",
        match={"action": "reopened"},
        key=PULL_REQUEST,
        document="pull_request",
        event="reopened",
    ),
    Binding(
        id="pull-request-pushed-to",
        source="github.pull_request",
        match={"action": "synchronize"},
        key=PULL_REQUEST,
        document="pull_request",
        event="pushed_to",
    ),
    Binding(
        id="pull-request-drafted",
        source="github.pull_request",
        match={"action": "converted_to_draft"},
        key=PULL_REQUEST,
        document="pull_request",
        event="drafted",
    ),
    Binding(
        id="pull-request-ready",
        source="github.pull_request",
        match={"action": "ready_for_review"},
        key=PULL_REQUEST,
        document="pull_request",
        event="ready",
    ),
    Binding(
        id="pull-request-merged",
        source="github.pull_request",
        match={"action": "closed", "pull_request.merged": True},
        key=PULL_REQUEST,
        document="pull_request",
        event="merged",
        data=("repository.full_name", "pull_request.number"),
    ),
    Binding(
        id="pull-request-closed",
        source="github.pull_request",
        match={"action": "closed", "pull_request.merged": False},
        key=PULL_REQUEST,
        document="pull_request",
        event="closed",
    ),
    Binding(
        id="issue-opened",
        source="github.issues",
        match={"action": "opened"},
        key=ISSUE,
        document="issue",
        event="opened",
        data=("issue.title",),
    ),
    Binding(
        id="issue-changed",
        source="github.issues",
        match={"action": ["assigned", "unassigned", "labeled", "unlabeled", "milestoned", "demilestoned"]},
        key=ISSUE,
        document="issue",
        event="triaged",
    ),
    Binding(
        id="issue-closed",
        source="github.issues",
        match={"action": "closed"},
        key=ISSUE,
        document="issue",
        event="closed",
    ),
    Binding(
        id="issue-reopened",
        source="github.issues",
        match={"action": "reopened"},
        key=ISSUE,
        document="issue",
        event="reopened",
    ),
    Binding(
        id="issue-gone",
        source="github.issues",
        match={"action": ["deleted", "transferred"]},
        key=ISSUE,
        document="issue",
        event="gone",
        data=("action",),
    ),
    Binding(
        id="run-requested",
        source="github.workflow_run",
        match={"action": "requested"},
        key=WORKFLOW_RUN,
        document="workflow_run",
        event="requested",
        data=("workflow_run.conclusion",),
    ),
    Binding(
        id="run-started",
        source="github.workflow_run",
        match={"action": "in_progress"},
        key=WORKFLOW_RUN,
        document="workflow_run",
        event="started",
    ),
    Binding(
        id="run-completed",
        source="github.workflow_run",
        match={"action": "completed"},
        key=WORKFLOW_RUN,
        document="workflow_run",
        event="completed",
        data=("workflow_run.conclusion",),
    ),
    Binding(
        id="job-started",
        source="github.workflow_job",
        match={"action": "in_progress"},
        key=WORKFLOW_RUN_OF_JOB,
        document="workflow_run",
        event="started",
    ),
    Binding(
        id="job-completed",
        source="github.workflow_job",
        match={"action": "completed"},
        key=WORKFLOW_RUN_OF_JOB,
        document="workflow_run",
        event="job_completed",
        data=("workflow_job.name", "workflow_job.conclusion"),
    ),
]

# What is said about them is of interest only where their life is known: it never begins one. A review may
# come before its pull request is told of: it is kept for as long as its claim, and lands with it.
TALK = [
    Binding(
        id="issue-commented",
        source="github.issue_comment",
        # A comment on a pull request comes as one on an issue that has a field `pull_request`.
        match=lambda view: view.action == "created" and "pull_request" not in view.issue,
        key=ISSUE,
        document="issue",
        event="commented",
        create="never",
    ),
    Binding(
        id="review-submitted",
        source="github.pull_request_review",
        match={"action": "submitted"},
        key=PULL_REQUEST,
        document="pull_request",
        event="reviewed",
        data=("review.state",),
        create="never",
        missing=Defer(timedelta(hours=72)),
    ),
    Binding(
        id="review-dismissed",
        source="github.pull_request_review",
        match={"action": "dismissed"},
        key=PULL_REQUEST,
        document="pull_request",
        event="review_dismissed",
        create="never",
        missing=Defer(timedelta(hours=72)),
    ),
    Binding(
        id="thread-resolved",
        source="github.pull_request_review_thread",
        match={"action": "resolved"},
        key=PULL_REQUEST,
        document="pull_request",
        event="thread_resolved",
        create="never",
    ),
]

BINDINGS = [*LIVES, *TALK]

ROUTES = {"reminders": OutboxRoute("reminders")}
