"""Recorded webhooks: files of the npm package `@octokit/webhooks-examples`, and messages made of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from statifier_router import Message, MessageError

# One version, so that the counts can be checked.
PACKAGE = "@octokit/webhooks-examples@7.6.1"
MEMBER = "package/api.github.com/index.json"


class Unusable(Exception):
    """Why there is nothing to route, in one line."""


def default_file() -> Path:
    """The package's own file, fetched by `npm pack` on the first call and kept in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = cache / "statifier-router-examples" / f"{PACKAGE.rpartition('/')[2]}.json"
    if kept.exists():
        return kept
    npm = shutil.which("npm")
    instead = "name a file of it instead: run.py FILE"
    if npm is None:
        raise Unusable(f"npm, which fetches {PACKAGE}, is not installed; install it, or {instead}")
    with tempfile.TemporaryDirectory() as folder:
        fetched = subprocess.run(
            [npm, "pack", "--silent", "--prefer-offline", "--pack-destination", folder, PACKAGE],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        archives = list(Path(folder).glob("*.tgz"))
        if fetched.returncode != 0 or not archives:
            said = " ".join(fetched.stderr.split())[:300] or f"exit status {fetched.returncode}"
            raise Unusable(f"npm could not fetch {PACKAGE} ({said}); {instead}")
        with tarfile.open(archives[0]) as archive:
            member = archive.extractfile(MEMBER)
            assert member is not None
            content = member.read()
    kept.parent.mkdir(parents=True, exist_ok=True)
    # Put in place whole: two runs may fetch at once.
    part = kept.with_name(f"{kept.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(kept)
    return kept


def read(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of the event and the payload, for each payload in the file, in its order."""
    try:
        events = json.loads(file.read_bytes())
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Unusable(f"{file} is not JSON: {error}") from None
    try:
        if not isinstance(events, list):
            raise TypeError
        yield from [(event["name"], payload) for event in events for payload in event["examples"]]
    except (KeyError, TypeError):
        raise Unusable(f'{file} is not a list of {{"name": event, "examples": [payload, …]}}') from None


def message(event: str, payload: dict[str, Any]) -> Message:
    """The message that a webhook endpoint would have made of this payload.

    GitHub gives every delivery an id of its own, in the header `X-GitHub-Delivery`; the recorded payloads
    came without their headers. The id here is made of the content: the same payload is the same message.
    """
    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    message_id = hashlib.sha256(f"{event}\n{canonical}".encode()).hexdigest()
    try:
        return Message(f"github.{event}", message_id, "github.com", payload)
    except MessageError as error:
        raise Unusable(f"a payload of {event!r} is no message: {error}") from None
