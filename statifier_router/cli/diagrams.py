"""`statifier-router execution ID --diagram`: the execution's chart with its active states, drawn."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from statifier_router import charts, executions
from statifier_router.cli.answers import Answer
from statifier_router.config import Config
from statifier_router.errors import ConfigError, ExecutionNotFound, RouterError
from statifier_router.executor import Execution
from statifier_router.interpreters import drawing
from statifier_router.interpreters.outline import Outline
from statifier_router.refusals import one_line

FORMATS = ("mermaid", "svg")

_SECONDS = 60


def diagram(config: Config, execution_id: str, form: str, file: Path | None) -> Answer:
    """The execution's diagram, as text or in a file. Raises `RouterError` where there is none."""
    if form == "svg" and file is None:
        raise ConfigError("--diagram=svg needs a FILE to write to: execution ID --diagram=svg FILE")
    if form != "svg" and file is not None:
        raise ConfigError("a FILE goes with --diagram=svg; the diagram in Mermaid is printed")
    execution = executions.fetch(config, execution_id)
    if execution is None:
        raise ExecutionNotFound(execution_id)
    outline = _outline(config, execution)
    facts = {"execution_id": execution_id, "active": execution.active, "format": form}
    if file is None:
        text = drawing.mermaid(outline, execution.active)
        return Answer({**facts, "diagram": text}, lambda screen: screen.say(text))
    file.write_bytes(_svg(drawing.dot(outline, execution.active)))
    return Answer({**facts, "file": str(file)}, lambda screen: screen.say(f"the diagram is in {file}"))


def _outline(config: Config, execution: Execution) -> Outline:
    chart = charts.for_execution(config, execution)
    outline = getattr(chart, "outline", None)
    if outline is None:
        raise RouterError(
            f"execution {execution.id} runs on a chart of {chart.interpreter!r}, of which there is no "
            "diagram: its states are known to its code alone"
        )
    drawn: Outline = outline()
    return drawn


def _svg(source: str) -> bytes:
    program = shutil.which("dot")
    if program is None:
        raise RouterError(
            "an SVG is drawn by Graphviz, whose program dot is not on the path: install Graphviz, "
            "or take the diagram in Mermaid: --diagram"
        )
    try:
        done = subprocess.run(  # noqa: S603 - the program just found, and no shell
            [program, "-Tsvg"], input=source.encode(), capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise RouterError(f"{program} did not draw the diagram within {_SECONDS} seconds") from None
    if done.returncode != 0:
        said = one_line(done.stderr.decode(errors="replace"), 300)
        raise RouterError(f"{program} failed with code {done.returncode}: {said}")
    return done.stdout
