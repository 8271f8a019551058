"""The other system: an HTTP server on loopback that misbehaves as it is told, and logs every request."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    """One request, and what the target did."""

    method: str
    path: str
    key: str
    parcel: str
    body: Any
    # Whether anything changed at the target.
    took: bool
    # What it did, in words.
    did: str
    # The address that it gave, where it gave one.
    address: str | None = None


# What a request may meet; `None` is good behaviour.
MISDEEDS = {
    "slow": "took it, answered nothing in time",
    "deaf": "hung up without a word",
    "busy": "asked for a pause (429, Retry-After: 1)",
    "broken": "was out of order (503)",
    "strict": "refused the record (422)",
    "vague": "took it, told no address",
}


class Target:
    """`misdeeds(method, parcel, number)` says what the so-manieth request about a parcel meets."""

    def __init__(self, misdeeds: Callable[[str, str, int], str | None]) -> None:
        self.misdeeds = misdeeds
        self.log: list[Request] = []
        self.records: dict[str, Any] = {}
        self.notices: list[Any] = []
        self.forgotten: list[str] = []
        # Called with the number of each request, before anything is done about it.
        self.on_request: Callable[[int], None] = lambda number: None
        self._answers: dict[str, tuple[int, dict[str, str], Any]] = {}
        self._asked: Counter[str] = Counter()
        self._numbers = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        handler = type("Bound", (_Handler,), {"target": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def forget(self, parcel: str) -> None:
        """Lose a record, as if somebody had deleted it by hand."""
        with self._lock:
            (address,) = [each for each, body in self.records.items() if body["parcel"] == parcel]
            del self.records[address]
            self.forgotten.append(parcel)

    def answer(self, method: str, path: str, key: str, body: Any) -> tuple[int, dict[str, str], Any] | None:
        """Status, headers and body; None: hang up."""
        with self._lock:
            self._numbers += 1
            number = self._numbers
        self.on_request(number)
        parcel = body["parcel"] if path.startswith("/parcels") else body["data"]["parcel"]
        with self._lock:
            about = f"{path.split('/')[1]} {parcel}"
            misdeed = None
            if key not in self._answers:
                self._asked[about] += 1
                misdeed = self.misdeeds(path.split("/")[1], parcel, self._asked[about])
            took, answer = False, None
            if misdeed in (None, "slow", "vague"):
                took, answer = self._take(method, path, key, body)
            did = MISDEEDS[misdeed] if misdeed else _told(answer, took=took)
            address = answer[2].get("id") if answer else None
            self.log.append(Request(method, path, key, parcel, body, took, did, address))
        if misdeed == "slow":
            self._over.wait(30)
            return None
        if misdeed == "deaf":
            return None
        if misdeed == "vague":
            return 201, {}, {}
        refused = {"busy": (429, {"Retry-After": "1"}), "broken": (503, {}), "strict": (422, {})}
        if misdeed is not None:
            status, headers = refused[misdeed]
            return status, headers, {"error": MISDEEDS[misdeed]}
        return answer

    def _take(self, method: str, path: str, key: str, body: Any) -> tuple[bool, Any]:
        if key in self._answers:
            return False, self._answers[key]
        address = path.removeprefix("/parcels/")
        if path == "/notices":
            self.notices.append(body)
            answer: Any = (202, {}, {})
        elif method == "POST":
            address = f"T{len(self.records) + len(self.forgotten) + 1}"
            self.records[address] = body
            answer = (201, {}, {"id": address})
        elif address not in self.records:
            return False, (404, {}, {"error": "no such record"})
        else:
            self.records[address] = body
            answer = (200, {}, {"id": address})
        self._answers[key] = answer
        return True, answer


def _told(answer: Any, *, took: bool) -> str:
    if answer[0] == 404:
        return "had lost the record (404)"
    return "took it, and said so" if took else "knew the key, did nothing again"


class _Handler(BaseHTTPRequestHandler):
    target: Target
    protocol_version = "HTTP/1.1"

    def _any(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.target.answer(self.command, self.path, self.headers["Idempotency-Key"], body)
        if answer is None:
            self.close_connection = True
            return
        status, headers, content = answer
        text = json.dumps(content).encode()
        try:
            self.send_response_only(status)
            for name, value in {"Content-Length": str(len(text)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            # Whoever asked was killed meanwhile.
            self.close_connection = True

    do_POST = do_PUT = _any  # noqa: N815 - the base class asks for these names

    def log_message(self, *_: Any) -> None:
        pass
