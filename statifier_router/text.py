"""Limits on text, judged at the edge so that no database ever has to refuse it."""

from __future__ import annotations

# UTF-8 bytes, 15-schema "Limits".
NAME_LIMIT = 128
MESSAGE_ID_LIMIT = 255
SEND_ID_LIMIT = 255
KEY_LIMIT = 512
# Characters.
ERROR_LIMIT = 2_000


def checked(value: object, field: str, error: type[Exception], *, limit: int, empty: bool = False) -> str:
    """`value` where it is text that every database keeps unchanged; else `error`, naming `field`.

    `limit` is in UTF-8 bytes. NUL is refused because PostgreSQL text cannot hold it.
    """
    if type(value) is str and value.isascii() and 0 < len(value) <= limit and "\x00" not in value:
        # Nearly all of them.
        return value
    if not isinstance(value, str):
        raise error(f"{field} must be text, not {type(value).__name__}")
    if not value and not empty:
        raise error(f"{field} must not be empty")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise error(f"{field} holds a lone surrogate, which is not Unicode text") from None
    if size > limit:
        raise error(f"{field} is {size} bytes long in UTF-8, the limit is {limit}")
    if "\x00" in value:
        raise error(f"{field} holds a NUL character")
    # A text subclass is reduced, so that what is stored is what was compared.
    return value if type(value) is str else str.__str__(value)


def error_text(value: object) -> str:
    """An error's text made storable: cleaned of NUL and surrogates, cut to 2,000 characters."""
    text = str(value).replace("\x00", "\N{SYMBOL FOR NULL}")
    return text.encode("utf-8", "backslashreplace").decode()[:ERROR_LIMIT]
