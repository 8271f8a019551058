"""A webhook endpoint in thirty lines: `uvicorn --app-dir examples/fastapi --factory app:create_app`.

Post `{"id": "m-1", "kind": "scan", "parcel": {"id": "P7"}}` to /webhooks/carrier, twice. An endpoint that
strangers can reach must first verify the signature of what is posted, as its sender prescribes.
"""

from typing import Any

from fastapi import FastAPI, HTTPException
from parcels import configure

from statifier_router import Config, DeliveryError, Message, MessageError, route


def create_app(config: Config | None = None) -> FastAPI:
    config = config or configure("sqlite:///webhooks.db")
    app = FastAPI()

    # A plain `def`, which FastAPI runs in a thread: waiting for the database blocks nobody else.
    @app.post("/webhooks/{source}")
    def webhook(source: str, payload: dict[str, Any]) -> dict[str, list[str]]:
        try:
            outcomes = route(config, Message(source, payload.get("id"), "", payload))
        except MessageError as error:
            raise HTTPException(400, str(error)) from error
        except DeliveryError as error:
            if error.retryable:
                raise HTTPException(503, "try again", headers={"Retry-After": "5"}) from error
            # The same message would fail again until somebody mends the chart or publishes it.
            raise HTTPException(422, str(error)) from error
        # A duplicate or a dropped message is no error: what became of it stands in the ledger.
        return {"outcomes": [outcome.recorded for outcome in outcomes]}

    return app
