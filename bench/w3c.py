"""The W3C's SCXML test suite, as python-statemachine's source distribution carries it, through our adapter.

    python bench/w3c.py            # fetches the source distribution of the installed version with pip
    python bench/w3c.py --suite D  # takes the documents from the directory D

Nothing of the suite is kept. Each document is run twice: by the library alone, as its own tests do,
and by `interpreters.statemachine.scxml` under a host that has no routes: delayed events arrive in
the order they are due, without waiting, and a send that nobody takes comes back as an error event.
Documents with `<invoke>` are refused by design and counted apart. Ends with 1 where the adapter
passes fewer than the library, or fewer than `--at-least`.
"""

from __future__ import annotations

import argparse
import heapq
import io
import json
import multiprocessing
import subprocess
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ET
from contextlib import redirect_stdout
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from statemachine.io import load

from statifier_router import Cancel, Event, Send
from statifier_router.errors import ConfigError
from statifier_router.interpreters import statemachine

LIBRARY = "python-statemachine"
SECONDS = 60
EVENTS = 200


def fetch(into: Path) -> Path:
    """The suite's directory, out of the source distribution."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", LIBRARY),
            *("--dest", str(into), f"{LIBRARY}=={version(LIBRARY)}"),
        ],
        check=True,
    )
    (archive,) = into.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        wanted = [m for m in tar.getmembers() if "/tests/scxml/w3c/" in m.name]
        tar.extractall(into, members=wanted, filter="data")
    (suite,) = into.glob("*/tests/scxml/w3c")
    return suite


def by_library(path: Path) -> bool:
    """Whether the library alone ends in `pass`: what its own tests do with one document."""
    with redirect_stdout(io.StringIO()):
        try:
            machine = load(path, trusted=True)()
            until = time.monotonic() + 5
            while not machine.is_terminated and time.monotonic() < until:
                time.sleep(0.02)
                machine._engine.processing_loop()  # noqa: SLF001 - as its tests do
        except Exception:
            return False
    return "pass" in {state.id for state in machine.configuration}


def all_by_library(paths: list[Path]) -> dict[Path, bool]:
    """The library's answers, from processes that may hang: most of their time they sleep."""
    with multiprocessing.get_context("fork").Pool(8) as pool:
        running = {path: pool.apply_async(by_library, (path,)) for path in paths}
        answers = {}
        for path, answer in running.items():
            try:
                answers[path] = answer.get(timeout=SECONDS)
            except multiprocessing.TimeoutError:
                answers[path] = False
        pool.terminate()
    return answers


def by_adapter(path: Path) -> str:
    """`pass`, or why not."""
    text = inlined(path)
    try:
        chart = statemachine.scxml(text)
    except ConfigError as error:
        return f"refused: {error}"
    try:
        return run(chart)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def run(chart: statemachine.ScxmlChart) -> str:
    """Create, and bring back what comes due, as a host without routes would."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    timers: list[tuple[datetime, int, Send]] = []
    refused: list[Event] = []
    step = chart.create(data={"execution": {"id": "e-1"}}, now=now)
    for count in range(EVENTS):
        for effect in step.effects:
            if isinstance(effect, Cancel):
                timers = [timer for timer in timers if timer[2].send_id != effect.send_id]
            elif effect.type is not None or effect.target is not None:
                name = "error.execution" if effect.type is not None else "error.communication"
                refused.append(Event(name, {"event": effect.event}, send_id=effect.send_id))
            else:
                timers.append((now + effect.delay, count, effect))
        heapq.heapify(timers)
        if step.outcome == "failed":
            return f"failed: {'; '.join(step.errors)}"
        if step.status == "completed" or not (refused or timers):
            break
        if refused:
            event = refused.pop(0)
        else:
            now, _, send = heapq.heappop(timers)
            event = Event(send.event, send.data, send_id=send.send_id)
        # As a host keeps it between two messages.
        position = json.loads(json.dumps(step.position))
        step = chart.step(position, event, event_id=f"m-{count}", now=now)
    return "pass" if "pass" in step.active else f"ended in {', '.join(step.active)} {step.errors}"


def inlined(path: Path) -> str:
    """The document; what it reads from a file stands in it, since a chart is its text alone."""
    text = path.read_text(encoding="utf-8-sig")
    root = ET.fromstring(text)
    changed = False
    for data in root.iter("{http://www.w3.org/2005/07/scxml}data"):
        source = data.attrib.get("src", "")
        if source.startswith("file:"):
            data.text = (path.parent / source.removeprefix("file:")).read_text()
            del data.attrib["src"]
            changed = True
    return ET.tostring(root, encoding="unicode") if changed else text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--at-least", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        suite = options.suite or fetch(Path(directory))
        return compare(suite, at_least=options.at_least, verbose=options.verbose)


def compare(suite: Path, *, at_least: int, verbose: bool) -> int:
    paths = sorted(path for path in suite.rglob("*.scxml") if "sub" not in path.name)
    invoking = {path for path in paths if "<invoke" in path.read_text(encoding="utf-8-sig")}
    rest = [path for path in paths if path not in invoking]
    theirs = all_by_library(rest)
    with redirect_stdout(io.StringIO()):
        ours = {path: by_adapter(path) for path in rest}
    passed = sum(answer == "pass" for answer in ours.values())
    library_passed = sum(theirs.values())
    print(f"{LIBRARY} {version(LIBRARY)}: {len(paths)} documents, {len(invoking)} with <invoke> aside")
    print(f"library alone: {library_passed} of {len(rest)} pass")
    print(f"our adapter:   {passed} of {len(rest)} pass")
    for path in rest:
        if verbose or theirs[path] != (ours[path] == "pass"):
            print(f"  {path.stem}: library {'pass' if theirs[path] else 'fail'}, ours {ours[path]}")
    for path in sorted(invoking):
        if not by_adapter(path).startswith("refused: <invoke>"):
            print(f"  {path.stem}: has <invoke>, but was not refused by that name")
            return 1
    return 0 if passed >= max(library_passed, at_least) else 1


if __name__ == "__main__":
    sys.exit(main())
