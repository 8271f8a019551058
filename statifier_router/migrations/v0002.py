"""Version 2: charts kept in the database, and which of them each document runs on."""

from __future__ import annotations

from statifier_router.migrations.version import Version

_POSTGRESQL = (
    """\
CREATE TABLE {schema}"{prefix}charts" (
    content_hash text COLLATE "C" NOT NULL,
    interpreter text COLLATE "C" NOT NULL,
    document text COLLATE "C",
    version text COLLATE "C",
    source text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    retired_at timestamptz,
    CONSTRAINT "{prefix}charts_pk" PRIMARY KEY (content_hash)
)""",
    """\
CREATE TABLE {schema}"{prefix}publications" (
    document text COLLATE "C" NOT NULL,
    everywhere boolean NOT NULL,
    scope text COLLATE "C" NOT NULL,
    content_hash text COLLATE "C" NOT NULL,
    published_at timestamptz NOT NULL,
    CONSTRAINT "{prefix}publications_pk" PRIMARY KEY (document, everywhere, scope)
)""",
)

_SQLITE = (
    """\
CREATE TABLE {schema}"{prefix}charts" (
    content_hash TEXT NOT NULL,
    interpreter TEXT NOT NULL,
    document TEXT,
    version TEXT,
    source TEXT NOT NULL,
    created_at TEXT NOT NULL,
    retired_at TEXT,
    CONSTRAINT "{prefix}charts_pk" PRIMARY KEY (content_hash)
)""",
    """\
CREATE TABLE {schema}"{prefix}publications" (
    document TEXT NOT NULL,
    everywhere BOOLEAN NOT NULL,
    scope TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    published_at TEXT NOT NULL,
    CONSTRAINT "{prefix}publications_pk" PRIMARY KEY (document, everywhere, scope)
)""",
)

_DOWN = tuple(f'DROP TABLE {{schema}}"{{prefix}}{table}"' for table in ("publications", "charts"))

VERSION = Version(
    number=2,
    columns={
        "charts": (
            "content_hash",
            "interpreter",
            "document",
            "version",
            "source",
            "created_at",
            "retired_at",
        ),
        "publications": ("document", "everywhere", "scope", "content_hash", "published_at"),
    },
    ups={"postgresql": _POSTGRESQL, "sqlite": _SQLITE},
    downs={"postgresql": _DOWN, "sqlite": _DOWN},
)
