"""Finding the host's `Config` by `package.module:attribute`."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import isawaitable
from pathlib import Path
from typing import Any

from statifier_router import dialect
from statifier_router.config import Config
from statifier_router.errors import ConfigError, RouterError
from statifier_router.refusals import close_awaitable, told

VARIABLE = "STATIFIER_ROUTER_CONFIG"


def load(reference: str | None) -> Config:
    """The configuration at `package.module:attribute`: a `Config`, or what answers one when called.

    The current directory is importable, as it is for `python -m`. Raises `ConfigError`, which names
    the reference, and whatever of the library's own errors the host's module raises.
    """
    if not reference:
        raise ConfigError(f"no configuration: give --config package.module:attribute, or set {VARIABLE}")
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute) or module_name.startswith("."):
        raise ConfigError(f"--config must be of the form package.module:attribute, not {reference!r}")
    found = _attribute(_module(module_name, reference), attribute, reference)
    if not isinstance(found, Config) and callable(found):
        found = _called(found, reference)
    if not isinstance(found, Config):
        raise ConfigError(
            f"--config {reference}: must be a Config, or a callable without arguments that answers one; "
            f"it is {_kind(found)}"
        )
    if dialect.is_async_engine(found.engine):
        raise ConfigError(
            f"--config {reference}: its engine is an AsyncEngine; name a Config "
            "over statifier_router.create_engine(url)"
        )
    return found


def _module(name: str, reference: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except RouterError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"--config {reference}: there is no module {error.name!r} "
                f"in {here} or where Python looks for modules"
            ) from error
        raise ConfigError(f"--config {reference}: importing {name} raised {told(error)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"--config {reference}: importing {name} raised {_told(error)}") from error


def _attribute(module: Any, path: str, reference: str) -> Any:
    found = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            owner = getattr(found, "__name__", type(found).__name__)
            raise ConfigError(f"--config {reference}: {owner} has no attribute {name!r}") from error
    return found


def _called(factory: Any, reference: str) -> Any:
    try:
        answer = factory()
    except RouterError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"--config {reference}: calling it raised {_told(error)}") from error
    if isawaitable(answer):
        close_awaitable(answer)
        raise ConfigError(f"--config {reference}: it is async; answer a Config from a plain function")
    return answer


def _told(error: BaseException) -> str:
    return told(error) if isinstance(error, Exception) else f"{type(error).__name__}({error})"


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
