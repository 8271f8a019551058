"""Requests signed after the scheme of Standard Webhooks, so that a receiver knows who sent them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from attrs import field, frozen

from statifier_router.errors import ConfigError

_PREFIX: Final = "whsec_"
# Bytes of a secret, as the scheme has them.
_SHORTEST, _LONGEST = 24, 64


def _key(secret: object) -> bytes:
    # No message quotes the secret.
    if isinstance(secret, str):
        text = secret.removeprefix(_PREFIX)
        try:
            secret = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(f"secret must be {_PREFIX!r} and base64, or bytes") from None
    if not isinstance(secret, bytes):
        raise ConfigError(f"secret must be text or bytes, not {type(secret).__name__}")
    if not _SHORTEST <= len(secret) <= _LONGEST:
        raise ConfigError(
            f"secret must have {_SHORTEST} to {_LONGEST} bytes once decoded, it has {len(secret)}"
        )
    return secret


@frozen
class StandardWebhooks:
    """Signs with one shared secret: `whsec_` and base64, or the bytes themselves.

    Three headers: `webhook-id` is the key of the call, equal for all its attempts, `webhook-timestamp`
    when this attempt was made, and `webhook-signature` the HMAC-SHA256 of both and the body (version
    v1). Raises `ConfigError` for a secret that is none.

    >>> from datetime import UTC
    >>> signer = StandardWebhooks(b"a secret of 24 bytes ...")
    >>> headers = signer.headers("msg_1", b"{}", datetime(2026, 1, 1, tzinfo=UTC))
    >>> headers["webhook-timestamp"]
    '1767225600'
    """

    secret: bytes = field(converter=_key, repr=False)

    def headers(self, message_id: str, body: bytes, now: datetime) -> Mapping[str, str]:
        """The three headers for this body, at this instant (aware)."""
        timestamp = str(int(now.timestamp()))
        signed = b".".join((message_id.encode(), timestamp.encode(), body))
        mac = hmac.new(self.secret, signed, hashlib.sha256).digest()
        return {
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
        }
