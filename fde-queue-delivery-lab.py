#!/usr/bin/env python3
"""Queue delivery lab: one job, one queue, four ways in which workers treat it, and what is left.

Parts 1 to 4 are the lesson: the queue, apply(), what a worker can do, and run_case(). Edit them,
and run `demo` again. The parts behind them look on, show, ask, search and test.
"""

import sys

if sys.version_info < (3, 11):
    print(
        "This lab needs Python 3.11 or later; this is Python "
        + ".".join(str(number) for number in sys.version_info[:3])
        + ". Get a newer one from https://www.python.org/downloads/",
        file=sys.stderr,
    )
    sys.exit(2)

import os

if __name__ == "__main__" and sys.path[:1] == [os.path.dirname(os.path.abspath(__file__))]:
    del sys.path[0]  # a copy of this file may be named like a module: copy.py, queue.py

try:
    import sqlite3
except ImportError:
    print(
        "This lab needs Python's module sqlite3, and this Python was built without it."
        " Get one that has it from https://www.python.org/downloads/",
        file=sys.stderr,
    )
    sys.exit(2)

import argparse
import functools
import heapq
import io
import re
import shutil
import signal
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from errno import EINVAL
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

TENANT = "north"
LEASE = 5  # ticks
Database = str | os.PathLike[str]


# == 1. The queue: it delivers messages, and knows nothing of what a worker does with them =========
class StaleReceipt(Exception):
    """The queue refused a delivery receipt: it is not, or no longer, good for its message."""

    def __init__(self, receipt: str, kind: str) -> None:
        super().__init__(f"stale_receipt, {kind}: {receipt!r}")
        self.receipt = receipt
        self.kind = kind  # unknown, superseded, already settled or lapsed


class Delivery(NamedTuple):
    """One handing-over of a message to a worker."""

    receipt: str  # the delivery receipt: new for every delivery, needed to acknowledge it
    message_id: int  # the same for every delivery of one message
    body: Any
    attempt: int  # 1 for the first delivery of the message, then 2, 3, ...
    expires_at: int  # the first tick at which the message may be delivered again


class Message:
    """What the queue keeps of one message."""

    def __init__(self, body: Any, sent_at: int) -> None:
        self.body = body
        self.sent_at = sent_at
        self.deliveries: list[Delivery] = []
        self.settled = False

    def available_at(self) -> int:
        """The tick from which it may be delivered, as long as it is not settled."""
        return self.deliveries[-1].expires_at if self.deliveries else self.sent_at


class Queue:
    """A teaching queue in memory. Time is the tick that the caller names; nothing sleeps.

    A delivered message is leased to its worker for `lease` ticks. Acknowledged in time, it is
    settled for good. Otherwise the lease ends by itself and the message is ready again: from a
    worker's silence a queue cannot tell whether the work was done.

    Ticks given to one queue must never run back. `lease` under 1 tick raises ValueError.
    """

    def __init__(self, lease: int = LEASE) -> None:
        if lease < 1:
            raise ValueError(f"lease must be at least 1 tick, not {lease}")
        self.lease = lease
        self.messages: dict[int, Message] = {}  # by message id
        self._message_ids: dict[str, int] = {}  # by delivery receipt
        self._waiting: list[tuple[int, int]] = []  # heap of (available from tick, message id)

    def send(self, body: Any, *, now: int = 0) -> int:
        """Take in a message, ready from tick `now` on. Returns its message id."""
        message_id = len(self.messages) + 1
        self.messages[message_id] = Message(body, now)
        heapq.heappush(self._waiting, (now, message_id))
        return message_id

    def receive(self, *, now: int) -> Delivery | None:
        """Deliver the message that has been available longest (of equals, the one sent first).

        It is in flight for `lease` ticks from tick `now` on. Returns None, and changes nothing,
        when no message is ready.
        """
        while self._waiting and self._waiting[0][0] <= now:
            tick, message_id = heapq.heappop(self._waiting)
            message = self.messages[message_id]
            if message.settled or message.available_at() != tick:
                continue  # it was acknowledged, or its lease extended, while it was in flight
            receipt = f"delivery-{len(self._message_ids) + 1}"
            delivery = Delivery(
                receipt=receipt,
                message_id=message_id,
                body=message.body,
                attempt=len(message.deliveries) + 1,
                expires_at=now + self.lease,
            )
            message.deliveries.append(delivery)
            self._message_ids[receipt] = message_id
            heapq.heappush(self._waiting, (delivery.expires_at, message_id))
            return delivery
        return None

    def ack(self, receipt: str, *, now: int) -> None:
        """Acknowledge a delivery at tick `now`: its message is settled, never delivered again.

        Raises StaleReceipt, and changes nothing, when `receipt` is unknown, superseded by a newer
        delivery, already settled, or lapsed: the lease has ended. Its `kind` says which.
        """
        self._in_flight(receipt, now).settled = True

    def extend(self, receipt: str, *, now: int) -> int:
        """Renew a lease: it ends `lease` ticks from tick `now`. Returns that tick.

        Raises StaleReceipt, and changes nothing, exactly where ack() would.
        """
        message = self._in_flight(receipt, now)
        message.deliveries[-1] = message.deliveries[-1]._replace(expires_at=now + self.lease)
        heapq.heappush(self._waiting, (message.available_at(), self._message_ids[receipt]))
        return message.available_at()

    def state(self, message_id: int, *, now: int) -> str:
        """Returns "ready", "in_flight" or "settled" as of tick `now`. Unknown id: KeyError."""
        message = self.messages[message_id]
        if message.settled:
            return "settled"
        return "ready" if message.available_at() <= now else "in_flight"

    def _in_flight(self, receipt: str, now: int) -> Message:
        """The message whose current delivery the receipt names, or StaleReceipt."""
        if receipt not in self._message_ids:
            raise StaleReceipt(receipt, "unknown")
        message = self.messages[self._message_ids[receipt]]
        if message.deliveries[-1].receipt != receipt:
            raise StaleReceipt(receipt, "superseded")
        if message.settled:
            raise StaleReceipt(receipt, "already settled")
        if now >= message.available_at():
            raise StaleReceipt(receipt, "lapsed")
        return message


# == 2. The database: where the work itself is kept, and the effect receipt that proves it =========
class OperationConflict(Exception):
    """A used operation key came with different work. Nothing was written."""


class Applied(NamedTuple):
    """What apply() did."""

    status: str  # "created" a draft, or "reused" the one recorded before
    draft_id: int


@contextmanager
def connect(database: Database, wait: float = 30) -> Iterator[sqlite3.Connection]:
    """A connection that waits for others, `wait` seconds at most. Closed without a COMMIT, it
    leaves the database as it was."""
    connection = sqlite3.connect(os.path.abspath(database), timeout=wait, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        yield connection
    finally:
        connection.close()


def create_database(path: Database) -> None:
    """Make the file and its two tables; what exists already stays as it is.

    A draft is the effect; an effect receipt proves the draft of one (tenant, operation).
    """
    with connect(path) as db:
        db.executescript("""
            BEGIN IMMEDIATE;
            CREATE TABLE IF NOT EXISTS drafts (
                id INTEGER PRIMARY KEY AUTOINCREMENT, -- a number is never given away again
                tenant TEXT NOT NULL,
                operation TEXT NOT NULL,
                payload TEXT NOT NULL
            );
            CREATE TABLE IF NOT EXISTS receipts (
                tenant TEXT NOT NULL,
                operation TEXT NOT NULL,
                payload TEXT NOT NULL,
                draft_id INTEGER NOT NULL REFERENCES drafts (id),
                PRIMARY KEY (tenant, operation) -- of one operation key there is one at most
            );
            COMMIT;
        """)


def apply(
    database: Database, *, tenant: str, operation: str, payload: str, reuse: bool = True
) -> Applied:
    """Write the draft `payload` for the operation key (tenant, operation), as one worker would.

    The two moments of a job done the safe way, and the gap between them:

        queue                      worker                     database
          |                           |                           |
          |                           |-- draft, effect receipt ->|
          |   1. DATABASE COMMIT      |== COMMIT ================>|  both of them, or neither
          |                           |                           |
          |                           X  stops here: the work is done, the queue cannot know
          |                           |                           |
          |<== ack(delivery receipt) =|   2. ACKNOWLEDGEMENT      |

    With reuse=True, the safe way, it looks for the effect receipt of the key first. None: draft
    and effect receipt are written in one transaction ("created"). Same payload: nothing is
    written, the recorded draft is returned ("reused"). Another payload: OperationConflict, whose
    text starts with operation_conflict. With reuse=False, the blind way, it writes a draft without
    looking, and no effect receipt.

    TypeError or ValueError names an argument that is not a str, is empty, or cannot be stored,
    before the database is touched; a missing file is a FileNotFoundError. SQLite's own errors
    come through, "locked" among them. Whichever is raised, the database stays as it was.
    """
    _require_text(tenant=tenant, operation=operation, payload=payload)
    os.stat(database)  # a mistyped path is an error: SQLite would make an empty file of it
    with connect(database) as db:
        # From the look to the commit nobody else may write, or two workers could both find no
        # effect receipt. IMMEDIATE makes the second one wait here, before it looks.
        db.execute("BEGIN IMMEDIATE")
        if reuse:
            recorded = db.execute(
                "SELECT payload, draft_id FROM receipts WHERE tenant = ? AND operation = ?",
                (tenant, operation),
            ).fetchone()
            if recorded is not None:
                recorded_payload, recorded_draft = recorded
                if recorded_payload != payload:
                    raise OperationConflict(
                        f"operation_conflict: {tenant} / {operation} stands for other work"
                    )
                return Applied("reused", recorded_draft)
        draft_id: Any = db.execute(
            "INSERT INTO drafts (tenant, operation, payload) VALUES (?, ?, ?)",
            (tenant, operation, payload),
        ).lastrowid
        if reuse:
            db.execute(
                "INSERT INTO receipts (tenant, operation, payload, draft_id) VALUES (?, ?, ?, ?)",
                (tenant, operation, payload, draft_id),
            )
        db.execute("COMMIT")  # all or nothing: after an error above, nothing is ever committed
        return Applied("created", draft_id)


def _require_text(**arguments: str) -> None:
    """TypeError or ValueError names the first argument that is no text, or that SQLite refuses."""
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, not {type(value).__name__}")
        if not value:
            raise ValueError(f"{name} must not be empty")
        if value.encode("utf-8", "ignore").decode("utf-8") != value:
            raise ValueError(f"{name} holds a lone surrogate, which SQLite cannot store")


# == 3. The acts: what a worker can do. Each does the thing, and yields the row that tells of it ===
class Order(NamedTuple):
    """What the producer asks for. A message carries it to the worker."""

    tenant: str
    operation: str
    payload: str

    def key(self) -> tuple[str, str]:
        return self.tenant, self.operation


def act(does: Callable[..., Any]) -> Callable[..., Iterator["Event"]]:
    """Make an act of a worker's method: `yield from` it, and it takes place and is a row.

    Misstep: the worker cannot do that now, and the act has changed nothing. An error that came out
    of apply() has its row, too; in run_case() it is then raised.
    """

    @functools.wraps(does)
    def acted(self: "Worker", *args: Any, **kwargs: Any) -> Iterator["Event"]:
        self.job.permits(self, does.__name__)
        try:
            result = does(self, *args, **kwargs)
        except StaleReceipt as stale:
            result = stale
        yield self.job.row(self.name, does.__name__, result)
        self.job.settle_error(result)

    return acted


class Worker:
    """One worker of a job. To the queue it names a delivery, to the database an order: neither
    of the two ever hears of the other."""

    def __init__(self, name: str, job: "Job") -> None:
        self.name = name
        self.job = job
        self.delivery: Any = None  # its newest, as it was handed over
        self.call: Any = None  # its newest call of apply(), a Call
        self.stopped = False

    @act
    def gets(self) -> Delivery | None:
        """Ask the queue for work."""
        delivery = self.job.queue.receive(now=self.job.now)
        self.delivery = delivery or self.delivery
        return delivery

    @act
    def writes(
        self,
        *,
        tenant: str,
        operation: str,
        payload: str,
        reuse: bool = True,
        statements: int | None = None,
    ) -> Any:
        """Do the work: call apply(). With `statements`, pause inside after so many of its SQL."""

        def work() -> Applied:
            return apply(
                self.job.database,
                tenant=tenant,
                operation=operation,
                payload=payload,
                reuse=reuse,
            )

        self.call = Call(self.job, work, Order(tenant, operation, payload), reuse)
        return self.call.goes_on(statements)

    @act
    def goes_on(self, statements: int | None = None) -> Any:
        """Go on inside apply(), to its end or by so many SQL statements."""
        return self.call.goes_on(statements)

    @act
    def acks(self) -> Any:
        """Acknowledge the newest delivery."""
        self.job.queue.ack(self.delivery.receipt, now=self.job.now)
        return self.delivery

    @act
    def extends(self) -> int:
        """Renew the lease of the newest delivery."""
        return self.job.queue.extend(self.delivery.receipt, now=self.job.now)

    @act
    def stops(self) -> None:
        """Do nothing any more. Inside apply(), what is not committed is undone."""
        self.stopped = True
        if self.call:
            self.call.stop()

    @property
    def refused(self) -> bool:
        """Whether its newest call of apply() ended in OperationConflict."""
        return self.call is not None and self.call.ended == "refused"

    @property
    def failed(self) -> bool:
        """Whether it ended in another error."""
        return self.call is not None and self.call.ended == "failed"


# == 4. The four cases: the story of one job. Edit it, and run the demo again ======================
CASES = ("normal", "duplicate-effect", "reuse-effect", "early-ack")
PLOTS = {  # what the workers do, and nothing of what they find
    "normal": "Worker A writes the safe way: it looks for an effect receipt before it writes. Then"
    " it acknowledges.",
    "duplicate-effect": "Worker A writes blind: it does not look, and leaves no effect receipt. It"
    " stops before it acknowledges. Worker B takes over, writes blind as well, and acknowledges.",
    "reuse-effect": "Worker A writes the safe way, and stops before it acknowledges. Worker B takes"
    " over, writes the safe way as well, and acknowledges.",
    "early-ack": "Worker A acknowledges first, and stops before it writes. Worker B asks for work"
    " later.",
}


def run_case(case: str, database: Database) -> Iterator["Event"]:
    """Play one of CASES over the file `database`: yields an Event for each act, in order.

    ValueError: no such story, or LEASE under 3 ticks. Misstep: an act that cannot be done, or a
    change beside the acts. Errors of apply() other than a conflict come through.
    """
    if case not in PLOTS:
        raise ValueError(f"no story is told of a case named {case!r}")
    if LEASE < 3:
        raise ValueError(f"LEASE is {LEASE}: the cases need at least 3 ticks")
    safe = case != "duplicate-effect"
    create_database(database)
    with Job(case, database) as job:
        worker_a = job.worker("worker A")
        worker_b = job.worker("worker B")

        # The message carries the whole order. A real worker would read it there; here the two
        # calls below spell it out once more, for you to change.
        yield from job.sends(Order(TENANT, "J-12:draft:v1", "replace the pump seal"))

        # First delivery.
        yield from worker_a.gets()
        yield from job.tick(1)
        if case == "early-ack":  # worker A acknowledges first, and stops before it writes
            yield from worker_a.acks()
            yield from job.tick(2)
            yield from worker_a.stops()
            yield from job.tick(LEASE)
            yield from worker_b.gets()
            return
        yield from worker_a.writes(
            tenant=TENANT,
            operation="J-12:draft:v1",
            payload="replace the pump seal",
            reuse=safe,
        )
        yield from job.tick(2)
        if case == "normal":
            yield from worker_a.acks()
            return

        # Worker A stops after its database commit and before its acknowledgement: the queue
        # notices nothing but silence, until the lease ends.
        yield from worker_a.stops()
        yield from job.tick(LEASE - 1)
        yield from worker_b.gets()
        yield from job.tick(LEASE)

        # Second delivery. Worker B knows nothing of worker A.
        yield from worker_b.gets()
        yield from job.tick(LEASE + 1)
        yield from worker_b.writes(
            tenant=TENANT,
            operation="J-12:draft:v1",  # EDIT POINT 1: write "J-12:draft:v2"
            payload="replace the pump seal",  # EDIT POINT 2: write "different draft"
            reuse=safe,
        )
        if worker_b.refused:  # not to be acknowledged: the work is not done
            return
        yield from job.tick(LEASE + 2)
        yield from worker_b.acks()


# == 5. The job: it makes a row of each act, of what took place and of nothing else ================
LAST_TICK = 999_999  # that a story can name


class Misstep(Exception):
    """Why the play cannot go on, and for a story the way out.

    An act that cannot be done now (then it has changed nothing), or something without a row.
    """

    def __init__(self, why: str, way_out: str = "") -> None:
        super().__init__(why)
        self.way_out = way_out


class Saved(NamedTuple):
    """What is saved: a draft, or an effect receipt (with the number of the draft it proves)."""

    draft_id: int
    tenant: str
    operation: str
    payload: str

    def key(self) -> tuple[str, str]:
        return self.tenant, self.operation


class Committed(NamedTuple):
    """What anybody can read in the database by now."""

    drafts: tuple[Saved, ...]
    receipts: tuple[Saved, ...]  # effect receipts

    def receipt_of(self, key: tuple[str, str]) -> Saved | None:
        return next((receipt for receipt in self.receipts if receipt.key() == key), None)


class Line(NamedTuple):
    """A line of a row, and how the picture draws it: see WAYS."""

    text: str
    way: str = "here"


class Event(NamedTuple):
    """A row: one act, what came of it, and what anybody could read right after it."""

    job: "Job"
    case: str
    step: int  # 1, 2, ...
    tick: int
    actor: str
    tried: str  # what the actor does, whatever comes of it
    action: str  # the first that applies of what came of it
    lines: tuple[Line, ...]  # all that came of it
    message: str  # the message's state: ready, in_flight or settled
    deliveries: int  # of the message so far
    drafts: int  # saved so far
    receipts: int  # effect receipts (never delivery receipts) saved so far
    saved: Committed  # the same, one by one
    available_at: int  # the tick from which the message may be delivered, unless it is settled
    tenant: str | None = None  # this and the next two as handed to apply()
    operation: str | None = None
    payload: str | None = None
    seen: "Seen | None" = None  # of the call of apply()

    @property
    def detail(self) -> str:
        return "; ".join(line.text for line in self.lines)

    @property
    def conclusion(self) -> str | None:
        """The word of it, on the last row of a case that has come to its end."""
        is_last = self.job.over and self.step == len(self.job.events)
        return conclude(self.job).word if is_last else None


class Job:
    """One message and its workers, on a queue and a database; what their acts come to, row by row.

    In a `story` nothing can change beside the acts, and an error that comes out of apply() is a
    row and no more. Otherwise, in run_case(), each act looks whether queue and database are as the
    row before it left them, and so does the end of the `with` block.
    """

    def __init__(self, case: str, database: Database, *, story: bool = False) -> None:
        self.case = case
        self.database = database
        self.story = story
        self.queue = Queue(LEASE)
        self.now = 0
        self.message_id = 0  # none is sent
        self.order = Order("", "", "")  # which the message carries
        self.workers: dict[str, Worker] = {}
        self.events: list[Event] = []
        self.left_out: list[Step] = []  # the steps of workers that failed
        self.saved = committed(database)
        self.over = False  # it came to its end, without an error
        self._known = self._state()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()
        if kind is None:
            self._check_queue()
            self.check_database()
            self.over = True

    def close(self) -> None:
        """End what is still inside apply()."""
        for worker in self.workers.values():
            if worker.call:
                worker.call.stop()

    def worker(self, name: str) -> Worker:
        """The worker of that name: the same one each time."""
        return self.workers.setdefault(name, Worker(name, self))

    def sends(self, order: Order) -> Iterator[Event]:
        """The producer sends the message. A case follows one."""
        self._check_queue()
        if self.message_id:
            raise Misstep("the message is sent already, and a case follows one message")
        if not isinstance(order, Order):
            raise TypeError(f"a message carries an Order, not {type(order).__name__}")
        _require_text(**order._asdict())
        self.message_id = self.queue.send(order, now=self.now)
        self.order = order
        yield self.row("producer", "sends", order)

    def tick(self, now: int) -> Iterator[Event]:
        """Go on to tick `now`. A row stands only where a lease ends on the way."""
        self._check_queue()
        if not isinstance(now, int):
            raise Misstep(f"a tick is a whole number, not {now!r}")
        if now < self.now:
            raise Misstep(
                f"it is tick {self.now} already, and ticks never run back",
                f"write the tick to go on to, not how many more, such as tick {self.now + now}",
            )
        if self.state() == "in_flight" and self.available_at() <= now:
            self.now = self.available_at()
            yield self.row("time", "tick", None)
        self.now = now
        self._known = self._state()

    def state(self) -> str:
        """The message's; before it is sent there is none."""
        return self.queue.state(self.message_id, now=self.now) if self.message_id else ""

    def available_at(self) -> int:
        """The tick from which the message may be delivered, as long as it is not settled."""
        return self.queue.messages[self.message_id].available_at()

    def inside(self) -> list[Worker]:
        """The workers that are inside apply()."""
        return [w for w in self.workers.values() if w.call and not w.call.ended]

    def permits(self, worker: Worker, verb: str) -> None:
        """Misstep: the worker cannot do that now."""
        self._check_queue()
        letter = str(worker.name)[-1:]
        if not self.message_id:
            raise Misstep("no message is sent yet: job.sends() comes first")
        if worker.stopped:
            raise Misstep(
                f"{worker.name} has stopped: it does nothing any more", "let another worker go on"
            )
        if worker.failed:
            raise Misstep(f"{worker.name} has failed: it does nothing any more")
        entry = VERBS[verb]
        if entry.delivery and worker.delivery is None:
            raise self._no_delivery(worker)
        if entry.inside is None or entry.inside == (worker in self.inside()):
            return
        if entry.inside:
            why = f"{worker.name} is not inside apply()"
            raise Misstep(why, f"put a step such as {letter} writes 3 statements before it")
        why = f"{worker.name} is inside apply()"
        raise Misstep(why, f"put {letter} goes on or {letter} stops before it")

    def _no_delivery(self, worker: Worker) -> Misstep:
        why = f"{worker.name} has no delivery: it never asked for one"
        for event in self.events:
            if event.actor == worker.name:
                why = f"{worker.name} has no delivery: at tick {event.tick} it {event.detail}"
        gets = f"{str(worker.name)[-1:]} gets before it"
        if self.state() == "settled" or self.available_at() > LAST_TICK:
            return Misstep(why, "nobody gets one any more: leave this step out")
        if self.state() == "in_flight":
            gets = f"tick {self.available_at()}; {gets}"
        return Misstep(why, f"put {gets}")

    def row(self, actor: str, verb: str, result: Any) -> Event:
        """Make and keep the row of an act that took place just now, and of what came of it."""
        seen = result if isinstance(result, Seen) else None
        if not seen:  # a call of apply() has read back what it committed
            self.check_database()
        action, lines = VERBS[verb].tell(self, actor, result)
        event = Event(
            job=self,
            case=self.case,
            step=len(self.events) + 1,
            tick=self.now,
            actor=actor,
            tried=seen.in_full(VERBS[verb].tried) if seen else VERBS[verb].tried,
            action=action,
            lines=tuple(lines),
            message=self.state(),
            deliveries=len(self.queue.messages[self.message_id].deliveries),
            drafts=len(self.saved.drafts),
            receipts=len(self.saved.receipts),
            saved=self.saved,
            available_at=self.available_at(),
            seen=seen,
            **(seen.order._asdict() if seen else {}),
        )
        self.events.append(event)
        self._known = self._state()
        return event

    def settle_error(self, result: object) -> None:
        """Of a call of apply() that failed: in run_case() raise its error, in a story let it go."""
        if isinstance(result, Seen) and result.ended == "failed" and result.error:
            if not self.story:
                raise result.error
            result.error.__traceback__ = None  # it would hold SQLite's cursors, and their locks

    def read(self) -> Committed:
        """What is committed. Where a worker inside apply() keeps readers out, nobody else can
        commit: it is as it was."""
        try:
            return committed(self.database)
        except sqlite3.OperationalError as error:
            if not is_locked(error) or not self.inside():
                raise
            return self.saved

    def check_database(self) -> None:
        """Misstep: something was committed beside the acts."""
        if not self.story and self.read() != self.saved:
            raise Misstep(UNTOLD)

    def _check_queue(self) -> None:
        """Misstep: something else changed beside the acts."""
        if not self.story and self._state() != self._known:
            raise Misstep(UNTOLD)

    def _state(self) -> object:
        """All but the database: what only acts may change."""
        messages = [(list(m.deliveries), m.settled) for m in self.queue.messages.values()]
        workers = self.workers.items()
        delivered = [(name, worker.delivery) for name, worker in workers if worker.delivery]
        renamed = [name for name, worker in workers if worker.name != name]
        return messages, delivered, renamed, self.now, self.order, self.message_id


UNTOLD = (
    "something changed and no row tells of it: whatever takes place is an act, such as yield from"
    " worker_b.acks()"
)


def committed(database: Database) -> Committed:
    """What is committed in the database, read through a new connection, which waits for nobody."""
    os.stat(database)  # SQLite would make a file that is missing
    with connect(database, wait=0) as db:
        return saved_in(db.execute)


def saved_in(execute: Callable[[str], Any]) -> Committed:
    """What a connection finds in the two tables."""
    drafts = execute("SELECT id, tenant, operation, payload FROM drafts ORDER BY id")
    receipts = execute(
        "SELECT draft_id, tenant, operation, payload FROM receipts"
        " ORDER BY draft_id, tenant, operation"
    )
    return Committed(tuple(map(Saved._make, drafts)), tuple(map(Saved._make, receipts)))


def is_locked(error: BaseException | None) -> bool:
    """Whether SQLite refused as locked."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY  # its upper bits tell kinds of it apart


def in_words(key: tuple[object, object]) -> str:
    return f"{key[0]} / {key[1]}"


# == 6. Inside apply(): the SQL that SQLite is given, what comes back, and what is committed =======
class Stopped(BaseException):
    """Ends a call of apply() whose worker has stopped, at whatever it wants of SQLite next."""


class Statement(NamedTuple):
    """An SQL statement that ran, or that SQLite refused."""

    number: int  # 1, 2, ... in its call of apply()
    sql: str
    values: str  # this and the next tell points of a search apart
    before: Committed  # what was committed when it ran
    error: str  # why it was refused, else ""


class Look(NamedTuple):
    """What a SELECT in `receipts` or `drafts` came to, beside what was there to find."""

    finds: bool  # or else it misses what is there
    what: str
    draft_id: int = 0  # of the committed draft, or effect receipt's draft, that it found
    receipt: bool = False  # it found the committed effect receipt of its operation key


class Commit(NamedTuple):
    """What was committed before and after a commit."""

    before: Committed
    after: Committed


WRITES = "writes"  # then it is told in which way


class Seen(NamedTuple):
    """What was seen of a call of apply() in one step of it."""

    order: Order
    reuse: bool
    statements: int | None  # as many were to run in this step; None: all
    earlier: tuple[Any, ...]  # Statement, Look and Commit of earlier steps
    now: tuple[Any, ...]  # of this step
    next: str  # the statement before which it pauses or waits, with its number
    holder: str  # the worker whose lock it waits for
    ended: str  # returned, refused, failed or stopped; "" while it is inside
    wrote: bool  # whether a statement changed anything, committed or not
    error: BaseException | None  # that came out
    at_once: str  # why it did not wait, where SQLite refused it as locked

    def in_full(self, tried: str) -> str:
        """What the worker does, in what way and how far."""
        if tried == WRITES:
            tried += " the safe way" if self.reuse else " blind"
        return tried if self.statements is None else f"{tried}, {number_of(self.statements)}"

    def of(self, kind: type) -> list[Any]:
        """The things of one kind so far: statements, looks or commits."""
        return [thing for thing in self.earlier + self.now if isinstance(thing, kind)]


def number_of(statements: int) -> str:
    return f"{statements} statement{'s' if statements != 1 else ''}"


class Call:
    """One call of apply(), which can be stopped before each SQL statement.

    While a step of it runs, sqlite3.connect() makes connections that report to it. Of all workers
    one runs at a time. A call that is to run to its end, while nobody else is inside apply(), runs
    in the caller's thread; any other in a thread of its own, which goes on when it is told to.
    """

    def __init__(self, job: Job, work: Callable[[], Any], order: Order, reuse: bool) -> None:
        self.job = job
        self.order = order
        self.ended = ""
        self.error: BaseException | None = None
        self.seen: list[Any] = []  # Statement, Look and Commit, in order
        self.next = ""
        self.connections: list[Connection] = []
        self.cursors: weakref.WeakSet[Cursor] = weakref.WeakSet()  # that apply() still holds
        self.lab_reads = False  # right now, on behalf of this call
        self._work = work
        self._reuse = reuse
        self._holder = ""
        self._at_once = ""
        self._stopped = False
        self._may_run = 0.0  # statements that it may still run in this step
        self._thread: threading.Thread | None = None
        self._parked = False  # it waits, and runs nothing
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)

    def goes_on(self, statements: int | None) -> Seen:
        """Run so many statements, or to the end. Returns what was seen."""
        self.job.check_database()
        earlier = len(self.seen)
        self._may_run = float("inf") if statements is None else statements
        alone = [worker.call for worker in self.job.inside()] == [self]
        with watched(self):
            if self._thread:
                self._parked = False
                self._go.release()
                self._wait()
            elif alone and statements is None:
                self._run()
            else:
                with SIGNALS.held():  # or one could come between the two
                    thread = threading.Thread(target=self._run_in_thread, daemon=True)
                    thread.start()
                    self._thread = thread
                self._wait()
        return Seen(
            order=self.order,
            reuse=self._reuse,
            statements=statements,
            earlier=tuple(self.seen[:earlier]),
            now=tuple(self.seen[earlier:]),
            next=self.next,
            holder=self._holder,
            ended=self.ended,
            wrote=any(connection.wrote for connection in self.connections),
            error=self.error,
            at_once=self._at_once,
        )

    def stop(self) -> None:
        """End it: it hands SQLite nothing more, and what it did not commit is undone."""
        if self.ended or not self._thread:
            return
        with watched(self):
            self._stopped = True
            if self._parked or self._back.acquire(timeout=PATIENCE):
                self._close()  # not while it runs: SQLite would not bear that
            self._go.release()
            self._thread.join(PATIENCE)
            self.ended = "stopped"

    def statement(self, cursor: "Cursor", sql: str, values: Any, run: Callable[[], Any]) -> Any:
        """Run a statement, when this call may, and note what it came to."""
        connection = cursor.connection
        text = " ".join(without_comment(sql).split())
        number = 1 + sum(isinstance(thing, Statement) for thing in self.seen)
        self.next = f"{number}: {text}"
        if any(other.unread for other in self.connections):
            self._notice()  # what was committed by other means than a statement
        self._pause()
        statement = Statement(
            number=number,
            sql=text,
            values=repr(values),
            before=self.job.saved,
            error="",
        )
        try:
            result = self._run_or_wait(connection, text, run)
        except Exception as error:
            self.seen.append(statement._replace(error=error_text(error)))
            connection.note(text, refused=is_locked(error))
            self._notice()
            raise
        self.next = ""
        self.seen.append(statement)
        connection.note(text, refused=False)
        if is_look(text):
            self._look(connection, sql, values)
        if connection.unread and not connection.is_open():
            self._notice()
        connection.unread = False
        return result

    def _run_or_wait(self, connection: "Connection", sql: str, run: Callable[[], Any]) -> Any:
        """Run a statement. While it has to wait for a lock, others go on."""
        self._at_once = ""
        while True:
            try:
                return run()
            except sqlite3.OperationalError as error:
                if not is_locked(error):
                    raise
                holder = self._others_lock()
                self._at_once = self._why_not_wait(connection, sql, holder)
                if self._at_once or not holder:
                    raise
                self._holder = holder
            self._hand_over()
            self._may_run -= 1

    def _look(self, connection: "Connection", sql: str, values: Any) -> None:
        """Run a SELECT once more, beside the call, to see what came back."""
        found = any(any(row) for row in connection.answer(sql, values))
        there = saved_in(connection.answer)
        self.seen.append(what_a_look_found(sql, found, self.order, there, self.job.saved))

    def lock(self) -> int:
        """The strongest that its transactions hold."""
        return max((c.lock for c in self.connections if c.is_open()), default=NO_LOCK)

    def is_left_behind(self) -> bool:
        """Whether its thread did not end when it was stopped."""
        return self._stopped and self._thread is not None and self._thread.is_alive()

    def refuse_if_stopped(self) -> None:
        if self._stopped:
            raise Stopped

    def _run_in_thread(self) -> None:
        try:
            self._run()
        finally:
            self._back.release()

    def _run(self) -> None:
        WATCHED.call = self
        ended = "failed"
        try:
            try:
                self._work()
            finally:
                self._close()
                if not self._stopped:
                    self._notice()
            ended = "returned"
        except OperationConflict as error:
            ended = "refused"
            self.error = error
        except Stopped:
            ended = "stopped"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not self._thread:
                raise  # meant for the lab, and not an error of apply()
            self.error = error
            if is_locked(error) and not self._at_once and self._others_lock():
                self._at_once = "cannot wait: only what goes through execute() can, in this lab"
        finally:
            WATCHED.call = None
            self.next = ""
            self.ended = ended

    def _wait(self) -> None:
        while not self._back.acquire(timeout=1):  # seconds, so that Windows hears a Ctrl-C
            pass
        self._parked = True

    def _pause(self) -> None:
        """Where no statement is left in this step, wait for the next one."""
        self.refuse_if_stopped()
        if self._may_run < 1:
            self._hand_over()
        self._may_run -= 1

    def _hand_over(self) -> None:
        """Let the others go on, until this worker is to go on."""
        self._back.release()
        self._go.acquire()
        self._holder = ""
        self.refuse_if_stopped()

    def _why_not_wait(self, connection: "Connection", sql: str, holder: str) -> str:
        """Why SQLite would not wait for the lock of the worker `holder`; "" where it would."""
        if any(c.lock for c in self.connections if c is not connection and c.is_open()):
            return "cannot wait: the lock is one of its own call"
        if holder and connection.lock and not ends_transaction(sql):
            return f"cannot wait: it has read or written already, and so has {holder}"
        return ""

    def _others_lock(self) -> str:
        """The other worker inside apply() that holds the strongest lock; "" if there is none."""
        others = [worker for worker in self.job.inside() if worker.call is not self]
        locks = {other.name: other.call.lock() for other in others}
        return max(locks, key=lambda name: locks[name], default="")

    def _notice(self) -> None:
        """Read what is committed by now. What is new was committed by this call."""
        before = self.job.saved
        self.lab_reads = True
        try:
            self.job.saved = self.job.read()
        finally:
            self.lab_reads = False
        if self.job.saved != before:
            self.seen.append(Commit(before, self.job.saved))
        for connection in self.connections:
            connection.was_read()

    def _close(self) -> None:
        """Close what the call opened: a cursor that is left holds a lock, even on its own."""
        opened: list[Any] = [*self.cursors, *self.connections]
        for thing in opened:
            with suppress(sqlite3.Error):
                thing.close()


NO_LOCK = 0
READ_LOCK = 1
WRITE_LOCK = 2
PATIENCE = 2  # seconds, for a thread that will not end
WATCHED = threading.local()  # its `call` is the one that runs in this thread


@contextmanager
def watched(call: Call) -> Iterator[None]:
    """While a step of the call runs, its connections are ours."""
    connect_before = sqlite3.connect

    def connect_watched(database: Any, *args: Any, **settings: Any) -> Any:
        running = getattr(WATCHED, "call", None)
        if running is None or running.lab_reads or settings.get("factory") is Connection:
            return connect_before(database, *args, **settings)
        running.refuse_if_stopped()
        names = ("timeout", "detect_types", "isolation_level", "check_same_thread")
        settings.update(zip(names, args, strict=False))
        settings.update(timeout=0, check_same_thread=False, factory=Connection)
        connection = connect_before(database, **settings)
        connection.belongs_to(running)
        return connection

    sqlite3.connect = connect_watched
    try:
        yield
    finally:
        if not call.is_left_behind():
            sqlite3.connect = connect_before


class Connection(sqlite3.Connection):
    """A connection of a call of apply(). It never waits: the call decides about that."""

    call: Call
    lock = NO_LOCK  # that its transaction holds
    wrote = False  # anything, committed or not
    unread = False  # it may have committed what the call has not looked at yet

    def belongs_to(self, call: Call) -> None:
        self.call = call
        call.connections.append(self)
        if call.job.story:
            self.answer("PRAGMA synchronous = OFF")  # nobody needs these files after a crash
        self.set_trace_callback(self._hear)

    def execute(self, sql: str, values: Any = ()) -> Any:
        return self.cursor().execute(sql, values)

    def cursor(self, factory: Any = None) -> Any:
        cursor = super().cursor(Cursor)
        self.call.cursors.add(cursor)
        return cursor

    def answer(self, sql: str, values: Any = ()) -> list[Any]:
        """What a statement gives, beside the call."""
        cursor = sqlite3.Cursor(self)
        cursor.row_factory = None
        with suppress(sqlite3.Error):
            return cursor.execute(sql, values).fetchall()
        return []

    def is_open(self) -> bool:
        """Whether a transaction is."""
        with suppress(sqlite3.ProgrammingError):  # a closed connection has none
            return self.in_transaction
        return False

    def note(self, sql: str, refused: bool) -> None:
        """Take note of what a statement that ran, or was refused as locked, did."""
        with suppress(sqlite3.ProgrammingError):  # it is closed
            self.wrote = self.total_changes > 0
        if not self.is_open():
            self.lock = NO_LOCK
        elif not refused:
            self.lock = max(self.lock, lock_of(sql))

    def was_read(self) -> None:
        """The call has looked at what is committed."""
        self.unread = False
        if not self.is_open():
            self.lock = NO_LOCK

    def _hear(self, sql: str) -> None:
        """SQLite runs a statement, by whatever means: execute(), commit(), executescript()."""
        text = without_comment(sql)
        if lock_of(text) == WRITE_LOCK and not is_pragma(text):
            self.unread = True


class Cursor(sqlite3.Cursor):
    """A cursor of such a connection: each execute() is a statement, PRAGMAs not counted."""

    connection: Connection

    def execute(self, sql: str, values: Any = ()) -> Any:
        # Of a connection that apply() keeps from call to call, the call is the one that runs now.
        call = getattr(WATCHED, "call", None) or self.connection.call
        run = functools.partial(super().execute, sql, values)
        if is_pragma(without_comment(sql)):
            call.refuse_if_stopped()
            result = run()
            self.connection.answer("PRAGMA busy_timeout = 0")
            return result
        return call.statement(self, sql, values, run)


def without_comment(sql: object) -> str:
    """An SQL text from its first word on."""
    return re.sub(r"^(\s|--.*\n|/\*(.|\n)*?\*/)+", "", str(sql))


def is_pragma(sql: str) -> bool:
    return sql.upper().startswith("PRAGMA")


def ends_transaction(sql: str) -> bool:
    return sql.upper().startswith(("COMMIT", "END", "RELEASE"))


def reads(sql: str) -> bool:
    """Whether it does no more than that: an INSERT may begin with WITH, too."""
    change = r"(?is)WITH.*\b(INSERT|REPLACE|UPDATE|DELETE)\b"
    return sql.upper().startswith(("SELECT", "WITH")) and not re.match(change, sql)


def lock_of(sql: str) -> int:
    """The lock that a statement takes for its transaction."""
    words = sql.upper()
    deferred = "IMMEDIATE" not in words and "EXCLUSIVE" not in words
    if words.startswith("SAVEPOINT") or (words.startswith("BEGIN") and deferred):
        return NO_LOCK  # until it reads or writes
    return READ_LOCK if reads(sql) else WRITE_LOCK


def is_look(sql: str) -> bool:
    return reads(sql) and ("receipts" in sql.lower() or "drafts" in sql.lower())


def what_a_look_found(
    sql: str, found: bool, order: Order, there: Committed, before: Committed
) -> Look:
    """What a SELECT came to: whether it found anything, `there` in the tables that it read.

    Its own call may have written there already; `before` is what was committed.
    """
    key = order.key()
    if "receipts" in sql.lower():
        receipt = there.receipt_of(key)
        if not receipt:
            what = "an effect receipt of another key" if found else "no effect receipt"
            return Look(finds=True, what=what)
        if not found:
            return Look(finds=False, what=f"the effect receipt of draft {receipt.draft_id}")
        what = f"effect receipt of draft {receipt.draft_id}"
        if receipt.payload != order.payload:
            what = "effect receipt of other work"
        proof = receipt in before.receipts
        number = receipt.draft_id if proof else 0
        return Look(finds=True, what=what, draft_id=number, receipt=proof)
    draft = next((draft for draft in there.drafts if draft.key() == key), None)
    if not draft:
        return Look(finds=True, what="a draft of another key" if found else "no draft")
    number = draft.draft_id if found and draft in before.drafts else 0
    return Look(finds=found, what=f"draft {draft.draft_id}", draft_id=number)


# == 7. The verbs: the word for each act, what it needs, and how its row tells of it ===============
Row = tuple[str, list[Line]]  # its action, and its lines
STATEMENT_LINES = 6  # at most in one row


class Verb(NamedTuple):
    """What can take place. A worker's verb is an act of Worker, under the name that VERBS has for
    it, and a word of a story."""

    word: str  # of a story; "" for what no worker does
    tried: str  # what the actor does, whatever comes of it
    tell: Callable[[Job, str, Any], Row]
    delivery: bool = True  # the worker needs one
    inside: bool | None = False  # whether it must be inside apply(); None: it may be


def tell_sending(job: Job, actor: str, order: Order) -> Row:
    key = shorten(plain(in_words(order.key())), 22)
    lines = [
        Line(f"sends message {job.message_id}: {key}", "queue"),
        Line(f"asks for {quoted(order.payload, 30)}", "beside"),
    ]
    return "send", lines


def tell_getting(job: Job, actor: str, delivery: Delivery | None) -> Row:
    if delivery:
        text = f"gets {delivery.receipt}, leased until tick {delivery.expires_at}"
        return "deliver", [Line(text, "answer")]
    why = "the message is settled"
    if job.state() != "settled":
        why = f"leased until tick {job.available_at()}"
    return "refuse", [Line(f"gets nothing: {why}", "answer")]


def tell_acknowledging(job: Job, actor: str, result: Delivery | StaleReceipt) -> Row:
    if isinstance(result, StaleReceipt):
        return tell_stale("acknowledges", result)
    return "ack", [Line(f"ACKNOWLEDGES {result.receipt}", "ack")]


def tell_extending(job: Job, actor: str, result: int | StaleReceipt) -> Row:
    if isinstance(result, StaleReceipt):
        return tell_stale("extends", result)
    receipt = job.workers[actor].delivery.receipt
    lines = [Line(f"extends {receipt}", "ask"), Line(f"leased until tick {result}", "answer")]
    return "extend", lines


def tell_stale(tries: str, stale: StaleReceipt) -> Row:
    lines = [
        Line(f"{tries} {stale.receipt}", "ask"),
        Line(f"is REFUSED: stale_receipt, {stale.kind}", "answer"),
    ]
    return "stale", lines


def tell_lapse(job: Job, actor: str, result: object) -> Row:
    return "lapse", [Line("passes: the message is ready", "queue")]


def tell_stopping(job: Job, actor: str, result: object) -> Row:
    """Where the worker stands with its newest delivery."""
    mine = [event for event in job.events if event.actor == actor]
    delivered = [event.step for event in mine if event.action == "deliver"][-1]
    since = [event for event in mine if event.step > delivered]
    settled = any(event.action == "ack" for event in since)
    acknowledged = "acknowledged" if settled else "not acknowledged"
    writes = [event for event in since if event.seen]
    if not writes or not writes[-1].seen:
        return "stop", [Line(f"STOPS: work not done, {acknowledged}", "stop")]
    seen = writes[-1].seen
    if not seen.ended:
        lines = [
            Line(f"STOPS inside apply(), {acknowledged}", "stop"),
            Line(cut(f"before {seen.next}")),
            Line(done_so_far(seen) or "nothing of it is committed"),
        ]
        return "stop", lines
    work = "work not done"
    if seen.ended == "refused":
        work = "order refused"
    elif seen.of(Commit) or writes[-1].action == "reuse":
        work = "work done"
    return "stop", [Line(f"STOPS: {work}, {acknowledged}", "stop")]


def tell_writing(job: Job, actor: str, seen: Seen) -> Row:
    """What a step of apply() came to, in order."""
    action = what_came_of(seen, job.saved)
    in_part = action in ("write", "wait")  # then its statements tell what it did
    numbered = in_part or seen.statements is not None
    lines = list(wish(seen.order, job.order))
    if not in_part:
        lines += looked_earlier(seen)
    ran = [thing for thing in seen.now if isinstance(thing, Statement) and not thing.error]
    for thing in seen.now:
        if isinstance(thing, Statement) and thing.error:
            lines.append(Line(cut(f"fails at {thing.number}: {thing.sql}")))
        elif isinstance(thing, Statement) and numbered:
            if thing in ran[:STATEMENT_LINES]:
                lines.append(Line(cut(f"runs {thing.number}: {thing.sql}")))
            elif thing is ran[STATEMENT_LINES]:
                lines.append(Line(f"runs {len(ran) - STATEMENT_LINES} more"))
        elif isinstance(thing, Look) and (seen.ended or not in_part):
            finds = "finds" if thing.finds else "misses"
            lines.append(Line(f"looks: {finds} {thing.what}", "look"))
        elif isinstance(thing, Commit):
            lines += [Line(text, "commit") for text in changes(thing)]
    return action, lines + ending(seen, action, job.saved)


def what_came_of(seen: Seen, saved: Committed) -> str:
    """The action of a row: the first that applies."""
    if seen.ended == "failed":
        return "fail"
    if seen.holder:
        return "wait"
    if seen.ended == "refused":
        return "conflict"
    refused = any(statement.error for statement in seen.of(Statement))
    wrote = seen.of(Commit) or (seen.wrote and not refused)  # if only to forget the COMMIT
    if seen.ended and not wrote and repeated(seen, saved):
        return "reuse"
    return "commit" if any(isinstance(thing, Commit) for thing in seen.now) else "write"


def repeated(seen: Seen, saved: Committed) -> int:
    """The number of the draft that stands for a call's order already; 0: there is none."""
    receipt = saved.receipt_of(seen.order.key())
    if receipt:
        return receipt.draft_id
    return max((thing.draft_id for thing in seen.of(Look)), default=0)


def wish(order: Order, asked: Order) -> Iterator[Line]:
    """What a call was handed, as far as it is not what the message asks for."""
    if order.payload != asked.payload:
        yield Line(f"wants to write {quoted(order.payload, 45)}")
    if order.key() != asked.key():
        yield Line(f"uses the key {quoted(in_words(order.key()), 45)}")


def looked_earlier(seen: Seen) -> Iterator[Line]:
    """The newest look of an earlier step, or that there is none."""
    looks = [thing for thing in seen.earlier if isinstance(thing, Look)]
    if looks:
        found = "found" if looks[-1].finds else "missed"
        yield Line(f"looked before: {found} {looks[-1].what}")
    elif seen.of(Statement) and not any(is_look(statement.sql) for statement in seen.of(Statement)):
        yield Line("does not look")


def ending(seen: Seen, action: str, saved: Committed) -> list[Line]:
    """How a step of apply() ends."""
    if action == "fail":
        texts = [f"FAILS: {error_text(seen.error)}", seen.at_once]
        if not any(isinstance(thing, Commit) for thing in seen.now):
            texts.append(done_so_far(seen) or "has committed nothing")
        return [Line(text) for text in texts if text]
    if action == "wait":
        return [Line(cut(f"waits at {seen.next}")), Line(f"{name_of(seen.holder)} holds the lock")]
    if action == "conflict":
        return [Line("is REFUSED: operation_conflict")]
    if action == "reuse":
        number = repeated(seen, saved)
        if any(thing.draft_id == number for thing in seen.of(Look)):
            return [Line(f"REPLAYS draft {number}: writes nothing")]
        return [Line(f"writes nothing, draft {number} is there")]
    if not seen.ended:
        return [Line(cut(f"pauses before {seen.next}"))]
    if action == "write":
        more = " more" if seen.of(Commit) else ""
        return [Line(f"returns, and has committed nothing{more}")]
    return []


def done_so_far(seen: Seen) -> str:
    """What a call has committed so far, in one line; "" if nothing."""
    done = "; ".join(text for commit in seen.of(Commit) for text in changes(commit))
    for now, past in (("COMMITS", "committed"), ("CHANGES", "changed"), ("REMOVES", "removed")):
        done = done.replace(now, past)
    return done


def changes(commit: Commit) -> list[str]:
    """What a commit changed: a text for each draft, and for each effect receipt that did not come
    with a new draft."""
    texts = []
    drafts = {draft.draft_id: draft for draft in commit.before.drafts}
    receipts = {receipt.key(): receipt for receipt in commit.before.receipts}
    new = {receipt.draft_id for receipt in commit.after.receipts if receipt.key() not in receipts}
    for draft in commit.after.drafts:
        number = draft.draft_id
        before = drafts.pop(number, None)
        if before is None:
            proof = "its effect receipt" if number in new else "no effect receipt"
            texts.append(f"COMMITS draft {number} and {proof}")
            new.discard(number)
        elif before != draft:
            texts.append(f"CHANGES draft {number}")
    for receipt in commit.after.receipts:
        number = receipt.draft_id
        before = receipts.pop(receipt.key(), None)
        if number in new:
            texts.append(f"COMMITS the effect receipt of draft {number}")
        elif before and before != receipt:
            texts.append(f"CHANGES the effect receipt of draft {before.draft_id}")
    texts += [f"REMOVES draft {number}" for number in drafts]
    texts += [f"REMOVES the effect receipt of draft {r.draft_id}" for r in receipts.values()]
    return texts


VERBS = {
    "sends": Verb("", "sends a message", tell_sending),
    "gets": Verb("gets", "asks the queue for work", tell_getting, delivery=False),
    "writes": Verb("writes", WRITES, tell_writing),
    "goes_on": Verb("goes on", "goes on", tell_writing, inside=True),
    "acks": Verb("acks", "acknowledges", tell_acknowledging),
    "extends": Verb("extends", "extends its lease", tell_extending),
    "stops": Verb("stops", "stops", tell_stopping, inside=None),
    "tick": Verb("", "passes", tell_lapse),
}


# == 8. Conclusions: what the committed database and the queue come to =============================
WORDS = ("once", "duplicated", "lost", "mistaken", "two actions", "conflict", "pending")
WRONG = ("duplicated", "lost", "mistaken", "two actions", "pending")


class Conclusion(NamedTuple):
    """What a case came to."""

    word: str = ""  # one of WORDS
    sentence: str = ""
    decided_by: int = 0  # the step of the row that decides; 0: none does


def conclude(job: Job) -> Conclusion:
    """Judge by what took place and what is committed, never by the name of a case."""
    word, clause, decided_by = judge(job)
    first = f"The message is settled, and {clause}."
    if not of(job.events, "ack"):
        first = f"{clause[0].upper()}{clause[1:]}. The message is {comes_again(job.events[-1])}."
    return Conclusion(word, " ".join([first, *remarks(job)]), decided_by)


def judge(job: Job) -> tuple[str, str, int]:
    """The conclusion in a word and in a clause, and the step that decided it (0: none did)."""
    events = job.events
    drafts = events[-1].saved.drafts
    keys = {draft.key() for draft in drafts}
    acks = of(events, "ack")
    last = last_write(events, acks)
    second = second_under_a_key(drafts)
    if second:
        same = [draft for draft in drafts if draft.key() == second.key()]
        clause = f"{len(same)} drafts are saved under one operation key"
        return "duplicated", clause, step_that_saved(second, events)
    if len(keys) > 1:
        clause = f"{len(drafts)} drafts are saved under {len(keys)} operation keys"
        return "two actions", clause, step_that_saved(drafts[1], events)
    if last and last.action == "conflict":
        clause = "an order was refused: somebody must decide which work was meant"
        return "conflict", clause, last.step
    if not acks:
        return "pending", "one draft is saved" if drafts else "no draft is saved", 0
    if job.order.key() not in keys:
        clause = "no draft is saved under its operation key: nobody will be asked again"
        return "lost", clause, acks[0].step
    if last and last.seen and last.seen.ended == "returned" and not is_saved(last, drafts):
        clause = f"one draft is saved, but not the work that {name_of(last.actor)} was handed"
        return "mistaken", clause, last.step
    replays = of(events, "reuse")
    decided_by = replays[0].step if replays else step_that_saved(drafts[0], events)
    return "once", "one draft is saved", decided_by


def of(events: list[Event], *actions: str) -> list[Event]:
    return [event for event in events if event.action in actions]


def step_that_saved(draft: Saved, events: list[Event]) -> int:
    """The step at which a draft was committed; 0 when it was there before."""
    return next((event.step for event in events if draft in saved_by(event).drafts), 0)


def saved_by(event: Event) -> Committed:
    """What is saved since this row, and was not before it."""
    drafts: list[Saved] = []
    receipts: list[Saved] = []
    for commit in event.seen.now if event.seen else ():
        if isinstance(commit, Commit):
            drafts += set(commit.after.drafts) - set(commit.before.drafts)
            receipts += set(commit.after.receipts) - set(commit.before.receipts)
    return Committed(drafts=tuple(drafts), receipts=tuple(receipts))


def last_write(events: list[Event], acks: list[Event]) -> Event | None:
    """The last call of apply() that ended: of all, or of the worker that settled the message."""
    writes = [event for event in events if event.seen and event.seen.ended]
    for ack in acks:
        writes = [event for event in writes if event.actor == ack.actor]
    return writes[-1] if writes else None


def is_saved(write: Event, drafts: tuple[Saved, ...]) -> bool:
    """Whether the work that was handed to apply() is saved, under whatever key."""
    return any((draft.tenant, draft.payload) == (write.tenant, write.payload) for draft in drafts)


def comes_again(end: Event) -> str:
    """Of a message that is not settled: its state, and when it comes again."""
    if end.message == "ready":
        comes = "comes again" if end.deliveries else "goes"
        return f"ready, and {comes} to whoever asks next"
    return f"in flight, and comes again if nobody acknowledges it before tick {end.available_at}"


def second_under_a_key(drafts: tuple[Saved, ...]) -> Saved | None:
    """The first draft that was saved under a key which had one already."""
    keys = set()
    for draft in drafts:
        if draft.key() in keys:
            return draft
        keys.add(draft.key())
    return None


def remarks(job: Job) -> list[str]:
    """What else a reader must know, a sentence each."""
    found = [*found_receipts(job.events), *orders_saved_nowhere(job.events), *steps_left_out(job)]
    return list(dict.fromkeys(found))


def found_receipts(events: list[Event]) -> Iterator[str]:
    for event in events:
        for look in event.seen.now if event.seen else ():
            if isinstance(look, Look) and look.receipt:
                work = ", for other work" if "other work" in look.what else ""
                wrote = "".join(
                    f" that {name_of(writer.actor)} wrote"
                    for writer in events
                    if any(r.draft_id == look.draft_id for r in saved_by(writer).receipts)
                )
                yield f"The look of {name_of(event.actor)} found the effect receipt{wrote}{work}."


def orders_saved_nowhere(events: list[Event]) -> Iterator[str]:
    """Of the worker that settled the message: what was refused, or taken for a repeat."""
    for ack in of(events, "ack"):
        for write in of(events, "conflict", "reuse"):
            if write.actor != ack.actor or is_saved(write, events[-1].saved.drafts):
                continue
            came = "refused" if write.action == "conflict" else taken_for(write)
            how = f"acknowledged, then {came}"
            if ack.step > write.step:
                how = f"{came}, acknowledged all the same"
            what = f"The order of {name_of(write.actor)}, {quoted(write.payload, 40)},"
            yield f"{what} was {how}, and is saved nowhere."


def taken_for(write: Event) -> str:
    """What apply() took an order for that it wrote nothing for."""
    receipt = write.saved.receipt_of((str(write.tenant), str(write.operation)))
    same = receipt is not None and receipt.payload == write.payload
    return "taken for done" if same else "taken for a repeat of other work"


def steps_left_out(job: Job) -> Iterator[str]:
    for worker in dict.fromkeys(step.worker for step in job.left_out):
        steps = "; ".join(step.text for step in job.left_out if step.worker == worker)
        yield f"Since {name_of(worker)} failed, these steps of it are left out: {plain(steps)}."


# == 9. Stories: the learner's own order of events =================================================
WORKERS = "ABC"
LESSON = Order(TENANT, "J-12:draft:v1", "replace the pump seal")  # of run_case(), sent in a story
VERB_OF = {verb.word: name for name, verb in VERBS.items() if verb.word}  # by its word in a story
DIVIDED = "steps are divided by ; and not by commas"
QUOTE_LEFT_IN = r"^['\"\u2018-\u201f]|['\"\u2018-\u201f]$"  # by the shell
EXAMPLE = "A gets; A writes; tick 5; B gets; B writes; B acks; A acks"


class UsageError(Exception):
    """Words that cannot be played: which, why, and what to write instead."""


class Step(NamedTuple):
    """One step of a story."""

    number: int  # 1, 2, ...
    text: str
    verb: str = ""  # a key of VERBS
    worker: str = ""  # "worker A"; of a tick: none
    tick: int = 0  # to go on to
    arguments: dict[str, Any] = {}  # of the act

    def wrong(self, why: str) -> UsageError:
        return UsageError(f"step {self.number}, {quoted(self.text, 60)}: {why}")

    def act(self, job: Job) -> Iterator[Event]:
        if not self.worker:
            return job.tick(self.tick)
        rows: Iterator[Event] = getattr(job.worker(self.worker), self.verb)(**self.arguments)
        return rows


def parse_story(text: str) -> list[Step]:
    """The steps of a story. UsageError tells of the first one that is none."""
    steps = [parse_step(number, step) for number, step in enumerate(split_steps(text), start=1)]
    if not steps:
        raise UsageError(f'a story needs steps, such as "{EXAMPLE}"')
    return steps


def split_steps(text: str) -> list[str]:
    return [step.strip() for step in re.split("[;\r\n]", text) if step.strip()]


def parse_step(number: int, text: str) -> Step:
    """One step. Its own words may be in upper or lower case, with any blanks between them."""
    step = Step(number, text)
    tick = re.fullmatch(r"tick\s+([0-9]+)", text, re.I | re.A)
    if tick and int(tick[1]) <= LAST_TICK:
        return step._replace(verb="tick", tick=int(tick[1]))
    known = "|".join(VERB_OF).replace(" ", r"\s+")
    found = re.fullmatch(rf"([{WORKERS}])\s+({known})(\s.*)?", text, re.I | re.S | re.A)
    if not found:
        raise step.wrong(why_no_step(text))
    letter, word, rest = found.groups(default="")
    verb = VERB_OF[" ".join(word.lower().split())]
    step = step._replace(verb=verb, worker=f"worker {letter.upper()}")
    if verb == "writes":
        return step._replace(arguments=parse_write(step, rest))
    if verb == "goes_on":
        statements, rest = parse_statements(step, rest)
        step = step._replace(arguments={"statements": statements})
    if rest.strip():
        raise step.wrong(f"nothing may come after {word}; {DIVIDED}")
    return step


def why_no_step(text: str) -> str:
    if "," in text:
        return DIVIDED
    if re.search(QUOTE_LEFT_IN, text):
        return in_quotes("story", f'--story "{EXAMPLE}"')
    if text.lower().startswith("tick"):
        return f"write tick and the tick to go on to, {LAST_TICK} at most: tick 5"
    known = ", ".join(f"A {word}" for word in VERB_OF)
    return f"write {known} or tick 5; workers are A, B and C"


def parse_statements(step: Step, text: str) -> tuple[int | None, str]:
    """How many statements are to run (None: all), and the rest of the text."""
    found = re.match(r"\s+([0-9]+)(\s+statements?)?(?=\s|$)", text, re.I | re.A)
    if not found:
        return None, text
    if not 1 <= int(found[1]) <= 99:
        raise step.wrong("write a number of statements from 1 to 99")
    return int(found[1]), text[found.end() :]


def parse_write(step: Step, text: str) -> dict[str, Any]:
    """The arguments of Worker.writes() that stand behind the word."""
    statements, text = parse_statements(step, text)
    order = {**LESSON._asdict(), "reuse": True, "statements": statements}
    blind = re.match(r"\s+blind(?=\s|$)", text, re.I | re.A)
    if blind:
        order["reuse"] = False
        text = text[blind.end() :]
    change = re.compile(r"\s(key|payload)=(.*?)(?=\s(?:key|payload)=|$)", re.I | re.S | re.A)
    unknown = change.sub("", text).strip()
    if unknown:
        known = "a number of statements, blind, key=... and payload=..., in this order"
        raise step.wrong(f"after writes may come {known}, but not {quoted(unknown, 30)}")
    seen = set()
    for name, value in change.findall(text):
        name = name.lower()
        value = value.strip()
        if not value:
            raise step.wrong(f"{name}= is empty: write after it what it is to be")
        if name in seen:
            raise step.wrong(f"{name}= stands there twice: write it once")
        if value[0] == value[-1] and value[0] in "'\"":
            raise step.wrong(f"write {name}=... without quotes")
        if name == "key" and value.startswith(f"{TENANT} /"):
            raise step.wrong(f"write the key without {TENANT} /, which is put before it")
        seen.add(name)
        order["operation" if name == "key" else name] = value
    return order


def play_story(steps: list[Step], database: Database) -> Iterator[Event]:
    """Play a story over the new file `database`; its events, in order.

    UsageError: a step that cannot be done then, and what to put before it.
    """
    create_database(database)
    with Job("story", database, story=True) as job:
        yield from job.sends(LESSON)
        for step in steps:
            yield from take(step, job)


def take(step: Step, job: Job) -> Iterator[Event]:
    """The rows of one step; of a worker that has failed there is none."""
    worker = job.workers.get(step.worker)
    if worker and worker.failed:
        job.left_out.append(step)
        return
    try:
        yield from step.act(job)
    except Misstep as misstep:
        raise step.wrong(": ".join(filter(None, [str(misstep), misstep.way_out]))) from None


# == 10. The search: every schedule of two deliveries, statement by statement ======================
MOST_PLAYS = 1000
PROGRAM = "writes; acks"
FAILED = "failed"  # of a schedule in which a worker did


class Move(NamedTuple):
    """What happens next in a schedule: a step of a story, or one SQL statement of it."""

    letter: str  # of the worker; "" of a lease's end
    word: str
    statements: int | None = None  # to run; None: all
    rest: str = ""  # what stands behind them: blind, key=..., payload=...

    def text(self) -> str:
        number = "" if self.statements is None else number_of(self.statements)
        return " ".join(filter(None, [self.letter, self.word, number, self.rest]))


class Point:
    """Where schedules come to, and go on alike from there."""

    def __init__(self, moves: tuple[Move, ...], next_moves: list[Move]) -> None:
        self.moves = moves  # the first of the shortest ways to it
        self.next_moves = next_moves
        self.ways = 0  # to come to it


class Search:
    """Plays every schedule of two deliveries, and counts what they come to.

    `programs` are the steps of the first and of the second delivery's worker. Each play has a
    database of its own in the folder, and is thrown away.
    """

    def __init__(self, programs: list[list[Move]], folder: str) -> None:
        self.programs = programs
        self.counts = dict.fromkeys([*WORDS, FAILED], 0)  # schedules, by what they come to
        self.stories: dict[str, str] = {}  # the shortest of each
        self._folder = folder
        self._plays = 0
        self._judged: dict[Any, list[str]] = {}  # by point
        self._steps: dict[Move, Step] = {}
        self._template = os.path.join(folder, "template.sqlite3")
        create_database(self._template)

    def run(self) -> None:
        """Walk from point to point, all that are as many moves from the beginning together."""
        with self._play(()) as job:
            start = Point((), self._next_moves(job))
        start.ways = 1
        points = [start]
        while points:
            following: dict[Any, Point] = {}
            for point in points:
                for move in point.next_moves:
                    self._try(point, move, following)
            points = list(following.values())

    def _try(self, point: Point, move: Move, following: dict[Any, Point]) -> None:
        """Play the moves to a point, and one more. One that has to wait is no move."""
        with self._play((*point.moves, move)) as job:
            last = job.events[-1]
            if last.action == "wait":
                return
            if last.seen and last.seen.ended:
                move = move._replace(statements=None)
            here = self._where(job)
            if here not in following:
                following[here] = Point((*point.moves, move), self._next_moves(job))
            following[here].ways += point.ways
            if not move.letter:  # a schedule does not end with a lease
                return
            if here not in self._judged:
                self._judged[here] = self._judge(job, [*point.moves, move])
            for word in self._judged[here]:
                self.counts[word] += point.ways

    @contextmanager
    def _play(self, moves: tuple[Move, ...]) -> Iterator[Job]:
        """A job of which the message is sent, and these moves are played."""
        self._plays += 1
        if self._plays > MOST_PLAYS:
            raise LabError(
                f"given up after {MOST_PLAYS} plays: the same moves do not come to the same point,"
                " such as with a key that apply() makes anew each time"
            )
        database = os.path.join(self._folder, f"{self._plays}.sqlite3")
        shutil.copyfile(self._template, database)
        with Job("story", database, story=True) as job:
            all_of(job.sends(LESSON))
            self._go_on(job, joined(moves))
            yield job

    def _go_on(self, job: Job, moves: Sequence[Move]) -> None:
        for move in moves:
            if move not in self._steps:
                self._steps[move] = parse_step(0, move.text())
            all_of(take(self._steps[move], job))

    def _next_moves(self, job: Job) -> list[Move]:
        """What can happen next: a move of worker A, of worker B, a lease's end, a delivery."""
        moves = []
        for letter, left in self._steps_left(job).items():
            worker = job.worker(f"worker {letter}")
            if worker in job.inside():
                moves.append(Move(letter, "goes on", statements=1))
            elif left and not has_given_up(worker):
                moves.append(left[0]._replace(letter=letter))
        if job.state() == "in_flight":
            moves.append(Move("", f"tick {job.available_at()}"))
        if job.state() == "ready" and len(job.workers) < len(self.programs):
            moves.append(Move(WORKERS[len(job.workers)], "gets"))
        return moves

    def _steps_left(self, job: Job) -> dict[str, list[Move]]:
        """The steps of each worker that have not come to their end."""
        left = {}
        for letter, program in zip(WORKERS, self.programs[: len(job.workers)], strict=False):
            mine = [event for event in job.events if event.actor == f"worker {letter}"]
            done = len(of(mine, "ack", "stale")) + sum(bool(e.seen and e.seen.ended) for e in mine)
            left[letter] = program[done:]
        return left

    def _where(self, job: Job) -> object:
        """What tells a point from others."""
        places = []
        for letter, left in self._steps_left(job).items():
            worker = job.worker(f"worker {letter}")
            statements: tuple[Statement, ...] = ()
            if worker in job.inside():
                statements = tuple(s for s in worker.call.seen if isinstance(s, Statement))
            given_up = worker.call.ended if has_given_up(worker) else ""
            places.append((len(left), given_up, statements))
        messages = job.queue.messages.values()
        queue = tuple((tuple(message.deliveries), message.settled) for message in messages)
        return job.now, queue, job.saved, tuple(places)

    def _judge(self, job: Job, moves: list[Move]) -> list[str]:
        """Play on to the end. Returns its conclusion's word and, if a worker failed, FAILED."""
        for move in self._ending(job):
            self._go_on(job, [move])
            moves.append(move)
        words = [conclude(job).word]
        if any(worker.failed for worker in job.workers.values()):
            words.append(FAILED)
        for word in words:
            self.stories.setdefault(word, "; ".join(move.text() for move in joined(moves)))
        return words

    def _ending(self, job: Job) -> Iterator[Move]:
        """Both workers stop. If the message is not settled, one more gets it and does its work."""
        for letter, left in self._steps_left(job).items():
            if left and not job.worker(f"worker {letter}").failed:
                yield Move(letter, "stops")
        if job.state() == "in_flight":
            yield Move("", f"tick {job.available_at()}")
        if job.state() == "ready":
            letter = WORKERS[len(job.workers)]
            yield Move(letter, "gets")
            for step in self.programs[-1]:
                if not has_given_up(job.worker(f"worker {letter}")):
                    yield step._replace(letter=letter, statements=None)


def all_of(rows: Iterator[Event]) -> None:
    for _ in rows:
        pass


def has_given_up(worker: Worker) -> bool:
    """Whether its newest write was refused, or failed: it takes no further step."""
    return worker.refused or worker.failed


def joined(moves: Sequence[Move]) -> list[Move]:
    """The same moves, neighbouring statements of one call as one."""
    steps: list[Move] = []
    for move in moves:
        before = steps[-1] if steps else move
        if move.word != "goes on" or before.letter != move.letter or before.statements is None:
            steps.append(move)
        elif move.statements is None:
            steps[-1] = before._replace(statements=None)
        else:
            steps[-1] = before._replace(statements=before.statements + move.statements)
    return steps


def parse_programs(texts: list[str]) -> list[list[Move]]:
    """The programs of two deliveries' workers; of one text both. UsageError: it is none."""
    if len(texts) > 2:
        raise UsageError("two programs at most, one for each delivery")
    programs = [parse_program(text) for text in texts]
    return programs * 2 if len(programs) == 1 else programs


def parse_program(text: str) -> list[Move]:
    steps = split_steps(text)
    program = [parse_program_step(Step(number, words)) for number, words in enumerate(steps, 1)]
    if not 1 <= len(program) <= 2:
        raise UsageError('a program has one or two steps, such as "writes; acks"')
    return program


def parse_program_step(step: Step) -> Move:
    found = re.fullmatch(r"(acks|writes)(\s.*)?", step.text, re.I | re.S | re.A)
    if not found or (found[1].lower() == "acks" and found[2]):
        known = f'write writes or acks, without a worker\'s letter, such as "{PROGRAM}"'
        raise step.wrong(DIVIDED if "," in step.text else known)
    word, rest = found.groups(default="")
    if re.match(r"\s+[0-9]", rest, re.A):
        raise step.wrong("leave out the number: a search stops before every statement by itself")
    parse_write(step, rest)
    if re.search(r"""[^ -~]|["$`%!\\]""", step.text):
        raise step.wrong(
            'what is found is to be pasted in double quotes: leave out " $ ` % ! \\ and all that is'
            " not ASCII"
        )
    statements = 1 if word.lower() == "writes" else None
    return Move(letter="", word=word.lower(), statements=statements, rest=rest.strip())


# == 11. The screen: a case as lines of text =======================================================
WIDTH = 79
EVENT_WIDTH = 53  # of a row; then come the message's state and the counts
LINE_WIDTH = 39  # of what a worker did, so that the counts fit behind it


class Played(NamedTuple):
    """A case, or a story, after its run."""

    name: str
    plot: str
    events: list[Event]
    saved: Committed  # in the end
    conclusion: Conclusion
    error: str  # what ended it too early, else ""


def plain(text: object) -> str:
    """Printable ASCII; any other character as a backslash escape."""
    line = str(text)
    if line.isascii() and line.isprintable():
        return line
    return re.sub(r"[^ -~]", lambda found: ascii(found[0])[1:-1], line)


def shorten(text: str, width: int) -> str:
    """The text, or both its ends around a checksum: texts that differ look different."""
    if len(text) <= width:
        return text
    from binascii import crc32

    middle = f"..{crc32(text.encode()):08x}.."
    tail = (width - len(middle)) // 2
    head = width - len(middle) - tail
    return text[:head] + middle + text[-tail:]


def quoted(text: object, width: int) -> str:
    return shorten(ascii(text), width)


def cut(text: str) -> str:
    """The beginning of a line that names a statement."""
    text = plain(text)
    return text if len(text) <= LINE_WIDTH else f"{text[: LINE_WIDTH - 3]}..."


def name_of(actor: object) -> str:
    return shorten(plain(actor), 20)


def error_text(error: BaseException | None) -> str:
    """An error's type and text, also of one whose text cannot be made."""
    try:
        return shorten(": ".join(filter(None, [type(error).__name__, plain(error)])), 400)
    except Exception:
        return f"{type(error).__name__}: (its text cannot be made)"


def spoken(state: str) -> str:
    return state.replace("_", " ")


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(plain(text), WIDTH, break_on_hyphens=False)


def pieces(text: str, width: int) -> list[str]:
    """A text on as many lines as it needs."""
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False)


def titled(text: str) -> str:
    return f"--- {shorten(text, 70)} ".ljust(WIDTH, "-")


def heads() -> list[str]:
    return [
        f"{'':{EVENT_WIDTH}} message    saved   effect",
        f"{'tick event, > decides the outcome':{EVENT_WIDTH}} state     drafts receipts",
    ]


def row_lines(event: Event, decided_by: int) -> list[str]:
    """An event: mark, tick and actor stand on its first line, state and counts on its last."""
    mark = ">" if event.step == decided_by else " "
    start = f"{mark}{plain(event.tick):>3} {name_of(event.actor)} "
    lines = []
    for line in event.lines:
        for text in pieces(plain(line.text), WIDTH - len(start)):
            lines.append(start + text)
            start = " " * len(start)
    if len(lines[-1]) > EVENT_WIDTH:
        lines.append("")
    counts = f"{spoken(event.message):<9} {event.drafts:>6} {event.receipts:>8}"
    lines[-1] = f"{lines[-1]:{EVENT_WIDTH}} {counts}"
    return lines


def trace(played: Played) -> list[str]:
    decided_by = played.conclusion.decided_by
    return [line for event in played.events for line in row_lines(event, decided_by)]


def evidence(played: Played) -> list[str]:
    """What is committed, a saved draft or effect receipt a line."""
    lines = [evidence_line("draft", draft) for draft in played.saved.drafts]
    lines += [
        evidence_line("effect receipt of draft", receipt) for receipt in played.saved.receipts
    ]
    return ["committed in the database now:", *(lines or ["  no draft, and no effect receipt"])]


def evidence_line(what: str, saved: Saved) -> str:
    numbered = f"{what} {saved.draft_id}"
    key = quoted(in_words(saved.key()), 25)
    return f"  {numbered:<25} {key:<25} {quoted(saved.payload, 25)}"


def verdict(played: Played) -> list[str]:
    """The conclusion in a word and in sentences; none where an error ended the case."""
    word = played.conclusion.word.upper()
    text = wrapped(f"{played.name}: {word}. {played.conclusion.sentence}")
    return [] if played.error else ["", *text]


def account(played: Played) -> list[str]:
    """All of a case but its title."""
    start = [*wrapped(played.plot), "", *heads(), *trace(played)]
    return [*start, "", *evidence(played), *verdict(played)]


def edit_mark(name: str, lines: list[str]) -> str:
    """What the title says of a case whose account is not the published one."""
    text = "\n".join([titled(name), *lines, ""])
    return ", edited" if name in PUBLISHED and text != PUBLISHED[name] else ""


def table(all_played: list[Played]) -> list[str]:
    """What each case came to, a line a case."""
    lines = ["case              deliveries  saved drafts  message    conclusion"]
    for played in all_played:
        end = played.events[-1]
        counts = f"{end.deliveries:>10}  {end.drafts:>12}"
        word = played.conclusion.word
        lines.append(f"{played.name:<17} {counts}  {spoken(end.message):<9}  {word}")
    return lines


# What `demo` prints of each case. Of one that is edited, `test` shows what differs.
PUBLISHED = {
    "normal": """\
--- normal --------------------------------------------------------------------
Worker A writes the safe way: it looks for an effect receipt before it writes.
Then it acknowledges.

                                                      message    saved   effect
tick event, > decides the outcome                     state     drafts receipts
   0 producer sends message 1: north / J-12:draft:v1
              asks for 'replace the pump seal'        ready          0        0
   0 worker A gets delivery-1, leased until tick 5    in flight      0        0
>  1 worker A looks: finds no effect receipt
              COMMITS draft 1 and its effect receipt  in flight      1        1
   2 worker A ACKNOWLEDGES delivery-1                 settled        1        1

committed in the database now:
  draft 1                   'north / J-12:draft:v1'   'replace the pump seal'
  effect receipt of draft 1 'north / J-12:draft:v1'   'replace the pump seal'

normal: ONCE. The message is settled, and one draft is saved.
""",
    "duplicate-effect": """\
--- duplicate-effect ----------------------------------------------------------
Worker A writes blind: it does not look, and leaves no effect receipt. It stops
before it acknowledges. Worker B takes over, writes blind as well, and
acknowledges.

                                                      message    saved   effect
tick event, > decides the outcome                     state     drafts receipts
   0 producer sends message 1: north / J-12:draft:v1
              asks for 'replace the pump seal'        ready          0        0
   0 worker A gets delivery-1, leased until tick 5    in flight      0        0
   1 worker A does not look
              COMMITS draft 1 and no effect receipt   in flight      1        0
   2 worker A STOPS: work done, not acknowledged      in flight      1        0
   4 worker B gets nothing: leased until tick 5       in flight      1        0
   5 time passes: the message is ready                ready          1        0
   5 worker B gets delivery-2, leased until tick 10   in flight      1        0
>  6 worker B does not look
              COMMITS draft 2 and no effect receipt   in flight      2        0
   7 worker B ACKNOWLEDGES delivery-2                 settled        2        0

committed in the database now:
  draft 1                   'north / J-12:draft:v1'   'replace the pump seal'
  draft 2                   'north / J-12:draft:v1'   'replace the pump seal'

duplicate-effect: DUPLICATED. The message is settled, and 2 drafts are saved
under one operation key.
""",
    "reuse-effect": """\
--- reuse-effect --------------------------------------------------------------
Worker A writes the safe way, and stops before it acknowledges. Worker B takes
over, writes the safe way as well, and acknowledges.

                                                      message    saved   effect
tick event, > decides the outcome                     state     drafts receipts
   0 producer sends message 1: north / J-12:draft:v1
              asks for 'replace the pump seal'        ready          0        0
   0 worker A gets delivery-1, leased until tick 5    in flight      0        0
   1 worker A looks: finds no effect receipt
              COMMITS draft 1 and its effect receipt  in flight      1        1
   2 worker A STOPS: work done, not acknowledged      in flight      1        1
   4 worker B gets nothing: leased until tick 5       in flight      1        1
   5 time passes: the message is ready                ready          1        1
   5 worker B gets delivery-2, leased until tick 10   in flight      1        1
>  6 worker B looks: finds effect receipt of draft 1
              REPLAYS draft 1: writes nothing         in flight      1        1
   7 worker B ACKNOWLEDGES delivery-2                 settled        1        1

committed in the database now:
  draft 1                   'north / J-12:draft:v1'   'replace the pump seal'
  effect receipt of draft 1 'north / J-12:draft:v1'   'replace the pump seal'

reuse-effect: ONCE. The message is settled, and one draft is saved. The look of
worker B found the effect receipt that worker A wrote.
""",
    "early-ack": """\
--- early-ack -----------------------------------------------------------------
Worker A acknowledges first, and stops before it writes. Worker B asks for work
later.

                                                      message    saved   effect
tick event, > decides the outcome                     state     drafts receipts
   0 producer sends message 1: north / J-12:draft:v1
              asks for 'replace the pump seal'        ready          0        0
   0 worker A gets delivery-1, leased until tick 5    in flight      0        0
>  1 worker A ACKNOWLEDGES delivery-1                 settled        0        0
   2 worker A STOPS: work not done, acknowledged      settled        0        0
   5 worker B gets nothing: the message is settled    settled        0        0

committed in the database now:
  no draft, and no effect receipt

early-ack: LOST. The message is settled, and no draft is saved under its
operation key: nobody will be asked again.
""",
}


# == 12. The picture: a case as lanes, the queue on the left, the database on the right ============
class Way(NamedTuple):
    """How a line of a row is drawn: as an arrow between two lanes, or at one lane with a sign."""

    start: str  # "worker" is whoever acts
    end: str
    sign: str  # an arrow's stroke; at one lane what stands on it; "": nothing but the lane


WAYS = {
    "look": Way("worker", "database", "-"),
    "commit": Way("worker", "database", "="),  # one of the two moments
    "ask": Way("worker", "queue", "-"),  # what a worker wants of the queue, and does not settle
    "ack": Way("worker", "queue", "="),  # the other moment
    "answer": Way("queue", "worker", "-"),  # what comes of it
    "queue": Way("queue", "queue", "*"),  # what happens there, whoever does it
    "beside": Way("queue", "queue", ""),  # and more of it
    "here": Way("worker", "worker", ""),  # what nobody else takes part in
    "stop": Way("worker", "worker", "X"),  # and the lane ends
}
QUEUE_COLUMN = 7
DATABASE_COLUMN = 74  # the workers' lanes stand between, at equal distances
LANE = "|"
INSIDE = ":"
LEGEND = {
    "=": "==>  one of the two moments: COMMITS to the database, ACKNOWLEDGES to the queue",
    "-": "-->  a look into the database, or what passes between worker and queue",
    "*": "*    at the queue: a message comes in, or its lease ends",
    INSIDE: ":    the worker is inside apply()",
    "X": "X    the worker stops here, and its lane ends",
}


class Picture:
    """Draws events on lanes, time downwards."""

    def __init__(self, events: list[Event]) -> None:
        at_queue = of(events, "send", "lapse")
        workers = [name_of(event.actor) for event in events if event not in at_queue]
        self.lanes = dict.fromkeys(["queue", *workers, "database"], LANE)
        gap = (DATABASE_COLUMN - QUEUE_COLUMN) / (len(self.lanes) - 1)
        self.column = {lane: QUEUE_COLUMN + round(gap * n) for n, lane in enumerate(self.lanes)}
        self.signs: set[str] = set()
        self.lines = [self._heads()]
        for event in events:
            self._draw(event)

    def legend(self) -> list[str]:
        """The signs that stand in this picture."""
        return [line for sign, line in LEGEND.items() if sign in self.signs]

    def _heads(self) -> str:
        line = "tick".ljust(WIDTH)
        for lane, column in self.column.items():
            at = min(column - len(lane) // 2, WIDTH - len(lane))
            line = put(line, at, lane)
        return line.rstrip()

    def _draw(self, event: Event) -> None:
        tick = f"{plain(event.tick):>4}"
        lane = name_of(event.actor)
        if event.seen and not event.seen.ended:
            self.lanes[lane] = INSIDE
        for line in event.lines:
            text = f"{lane} {plain(line.text)}" if line.way == "queue" else plain(line.text)
            for piece in pieces(text, WIDTH - QUEUE_COLUMN):
                for drawn in self._line(lane, WAYS[line.way], piece):
                    self.lines.append(put(drawn, 0, tick).rstrip()[:WIDTH])
                    tick = ""
            if line.way == "stop":
                self.lanes[lane] = " "
        if event.seen and event.seen.ended:
            self.lanes[lane] = LANE

    def _line(self, worker: str, way: Way, text: str) -> Iterator[str]:
        """One line of the picture, or two where the text is too long for its arrow."""
        start = self.column[worker if way.start == "worker" else way.start]
        end = self.column[worker if way.end == "worker" else way.end]
        sign = way.sign or self.lanes[worker if way.start == "worker" else way.start]
        self.signs.add(sign)
        at = min(start, end) + 1
        if start == end:
            yield from self._beside(at, f" {text} ", sign)
            return
        length = abs(end - start) - 1
        label = f" {text} "
        if len(label) + 3 > length:
            yield self._over(at, label)
            label = ""
        shaft = f"{sign}{label}".ljust(length, sign)
        yield self._over(at, f"{shaft[:-1]}>" if start < end else f"<{shaft[1:]}")

    def _beside(self, at: int, label: str, sign: str) -> Iterator[str]:
        """A label beside a sign, or where there is no room for it over the lanes and the sign."""
        fits = at + len(label) <= WIDTH
        if not fits:
            yield self._over(at, label)
        if fits or sign in "*X":
            yield put(self._over(at, label if fits else ""), at - 1, sign)

    def _over(self, at: int, text: str) -> str:
        """The lanes, and over them the text, at a column or as far to the right as it fits."""
        line = " " * WIDTH
        for lane, sign in self.lanes.items():
            line = put(line, self.column[lane], sign)
        return put(line, min(at, WIDTH - len(text)), text)


def put(line: str, at: int, text: str) -> str:
    """The line with the text over it, from column `at` on."""
    return line[:at] + text + line[at + len(text) :]


def picture(events: list[Event]) -> list[str]:
    drawn = Picture(events)
    return [*drawn.lines, "", *drawn.legend()]


# == 13. The questions: what was predicted, beside what was observed ===============================
STATES = {"r": "ready", "i": "in flight", "s": "settled"}  # by the first letter of an answer
NOBODY = "nobody"
QUEUE = "the queue"
LOOK = "a worker's look"
RECOGNISERS = {"n": NOBODY, "q": QUEUE, "w": LOOK}
HOW_TO_GUESS = (
    "Before each row, say what it will show: the message's state, r(eady), i(n flight) or"
    " s(ettled), and how many drafts are saved, for example: i 1. Enter skips, Ctrl-C leaves."
)
CANNOT_ASK = "  No answers can be read here: run it in a terminal to be asked."


class Answer(NamedTuple):
    """A question that was answered, and what the run says to it."""

    case: str
    about: str
    predicted: str
    observed: str
    where: str  # which rows show it

    def is_right(self) -> bool:
        return self.predicted == self.observed

    def judged(self) -> str:
        if self.is_right():
            return f"right: {self.about} {self.predicted}"
        return f"not right: {self.about} {self.observed}, not {self.predicted}{self.where}"


class Quiz:
    """Asks, and remembers the answers. Enter skips a question, the end of input skips the rest."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.more = True  # input to come
        self.read = False  # anything so far
        self.explained = False  # how to guess
        with suppress(AttributeError, ValueError):  # no standard input, or not a file
            sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]

    def ask(self, question: str, wanted: str, understand: Callable[[str], Any]) -> Any:
        """Ask until the answer is understood. Returns what it means; None when skipped."""
        while self.more:
            say(*wrapped(f"? {question}"), end=" ")
            given = " ".join(self._read().lower().split())
            if not given:
                return None
            meant = understand(given)
            if meant is not None:
                return meant
            say(f"  That is not {wanted}. Enter skips.")
        return None

    def _read(self) -> str:
        try:
            line = sys.stdin.readline()
        except (AttributeError, OSError, ValueError):  # no standard input, or a closed one
            line = ""
        self.more = bool(line)
        if not line or not is_terminal(sys.stdin) or not is_terminal(sys.stdout):
            say()  # the typed line end does not show
        if not line and not self.read:
            say(CANNOT_ASK)
        self.read = True
        return line

    def note(self, case: str, about: str, predicted: str, observed: object, where: str = "") -> str:
        """Remember an answer. Returns what is to be said of it."""
        answer = Answer(
            case=case,
            about=about,
            predicted=predicted,
            observed=str(observed),
            where=where,
        )
        self.answers.append(answer)
        return answer.judged()

    def score(self) -> str:
        right = sum(answer.is_right() for answer in self.answers)
        return f"{right} of {len(self.answers)} predictions right"


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # none, or a closed one
        return False


def predict(quiz: Quiz) -> dict[str, str | None]:
    """What will come of a case: the answers, by what they are about."""
    number = "a number from 0 to 99"
    who = (
        "Who recognises work done before: the q(ueue), a w(orker's look), or n(obody, or there is"
        " nothing to recognise)?"
    )
    return {
        "deliveries": quiz.ask(
            "Enter skips. How many times is the message delivered?", number, count
        ),
        "saved drafts": quiz.ask("How many drafts are saved in the end?", number, count),
        "recognised by": quiz.ask(who, "q, w or n", recogniser),
    }


NO_ROW = {
    "deliveries": "no row delivers",
    "saved drafts": "no row commits one",
    "recognised by": "no look found an effect receipt",
}


def judge_predictions(
    quiz: Quiz, predicted: dict[str, str | None], played: Played
) -> Iterator[str]:
    """What is to be said of each prediction, beside what came of the case."""
    events = played.events
    finds = [e for e in events if e.seen and any(look.receipt for look in e.seen.of(Look))]
    observed = {
        "deliveries": events[-1].deliveries,
        "saved drafts": events[-1].drafts,
        "recognised by": LOOK if finds else NOBODY,
    }
    shown_by = {
        "deliveries": of(events, "deliver"),
        "saved drafts": [event for event in events if saved_by(event).drafts],
        "recognised by": finds,
    }
    for about, answer in predicted.items():
        if answer is not None:
            ticks = " and ".join(plain(event.tick) for event in shown_by[about])
            where = f" (see tick {ticks})" if ticks else f" ({NO_ROW[about]})"
            if answer == QUEUE:
                where += "; a queue never sees the database"
            yield quiz.note(played.name, about, answer, observed[about], where)


def ask_for_guess(quiz: Quiz, event: Event) -> dict[str, str]:
    """What an event's row will show: the answers, by what they are about."""
    if quiz.more and not quiz.explained:
        say(*wrapped(HOW_TO_GUESS))
        quiz.explained = True
    tried = f"tick {plain(event.tick)}: {name_of(event.actor)} {event.tried}"
    wanted = "a state (r, i or s) and a number, such as i 1"
    return quiz.ask(f"{tried}. State and drafts?", wanted, guess) or {}


def check_guess(quiz: Quiz, guessed: dict[str, str], event: Event) -> str:
    """What is to be said of a guess, field by field."""
    observed = {"message": spoken(event.message), "saved drafts": event.drafts}
    judged = [
        quiz.note(event.case, about, answer, observed[about]) for about, answer in guessed.items()
    ]
    return "; ".join(judged)


def count(text: str) -> str | None:
    return str(int(text)) if re.fullmatch("[0-9]{1,2}", text) else None


def recogniser(text: str) -> str | None:
    return RECOGNISERS.get(text[0])


def guess(text: str) -> dict[str, str] | None:
    """A state and a number of drafts, in any order: i 1, i1, 1 i; or one of the two."""
    number = " ".join(re.findall("[0-9]+", text))
    state = re.sub("[0-9]+", " ", text).strip()
    guessed = {}
    if state:
        guessed["message"] = STATES.get(state[0], "")
    if number:
        guessed["saved drafts"] = count(number) or ""
    return None if "" in guessed.values() else guessed


# == 14. The report: a document for the engineer who takes over ====================================
VERSION = "3.0"
PYTHON = sys.version.split()[0]
VERSIONS = f"fde-queue-delivery-lab {VERSION}, Python {PYTHON}, SQLite {sqlite3.sqlite_version}"
OPEN_QUESTIONS = (
    "Which component recognised the repeat, and by which evidence? Name the row.",
    "A worker stopped, or was too slow: which of the two moments, DATABASE COMMIT and"
    " ACKNOWLEDGEMENT, had happened by then, and what could the queue know of each?",
    "Suppose that the effect is an e-mail through another company's API, and the request times out:"
    " what is unknown, how do you ask about the ORIGINAL request, and when must a human decide?",
)
KEEP_TOO = (
    "Keep with this report: the one of the changed key, your drawing of the two moments, and what"
    " you wrote down about a real service."
)


def report(all_played: list[Played], quiz: Quiz) -> str:
    """The Markdown text: what the screen said, in its own lines, and the pictures."""
    accounts = {played.name: account(played) for played in all_played}
    changed = ", ".join(name for name, lines in accounts.items() if edit_mark(name, lines))
    published = "No case is edited: each trace is the published one."
    if all_played[0].name not in PUBLISHED:
        published = "This is a story of the learner's own."
    elif changed:
        published = f"The traces of these cases are edited: {changed}."
    lines = ["# Queue delivery lab report", "", f"{VERSIONS}, {sys.platform}", "", published, ""]
    lines += fenced(table(all_played))
    if quiz.answers:
        lines += ["## Predictions", ""]
        lines += fenced([f"{answer.case}: {answer.judged()}" for answer in quiz.answers])
        lines += [f"{quiz.score()}.", ""]
    for played in all_played:
        lines += [f"## {played.name}: {played.conclusion.word}", ""]
        lines += fenced(accounts[played.name])
        lines += fenced(picture(played.events))
    lines += ["## Questions for you", ""]
    for number, question in enumerate(OPEN_QUESTIONS, start=1):
        lines += [*wrapped(f"{number}. {question}"), "", "Answer:", ""]
    return "\n".join([*lines, *wrapped(KEEP_TOO), ""])


def fenced(lines: list[str]) -> list[str]:
    """The lines as they are, in a fence that none of them can close."""
    ticks = max(map(len, re.findall("`+", "\n".join(lines))), default=0)
    fence = "`" * max(3, ticks + 1)
    return [f"{fence}text", *lines, fence, ""]


# == 15. The demo: play, ask, show, keep ===========================================================
JSON_FIELDS = (
    "case",
    "step",
    "tick",
    "actor",
    "action",
    "detail",
    "message",
    "deliveries",
    "drafts",
    "receipts",
    "tenant",
    "operation",
    "payload",
    "conclusion",
)
NO_FILE = (  # what SQLite says of a file, and not of a statement
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)


class LabError(Exception):
    """What could not be done, and the way out, in one line."""


def demo(options: argparse.Namespace) -> None:
    """Play one case after the other, show or ask about each, and tell what they came to."""
    if not options.names:
        raise LabError("CASES is empty: there is nothing to play")
    quiz = Quiz()
    all_played: list[Played] = []
    with workplace(options.keep) as folder:
        for number, name in enumerate(options.names, start=1):
            played = play_in(folder, name, options.steps)
            if options.json:
                show_json(played)
            elif played.events:
                show(played, f"case {number} of {len(options.names)}", quiz, options)
            if played.error:
                raise LabError(played.error)
            all_played.append(played)
        if not options.json and len(all_played) > 1:
            say(*table(all_played))
        if quiz.answers:
            say(quiz.score())
        if options.keep:
            keep_report(folder, report(all_played, quiz))
            kept = ", ".join(f"{played.name}.sqlite3" for played in all_played)
            say(f"kept in {options.keep}: report.md, and the databases {kept}", err=options.json)


def keep_report(folder: str, text: str) -> None:
    path = os.path.join(folder, "report.md")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write(text)


def play_in(folder: str, name: str, steps: list[Step]) -> Played:
    """Play a case, or the story of these steps, on a database of its own in the folder."""
    database = os.path.join(folder, f"{name}.sqlite3")
    if steps:
        plot = "; ".join(step.text for step in steps)
        return play(name, plot, play_story(steps, database), folder)
    return play(name, PLOTS.get(name, ""), run_case(name, database), folder)


def play(name: str, plot: str, story: Any, folder: str) -> Played:
    """Play a generator of events to its end, or to the error that ends it."""
    events: list[Event] = []
    line = 0
    try:
        for event in story:
            line = story.gi_frame.f_lineno
            check_row(event, events)
            events.append(event)
        if not events:
            raise Misstep("no row was yielded")
        job = events[-1].job
        if len(events) < len(job.events):
            raise Misstep(NOT_YIELDED)
        return Played(
            name=name,
            plot=plot,
            events=events,
            saved=job.saved,
            conclusion=conclude(job),
            error="",
        )
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:
        text = str(error) if isinstance(error, Misstep) else error_text(origin(error))
        place = place_of(error, line)
        if is_of_a_file(error, events):
            place = f"in the folder {folder}"
        message = f"{name}: {text} ({place})"
        error.__traceback__ = None  # it holds SQLite's cursors: Windows would not delete the file
        return Played(
            name=name,
            plot=plot,
            events=events,
            saved=saved_in_the_end(events),
            conclusion=Conclusion(),
            error=message,
        )
    finally:
        with suppress(Exception):
            story.close()
        for event in events[-1:]:
            event.job.close()


def check_row(event: object, before: list[Event]) -> None:
    """Misstep: it is not the row of the act after those `before`. An edit may yield anything."""
    rows = event.job.events[len(before) :] if isinstance(event, Event) else []
    if event in rows[1:]:
        raise Misstep(NOT_YIELDED)
    if event not in rows:
        raise Misstep("what is yielded is not the row of an act that took place just now")


def saved_in_the_end(events: list[Event]) -> Committed:
    """What an error left behind: it may have come of a change without a row."""
    if not events:
        return Committed(drafts=(), receipts=())
    last = events[-1]
    with suppress(OSError, sqlite3.Error):
        return committed(last.job.database)
    return last.saved


NOT_YIELDED = "an act took place and its row was not yielded: write yield from"


def origin(error: BaseException) -> BaseException:
    """The error itself: a generator hides a StopIteration in another one."""
    hidden = error.__cause__
    return hidden if isinstance(hidden, StopIteration) else error


def place_of(error: BaseException, line: int) -> str:
    """The innermost line of the lesson's part in which it came up: of a misstep, in run_case().
    Or else `line` of that."""
    import traceback

    lesson = run_case.__code__
    last = max(number for _, _, number in lesson.co_lines() if number)
    for frame in reversed(traceback.extract_tb(origin(error).__traceback__)):
        here = frame.filename == lesson.co_filename and 0 < (frame.lineno or 0) <= last
        told = frame.name != "acted"  # which stands around every act
        if isinstance(error, Misstep):
            told = frame.name == "run_case"
        if here and told:
            return f"line {frame.lineno}, in {frame.name}"
    return f"line {line or lesson.co_firstlineno}, in run_case"


def is_of_a_file(error: BaseException, events: list[Event]) -> bool:
    """Whether a file is at fault, and no line: it cannot be used, or another program locks it."""
    at_once = any(event.seen and event.seen.at_once for event in events[-1:])
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, OSError) or code in NO_FILE or (is_locked(error) and not at_once)


def show_json(played: Played) -> None:
    import json

    for event in played.events:
        fields = {name: getattr(event, name) for name in JSON_FIELDS}
        if played.error:
            fields["conclusion"] = None
        say(json.dumps(fields, default=str))


def show(played: Played, place: str, quiz: Quiz, options: argparse.Namespace) -> None:
    """One case on the screen, with the questions that were asked for."""
    mark = edit_mark(played.name, account(played))
    title = f"{played.name}{mark}"
    plot = [*wrapped(played.plot), ""]
    asks = (options.predict or options.step) and not played.error
    predicted = {}
    if asks and options.predict:
        say(titled(place), *plot)
        predicted = predict(quiz)
        plot = [""]
    if asks and options.step:
        title = f"{place}{mark}; its name comes at the end"
    say(titled(title), *plot, *heads())
    for event in played.events:
        guessed = ask_for_guess(quiz, event) if asks and options.step else {}
        say(*row_lines(event, played.conclusion.decided_by))
        if guessed:
            say(f"= {check_guess(quiz, guessed, event)}")
    if options.picture:
        say("", *picture(played.events))
    say("", *evidence(played), *verdict(played))
    for told in judge_predictions(quiz, predicted, played):
        say(*wrapped(f"= {told}"))
    say()


@contextmanager
def workplace(keep: str | None) -> Iterator[str]:
    """The folder to play in: `keep`, which must be new or empty, or else a temporary one."""
    if keep is None:
        with temporary_folder() as folder:
            yield folder
        return
    try:
        if not os.path.isdir(keep):
            os.mkdir(keep)
        elif os.listdir(keep):
            raise LabError(f"{keep} is not empty: name a new folder for --keep")
        elif not os.access(keep, os.W_OK):
            raise LabError(f"{keep} is closed to you: name a new folder for --keep")
    except OSError as error:
        raise LabError(f"{keep} cannot be made: {error.strerror}; name a new folder") from None
    yield keep


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A new folder, which is gone afterwards, whatever ends the run."""
    import tempfile
    import time

    folder = ""
    try:
        with SIGNALS.held():  # or one could come when it is made and not yet known
            folder = tempfile.mkdtemp()
        yield folder
    finally:
        with SIGNALS.held():
            for _ in range(5):  # on Windows a scanner may have a file open for a moment
                shutil.rmtree(folder, ignore_errors=True)
                if not os.path.exists(folder):
                    break
                time.sleep(0.1)  # seconds


WHAT_IS_SEARCHED = (
    "A schedule is one order of moves: a worker's next step, inside apply() each single SQL"
    " statement; the end of a lease; a delivery. It may break off after any of them: there both"
    " workers stop, and if the message is not settled, one more worker gets it and does the second"
    " program, undisturbed. Then it is judged. These go wrong: duplicated, lost, mistaken, two"
    " actions; and pending, when not even that last worker settled it, without a conflict."
)


def show_search(programs: list[list[Move]]) -> int:
    """Search, show the shortest schedule that goes wrong, and the numbers. Returns the status."""
    if not isinstance(LEASE, int) or not 1 <= LEASE <= LAST_TICK // 2:
        raise LabError(f"LEASE is {LEASE}: a search needs 1 to {LAST_TICK // 2} whole ticks")
    say("Every schedule of two deliveries, each played on a queue and a database:")
    for which, program in zip(("first", "second"), programs, strict=True):
        steps = "; ".join(move._replace(statements=None).text() for move in program)
        say(*wrapped(f"  {which} delivery's worker: {steps}"))
    say("", *wrapped(WHAT_IS_SEARCHED), "")
    with temporary_folder() as folder:
        search = Search(programs, folder)
        search.run()
        what, story = worst(search)
        if story:
            played = play_in(folder, "story", parse_story(story))
            say(*wrapped(what), "", titled(played.name), *account(played), "")
    say(*numbers(search))
    if not story:
        say("So it is for one message, one key and its payload.")
    return int(any(search.counts[word] for word in WRONG))


def numbers(search: Search) -> Iterator[str]:
    """How many schedules end with each conclusion, in how many a worker failed; a story of each."""
    total = sum(search.counts.values()) - search.counts[FAILED]
    yield f"{total} schedules (counts, no odds; another apply() has others), of which end"
    for word, number in search.counts.items():
        if number:
            failed = f"in {number} of them a worker failed"
            yield failed if word == FAILED else f"{number:>6} {word}"
            if word != "once":
                yield f'       --story "{search.stories[word]}"'
    if not search.counts[FAILED]:
        yield "and in none of them a worker failed."


def worst(search: Search) -> tuple[str, str]:
    """What the schedule to show is, and its story; none where all is well."""
    for word, story in search.stories.items():
        if word in WRONG:
            return "The shortest that goes wrong:", story
    if FAILED in search.stories:
        what = "None goes wrong, but a worker fails. The shortest in which it does:"
        return what, search.stories[FAILED]
    what = (
        "None goes wrong. A conflict is no fault: it is what different payloads under one key must"
        " come to. The shortest:"
    )
    return what, search.stories.get("conflict", "")


# == 16. The command line: words in, exit status out ===============================================
USAGE = """LAB demo [CASE ...] [--story STORY] [--picture] [--json] [--predict]
                [--step] [--keep DIR]
       LAB demo --search PROGRAM [--search PROGRAM]
       LAB test [options of unittest]
       LAB --version"""


class Parser(argparse.ArgumentParser):
    """argparse with one line for a usage error, and help of the same width everywhere."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.color = False  # which Python 3.14 would use
        self.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=WIDTH)

    def error(self, message: str) -> NoReturn:
        refuse(f"{message}; demo -h shows what there is")


def refuse(why: str, verbatim: bool = False) -> NoReturn:
    """Bad usage: one line, and the end."""
    say(f"error: {why}", err=True, verbatim=verbatim)
    raise SystemExit(2)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of `demo`, checked; SystemExit for help, version and bad usage."""
    parser = Parser(
        prog="LAB",
        usage=USAGE,
        description="LAB stands for python3 (on Windows: py) and the name of this file.",
    )
    if arguments[:1] == ["demo"]:
        add_demo_options(parser)
        options = parser.parse_intermixed_args(arguments[1:])
        try:
            check_options(options)
            prepare(options)
        except UsageError as error:
            refuse(str(error))
        return options
    parser.add_argument("--version", action="version", version=VERSIONS)
    if arguments and not arguments[0].startswith("-"):
        refuse(f"there is no {quoted(arguments[0], 40)}: write demo or test")
    parser.parse_known_args(arguments)  # -h and --version end here
    refuse(f"say what to do: {how_to_run('demo')}", verbatim=True)


def add_demo_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=f"{known_cases()}; none: all of them")
    add(
        "--story",
        action="append",
        default=[],
        help=f'play your own story, such as "{EXAMPLE}". Workers are A, B and C. The'
        f" words for what they do: {', '.join(VERB_OF)}. tick 5: go on to tick 5. A writes blind:"
        " without a look, and without an effect receipt. A writes key=... payload=...: another"
        " order. A writes 3 statements: so much of its SQL; A goes on: the rest",
    )
    add(
        "--search",
        action="append",
        default=[],
        metavar="PROGRAM",
        help="play every schedule of two deliveries, down to the single SQL statement, whose"
        f' workers do, say, "{PROGRAM}"; a second PROGRAM is for the second delivery',
    )
    add("--picture", action="store_true", help="draw each case: queue, workers and database")
    add("--predict", action="store_true", help="ask first what will come of each case")
    add("--step", action="store_true", help="ask about each event before its row is shown")
    add("--json", action="store_true", help="print the events as JSON Lines, and nothing else")
    add("--keep", metavar="DIR", help="keep the databases and a report in DIR, new or empty")


NO_CASE = r"^[abc]\b|^tick\b|;|['\"\u2010-\u201f]"  # but a piece of a story, or a dash made long


def check_options(options: argparse.Namespace) -> None:
    """UsageError: words that do not go together, or a case that there is not."""
    unknown = [case for case in options.cases if case not in CASES]
    if options.search and (unknown or any(re.search(QUOTE_LEFT_IN, p) for p in options.search)):
        raise UsageError(in_quotes("program", f'--search "{PROGRAM}"'))
    if unknown and (options.story or re.search(NO_CASE, unknown[0], re.I)):
        raise UsageError(in_quotes("story", f'--story "{EXAMPLE}"'))
    if len(options.story) + bool(options.cases) + bool(options.search) > 1:
        raise UsageError("name cases, or tell one --story, or --search: one of the three")
    if unknown:
        known = f"choose from {known_cases()}"
        raise UsageError(f"there is no case {quoted(unknown[0], 40)}: {known}")
    if options.keep == "":
        raise UsageError("--keep needs the name of a folder")
    asks = options.predict or options.step
    if options.json and (asks or options.picture):
        raise UsageError("--json stands without --predict, --step and --picture")
    if options.search and (asks or options.json or options.picture or options.keep):
        raise UsageError("--search goes alone: leave out the other options")


def known_cases() -> str:
    return ", ".join(map(str, CASES))


def in_quotes(what: str, example: str) -> str:
    return f"put the whole {what} in straight double quotes: {example}"


def prepare(options: argparse.Namespace) -> None:
    """Add the names to play, a story's steps, the programs to search. UsageError: they are none."""
    options.names = list(dict.fromkeys(map(str, options.cases or CASES)))
    options.steps = []
    options.programs = parse_programs(options.search)
    for story in options.story:
        options.names = ["story"]
        options.steps = parse_story(story)
        with temporary_folder() as folder:  # a rehearsal: of a bad story nothing is shown
            play_in(folder, "story", options.steps)


def how_to_run(words: str) -> str:
    """The whole command to paste."""
    import shlex

    path = os.path.abspath(__file__)
    name = os.path.basename(path)
    if os.path.abspath(name) == path:
        path = name
    if os.name == "nt":
        return f'py "{path}" {words}'
    return f"python3 {shlex.quote(path)} {words}"


def run_tests(options: list[str]) -> int:
    """Run the built-in tests with unittest's `options`. Returns the exit status."""
    import unittest

    os.environ["PYTHON_COLORS"] = "0"  # newer Pythons would colour the results
    module = type(sys)("lab")  # of the test cases alone
    for name, value in list(globals().items()):
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            setattr(module, name, value)
    loader = unittest.TestLoader()  # the shared one would remember the options
    words = ["test", *options]
    result = unittest.main(module, argv=words, testLoader=loader, exit=False).result
    if not result.testsRun:
        raise LabError("no test has such a name: test -v lists them all")
    return 0 if result.wasSuccessful() else 1


def run(arguments: list[str]) -> int:
    if arguments[:1] == ["test"]:
        return run_tests(arguments[1:])
    options = parse(arguments)
    if options.programs:
        return show_search(options.programs)
    demo(options)
    return 0


class Terminated(KeyboardInterrupt):
    """The system asks the program to end: whatever lets a Ctrl-C through lets this through."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Ctrl-C, SIGTERM and SIGHUP, each as an exception, so that nothing is left behind."""

    def __init__(self) -> None:
        self._holding = False
        self._came = 0

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Where the program has not set its own."""
        names = ("SIGINT", "SIGTERM", "SIGHUP")
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        before: dict[int, Any] = {}
        try:
            with suppress(ValueError):  # not in the main thread: signals do not come here
                for number in numbers:
                    handler = signal.getsignal(number)
                    if handler in (signal.SIG_DFL, signal.default_int_handler):
                        before[number] = signal.signal(number, self._hear)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """What comes meanwhile is raised at the end."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
            came = self._came
            self._came = 0
            if came:
                self._hear(came, None)

    def _hear(self, number: int, frame: object) -> None:
        if self._holding:
            self._came = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise Terminated(number)


SIGNALS = Signals()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status; argparse's own exits stay SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with suppress(AttributeError, ValueError):  # not for any stream; Windows would write \r\n
        sys.stdout.reconfigure(newline="\n")  # type: ignore[union-attr]
    try:
        try:
            with SIGNALS.heard():
                return run(arguments)
        finally:
            say(end="")  # what is still buffered must fail here, not at the interpreter's exit
    except Terminated as end:
        complaint = []
        status = 128 + end.number
    except KeyboardInterrupt:
        complaint = ["", "interrupted"]  # not on the line of a prompt
        status = 130
    except BrokenPipeError:  # nobody reads on
        return 1
    except LabError as error:
        complaint = [f"error: {error}"]
        status = 1
    except Exception as error:  # of the system, or of an edit
        complaint = [f"error: {error_text(error)}"]
        status = 1
    with suppress(LabError, BrokenPipeError):
        say(*complaint, err=True)
    return status


def say(*lines: str, end: str = "\n", err: bool = False, verbatim: bool = False) -> None:
    """Write to the console. BrokenPipeError: nobody reads on; LabError: it cannot be written."""
    stream = sys.stderr if err else sys.stdout
    if stream is None:  # a program without a console
        return
    try:
        texts = lines if verbatim else map(plain, lines)
        print(*texts, sep="\n", end=end, file=stream, flush=end != "\n")
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError, AttributeError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())  # for what is still buffered
        if isinstance(error, BrokenPipeError) or is_closed_pipe_of_windows(error):
            raise BrokenPipeError from None
        raise LabError(f"the output cannot be written: {error}") from None


def is_closed_pipe_of_windows(error: Exception) -> bool:
    return os.name == "nt" and isinstance(error, OSError) and error.errno == EINVAL


# == 17. The tests: what the lesson says, sentence by sentence =====================================
if TYPE_CHECKING or __name__ != "__main__" or sys.argv[1:2] == ["test"]:
    from unittest import TestCase
else:
    TestCase = object  # loading unittest takes as long as all four cases: demo goes without

FILE = os.path.abspath(__file__)
PUBLISHED_DEMO = (
    "\n".join(PUBLISHED.values())
    + """
case              deliveries  saved drafts  message    conclusion
normal                     1             1  settled    once
duplicate-effect           2             2  settled    duplicated
reuse-effect               2             1  settled    once
early-ack                  1             0  settled    lost
"""
)
EDIT_1 = '"J-12:draft:v1",  # EDIT POINT 1'
EDIT_2 = '"replace the pump seal",  # EDIT POINT 2'


# As the published one, so that tests of what rows say of its SQL hold after any edit of that.
PLAIN_APPLY = """\
def apply(database, *, tenant, operation, payload, reuse=True):
    _require_text(tenant=tenant, operation=operation, payload=payload)
    os.stat(database)
    key = (tenant, operation)
    order = (tenant, operation, payload)
    with connect(database) as db:
        db.execute("BEGIN IMMEDIATE")
        look = "SELECT payload, draft_id FROM receipts WHERE tenant = ? AND operation = ?"
        found = db.execute(look, key).fetchone() if reuse else None
        if found is not None:
            if found[0] != payload:
                raise OperationConflict("operation_conflict")
            return Applied("reused", found[1])
        draft = "INSERT INTO drafts (tenant, operation, payload) VALUES (?, ?, ?)"
        number = db.execute(draft, order).lastrowid
        proof = "INSERT INTO receipts (tenant, operation, payload, draft_id) VALUES (?, ?, ?, ?)"
        if reuse:
            db.execute(proof, (*order, number))
        db.execute("COMMIT")
        return Applied("created", number)
"""


@functools.cache
def text_of_run_case(first: int = run_case.__code__.co_firstlineno) -> str:
    import inspect

    with open(FILE, encoding="utf-8-sig") as file:
        return "".join(inspect.getblock(file.readlines()[first - 1 :]))


class Said(NamedTuple):
    """What a run of the lab came to."""

    status: Any
    out: str
    err: str


class LabTest(TestCase):
    """A folder to work in, and the lab itself."""

    maxDiff = None
    published = {"run_case": run_case, "apply": apply}
    database = "work.sqlite3"
    order: Any = {"tenant": "north", "operation": "J-12:draft:v1", "payload": "a draft"}

    def setUp(self) -> None:
        from tempfile import TemporaryDirectory

        self.enterContext(chdir(self.enterContext(TemporaryDirectory())))

    def apply(self, **changed: Any) -> Applied:
        return apply(self.database, **{**self.order, **changed})

    def lab(self, *words: str, typed: str = "") -> Said:
        """Run the lab with these words on its command line, and with that input."""
        said = self.lab_with(io.StringIO(typed), *words)
        if said.status == 130:  # meant for the test run, not for the lab in it
            raise KeyboardInterrupt
        if said.status in (143, 129):
            raise Terminated(said.status - 128)
        return said

    def lab_with(self, stdin: Any, *words: str) -> Said:
        self.addCleanup(setattr, sys, "stdin", sys.stdin)
        sys.stdin = stdin
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            try:
                status: Any = main(words)
            except SystemExit as leaving:
                status = leaving.code
        return Said(status, out.getvalue(), err.getvalue())

    def source(self, name: str = "run_case") -> str:
        """The text of run_case() as the file has it; an apply() of which the SQL is known."""
        return PLAIN_APPLY if name == "apply" else text_of_run_case()

    def changed(self, name: str, *edits: str) -> str:
        """That text, with one part after the other replaced, where it stands last."""
        source = self.source(name)
        for old, new in zip(edits[::2], edits[1::2], strict=True):
            before, found, after = source.rpartition(old)
            self.assertTrue(found, f"{old!r} stands nowhere in {name}()")
            source = f"{before}{new}{after}"
        return source

    @contextmanager
    def edit(self, *edits: str) -> Iterator[None]:
        """run_case() with texts replaced."""
        with self.edited("run_case", self.changed("run_case", *edits)):
            yield

    @contextmanager
    def edited(self, name: str, source: str, **constants: Any) -> Iterator[None]:
        """That function in the place of the published one, on the same lines."""
        published = self.published[name].__code__
        lines_above = "\n" * (published.co_firstlineno - 1)
        before = {name: globals().get(name) for name in (name, *constants)}
        globals().update(constants)
        try:
            exec(compile(lines_above + source, published.co_filename, "exec"), globals())
            yield
        finally:
            globals().update(before)

    def pairs(self, text: str) -> list[tuple[str, str]]:
        """What stands in a text as a line, and what is expected of it, indented below."""
        pairs = []
        for given, expected in re.findall(r"^((?:\S.*\n)+)((?: {4}.*\n)+)", text, re.M):
            for line in given.splitlines():
                pairs.append((line, expected.strip().replace("\n    ", " ")))
        return pairs

    def process(self, *words: str, **settings: Any) -> Any:
        import subprocess

        command = [sys.executable, *words]
        settings = {"encoding": "utf-8", "stdout": subprocess.PIPE, **settings}
        return self.enterContext(subprocess.Popen(command, **settings))

    def tell(self, story: str) -> Played:
        with temporary_folder() as folder:
            return play_in(folder, "story", parse_story(story))

    def outcome(self, played: Played) -> str:
        """Deliveries, drafts, effect receipts, message, conclusion, and the row that decides."""
        end = played.events[-1]
        counts = f"{end.deliveries} {end.drafts} {end.receipts}"
        decided = "none"
        for event in played.events:
            if event.step == played.conclusion.decided_by:
                decided = f"{event.action} of {event.actor}"
        return f"{counts} {end.message} {played.conclusion.word}: {decided}"

    def actions(self, played: Played) -> str:
        return " ".join(event.action for event in played.events)


class QueueTest(LabTest):
    def test_lease_boundary_nothing_at_tick_4_and_a_second_delivery_at_tick_5(self) -> None:
        queue = Queue(lease=5)
        message = queue.send("job")
        self.assertEqual(queue.receive(now=0), ("delivery-1", message, "job", 1, 5))

        self.assertIsNone(queue.receive(now=4))
        self.assertEqual(queue.state(message, now=4), "in_flight")

        self.assertEqual(queue.state(message, now=5), "ready")
        self.assertEqual(queue.receive(now=5), ("delivery-2", message, "job", 2, 10))

    def test_late_acknowledgement_by_a_slow_worker_settles_nothing(self) -> None:
        queue: Any = Queue(lease=5)
        message = queue.send("job", now=0)
        slow = queue.receive(now=0)

        other = queue.receive(now=5)  # the lease of the slow one has ended
        with self.assertRaises(StaleReceipt):
            queue.ack(slow.receipt, now=6)
        self.assertEqual(queue.state(message, now=6), "in_flight")

        queue.ack(other.receipt, now=9)
        self.assertEqual(queue.state(message, now=9), "settled")

    def assertStale(self, kind: str, queue: Queue, receipt: str, now: int) -> None:
        before = queue.state(1, now=now)
        for act in (queue.ack, queue.extend):
            text = f"stale_receipt, {kind}: '{receipt}'"
            with self.assertRaisesRegex(StaleReceipt, f"^{text}$") as caught:
                act(receipt, now=now)
            self.assertEqual(caught.exception.receipt, receipt)
            self.assertEqual(caught.exception.kind, kind)
            self.assertEqual(queue.state(1, now=now), before)

    def test_stale_receipt_says_which_of_the_four_it_is(self) -> None:
        queue = Queue(lease=5)
        queue.send("job")
        queue.receive(now=0)
        self.assertStale("unknown", queue, "delivery-2", now=4)
        self.assertStale("lapsed", queue, "delivery-1", now=5)
        queue.receive(now=5)
        self.assertStale("superseded", queue, "delivery-1", now=5)
        queue.ack("delivery-2", now=9)
        self.assertStale("already settled", queue, "delivery-2", now=10)
        self.assertStale("superseded", queue, "delivery-1", now=10)

    def test_extended_lease_ends_as_many_ticks_from_the_extension(self) -> None:
        queue: Any = Queue(lease=5)
        message = queue.send("job")
        slow = queue.receive(now=0)
        self.assertEqual(queue.extend(slow.receipt, now=4), 9)
        self.assertIsNone(queue.receive(now=8))
        self.assertEqual(queue.state(message, now=8), "in_flight")
        self.assertEqual(queue.receive(now=9), ("delivery-2", message, "job", 2, 14))

    def test_extended_delivery_can_be_acknowledged_and_is_delivered_once(self) -> None:
        queue: Any = Queue(lease=5)
        message = queue.send("job")
        slow = queue.receive(now=0)
        queue.extend(slow.receipt, now=0)
        queue.extend(slow.receipt, now=3)
        queue.ack(slow.receipt, now=7)
        self.assertEqual(queue.state(message, now=7), "settled")
        self.assertIsNone(queue.receive(now=99))

    def test_settled_message_is_not_delivered_again_in_this_model(self) -> None:
        queue: Any = Queue(lease=5)
        queue.send("job")
        queue.ack(queue.receive(now=0).receipt, now=4)
        self.assertIsNone(queue.receive(now=5))
        self.assertEqual(queue.state(1, now=99), "settled")

    def test_message_available_longest_comes_first_and_none_is_lost(self) -> None:
        queue = Queue(lease=3)
        for tick in (0, 0, 1, 1):
            queue.send(f"sent at {tick}", now=tick)
        given = [queue.receive(now=now) for now in (1, 1, 1, 2, 3, 4, 5, 9)]
        ids = [delivery and delivery.message_id for delivery in given]
        self.assertEqual(ids, [1, 2, 3, 4, None, 1, 2, 3])

    def test_message_is_not_there_before_the_tick_at_which_it_was_sent(self) -> None:
        queue = Queue(lease=5)
        message = queue.send("job", now=3)
        self.assertEqual(queue.state(message, now=3), "ready")
        self.assertIsNone(queue.receive(now=2))

    def test_unknown_message_has_no_state(self) -> None:
        queue = Queue(lease=5)
        queue.send("job")
        self.assertRaises(KeyError, queue.state, 2, now=0)

    def test_longer_lease_delays_the_second_delivery_after_a_death(self) -> None:
        for lease in (1, 5, 500):
            with self.subTest(lease=lease):
                queue = Queue(lease)
                queue.send("job")
                queue.receive(now=0)
                self.assertIsNone(queue.receive(now=lease - 1))
                self.assertIsNotNone(queue.receive(now=lease))

    def test_lease_under_one_tick_is_refused(self) -> None:
        self.assertRaisesRegex(ValueError, "^lease must be at least 1 tick, not 0$", Queue, lease=0)


class DatabaseTest(LabTest):
    def setUp(self) -> None:
        super().setUp()
        create_database(self.database)

    def test_receipt_rolls_back_with_effect(self) -> None:
        for action in ("ABORT", "ROLLBACK"):  # with ROLLBACK, SQLite ends the transaction itself
            with self.subTest(action=action):
                create_database(action)
                with connect(action) as db:
                    stop = f"BEGIN SELECT RAISE({action}, 'in between'); END"
                    db.execute(f"CREATE TRIGGER stop BEFORE INSERT ON receipts {stop}")
                with self.assertRaisesRegex(sqlite3.IntegrityError, "^in between$"):
                    apply(action, **self.order)
                self.assertEqual(committed(action), ((), ()))

                with connect(action) as db:
                    db.execute("DROP TRIGGER stop")
                self.assertEqual(apply(action, **self.order).status, "created")

    def test_second_write_under_the_same_key_finds_the_first(self) -> None:
        self.assertEqual(self.apply(), ("created", 1))
        before = committed(self.database)
        self.assertEqual(self.apply(), ("reused", 1))
        self.assertEqual(committed(self.database), before)

    def test_other_work_under_the_same_key_is_refused_and_changes_nothing(self) -> None:
        self.apply()
        before = committed(self.database)
        refused = "^operation_conflict"
        self.assertRaisesRegex(OperationConflict, refused, self.apply, payload="another draft")
        self.assertEqual(committed(self.database), before)

    def test_keys_and_payloads_are_compared_to_the_letter(self) -> None:
        texts = "caf\u00e9", "cafe\u0301", "CAF\u00c9", "caf\u00e9 ", "caf\u00e9\0", "caf\u00e9\0x"
        for text in texts:
            for key in ({"tenant": text}, {"operation": text}):
                self.assertEqual(self.apply(**key).status, "created", key)
                self.assertEqual(self.apply(**key).status, "reused", key)
        self.apply(payload=texts[0])
        for text in texts[1:]:
            self.assertRaises(OperationConflict, self.apply, payload=text)

    def test_unprotected_write_looks_for_nothing_and_leaves_no_effect_receipt(self) -> None:
        self.apply()
        self.assertEqual(self.apply(reuse=False), ("created", 2))
        drafts, receipts = committed(self.database)
        self.assertEqual([draft.draft_id for draft in drafts], [1, 2])
        self.assertEqual([receipt.draft_id for receipt in receipts], [1])

    def test_what_is_no_text_is_refused_before_the_database_is_touched(self) -> None:
        refusals: list[tuple[Any, type[Exception], str]] = [
            (7, TypeError, "must be a str, not int"),
            (None, TypeError, "must be a str, not NoneType"),
            (b"x", TypeError, "must be a str, not bytes"),
            ("", ValueError, "must not be empty"),
            ("\ud800", ValueError, "holds a lone surrogate, which SQLite cannot store"),
        ]
        for name in self.order:
            for value, error, why in refusals:
                order = {**self.order, name: value}
                with self.subTest(order=order):
                    self.assertRaisesRegex(error, f"^{name} {why}$", apply, "nowhere", **order)

    def test_database_that_is_missing_is_an_error_and_is_not_made(self) -> None:
        self.assertRaises(FileNotFoundError, apply, "nowhere", **self.order)
        self.assertRaises(FileNotFoundError, committed, "nowhere")
        self.assertFalse(os.path.exists("nowhere"))

    def test_tables_that_are_there_stay_as_they_are(self) -> None:
        self.apply()
        before = committed(self.database)
        create_database(self.database)
        self.assertEqual(committed(self.database), before)

    def test_number_of_a_deleted_draft_is_never_given_away_again(self) -> None:
        self.apply(reuse=False)
        with connect(self.database) as db:
            db.execute("DELETE FROM drafts")
        self.assertEqual(self.apply(tenant="south").draft_id, 2)

    def assertForbidden(self, statement: str) -> None:
        with self.subTest(statement), connect(self.database) as db:
            self.assertRaises(sqlite3.IntegrityError, db.execute, statement)

    def test_schema_forbids_a_second_receipt_and_one_without_its_draft_and_gaps(self) -> None:
        self.apply()
        self.apply(reuse=False)  # a second draft, for a second effect receipt to name
        draft = "INSERT INTO drafts (tenant, operation, payload) VALUES"
        receipt = "INSERT INTO receipts (tenant, operation, payload, draft_id) VALUES"
        self.assertForbidden(f"{receipt} ('north', 'J-12:draft:v1', 'x', 2)")  # a second one
        self.assertForbidden(f"{receipt} ('south', 'x', 'x', 3)")  # there is no draft 3
        for gap in ("NULL, 'x', 'x'", "'x', NULL, 'x'", "'x', 'x', NULL"):
            self.assertForbidden(f"{draft} ({gap})")
            self.assertForbidden(f"{receipt} ({gap}, 2)")
        self.assertForbidden(f"{receipt} ('x', 'x', 'x', NULL)")

    # A process with the lesson's part of this file, which is killed after so many statements.
    WORKER = """
import functools, os, signal, sqlite3, sys
source, database, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
class Mortal(sqlite3.Connection):
    def execute(self, sql, *values):
        global left
        result = super().execute(sql, *values)
        left -= not sql.startswith("PRAGMA")
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return result
sqlite3.connect = functools.partial(sqlite3.connect, factory=Mortal)
lab = {"__name__": "lab"}
with open(source, "rb") as file:
    exec(file.read().split(b"# == 3.")[0], lab)
print("ready", flush=True)
order = dict(tenant="north", operation="J-12:draft:v1", payload="a draft")
print(lab["apply"](database, **order).status)
"""

    def worker(self, database: str, statements: int) -> Any:
        return self.process("-c", self.WORKER.strip(), FILE, database, str(statements))

    def test_of_many_processes_at_once_one_creates_and_the_others_reuse(self) -> None:
        with connect(self.database) as db:
            db.execute("BEGIN IMMEDIATE")  # all of them find the database locked, and wait
            workers = [self.worker(self.database, 99) for _ in range(3)]
            for worker in workers:
                self.assertEqual(worker.stdout.readline(), "ready\n")
        said = sorted(worker.stdout.read() for worker in workers)
        self.assertEqual(said, ["created\n", "reused\n", "reused\n"])

    def test_worker_killed_after_any_statement_leaves_both_rows_or_neither(self) -> None:
        numbers = (1, 2, 3, 4, 5, 99)
        for number in numbers:
            create_database(str(number))
        workers = {number: self.worker(str(number), number) for number in numbers}
        left = []
        for number, worker in workers.items():
            with self.subTest(statements=number):
                self.assertEqual(worker.stdout.read().split()[:1], ["ready"])
                worker.wait()
                drafts, receipts = committed(str(number))
                self.assertEqual(drafts, receipts)
                left.append(len(drafts))
                status = "reused" if drafts else "created"
                self.assertEqual(apply(str(number), **self.order).status, status)
        self.assertEqual((left[0], left[-1]), (0, 1))


class PublishedTest(LabTest):
    def test_demo_prints_the_published_text(self) -> None:
        import difflib

        said = self.lab("demo")
        seen = said.out.splitlines() + [f"error output: {line}" for line in said.err.splitlines()]
        names = ("as published", "as seen here")
        diff = difflib.unified_diff(PUBLISHED_DEMO.splitlines(), seen, *names, lineterm="", n=1)
        changes = "\n".join(diff)
        if changes:
            self.fail(f"after an edit of run_case() or LEASE this is as it should be:\n{changes}")

    def test_old_pythons_can_read_the_file_as_far_as_their_version_check(self) -> None:
        import ast

        with open(FILE, encoding="utf-8-sig") as file:
            text = file.read()
        ast.parse(text, feature_version=(3, 6))
        self.assertNotIn("\nfrom __future__", text)
        beginning, _ = text.split("\nimport os\n")
        self.assertEqual(re.findall("^(?:import|from) .*", beginning, re.M), ["import sys"])
        self.addCleanup(setattr, sys, "version_info", sys.version_info)
        sys.version_info = (3, 6, 15)  # type: ignore
        with redirect_stderr(io.StringIO()) as err, self.assertRaises(SystemExit) as leaving:
            exec(beginning, {"__name__": "lab"})
        self.assertEqual(leaving.exception.code, 2)
        needs = "This lab needs Python 3.11 or later; this is Python 3.6.15. Get a newer one from"
        self.assertTrue(err.getvalue().startswith(needs))
        self.assertEqual(err.getvalue().count("\n"), 1)

    def test_run_case_holds_two_literal_calls_of_apply_and_the_second_has_the_edit_points(
        self,
    ) -> None:
        import ast

        source = self.source()
        calls = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and {"operation", "payload"} <= {
                k.arg for k in node.keywords
            }:
                calls.append({word.arg: word.value for word in node.keywords})
        self.assertEqual(len(calls), 2)
        for call in calls:
            for name in ("operation", "payload"):
                self.assertIsInstance(call[name], ast.Constant, f"{name}= is no literal")
        second: Any = calls[-1]
        lines = source.splitlines()
        self.assertIn("# EDIT POINT 1: ", lines[second["operation"].end_lineno - 1])
        self.assertIn("# EDIT POINT 2: ", lines[second["payload"].end_lineno - 1])


class PublishedStoryTest(LabTest):
    """Tests that need the story as it is published."""

    _published: dict[Any, bool] = {}

    def setUp(self) -> None:
        super().setUp()
        version = (run_case, apply, LEASE, TENANT, CASES)
        if version not in self._published:
            self._published[version] = self.lab("demo").out == PUBLISHED_DEMO
        if not self._published[version]:
            self.skipTest("needs the published story: see test_demo_prints_the_published_text")

    def play(self, case: str) -> Played:
        with temporary_folder() as folder:
            return play_in(folder, case, [])

    def assertTrueRows(self, played: Played) -> None:
        """Each row tells of what changed, and of nothing else."""
        drafts = 0
        deliveries = 0
        message = "ready"
        for event in played.events:
            self.assertEqual(event.drafts - drafts, event.detail.count("COMMITS draft"))
            self.assertEqual(event.deliveries - deliveries, event.action == "deliver")
            if "settled" in (event.message, message) and event.message != message:
                self.assertEqual(event.action, "ack")
            drafts = event.drafts
            deliveries = event.deliveries
            message = event.message
        if played.events:
            for line in account(played):
                self.assertRegex(line, "^[ -~]{0,79}$")
        self.assertEqual(bool(played.error), not played.conclusion.word)
        if played.error:
            place = r"line \d+, in \w+|in the folder .+"
            self.assertRegex(played.error, rf"^[a-z-]+: .* \(({place})\)$")


class CaseTest(PublishedStoryTest):
    def test_each_case_goes_as_the_lesson_tells_it(self) -> None:
        cases = {
            "normal": "send deliver commit ack",
            "duplicate-effect": "send deliver commit stop refuse lapse deliver commit ack",
            "reuse-effect": "send deliver commit stop refuse lapse deliver reuse ack",
            "early-ack": "send deliver ack stop refuse",
        }
        self.assertEqual(tuple(cases), CASES)
        for case, actions in cases.items():
            self.assertEqual(self.actions(self.play(case)), actions)

    def test_last_event_of_a_case_has_its_conclusion(self) -> None:
        *events, end = list(run_case("normal", self.database))
        self.assertEqual([event.conclusion for event in events], [None] * len(events))
        self.assertEqual(end.conclusion, "once")

    def test_evidence_of_a_case_that_an_error_ended_is_what_is_committed(self) -> None:
        raw = 'apply(database, tenant="a", **{"operation": "b"}, payload="c")'
        with self.edit("yield from job.tick(LEASE + 2)", raw):
            played = self.play("reuse-effect")
        self.assertIn("  draft 2                   'a / b' ", "\n".join(evidence(played)))

    def test_message_carries_an_order_of_texts(self) -> None:
        with self.edit('Order(TENANT, "J-12:draft:v1", ', 'Order(TENANT, ["a"], '):
            error = self.play("normal").error
        self.assertIn("normal: TypeError: operation must be a str, not list (line ", error)

    def test_case_without_a_story_is_refused_at_its_first_event(self) -> None:
        why = "no story is told of a case named 'nope'"
        with self.assertRaisesRegex(ValueError, f"^{why}$"):
            next(run_case("nope", self.database))
        with self.edited("run_case", self.source(), CASES=("nope",)):
            self.assertIn(f"error: nope: ValueError: {why} (line ", self.lab("demo").err)

    def test_case_without_rows_is_an_error_with_a_line_and_nothing_is_shown(self) -> None:
        with self.edit("    if case not in PLOTS:", "    return\n    if case not in PLOTS:"):
            said = self.lab("demo")
        line = run_case.__code__.co_firstlineno
        error = f"error: normal: no row was yielded (line {line}, in run_case)\n"
        self.assertEqual(said, (1, "", error))

    def test_case_can_be_played_again_over_the_same_database(self) -> None:
        first = list(run_case("normal", self.database))
        second = list(run_case("normal", self.database))
        self.assertEqual(second[2].action, "reuse")
        self.assertEqual(second[-1].saved.drafts, first[-1].saved.drafts)
        sentence = conclude(second[-1].job).sentence
        self.assertIn("The look of worker A found the effect receipt.", sentence)

    def test_draft_that_was_there_before_is_decided_by_no_row(self) -> None:
        for _ in range(2):
            *_, end = run_case("duplicate-effect", self.database)
        self.assertEqual(end.drafts, 4)
        self.assertEqual(conclude(end.job).decided_by, 0)

    def test_each_event_is_read_back_through_a_new_connection(self) -> None:
        opened = []

        def connect_and_count(*args: Any, **settings: Any) -> Any:
            opened.append(args)
            return connect_before(*args, **settings)

        connect_before = sqlite3.connect
        self.addCleanup(setattr, sqlite3, "connect", connect_before)
        sqlite3.connect = connect_and_count
        for _ in run_case("reuse-effect", self.database):
            self.assertTrue(opened)
            opened.clear()

    def test_queues_side_is_the_same_whether_or_not_the_worker_had_committed(self) -> None:
        after_commit = self.tell("A gets; A writes; A stops; tick 5; B gets").events
        before_commit = self.tell("A gets; A stops; tick 5; B gets").events
        self.assertEqual(after_commit[-1].drafts, 1)
        self.assertEqual(before_commit[-1].drafts, 0)
        del after_commit[2]  # the commit, which the queue does not see
        for after, before in zip(after_commit, before_commit, strict=True):
            self.assertEqual(after.tick, before.tick)
            self.assertEqual(after.message, before.message)
            self.assertEqual(after.deliveries, before.deliveries)

    def test_experiment_1_a_new_key_makes_the_repeat_another_action(self) -> None:
        with self.edit(EDIT_1, EDIT_1.replace("v1", "v2")):
            reuse = self.play("reuse-effect")
            duplicate = self.play("duplicate-effect")
            normal = self.play("normal")
        self.assertEqual(self.outcome(reuse), "2 2 2 settled two actions: commit of worker B")
        self.assertEqual(self.outcome(duplicate), "2 2 0 settled two actions: commit of worker B")
        self.assertEqual(edit_mark("reuse-effect", account(reuse)), ", edited")
        self.assertEqual(edit_mark("normal", account(normal)), "")

    def test_experiment_2_other_work_under_the_same_key_is_refused(self) -> None:
        with self.edit(EDIT_2, EDIT_2.replace("replace the pump seal", "different draft")):
            reuse = self.play("reuse-effect")
            duplicate = self.play("duplicate-effect")
            self.assertEqual(self.lab("demo").status, 0)
        self.assertEqual(self.outcome(reuse), "2 1 1 in_flight conflict: conflict of worker B")
        self.assertEqual(self.outcome(duplicate), "2 2 0 settled duplicated: commit of worker B")
        self.assertEqual(reuse.events[-1].payload, "different draft")
        self.assertEqual(
            trace(reuse)[-3:],
            [
                ">  6 worker B wants to write 'different draft'",
                "              looks: finds effect receipt of other work",
                "              is REFUSED: operation_conflict          in flight      1        1",
            ],
        )

    def test_story_moves_with_the_lease(self) -> None:
        with self.edited("run_case", self.source(), LEASE=8):
            reuse = self.play("reuse-effect")
            early = self.play("early-ack")
        self.assertEqual([event.tick for event in reuse.events], [0, 0, 1, 2, 7, 8, 8, 9, 10])
        self.assertEqual(self.outcome(reuse), "2 1 1 settled once: reuse of worker B")
        self.assertEqual([event.tick for event in early.events], [0, 0, 1, 2, 8])

    def test_lease_of_three_ticks_is_enough_and_one_of_two_is_not(self) -> None:
        with self.edited("run_case", self.source(), LEASE=3):
            self.assertEqual(self.play("reuse-effect").error, "")
        with self.edited("run_case", self.source(), LEASE=2):
            error = self.play("reuse-effect").error
        self.assertIn("LEASE is 2: the cases need at least 3 ticks", error)

    def test_edit_that_fails_shows_its_rows_and_evidence_and_one_error_line_and_nothing_more(
        self,
    ) -> None:
        with self.edit(
            'case == "normal":\n            yield from worker_a.acks()',
            'case == "normal":\n            job.queue.ack("delivery-7", now=2)',
        ):
            said = self.lab("demo", "--predict", "normal", "early-ack", typed="1\n1\nn\n")
        shown, _ = PUBLISHED["normal"].split("\n\nnormal: ONCE")
        shown = re.sub("\n   2 worker A .*", "", shown).replace(">  1", "   1")
        self.assertEqual(said.out, shown.replace("normal --------", "normal, edited ") + "\n\n")
        error = "error: normal: StaleReceipt: stale_receipt, unknown: 'delivery-7' "
        self.assertRegex(said.err, rf"^{error}\(line \d+, in _in_flight\)\n$")
        self.assertEqual(said.status, 1)

    def test_error_is_told_with_the_innermost_line_of_the_lesson(self) -> None:
        errors = {
            "1 / 0, #": r"ZeroDivisionError: division by zero \(line \d+, in run_case\)",
            "7, #": r"TypeError: payload must be a str, not int \(line \d+, in _require_text\)",
            '"\\ud800", #': r"ValueError: payload holds .* \(line \d+, in _require_text\)",
        }
        for new, error in errors.items():
            with self.subTest(new=new), self.edit(EDIT_2, new):
                played = self.play("reuse-effect")
                self.assertRegex(played.error, f"^reuse-effect: {error}$")
                self.assertEqual("fail" in self.actions(played), "/" not in new)

    def test_error_of_any_kind_is_one_line(self) -> None:
        errors = {
            "StopIteration('x')": "StopIteration: x",
            "SystemExit": "SystemExit",
            "GeneratorExit": "GeneratorExit",
            "BaseException('q')": "BaseException: q",
            "type('Mute', (Exception,), {'__str__': None})": r"Mute: \(its text cannot be made\)",
        }
        places = {"run_case": "        if worker_b.refused:", "apply": "    os.stat(database)"}
        for error, text in errors.items():
            for name, line in places.items():
                indent = line[: -len(line.lstrip())]
                source = self.changed(name, line, f"{indent}raise {error}\n{line}")
                with self.subTest(error, name=name), self.edited(name, source):
                    told = self.play("reuse-effect").error
                    self.assertRegex(told, rf"^reuse-effect: {text} \(line \d+, in {name}\)$")

    def test_file_that_cannot_be_used_is_told_with_its_folder_and_without_a_line(self) -> None:
        with self.edit("create_database(database)", 'create_database("no/such/folder")'):
            error = self.play("normal").error
        text = "normal: OperationalError: unable to open database file"
        self.assertRegex(error, rf"^{text} \(in the folder .+\)$")
        gets = "yield from worker_a.gets()"
        with self.edit(gets, f"os.remove(database)\n        {gets}"):
            error = self.play("normal").error
        self.assertRegex(error, r"^normal: FileNotFoundError: .* \(in the folder .+\)$")

    def test_database_that_another_program_locks_is_told_with_its_folder(self) -> None:
        def story(begin: str) -> Iterator[Event]:
            create_database(self.database)
            with Job("x", self.database) as job:
                worker = job.worker("worker A")
                yield from job.sends(LESSON)
                yield from worker.gets()
                with connect(self.database) as other:
                    other.execute(begin)
                    if begin == "BEGIN EXCLUSIVE":  # it keeps readers out, too
                        yield from worker.acks()
                    yield from worker.writes(**LESSON._asdict())

        for begin in ("BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"):
            played = play("x", "", story(begin), "y")
            error = "x: OperationalError: database is locked (in the folder y)"
            self.assertEqual(played.error, error)
            self.assertNotIn("ack", self.actions(played))


class EditTest(PublishedStoryTest):
    def case_of(self, lines: list[str], number: int) -> str:
        """The case whose branch of run_case() a line stands in, or else one that comes past it."""
        indent = 99
        for line in reversed(lines[: number + 1]):
            here = len(line) - len(line.lstrip())
            branch = re.match(' *if case == "(.*)":', line)
            if branch and here < indent:
                return branch[1]
            indent = min(indent, here)
        return "reuse-effect"

    def assertTrueRowsAfter(self, change: Callable[[list[str], int], None]) -> None:
        """Change one line of run_case() after the other, and play a case that comes past it."""
        published = self.source()
        for number in range(published.count("\n") - 1):
            lines = published.splitlines(keepends=True)
            case = self.case_of(lines, number)
            change(lines, number)
            source = "".join(lines)
            if source != published and self.compiles(source):
                with self.subTest(source=source), self.edited("run_case", source):
                    self.assertTrueRows(self.play(case))

    def compiles(self, source: str) -> bool:
        try:
            compile(source, FILE, "exec")
        except SyntaxError:
            return False
        return True

    def test_line_dropped_gives_true_rows_or_an_error_line(self) -> None:
        def drop(lines: list[str], number: int) -> None:
            if not lines[number].strip().startswith("#"):
                del lines[number]

        self.assertTrueRowsAfter(drop)

    def test_line_doubled_gives_true_rows_or_an_error_line(self) -> None:
        def double(lines: list[str], number: int) -> None:
            if "worker_" in lines[number] or "job." in lines[number]:
                lines.insert(number, lines[number])

        self.assertTrueRowsAfter(double)

    def test_lines_swapped_give_true_rows_or_an_error_line(self) -> None:
        def swap(lines: list[str], number: int) -> None:
            if lines[number].strip() and not lines[number].strip().startswith("#"):
                lines.insert(number, lines.pop(number + 1))

        self.assertTrueRowsAfter(swap)

    # A text of run_case(), what is put in its place, and how its error line begins.
    EDITS = """
yield from job.sends(
    -> job.sends(
    -> no message is sent yet: job.sends() comes first
yield from job.sends(
    -> yield from job.sends(Order("a", "b", "c")); yield from job.sends(
    -> the message is sent already, and a case follows one message
Order(TENANT, "J-12:draft:v1", "replace the pump seal")
    -> "J-12"
    -> TypeError: a message carries an Order, not str
yield from worker_b.acks()
    -> job.queue.ack(worker_b.delivery.receipt, now=job.now)
    -> something changed and no row tells of it
yield from job.tick(LEASE + 2)
    -> job.queue.send("", now=job.now)
    -> something changed and no row tells of it
yield from job.tick(LEASE + 2)
    -> apply(database, tenant="a", **{"operation": "b"}, payload="c")
    -> something changed and no row tells of it
yield from job.tick(LEASE + 2)
    -> job.queue.send("", now=job.now); yield from job.tick(LEASE + 2)
    -> something changed and no row tells of it
yield from job.tick(LEASE + 1)
    -> apply(database, tenant="a", **{"operation": "b"}, payload="c")
    -> something changed and no row tells of it
yield from job.tick(LEASE + 2)
    -> yield from job.tick(1)
    -> it is tick 6 already, and ticks never run back
yield from job.tick(LEASE)
    -> yield from [*job.tick(LEASE)] * 2
    -> what is yielded is not the row of an act that took place just now
yield from job.tick(LEASE)
    -> yield job.tick(LEASE)
    -> what is yielded is not the row of an act that took place just now
yield from job.tick(LEASE)
    -> yield next(job.tick(LEASE))._replace(drafts=2)
    -> what is yielded is not the row of an act that took place just now
yield from worker_b.acks()
    -> list(worker_b.acks())
    -> an act took place and its row was not yielded: write yield from
yield from job.tick(LEASE)
    -> pass
    -> worker B has no delivery: at tick 4 it gets nothing: leased until tick 5
yield from worker_b.acks()
    -> yield from worker_a.acks()
    -> worker A has stopped: it does nothing any more
yield from worker_b.acks()
    -> yield from worker_b.goes_on()
    -> worker B is not inside apply()
yield from worker_b.acks()
    -> yield from worker_b.acks(); apply(database, tenant="a", **{"operation": "b"}, payload="c")
    -> something changed and no row tells of it
yield from worker_b.acks()
    -> yield from worker_b.acks(); job.queue.send("", now=job.now)
    -> something changed and no row tells of it
yield from job.tick(LEASE)
    -> job.now = LEASE
    -> something changed and no row tells of it
yield from job.tick(LEASE)
    -> worker_b.name = "worker A"
    -> something changed and no row tells of it
yield from job.tick(LEASE)
    -> worker_b.delivery = worker_a.delivery
    -> something changed and no row tells of it
yield from job.tick(LEASE)
    -> yield from job.tick(float("nan"))
    -> a tick is a whole number, not nan
yield from job.tick(LEASE)
    -> list(job.tick(LEASE))
    -> an act took place and its row was not yielded: write yield from
"""

    def test_what_cannot_be_or_has_no_row_is_an_error_line_that_says_so(self) -> None:
        for old, edit in self.pairs(self.EDITS):
            _, new, why = f" {edit}".split(" -> ")
            with self.subTest(edit), self.edit(old, new):
                played = self.play("reuse-effect")
                self.assertTrueRows(played)
                self.assertTrue(played.error.startswith(f"reuse-effect: {why}"), played.error)
                self.assertRegex(played.error, r"\(line \d+, in run_case\)$")

    def test_misstep_is_told_with_its_line_of_run_case(self) -> None:
        acks = "yield from worker_b.acks()"
        with self.edit(acks, "yield from worker_a.acks()"):
            error = self.play("reuse-effect").error
        above, _, _ = self.source().rpartition(acks)
        line = run_case.__code__.co_firstlineno + above.count("\n")
        self.assertIn(f" (line {line}, in run_case)", error)

    def test_false_trace_is_not_shown_whatever_an_edit_catches(self) -> None:
        twice = "for _ in range(9):\n            try: yield from [*job.tick(LEASE)] * 2\n"
        with self.edit("yield from job.tick(LEASE)\n", f"{twice}            except: pass\n"):
            played = self.play("reuse-effect")
        self.assertEqual(self.actions(played), "send deliver commit stop refuse lapse")
        self.assertIn("what is yielded is not the row of an act", played.error)

    def test_row_that_is_left_out_is_not_made_up_for_by_another_one(self) -> None:
        twice = "yield from [*worker_b.acks()] * 2"
        with self.edit(
            *("yield from job.tick(LEASE)\n", "list(job.tick(LEASE))\n"),
            *("yield from worker_b.acks()", twice),
        ):
            played = self.play("reuse-effect")
        self.assertEqual(self.actions(played), "send deliver commit stop refuse")
        self.assertIn("write yield from", played.error)

    def test_time_may_pass_before_the_message_is_sent(self) -> None:
        sends = "yield from job.sends("
        with self.edit(sends, f"yield from job.tick(0)\n        {sends}"):
            self.assertEqual(self.play("normal").error, "")

    def test_act_that_is_not_yielded_does_not_take_place(self) -> None:
        with self.edit("yield from worker_b.acks()", "worker_b.acks()"):
            played = self.play("reuse-effect")
        self.assertEqual((played.error, played.events[-1].action), ("", "reuse"))

    def test_worker_that_an_edit_leaves_inside_apply_is_stopped_at_the_end(self) -> None:
        threads = threading.active_count()
        with self.edit("reuse=safe,\n        )\n        if", "statements=1)\n        if"):
            played = self.play("reuse-effect")
        self.assertIn("worker B is inside apply()", played.error)
        self.assertEqual(threading.active_count(), threads)


class ApplyTest(PublishedStoryTest):
    """Edits of apply() that people make: what its rows say is so, and what it comes to."""

    LOOK = "        found = db.execute(look, key).fetchone() if reuse else None\n"
    DRAFT = "        number = db.execute(draft, order)"
    RECEIPT = "        if reuse:\n"
    BEGIN = '        db.execute("BEGIN IMMEDIATE")\n'
    COMMIT = '        db.execute("COMMIT")'
    NO_LOOK = (LOOK, "        found = None\n")
    NO_RECEIPT = (RECEIPT, "        if False:\n")
    PLAIN_BEGIN = (BEGIN, BEGIN.replace(" IMMEDIATE", ""))
    RAISE = (RECEIPT, f'        raise RuntimeError("in between")\n{RECEIPT}')
    CATCH = ("    with connect(", "    with suppress(Exception), connect(")
    EDITS: dict[str, tuple[str, ...]] = {
        "no effect receipt": NO_RECEIPT,
        "second transaction": (RECEIPT, f"{COMMIT}\n{BEGIN}{RECEIPT}"),
        "effect receipt first": (
            DRAFT,
            '        db.execute("INSERT INTO receipts VALUES (?, ?, ?, 1)", order)\n' + DRAFT,
        ),
        "look before": (BEGIN, "", DRAFT, BEGIN + DRAFT),
        "no look": NO_LOOK,
        "BEGIN": PLAIN_BEGIN,
        "no transaction": (BEGIN, "", COMMIT, "        pass"),
        "second connection": (
            RECEIPT,
            f"{COMMIT}\n    with connect(database) as db:\n{BEGIN}{RECEIPT}",
        ),
        "connection for the look": (DRAFT, f"    with connect(database) as db:\n{BEGIN}{DRAFT}"),
        "commit() in between": (RECEIPT, f"        db.commit()\n{BEGIN}{RECEIPT}"),
        "commit() and BEGIN": (
            RECEIPT,
            '        db.commit()\n        db.execute("BEGIN")\n' + RECEIPT,
        ),
        "look before BEGIN": (BEGIN, "", DRAFT, '        db.execute("BEGIN")\n' + DRAFT),
        "no second COMMIT": (COMMIT, "        pass", RECEIPT, f"{COMMIT}\n{BEGIN}{RECEIPT}"),
        "no COMMIT": (COMMIT, "        pass"),
        "raise between": RAISE,
        "no comparison": ("if found[0] != payload:", "if False:"),
        "look by another key": ("(look, key)", "(look, (tenant, payload))"),
        "look by the tenant alone": (" AND operation = ?", " AND ? <> ''"),
        "look behind a comment": ('"SELECT payload', '"-- look\\n /* now */ SELECT payload'),
        "look again": (COMMIT, f"        db.execute(look, key).fetchone()\n{COMMIT}"),
        "look misspelt": ("SELECT payload", "SELECT paylaod"),
        "look in drafts": ("payload, draft_id FROM receipts", "payload, id FROM drafts"),
        "with db": (
            *(BEGIN, "", COMMIT, "        pass", "connect(database) as db:"),
            'connect(database) as db, db:\n        db.isolation_level = "DEFERRED"',
        ),
        "commit()": (COMMIT, "        db.commit()"),
        "cursor": ("as db:", "as connection:\n        db = connection.cursor()"),
        "OR IGNORE": (*NO_LOOK, "INSERT INTO receipts", "INSERT OR IGNORE INTO receipts"),
        "uuid": ("    os.stat(database)", "    import uuid\n\n    operation = str(uuid.uuid4())"),
        "except around no look": CATCH + NO_LOOK,
        "except around BEGIN": CATCH + PLAIN_BEGIN,
        "except around a raise": CATCH + RAISE,
        "COUNT(*)": (
            *("SELECT payload, draft_id FROM", "SELECT COUNT(*) FROM"),
            *("found is not None", "found and found[0]", "found[0] != payload", "False"),
            *("found[1]", "1"),
        ),
        "values swapped": (
            "order = (tenant, operation, payload)",
            "order = (tenant, payload, operation)",
        ),
        "no body": ("    with connect(", '    return Applied("created", 1)\n    with connect('),
        "never closed": (
            "with connect(database) as db:",
            "for db in [sqlite3.connect(database, 30, 0, None, True)]:",
        ),
        "kept connection": (
            "with connect(database) as db:",
            "for db in KEPT or [sqlite3.connect(database, isolation_level=None)]:\n"
            "        KEPT[:] = [db]",
        ),
        "looks for its own": (COMMIT, "        db.execute(look, key).fetchone()"),
        "looks for its own, is refused": (
            COMMIT,
            "        db.execute(look, key).fetchone()\n"
            "        with suppress(sqlite3.Error):\n"
            "            db.execute(proof, (*order, number))",
        ),
        "WITH": (
            *('"INSERT INTO drafts', '"WITH w(a, b, c) AS (VALUES (?, ?, ?)) INSERT INTO drafts'),
            *("payload) VALUES (?, ?, ?)", "payload) SELECT a, b, c FROM w"),
        ),
        "cursor let go": (BEGIN, f'        db.execute("SELECT name FROM sqlite_master")\n{BEGIN}'),
        "COMMIT of the safe way": (COMMIT, f"        if reuse:\n    {COMMIT}"),
        "no draft": (
            *(BEGIN, f'        db.execute("PRAGMA foreign_keys = OFF")\n{BEGIN}'),
            *("number = db", "number = 7 or db"),
        ),
        "BEGIN and commit()": (*PLAIN_BEGIN, COMMIT, "        db.commit()"),
        "SAVEPOINT": (
            *(BEGIN, '        db.execute("SAVEPOINT s")\n'),
            *(COMMIT, '        db.execute("RELEASE s")'),
        ),
        "lock of its own": (
            BEGIN,
            f"{BEGIN}        with connect(database) as db:\n    {BEGIN}",
        ),
        "catches whatever ends it": (
            COMMIT,
            f"        try:\n    {COMMIT}\n        except BaseException:\n"
            "            apply(database, tenant=tenant, **{'operation': 'x'}, payload=payload)\n",
        ),
        "changes before all": (
            BEGIN,
            f'{BEGIN}        db.execute("DELETE FROM receipts")\n'
            "        db.execute(\"UPDATE drafts SET payload = 'y'\")\n"
            f"{COMMIT}\n{BEGIN}",
        ),
        "changes before a refusal": (
            "                raise Op",
            "                db.execute(\"UPDATE drafts SET payload = 'y'\")\n"
            '                db.execute("DELETE FROM receipts")\n'
            '                db.execute("COMMIT")\n'
            "                raise Op",
        ),
    }
    # Below each change and the story that shows it: what it comes to, and the row that tells why.
    TOLD = """
no effect receipt: A gets; A writes; A stops; tick 5; B gets; B writes; B acks
    2 2 0 settled duplicated: commit of worker B | looks: finds no effect receipt; COMMITS draft
    2 and no effect receipt
second transaction: A gets; A writes 5 statements; A stops; tick 5; B gets; B writes; B acks
    2 2 1 settled duplicated: commit of worker B | runs 1: BEGIN IMMEDIATE; runs 2: SELECT
    payload, draft_id FRO...; looks: finds no effect receipt; runs 3: INSERT INTO drafts
    (tenant, ...; runs 4: COMMIT; COMMITS draft 1 and no effect receipt; runs 5: BEGIN
    IMMEDIATE; pauses before 6: INSERT INTO receipt...
second transaction: A gets; A writes 5; A stops
    1 1 0 in_flight pending: none | STOPS inside apply(), not acknowledged; before 6: INSERT INTO
    receipts (tena...; committed draft 1 and no effect receipt
second transaction: A gets; A writes 7
    1 1 1 in_flight pending: none | runs 1: BEGIN IMMEDIATE; runs 2: SELECT payload, draft_id
    FRO...; looks: finds no effect receipt; runs 3: INSERT INTO drafts (tenant, ...; runs 4: COMMIT;
    COMMITS draft 1 and no effect receipt; runs 5: BEGIN IMMEDIATE; runs 6: INSERT INTO receipts
    (tenant...; runs 1 more; COMMITS the effect receipt of draft 1
effect receipt first: A gets; A writes
    1 0 0 in_flight pending: none | looks: finds no effect receipt; fails at 3: INSERT INTO
    receipts VAL...; FAILS: IntegrityError: FOREIGN KEY constraint failed; has committed nothing
look before: A gets; A writes 1; tick 5; B gets; B writes; A goes on; B acks
    2 1 1 settled once: commit of worker B | looked before: found no effect receipt; fails at 4:
    INSERT INTO receipts (te...; FAILS: IntegrityError: UNIQUE constraint failed:
    receipts.tenant, receipts.operation; has committed nothing
no look: A gets; A writes; A stops; tick 5; B gets; B writes; B acks
    2 1 1 in_flight pending: none | does not look; fails at 3: INSERT INTO receipts (te...;
    FAILS: IntegrityError: UNIQUE constraint failed: receipts.tenant, receipts.operation; has
    committed nothing
BEGIN: A gets; A writes 2; tick 5; B gets; B writes 3; A goes on; B goes on; B acks
    2 1 1 settled once: commit of worker B | looked before: found no effect receipt; fails at 3:
    INSERT INTO drafts (tena...; FAILS: OperationalError: database is locked; cannot wait: it
    has read or written already, and so has worker B; has committed nothing
BEGIN: A gets; A writes 2; tick 5; B gets; B writes; A stops; B goes on
    2 1 1 in_flight pending: none | runs 1: BEGIN; runs 2: SELECT payload, draft_id FRO...; runs 3:
    INSERT INTO drafts (tenant, ...; runs 4: INSERT INTO receipts (tenant...; waits at 5: COMMIT;
    worker A holds the lock
looks for its own: A gets; A writes
    1 0 0 in_flight pending: none | runs 1: BEGIN IMMEDIATE; runs 2: SELECT payload, draft_id
    FRO...; looks: finds no effect receipt; runs 3: INSERT INTO drafts (tenant, ...; runs 4: INSERT
    INTO receipts (tenant...; runs 5: SELECT payload, draft_id FRO...; looks: finds effect receipt
    of draft 1; returns, and has committed nothing
looks for its own, is refused: A gets; A writes
    1 0 0 in_flight pending: none | runs 1: BEGIN IMMEDIATE; runs 2: SELECT payload, draft_id
    FRO...; looks: finds no effect receipt; runs 3: INSERT INTO drafts (tenant, ...; runs 4: INSERT
    INTO receipts (tenant...; runs 5: SELECT payload, draft_id FRO...; looks: finds effect receipt
    of draft 1; fails at 6: INSERT INTO receipts (te...; returns, and has committed nothing
WITH: A gets; A writes blind
    1 1 0 in_flight pending: none | does not look; COMMITS draft 1 and no effect receipt
cursor let go: A gets; A writes 1; tick 5; B gets; B writes
    2 1 1 in_flight pending: none | looks: finds no effect receipt; COMMITS draft 1 and its effect
    receipt
COMMIT of the safe way: A gets; A writes; tick 5; B gets; B writes blind; B acks
    2 1 1 settled once: commit of worker A | runs 1: BEGIN IMMEDIATE; runs 2: INSERT INTO drafts
    (tenant, ...; returns, and has committed nothing
no draft: A gets; A writes
    1 0 1 in_flight pending: none | looks: finds no effect receipt; COMMITS the effect receipt of
    draft 7
BEGIN and commit(): A gets; A writes 2; tick 5; B gets; B writes
    2 0 0 in_flight pending: none | looks: finds no effect receipt; FAILS: OperationalError:
    database is locked; cannot wait: only what goes through execute() can, in this lab; has
    committed nothing
SAVEPOINT: A gets; A writes 2 blind; tick 5; B gets; B writes blind
    2 0 0 in_flight pending: none | runs 1: SAVEPOINT s; waits at 2: INSERT INTO drafts (tena...;
    worker A holds the lock
lock of its own: A gets; A writes
    1 0 0 in_flight pending: none | does not look; fails at 2: BEGIN IMMEDIATE; FAILS:
    OperationalError: database is locked; cannot wait: the lock is one of its own call; has
    committed nothing
catches whatever ends it: A gets; A writes 4; A stops; tick 5
    1 0 0 ready pending: none | STOPS inside apply(), not acknowledged; before 5: COMMIT; nothing of
    it is committed
no transaction: A gets; A writes 2; A stops; tick 5; B gets; B writes; B acks
    2 2 1 settled duplicated: commit of worker B | runs 1: SELECT payload, draft_id FRO...;
    looks: finds no effect receipt; runs 2: INSERT INTO drafts (tenant, ...; COMMITS draft 1 and
    no effect receipt; pauses before 3: INSERT INTO receipt...
commit() in between: A gets; A writes 3
    1 1 0 in_flight pending: none | runs 1: BEGIN IMMEDIATE; runs 2: SELECT payload, draft_id
    FRO...; looks: finds no effect receipt; runs 3: INSERT INTO drafts (tenant, ...; COMMITS draft 1
    and no effect receipt; pauses before 4: BEGIN IMMEDIATE
commit() in between: A gets; A writes 3; A stops
    1 1 0 in_flight pending: none | STOPS inside apply(), not acknowledged; before 4: BEGIN
    IMMEDIATE; committed draft 1 and no effect receipt
commit() in between: A gets; A writes 4
    1 1 0 in_flight pending: none | runs 1: BEGIN IMMEDIATE; runs 2: SELECT payload, draft_id
    FRO...; looks: finds no effect receipt; runs 3: INSERT INTO drafts (tenant, ...; COMMITS draft 1
    and no effect receipt; runs 4: BEGIN IMMEDIATE; pauses before 5: INSERT INTO receipt...
second connection: A gets; A writes 5; A goes on
    1 1 1 in_flight pending: none | runs 1: BEGIN IMMEDIATE; runs 2: SELECT payload, draft_id
    FRO...; looks: finds no effect receipt; runs 3: INSERT INTO drafts (tenant, ...; runs 4: COMMIT;
    COMMITS draft 1 and no effect receipt; runs 5: BEGIN IMMEDIATE; pauses before 6: INSERT INTO
    receipt...
connection for the look: A gets; A writes 2; tick 5; B gets; B writes 3; A goes on
    2 0 0 in_flight pending: none | waits at 3: BEGIN IMMEDIATE; worker B holds the lock
commit() and BEGIN: A gets; A writes 4; tick 5; B gets; B writes 2; A goes on
    2 1 0 in_flight pending: none | waits at 5: INSERT INTO receipts (te...; worker B holds the lock
look before BEGIN: A gets; A writes 2; tick 5; B gets; B writes 3; A goes on
    2 0 0 in_flight pending: none | waits at 3: INSERT INTO drafts (tena...; worker B holds the lock
no second COMMIT: A gets; A writes 4; A goes on
    1 1 0 in_flight pending: none | runs 5: BEGIN IMMEDIATE; runs 6: INSERT INTO receipts
    (tenant...; returns, and has committed nothing more
no COMMIT: A gets; A writes; A acks; A stops
    1 0 0 settled lost: ack of worker A | runs 1: BEGIN IMMEDIATE; runs 2: SELECT payload,
    draft_id FRO...; looks: finds no effect receipt; runs 3: INSERT INTO drafts (tenant, ...;
    runs 4: INSERT INTO receipts (tenant...; returns, and has committed nothing
no COMMIT: A gets; A writes; A stops
    1 0 0 in_flight pending: none | STOPS: work not done, not acknowledged
raise between: A gets; A writes; A acks
    1 0 0 in_flight pending: none | looks: finds no effect receipt; FAILS: RuntimeError: in
    between; has committed nothing
no comparison: A gets; A writes; A stops; tick 5; B gets; B writes payload=x; B acks
    2 1 1 settled mistaken: reuse of worker B | wants to write 'x'; looks: finds effect receipt
    of other work; REPLAYS draft 1: writes nothing
look by another key: A gets; A writes; A stops; tick 5; B gets; B writes; B acks
    2 1 1 in_flight pending: none | looks: misses the effect receipt of draft 1; fails at 4:
    INSERT INTO receipts (te...; FAILS: IntegrityError: UNIQUE constraint failed:
    receipts.tenant, receipts.operation; has committed nothing
look by the tenant alone: A gets; A writes; A writes key=x
    1 1 1 in_flight pending: none | uses the key 'north / x'; runs 1: BEGIN IMMEDIATE; runs 2:
    SELECT payload, draft_id FRO...; looks: finds an effect receipt of another key; returns, and
    has committed nothing
look behind a comment: A gets; A writes; A writes
    1 1 1 in_flight pending: none | looks: finds effect receipt of draft 1; REPLAYS draft 1: writes
    nothing
look again: A gets; A writes
    1 1 1 in_flight pending: none | looks: finds no effect receipt; looks: finds effect receipt of
    draft 1; COMMITS draft 1 and its effect receipt
look in drafts: A gets; A writes
    1 1 1 in_flight pending: none | looks: finds no draft; COMMITS draft 1 and its effect receipt
look misspelt: A gets; A writes; A acks
    1 0 0 in_flight pending: none | fails at 2: SELECT paylaod, draft_id...; FAILS:
    OperationalError: no such column: paylaod; has committed nothing
kept connection: A gets; A writes 2; tick 5; B gets; B writes; A goes on
    2 1 1 in_flight pending: none | does not look; fails at 1: BEGIN IMMEDIATE; FAILS:
    OperationalError: cannot start a transaction within a transaction; has committed nothing
look in drafts: A gets; A writes blind; A writes; A acks; A stops
    1 1 0 settled once: reuse of worker A | looks: finds draft 1; REPLAYS draft 1: writes
    nothing
with db: A gets; A writes 2; A goes on; A acks
    1 1 1 settled once: commit of worker A | looked before: found no effect receipt; COMMITS
    draft 1 and its effect receipt
commit(): A gets; A writes 3; A goes on; A acks
    1 1 1 settled once: commit of worker A | looked before: found no effect receipt; COMMITS
    draft 1 and its effect receipt
cursor: A gets; A writes 4; A goes on 1; A acks
    1 1 1 settled once: commit of worker A | looked before: found no effect receipt; runs 5:
    COMMIT; COMMITS draft 1 and its effect receipt
OR IGNORE: A gets; A writes; A stops; tick 5; B gets; B writes; B acks
    2 2 1 settled duplicated: commit of worker B | does not look; COMMITS draft 2 and no effect
    receipt
uuid: A gets; A writes; A stops; tick 5; B gets; B writes; B acks
    2 2 2 settled two actions: commit of worker B | looks: finds no effect receipt; COMMITS
    draft 2 and its effect receipt
except around no look: A gets; A writes; A stops; tick 5; B gets; B writes; B acks
    2 1 1 settled once: reuse of worker B | does not look; fails at 3: INSERT INTO receipts
    (te...; writes nothing, draft 1 is there
except around BEGIN: A gets; A writes 2; tick 5; B gets; B writes 3; A goes on; A stops; B stops
    2 0 0 in_flight pending: none | fails at 3: INSERT INTO drafts (tena...; returns, and has
    committed nothing
except around a raise: A gets; A writes; A acks; A stops
    1 0 0 settled lost: ack of worker A | runs 1: BEGIN IMMEDIATE; runs 2: SELECT payload,
    draft_id FRO...; looks: finds no effect receipt; runs 3: INSERT INTO drafts (tenant, ...;
    returns, and has committed nothing
COUNT(*): A gets; A writes; A stops; tick 5; B gets; B writes payload=x; B acks
    2 1 1 settled mistaken: reuse of worker B | wants to write 'x'; looks: finds effect receipt
    of other work; REPLAYS draft 1: writes nothing
values swapped: A gets; A writes; A stops; tick 5; B gets; B writes; B acks
    2 1 1 in_flight pending: none | looks: finds no effect receipt; fails at 4: INSERT INTO
    receipts (te...; FAILS: IntegrityError: UNIQUE constraint failed: receipts.tenant,
    receipts.operation; has committed nothing
no body: A gets; A writes; A acks; A stops
    1 0 0 settled lost: ack of worker A | returns, and has committed nothing
never closed: A gets; A writes 3; A stops; tick 5; B gets; B writes; B acks
    2 1 1 settled once: commit of worker B | looks: finds no effect receipt; COMMITS draft 1 and
    its effect receipt
changes before all: A gets; A writes; A writes 5; A stops
    1 1 0 in_flight pending: none | STOPS inside apply(), not acknowledged; before 6: SELECT
    payload, draft_id F...; changed draft 1; removed the effect receipt of draft 1
changes before a refusal: A gets; A writes; A writes payload=x
    1 1 0 in_flight conflict: conflict of worker A | wants to write 'x'; looks: finds effect
    receipt of other work; CHANGES draft 1; REMOVES the effect receipt of draft 1; is REFUSED:
    operation_conflict
"""

    def play_changed(self, edits: tuple[str, ...], story: str) -> Played:
        with self.edited("apply", self.changed("apply", *edits), KEPT=[]):
            return self.tell(story)

    def test_change_of_apply_is_told_as_it_was_seen(self) -> None:
        threads = threading.active_count()
        for line, told in self.pairs(self.TOLD):
            name, story = line.split(": ")
            with self.subTest(line):
                played = self.play_changed(self.EDITS[name], story)
                outcome, row = told.split(" | ")
                self.assertTrueRows(played)
                self.assertEqual(self.outcome(played), outcome)
                self.assertIn(row, [event.detail for event in played.events])
        self.assertEqual(threading.active_count(), threads)

    def test_work_that_was_taken_for_a_repeat_is_mistaken_and_saved_nowhere(self) -> None:
        story = "A gets; A writes; A writes payload=x; A acks"
        self.assertEqual(
            self.play_changed(self.EDITS["no comparison"], story).conclusion.sentence,
            "The message is settled, and one draft is saved, but not the work that worker A was"
            " handed. The look of worker A found the effect receipt that worker A wrote, for other"
            " work. The order of worker A, 'x', was taken for a repeat of other work, acknowledged"
            " all the same, and is saved nowhere.",
        )

    def test_effect_receipt_without_its_draft_lets_work_be_taken_for_done(self) -> None:
        story = "A gets; A writes; A writes; A acks"
        sentence = self.play_changed(self.EDITS["no draft"], story).conclusion.sentence
        self.assertIn(" was taken for done, acknowledged all the same, and is saved", sentence)

    def test_change_of_apply_gives_cases_with_true_rows_and_a_conclusion_or_an_error_line(
        self,
    ) -> None:
        for name, edits in self.EDITS.items():
            source = self.changed("apply", *edits)
            with self.subTest(name), self.edited("apply", source, KEPT=[]):
                self.assertTrueRows(self.play("normal"))


class StoryTest(PublishedStoryTest):
    # Below each story: deliveries, drafts, effect receipts, message, conclusion, deciding row.
    STORIES = """
A gets; tick 5; B gets; B writes; B acks; A writes; A acks
    2 1 1 settled once: reuse of worker A
A gets; tick 5; B gets; B writes blind; B acks; A writes blind; A acks
    2 2 0 settled duplicated: commit of worker A
A gets; A writes blind; tick 5; B gets; B writes; B acks
    2 2 1 settled duplicated: commit of worker B
A gets; A acks; A stops; tick 9; B gets
    1 0 0 settled lost: ack of worker A
A gets; A writes blind; A writes blind
    1 2 0 in_flight duplicated: commit of worker A
A gets; A writes; tick 5; B gets; B writes payload=different draft
    2 1 1 in_flight conflict: conflict of worker B
A gets; A writes; tick 5; B gets; B writes payload=different draft; B acks
    2 1 1 settled conflict: conflict of worker B
A gets; A writes; tick 5; B gets; B writes payload=other draft; tick 10; C gets; C writes; C acks
    3 1 1 settled once: reuse of worker C
A gets; A writes; A writes payload=x; A writes; A acks
    1 1 1 settled once: reuse of worker A
A gets; A acks; A writes
    1 1 1 settled once: commit of worker A
A gets; A writes key=J-13:draft:v1; A acks
    1 1 1 settled lost: ack of worker A
A gets; A writes key=J-12:draft:v2; tick 5; B gets; B writes; B acks
    2 2 2 settled two actions: commit of worker B
A gets; A writes key=x; A writes; A writes blind
    1 3 2 in_flight duplicated: commit of worker A
A gets; A writes key=x; tick 5; B gets; B writes; B writes blind; A writes blind key=x
    2 4 2 in_flight duplicated: commit of worker B
A gets; A writes 3 statements; A stops; tick 5; B gets; B writes; B acks
A gets; A writes 4 statements; A stops; tick 5; B gets; B writes; B acks
    2 1 1 settled once: commit of worker B
A gets; A writes 2 statements; tick 5; B gets; B writes; A goes on; B goes on; B acks; A acks
    2 1 1 settled once: reuse of worker B
A gets; A writes; A acks; A gets; A writes 1
    1 1 1 settled once: commit of worker A
A gets; A writes payload=x; A writes; tick 4; A writes payload=x; tick 5; B gets; B writes 1
    2 1 1 in_flight pending: none
"""
    # Below each story: its sentence.
    SENTENCES = """
A gets; tick 5; A acks
    No draft is saved. The message is ready, and comes again to whoever asks next.
A gets; A writes
    One draft is saved. The message is in flight, and comes again if nobody acknowledges it
    before tick 5.
A gets; A writes; tick 5; B gets; B writes payload=x
    An order was refused: somebody must decide which work was meant. The message is in flight,
    and comes again if nobody acknowledges it before tick 10. The look of worker B found the
    effect receipt that worker A wrote, for other work.
A gets; A writes; A writes; A writes; A acks
    The message is settled, and one draft is saved. The look of worker A found the effect receipt
    that worker A wrote.
A gets; A writes; A writes payload=x; A writes payload=x; A acks
    The message is settled, and an order was refused: somebody must decide which work was meant.
    The look of worker A found the effect receipt that worker A wrote, for other work. The order
    of worker A, 'x', was refused, acknowledged all the same, and is saved nowhere.
A gets; A writes; A acks; A writes payload=x
    The message is settled, and an order was refused: somebody must decide which work was meant.
    The look of worker A found the effect receipt that worker A wrote, for other work. The order of
    worker A, 'x', was acknowledged, then refused, and is saved nowhere.
tick 1
    No draft is saved. The message is ready, and goes to whoever asks next.
A gets; A writes payload=\ud800; A acks; tick 5; B gets; A writes
    No draft is saved. The message is in flight, and comes again if nobody acknowledges it before
    tick 10. Since worker A failed, these steps of it are left out: A acks; A writes.
A gets; A writes; A writes blind payload=x; A writes payload=x; A acks
    The message is settled, and 2 drafts are saved under one operation key. The look of worker A
    found the effect receipt that worker A wrote, for other work.
A gets; A writes; A writes payload=x; A acks; A writes blind payload=x
    The message is settled, and 2 drafts are saved under one operation key. The look of worker A
    found the effect receipt that worker A wrote, for other work.
A gets; A writes payload=x; A writes; A writes key=y; A acks
    The message is settled, and 2 drafts are saved under 2 operation keys. The look of worker A
    found the effect receipt that worker A wrote, for other work.
"""
    # Below each story: the action of its last row, and what it says.
    ROWS = """
A gets; A stops
    stop: STOPS: work not done, not acknowledged
A gets; A writes; A stops
    stop: STOPS: work done, not acknowledged
A gets; A acks; A stops
    stop: STOPS: work not done, acknowledged
A gets; A writes; A writes; A acks; A stops
    stop: STOPS: work done, acknowledged
A gets; A writes; A writes payload=x; A stops
    stop: STOPS: order refused, not acknowledged
A gets; A writes; tick 5; A gets; A stops
    stop: STOPS: work not done, not acknowledged
A gets; A writes 4 statements; A stops
    stop: STOPS inside apply(), not acknowledged; before 5: COMMIT; nothing of it is committed
A gets; A acks; A writes 1; A stops
    stop: STOPS inside apply(), acknowledged; before 2: SELECT payload, draft_id F...; nothing of it
    is committed
A gets; tick 999999
    lapse: passes: the message is ready
A gets; A writes payload= it's a  key, = no key=a=b:c/d
    commit: wants to write "it's a  key, = no"; uses the key 'north / a=b:c/d'; looks: finds no
    effect receipt; COMMITS draft 1 and its effect receipt
a  GETS;; ; A\tWrites   BLIND
    commit: does not look; COMMITS draft 1 and no effect receipt
tick 0; A gets; tick 005; tick 5; b gets
    deliver: gets delivery-2, leased until tick 10
A gets; tick 4; A extends
    extend: extends delivery-1; leased until tick 9
A gets; tick 5; A extends
    stale: extends delivery-1; is REFUSED: stale_receipt, lapsed
A gets; tick 5; B gets; B acks; A acks
    stale: acknowledges delivery-1; is REFUSED: stale_receipt, superseded
A gets; A writes 3 statements
A gets; A WRITES  3
    write: runs 1: BEGIN IMMEDIATE; runs 2: SELECT payload, draft_id FRO...; runs 3: INSERT INTO
    drafts (tenant, ...; pauses before 4: INSERT INTO receipt...
A gets; A writes 1 statement blind; a goes  on 1
    write: runs 2: INSERT INTO drafts (tenant, ...; pauses before 3: COMMIT
A gets; A writes 2; A goes on
    commit: looked before: found no effect receipt; COMMITS draft 1 and its effect receipt
A gets; A writes 2; A goes on 99
    commit: looked before: found no effect receipt; runs 3: INSERT INTO drafts (tenant, ...; runs 4:
    INSERT INTO receipts (tenant...; runs 5: COMMIT; COMMITS draft 1 and its effect receipt
A gets; A writes 2; tick 5; B gets; B writes
    wait: waits at 1: BEGIN IMMEDIATE; worker A holds the lock
A gets; A writes 2; tick 5; B gets; B writes; B goes on 1
    wait: waits at 1: BEGIN IMMEDIATE; worker A holds the lock
A gets; A writes 2; tick 5; B gets; B writes; A goes on; B goes on 1
    write: runs 1: BEGIN IMMEDIATE; pauses before 2: SELECT payload, dra...
A gets; A writes; A writes 3 payload=x
    conflict: wants to write 'x'; runs 1: BEGIN IMMEDIATE; runs 2: SELECT payload, draft_id FRO...;
    looks: finds effect receipt of other work; is REFUSED: operation_conflict
A gets; A writes payload=\ud800
    fail: wants to write '\\ud800'; FAILS: ValueError: payload holds a lone surrogate, which SQLite
    cannot store; has committed nothing
"""
    WRONG_STORIES = """
A gest
;A gest
D gets
A get\u017f
A
    step 1, '{}': write {VERBS} or tick 5; workers are A, B and C
A gets, A writes
    step 1, 'A gets, A writes': steps are divided by ; and not by commas
A gets what it wants from the queue and then does all of it
    step 1, 'A gets what it wants fr..8cde22d8..and then does all of it': nothing may come after
    gets; steps are divided by ; and not by commas
A gets now
    step 1, 'A gets now': nothing may come after gets; steps are divided by ; and not by commas
A goes on quickly
    step 1, 'A goes on quickly': nothing may come after goes on; steps are divided by ; and not by
    commas
tick 1000000
tick -1
tick
    step 1, '{}': write tick and the tick to go on to, 999999 at most: tick 5
'A gets
A gets'
"A gets
A gets\u201d
    step 1, {!a}: put the whole story in straight double quotes: --story
    "A gets; A writes; tick 5; B gets; B writes; B acks; A acks"
tick 999999; A gets; C acks
    step 3, 'C acks': worker C has no delivery: it never asked for one: nobody gets one any more:
    leave this step out
tick 999994; A gets; C acks
    step 3, 'C acks': worker C has no delivery: it never asked for one: put tick 999999; C gets
    before it
A gets; A writes blindly
    step 2, 'A writes blindly': after writes may come a number of statements, blind, key=... and
    payload=..., in this order, but not 'blindly'
A gets; A writes blindly and without a receipt
    step 2, 'A writes blindly and without a receipt': after writes may come a number of statements,
    blind, key=... and payload=..., in this order, but not 'blindly ..881e61b2.. receipt'
A gets; A writes key = x
    step 2, 'A writes key = x': after writes may come a number of statements, blind, key=... and
    payload=..., in this order, but not 'key = x'
A gets; A writes blind 3
    step 2, 'A writes blind 3': after writes may come a number of statements, blind, key=... and
    payload=..., in this order, but not '3'
A gets; A writes 0
A gets; A writes 100 statements
    step 2, '{}': write a number of statements from 1 to 99
A gets; A writes key=
    step 2, 'A writes key=': key= is empty: write after it what it is to be
A gets; A writes key=a KEY=b
    step 2, 'A writes key=a KEY=b': key= stands there twice: write it once
A gets; A writes payload="x"
    step 2, 'A writes payload="x"': write payload=... without quotes
A gets; A writes key=north / x
    step 2, 'A writes key=north / x': write the key without north /, which is put before it
A gets; A stops; A gets
    step 3, 'A gets': worker A has stopped: it does nothing any more: let another worker go on
tick 5; tick 4
    step 2, 'tick 4': it is tick 5 already, and ticks never run back: write the tick to go on
    to, not how many more, such as tick 9
C acks
    step 1, 'C acks': worker C has no delivery: it never asked for one: put C gets before it
A gets; C stops
    step 2, 'C stops': worker C has no delivery: it never asked for one: put tick 5; C gets before
    it
A gets; A acks; C writes
    step 3, 'C writes': worker C has no delivery: it never asked for one: nobody gets one any
    more: leave this step out
A gets; tick 5; B gets; C gets; C acks
    step 5, 'C acks': worker C has no delivery: at tick 5 it gets nothing: leased until tick 10:
    put tick 10; C gets before it
A gets; B extends
    step 2, 'B extends': worker B has no delivery: it never asked for one: put tick 5; B gets before
    it
A gets; A goes on
    step 2, 'A goes on': worker A is not inside apply(): put a step such as A writes 3 statements
    before it
;; ;
    a story needs steps, such as "A gets; A writes; tick 5; B gets; B writes; B acks; A acks"
"""

    def test_story_comes_to_what_took_place(self) -> None:
        for story, outcome in self.pairs(self.STORIES):
            with self.subTest(story):
                self.assertEqual(self.outcome(self.tell(story)), outcome)

    def test_sentence_says_what_else_a_reader_must_know(self) -> None:
        for story, sentence in self.pairs(self.SENTENCES):
            with self.subTest(story):
                self.assertEqual(self.tell(story).conclusion.sentence, sentence)

    def test_last_row_says_what_the_last_step_did(self) -> None:
        self.enterContext(self.edited("apply", PLAIN_APPLY))
        for story, detail in self.pairs(self.ROWS):
            with self.subTest(story):
                last = self.tell(story).events[-1]
                self.assertEqual(f"{last.action}: {last.detail}", detail)

    # Below each step of one story: what its worker tries, and how each line of its row is drawn.
    EVERY_VERB = """
A gets
    asks the queue for work: answer
A writes 2 blind
    writes blind, 2 statements: here here here
A goes on
    goes on: here commit
A writes 1
    writes the safe way, 1 statement: here here
A goes on 1
    goes on, 1 statement: here here
A goes on 9
    goes on, 9 statements: here here here here commit
A writes
    writes the safe way: look here
A extends
    extends its lease: ask answer
A acks
    acknowledges: ack
A stops
    stops: stop
"""

    def test_every_verb_says_what_is_tried_and_is_drawn(self) -> None:
        self.enterContext(self.edited("apply", PLAIN_APPLY))
        steps = self.pairs(self.EVERY_VERB)
        played = self.tell("; ".join(step for step, _ in steps))
        for event, (step, told) in zip(played.events[1:], steps, strict=True):
            ways = " ".join(line.way for line in event.lines)
            self.assertEqual(f"{event.tried}: {ways}", told, step)
        for word in VERB_OF:
            self.assertIn(f"\nA {word}", self.EVERY_VERB)

    def test_worker_inside_apply_goes_on_or_stops_and_does_nothing_else(self) -> None:
        self.enterContext(self.edited("apply", PLAIN_APPLY))
        inside = "A gets; A writes 2"
        why = re.escape("worker A is inside apply(): put A goes on or A stops before it")
        for word in VERB_OF:
            with self.subTest(word):
                if word in ("goes on", "stops"):
                    self.assertEqual(self.tell(f"{inside}; A {word}").error, "")
                else:
                    self.assertRaisesRegex(UsageError, why, self.tell, f"{inside}; A {word}")

    def test_worker_without_a_delivery_can_do_nothing_but_get_one(self) -> None:
        for word in VERB_OF:
            with self.subTest(word):
                if word == "gets":
                    self.assertEqual(self.tell(f"B {word}").error, "")
                else:
                    why = "worker B has no delivery"
                    self.assertRaisesRegex(UsageError, why, self.tell, f"A gets; B {word}")

    def test_lapse_stands_at_the_tick_at_which_the_lease_ended(self) -> None:
        self.assertEqual(self.tell("A gets; tick 999").events[-1].tick, 5)

    def test_line_ends_divide_steps_too(self) -> None:
        one, other = self.tell("A gets\nA writes\r\nA acks"), self.tell("A gets;A writes;A acks")
        self.assertEqual(trace(one), trace(other))

    def test_what_cannot_be_played_is_named_with_the_way_out_and_nothing_is_made(self) -> None:
        for story, why in self.pairs(self.WRONG_STORIES):
            with self.subTest(story):
                last = story.strip("; ").split("; ")[-1]
                verbs = ", ".join(f"A {word}" for word in VERB_OF)
                why = why.replace("{VERBS}", verbs)
                why = why.replace("'{}'", ascii(last)).replace("{!a}", ascii(last))
                said = self.lab("demo", "--story", story, "--keep", "new")
                self.assertEqual(said, (2, "", f"error: {why}\n"))
                self.assertFalse(os.path.exists("new"))


class InsideTest(PublishedStoryTest):
    def test_whole_write_runs_in_the_callers_thread(self) -> None:
        seen = []
        with self.edited(
            "apply",
            self.changed("apply", "    os.stat(", "    seen()\n    os.stat("),
            seen=lambda: seen.append(threading.current_thread()),
        ):
            self.play("reuse-effect")
        self.assertEqual(seen, [threading.current_thread()] * 2)

    def test_interrupt_of_a_whole_write_ends_the_run(self) -> None:
        source = self.changed("apply", "    os.stat(", "    raise KeyboardInterrupt\n    os.stat(")
        with self.edited("apply", source), self.assertRaises(KeyboardInterrupt):
            self.tell("A gets; A writes")

    def test_interrupt_while_a_worker_runs_closes_nothing_under_it(self) -> None:
        found = []
        inside = threading.Event()

        def interrupt(call: Call) -> None:
            inside.wait(5)
            raise KeyboardInterrupt

        def work_on(db: Any) -> None:
            inside.set()
            threading.Event().wait(0.1)
            found.append(db.in_transaction)  # an error where it is closed

        self.addCleanup(setattr, Call, "_wait", Call._wait)
        Call._wait = interrupt  # type: ignore
        begin = '        db.execute("BEGIN IMMEDIATE")\n'
        source = self.changed("apply", begin, f"{begin}        work_on(db)\n")
        with self.edited("apply", source, work_on=work_on), self.assertRaises(KeyboardInterrupt):
            self.tell("A gets; A writes 3")
        self.assertEqual(found, [True])

    def test_thread_that_will_not_end_is_left_behind_and_is_refused_all_the_same(self) -> None:
        wait = threading.Event()
        self.addCleanup(setattr, sqlite3, "connect", sqlite3.connect)
        refused = []

        def stay() -> None:
            wait.wait()
            try:
                sqlite3.connect("work.sqlite3")
            except Stopped:
                refused.append(True)

        commit = '        db.execute("COMMIT")'
        caught = f"        try:\n    {commit}\n        except BaseException:\n            stay()"
        source = self.changed("apply", commit, caught)
        with self.edited("apply", source, stay=stay, PATIENCE=0.1):
            played = self.tell("A gets; A writes 4; A stops; tick 5; B gets; B writes 1")
        self.assertEqual(self.actions(played).split()[-1], "write")
        self.assertEqual(played.events[-1].drafts, 0)
        left = [thread for thread in threading.enumerate() if thread.daemon]
        wait.set()
        for thread in left:
            thread.join(5)
        self.assertEqual(refused, [True])


class SearchTest(PublishedStoryTest):
    SEARCHED = """\
Every schedule of two deliveries, each played on a queue and a database:
  first delivery's worker: writes; acks
  second delivery's worker: writes; acks

A schedule is one order of moves: a worker's next step, inside apply() each
single SQL statement; the end of a lease; a delivery. It may break off after
any of them: there both workers stop, and if the message is not settled, one
more worker gets it and does the second program, undisturbed. Then it is
judged. These go wrong: duplicated, lost, mistaken, two actions; and pending,
when not even that last worker settled it, without a conflict.

The shortest that goes wrong:

--- story ---------------------------------------------------------------------
A gets; A writes; A stops; tick 5; B gets; B writes

                                                      message    saved   effect
tick event, > decides the outcome                     state     drafts receipts
   0 producer sends message 1: north / J-12:draft:v1
              asks for 'replace the pump seal'        ready          0        0
   0 worker A gets delivery-1, leased until tick 5    in flight      0        0
   0 worker A does not look
              COMMITS draft 1 and its effect receipt  in flight      1        1
   0 worker A STOPS: work done, not acknowledged      in flight      1        1
   5 time passes: the message is ready                ready          1        1
   5 worker B gets delivery-2, leased until tick 10   in flight      1        1
   5 worker B does not look
              fails at 3: INSERT INTO receipts (te...
              FAILS: IntegrityError: UNIQUE constraint failed: receipts.tenant,
              receipts.operation
              has committed nothing                   in flight      1        1

committed in the database now:
  draft 1                   'north / J-12:draft:v1'   'replace the pump seal'
  effect receipt of draft 1 'north / J-12:draft:v1'   'replace the pump seal'

story: PENDING. One draft is saved. The message is in flight, and comes again
if nobody acknowledges it before tick 10.

1241 schedules (counts, no odds; another apply() has others), of which end
    65 once
  1176 pending
       --story "A gets; A writes; A stops; tick 5; B gets; B writes"
in 1180 of them a worker failed
       --story "A gets; A writes; A stops; tick 5; B gets; B writes"
"""

    def searched(self) -> Said:
        """Without a look only the primary key refuses the repeat."""
        with self.edited("apply", self.changed("apply", *ApplyTest.NO_LOOK)):
            return self.lab("demo", "--search", "writes; acks")

    def test_search_shows_the_shortest_schedule_that_goes_wrong_and_then_the_numbers(self) -> None:
        said = self.searched()
        self.assertEqual((said.status, said.err), (1, ""))
        self.assertMultiLineEqual(said.out, self.SEARCHED)

    def test_story_that_is_found_ends_with_the_same_conclusion(self) -> None:
        [(word, story)] = re.findall('(pending)\n +--story "(.*)"\n', self.SEARCHED)
        with self.edited("apply", self.changed("apply", *ApplyTest.NO_LOOK)):
            self.assertEqual(self.tell(story).conclusion.word, word)

    def test_safe_way_ends_once_in_every_schedule(self) -> None:
        said = self.lab("demo", "--search", "writes; acks")
        _, numbers = said.out.split("of which end\n")
        self.assertRegex(numbers, "^ *[0-9]+ once\nand in none of them a worker failed.\n")
        self.assertIn("So it is for one message, one key and its payload.\n", numbers)
        self.assertEqual((said.status, said.err), (0, ""))

    def test_statements_that_follow_each_other_are_joined_in_a_story(self) -> None:
        moves = [
            *(Move("A", "gets"), Move("A", "writes", 1, "blind"), Move("A", "goes on", 1)),
            *(Move("B", "writes", 1), Move("A", "goes on", 1), Move("A", "goes on")),
            *(Move("B", "goes on", 1), Move("A", "acks"), Move("B", "goes on")),
        ]
        self.assertEqual(
            [move.text() for move in joined(moves)],
            [
                *("A gets", "A writes 2 statements blind", "B writes 1 statement", "A goes on"),
                *("B goes on 1 statement", "A acks", "B goes on"),
            ],
        )

    def test_what_is_shown_is_what_goes_wrong_or_else_a_failure_or_else_a_conflict(self) -> None:
        search = Search([], ".")
        self.assertEqual(worst(search)[1], "")
        for word, what in (
            ("conflict", "None goes wrong. A conflict is no fault"),
            (FAILED, "None goes wrong, but a worker fails. The shortest in which it does:"),
            ("pending", "The shortest that goes wrong:"),
            ("lost", "The shortest that goes wrong:"),
        ):
            search.stories[word] = word
            self.assertTrue(worst(search)[0].startswith(what))
            self.assertEqual(worst(search)[1], "pending" if word == "lost" else word)

    def test_search_needs_a_lease_that_a_story_can_tell(self) -> None:
        for lease in (0, 500_000, 5.0):
            with self.subTest(lease=lease), self.edited("run_case", self.source(), LEASE=lease):
                said = self.lab("demo", "--search", "acks")
                error = f"error: LEASE is {lease}: a search needs 1 to 499999 whole ticks\n"
                self.assertEqual(said, (1, "", error))

    def test_schedules_that_never_come_to_the_same_point_are_given_up(self) -> None:
        edits = ("    os.stat(database)", "    import uuid\n\n    operation = str(uuid.uuid4())")
        with self.edited("apply", self.changed("apply", *edits), MOST_PLAYS=20):
            said = self.lab("demo", "--search", "writes; acks")
        self.assertRegex(said.err, "^error: given up after 20 plays: .*\n$")
        self.assertEqual(said.status, 1)


class ScreenTest(PublishedStoryTest):
    JSON = """\
{"case": "story", "step": 1, "tick": 0, "actor": "producer", "action": "send", "detail": "sends
message 1: north / J-12:draft:v1; asks for 'replace the pump seal'", "message": "ready",
"deliveries": 0, "drafts": 0, "receipts": 0, "tenant": null, "operation": null, "payload": null,
"conclusion": null}
{"case": "story", "step": 2, "tick": 0, "actor": "worker A", "action": "deliver", "detail": "gets
delivery-1, leased until tick 5", "message": "in_flight", "deliveries": 1, "drafts": 0,
"receipts": 0, "tenant": null, "operation": null, "payload": null, "conclusion": null}
{"case": "story", "step": 3, "tick": 0, "actor": "worker A", "action": "commit", "detail": "wants
to write '\\\\xe9'; uses the key 'north / x'; looks: finds no effect receipt; COMMITS draft 1 and
its effect receipt", "message": "in_flight", "deliveries": 1, "drafts": 1, "receipts": 1,
"tenant": "north", "operation": "x", "payload": "\\u00e9", "conclusion": "pending"}
"""

    def test_texts_that_differ_look_different_when_shortened(self) -> None:
        texts = ["x" * 60, "x" * 59 + "y", "y" + "x" * 59, "x" * 30 + "y" + "x" * 29, "x" * 25]
        shortened = [shorten(text, 25) for text in texts]
        self.assertEqual(len(set(shortened)), 5)
        self.assertEqual({len(text) for text in shortened}, {25})
        self.assertEqual(shortened[1], "xxxxxxx..f35158ef..xxxxxy")
        self.assertEqual(shortened[4], "x" * 25)
        self.assertEqual(len(name_of("z" * 99)), 20)

    def test_evidence_tells_keys_apart_that_differ_in_a_blank_at_the_end(self) -> None:
        with self.edit(EDIT_1, EDIT_1.replace("v1", "v1 ")):
            drafts = evidence(self.play("reuse-effect"))[1:3]
        self.assertIn("'north / J-12:draft:v1' ", drafts[0])
        self.assertIn("'north / J-12:draft:v1 '", drafts[1])

    def assertIntact(self, played: Played) -> None:
        for line in [*account(played), *picture(played.events)]:
            self.assertRegex(line, "^[ -~]{0,79}$")

    def test_any_literal_gives_an_intact_account_and_picture_or_an_error(self) -> None:
        fine = "'\"\n\r\t\x1b[31m|`<b>;#", "```", "\U0001f600" * 9, "x" * 5000, "y" * 5000
        for number, text in enumerate((*fine, "\ud800", "", None, 7)):
            with self.subTest(text=text), self.edit((EDIT_1, EDIT_2)[number % 2], f"{text!r}, #"):
                played = self.play("duplicate-effect")
            self.assertIntact(played)
            self.assertEqual(bool(played.error), text not in fine)

    def test_any_actor_any_tick_and_any_lease_give_an_intact_account_and_picture(self) -> None:
        for actor in ("", "queue", "database", "time", "z" * 99, "\u00e9\n"):
            for lease in (5, 10**9):
                with self.subTest(actor=actor, lease=lease):
                    source = self.changed("run_case", '"worker B"', repr(actor))
                    with self.edited("run_case", source, LEASE=lease):
                        played = self.play("reuse-effect")
                    self.assertEqual(played.error, "")
                    self.assertIntact(played)

    def test_row_that_does_not_fit_has_its_counts_on_a_further_line(self) -> None:
        rows = trace(self.tell("A gets; tick 123456; A gets"))
        self.assertEqual(
            rows[-2:],
            [
                " 123456 worker A gets delivery-2, leased until tick 123461",
                "                                                      in flight      0        0",
            ],
        )

    def test_json_has_one_event_a_line_and_nothing_else(self) -> None:
        said = self.lab("demo", "--json", "--story", "A gets; A writes key=x payload=\u00e9")
        self.assertEqual(said.out.split(), self.JSON.split())
        self.assertEqual(said.out.count("\n"), 3)
        self.assertEqual((said.status, said.err), (0, ""))

    def test_json_of_a_case_that_an_error_ended_has_no_conclusion(self) -> None:
        with self.edit("yield from worker_a.acks()\n            return", "raise ValueError"):
            said = self.lab("demo", "--json", "normal")
        self.assertTrue(said.out.endswith('"conclusion": null}\n'))
        self.assertEqual(said.status, 1)

    def test_table_stands_after_more_than_one_case_and_a_case_is_played_once(self) -> None:
        self.assertNotIn("case  ", self.lab("demo", "normal", "normal").out)
        said = self.lab("demo", "early-ack", "normal")
        rows_of_table = [line.split()[0] for line in said.out.splitlines()[-3:]]
        self.assertEqual(rows_of_table, ["case", "early-ack", "normal"])

    def test_conclusions_stand_in_upper_case_nowhere_else(self) -> None:
        for word in WORDS:
            for text in (PUBLISHED_DEMO, SearchTest.SEARCHED, ReportTest.REPORT):
                upper = text.count(word.upper())
                self.assertEqual(upper, text.count(f": {word.upper()}. "), word)

    def test_picture_stands_between_the_rows_and_the_evidence(self) -> None:
        said = self.lab("demo", "--picture", "normal").out
        rows, rest = said.split("\ntick queue ")
        drawn, _ = rest.split("\ncommitted in the database now:")
        self.assertTrue(rows.endswith("settled        1        1\n"))
        self.assertIn("|< ACKNOWLEDGES delivery-1 =", drawn)
        self.assertIn("COMMITS draft 1 and its effect receipt\n", drawn)


class QuestionTest(PublishedStoryTest):
    ASKED = """\
--- case 1 of 1 ---------------------------------------------------------------
Worker A writes the safe way: it looks for an effect receipt before it writes.
Then it acknowledges.

? Enter skips. How many times is the message delivered?
? How many drafts are saved in the end?
  That is not a number from 0 to 99. Enter skips.
? How many drafts are saved in the end?
? Who recognises work done before: the q(ueue), a w(orker's look), or n(obody,
or there is nothing to recognise)?
  That is not q, w or n. Enter skips.
? Who recognises work done before: the q(ueue), a w(orker's look), or n(obody,
or there is nothing to recognise)?
--- case 1 of 1; its name comes at the end ------------------------------------

                                                      message    saved   effect
tick event, > decides the outcome                     state     drafts receipts
Before each row, say what it will show: the message's state, r(eady), i(n
flight) or s(ettled), and how many drafts are saved, for example: i 1. Enter
skips, Ctrl-C leaves.
? tick 0: producer sends a message. State and drafts?
   0 producer sends message 1: north / J-12:draft:v1
              asks for 'replace the pump seal'        ready          0        0
= right: message ready; right: saved drafts 0
? tick 0: worker A asks the queue for work. State and drafts?
   0 worker A gets delivery-1, leased until tick 5    in flight      0        0
= not right: message in flight, not settled
? tick 1: worker A writes the safe way. State and drafts?
>  1 worker A looks: finds no effect receipt
              COMMITS draft 1 and its effect receipt  in flight      1        1
= right: message in flight; right: saved drafts 1
? tick 2: worker A acknowledges. State and drafts?
  That is not a state (r, i or s) and a number, such as i 1. Enter skips.
? tick 2: worker A acknowledges. State and drafts?
   2 worker A ACKNOWLEDGES delivery-1                 settled        1        1

committed in the database now:
  draft 1                   'north / J-12:draft:v1'   'replace the pump seal'
  effect receipt of draft 1 'north / J-12:draft:v1'   'replace the pump seal'

normal: ONCE. The message is settled, and one draft is saved.
= right: saved drafts 1
= not right: recognised by nobody, not the queue (no look found an effect
receipt); a queue never sees the database

5 of 7 predictions right
"""

    def asked(self) -> str:
        typed = "\nmany\n1\nz\nq\nr0\nsettled\n1 i\nx\n\n"
        said = self.lab("demo", "--predict", "--step", "normal", typed=typed)
        return said.out.replace(" \n", "\n")

    def test_questions_come_before_what_they_ask_for_and_answers_are_judged_after_it(self) -> None:
        self.assertMultiLineEqual(self.asked(), self.ASKED)

    def test_prediction_names_the_case_only_after_its_questions(self) -> None:
        for case in CASES:
            said = self.lab("demo", "--predict", case, typed="1\n1\nn\n")
            asked, _ = said.out.split(f"--- {case} ")
            self.assertEqual(asked.count("\n? "), 3)
            self.assertNotIn(case, asked)

    def test_score_counts_every_question_that_was_answered(self) -> None:
        right = {
            "normal": "1\n1\nn\n",
            "duplicate-effect": "2\n2\nnobody\n",
            "reuse-effect": "2\n1\nworker's look\n",
            "early-ack": "1\n0\nn\n",
        }
        said = self.lab("demo", "--predict", *right, typed="".join(right.values()))
        self.assertTrue(said.out.endswith("\n12 of 12 predictions right\n"))

    def test_wrong_prediction_names_the_rows_that_show_it(self) -> None:
        said = self.lab("demo", "--predict", "duplicate-effect", typed="1\n1\nworker\n")
        self.assertIn("= not right: deliveries 2, not 1 (see tick 0 and 5)\n", said.out)
        self.assertIn("= not right: saved drafts 2, not 1 (see tick 1 and 6)\n", said.out)
        self.assertIn(
            "= not right: recognised by nobody, not a worker's look (no look found an effect",
            said.out,
        )

    def test_look_that_found_other_work_has_recognised_it(self) -> None:
        story = "A gets; A writes; tick 5; B gets; B writes payload=x; B writes blind"
        said = self.lab("demo", "--predict", "--story", story, typed="\n2\nw\n")
        right = "= right: saved drafts 2\n= right: recognised by a worker's look\n"
        self.assertIn(right, said.out)

    def test_step_asks_once_an_event_and_hides_the_name(self) -> None:
        said = self.lab("demo", "--step", "reuse-effect", typed="i\n" * 9)
        self.assertEqual(said.out.count("\n? tick "), 9)
        self.assertNotIn("reuse-effect", said.out.split("committed in the database now")[0])
        self.assertTrue(said.out.endswith("\n6 of 9 predictions right\n"))

    def test_guess_may_be_written_in_many_ways(self) -> None:
        both = {"message": "in flight", "saved drafts": "1"}
        for text in ("i 1", "i1", "1 i", "in_flight 01", "in flight1"):
            self.assertEqual(guess(text), both, text)
        self.assertEqual(guess("7"), {"saved drafts": "7"})
        for text in ("x", "-1", "1.5", "1 2", "100", "\u0661", "i 1 2"):
            self.assertIsNone(guess(text), text)

    def test_input_that_ends_early_skips_the_rest(self) -> None:
        said = self.lab("demo", "--predict", "--step", "normal", typed="1\n")
        self.assertEqual(said.out.count("\n? "), 2)
        self.assertTrue(said.out.endswith("\n1 of 1 predictions right\n"))
        self.assertNotIn(CANNOT_ASK, said.out)

    def test_where_nobody_can_type_it_says_so_and_shows_the_cases(self) -> None:
        for stdin in (None, io.StringIO("")):
            said = self.lab_with(stdin, "demo", "--predict")
            self.assertEqual((said.status, said.err), (0, ""))
            self.assertEqual(said.out.count(f"\n{CANNOT_ASK}\n"), 1)
            self.assertNotIn("predictions right", said.out)


class ReportTest(PublishedStoryTest):
    REPORT = """\
# Queue delivery lab report

VERSIONS

This is a story of the learner's own.

```text
case              deliveries  saved drafts  message    conclusion
story                      3             2  settled    duplicated
```

## Predictions

```text
story: right: deliveries 3
story: not right: saved drafts 2, not 1 (see tick 0 and 14)
```

1 of 2 predictions right.

## story: duplicated

```text
ACCOUNT
```

```text
tick queue          worker A         worker B        worker C         database
   0   * producer sends message 1: north / J-12:draft:v1 |                |
       | asks for 'replace the pump seal'                |                |
   0   | gets delivery-1, leased until tick 5            |                |
       |--------------->|                |               |                |
   0   |                |- looks: finds no effect receipt --------------->|
       |                |= COMMITS draft 1 and its effect receipt =======>|
   0   |                X STOPS: work done, not acknowledged              |
   4   | gets nothing: leased until tick 5               |                |
       |-------------------------------->|               |                |
   5   * time passes: the message is ready               |                |
   5   | gets delivery-2, leased until tick 10           |                |
       |-------------------------------->|               |                |
   5   |                                 | wants to write 'different draft'
       |                             looks: finds effect receipt of other work
       |                                 |------------------------------->|
       |                                 | is REFUSED: operation_conflict |
   9   |< extends delivery-2 ------------|               |                |
       |- leased until tick 14 --------->|               |                |
  14   * time passes: the message is ready               |                |
  14   |- gets delivery-3, leased until tick 19 -------->|                |
  14   |                                 |             runs 1: BEGIN IMMEDIATE
       |                               runs 2: INSERT INTO drafts (tenant, ...
       |                                 |             pauses before 3: COMMIT
  14   |                                 |               : does not look  |
       |                                 COMMITS draft 2 and no effect receipt
       |                                 |               :===============>|
  14   |                                looks: finds effect receipt of draft 1
       |                                 |               |--------------->|
       |                                 |     REPLAYS draft 1: writes nothing
  14   |< extends delivery-2 ------------|               |                |
       | is REFUSED: stale_receipt, superseded           |                |
       |-------------------------------->|               |                |
  14   |< ACKNOWLEDGES delivery-3 =======================|                |
  14   |< acknowledges delivery-2 -------|               |                |
       | is REFUSED: stale_receipt, superseded           |                |
       |-------------------------------->|               |                |
  14   |                                 : runs 1: BEGIN IMMEDIATE        |
       |                               pauses before 2: SELECT payload, dra...
  14   |                                STOPS inside apply(), not acknowledged
       |                                 X               |                |
       |                               before 2: SELECT payload, draft_id F...
       |                                   nothing of it is committed     |

==>  one of the two moments: COMMITS to the database, ACKNOWLEDGES to the queue
-->  a look into the database, or what passes between worker and queue
*    at the queue: a message comes in, or its lease ends
:    the worker is inside apply()
X    the worker stops here, and its lane ends
```

## Questions for you

1. Which component recognised the repeat, and by which evidence? Name the row.

Answer:

2. A worker stopped, or was too slow: which of the two moments, DATABASE COMMIT
and ACKNOWLEDGEMENT, had happened by then, and what could the queue know of
each?

Answer:

3. Suppose that the effect is an e-mail through another company's API, and the
request times out: what is unknown, how do you ask about the ORIGINAL request,
and when must a human decide?

Answer:

Keep with this report: the one of the changed key, your drawing of the two
moments, and what you wrote down about a real service.
"""

    STORY = (
        "A gets; A writes; A stops; tick 4; B gets; tick 5; B gets; B writes payload=different"
        " draft; tick 9; B extends; tick 14; C gets; C writes 2 statements blind; C goes on; C"
        " writes; B extends; C acks; B acks; B writes 1; B stops"
    )

    def report(self, *words: str, typed: str = "") -> str:
        said = self.lab("demo", "--keep", "new", *words, typed=typed)
        self.assertEqual((said.status, said.err), (0, ""))
        with open("new/report.md", encoding="ascii", newline="") as file:
            return file.read().replace(f"{VERSIONS}, {sys.platform}", "VERSIONS")

    def reported(self) -> str:
        """The report on a story, but for its account, which the screen shows as well."""
        with self.edited("apply", PLAIN_APPLY):
            text = self.report("--predict", "--story", self.STORY, typed="3\n1\n\n")
            account_of_story = "\n".join(account(self.tell(self.STORY)))
        self.assertIn(account_of_story, text)
        return text.replace(account_of_story, "ACCOUNT")

    def test_report_holds_the_screens_lines_the_picture_and_the_questions(self) -> None:
        self.assertMultiLineEqual(self.reported(), self.REPORT)

    def test_report_says_whether_cases_are_edited_and_which(self) -> None:
        self.assertIn(
            "\nNo case is edited: each trace is the published one.\n", self.report("normal")
        )
        shutil.rmtree("new")
        with self.edit(EDIT_1, EDIT_1.replace("v1", "v2")):
            text = self.report("normal", "reuse-effect", "duplicate-effect")
        edited = "\nThe traces of these cases are edited: reuse-effect, duplicate-effect.\n"
        self.assertIn(edited, text)
        self.assertNotIn("Predictions", text)

    def test_text_of_a_learner_cannot_close_a_fence(self) -> None:
        self.assertEqual(fenced(["a", "````"]), ["`````text", "a", "````", "`````", ""])

    def test_legend_explains_only_the_signs_that_stand_in_the_picture(self) -> None:
        self.assertEqual(Picture(self.tell("tick 1").events).legend(), [LEGEND["*"]])

    def assertRefused(self, why: str, *words: str) -> None:
        before = sorted(os.listdir())
        said = self.lab("demo", *words)
        self.assertEqual((said.status, said.out), (1, ""))
        self.assertRegex(said.err, f"^error: {why}\n$")
        self.assertEqual(sorted(os.listdir()), before)

    def test_kept_folder_must_be_new_or_empty(self) -> None:
        os.mkdir("full")
        create_database("full/x")
        why = "full is not empty: name a new folder for --keep"
        self.assertRefused(why, "--keep", "full")
        for folder in ("full/x", "no/new", "x" * 300):
            why = f"{folder} cannot be made: .+; name a new folder"
            self.assertRefused(why, "--keep", folder)

    def test_what_is_kept_is_told_and_is_the_report_and_each_cases_database(self) -> None:
        os.mkdir("k")
        said = self.lab("demo", "duplicate-effect", "normal", "--json", "--keep", "k")
        databases = ["duplicate-effect.sqlite3", "normal.sqlite3"]
        self.assertEqual(sorted(os.listdir("k")), [*databases, "report.md"])
        kept = f"kept in k: report.md, and the databases {', '.join(databases)}\n"
        self.assertEqual(said.err, kept)
        self.assertEqual(len(committed("k/duplicate-effect.sqlite3").drafts), 2)
        self.assertTrue(
            self.lab("demo", "normal", "--keep", "new").out.endswith("normal.sqlite3\n")
        )

    def test_run_that_fails_leaves_what_had_run_and_no_report(self) -> None:
        with self.edit("            reuse=safe,\n        )", "            reuse=1 / 0,\n        )"):
            said = self.lab("demo", "early-ack", "reuse-effect", "--keep", "new")
        self.assertEqual(said.status, 1)
        self.assertEqual(sorted(os.listdir("new")), ["early-ack.sqlite3", "reuse-effect.sqlite3"])


class CommandLineTest(PublishedStoryTest):
    WRONG_WORDS = """
nope
    there is no 'nope': write demo or test
demo Normal
    there is no case 'Normal': choose from {CASES}
demo --nope
    unrecognized arguments: --nope; demo -h shows what there is
demo --pred
    unrecognized arguments: --pred; demo -h shows what there is
demo --json --step
demo --json --predict
demo --json --picture
    --json stands without --predict, --step and --picture
demo normal --story acks
demo --story acks --story acks
demo normal --search acks
demo --story acks --search acks
    name cases, or tell one --story, or --search: one of the three
demo A gets
demo A_gets;
demo tick 5
demo --story 'A gets'
demo --story A gets
demo gets;
demo normal \u2013story
    put the whole story in straight double quotes: --story "{EXAMPLE}"
demo --search writes; acks
demo --search 'writes'
demo --search acks --search 'writes
demo --search \u201cwrites
    put the whole program in straight double quotes: --search "writes; acks"
demo --search acks --json
demo --search acks --step
demo --search acks --predict
demo --search acks --picture
demo --search acks --keep x
    --search goes alone: leave out the other options
demo --search acks --search acks --search acks
    two programs at most, one for each delivery
demo --search gets
demo --search B_writes
    step 1, '{}': write writes or acks, without a worker's letter, such as "writes; acks"
demo --search acks,acks
    step 1, 'acks,acks': steps are divided by ; and not by commas
demo --search writes_3
demo --search writes_0
    step 1, '{}': leave out the number: a search stops before every statement by itself
demo --search acks_now
    step 1, 'acks now': write writes or acks, without a worker's letter, such as "writes; acks"
demo --search acks;acks;acks
demo --search ;
    a program has one or two steps, such as "writes; acks"
"""

    def test_bad_usage_is_one_line_that_says_what_to_write_and_status_2(self) -> None:
        for words, why in self.pairs(self.WRONG_WORDS):
            with self.subTest(words):
                given = [word.replace("_", " ") for word in words.split()]
                why = why.replace("{CASES}", ", ".join(CASES)).replace("{}", given[-1])
                why = why.replace("{EXAMPLE}", EXAMPLE)
                self.assertEqual(self.lab(*given), (2, "", f"error: {why}\n"))

    def test_program_holds_nothing_that_a_shell_changes_between_double_quotes(self) -> None:
        for sign in '"$`%!\\\u00e9':
            said = self.lab("demo", "--search", f"acks; writes payload=a{sign}b")
            why = re.escape('leave out " $ ` % ! \\ and all that is not ASCII')
            self.assertRegex(said.err, f"^error: step 2, .*: {why}\n$")
            self.assertEqual(said.status, 2)

    def test_no_word_at_all_is_answered_with_the_whole_command_to_paste(self) -> None:
        import shlex

        for words in ((), ("--json",), ("--story", "A gets")):
            said = self.lab(*words)
            self.assertRegex(said.err, "^error: say what to do: (python3|py) .+ demo\n$")
            self.assertEqual((said.status, said.out), (2, ""))
        _, command = self.lab().err.split("what to do: ")
        _, path, _ = shlex.split(command)
        self.assertEqual(os.path.basename(path), os.path.basename(FILE))
        with chdir(os.path.dirname(FILE)):
            self.assertNotIn(os.path.dirname(FILE), self.lab().err)
        with self.edited("run_case", self.source(), __file__="\u00fcbung.py"):
            self.assertIn("\u00fcbung.py", self.lab().err)

    def test_help_names_every_option_in_80_columns(self) -> None:
        said = self.lab("demo", "-h")
        self.assertEqual(said.out.split(), self.DEMO_HELP.split())
        self.assertLess(max(map(len, said.out.splitlines())), 80)
        usage, _ = self.DEMO_HELP.split("positional")
        self.assertIn(usage, self.lab("-h").out)

    DEMO_HELP = """\
usage: LAB demo [CASE ...] [--story STORY] [--picture] [--json] [--predict]
                [--step] [--keep DIR]
       LAB demo --search PROGRAM [--search PROGRAM]
       LAB test [options of unittest]
       LAB --version

LAB stands for python3 (on Windows: py) and the name of this file.

positional arguments:
  CASE              normal, duplicate-effect, reuse-effect, early-ack; none:
                    all of them

options:
  -h, --help        show this help message and exit
  --story STORY     play your own story, such as "A gets; A writes; tick 5; B
                    gets; B writes; B acks; A acks". Workers are A, B and C.
                    The words for what they do: gets, writes, goes on, acks,
                    extends, stops. tick 5: go on to tick 5. A writes blind:
                    without a look, and without an effect receipt. A writes
                    key=... payload=...: another order. A writes 3 statements:
                    so much of its SQL; A goes on: the rest
  --search PROGRAM  play every schedule of two deliveries, down to the single
                    SQL statement, whose workers do, say, "writes; acks"; a
                    second PROGRAM is for the second delivery
  --picture         draw each case: queue, workers and database
  --predict         ask first what will come of each case
  --step            ask about each event before its row is shown
  --json            print the events as JSON Lines, and nothing else
  --keep DIR        keep the databases and a report in DIR, new or empty
"""

    def test_version_names_the_lab_python_and_sqlite(self) -> None:
        self.assertEqual(self.lab("--version").out, f"{VERSIONS}\n")

    def test_folder_to_keep_has_a_name(self) -> None:
        error = "error: --keep needs the name of a folder\n"
        self.assertEqual(self.lab("demo", "--keep", ""), (2, "", error))

    def test_case_whose_name_is_no_text_has_no_story(self) -> None:
        with self.edited("run_case", self.source(), CASES=(7,)):
            said = self.lab("demo")
        self.assertRegex(said.err, "^error: 7: ValueError: no story is told of a case named '7' ")

    def test_no_case_at_all_is_an_error(self) -> None:
        with self.edited("run_case", self.source(), CASES=()):
            said = self.lab("demo")
        self.assertEqual(said, (1, "", "error: CASES is empty: there is nothing to play\n"))

    def test_test_takes_unittests_options_and_an_unknown_name_is_no_success(self) -> None:
        said = self.lab("test", "-k", "slow_worker_settles", "-v")
        self.assertIn("test_late_acknowledgement_by_a_slow_worker_settles_nothing", said.err)
        self.assertEqual(said.status, 0)
        said = self.lab("test", "-k", "nope")
        self.assertIn("error: no test has such a name: test -v lists them all\n", said.err)
        self.assertEqual(said.status, 1)

    def copy(self, name: str, change: Callable[[str], str], encoding: str = "utf-8") -> str:
        """A changed copy of this file in a folder of its own."""
        os.makedirs("copy", exist_ok=True)
        path = os.path.abspath(os.path.join("copy", name))
        with open(FILE, encoding="utf-8-sig") as file:
            text = change(file.read())
        with open(path, "w", encoding=encoding, newline="\r\n") as file:
            file.write(text)
        return path

    def test_after_an_edit_one_test_fails_with_a_short_diff_and_the_others_are_skipped(
        self,
    ) -> None:
        literals = 'r"x\\y" "\\"hi\\" \u00fc"'
        edit = EDIT_2.replace('"replace the pump seal"', literals)
        path = self.copy("edited.py", lambda text: text.replace(EDIT_2, edit, 1))
        run = self.process(path, "test", "PublishedTest", "CaseTest", stderr=-1)
        said = run.stderr.read()
        self.assertEqual(run.wait(), 1)
        self.assertIn("FAILED (failures=1, skipped=", said)
        self.assertIn("this is as it should be:\n--- as published\n", said)
        self.assertIn("\n+>  6 worker B wants to write ", said)
        self.assertLess(said.count("\n"), 75)

    def test_copy_of_any_name_and_encoding_is_tested_without_a_fault(self) -> None:
        name = os.fsdecode("jim's 100% \u00fcbung.py".encode())
        path = self.copy(name, lambda text: f"{text}# \u00fc\n", encoding="utf-8-sig")
        ascii_console = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        environment = {**os.environ, **ascii_console, "PYTHONWARNINGS": "error"}
        words = ["test", "-k", "PublishedTest", "-k", "many_processes"]
        said = self.process(path, *words, stderr=-1, env=environment).stderr.read()
        self.assertRegex(said, r"^\.+\n-+\nRan 4 tests in .*\n\nOK\n$")

    def test_interrupt_at_a_prompt_ends_with_130(self) -> None:
        class Interrupted(io.StringIO):
            def readline(self, *_: Any) -> Any:
                raise KeyboardInterrupt

        said = self.lab_with(Interrupted(), "demo", "--step")
        self.assertEqual((said.status, said.err), (130, "\ninterrupted\n"))

    def hear(self, number: int) -> None:
        """Where the tests run with a signal ignored, as under nohup, hear it all the same."""
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        self.addCleanup(signal.signal, number, signal.signal(number, usual))

    def test_signal_ends_the_run_with_its_status_and_nothing_is_left(self) -> None:
        if os.name == "nt":
            self.skipTest("Windows ends a process by force, and cannot be asked to")
        for name, status in (("SIGTERM", 143), ("SIGHUP", 129)):
            with self.subTest(name):
                os.mkdir(name)
                self.hear(getattr(signal, name))
                environment = {**os.environ, "TMPDIR": os.path.abspath(name)}
                run = self.process(FILE, "demo", "--step", stdin=-1, stderr=-1, env=environment)
                while "Ctrl-C leaves" not in run.stdout.readline():
                    self.assertEqual(len(os.listdir(name)), 1)
                run.send_signal(getattr(signal, name))
                run.stdin.close()
                self.assertEqual(run.wait(timeout=20), status)
                self.assertNotIn("Traceback", run.stderr.read())
                self.assertEqual(os.listdir(name), [])

    def test_signal_is_held_while_a_temporary_folder_is_made_and_removed(self) -> None:
        for number, error in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)):
            done = []
            self.hear(number)
            with self.assertRaises(error), SIGNALS.heard(), SIGNALS.held():
                signal.raise_signal(number)
                done.append(True)
            self.assertEqual(done, [True])

    def test_signal_ends_a_run_of_tests_too(self) -> None:
        from unittest import TestResult

        class Ended(TestCase):
            def runTest(self) -> None:
                raise Terminated(15)

        self.assertRaises(Terminated, Ended().run, TestResult())

    def test_signals_are_as_they_were_after_a_run(self) -> None:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        self.lab("demo", "normal")
        after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        self.assertEqual(after, before)

    def test_temporary_folder_is_needed_and_left_empty(self) -> None:
        import tempfile

        self.addCleanup(setattr, tempfile, "tempdir", tempfile.tempdir)
        for words in ("demo", "demo --story A\tgets;A\twrites\t2", "demo --search acks"):
            with self.subTest(words=words):
                tempfile.tempdir = os.getcwd()
                self.assertIn(self.lab(*words.split(" ")).status, (0, 1))
                self.assertEqual(os.listdir(), [])
                tempfile.tempdir = "missing"
                said = self.lab(*words.split(" "))
                self.assertRegex(said.err, "^error: FileNotFoundError: .*missing.*\n$")
                self.assertEqual(said.status, 1)

    def test_temporary_file_that_another_program_holds_is_tried_again_and_spoils_nothing(
        self,
    ) -> None:
        tries = []

        def hold(folder: str, ignore_errors: bool = False) -> None:
            self.assertTrue(ignore_errors)
            tries.append(folder)
            if len(tries) == 2:
                rmtree(folder)

        rmtree = shutil.rmtree
        self.addCleanup(setattr, shutil, "rmtree", rmtree)
        shutil.rmtree = hold  # type: ignore[assignment]
        self.assertEqual(self.lab("demo", "normal").status, 0)
        self.assertEqual(len(tries), 2)

    def test_output_that_cannot_be_written_is_one_error_line(self) -> None:
        said = io.StringIO()
        unwritable = self.enterContext(open(os.devnull, encoding="ascii"))
        with redirect_stdout(unwritable), redirect_stderr(said):
            self.assertEqual(main(["demo"]), 1)
        self.assertRegex(said.getvalue(), "^error: the output cannot be written: .*\n$")

    def test_reader_that_goes_away_ends_the_run_quietly(self) -> None:
        reader = self.process(FILE, "demo", stderr=-1)
        reader.stdout.close()
        self.assertNotRegex(reader.stderr.read(), "Traceback|Exception ignored|error")

    def test_reader_that_is_gone_already_ends_the_run_at_once(self) -> None:
        read, write = os.pipe()
        os.close(read)
        closed = self.enterContext(open(write, "w", buffering=1))
        said = io.StringIO()
        with redirect_stdout(closed), redirect_stderr(said):
            self.assertEqual(main(["demo"]), 1)
        self.assertEqual(said.getvalue(), "")

    def test_program_without_a_console_runs(self) -> None:
        with redirect_stdout(None), redirect_stderr(None):
            self.assertEqual(main(["demo"]), 0)

    def test_python_without_sqlite_is_told_where_to_get_one_that_has_it(self) -> None:
        with open(FILE, encoding="utf-8-sig") as file:
            beginning, _ = file.read().split("\nimport argparse\n")
        self.addCleanup(sys.modules.__setitem__, "sqlite3", sqlite3)
        sys.modules["sqlite3"] = None  # type: ignore[assignment]
        with redirect_stderr(io.StringIO()) as err, self.assertRaises(SystemExit) as leaving:
            exec(beginning, {"__name__": "lab"})
        self.assertEqual(leaving.exception.code, 2)
        self.assertRegex(err.getvalue(), "^This lab needs Python's module sqlite3, .*https://.*\n$")

    def test_only_the_scripts_own_folder_leaves_the_import_path_again_and_again(self) -> None:
        import runpy

        before = list(sys.path)
        self.addCleanup(sys.path.__setitem__, slice(None), before)
        self.addCleanup(setattr, sys, "argv", sys.argv)
        sys.argv = [FILE, "--version"]
        sys.path[:] = [os.path.dirname(FILE), "other", *before]
        for _ in range(2):  # as an IDE runs a file
            with self.assertRaises(SystemExit), redirect_stdout(io.StringIO()):
                runpy.run_path(FILE, run_name="__main__")
            self.assertEqual(sys.path, ["other", *before])


def quoted_texts() -> dict[str, str]:
    """The texts that stand in this file as the program prints them, made anew, by their names."""
    texts = {}
    with temporary_folder() as folder, chdir(folder):
        for case in CASES:
            played = play_in(folder, case, [])
            texts[case] = "\n".join([titled(case), *account(played), ""])
        texts["SEARCHED"] = SearchTest().searched().out
        texts["ASKED"] = QuestionTest().asked()
        texts["REPORT"] = ReportTest().reported()
        texts["DEMO_HELP"] = CommandLineTest().lab("demo", "-h").out
    return texts


if __name__ == "__main__":
    sys.exit(main())
