"""Credentials taken out of a foreign error's text, before it is kept or shown."""

from __future__ import annotations

import re
from typing import Final

from statifier_router.text import ERROR_LIMIT, error_text

HIDDEN: Final = "***"

# Beyond what may be kept, so that hiding (which shortens) never brings unread text into the kept part.
_READ_LIMIT = 8 * ERROR_LIMIT

_NAMES = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|signing[_-]?key"
    r"|credentials?|session[_-]?id"
)
_SEPARATOR = r"\\{0,4}[\"']?\s*(?:=>|[:=]|,(?=\s*b?[\"']))\s*"
# Every part is bounded or begins at a place of its own: the time is linear in the text's length.
_PATTERNS: Final = (
    # Whatever stands between a scheme and a host.
    (re.compile(r"(://)[^\s/?#\"'<>]*@"), rf"\1{HIDDEN}@"),
    (re.compile(r"\b(bearer|basic|digest|negotiate)(\s+)[^\s,;\"'\\)\]}]+", re.IGNORECASE), rf"\1\2{HIDDEN}"),
    # Headers whose value is a sentence of its own: to the end of the line or the quotation.
    (
        re.compile(
            rf"((?:authorization|cookie|signature){_SEPARATOR}(?:b?\\{{0,4}}[\"'])?)[^\r\n\"'\\]+",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    # name=value, name: value, "name": "value", ('name', 'value').
    (
        re.compile(
            rf"((?:{_NAMES})[\w-]{{0,40}}{_SEPARATOR})"
            r"(?:b?\"(?:[^\"\\]|\\.)*|b?'(?:[^'\\]|\\.)*|\\{1,4}[\"'][^\"'\\]*|[^\s,;&\"'\\)\]}]+)",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    # Tokens that are known by their looks: JSON Web Tokens, and secrets with a prefix.
    (re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"), HIDDEN),
    (re.compile(r"(?<![\w-])(?:whsec|gh[opsu]|sk_live|sk_test|rk_live|xox[abp])[_-][\w+/=-]{8,}"), HIDDEN),
)


def scrubbed(value: object) -> str:
    """A foreign text as it may be kept: without credentials, storable, at most 2,000 characters.

    Hidden are the values of passwords, tokens, secrets, keys, cookies and authorization headers, and
    user and password in URLs. Rather too much than too little.

    >>> scrubbed("no answer from https://me:hunter2@host/x?token=abc&page=2")
    'no answer from https://***@host/x?token=***&page=2'
    """
    try:
        text = str(value)
    except Exception:
        # A foreign `__str__` that fails must not hide that there was an error.
        text = type(value).__name__
    if len(text) > _READ_LIMIT:
        # A word that was cut may be a credential whose mark was cut off.
        text = re.sub(r"\S{1,400}\Z", "", text[:_READ_LIMIT])
    for pattern, hidden in _PATTERNS:
        text = pattern.sub(hidden, text)
    return error_text(text)
