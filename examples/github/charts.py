"""The lives of pull requests, issues, workflow runs and releases: each an SCXML document beside this file."""

from __future__ import annotations

from pathlib import Path

from statifier_router import ChartRegistry
from statifier_router.interpreters import statemachine

DOCUMENTS = ("pull_request", "issue", "workflow_run", "release")


def charts() -> ChartRegistry:
    registry = ChartRegistry()
    for document in DOCUMENTS:
        text = Path(__file__).with_name(f"{document}.scxml").read_text(encoding="utf-8")
        registry.publish(document, statemachine.scxml(text))
    return registry
