"""The lives of a pull request, an issue and a workflow run: an SCXML document each, beside this file."""

from __future__ import annotations

from pathlib import Path

from statifier_router import ChartRegistry
from statifier_router.interpreters import statemachine

DOCUMENTS = ("pull_request", "issue", "workflow_run")


def charts() -> ChartRegistry:
    registry = ChartRegistry()
    for document in DOCUMENTS:
        text = Path(__file__).with_name(f"{document}.scxml").read_text(encoding="utf-8")
        registry.publish(document, statemachine.scxml(text))
    return registry
