"""`Outbound`: the rules of one process, their writers, and everything that can be done with them."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from statifier_router.config import Config
from statifier_router.errors import ConfigError
from statifier_router.runs import chains, job, saving, working
from statifier_router.runs.ends import ChainEnd, ChainId, JobEnd
from statifier_router.runs.health import ALWAYS_OPEN, ConnectionHealth, checked_health
from statifier_router.runs.job import Stopping, Successor
from statifier_router.runs.operating import Operators
from statifier_router.runs.rules import LONGEST, Rule
from statifier_router.runs.working import Pause
from statifier_router.runs.writers import Writer, WriterTraits
from statifier_router.text import NAME_LIMIT, checked

log = logging.getLogger("statifier_router")


class Outbound(Operators):
    """Delivery runs over one configuration. Making one checks every argument and never connects.

    A faulty argument raises `ConfigError`, naming it. Every call opens transactions of its own on
    `config.engine`; it never joins a delivery's.

    Attributes:
        config: the configuration, whose engine is not an asynchronous one.
        writers: the writer of each driver that this process has.
        health: asked before every call whether the rule's connections may be used.
        lease: for how long a job owns its rule without giving a sign; at least twice the longest
            call timeout of a rule.
        tick_interval: how long a chain lasts at most, so that the next one begins with what is due.
        rules: rules to be saved at the first use, where connecting at import is not wanted.
        owner: how this process is named in the lease; by default host, process and a random part.

    >>> from statifier_router.doctest_support import config
    >>> from statifier_router.runs import Outbound
    >>> Outbound(config(), writers={}).tick_interval
    datetime.timedelta(seconds=300)
    """

    def __init__(
        self,
        config: Config,
        *,
        writers: Mapping[str, Writer],
        health: Any = ALWAYS_OPEN,
        lease: timedelta = timedelta(seconds=90),
        tick_interval: timedelta = timedelta(minutes=5),
        rules: Iterable[Rule] = (),
        owner: str | None = None,
    ) -> None:
        if not isinstance(config, Config):
            raise ConfigError(f"config must be a Config, not {type(config).__name__}")
        self.config = config
        self.writers: Mapping[str, Writer] = MappingProxyType(_checked_writers(writers))
        self.health: ConnectionHealth = checked_health(health)
        self.lease = _positive(lease, "lease")
        self.tick_interval = _positive(tick_interval, "tick_interval")
        self.owner = _owner() if owner is None else checked(owner, "owner", ConfigError, limit=NAME_LIMIT)
        self._known: dict[str, Rule] = {}
        self._unsaved: dict[str, Rule] = {}
        for rule in rules:
            saving.check_rule(self, rule)
            if rule.name in self._known:
                raise ConfigError(f"rules has two rules with the name {rule.name!r}")
            self._known[rule.name] = self._unsaved[rule.name] = rule

    # --- rules ----------------------------------------------------------------------------------------

    def save_rule(self, rule: Rule) -> None:
        """Make the rule known to this process, and store its definition where it is a new one.

        A chain of it that runs under another definition ends as superseded. Raises `ConfigError`,
        naming the field, for a rule that this process cannot run, and for a new target, entity or
        source of one that has rows; `UnsupportedVerb` where its writer lacks a verb.
        """
        saving.check_rule(self, rule)
        saving.save(self.config, rule)
        self._unsaved.pop(rule.name, None)
        self._known[rule.name] = rule

    @property
    def known_rules(self) -> Mapping[str, Rule]:
        """The rules of this process by their names, saved or not."""
        return MappingProxyType(self._known)

    def rule_named(self, name: object) -> Rule:
        """The rule of this name, saved; `ConfigError` where this process has none.

        Takes the rule itself as well.
        """
        wanted = name.name if isinstance(name, Rule) else name
        rule = self._known.get(wanted) if isinstance(wanted, str) else None
        if rule is None:
            names = ", ".join(sorted(self._known)) or "none"
            raise ConfigError(f"no rule is named {wanted!r} in this process, which has {names}")
        if rule.name in self._unsaved:
            self.save_rule(rule)
        return rule

    def save_unsaved(self) -> dict[str, Exception]:
        """Save the rules that were given to the constructor and are not saved yet.

        One that is refused hinders no other; answered are those, each with its error.
        """
        refused: dict[str, Exception] = {}
        for name, rule in list(self._unsaved.items()):
            try:
                self.save_rule(rule)
            except ConfigError as error:
                refused[name] = error
        return refused

    # --- runs -----------------------------------------------------------------------------------------

    def tick(self, *, now: datetime | None = None) -> list[ChainId]:
        """Begin a chain for every rule of this process that has none alive and is not paused.

        One transaction a rule. A chain that gave no sign for two leases is cancelled first. What fails
        at one rule is logged and hinders no other.
        """
        return chains.tick(self, now)

    def run_job(
        self,
        chain_id: ChainId,
        *,
        successor: Successor | None = None,
        seq: int | None = None,
        stopping: Stopping | None = None,
    ) -> JobEnd:
        """Do one page of the chain: `MORE` where another job follows, `ENDED` where none does.

        `BUSY` where another job has the rule: offer it again in seconds. `successor(connection, chain_id,
        seq)` is called for the job that follows, in the transaction that concludes the page. `seq` is
        the number that it was called with: a job that was done already has no effect. `stopping()` is
        asked before every call of a writer: True ends the page there, and the chain too (`YIELDED`) where
        no `successor` takes over. Raises the fault that ended the chain, after it was written.
        """
        return job.run(self, chain_id, successor=successor, seq=seq, stopping=stopping)

    def run_chain(self, chain_id: ChainId, *, stopping: Stopping | None = None) -> ChainEnd:
        """Run the jobs of the chain until it is over, or `stopping()`; raises the fault that ended it.

        >>> from statifier_router.doctest_support import config
        >>> from statifier_router.runs import Changes, Outbound, Policy, Rule, record_change
        >>> from statifier_router.testing.targets import ScriptedTarget, ScriptedWriter
        >>> config, target = config(), ScriptedTarget()
        >>> outbound = Outbound(config, writers={"depot": ScriptedWriter(target)})
        >>> outbound.save_rule(
        ...     Rule(
        ...         "parcels",
        ...         entity="parcel",
        ...         source=Changes("parcel"),
        ...         target="depot",
        ...         driver="depot",
        ...         policy=Policy.UPSERT,
        ...     )
        ... )
        >>> _ = record_change(config, "parcel", "P7", {"state": "held"})
        >>> [outbound.run_chain(chain_id).name for chain_id in outbound.tick()]
        ['COMPLETED']
        >>> [held.payload for held in target.copies("P7")]
        [{'state': 'held'}]
        """
        return chains.run(self, chain_id, stopping=stopping)

    def work(
        self, *, every: timedelta | float, stop: threading.Event | None = None, pause: Pause | None = None
    ) -> bool:
        """At every interval begin a chain for each rule and run it, until `stop` is set.

        A rule that fails is logged, and the next one is run; answers whether anything failed. `every` is
        a `timedelta` or seconds. `pause` waits so many seconds in the place of `stop.wait`. `stop` is
        heeded after the record in hand. One rule runs after the other: a slow one holds the others up for
        `tick_interval` at most, and by the time of the calls in hand.
        """
        return working.work(self, every=every, stop=stop, pause=pause)


def _checked_writers(writers: object) -> dict[str, Writer]:
    if not isinstance(writers, Mapping):
        raise ConfigError(f"writers must be a mapping from driver to writer, not {type(writers).__name__}")
    for driver, writer in writers.items():
        checked(driver, "a driver in writers", ConfigError, limit=NAME_LIMIT)
        if writer is None or isinstance(writer, type):
            raise ConfigError(f"writers[{driver!r}] must be a writer, an object with verbs, not {writer!r}")
        traits = getattr(writer, "traits", None)
        if traits is not None and not isinstance(traits, WriterTraits):
            raise ConfigError(
                f"writers[{driver!r}].traits must be a WriterTraits, not {type(traits).__name__}"
            )
    return dict(writers)


def _positive(value: object, field: str) -> timedelta:
    if not isinstance(value, timedelta) or not timedelta(0) < value <= LONGEST:
        raise ConfigError(
            f"{field} must be a positive timedelta of at most {LONGEST.days:,} days, not {value!r}"
        )
    return value


def _owner() -> str:
    """A name that an operator can place; what tells two jobs apart is the lease's token."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{secrets.token_hex(4)}"
