"""A scripted target behind a socket: what a process calls that may be killed, and what outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

import attrs

from statifier_router.jsontext import Json
from statifier_router.runs import Gone, RecordFault, Rejected, Throttled, TimedOut, Unavailable, WriteContext
from statifier_router.testing.targets import ScriptedTarget

# "cut": the call is not taken, and nobody hears. "cut_after": it is taken, and nobody hears.
Verdict = Literal["forward", "cut", "cut_after"]

_PATIENCE = 60.0
_FAULTS: dict[str, type[RecordFault]] = {
    fault.__name__: fault for fault in (Gone, Rejected, Throttled, TimedOut, Unavailable)
}


@attrs.frozen
class Arrived:
    """A call as it arrives: of which process, and the number that the process gave it."""

    verb: str
    source_id: str | None
    pid: int
    number: int

    def __str__(self) -> str:
        return f"({self.verb} {self.source_id})"


class Depot:
    """Serves a target on loopback, a connection a call; a context manager.

    `on_call` says what becomes of each call. `unheard` names the records that were created while nobody
    heard the answer.
    """

    def __init__(self, target: ScriptedTarget, on_call: Callable[[Arrived], Verdict] | None = None) -> None:
        self.target = target
        self.arrived: list[Arrived] = []
        self.unheard: list[str | None] = []
        self._on_call = on_call
        self._errors: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._clients: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def settle(self) -> None:
        """Return once no call is under way."""
        for client in self._clients:
            client.join(_PATIENCE)

    def close(self) -> None:
        """Stop listening, and raise what went wrong in a call."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_PATIENCE)
        self.settle()
        if self._errors:
            raise self._errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.target.release()
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._answer, args=[client], daemon=True)
            self._clients.append(thread)
            thread.start()

    def _answer(self, client: socket.socket) -> None:
        try:
            with client, client.makefile("rwb") as stream:
                order = json.loads(stream.readline())
                context = order["context"]
                call = Arrived(
                    order["verb"],
                    None if context is None else context["source_id"],
                    order["pid"],
                    order["number"],
                )
                self.arrived.append(call)
                verdict = "forward" if self._on_call is None else self._on_call(call)
                if verdict == "cut":
                    return
                reply = self._take(order)
                if verdict == "cut_after":
                    if call.verb == "create" and "answer" in reply:
                        self.unheard.append(call.source_id)
                    return
                # Whoever asked may have been killed meanwhile.
                with contextlib.suppress(OSError):
                    stream.write(json.dumps(reply).encode() + b"\n")
                    stream.flush()
        except OSError:
            pass
        except BaseException as error:
            self._errors.append(error)

    def _take(self, order: dict[str, Any]) -> dict[str, Any]:
        context = order["context"]
        if context is not None:
            context = WriteContext(**context | {"timeout": timedelta(seconds=context["timeout"])})
        try:
            answer = self.target.call(
                order["verb"], context, remote_id=order["remote_id"], payload=order["payload"]
            )
        except RecordFault as fault:
            return {
                "fault": type(fault).__name__,
                "text": str(fault),
                "in_doubt": fault.in_doubt,
                "retry_after": getattr(fault, "retry_after", None),
            }
        return {"answer": answer}


class FarTarget(ScriptedTarget):
    """The same target, called by way of its depot. `number` is asked for the number of each call."""

    def __init__(self, port: int, *, keyed: bool, number: Callable[[], int] | None = None) -> None:
        super().__init__(keyed=keyed)
        self._port = port
        self._number = number

    def call(
        self, verb: str, context: WriteContext | None, *, remote_id: str | None = None, payload: Json = None
    ) -> Any:
        """Make the call over the wire."""
        order = {
            "verb": verb,
            "context": None
            if context is None
            else attrs.asdict(context) | {"timeout": context.timeout.total_seconds()},
            "remote_id": remote_id,
            "payload": payload,
            "pid": os.getpid(),
            "number": 0 if self._number is None else self._number(),
        }
        connection = socket.create_connection(("127.0.0.1", self._port), _PATIENCE)
        with connection, connection.makefile("rwb") as stream:
            stream.write(json.dumps(order).encode() + b"\n")
            stream.flush()
            line = stream.readline()
        if not line:
            raise Unavailable("the depot answered nothing", in_doubt=True)
        reply = json.loads(line)
        if "answer" in reply:
            return reply["answer"]
        if reply["fault"] == Throttled.__name__:
            raise Throttled(reply["retry_after"], reply["text"])
        raise _FAULTS[reply["fault"]](reply["text"], in_doubt=reply["in_doubt"])
