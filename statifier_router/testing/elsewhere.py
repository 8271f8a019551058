"""The other process of the contract: makes the same charts, answers the same events, prints what it heard."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from statifier_router.jsontext import decode, encode
from statifier_router.testing.probing import course


def main() -> None:
    """Read one request from standard input and print one line."""
    request: Any = decode(sys.stdin.read())
    kind: Any = _module(request["module"], request["file"])
    for name in request["qualname"].split("."):
        if name == "<locals>":
            sys.exit(f"{request['qualname']} stands inside a function: put it at the top level of its file")
        kind = getattr(kind, name)
    found = []
    for scenario, start, events in request["courses"]:
        chart = kind().chart_of(scenario)
        answers = course(chart, [(name, data) for name, data in events], start=start)
        found.append({"content_hash": chart.content_hash, "answers": [answer.text for answer in answers]})
    sys.stdout.write("\n" + encode(found) + "\n")


def _module(name: str, file: str | None) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        # A test file that pytest imported by its path.
        spec = None if file is None else importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


if __name__ == "__main__":
    main()
