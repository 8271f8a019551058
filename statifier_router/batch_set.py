"""The set form of a batch, on PostgreSQL: one statement a table, the steps in memory between.

Claims, then addresses, then executions are locked, each in sorted order, which is the order of a
single delivery: batches, and deliveries beside them, never wait for each other in a circle. Then every
item is walked as a delivery of its own is, over the rows in memory, in the order of the items; an item
that fails leaves no trace there. At the end everything is written.

Whatever does not fit raises `Undone`: the caller undoes the attempt and goes item by item.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import define, field, frozen

from statifier_router import arrays as columns
from statifier_router import batch_statements as statements
from statifier_router import batch_writes, deferral_table, delivery, dialect
from statifier_router.addresses import FRESH_LEVELS
from statifier_router.ambient import Frame, Place
from statifier_router.batch_acts import ClaimKey, Held, Known, SetActs, claim_of, place_of
from statifier_router.batch_effects import give_up
from statifier_router.config import Config
from statifier_router.errors import DeliveryError
from statifier_router.executions import rows
from statifier_router.executor import Execution
from statifier_router.judging import Judgement, Settled
from statifier_router.outcomes import Outcome
from statifier_router.savepoints import travels
from statifier_router.sends import Sending
from statifier_router.tasks import Task


@frozen
class Answer:
    """What became of one item: its outcomes in order, and the fault that ended it, if one did."""

    outcomes: list[Outcome]
    error: DeliveryError | None = None


@frozen
class Judged:
    """One item with everything that is known of it before the transaction.

    `name` is how the caller finds it again. `minted` keeps the ids that earlier tries minted for it.
    """

    name: str
    judgements: Sequence[Judgement]
    minted: dict[tuple[str, ...], str] = field(factory=dict)

    @property
    def tasks(self) -> Iterator[Task]:
        """The deliveries among the judgements."""
        return (each for each in self.judgements if isinstance(each, Task))


def fits(tasks: Sequence[Task]) -> bool:
    """Whether these deliveries can be tried as a set; too few are not worth its statements."""
    return len(tasks) >= FEWEST and not any(task.unmatched or task.missing for task in tasks)


FEWEST = 3


def deliver(config: Config, frame: Frame, items: Sequence[Judged], *, sending: Sending) -> list[Answer]:
    """Deliver the items in the transaction of `frame`, whose owner undoes everything where it raises.

    Raises `Undone`, and what a host's own code raised, with a note that names the item.
    """
    own = frame.minted
    try:
        return _Set(config, frame, items, sending).deliver()
    finally:
        frame.minted = own


@define
class _Set:
    config: Config
    frame: Frame
    items: Sequence[Judged]
    sending: Sending
    known: Known = field(factory=Known)
    # As the table has it by now, and whether the row is the batch's own.
    _stored: dict[ClaimKey, tuple[Held, bool]] = field(factory=dict)
    _loaded: dict[str, Execution] = field(factory=dict)

    def deliver(self) -> list[Answer]:
        taken = self._claim()
        self._find(taken)
        self._lock()
        answers = [self._walk(item) for item in self.items]
        self._settle_claims()
        batch_writes.write(self.frame.connection, self.config.schema, self.known, self._loaded)
        if not dialect.still_open(self.frame.connection):
            give_up()
        return answers

    # --- Reading, under locks ---------------------------------------------------------------------

    def _claim(self) -> list[tuple[Judged, Task]]:
        """Take the claims; answers the first delivery of each that was free."""
        first: dict[ClaimKey, tuple[Judged, Task]] = {}
        for item in self.items:
            for task in item.tasks:
                first.setdefault(claim_of(task), (item, task))
        keys = sorted(first)
        claims = [first[key][1].claim for key in keys]
        values = columns.keyed(keys, statements.CLAIM) | {
            "digest": columns.array([claim.digest for claim in claims]),
            "expires_at": columns.array([claim.expires_at for claim in claims]),
            "earliest": min(task.now for item in self.items for task in item.tasks),
        }
        bound = self.frame.lock_timeout
        if bound is not None:
            values["lock_timeout"] = dialect.lock_timeout_setting(bound)
        taking = statements.claimed(self.config.schema, bounded=bound is not None)
        for *key, is_new in taking.rows(self.frame.connection, values):
            claim = first[_key(key)][1].claim
            self.known.claims[_key(key)] = None
            self._stored[_key(key)] = (Held(claim.digest, claim.expires_at), is_new)
        self._read_claims([key for key in keys if key not in self._stored])
        return [each for key, each in first.items() if self.known.claims[key] is None]

    def _read_claims(self, keys: list[ClaimKey]) -> None:
        """What was taken before; an instant of an item between two others may find it expired."""
        if not keys:
            return
        reading = statements.standing(self.config.schema)
        for *key, digest, expires_at in reading.rows(
            self.frame.connection, columns.keyed(keys, statements.CLAIM)
        ):
            held = Held(digest, expires_at)
            self.known.claims[_key(key)] = held
            self._stored[_key(key)] = (held, False)

    def _find(self, taken: Sequence[tuple[Judged, Task]]) -> None:
        """Find the addresses, and insert those that are absent and may be created."""
        wanted: dict[Place, tuple[Judged, Task] | None] = {}
        for item, task in taken:
            if task.create == "if_absent":
                wanted[place_of(task)] = wanted.get(place_of(task)) or (item, task)
            elif task.create == "never":
                wanted.setdefault(place_of(task), None)
        self.known.places = self._read_places(sorted(wanted))
        absent = {
            place: each
            for place, each in wanted.items()
            if each is not None and self.known.places[place] is None
        }
        if absent:
            self._add(absent)

    def _read_places(self, places: Sequence[Place]) -> dict[Place, str | None]:
        if not places:
            return {}
        reading = statements.found(self.config.schema)
        found: dict[Place, str | None] = {}
        for nth, execution_id, isolation in reading.rows(
            self.frame.connection, columns.keyed(places, statements.PLACE)
        ):
            if isolation not in FRESH_LEVELS:
                # A stricter transaction does not see what it raced with: each delivery tells that.
                give_up()
            found[places[nth - 1]] = execution_id
        return found

    def _add(self, absent: dict[Place, tuple[Judged, Task]]) -> None:
        minted: dict[Place, str] = {}
        for place, (item, task) in absent.items():
            self.frame.minted = item.minted
            minted[place] = delivery.minted(self.config, self.frame, task)
        places = sorted(minted)
        values = columns.keyed(places, statements.PLACE) | {
            "execution_id": columns.array([minted[place] for place in places]),
            "inserted_at": columns.array([absent[place][1].now for place in places]),
        }
        added = statements.added(self.config.schema).rows(self.frame.connection, values)
        inserted = {execution_id for (execution_id,) in added}
        self.known.added = {place: each for place, each in minted.items() if each in inserted}
        lost = [place for place in places if minted[place] not in inserted]
        for place, execution_id in self._read_places(lost).items():
            if execution_id is None:
                # Reaped in this very instant.
                give_up()
            self.known.places[place] = execution_id
        kept = [place for place in places if self.config.keeps_missing(place[1])]
        if kept:
            self._check_kept(kept)

    def _check_kept(self, places: list[Place]) -> None:
        """Give up where events are kept by these addresses; none can be kept there any more."""
        numbers = sorted(deferral_table.lock_number(self.config.tables, *place) for place in places)
        own = self.frame.connection
        statements.places_locked().rows(own, {"number": columns.array(numbers)})
        if statements.kept(self.config.schema).rows(own, columns.keyed(places, statements.PLACE)):
            give_up()

    def _lock(self) -> None:
        """Lock and read the executions that were found."""
        ids = sorted({each for each in self.known.places.values() if each is not None})
        if not ids:
            return
        reading = statements.locked(self.config.schema)
        found = reading.rows(self.frame.connection, {"ids": columns.array(ids)})
        self._loaded = {execution.id: execution for execution in map(rows.from_row, found)}
        self.known.executions = {each: self._loaded.get(each) for each in ids}
        # While it waited, an address may have been reaped, and given anew.
        ended = [place for place, each in self.known.places.items() if each and self._has_ended(each)]
        if any(self.known.places[place] != each for place, each in self._read_places(ended).items()):
            give_up()

    def _has_ended(self, execution_id: str) -> bool:
        execution = self._loaded.get(execution_id)
        return execution is not None and execution.terminal

    # --- The items --------------------------------------------------------------------------------

    def _walk(self, item: Judged) -> Answer:
        self.frame.minted = item.minted
        outcomes: list[Outcome] = []
        for judgement in item.judgements:
            if isinstance(judgement, Settled):
                if judgement.entry is not None:
                    self.known.ledger.append(judgement.entry)
                if judgement.outcome is not None:
                    outcomes.append(judgement.outcome)
                continue
            try:
                outcomes.append(self._deliver(judgement))
            except DeliveryError as error:
                if travels(error):
                    raise
                error.outcomes = tuple(outcomes)
                return Answer(outcomes, error)
            except Exception as error:
                error.add_note(f"statifier_router: raised at {item.name}; nothing of the batch was written")
                raise
        return Answer(outcomes)

    def _deliver(self, task: Task) -> Outcome:
        executor = self.sending.executor
        acts = SetActs(self.config, self.frame, executor, task, known=self.known, sending=self.sending)
        try:
            outcome = delivery.walk(self.config, self.frame, task, acts, executor, acts.outgoing_for)
        except DeliveryError as error:
            if error.binding_id is None:
                error.binding_id = task.binding_id
            raise
        acts.keep()
        return outcome

    # --- Afterwards -------------------------------------------------------------------------------

    def _settle_claims(self) -> None:
        """Give back the claims of deliveries that failed, or were never made because an earlier one did."""
        free = []
        for key, (stored, is_new) in self._stored.items():
            held = self.known.claims[key]
            if held is None and is_new:
                free.append(key)
            elif held != stored:
                # Another delivery of the batch holds it; or it stood before, expired, and is to stand again.
                give_up()
        if free:
            statements.unclaim(self.config.schema).count(
                self.frame.connection, columns.keyed(free, statements.CLAIM)
            )


def _key(columns: list[str]) -> ClaimKey:
    binding_id, scope, message_id = columns
    return binding_id, scope, message_id
