"""Finding the host's `Config` and `Outbound` by `package.module:attribute`."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import frozen

from statifier_router import dialect
from statifier_router.config import Config
from statifier_router.errors import ConfigError, RouterError
from statifier_router.refusals import close_awaitable, told

if TYPE_CHECKING:
    from statifier_router.runs import Outbound

T = TypeVar("T")

VARIABLE = "STATIFIER_ROUTER_CONFIG"
OUTBOUND_VARIABLE = "STATIFIER_ROUTER_OUTBOUND"
# What an Outbound is called that stands beside the configuration.
BESIDE = "outbound"


def load(reference: str | None) -> Config:
    """The configuration at `package.module:attribute`: a `Config`, or what answers one when called.

    The current directory is importable, as it is for `python -m`. Raises `ConfigError`, which names
    the reference, and whatever of the library's own errors the host's module raises.
    """
    if not reference:
        raise ConfigError(f"no configuration: give --config package.module:attribute, or set {VARIABLE}")
    found = _loaded(_Reference.of("--config", reference), Config, "a Config")
    if dialect.is_async_engine(found.engine):
        raise ConfigError(
            f"--config {reference}: its engine is an AsyncEngine; name a Config "
            "over statifier_router.create_engine(url)"
        )
    return found


def load_outbound(reference: str | None, config_reference: str | None) -> Outbound:
    """The `Outbound` at `reference`; without one, the attribute `outbound` of the configuration's module.

    Raises as `load`.
    """
    found = find_outbound(reference, config_reference)
    if found is None:
        where = ""
        if config_reference:
            where = f", or name one {BESIDE} in {config_reference.partition(':')[0]}"
        raise ConfigError(
            f"no Outbound: give --outbound package.module:attribute, or set {OUTBOUND_VARIABLE}{where}"
        )
    return found


def find_outbound(reference: str | None, config_reference: str | None) -> Outbound | None:
    """The same; None where none is named and none stands beside the configuration."""
    from statifier_router.runs import Outbound

    if reference:
        return _loaded(_Reference.of("--outbound", reference), Outbound, "an Outbound")
    if not config_reference:
        return None
    beside = _Reference.of("--config", config_reference)
    if getattr(_module(beside), BESIDE, None) is None:
        return None
    named = _Reference("--outbound", f"{beside.module}:{BESIDE}", beside.module, BESIDE)
    return _loaded(named, Outbound, "an Outbound")


@frozen
class _Reference:
    """What an option names."""

    option: str
    text: str
    module: str
    attribute: str

    @classmethod
    def of(cls, option: str, text: str) -> _Reference:
        module, colon, attribute = text.partition(":")
        if not (module and colon and attribute) or module.startswith("."):
            raise ConfigError(f"{option} must be of the form package.module:attribute, not {text!r}")
        return cls(option, text, module, attribute)

    def refused(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.option} {self.text}: {problem}")


def _loaded(reference: _Reference, wanted: type[T], article: str) -> T:
    found = _attribute(_module(reference), reference)
    if not isinstance(found, wanted) and callable(found):
        found = _called(found, reference, article)
    if not isinstance(found, wanted):
        raise reference.refused(
            f"must be {article}, or a callable without arguments that answers one; it is {_kind(found)}"
        )
    return found


def _module(reference: _Reference) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    name = reference.module
    try:
        return import_module(name)
    except RouterError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise reference.refused(
                f"there is no module {error.name!r} in {here} or where Python looks for modules"
            ) from error
        raise reference.refused(f"importing {name} raised {told(error)}") from error
    except (Exception, SystemExit) as error:
        raise reference.refused(f"importing {name} raised {_told(error)}") from error


def _attribute(module: Any, reference: _Reference) -> Any:
    found = module
    for name in reference.attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            owner = getattr(found, "__name__", type(found).__name__)
            raise reference.refused(f"{owner} has no attribute {name!r}") from error
    return found


def _called(factory: Any, reference: _Reference, article: str) -> Any:
    try:
        answer = factory()
    except RouterError:
        raise
    except (Exception, SystemExit) as error:
        raise reference.refused(f"calling it raised {_told(error)}") from error
    if isawaitable(answer):
        close_awaitable(answer)
        raise reference.refused(f"it is async; answer {article} from a plain function")
    return answer


def _told(error: BaseException) -> str:
    return told(error) if isinstance(error, Exception) else f"{type(error).__name__}({error})"


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
