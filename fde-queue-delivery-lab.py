#!/usr/bin/env python3
"""Queue delivery lab: one job, one queue, four ways in which workers treat it, and what is left.

The queue, apply() and run_case() come first, and are the lesson: edit run_case(), and run `demo`
again. All that follows shows, asks about and checks what they do, each part under its heading.
"""

import sys

if sys.version_info < (3, 11):
    found = ".".join(str(number) for number in sys.version_info[:3])
    print("This lab needs Python 3.11 or later; this is Python " + found + ".", file=sys.stderr)
    sys.exit(2)

import os

if __name__ == "__main__" and sys.path[:1] == [os.path.dirname(os.path.abspath(__file__))]:
    del sys.path[0]  # a copy of this file may be named like a module: copy.py, queue.py

import argparse
import heapq
import io
import re
import sqlite3
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from errno import EINVAL
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

CASES = ("normal", "duplicate-effect", "reuse-effect", "early-ack")
TENANT = "north"
LEASE = 5  # ticks
Database = str | os.PathLike[str]


# == 1. The queue: it delivers messages, and knows nothing of what a worker does with them =========
class StaleReceipt(Exception):
    """An acknowledgement was refused: its delivery receipt is not, or no longer, good for it."""

    def __init__(self, receipt: str, kind: str, tick: int) -> None:
        self.receipt = receipt
        self.kind = kind
        self.tick = tick

    def __str__(self) -> str:
        return f"stale_receipt, {self.kind}: {self.receipt!r} at tick {self.tick}"


class Delivery(NamedTuple):
    """One handing-over of a message to a worker."""

    receipt: str  # the delivery receipt: new for every delivery, needed to acknowledge it
    message_id: int  # the same for every delivery of one message
    body: str
    attempt: int  # 1 for the first delivery of the message, then 2, 3, ...
    expires_at: int  # the first tick at which the message may be delivered again


class Message:
    """What the queue keeps of one message."""

    def __init__(self, body: str, available_at: int) -> None:
        self.body = body
        self.available_at = available_at  # the tick from which it may be delivered
        self.attempts = 0  # deliveries so far
        self.receipt = ""  # of the newest delivery
        self.settled_at: int | None = None  # the tick of its acknowledgement


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
        self.asked: list[int] = []  # the tick of each call of receive()
        self._message_ids: dict[str, int] = {}  # by delivery receipt
        self._line: list[tuple[int, int]] = []  # heap of (available from tick, message id)

    def send(self, body: str, *, now: int = 0) -> int:
        """Take in a message, ready from tick `now` on. Returns its message id."""
        message_id = len(self.messages) + 1
        self.messages[message_id] = Message(body, now)
        heapq.heappush(self._line, (now, message_id))
        return message_id

    def receive(self, *, now: int) -> Delivery | None:
        """Deliver the message that has been available longest (of equals, the one sent first).

        It is in flight for `lease` ticks from tick `now` on. Returns None when no message is
        ready.
        """
        self.asked.append(now)
        while self._line and self._line[0][0] <= now:
            _, message_id = heapq.heappop(self._line)
            message = self.messages[message_id]
            if message.settled_at is not None:  # acknowledged while it was in flight
                continue
            message.attempts += 1
            message.receipt = f"delivery-{len(self._message_ids) + 1}"
            expires_at = now + self.lease
            message.available_at = expires_at
            heapq.heappush(self._line, (expires_at, message_id))
            self._message_ids[message.receipt] = message_id
            return Delivery(message.receipt, message_id, message.body, message.attempts, expires_at)
        return None

    def ack(self, receipt: str, *, now: int) -> None:
        """Acknowledge a delivery at tick `now`: its message is settled, never delivered again.

        Raises StaleReceipt, and changes nothing, when `receipt` is unknown, superseded by a newer
        delivery, already settled, or lapsed: the lease has ended. Its `kind` says which.
        """
        message_id = self._message_ids.get(receipt)
        if message_id is None:
            raise StaleReceipt(receipt, "unknown", now)
        message = self.messages[message_id]
        if receipt != message.receipt:
            raise StaleReceipt(receipt, "superseded", now)
        if message.settled_at is not None:
            raise StaleReceipt(receipt, "already settled", now)
        if now >= message.available_at:
            raise StaleReceipt(receipt, "lapsed", now)
        message.settled_at = now

    def state(self, message_id: int, *, now: int) -> str:
        """Returns "ready", "in_flight" or "settled" as of tick `now`. Unknown id: KeyError."""
        message = self.messages[message_id]
        if message.settled_at is not None:
            return "settled"
        return "ready" if message.available_at <= now else "in_flight"


# == 2. The database: where the work itself is kept, and the effect receipt that proves it =========
class OperationConflict(Exception):
    """A used operation key came with different work. Nothing was written."""

    def __init__(self, tenant: str, operation: str, payload: str) -> None:
        self.tenant = tenant
        self.operation = operation
        self.payload = payload

    def __str__(self) -> str:
        return f"operation_conflict: {self.tenant} / {self.operation} stands for other work"


class Applied(NamedTuple):
    """What apply() did, and for which order."""

    status: str  # "created" a draft, or "reused" the one recorded before
    draft_id: int
    tenant: str
    operation: str
    payload: str
    looked: bool  # for an effect receipt, before it wrote


@contextmanager
def connect(database: Database) -> Iterator[sqlite3.Connection]:
    """A connection that waits 30 seconds for others. Closing it undoes what is not committed."""
    connection = sqlite3.connect(os.path.abspath(database), timeout=30, isolation_level=None)
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
                PRIMARY KEY (tenant, operation)
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
          |   1. DATABASE COMMIT      |== COMMIT ================>|  both rows, or neither
          |                           |                           |
          |                           X  stops here: the work is done, the queue cannot know
          |                           |                           |
          |<== ack(delivery receipt) =|   2. ACKNOWLEDGEMENT      |

    With reuse=True, the safe path, it looks for the effect receipt of the key first. None: draft
    and effect receipt are written in one transaction ("created"). Same payload: nothing is
    written, the recorded draft is returned ("reused"). Another payload: OperationConflict.
    With reuse=False, the unprotected path, it writes a draft without looking and no effect receipt.

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
                    raise OperationConflict(tenant, operation, payload)
                return Applied("reused", recorded_draft, tenant, operation, payload, looked=True)
        draft_id: Any = db.execute(
            "INSERT INTO drafts (tenant, operation, payload) VALUES (?, ?, ?)",
            (tenant, operation, payload),
        ).lastrowid
        if reuse:
            db.execute(
                "INSERT INTO receipts (tenant, operation, payload, draft_id) VALUES (?, ?, ?, ?)",
                (tenant, operation, payload, draft_id),
            )
        db.execute("COMMIT")  # all or nothing: an error above skips it, and closing undoes all
        return Applied("created", draft_id, tenant, operation, payload, looked=reuse)


def _require_text(**arguments: str) -> None:
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, not {type(value).__name__}")
        if not value:
            raise ValueError(f"{name} must not be empty")
        if value.encode("utf-8", "ignore").decode("utf-8") != value:
            raise ValueError(f"{name} holds a lone surrogate, which SQLite cannot store")


# == 3. The four cases: the story of one job. Edit it, and run the demo again ======================
def run_case(case: str, database: Database) -> Iterator["Event"]:
    """Play one of CASES over the file `database`; an Event after each step, in order.

    ValueError: no such story, or LEASE under 3 ticks. Other errors than a conflict come through.
    """
    if case not in PLOTS:
        raise ValueError(f"no story is told of a case named {case!r}")
    if LEASE < 3:
        raise ValueError(f"LEASE is {LEASE}: the cases need at least 3 ticks")
    safe = case != "duplicate-effect"
    create_database(database)
    queue = Queue(LEASE)

    # The recorder is told of each thing right after it took place, and makes a row of it.
    with Recorder(case, database, queue) as record:
        # The producer asks for one draft, and its message names the operation. What the workers
        # take it to ask for is spelled out in the two calls of apply(), for you to change.
        now = 0
        message_id = queue.send(f"{TENANT} / J-12:draft:v1", now=now)
        yield from record.send(now, message_id)

        # First delivery.
        first = queue.receive(now=now)
        yield from record.receive(now, "worker A", first)
        if first is None:
            return
        now = 1
        if case == "early-ack":  # worker A acknowledges first, and stops before it writes
            queue.ack(first.receipt, now=now)
            yield from record.ack(now, "worker A", first)
            now = 2
            yield from record.stop(now, "worker A")
            now = LEASE
            answer = queue.receive(now=now)
            yield from record.receive(now, "worker B", answer)
            return
        applied = apply(
            database,
            tenant=TENANT,
            operation="J-12:draft:v1",
            payload="replace the pump seal",
            reuse=safe,
        )
        yield from record.write(now, "worker A", applied)
        now = 2
        if case == "normal":
            queue.ack(first.receipt, now=now)
            yield from record.ack(now, "worker A", first)
            return

        # Worker A stops after its database commit and before its acknowledgement: the queue
        # notices nothing but silence, until the lease ends.
        yield from record.stop(now, "worker A")
        now = LEASE - 1
        answer = queue.receive(now=now)
        yield from record.receive(now, "worker B", answer)
        now = LEASE
        yield from record.lapse(now)

        # Second delivery. Worker B knows nothing of worker A.
        second = queue.receive(now=now)
        yield from record.receive(now, "worker B", second)
        if second is None:
            return
        now = LEASE + 1
        try:
            applied = apply(
                database,
                tenant=TENANT,
                operation="J-12:draft:v1",  # EDIT POINT 1: "J-12:draft:v2", a key made anew
                payload="replace the pump seal",  # EDIT POINT 2: "different draft", other work
                reuse=safe,
            )
        except OperationConflict as conflict:  # not to be acknowledged: the work is not done
            yield from record.write(now, "worker B", conflict)
            return
        yield from record.write(now, "worker B", applied)
        now = LEASE + 2
        queue.ack(second.receipt, now=now)
        yield from record.ack(now, "worker B", second)


# == 4. The recorder: it makes a row of each thing that took place, and of nothing else ============
MESSAGE_ID = 1  # of the one message that a case follows
OPERATION = "J-12:draft:v1"  # this and the next: the lesson's own order, as run_case() has it
PAYLOAD = "replace the pump seal"
LOOKING = "writes, looking first"


class Row(NamedTuple):
    """A row of `drafts` (its own number, its order), or of `receipts` (the draft it proves)."""

    draft_id: int
    tenant: str
    operation: str
    payload: str

    def key(self) -> tuple[str, str]:
        return self.tenant, self.operation

    def key_in_words(self) -> str:
        return f"{self.tenant} / {self.operation}"


class Facts(NamedTuple):
    """What queue and database hold; or what the rows tell of that."""

    messages: int
    asked: list[int]  # the tick of each request for work, in vain or not
    deliveries: int
    settled: list[int]  # the tick of each acknowledgement that settled a message
    drafts: list[Row]
    receipts: list[Row]  # effect receipts


class Line(NamedTuple):
    """A line of a row, and how it is drawn: see WAYS."""

    text: str
    way: str = "here"


class Event(NamedTuple):
    """One thing that took place, and what anybody could read right after it."""

    case: str
    step: int  # 1, 2, ...
    tick: int
    actor: str
    tried: str  # what the actor does, whatever comes of it
    action: str  # send, deliver, refuse, lapse, commit, reuse, conflict, stop, ack or stale
    lines: tuple[Line, ...]  # what came of it
    message: str  # the message's state: ready, in_flight or settled
    deliveries: int  # of the message so far
    drafts: int  # rows committed so far
    receipts: int  # effect receipts (never delivery receipts): rows committed so far
    facts: Facts  # the same, row by row
    wanted: str  # the operation key that the message names
    leased_until: int  # the tick at which the newest lease ends, or ended
    tenant: str | None = None  # as handed to apply()
    operation: str | None = None
    payload: str | None = None
    draft_id: int = 0  # the draft that was written or found

    @property
    def detail(self) -> str:
        return "; ".join(line.text for line in self.lines)


class Standing:
    """Where a worker stands with its newest delivery."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.work = "not written"  # by its newest write: written, found done or refused
        self.acknowledged = "not acknowledged"
        self.stopped = False


class Recorder:
    """Told what an actor did and what came back, it reads both sides and makes an Event of it.

    Each method stands for one thing that can take place, and yields its row. It is told right
    after that took place, at which tick `now` it did. ValueError: queue or database do not bear
    it out, it has its row already, or something took place that no row tells of. Leaving the
    `with` block looks for the last once more. A recorder follows the first message of its queue.
    """

    def __init__(self, case: str, database: Database, queue: Queue) -> None:
        self.case = case
        self.database = database
        self.queue = queue
        self.workers: dict[str, Standing] = {}
        self.told = Facts(0, [], 0, [], [], [])  # by the rows so far
        self._step = 0
        self._now = 0
        self._lapsed = ""  # the newest delivery whose lease has ended
        self._results: list[object] = []  # what came back, and has its row

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._compare()

    def send(self, now: int, message_id: int) -> Iterator[Event]:
        """The producer has sent the message."""
        if message_id != MESSAGE_ID or self._message().available_at != now:
            raise ValueError(f"message {MESSAGE_ID}, which a case follows, was not sent like that")
        self.told = self.told._replace(messages=self.told.messages + 1)
        body = shorten(plain(self._message().body), 22)
        line = Line(f"sends message {message_id}: {body}", "queue")
        yield self._event(now, "producer", "sends a message", "send", [line])

    def receive(self, now: int, worker: str, delivery: Delivery | None) -> Iterator[Event]:
        """A worker has asked the queue for work, and got a delivery or nothing."""
        self._must_go_on(worker)
        self.told = self.told._replace(asked=[*self.told.asked, now])
        message = self._message()
        action = "refuse"
        if delivery is not None:
            action = "deliver"
            if delivery.receipt != message.receipt:
                raise ValueError(f"{delivery.receipt} is not the newest delivery")
            self.told = self.told._replace(deliveries=self.told.deliveries + 1)
            self.workers[worker] = Standing(delivery)
            text = f"gets {delivery.receipt}, leased until tick {delivery.expires_at}"
        elif message.settled_at is not None:
            text = "gets nothing: the message is settled"
        else:
            text = f"gets nothing: leased until tick {message.available_at}"
        line = Line(text, "answer")
        yield self._event(now, worker, "asks the queue for work", action, [line])

    def write(self, now: int, worker: str, result: Applied | OperationConflict) -> Iterator[Event]:
        """A worker has called apply(), which returned or raised `result`."""
        standing = self._standing(worker)
        self._once(result)
        order = Row(0, result.tenant, result.operation, result.payload)
        if isinstance(result, OperationConflict):
            standing.work = "refused"
            yield self._conflict(now, worker, order)
        elif result.status == "reused":
            standing.work = "found done"
            yield self._replayed(now, worker, order._replace(draft_id=result.draft_id))
        else:
            standing.work = "written"
            order = order._replace(draft_id=result.draft_id)
            yield self._wrote(now, worker, order, result.looked)

    def _wrote(self, now: int, worker: str, draft: Row, looked: bool) -> Event:
        self.told = self.told._replace(drafts=[*self.told.drafts, draft])
        if looked:
            self.told = self.told._replace(receipts=[*self.told.receipts, draft])
            lines = [
                Line("looks: finds no effect receipt", "look"),
                Line(f"COMMITS draft {draft.draft_id} and its effect receipt", "commit"),
            ]
            return self._order(now, worker, LOOKING, "commit", draft, lines)
        lines = [
            Line("does not look"),
            Line(f"COMMITS draft {draft.draft_id} and no effect receipt", "commit"),
        ]
        return self._order(now, worker, "writes without looking", "commit", draft, lines)

    def _replayed(self, now: int, worker: str, draft: Row) -> Event:
        if draft not in self.told.receipts:
            raise ValueError(f"no effect receipt proves draft {draft.draft_id} for that order")
        lines = [
            Line(f"looks: finds effect receipt of draft {draft.draft_id}", "look"),
            Line(f"REPLAYS draft {draft.draft_id}: writes nothing"),
        ]
        return self._order(now, worker, LOOKING, "reuse", draft, lines)

    def _conflict(self, now: int, worker: str, order: Row) -> Event:
        found = [row for row in self.told.receipts if row.key() == order.key()]
        if not found or found[0].payload == order.payload:
            raise ValueError("no effect receipt of other work stands under that key")
        lines = [
            Line("looks: finds effect receipt of other work", "look"),
            Line("is REFUSED: operation_conflict"),
        ]
        order = order._replace(draft_id=found[0].draft_id)
        return self._order(now, worker, LOOKING, "conflict", order, lines)

    def ack(self, now: int, worker: str, result: Delivery | StaleReceipt) -> Iterator[Event]:
        """A worker has acknowledged its delivery, or the queue has refused that with `result`."""
        standing = self._standing(worker)
        tried = "acknowledges"
        receipt = shorten(plain(result.receipt), 40)
        if isinstance(result, StaleReceipt):
            self._once(result)
            if result.tick != now:
                raise ValueError(f"that acknowledgement was refused at tick {result.tick}")
            lines = [
                Line(f"acknowledges {receipt}", "ask"),
                Line(f"is REFUSED: stale_receipt, {result.kind}", "answer"),
            ]
            yield self._event(now, worker, tried, "stale", lines)
            return
        if result != standing.delivery or result.receipt != self._message().receipt:
            raise ValueError(f"{receipt} is not the newest delivery, or not one of {worker}")
        self.told = self.told._replace(settled=[*self.told.settled, now])
        standing.acknowledged = "acknowledged"
        yield self._event(now, worker, tried, "ack", [Line(f"ACKNOWLEDGES {receipt}", "ack")])

    def stop(self, now: int, worker: str) -> Iterator[Event]:
        """A worker has stopped: it does nothing any more."""
        standing = self._standing(worker)
        standing.stopped = True
        line = Line(f"STOPS: {standing.work}, {standing.acknowledged}", "stop")
        yield self._event(now, worker, "stops", "stop", [line])

    def lapse(self, now: int) -> Iterator[Event]:
        """Time has passed: at tick `now` the lease of the newest delivery has ended."""
        message = self._message()
        if message.settled_at is not None or message.available_at != now or not message.receipt:
            raise ValueError(f"no lease ends at tick {now}")
        if message.receipt == self._lapsed:
            raise ValueError("the end of this lease has its row already")
        self._lapsed = message.receipt
        line = Line("passes: the message is ready", "queue")
        yield self._event(now, "time", "passes", "lapse", [line])

    def _order(
        self, now: int, worker: str, tried: str, action: str, order: Row, lines: list[Line]
    ) -> Event:
        """The row of a call of apply(). An order that is not the lesson's own is told first."""
        wish = list(self._wish(order))
        return self._event(now, worker, tried, action, wish + lines, **order._asdict())

    def _wish(self, order: Row) -> Iterator[Line]:
        """What an order asks for, as far as it is not the lesson's own."""
        if order.payload != PAYLOAD:
            yield Line(f"wants to write {quoted(order.payload, 45)}")
        if order.key_in_words() != self._message().body:
            yield Line(f"uses the key {quoted(order.key_in_words(), 45)}")

    def _event(
        self, now: int, actor: str, tried: str, action: str, lines: list[Line], **order: Any
    ) -> Event:
        """The next row, unless it would not be true."""
        if now < self._now:
            raise ValueError(f"tick {now} comes after tick {self._now}: ticks never run back")
        self._now = now
        facts = self._compare()
        self._step += 1
        return Event(
            case=self.case,
            step=self._step,
            tick=now,
            actor=actor,
            tried=tried,
            action=action,
            lines=tuple(lines),
            message=self.queue.state(MESSAGE_ID, now=now),
            deliveries=facts.deliveries,
            drafts=len(facts.drafts),
            receipts=len(facts.receipts),
            facts=facts,
            wanted=str(self._message().body),
            leased_until=self._message().available_at,
            **order,
        )

    def _compare(self) -> Facts:
        """What queue and database hold now. ValueError: the rows tell something else."""
        messages = self.queue.messages.values()
        drafts, receipts = committed(self.database)
        if not self._step:  # what was there before the first row is no news
            self.told = self.told._replace(drafts=drafts, receipts=receipts)
        facts = Facts(
            len(messages),
            list(self.queue.asked),
            sum(message.attempts for message in messages),
            [message.settled_at for message in messages if message.settled_at is not None],
            drafts,
            receipts,
        )
        for what, told, found in zip(Facts._fields, self.told, facts, strict=True):
            if told != found:
                raise ValueError(
                    f"{what}: the rows tell of {numbers_of(told)}, but it is {numbers_of(found)};"
                    " whatever takes place is told to the recorder right after it, once"
                )
        return facts

    def _message(self) -> Message:
        return self.queue.messages[MESSAGE_ID]

    def _once(self, result: object) -> None:
        """Remember what came back. ValueError: it has its row already."""
        if any(result is told for told in self._results):
            raise ValueError("nothing new took place: what came back has its row already")
        self._results.append(result)

    def _must_go_on(self, worker: str) -> None:
        if worker in self.workers and self.workers[worker].stopped:
            raise ValueError(f"{worker} has stopped: it does nothing any more")

    def _standing(self, worker: str) -> Standing:
        self._must_go_on(worker)
        if worker not in self.workers:
            raise ValueError(f"{worker} has no delivery to act on")
        return self.workers[worker]


def committed(database: Database) -> tuple[list[Row], list[Row]]:
    """Drafts and effect receipts, read through a new connection: what anybody can see by now."""
    os.stat(database)  # SQLite would make a file that is missing
    with connect(database) as db:
        drafts = db.execute("SELECT id, tenant, operation, payload FROM drafts")
        receipts = db.execute("SELECT draft_id, tenant, operation, payload FROM receipts")
        return sorted(map(Row._make, drafts)), sorted(map(Row._make, receipts))


def numbers_of(told: object) -> str:
    """Of rows, their drafts' numbers."""
    if isinstance(told, list):
        return str([row.draft_id if isinstance(row, Row) else row for row in told])
    return str(told)


# == 5. Stories: the learner's own order of events, and every order that there is ==================
WORKERS = "ABC"
DIVIDED = "steps are divided by ; and not by commas"


class StoryError(Exception):
    """Words that cannot be played: which, why, and what to write instead."""


class Step(NamedTuple):
    """One step of a story."""

    number: int  # 1, 2, ...
    text: str
    verb: str = ""  # gets, writes, acks, stops or tick
    worker: str = ""  # "worker A"; of a tick: none
    tick: int = 0  # to go on to
    reuse: bool = True  # writes the safe way
    operation: str = OPERATION
    payload: str = PAYLOAD

    def wrong(self, why: str) -> StoryError:
        return StoryError(f"step {self.number}, {quoted(self.text, 60)}: {why}")


def parse_story(text: str) -> list[Step]:
    """The steps of a story. StoryError tells of the first one that is none."""
    steps = [parse_step(number, step) for number, step in enumerate(split_steps(text), start=1)]
    if not steps:
        raise StoryError('a story needs steps, such as "A gets; A writes; A acks"')
    return steps


def split_steps(text: str) -> list[str]:
    return [step.strip() for step in re.split("[;\r\n]", text) if step.strip()]


def parse_step(number: int, text: str) -> Step:
    """One step. Its own words may be in upper or lower case, with any blanks between them."""
    step = Step(number, text)
    tick = re.fullmatch(r"tick\s+([0-9]{1,3})", text, re.I | re.A)
    if tick:
        return step._replace(verb="tick", tick=int(tick[1]))
    act = re.fullmatch(r"([abc])\s+(gets|writes|acks|stops)(\s.*)?", text, re.I | re.S | re.A)
    if not act:
        raise step.wrong(why_no_step(text))
    letter, verb, rest = act.groups(default="")
    step = step._replace(verb=verb.lower(), worker=f"worker {letter.upper()}")
    if step.verb == "writes":
        return parse_order(step, rest)
    if rest.strip():
        raise step.wrong(f"nothing may come after {step.verb}; {DIVIDED}")
    return step


def why_no_step(text: str) -> str:
    if "," in text:
        return DIVIDED
    if text.lower().startswith("tick"):
        return "write tick and the tick to go on to, of three digits at most: tick 5"
    return "write A gets, A writes, A acks, A stops or tick 5; workers are A, B and C"


def parse_order(step: Step, text: str) -> Step:
    """The step, with what comes after its `writes`."""
    blind = re.match(r"\s+blind(?=\s|$)", text, re.I | re.A)
    if blind:
        step = step._replace(reuse=False)
        text = text[blind.end() :]
    change = re.compile(r"\s(key|payload)=(.*?)(?=\s(?:key|payload)=|$)", re.I | re.S | re.A)
    unknown = change.sub("", text).strip()
    if unknown:
        known = "blind, key=... and payload=..., without a blank before ="
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
        step = step._replace(**{"operation" if name == "key" else name: value})
    return step


Program = tuple[str, ...]  # what the worker of a delivery does: steps without its letter


def parse_programs(texts: list[str]) -> list[Program]:
    """The programs of two deliveries' workers; of one text both. StoryError: it is none."""
    if len(texts) > 2:
        raise StoryError("two programs at most, one for each delivery")
    programs = [parse_program(text) for text in texts]
    return programs * 2 if len(programs) == 1 else programs


def parse_program(text: str) -> Program:
    program = tuple(split_steps(text))
    for number, words in enumerate(program, start=1):
        parse_program_step(Step(number, words))
    if not 1 <= len(program) <= 3:
        raise StoryError('a program has one to three steps, such as "writes; acks"')
    return program


def parse_program_step(step: Step) -> None:
    found = re.fullmatch(r"acks|writes(\s.*)?", step.text, re.I | re.S | re.A)
    if not found:
        without = "write writes or acks, without a worker's letter"
        raise step.wrong(DIVIDED if "," in step.text else without)
    parse_order(step, found[1] or "")
    if re.search(r"""[^ -~]|["$`%!\\]""", step.text):
        raise step.wrong("a shell would not leave this alone in double quotes")


class Player:
    """Plays steps on a queue and a database, and keeps the rows. The message is sent at tick 0."""

    def __init__(self, database: str) -> None:
        create_database(database)
        self.database = database
        self.queue = Queue(LEASE)
        self.record = Recorder("story", database, self.queue)
        self.now = 0
        message_id = self.queue.send(f"{TENANT} / {OPERATION}", now=self.now)
        self.events = list(self.record.send(self.now, message_id))
        self.steps: list[Step] = []

    def play(self, step: Step) -> list[Event]:
        """Do what the step says. Returns its row, or none where time passes and no lease ends.

        StoryError: the step cannot be done now, and nothing has changed.
        """
        verbs: dict[str, Callable[[Step], Iterator[Event]]] = {
            "gets": self._gets,
            "writes": self._writes,
            "acks": self._acks,
            "stops": self._stops,
            "tick": self._tick,
        }
        standing = self.record.workers.get(step.worker)
        if standing and standing.stopped:
            raise step.wrong(f"{step.worker} has stopped: let another worker go on")
        if not standing and step.verb in ("writes", "acks", "stops"):
            raise step.wrong(self._why_no_delivery(step.worker))
        rows = list(verbs[step.verb](step))
        self.events += rows
        self.steps.append(step)
        return rows

    def state(self) -> str:
        return self.queue.state(MESSAGE_ID, now=self.now)

    def lease_end(self) -> int:
        return self.queue.messages[MESSAGE_ID].available_at

    def _gets(self, step: Step) -> Iterator[Event]:
        delivery = self.queue.receive(now=self.now)
        return self.record.receive(self.now, step.worker, delivery)

    def _writes(self, step: Step) -> Iterator[Event]:
        result: Applied | OperationConflict
        try:
            result = apply(
                self.database,
                tenant=TENANT,
                operation=step.operation,
                payload=step.payload,
                reuse=step.reuse,
            )
        except OperationConflict as conflict:
            result = conflict
        except ValueError as error:
            raise step.wrong(str(error)) from None
        return self.record.write(self.now, step.worker, result)

    def _acks(self, step: Step) -> Iterator[Event]:
        result: Delivery | StaleReceipt = self.record.workers[step.worker].delivery
        try:
            self.queue.ack(result.receipt, now=self.now)
        except StaleReceipt as stale:
            result = stale
        return self.record.ack(self.now, step.worker, result)

    def _stops(self, step: Step) -> Iterator[Event]:
        return self.record.stop(self.now, step.worker)

    def _tick(self, step: Step) -> Iterator[Event]:
        if step.tick < self.now:
            raise step.wrong(
                f"it is tick {self.now} already, and ticks never run back: write the tick to go on"
                f" to, not how many more, such as tick {min(self.now + step.tick, 999)}"
            )
        ends = self.state() == "in_flight" and self.lease_end() <= step.tick
        self.now = step.tick
        if ends:
            yield from self.record.lapse(self.lease_end())

    def _why_no_delivery(self, worker: str) -> str:
        why = f"{worker} has no delivery: it never asked for one"
        for event in self.events:
            if event.actor == worker:
                why = f"{worker} has no delivery: at tick {event.tick} it {event.detail}"
        before = f"{worker[-1]} gets"
        if self.state() == "settled" or self.lease_end() > 999:
            return f"{why}. Nobody gets one any more: leave this step out"
        if self.state() == "in_flight":
            before = f"tick {self.lease_end()}; {before}"
        return f"{why}. Put before this step: {before}"

    def twin(self, database: str) -> "Player":
        """Another player at the same point of the same story, on a copy of the database."""
        import copy
        import shutil

        shutil.copyfile(self.database, database)
        twin = copy.deepcopy(self)
        twin.database = database
        twin.record.database = database
        return twin


def run_story(steps: list[Step], database: str) -> Iterator[Event]:
    """Play a story over the new file `database`; its events, in order. StoryError as in Player."""
    player = Player(database)
    yield from player.events
    for step in steps:
        yield from player.play(step)


def every_order(
    programs: list[Program], folder: str, player: Player, todo: dict[str, Program]
) -> Iterator[Player]:
    """Every order in which the story of `player` can go on: a player that played it, of each.

    `todo` has the steps that are left, by the letter of each worker with a delivery. Each move is
    played on a copy. A worker may stop after any of its steps: so each beginning of an order that
    ends with a delivery or a worker's step is an order of its own.
    """
    number = len(player.steps) + 1
    for move, left in moves(programs, player, todo):
        twin = player.twin(os.path.join(folder, f"{number}.sqlite3"))
        twin.play(parse_step(number, move))
        if twin.steps[-1].verb != "tick":
            yield twin
        yield from every_order(programs, folder, twin, left)


def moves(
    programs: list[Program], player: Player, todo: dict[str, Program]
) -> Iterator[tuple[str, dict[str, Program]]]:
    """What can happen next, and the steps that are left then. A refused worker stops there."""
    for letter, program in todo.items():
        refused = player.record.workers[f"worker {letter}"].work == "refused"
        if program and not refused:
            step, *rest = program
            yield f"{letter} {step}", {**todo, letter: tuple(rest)}
    if player.state() == "in_flight":
        yield f"tick {player.lease_end()}", todo
    if player.state() == "ready" and len(todo) < len(programs):
        letter = WORKERS[len(todo)]
        yield f"{letter} gets", {**todo, letter: programs[len(todo)]}


# == 6. Conclusions: what the committed rows and the queue come to =================================
WORDS = ("once", "duplicated", "lost", "two actions", "conflict", "pending")


class Conclusion(NamedTuple):
    """What a case came to."""

    word: str = ""  # one of WORDS
    sentence: str = ""
    decided_by: int = 0  # the step of the row that decides; 0: none does


def conclude(events: list[Event]) -> Conclusion:
    """Judge by what took place and what is committed, never by the name of a case."""
    word, clause, decided_by = judge(events)
    first = f"The message is settled, and {clause}."
    if not of(events, "ack"):
        first = f"{clause[0].upper()}{clause[1:]}. The message is {comes_again(events[-1])}."
    return Conclusion(word, " ".join([first, *remarks(events)]), decided_by)


def judge(events: list[Event]) -> tuple[str, str, int]:
    """The conclusion in a word and in a clause, and the step that decided it (0: none did)."""
    drafts = events[-1].facts.drafts
    acks = of(events, "ack")
    second = second_under_a_key(drafts)
    conflict = last_conflict(events)
    if second:
        same = [draft for draft in drafts if draft.key() == second.key()]
        clause = f"{len(same)} drafts are saved under one operation key"
        return "duplicated", clause, commit_of(second, events)
    if len(drafts) > 1:
        clause = f"{len(drafts)} drafts are saved under {len(drafts)} operation keys"
        return "two actions", clause, commit_of(drafts[1], events)
    if conflict:
        clause = "an order was refused: somebody must decide which work was meant"
        return "conflict", clause, conflict.step
    if not acks:
        return "pending", "one draft is saved" if drafts else "no draft is saved", 0
    if events[-1].wanted not in [draft.key_in_words() for draft in drafts]:
        clause = "no draft is saved under its operation key: nobody will be asked again"
        return "lost", clause, acks[0].step
    replays = of(events, "reuse")
    decided_by = replays[0].step if replays else commit_of(drafts[0], events)
    return "once", "one draft is saved", decided_by


def of(events: list[Event], *actions: str) -> list[Event]:
    return [event for event in events if event.action in actions]


def commit_of(draft: Row, events: list[Event]) -> int:
    """The step at which a draft was committed; 0 when it was there before."""
    commits = of(events, "commit")
    return next((event.step for event in commits if event.draft_id == draft.draft_id), 0)


def last_conflict(events: list[Event]) -> Event | None:
    """The last write, if it was refused: of all, or of the worker that settled the message."""
    writes = of(events, "commit", "reuse", "conflict")
    for ack in of(events, "ack"):
        writes = [event for event in writes if event.actor == ack.actor]
    return writes[-1] if writes and writes[-1].action == "conflict" else None


def comes_again(end: Event) -> str:
    """Of a message that is not settled: its state, and when it comes again."""
    if end.message == "ready":
        comes = "comes again" if end.deliveries else "goes"
        return f"ready, and {comes} to whoever asks next"
    return f"in flight, and comes again if nobody acknowledges it before tick {end.leased_until}"


def second_under_a_key(drafts: list[Row]) -> Row | None:
    """The first draft that was saved under a key which had one already."""
    keys = set()
    for draft in drafts:
        if draft.key() in keys:
            return draft
        keys.add(draft.key())
    return None


def remarks(events: list[Event]) -> Iterator[str]:
    """What else a reader must know, a sentence each."""
    yield from found_receipts(events)
    yield from orders_written_nowhere(events)
    yield from drafts_under_other_keys(events)
    yield from early_acknowledgement(events)


def found_receipts(events: list[Event]) -> Iterator[str]:
    for action, work in (("reuse", ""), ("conflict", ", for other work")):
        for look in of(events, action)[:1]:
            commits = of(events, "commit")
            writers = [event.actor for event in commits if event.draft_id == look.draft_id]
            wrote = f" that {name_of(writers[0])} wrote" if writers else ""
            yield f"The look of {name_of(look.actor)} found the effect receipt{wrote}{work}."


def orders_written_nowhere(events: list[Event]) -> Iterator[str]:
    """Of the worker that settled the message: what it was refused and nobody wrote."""
    saved = [(row.tenant, row.operation, row.payload) for row in events[-1].facts.drafts]
    for ack in of(events, "ack"):
        for refusal in of(events, "conflict"):
            order = (refusal.tenant, refusal.operation, refusal.payload)
            if refusal.actor == ack.actor and order not in saved:
                what = f"The order of {name_of(refusal.actor)}, {quoted(refusal.payload, 40)},"
                how = "refused, acknowledged all the same,"
                if ack.step < refusal.step:
                    how = "acknowledged, then refused,"
                yield f"{what} was {how} and is written nowhere."


def drafts_under_other_keys(events: list[Event]) -> Iterator[str]:
    end = events[-1]
    for draft in end.facts.drafts:
        if draft.key_in_words() != end.wanted:
            key = quoted(draft.key_in_words(), 40)
            yield f"Draft {draft.draft_id} is saved under another key than the message's, {key}."


def early_acknowledgement(events: list[Event]) -> Iterator[str]:
    wanted = events[-1].wanted
    written = [e for e in of(events, "commit") if f"{e.tenant} / {e.operation}" == wanted]
    for ack in of(events, "ack"):
        if written and ack.step < written[0].step:
            yield "It was acknowledged before it was written: a stop in between would have lost it."


# == 7. The screen: a case as lines of text ========================================================
PLOTS = {  # what the workers do, and nothing of what they find
    "normal": "Worker A writes, looking first, and acknowledges.",
    "duplicate-effect": "Worker A writes without looking, and stops before it acknowledges."
    " Worker B asks for work before and after the lease ends, writes without looking, and"
    " acknowledges.",
    "reuse-effect": "Worker A writes, looking first, and stops before it acknowledges. Worker B"
    " asks for work before and after the lease ends, writes, looking first, and acknowledges.",
    "early-ack": "Worker A acknowledges, and stops before it writes. Worker B asks for work later.",
}
WIDTH = 79
EVENT_WIDTH = 53  # of a row; then come the message's state and the counts


class Played(NamedTuple):
    """A case, or a story, after its run."""

    name: str
    plot: str
    events: list[Event]
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


def name_of(actor: object) -> str:
    return shorten(plain(actor), 20)


def spoken(state: str) -> str:
    return state.replace("_", " ")


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(plain(text), WIDTH, break_on_hyphens=False)


def titled(text: str) -> str:
    return f"--- {shorten(text, 70)} ".ljust(WIDTH, "-")


def heads() -> list[str]:
    return [
        f"{'':{EVENT_WIDTH}} message    saved   effect",
        f"{'tick event, > the one that decides':{EVENT_WIDTH}} state     drafts receipts",
    ]


def row_lines(event: Event, decided_by: int) -> list[str]:
    """An event: mark, tick and actor stand on its first line, state and counts on its last."""
    mark = ">" if event.step == decided_by else " "
    start = f"{mark}{plain(event.tick):>3} {name_of(event.actor)} "
    lines = []
    for line in event.lines:
        lines.append(shorten(start + line.text, WIDTH))
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
    """What is committed, a row of the database a line."""
    facts = played.events[-1].facts
    lines = [evidence_line("draft", draft) for draft in facts.drafts]
    lines += [evidence_line("effect receipt of draft", receipt) for receipt in facts.receipts]
    return ["committed in the database now:", *(lines or ["  no draft, and no effect receipt"])]


def evidence_line(what: str, saved: Row) -> str:
    numbered = f"{what} {saved.draft_id}"
    key = quoted(saved.key_in_words(), 25)
    return f"  {numbered:<25} {key:<25} {quoted(saved.payload, 25)}"


def verdict(played: Played) -> list[str]:
    """The conclusion in a word and in sentences."""
    word = played.conclusion.word.upper()
    return wrapped(f"{played.name}: {word}. {played.conclusion.sentence}")


def account(played: Played) -> list[str]:
    """All of a case but its title; of one that was ended by an error, the rows so far."""
    lines = [*wrapped(played.plot), "", *heads(), *trace(played)]
    if not played.error:
        lines += ["", *evidence(played), "", *verdict(played)]
    return lines


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
Worker A writes, looking first, and acknowledges.

                                                      message    saved   effect
tick event, > the one that decides                    state     drafts receipts
   0 producer sends message 1: north / J-12:draft:v1  ready          0        0
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
Worker A writes without looking, and stops before it acknowledges. Worker B
asks for work before and after the lease ends, writes without looking, and
acknowledges.

                                                      message    saved   effect
tick event, > the one that decides                    state     drafts receipts
   0 producer sends message 1: north / J-12:draft:v1  ready          0        0
   0 worker A gets delivery-1, leased until tick 5    in flight      0        0
   1 worker A does not look
              COMMITS draft 1 and no effect receipt   in flight      1        0
   2 worker A STOPS: written, not acknowledged        in flight      1        0
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
Worker A writes, looking first, and stops before it acknowledges. Worker B asks
for work before and after the lease ends, writes, looking first, and
acknowledges.

                                                      message    saved   effect
tick event, > the one that decides                    state     drafts receipts
   0 producer sends message 1: north / J-12:draft:v1  ready          0        0
   0 worker A gets delivery-1, leased until tick 5    in flight      0        0
   1 worker A looks: finds no effect receipt
              COMMITS draft 1 and its effect receipt  in flight      1        1
   2 worker A STOPS: written, not acknowledged        in flight      1        1
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
Worker A acknowledges, and stops before it writes. Worker B asks for work
later.

                                                      message    saved   effect
tick event, > the one that decides                    state     drafts receipts
   0 producer sends message 1: north / J-12:draft:v1  ready          0        0
   0 worker A gets delivery-1, leased until tick 5    in flight      0        0
>  1 worker A ACKNOWLEDGES delivery-1                 settled        0        0
   2 worker A STOPS: not written, acknowledged        settled        0        0
   5 worker B gets nothing: the message is settled    settled        0        0

committed in the database now:
  no draft, and no effect receipt

early-ack: LOST. The message is settled, and no draft is saved under its
operation key: nobody will be asked again.
""",
}


# == 8. The picture: a case as lanes, the queue on the left, the database on the right =============
class Way(NamedTuple):
    """How a line of a row is drawn: as an arrow between two lanes, or at one lane with a sign."""

    start: str  # "worker" is whoever acts
    end: str
    sign: str  # an arrow's stroke; at one lane what stands on it


WAYS = {
    "look": Way("worker", "database", "-"),
    "commit": Way("worker", "database", "="),
    "ask": Way("worker", "queue", "-"),
    "ack": Way("worker", "queue", "="),
    "answer": Way("queue", "worker", "-"),
    "queue": Way("queue", "queue", "*"),
    "here": Way("worker", "worker", "|"),
    "stop": Way("worker", "worker", "X"),
}
QUEUE_COLUMN = 7
DATABASE_COLUMN = 74  # the workers' lanes stand between, at equal distances
LEGEND = {
    "=": "==>  one of the two moments: COMMITS to the database, ACKNOWLEDGES to the queue",
    "-": "-->  a look into the database, or what passes between worker and queue",
    "*": "*    at the queue: a message comes in, or its lease ends",
    "X": "X    the worker stops here, and its lane ends",
}


class Picture:
    """Draws events on lanes, time downwards."""

    def __init__(self, events: list[Event]) -> None:
        at_queue = of(events, "send", "lapse")
        workers = [name_of(event.actor) for event in events if event not in at_queue]
        self.lanes = list(dict.fromkeys(["queue", *workers, "database"]))
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
        for line in event.lines:
            text = f"{lane} {line.text}" if line.way == "queue" else line.text
            for drawn in self._line(lane, WAYS[line.way], text):
                self.lines.append(put(drawn, 0, tick).rstrip()[:WIDTH])
                tick = ""
        if event.action == "stop" and lane in self.lanes:
            self.lanes.remove(lane)

    def _line(self, worker: str, way: Way, text: str) -> Iterator[str]:
        """One line of the picture, or two where the text is too long for its arrow."""
        start = self.column[worker if way.start == "worker" else way.start]
        end = self.column[worker if way.end == "worker" else way.end]
        self.signs.add(way.sign)
        at = min(start, end) + 1
        if start == end:
            yield from self._beside(at, f" {text} ", way.sign)
            return
        length = abs(end - start) - 1
        label = f" {text} "
        if len(label) + 3 > length:
            yield self._over(at, label)
            label = ""
        shaft = f"{way.sign}{label}".ljust(length, way.sign)
        yield self._over(at, f"{shaft[:-1]}>" if start < end else f"<{shaft[1:]}")

    def _beside(self, at: int, label: str, sign: str) -> Iterator[str]:
        """A label beside a sign, or where there is no room for it over the lanes and the sign."""
        fits = at + len(label) <= WIDTH
        if not fits:
            yield self._over(at, label)
        if fits or sign in LEGEND:
            yield put(self._over(at, label if fits else ""), at - 1, sign)

    def _over(self, at: int, text: str) -> str:
        """The lanes, and over them the text, at a column or as far to the right as it fits."""
        line = " " * WIDTH
        for lane in self.lanes:
            line = put(line, self.column[lane], "|")
        text = shorten(text, WIDTH)
        return put(line, min(at, WIDTH - len(text)), text)


def put(line: str, at: int, text: str) -> str:
    """The line with the text over it, from column `at` on."""
    return line[:at] + text + line[at + len(text) :]


# == 9. The questions: what was predicted, beside what was observed ================================
STATES = {
    "r": "ready",
    "ready": "ready",
    "i": "in flight",
    "in flight": "in flight",
    "s": "settled",
    "settled": "settled",
}
NOBODY = "nobody"
QUEUE = "the queue"
LOOK = "a worker's look"
RECOGNISERS = {
    "n": NOBODY,
    "nobody": NOBODY,
    "q": QUEUE,
    "queue": QUEUE,
    "w": LOOK,
    "worker": LOOK,
    "look": LOOK,
}
HOW_TO_GUESS = (
    "Before each row, say what it will show: the message's state, r(eady), i(n flight) or"
    " s(ettled), and the number of saved drafts, for example: i 1. Enter skips, Ctrl-C leaves."
)


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
            return f"{self.about}: {self.predicted} is right"
        return f"{self.about}: not {self.predicted} but {self.observed}{self.where}"


class Quiz:
    """Asks, and remembers the answers. Enter skips a question, the end of input skips the rest."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.more = True  # input to come
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
        return line

    def note(self, case: str, about: str, predicted: str, observed: object, where: str = "") -> str:
        """Remember an answer. Returns what is to be said of it."""
        answer = Answer(case, about, predicted, str(observed), where)
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
            "How many times is the message delivered (Enter skips)?", number, count
        ),
        "saved drafts": quiz.ask("How many drafts are saved in the end?", number, count),
        "recognised by": quiz.ask(who, "q, w or n", RECOGNISERS.get),
    }


def judge_predictions(
    quiz: Quiz, predicted: dict[str, str | None], played: Played
) -> Iterator[str]:
    """What is to be said of each prediction, beside what came of the case."""
    end = played.events[-1]
    finds = of(played.events, "reuse", "conflict")
    observed = {
        "deliveries": end.deliveries,
        "saved drafts": end.drafts,
        "recognised by": LOOK if finds else NOBODY,
    }
    shown_by = {
        "deliveries": of(played.events, "deliver"),
        "saved drafts": of(played.events, "commit"),
        "recognised by": finds,
    }
    for about, answer in predicted.items():
        if answer is not None:
            ticks = " and ".join(plain(event.tick) for event in shown_by[about])
            where = f" (see tick {ticks})" if ticks else " (no row shows it)"
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


def guess(text: str) -> dict[str, str] | None:
    """A state and a number of drafts, in any order: i 1, i1, 1 i; or one of the two."""
    number = " ".join(re.findall("[0-9]+", text))
    state = " ".join(re.sub("[0-9]+", " ", text).replace("_", " ").split())
    guessed = {}
    if state:
        guessed["message"] = STATES.get(state, "")
    if number:
        guessed["saved drafts"] = count(number) or ""
    return None if "" in guessed.values() else guessed


# == 10. The report: a document for the engineer who takes over ====================================
VERSION = "2.0"
PYTHON = sys.version.split()[0]
VERSIONS = f"fde-queue-delivery-lab {VERSION}, Python {PYTHON}, SQLite {sqlite3.sqlite_version}"
OPEN_QUESTIONS = (
    "Which component recognised the repeated delivery, and by which evidence? Name the row.",
    "Which of the two moments, DATABASE COMMIT and ACKNOWLEDGEMENT, had happened when a worker"
    " stopped or was too slow? What could the queue know of each?",
    "If the effect were an e-mail through another company's API, and asking for it timed out: what"
    " is unknown, how would you find out about the ORIGINAL request, and when must a human decide?",
)


def report(all_played: list[Played], quiz: Quiz) -> str:
    """The Markdown text: what the screen said, in its own lines, and the pictures."""
    accounts = {played.name: account(played) for played in all_played}
    changed = ", ".join(name for name, lines in accounts.items() if edit_mark(name, lines))
    published = "No case is edited: each trace is the published one."
    if all_played[0].name not in PUBLISHED:
        published = "This is an order of events of the learner's own."
    elif changed:
        published = f"The traces of these cases are edited: {changed}."
    lines = ["# Queue delivery lab report", "", f"{VERSIONS}, {sys.platform}", "", published, ""]
    lines += fenced(table(all_played))
    if quiz.answers:
        lines += ["## Predictions", ""]
        lines += fenced([f"{answer.case}: {answer.judged()}" for answer in quiz.answers])
        lines += [f"{quiz.score()}.", ""]
    for played in all_played:
        picture = Picture(played.events)
        lines += [f"## {played.name}: {played.conclusion.word}", ""]
        lines += fenced(accounts[played.name])
        lines += fenced([*picture.lines, "", *picture.legend()])
    lines += ["## Questions for you", ""]
    for number, question in enumerate(OPEN_QUESTIONS, start=1):
        lines += [*wrapped(f"{number}. {question}"), "", "Answer:", ""]
    return "\n".join(lines)


def fenced(lines: list[str]) -> list[str]:
    """The lines as they are, in a fence that none of them can close."""
    ticks = max(map(len, re.findall("`+", "\n".join(lines))), default=0)
    fence = "`" * max(3, ticks + 1)
    return [f"{fence}text", *lines, fence, ""]


# == 11. The demo: play, ask, show, keep ===========================================================
JSON_FIELDS = (
    *("case", "step", "tick", "actor", "action", "detail", "message"),
    *("deliveries", "drafts", "receipts", "tenant", "operation", "payload"),
)


class LabError(Exception):
    """What could not be done, and the way out, in one line."""


def demo(options: argparse.Namespace) -> None:
    """Play one case after the other, show or ask about each, and tell what they came to."""
    if not options.names:
        raise LabError("CASES is empty: there is nothing to play")
    quiz = Quiz()
    all_played: list[Played] = []
    tell = partial(say, err=options.json)
    with reserved(options.report, options.keep), workplace(options.keep) as folder:
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
            tell(*how_to_look_inside(options.keep, all_played))
        if options.report:
            with open(options.report, "w", encoding="ascii", newline="\n") as file:
                file.write(report(all_played, quiz))
            tell(f"report written to {options.report}")


def play_in(folder: str, name: str, steps: list[Step]) -> Played:
    """Play a case, or the story of these steps, on a database of its own in the folder."""
    database = os.path.join(folder, f"{name}.sqlite3")
    if steps:
        return play(name, "; ".join(step.text for step in steps), run_story(steps, database))
    return play(name, PLOTS.get(name, ""), run_case(name, database))


def play(name: str, plot: str, story: Any) -> Played:
    """Play a generator of events to its end, or to the error that ends it."""
    events: list[Event] = []
    try:
        for event in story:
            if not isinstance(event, Event) or event.step != len(events) + 1:
                # Thrown in there, so that the error tells the line.
                story.throw(ValueError("no new row is yielded: write yield from record...."))
            events.append(event)
        if not events:
            raise ValueError("no row was yielded")
        return Played(name, plot, events, conclude(events), "")
    except (Exception, SystemExit, GeneratorExit) as error:
        message = f"{name}: {type(error).__name__}: {error}{line_of(error)}"
        return Played(name, plot, events, Conclusion(), message)


def line_of(error: BaseException) -> str:
    """The line of run_case() at which an error came up."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.name == "run_case"]
    line = lines[-1] if lines else run_case.__code__.co_firstlineno
    return f" (line {line}, in run_case)"


def show_json(played: Played) -> None:
    import json

    for event in played.events:
        say(json.dumps({name: getattr(event, name) for name in JSON_FIELDS}, default=str))


def show(played: Played, place: str, quiz: Quiz, options: argparse.Namespace) -> None:
    """One case on the screen, with the questions that were asked for."""
    lines = account(played)
    mark = edit_mark(played.name, lines)
    if played.error or not (options.predict or options.step):
        say(titled(f"{played.name}{mark}"), *lines, "")
        return
    predicted = {}
    title = f"{played.name}{mark}"
    plot = [*wrapped(played.plot), ""]
    if options.predict:
        say(titled(place), *plot)
        predicted = predict(quiz)
        plot = [""]
    if options.step:
        title = f"{place}{mark}; its name comes at the end"
    say(titled(title), *plot, *heads())
    for event in played.events:
        guessed = ask_for_guess(quiz, event) if options.step else {}
        say(*row_lines(event, played.conclusion.decided_by))
        if guessed:
            say(f"= {check_guess(quiz, guessed, event)}")
    say("", *evidence(played), "", *verdict(played))
    for told in judge_predictions(quiz, predicted, played):
        say(*wrapped(f"= {told}"))
    say()


def how_to_look_inside(keep: str, all_played: list[Played]) -> list[str]:
    """A command that can be pasted, whatever the folder is called."""
    fullest = max(all_played, key=lambda played: played.events[-1].drafts)
    path = os.path.join(os.curdir, keep, f"{fullest.name}.sqlite3").replace(os.sep, "/")
    # Other characters as escapes, which every shell leaves alone and Python's literal undoes.
    path = re.sub(r"[^A-Za-z0-9/._: -]", lambda found: f"\\U{ord(found[0]):08x}", path)
    code = f"import sqlite3; print(*sqlite3.connect('{path}').iterdump(), sep='\\n')"
    python = "py" if os.name == "nt" else "python3"
    return [
        f"the databases are kept in {keep}; look inside with, for example:",
        f'  {python} -c "{code}"',
    ]


@contextmanager
def workplace(keep: str | None) -> Iterator[str]:
    """The folder to play in: `keep`, which must be new or empty, or else a temporary one."""
    if keep is None:
        with TemporaryDirectory() as folder:
            yield folder
        return
    try:
        if not os.path.isdir(keep):
            os.mkdir(keep)
        elif os.listdir(keep) or not os.access(keep, os.W_OK):
            raise LabError(f"{keep} is not empty, or closed to you: name a new folder for --keep")
    except OSError as error:
        raise LabError(f"{keep} cannot be made: {error.strerror}; name a new folder") from None
    yield keep


@contextmanager
def reserved(path: str | None, keep: str | None) -> Iterator[None]:
    """An empty new file for the report, which is removed again when the run fails."""
    if path is None:
        yield
        return
    if keep is not None and is_inside(path, keep):
        raise LabError(f"{path} lies inside {keep}: name a report outside of it")
    try:
        with open(path, "x", encoding="ascii"):
            pass
    except FileExistsError:
        raise LabError(f"{path} is there already and stays as it is: name a new file") from None
    except OSError as error:
        raise LabError(f"{path} cannot be made: {error.strerror}; name another file") from None
    try:
        yield
    except BaseException:
        os.unlink(path)
        raise


def is_inside(path: str, folder: str) -> bool:
    path = os.path.realpath(path)
    folder = os.path.realpath(folder)
    return path == folder or path.startswith(os.path.join(folder, ""))


WHAT_COUNTS = (
    "A worker may stop after any of its steps, and an order that ends there counts as an order of"
    " its own: these are numbers of orders, not odds. Of a pending order the message comes again."
)


def search(programs: list[Program]) -> None:
    """Play every order of two deliveries, count what they come to, and show what can go wrong."""
    counts = dict.fromkeys(WORDS, 0)
    wrong = []
    with TemporaryDirectory() as folder:
        start = Player(os.path.join(folder, "start.sqlite3"))
        for player in every_order(programs, folder, start, {}):
            word = conclude(player.events).word
            counts[word] += 1
            if word in ("duplicated", "lost", "two actions"):
                wrong.append(player)
    say("Every order of two deliveries, each played on its own queue and database:")
    for letter, program in zip(WORKERS, programs, strict=False):
        say(*wrapped(f"worker {letter}: {'; '.join(program)}"))
    say("", *wrapped(WHAT_COUNTS), "", f"{sum(counts.values()):>6} orders, of which end")
    say(*(f"{number:>6} {word}" for word, number in counts.items()), "")
    if not wrong:
        say("None of them ends duplicated, lost or as two actions.")
        return
    shortest = min(wrong, key=lambda player: len(player.steps))
    story = "; ".join(step.text for step in shortest.steps)
    say("The shortest that goes wrong, to paste after demo:", f'  --story "{story}"', "")
    found = Played("story", story, shortest.events, conclude(shortest.events), "")
    say(titled(found.name), *account(found))


# == 12. The command line: words in, exit status out ===============================================
USAGE = """LAB demo [CASE ...] [--story STORY] [--json] [--predict] [--step]
                [--report FILE] [--keep DIR]
       LAB demo --search PROGRAM [--search PROGRAM]
       LAB test [options of unittest]
       LAB --version"""
EXAMPLE = "A gets; A writes; tick 5; B gets; B writes; B acks; A acks"


class Parser(argparse.ArgumentParser):
    """argparse with one line for a usage error, and help of the same width everywhere."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.color = False  # which Python 3.14 would use
        self.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=WIDTH)

    def error(self, message: str) -> NoReturn:
        say(f"error: {message}", err=True)
        raise SystemExit(2)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of `demo`, checked; SystemExit for help, version and bad usage."""
    parser = Parser(
        prog="LAB",
        usage=USAGE,
        description="A queue delivers messages: see what a delivery proves, and what it does not."
        " LAB stands for python3 (on Windows: py) and the name of this file.",
    )
    if arguments[:1] == ["demo"]:
        add_demo_options(parser)
        options = parser.parse_intermixed_args(arguments[1:])
        try:
            check_options(options)
            prepare(options)
        except StoryError as error:
            parser.error(str(error))
        return options
    parser.add_argument("--version", action="version", version=VERSIONS)
    if arguments and not arguments[0].startswith("-"):
        parser.error(f"there is no {quoted(arguments[0], 40)}: write demo or test")
    parser.parse_args(arguments)
    parser.error(f"say what to do: {how_to_run('demo')}")


def add_demo_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; none: all of them")
    add(
        "--story",
        action="append",
        default=[],
        help=f'your own order of events, such as "{EXAMPLE}", by workers A, B and C. tick 5 goes on'
        " to tick 5. A writes blind: without looking for an effect receipt. A writes key=..."
        " payload=...: another order",
    )
    add(
        "--search",
        action="append",
        default=[],
        metavar="PROGRAM",
        help='play every order of two deliveries whose workers do, say, "writes; acks"; a second'
        " PROGRAM is for the second delivery",
    )
    add("--predict", action="store_true", help="ask first what will come of each case")
    add("--step", action="store_true", help="ask about each event before its row is shown")
    add("--json", action="store_true", help="print the events as JSON Lines, and nothing else")
    add("--report", metavar="FILE", help="write a report, with pictures, to a new file")
    add("--keep", metavar="DIR", help="play in DIR, which is new or empty, and keep the databases")


def check_options(options: argparse.Namespace) -> None:
    """StoryError: words that do not go together, or a case that there is not."""
    chosen = [bool(options.cases), *map(bool, options.story), bool(options.search)]
    if sum(chosen) > 1:
        raise StoryError("name cases, or tell one --story, or --search: one of the three")
    for case in options.cases:
        if case not in CASES:
            raise StoryError(f"there is no case {quoted(case, 40)}: choose from {', '.join(CASES)}")
    asks = options.predict or options.step
    if options.json and asks:
        raise StoryError("--json asks nothing: leave out --predict and --step")
    if options.search and (asks or options.json or options.report or options.keep):
        raise StoryError("--search goes alone: leave out the other options")


def prepare(options: argparse.Namespace) -> None:
    """Add the names to play, a story's steps, the programs to search. StoryError: they are none."""
    options.names = list(dict.fromkeys(options.cases or CASES))
    options.steps = []
    options.programs = parse_programs(options.search)
    for story in options.story:
        options.names = ["story"]
        options.steps = parse_story(story)
        with TemporaryDirectory() as folder:  # a rehearsal: of a bad story nothing is shown
            list(run_story(options.steps, os.path.join(folder, "story.sqlite3")))


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
        search(options.programs)
    else:
        demo(options)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status; argparse's own exits stay SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with suppress(AttributeError, ValueError):  # not for any stream; Windows would write \r\n
        sys.stdout.reconfigure(newline="\n")  # type: ignore[union-attr]
    try:
        try:
            return run(arguments)
        finally:
            say(end="")  # what is still buffered must fail here, not at the interpreter's exit
    except KeyboardInterrupt:
        complaint = ["", "interrupted"]  # not on the line of a prompt
        status = 130
    except BrokenPipeError:  # nobody reads on
        return 1
    except LabError as error:
        complaint = [f"error: {error}"]
        status = 1
    except Exception as error:  # of the system, or of an edit
        complaint = [f"error: {type(error).__name__}: {error}"]
        status = 1
    with suppress(LabError, BrokenPipeError):
        say(*complaint, err=True)
    return status


def say(*lines: str, end: str = "\n", err: bool = False) -> None:
    """Write to the console. BrokenPipeError: nobody reads on; LabError: it cannot be written."""
    stream = sys.stderr if err else sys.stdout
    if stream is None:  # a program without a console
        return
    try:
        print(*map(plain, lines), sep="\n", end=end, file=stream, flush=end != "\n")
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError, AttributeError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())  # for what is still buffered
        if isinstance(error, BrokenPipeError) or is_closed_pipe_of_windows(error):
            raise BrokenPipeError from None
        raise LabError(f"the output cannot be written: {error}") from None


def is_closed_pipe_of_windows(error: Exception) -> bool:
    return os.name == "nt" and isinstance(error, OSError) and error.errno == EINVAL


# == 13. The tests: what the lesson says, sentence by sentence =====================================
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


class Said(NamedTuple):
    """What a run of the lab came to."""

    status: Any
    out: str
    err: str


class LabTest(TestCase):
    """A folder to work in, a database, and the lab itself."""

    maxDiff = None
    order: Any = {"tenant": "north", "operation": "J-12:draft:v1", "payload": "a draft"}

    def setUp(self) -> None:
        self.enterContext(chdir(self.enterContext(TemporaryDirectory())))
        self.database = "work.sqlite3"
        create_database(self.database)

    def apply(self, **changed: Any) -> Applied:
        return apply(self.database, **{**self.order, **changed})

    def lab(self, *words: str, typed: str = "") -> Said:
        """Run the lab with these words on its command line, and with that input."""
        said = self.lab_with(io.StringIO(typed), *words)
        if said.status == 130:  # meant for the test run, not for the lab in it
            raise KeyboardInterrupt
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

    @contextmanager
    def edit(self, old: str, new: str) -> Iterator[None]:
        """run_case() with one of its texts replaced, where it stands last."""
        before, found, after = self.source().rpartition(old)
        self.assertTrue(found, f"{old!r} stands nowhere in run_case()")
        with self.edited(f"{before}{new}{after}"):
            yield

    def source(self) -> str:
        import inspect

        first = self.published_case.__code__.co_firstlineno
        with open(FILE, encoding="utf-8") as file:
            lines = file.readlines()[first - 1 :]
        return "".join(inspect.getblock(lines))

    published_case = staticmethod(run_case)

    @contextmanager
    def edited(self, source: str, **constants: Any) -> Iterator[None]:
        """That run_case() in the place of the published one."""
        lines_above = "\n" * (self.published_case.__code__.co_firstlineno - 1)
        names = {**globals(), **constants}
        exec(compile(lines_above + source, FILE, "exec"), names)
        before = {name: globals()[name] for name in ("run_case", *constants)}
        globals().update(constants, run_case=names["run_case"])
        try:
            yield
        finally:
            globals().update(before)

    def pairs(self, text: str) -> list[tuple[str, str]]:
        """What stands in a text as a line, and what is expected of it, indented below."""
        found = re.findall(r"^(\S.*)\n((?: {4}.*\n)+)", text, re.M)
        return [(given, expected.strip().replace("\n    ", " ")) for given, expected in found]

    def process(self, *words: str, **settings: Any) -> Any:
        import subprocess

        command = [sys.executable, *words]
        return self.enterContext(
            subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", **settings)
        )


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
        text = f"stale_receipt, {kind}: '{receipt}' at tick {now}"
        with self.assertRaisesRegex(StaleReceipt, f"^{text}$") as caught:
            queue.ack(receipt, now=now)
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
    def test_receipt_rolls_back_with_effect(self) -> None:
        for action in ("ABORT", "ROLLBACK"):  # with ROLLBACK, SQLite ends the transaction itself
            with self.subTest(action=action):
                with connect(self.database) as db:
                    stop = f"BEGIN SELECT RAISE({action}, 'in between'); END"
                    db.execute(f"CREATE TRIGGER stop BEFORE INSERT ON receipts {stop}")
                before = committed(self.database)
                with self.assertRaisesRegex(sqlite3.IntegrityError, "^in between$"):
                    self.apply(operation=action)
                self.assertEqual(committed(self.database), before)

                with connect(self.database) as db:
                    db.execute("DROP TRIGGER stop")
                self.assertEqual(self.apply(operation=action).status, "created")

    def test_second_write_under_the_same_key_finds_the_first(self) -> None:
        self.assertEqual(self.apply(), ("created", 1, *self.order.values(), True))
        before = committed(self.database)
        self.assertEqual(self.apply(), ("reused", 1, *self.order.values(), True))
        self.assertEqual(committed(self.database), before)

    def test_other_work_under_the_same_key_is_refused_and_changes_nothing(self) -> None:
        self.apply()
        before = committed(self.database)
        refused = "^operation_conflict: north / J-12:draft:v1 stands for other work$"
        with self.assertRaisesRegex(OperationConflict, refused) as caught:
            self.apply(payload="another draft")
        self.assertEqual(caught.exception.payload, "another draft")
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
        applied = self.apply(reuse=False)
        self.assertEqual(applied, ("created", 2, *self.order.values(), False))
        drafts, receipts = committed(self.database)
        self.assertEqual([row.draft_id for row in drafts], [1, 2])
        self.assertEqual([row.draft_id for row in receipts], [1])

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
        self.assertRaises(FileNotFoundError, apply, "nowhere", **self.order)
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

    def test_plain_begin_lets_both_look_and_then_refuses_one_at_once(self) -> None:
        with connect(self.database) as one, connect(self.database) as other:
            for db in (one, other):
                db.execute("BEGIN")
                self.assertEqual(db.execute("SELECT * FROM receipts").fetchall(), [])
            write = "INSERT INTO drafts (tenant, operation, payload) VALUES ('n', 'o', 'p')"
            one.execute(write)
            self.assertRaisesRegex(sqlite3.OperationalError, "locked", other.execute, write)

    # A process with the lesson's part of this file, which is killed after a statement.
    WORKER = """
import functools, os, signal, sqlite3, sys
source, database, dies_after = sys.argv[1:]
class Mortal(sqlite3.Connection):
    def execute(self, sql, *values):
        result = super().execute(sql, *values)
        if sql.startswith(dies_after):
            os.kill(os.getpid(), signal.SIGTERM)
        return result
sqlite3.connect = functools.partial(sqlite3.connect, factory=Mortal)
lab = {"__name__": "lab"}
exec(open(source, "rb").read().split(b"# == 4.")[0], lab)
print("ready", flush=True)
order = dict(tenant="north", operation="J-12:draft:v1", payload="a draft")
print(lab["apply"](database, **order).status)
"""

    def worker(self, database: str, dies_after: str) -> Any:
        return self.process("-c", self.WORKER.strip(), FILE, database, dies_after)

    def test_of_many_processes_at_once_one_creates_and_the_others_reuse(self) -> None:
        with connect(self.database) as db:
            db.execute("BEGIN IMMEDIATE")  # all of them find the database locked, and wait
            workers = [self.worker(self.database, "nothing") for _ in range(3)]
            for worker in workers:
                self.assertEqual(worker.stdout.readline(), "ready\n")
        said = sorted(worker.stdout.read() for worker in workers)
        self.assertEqual(said, ["created\n", "reused\n", "reused\n"])

    def test_worker_killed_after_any_statement_leaves_both_rows_or_neither(self) -> None:
        statements = ["BEGIN", "SELECT p", "INSERT INTO drafts", "INSERT INTO receipts", "COMMIT"]
        for statement in statements:
            create_database(statement)
        workers = {statement: self.worker(statement, statement) for statement in statements}
        for statement, worker in workers.items():
            with self.subTest(after=statement):
                self.assertEqual(worker.stdout.read(), "ready\n")
                self.assertNotEqual(worker.wait(), 0)
                drafts, receipts = committed(statement)
                self.assertEqual(drafts, receipts)
                self.assertEqual(len(drafts), 1 if statement == "COMMIT" else 0)
                status = "reused" if drafts else "created"
                self.assertEqual(apply(statement, **self.order).status, status)


class PublishedTest(LabTest):
    def test_demo_prints_the_published_text(self) -> None:
        said = self.lab("demo")
        seen = said.out + said.err
        self.assertMultiLineEqual(PUBLISHED_DEMO, seen, "\n- as published, + as seen here")

    def test_old_pythons_can_read_the_file_as_far_as_their_version_check(self) -> None:
        import ast

        with open(FILE, encoding="ascii") as file:
            ast.parse(file.read(), feature_version=(3, 6))

    def test_run_case_holds_two_literal_calls_of_apply_and_the_second_has_the_edit_points(
        self,
    ) -> None:
        calls = re.findall(r"apply\(\n(.*?)\n +\)", self.source(), re.S)
        self.assertEqual(len(calls), 2)
        literal = "(\"[^\"]*\"|'[^']*'),"
        for call in calls:
            self.assertRegex(call, f" operation={literal}")
            self.assertRegex(call, f" payload={literal}")
        self.assertRegex(calls[1], f" operation={literal}  # EDIT POINT 1: ")
        self.assertRegex(calls[1], f" payload={literal}  # EDIT POINT 2: ")


class PublishedStoryTest(LabTest):
    """Tests that need the story as it is published."""

    _published: dict[Any, bool] = {}

    def setUp(self) -> None:
        super().setUp()
        version = (run_case, LEASE, TENANT, CASES)
        if version not in self._published:
            self._published[version] = self.lab("demo").out == PUBLISHED_DEMO
        if not self._published[version]:
            self.skipTest("needs the published story: see test_demo_prints_the_published_text")

    def play(self, case: str) -> Played:
        with TemporaryDirectory() as folder:
            return play_in(folder, case, [])

    def tell(self, story: str) -> Played:
        with TemporaryDirectory() as folder:
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

    def test_case_without_a_story_is_refused_at_its_first_event(self) -> None:
        why = "no story is told of a case named 'nope'"
        with self.assertRaisesRegex(ValueError, f"^{why}$"):
            next(run_case("nope", self.database))
        with self.edited(self.source(), CASES=("nope",)):
            self.assertIn(f"error: nope: ValueError: {why} (line ", self.lab("demo").err)

    def test_case_without_rows_is_an_error_with_a_line_and_nothing_is_shown(self) -> None:
        with self.edit("    if case not in PLOTS:", "    return\n    if case not in PLOTS:"):
            said = self.lab("demo")
        line = self.published_case.__code__.co_firstlineno
        error = f"error: normal: ValueError: no row was yielded (line {line}, in run_case)\n"
        self.assertEqual(said, (1, "", error))

    def test_case_can_be_played_again_over_the_same_database(self) -> None:
        first = list(run_case("normal", self.database))
        second = list(run_case("normal", self.database))
        self.assertEqual(second[2].action, "reuse")
        self.assertEqual(second[-1].facts.drafts, first[-1].facts.drafts)
        self.assertIn("The look of worker A found the effect receipt.", conclude(second).sentence)

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

    def test_worker_that_asks_before_the_lease_has_ended_gets_nothing_and_does_nothing(
        self,
    ) -> None:
        with self.edit("now = LEASE\n        yield from record.lapse(now)", "pass"):
            early = self.play("reuse-effect")
        self.assertEqual(self.outcome(early), "1 1 1 in_flight pending: none")
        self.assertEqual(early.error, "")

    def test_story_moves_with_the_lease(self) -> None:
        with self.edited(self.source(), LEASE=8):
            reuse = self.play("reuse-effect")
            early = self.play("early-ack")
        self.assertEqual([event.tick for event in reuse.events], [0, 0, 1, 2, 7, 8, 8, 9, 10])
        self.assertEqual(self.outcome(reuse), "2 1 1 settled once: reuse of worker B")
        self.assertEqual([event.tick for event in early.events], [0, 0, 1, 2, 8])

    def test_lease_of_three_ticks_is_enough_and_one_of_two_is_not(self) -> None:
        with self.edited(self.source(), LEASE=3):
            self.assertEqual(self.play("reuse-effect").error, "")
        with self.edited(self.source(), LEASE=2):
            error = self.play("reuse-effect").error
        self.assertIn("LEASE is 2: the cases need at least 3 ticks", error)

    def test_edit_that_fails_shows_its_rows_and_one_error_line_and_nothing_more(self) -> None:
        ack = "queue.ack(first.receipt, now=now)\n            yield from record.ack"
        with self.edit(
            f'"normal":\n            {ack}', '"normal":\n            yield from record.ack'
        ):
            said = self.lab("demo", "--predict", "normal", "early-ack", typed="1\n1\nn\n")
        rows_so_far, _ = PUBLISHED["normal"].split("   2 worker A")
        rows_so_far = rows_so_far.replace("normal --------", "normal, edited ")
        self.assertEqual(said.out, rows_so_far.replace(">  1", "   1") + "\n")
        self.assertRegex(
            said.err,
            r"^error: normal: ValueError: settled: the rows tell of \[2\], but it is \[\]; whatever"
            r" takes place is told to the recorder right after it, once \(line \d+, in run_case\)$",
        )
        self.assertEqual(said.status, 1)

    def test_after_an_edit_one_test_fails_with_a_plain_diff_and_the_others_are_skipped(
        self,
    ) -> None:
        with self.edit(EDIT_2, EDIT_2.replace("replace the pump seal", "different draft")):
            said = self.lab("test", "-v", "PublishedTest", "CaseTest", "EditTest")
        self.assertEqual(said.status, 1)
        self.assertEqual(said.err.count("... FAIL"), 1)
        self.assertIn("\n+ >  6 worker B wants to write 'different draft'\n", said.err)
        self.assertEqual(said.err.count("... ok"), 2)  # the other two of PublishedTest
        why = "skipped 'needs the published story: see test_demo_prints_the_published_text'"
        self.assertIn(why, said.err)


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
                with self.subTest(source=source), self.edited(source):
                    self.assertTrueRows(self.play(case))

    def compiles(self, source: str) -> bool:
        try:
            compile(source, FILE, "exec")
        except SyntaxError:
            return False
        return True

    def assertTrueRows(self, played: Played) -> None:
        """Each row tells of the one thing that changed, or else of none."""
        drafts = 0
        deliveries = 0
        message = "ready"
        for event in played.events:
            self.assertEqual(event.drafts - drafts, event.action == "commit")
            self.assertEqual(event.deliveries - deliveries, event.action == "deliver")
            if "settled" in (event.message, message) and event.message != message:
                self.assertEqual(event.action, "ack")
            drafts = event.drafts
            deliveries = event.deliveries
            message = event.message
        for line in account(played):
            self.assertRegex(line, "^[ -~]{0,79}$")
        if played.error:
            self.assertRegex(played.error, r"^[a-z-]+: \w+: .* \(line \d+, in run_case\)$")

    def test_line_dropped_gives_true_rows_or_an_error_line(self) -> None:
        def drop(lines: list[str], number: int) -> None:
            if not lines[number].strip().startswith("#"):
                del lines[number]

        self.assertTrueRowsAfter(drop)

    def test_line_doubled_gives_true_rows_or_an_error_line(self) -> None:
        def double(lines: list[str], number: int) -> None:
            if "record." in lines[number] or "queue." in lines[number]:
                lines.insert(number, lines[number])

        self.assertTrueRowsAfter(double)

    def test_lines_swapped_give_true_rows_or_an_error_line(self) -> None:
        def swap(lines: list[str], number: int) -> None:
            lines.insert(number, lines.pop(number + 1))

        self.assertTrueRowsAfter(swap)

    # A text of run_case(), what is put in its place, and why there is no row then.
    EDITS = """
record.send(now, message_id)
    -> record.send(now, 7)
    -> message 1, which a case follows, was not sent like that
record.send(now, message_id)
    -> record.send(1, message_id)
    -> message 1, which a case follows, was not sent like that
record.receive(now, "worker B", second)
    -> record.receive(9, "worker B", second)
    -> asked: the rows tell of [0, 4, 9], but it is [0, 4, 5]
record.receive(now, "worker B", second)
    -> record.receive(now, "worker B", first)
    -> delivery-1 is not the newest delivery
record.receive(now, "worker B", second)
    -> record.receive(now, "worker A", second)
    -> worker A has stopped: it does nothing any more
yield from record.lapse(now)
    -> yield from record.lapse(now + 1)
    -> no lease ends at tick 6
yield from record.lapse(now)
    -> yield from record.lapse(now); yield from record.lapse(now)
    -> the end of this lease has its row already
yield from record.lapse(now)
    -> yield from record.lapse(now); queue.receive(now=now)
    -> asked: the rows tell of [0, 4, 5], but it is [0, 4, 5, 5]
yield from record.lapse(now)
    -> yield from record.receive(LEASE - 1, "worker B", answer)
    -> asked: the rows tell of [0, 4, 4], but it is [0, 4]
yield from record.lapse(now)
    -> yield record.lapse(now)
    -> no new row is yielded: write yield from record....
yield from record.lapse(now)
    -> yield from [*record.lapse(now)] * 2
    -> no new row is yielded: write yield from record....
yield from record.lapse(now)
    -> sys.exit()
    -> reuse-effect: SystemExit
record.write(now, "worker B", applied)
    -> record.write(now, "worker C", applied)
    -> worker C has no delivery to act on
record.write(now, "worker B", applied)
    -> record.write(now, "worker B", Applied("reused", 9, "", "", "", True))
    -> no effect receipt proves draft 9 for that order
record.write(now, "worker B", applied)
    -> record.write(now, "worker B", OperationConflict("a", "b", "c"))
    -> no effect receipt of other work stands under that key
yield from record.write(now, "worker B", applied)
    -> for _ in (1, 2): yield from record.write(now, "worker B", applied)
    -> nothing new took place: what came back has its row already
queue.ack(second.receipt, now=now)
    -> queue.send("", now=now)
    -> messages: the rows tell of 1, but it is 2
yield from record.ack(now, "worker B", second)
    -> record.ack(now, "worker B", second)
    -> settled: the rows tell of [], but it is [7]
yield from record.ack(now, "worker B", second)
    -> yield from record.ack(now, "worker B", second); yield from record.lapse(LEASE * 2)
    -> no lease ends at tick 10
record.ack(now, "worker B", second)
    -> record.ack(5, "worker B", second)
    -> tick 5 comes after tick 6: ticks never run back
record.ack(now, "worker B", second)
    -> record.ack(now, "worker B", second._replace(receipt="x"))
    -> x is not the newest delivery, or not one of worker B
"""

    def test_row_of_what_did_not_take_place_is_refused_with_the_reason(self) -> None:
        for old, edit in self.pairs(self.EDITS):
            _, new, why = f" {edit}".split(" -> ")
            with self.subTest(edit), self.edit(old, new):
                played = self.play("reuse-effect")
                self.assertTrueRows(played)
                self.assertIn(why, played.error)

    def test_refused_acknowledgement_that_an_edit_catches_is_a_row(self) -> None:
        ack = "queue.ack(second.receipt, now=now)"
        caught = """try:
            queue.ack("delivery-1", now=now)
        except StaleReceipt as stale:
            yield from record.ack(now, "worker B", stale)
        """
        with self.edit(ack, f"{caught}{ack}"):
            played = self.play("reuse-effect")
        self.assertEqual(self.actions(played).split()[-2:], ["stale", "ack"])
        told = 'yield from record.ack(now, "worker B", stale)'
        with self.edit(ack, f"{caught}{ack}".replace(told, f"{told}; {told}")):
            self.assertIn("has its row already", self.play("reuse-effect").error)
        late = f"{caught}{ack}".replace('"delivery-1", now=now', "second.receipt, now=99")
        with self.edit(ack, late):
            error = self.play("reuse-effect").error
        self.assertIn("that acknowledgement was refused at tick 99", error)

    def test_acknowledgement_is_not_told_of_another_worker_than_the_one_that_made_it(self) -> None:
        source = self.source().replace(
            '        yield from record.stop(now, "worker A")\n        now', "        now"
        )
        source = source.replace(
            'record.ack(now, "worker B", second)', 'record.ack(now, "worker A", first)'
        )
        with self.edited(source):
            self.assertIn("delivery-1 is not the newest", self.play("reuse-effect").error)


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
A gets; tick 5; A acks
    1 0 0 ready pending: none
A gets; A writes
    1 1 1 in_flight pending: none
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
"""
    # Below each story: its sentence; then: what its last row says; then: why it is refused.
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
A gets; A writes; A writes payload=x; A acks
    The message is settled, and an order was refused: somebody must decide which work was meant.
    The look of worker A found the effect receipt that worker A wrote, for other work. The order
    of worker A, 'x', was refused, acknowledged all the same, and is written nowhere.
A gets; A writes; A acks; A writes payload=x
    The message is settled, and an order was refused: somebody must decide which work was meant.
    The look of worker A found the effect receipt that worker A wrote, for other work. The order of
    worker A, 'x', was acknowledged, then refused, and is written nowhere.
tick 1
    No draft is saved. The message is ready, and goes to whoever asks next.
A gets; A writes; A writes blind payload=x; A writes payload=x; A acks
    The message is settled, and 2 drafts are saved under one operation key. The look of worker A
    found the effect receipt that worker A wrote, for other work.
A gets; A writes; A writes key=x; A acks
    The message is settled, and 2 drafts are saved under 2 operation keys. Draft 2 is saved under
    another key than the message's, 'north / x'.
A gets; A acks; A writes
    The message is settled, and one draft is saved. It was acknowledged before it was written: a
    stop in between would have lost it.
A gets; A writes key=J-13:draft:v1; A acks
    The message is settled, and no draft is saved under its operation key: nobody will be asked
    again. Draft 1 is saved under another key than the message's, 'north / J-13:draft:v1'.
"""
    STANDS = """
A gets; A stops
    STOPS: not written, not acknowledged
A gets; A writes; A stops
    STOPS: written, not acknowledged
A gets; A acks; A stops
    STOPS: not written, acknowledged
A gets; A writes; A writes; A acks; A stops
    STOPS: found done, acknowledged
A gets; A writes; A writes payload=x; A stops
    STOPS: refused, not acknowledged
A gets; A writes; tick 5; A gets; A stops
    STOPS: not written, not acknowledged
A gets; tick 999
    passes: the message is ready
A gets; A writes payload= it's a  key, = no key=a=b:c/d
    wants to write "it's a  key, = no"; uses the key 'north / a=b:c/d'; looks: finds no effect
    receipt; COMMITS draft 1 and its effect receipt
a  GETS;; ; A\tWrites   BLIND
    does not look; COMMITS draft 1 and no effect receipt
tick 0; A gets; tick 005; tick 5; b gets
    gets delivery-2, leased until tick 10
"""
    WRONG_STORIES = """
A gest
    step 1, 'A gest': write A gets, A writes, A acks, A stops or tick 5; workers are A, B and C
;A gets;; D gets
    step 2, 'D gets': write A gets, A writes, A acks, A stops or tick 5; workers are A, B and C
A gets, A writes
    step 1, 'A gets, A writes': steps are divided by ; and not by commas
A gets now
    step 1, 'A gets now': nothing may come after gets; steps are divided by ; and not by commas
tick 1000
    step 1, 'tick 1000': write tick and the tick to go on to, of three digits at most: tick 5
tick 999; tick 5
    step 2, 'tick 5': it is tick 999 already, and ticks never run back: write the tick to go on to,
    not how many more, such as tick 999
tick 997; A gets; C acks
    step 3, 'C acks': worker C has no delivery: it never asked for one. Nobody gets one any more:
    leave this step out
A get\u017f
    step 1, 'A get\\u017f': write A gets, A writes, A acks, A stops or tick 5; workers are A, B and
    C
tick -1
    step 1, 'tick -1': write tick and the tick to go on to, of three digits at most: tick 5
A gets; A writes blindly
    step 2, 'A writes blindly': after writes may come blind, key=... and payload=..., without
    a blank before =, but not 'blindly'
A gets; A writes key = x
    step 2, 'A writes key = x': after writes may come blind, key=... and payload=..., without
    a blank before =, but not 'key = x'
A gets; A writes key=
    step 2, 'A writes key=': key= is empty: write after it what it is to be
A gets; A writes key=a KEY=b
    step 2, 'A writes key=a KEY=b': key= stands there twice: write it once
A gets; A writes payload="x"
    step 2, 'A writes payload="x"': write payload=... without quotes
A gets; A writes key=north / x
    step 2, 'A writes key=north / x': write the key without north /, which is put before it
A gets; A writes payload=\ud800
    step 2, 'A writes payload=\\ud800': payload holds a lone surrogate, which SQLite cannot
    store
A gets; A stops; A gets
    step 3, 'A gets': worker A has stopped: let another worker go on
tick 5; tick 4
    step 2, 'tick 4': it is tick 5 already, and ticks never run back: write the tick to go on
    to, not how many more, such as tick 9
C acks
    step 1, 'C acks': worker C has no delivery: it never asked for one. Put before this step: C
    gets
A gets; C stops
    step 2, 'C stops': worker C has no delivery: it never asked for one. Put before this step:
    tick 5; C gets
A gets; A acks; C writes
    step 3, 'C writes': worker C has no delivery: it never asked for one. Nobody gets one any
    more: leave this step out
A gets; tick 5; B gets; C gets; C acks
    step 5, 'C acks': worker C has no delivery: at tick 5 it gets nothing: leased until tick 10.
    Put before this step: tick 10; C gets
;; ;
    a story needs steps, such as "A gets; A writes; A acks"
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
        for story, detail in self.pairs(self.STANDS):
            with self.subTest(story):
                self.assertEqual(self.tell(story).events[-1].detail, detail)

    def test_slow_worker_that_looks_adds_nothing_and_its_late_acknowledgement_is_stale(
        self,
    ) -> None:
        slow = self.tell("A gets; tick 5; B gets; B writes; B acks; A writes; A acks")
        self.assertEqual(self.actions(slow), "send deliver lapse deliver commit ack reuse stale")
        self.assertEqual(slow.events[-1].lines[-1].text, "is REFUSED: stale_receipt, superseded")

    def test_lapse_stands_at_the_tick_at_which_the_lease_ended(self) -> None:
        self.assertEqual(self.tell("A gets; tick 999").events[-1].tick, 5)

    def test_line_ends_divide_steps_too(self) -> None:
        self.assertEqual(
            self.tell("A gets\nA writes\r\nA acks").events,
            self.tell("A gets;A writes;A acks").events,
        )

    def test_what_cannot_be_played_is_named_with_the_way_out_and_nothing_is_made(self) -> None:
        for story, why in self.pairs(self.WRONG_STORIES):
            with self.subTest(story):
                said = self.lab("demo", "--story", story, "--keep", "new")
                self.assertEqual(said, (2, "", f"error: {why}\n"))
                self.assertFalse(os.path.exists("new"))


class SearchTest(PublishedStoryTest):
    SEARCHED = """\
Every order of two deliveries, each played on its own queue and database:
worker A: acks; writes
worker B: acks; writes

A worker may stop after any of its steps, and an order that ends there counts
as an order of its own: these are numbers of orders, not odds. Of a pending
order the message comes again.

    76 orders, of which end
    22 once
     0 duplicated
     5 lost
     0 two actions
     0 conflict
    49 pending

The shortest that goes wrong, to paste after demo:
  --story "A gets; A acks"

--- story ---------------------------------------------------------------------
A gets; A acks

                                                      message    saved   effect
tick event, > the one that decides                    state     drafts receipts
   0 producer sends message 1: north / J-12:draft:v1  ready          0        0
   0 worker A gets delivery-1, leased until tick 5    in flight      0        0
>  0 worker A ACKNOWLEDGES delivery-1                 settled        0        0

committed in the database now:
  no draft, and no effect receipt

story: LOST. The message is settled, and no draft is saved under its operation
key: nobody will be asked again.
"""

    def test_search_shows_the_shortest_order_that_goes_wrong_as_a_story(self) -> None:
        said = self.lab("demo", "--search", "acks; writes")
        self.assertEqual((said.status, said.err), (0, ""))
        self.assertMultiLineEqual(said.out, self.SEARCHED)

    def test_search_counts_every_order_under_what_it_ends_with(self) -> None:
        blind = "writes blind; acks"
        searches = {
            ("writes; acks",): "134 21 0 0 0 0 113",
            ("writes blind",): "20 0 10 0 0 0 10",
            ("writes; acks", blind): "134 2 109 0 0 0 23",
            ("acks; writes blind",): "76 12 25 5 0 0 34",
            ("writes; acks", "writes payload=x; acks"): "66 4 0 0 0 39 23",
            ("writes", "writes key=x"): "20 0 0 0 10 0 10",
        }
        for programs, numbers in searches.items():
            with self.subTest(programs=programs):
                words = [word for program in programs for word in ("--search", program)]
                said = self.lab("demo", *words).out
                found = re.findall("^ +([0-9]+) [a-z]", said, re.M)
                self.assertEqual(" ".join(found[:7]), numbers)

    def test_search_says_that_no_order_goes_wrong_and_shows_none(self) -> None:
        said = self.lab("demo", "--search", "writes").out
        none = "\nNone of them ends duplicated, lost or as two actions.\n"
        self.assertTrue(said.endswith(none))

    def test_safe_path_gives_one_draft_in_every_order_of_three_deliveries(self) -> None:
        programs: list[Program] = [("writes",), ("writes",), ("writes",)]
        orders = list(every_order(programs, ".", Player("start.sqlite3"), {}))
        self.assertEqual(len(orders), 165)
        for player in orders:
            with self.subTest(steps=[step.text for step in player.steps]):
                written = any(step.verb == "writes" for step in player.steps)
                self.assertEqual(player.events[-1].drafts, int(written))
                self.assertEqual(player.events[-1].receipts, int(written))


class ScreenTest(PublishedStoryTest):
    JSON = """\
{"case": "story", "step": 1, "tick": 0, "actor": "producer", "action": "send", "detail": "sends
message 1: north / J-12:draft:v1", "message": "ready", "deliveries": 0, "drafts": 0, "receipts":
0, "tenant": null, "operation": null, "payload": null}
{"case": "story", "step": 2, "tick": 0, "actor": "worker A", "action": "deliver", "detail": "gets
delivery-1, leased until tick 5", "message": "in_flight", "deliveries": 1, "drafts": 0,
"receipts": 0, "tenant": null, "operation": null, "payload": null}
{"case": "story", "step": 3, "tick": 0, "actor": "worker A", "action": "commit", "detail": "wants
to write '\\\\xe9'; uses the key 'north / x'; looks: finds no effect receipt; COMMITS draft 1 and
its effect receipt", "message": "in_flight", "deliveries": 1, "drafts": 1, "receipts": 1,
"tenant": "north", "operation": "x", "payload": "\\u00e9"}
"""

    def test_texts_that_differ_look_different_when_shortened(self) -> None:
        texts = ["x" * 60, "x" * 59 + "y", "y" + "x" * 59, "x" * 30 + "y" + "x" * 29, "x" * 25]
        shortened = [shorten(text, 25) for text in texts]
        self.assertEqual(len(set(shortened)), 5)
        self.assertEqual({len(text) for text in shortened}, {25})
        self.assertEqual(shortened[1], "xxxxxxx..f35158ef..xxxxxy")
        self.assertEqual(shortened[4], "x" * 25)

    def test_evidence_tells_keys_apart_that_differ_in_a_blank_at_the_end(self) -> None:
        with self.edit(EDIT_1, EDIT_1.replace("v1", "v1 ")):
            drafts = evidence(self.play("reuse-effect"))[1:3]
        self.assertIn("'north / J-12:draft:v1' ", drafts[0])
        self.assertIn("'north / J-12:draft:v1 '", drafts[1])

    def assertIntact(self, played: Played) -> None:
        for line in [*account(played), *Picture(played.events).lines]:
            self.assertRegex(line, "^[ -~]{0,79}$")

    def test_any_literal_gives_an_intact_account_and_picture_or_an_error(self) -> None:
        fine = "'\"\n\r\t\x1b[31m|`<b>;#", "```", "\U0001f600" * 9, "x" * 5000
        for text in (*fine, "\ud800", "", None, 7):
            for name in ("operation", "payload"):
                with self.subTest(name=name, text=text):
                    edit = EDIT_1 if name == "operation" else EDIT_2
                    with self.edit(edit, f"{text!r}, #"):
                        played = self.play("duplicate-effect")
                    self.assertIntact(played)
                    self.assertEqual(bool(played.error), text not in fine)

    def test_any_actor_and_any_lease_give_an_intact_account_and_picture(self) -> None:
        for actor in ("", "queue", "database", "time", "z" * 99, "\u00e9\n", None):
            for lease in (5, 10**9):
                with self.subTest(actor=actor, lease=lease):
                    source = self.source().replace('"worker B"', repr(actor))
                    with self.edited(source, LEASE=lease):
                        played = self.play("reuse-effect")
                    self.assertEqual(played.error, "")
                    self.assertIntact(played)

    def test_json_has_one_event_a_line_and_nothing_else(self) -> None:
        said = self.lab("demo", "--json", "--story", "A gets; A writes key=x payload=\u00e9")
        self.assertEqual(said.out.split(), self.JSON.split())
        self.assertEqual(said.out.count("\n"), 3)
        self.assertEqual((said.status, said.err), (0, ""))

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


class QuestionTest(PublishedStoryTest):
    ASKED = """\
--- case 1 of 1 ---------------------------------------------------------------
Worker A writes, looking first, and acknowledges.

? How many times is the message delivered (Enter skips)?
? How many drafts are saved in the end?
  That is not a number from 0 to 99. Enter skips.
? How many drafts are saved in the end?
? Who recognises work done before: the q(ueue), a w(orker's look), or n(obody,
or there is nothing to recognise)?
--- case 1 of 1; its name comes at the end ------------------------------------

                                                      message    saved   effect
tick event, > the one that decides                    state     drafts receipts
Before each row, say what it will show: the message's state, r(eady), i(n
flight) or s(ettled), and the number of saved drafts, for example: i 1. Enter
skips, Ctrl-C leaves.
? tick 0: producer sends a message. State and drafts?
   0 producer sends message 1: north / J-12:draft:v1  ready          0        0
= message: ready is right; saved drafts: 0 is right
? tick 0: worker A asks the queue for work. State and drafts?
   0 worker A gets delivery-1, leased until tick 5    in flight      0        0
= message: not settled but in flight
? tick 1: worker A writes, looking first. State and drafts?
>  1 worker A looks: finds no effect receipt
              COMMITS draft 1 and its effect receipt  in flight      1        1
= message: in flight is right; saved drafts: 1 is right
? tick 2: worker A acknowledges. State and drafts?
  That is not a state (r, i or s) and a number, such as i 1. Enter skips.
? tick 2: worker A acknowledges. State and drafts?
   2 worker A ACKNOWLEDGES delivery-1                 settled        1        1

committed in the database now:
  draft 1                   'north / J-12:draft:v1'   'replace the pump seal'
  effect receipt of draft 1 'north / J-12:draft:v1'   'replace the pump seal'

normal: ONCE. The message is settled, and one draft is saved.
= saved drafts: 1 is right
= recognised by: not the queue but nobody (no row shows it); a queue never sees
the database

5 of 7 predictions right
"""

    def test_questions_come_before_what_they_ask_for_and_answers_are_judged_after_it(self) -> None:
        typed = "\nmany\n1\nq\nr0\nsettled\n1 i\nx\n\n"
        said = self.lab("demo", "--predict", "--step", "normal", typed=typed)
        self.assertMultiLineEqual(said.out.replace(" \n", "\n"), self.ASKED)

    def test_prediction_names_the_case_only_after_its_questions(self) -> None:
        for case in CASES:
            said = self.lab("demo", "--predict", case, typed="1\n1\nn\n")
            asked, _ = said.out.split(f"--- {case} ")
            self.assertEqual(asked.count("\n? "), 3)
            self.assertNotIn(case, asked)

    def test_score_counts_every_question_that_was_answered(self) -> None:
        right = {
            "normal": "1\n1\nn\n",
            "duplicate-effect": "2\n2\nn\n",
            "reuse-effect": "2\n1\nw\n",
            "early-ack": "1\n0\nn\n",
        }
        said = self.lab("demo", "--predict", *right, typed="".join(right.values()))
        self.assertTrue(said.out.endswith("\n12 of 12 predictions right\n"))

    def test_wrong_prediction_names_the_rows_that_show_it(self) -> None:
        said = self.lab("demo", "--predict", "duplicate-effect", typed="1\n1\nworker\n")
        self.assertIn("= deliveries: not 1 but 2 (see tick 0 and 5)\n", said.out)
        self.assertIn("= saved drafts: not 1 but 2 (see tick 1 and 6)\n", said.out)
        self.assertIn(
            "= recognised by: not a worker's look but nobody (no row shows it)\n", said.out
        )

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
        for text in ("x", "i1i", "-1", "1.5", "1 2", "100", "\u0661", "i 1 2"):
            self.assertIsNone(guess(text), text)

    def test_input_that_ends_early_or_is_not_there_skips_the_rest(self) -> None:
        said = self.lab("demo", "--predict", "--step", "normal", typed="1\n")
        self.assertEqual(said.out.count("\n? "), 2)
        self.assertTrue(said.out.endswith("\n1 of 1 predictions right\n"))
        said = self.lab_with(None, "demo", "--predict")
        self.assertEqual((said.status, said.err), (0, ""))
        self.assertNotIn("predictions right", said.out)


class ReportTest(PublishedStoryTest):
    REPORT = """\
# Queue delivery lab report

VERSIONS

This is an order of events of the learner's own.

```text
case              deliveries  saved drafts  message    conclusion
story                      3             2  settled    duplicated
```

## Predictions

```text
story: deliveries: 3 is right
story: saved drafts: not 1 but 2 (see tick 0 and 10)
```

1 of 2 predictions right.

## story: duplicated

```text
ACCOUNT
```

```text
tick queue          worker A         worker B        worker C         database
   0   * producer sends message 1: north / J-12:draft:v1 |                |
   0   | gets delivery-1, leased until tick 5            |                |
       |--------------->|                |               |                |
   0   |                |- looks: finds no effect receipt --------------->|
       |                |= COMMITS draft 1 and its effect receipt =======>|
   0   |                X STOPS: written, not acknowledged                |
   4   | gets nothing: leased until tick 5               |                |
       |-------------------------------->|               |                |
   5   * time passes: the message is ready               |                |
   5   | gets delivery-2, leased until tick 10           |                |
       |-------------------------------->|               |                |
   5   |                                 | wants to write 'different draft'
       |                             looks: finds effect receipt of other work
       |                                 |------------------------------->|
       |                                 | is REFUSED: operation_conflict |
  10   * time passes: the message is ready               |                |
  10   |- gets delivery-3, leased until tick 15 -------->|                |
  10   |                                 |               | does not look  |
       |                                 COMMITS draft 2 and no effect receipt
       |                                 |               |===============>|
  10   |                                looks: finds effect receipt of draft 1
       |                                 |               |--------------->|
       |                                 |     REPLAYS draft 1: writes nothing
  10   |< ACKNOWLEDGES delivery-3 =======================|                |
  10   |< acknowledges delivery-2 -------|               |                |
       | is REFUSED: stale_receipt, superseded           |                |
       |-------------------------------->|               |                |
  10   |                                 X STOPS: refused, not acknowledged

==>  one of the two moments: COMMITS to the database, ACKNOWLEDGES to the queue
-->  a look into the database, or what passes between worker and queue
*    at the queue: a message comes in, or its lease ends
X    the worker stops here, and its lane ends
```

## Questions for you

1. Which component recognised the repeated delivery, and by which evidence?
Name the row.

Answer:

2. Which of the two moments, DATABASE COMMIT and ACKNOWLEDGEMENT, had happened
when a worker stopped or was too slow? What could the queue know of each?

Answer:

3. If the effect were an e-mail through another company's API, and asking for
it timed out: what is unknown, how would you find out about the ORIGINAL
request, and when must a human decide?

Answer:
"""

    STORY = (
        "A gets; A writes; A stops; tick 4; B gets; tick 5; B gets; B writes payload=different"
        " draft; tick 10; C gets; C writes blind; C writes; C acks; B acks; B stops"
    )

    def report(self, *words: str, typed: str = "") -> str:
        said = self.lab("demo", "--report", "report.md", *words, typed=typed)
        self.assertTrue(said.out.endswith("\nreport written to report.md\n"))
        with open("report.md", encoding="ascii", newline="") as file:
            return file.read().replace(f"{VERSIONS}, {sys.platform}", "VERSIONS")

    def test_report_holds_the_screens_lines_the_picture_and_the_questions(self) -> None:
        text = self.report("--predict", "--story", self.STORY, typed="3\n1\n\n")
        account_of_story = "\n".join(account(self.tell(self.STORY)))
        self.assertIn(account_of_story, text)
        self.assertMultiLineEqual(text.replace(account_of_story, "ACCOUNT"), self.REPORT)

    def test_report_says_which_cases_are_edited(self) -> None:
        with self.edit(EDIT_1, EDIT_1.replace("v1", "v2")):
            text = self.report("normal", "reuse-effect", "duplicate-effect")
        self.assertIn(
            "\nThe traces of these cases are edited: reuse-effect, duplicate-effect.\n", text
        )

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

    def test_report_that_cannot_be_made_is_refused_before_anything_runs(self) -> None:
        taken = "work.sqlite3 is there already and stays as it is: name a new file"
        self.assertRefused(taken, "--report", "work.sqlite3", "--keep", "new")
        for path in ("no/x.md", "x" * 300):
            why = f"{path} cannot be made: .+; name another file"
            self.assertRefused(why, "--report", path, "--keep", "new")

    def test_report_inside_the_kept_folder_is_refused(self) -> None:
        os.mkdir("k")
        for keep, path in (("new", "new"), ("new", "new/x.md"), ("k", "k/../k/x.md"), ("./k", "k")):
            why = f"{path} lies inside {keep}: name a report outside of it"
            self.assertRefused(why, "--keep", keep, "--report", path)
        self.assertEqual(self.lab("demo", "--keep", "k", "--report", "k.md").status, 0)

    def test_kept_folder_must_be_new_or_empty(self) -> None:
        os.mkdir("full")
        create_database("full/x")
        why = "full is not empty, or closed to you: name a new folder for --keep"
        self.assertRefused(why, "--keep", "full", "--report", "r.md")
        for folder in ("work.sqlite3", "no/new"):
            why = f"{folder} cannot be made: .+; name a new folder"
            self.assertRefused(why, "--keep", folder, "--report", "r.md")

    def test_kept_databases_can_be_looked_into_whatever_the_folder_is_called(self) -> None:
        import subprocess

        folder = "it's $5 \u00e9"
        said = self.lab("demo", "duplicate-effect", "normal", "--json", "--keep", folder)
        self.assertEqual(sorted(os.listdir(folder)), ["duplicate-effect.sqlite3", "normal.sqlite3"])
        told, command = said.err.splitlines()
        self.assertEqual(
            told, "the databases are kept in it's $5 \\xe9; look inside with, for example:"
        )
        code = re.sub('^  (python3|py) -c "|"$', "", command)
        dump = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(dump.stdout.count('INSERT INTO "drafts"'), 2)

    def test_run_that_fails_leaves_what_had_run_and_no_report(self) -> None:
        with self.edit("            reuse=safe,\n        )", "            reuse=1 / 0,\n        )"):
            said = self.lab("demo", "early-ack", "normal", "--keep", "new", "--report", "r.md")
        self.assertEqual(said.status, 1)
        self.assertEqual(sorted(os.listdir()), ["new", "work.sqlite3"])
        self.assertEqual(sorted(os.listdir("new")), ["early-ack.sqlite3", "normal.sqlite3"])


class CommandLineTest(PublishedStoryTest):
    WRONG_WORDS = """
nope
    there is no 'nope': write demo or test
demo Normal
    there is no case 'Normal': choose from {CASES}
demo --nope
    unrecognized arguments: --nope
demo --rep x
    unrecognized arguments: --rep
demo --json --step
    --json asks nothing: leave out --predict and --step
demo --json --predict
    --json asks nothing: leave out --predict and --step
demo normal --story acks
    name cases, or tell one --story, or --search: one of the three
demo --story acks --story acks
    name cases, or tell one --story, or --search: one of the three
demo normal --search acks
    name cases, or tell one --story, or --search: one of the three
demo --story acks --search acks
    name cases, or tell one --story, or --search: one of the three
demo --search acks --json
    --search goes alone: leave out the other options
demo --search acks --step
    --search goes alone: leave out the other options
demo --search acks --report x
    --search goes alone: leave out the other options
demo --search acks --keep x
    --search goes alone: leave out the other options
demo --search acks --search acks --search acks
    two programs at most, one for each delivery
demo --search gets
    step 1, 'gets': write writes or acks, without a worker's letter
demo --search acks,acks
    step 1, 'acks,acks': steps are divided by ; and not by commas
demo --search acks;acks;acks;acks
    a program has one to three steps, such as "writes; acks"
demo --search ;
    a program has one to three steps, such as "writes; acks"
"""
    DEMO_HELP = """\
usage: LAB demo [CASE ...] [--story STORY] [--json] [--predict] [--step]
                [--report FILE] [--keep DIR]
       LAB demo --search PROGRAM [--search PROGRAM]
       LAB test [options of unittest]
       LAB --version

A queue delivers messages: see what a delivery proves, and what it does not.
LAB stands for python3 (on Windows: py) and the name of this file.

positional arguments:
  CASE              {CASES}; none: all of them

options:
  -h, --help        show this help message and exit
  --story STORY     your own order of events, such as "A gets; A writes; tick
                    5; B gets; B writes; B acks; A acks", by workers A, B and
                    C. tick 5 goes on to tick 5. A writes blind: without
                    looking for an effect receipt. A writes key=...
                    payload=...: another order
  --search PROGRAM  play every order of two deliveries whose workers do, say,
                    "writes; acks"; a second PROGRAM is for the second delivery
  --predict         ask first what will come of each case
  --step            ask about each event before its row is shown
  --json            print the events as JSON Lines, and nothing else
  --report FILE     write a report, with pictures, to a new file
  --keep DIR        play in DIR, which is new or empty, and keep the databases
"""

    def test_bad_usage_is_one_line_that_says_what_to_write_and_status_2(self) -> None:
        for words, why in self.pairs(self.WRONG_WORDS):
            with self.subTest(words):
                why = why.replace("{CASES}", ", ".join(CASES))
                self.assertEqual(self.lab(*words.split()), (2, "", f"error: {why}\n"))

    def test_program_holds_nothing_that_a_shell_changes_between_double_quotes(self) -> None:
        for sign in '"$`%!\\\u00e9':
            said = self.lab("demo", "--search", f"acks; writes payload=a{sign}b")
            why = "a shell would not leave this alone in double quotes"
            self.assertRegex(said.err, f"^error: step 2, .*: {why}\n$")
            self.assertEqual(said.status, 2)

    def test_no_word_at_all_is_answered_with_the_whole_command(self) -> None:
        said = self.lab()
        self.assertRegex(said.err, "^error: say what to do: (python3|py) .+ demo\n$")
        self.assertIn(os.path.basename(FILE), said.err)
        self.assertEqual((said.status, said.out), (2, ""))
        with chdir(os.path.dirname(FILE)):
            self.assertNotIn(os.path.dirname(FILE), self.lab().err)

    def test_help_names_every_option_in_80_columns(self) -> None:
        said = self.lab("demo", "-h")
        text = self.DEMO_HELP.replace("{CASES}", ", ".join(CASES))
        self.assertEqual("".join(said.out.split()), "".join(text.split()))
        self.assertLess(max(map(len, said.out.splitlines())), 80)
        usage, _ = self.DEMO_HELP.split("positional")
        self.assertIn(usage, self.lab("-h").out)

    def test_version_names_the_lab_python_and_sqlite(self) -> None:
        self.assertEqual(self.lab("--version").out, f"{VERSIONS}\n")

    def test_no_case_at_all_is_an_error(self) -> None:
        with self.edited(self.source(), CASES=()):
            said = self.lab("demo")
        self.assertEqual(said, (1, "", "error: CASES is empty: there is nothing to play\n"))

    def test_test_takes_unittests_options_and_an_unknown_name_is_no_success(self) -> None:
        said = self.lab("test", "-k", "slow_worker_settles", "-v")
        self.assertIn("test_late_acknowledgement_by_a_slow_worker_settles_nothing", said.err)
        self.assertEqual(said.status, 0)
        said = self.lab("test", "-k", "nope")
        self.assertIn("error: no test has such a name: test -v lists them all\n", said.err)
        self.assertEqual(said.status, 1)

    def test_interrupt_at_a_prompt_ends_with_130(self) -> None:
        class Interrupted(io.StringIO):
            def readline(self, *_: Any) -> Any:
                raise KeyboardInterrupt

        said = self.lab_with(Interrupted(), "demo", "--step", "--report", "r.md")
        self.assertEqual((said.status, said.err), (130, "\ninterrupted\n"))
        self.assertEqual(os.listdir(), ["work.sqlite3"])

    def test_temporary_folder_is_needed_and_left_empty(self) -> None:
        import tempfile

        self.addCleanup(setattr, tempfile, "tempdir", tempfile.tempdir)
        for words in ("demo", "demo --story tick\t1", "demo --search acks"):
            with self.subTest(words=words):
                tempfile.tempdir = os.getcwd()
                self.assertEqual(self.lab(*words.split(" ")).status, 0)
                self.assertEqual(os.listdir(), ["work.sqlite3"])
                tempfile.tempdir = "missing"
                said = self.lab(*words.split(" "))
                self.assertRegex(said.err, "^error: FileNotFoundError: .*missing.*\n$")
                self.assertEqual((said.status, said.out), (1, ""))

    def test_output_that_cannot_be_written_is_one_error_line(self) -> None:
        said = io.StringIO()
        unwritable = self.enterContext(open(os.devnull, encoding="ascii"))
        with redirect_stdout(unwritable), redirect_stderr(said):
            self.assertEqual(main(["demo"]), 1)
        self.assertRegex(said.getvalue(), "^error: the output cannot be written: .*\n$")

    def test_reader_that_goes_away_ends_the_run_quietly(self) -> None:
        import subprocess

        for unbuffered in ("", "1"):
            with self.subTest(unbuffered=unbuffered):
                environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
                reader = self.process(FILE, "demo", stderr=subprocess.PIPE, env=environment)
                reader.stdout.close()
                self.assertNotRegex(reader.stderr.read(), "Traceback|Exception ignored|error")

    def test_program_without_a_console_runs(self) -> None:
        with redirect_stdout(None), redirect_stderr(None):
            self.assertEqual(main(["demo"]), 0)

    def run_as_a_script(self) -> list[str]:
        """Run the file as an IDE does, within this process. Returns the import path then."""
        import runpy

        self.addCleanup(setattr, sys, "argv", sys.argv)
        sys.argv = [FILE, "--version"]
        with self.assertRaises(SystemExit), redirect_stdout(io.StringIO()):
            runpy.run_path(FILE, run_name="__main__")
        return list(sys.path)

    def test_only_the_scripts_own_folder_leaves_the_import_path(self) -> None:
        before = list(sys.path)
        self.addCleanup(sys.path.__setitem__, slice(None), before)
        own_folder = os.path.dirname(FILE)
        sys.path[:] = [own_folder, "other", *before]
        self.assertEqual(self.run_as_a_script(), ["other", *before])
        self.assertEqual(self.run_as_a_script(), ["other", *before])


if __name__ == "__main__":
    sys.exit(main())
