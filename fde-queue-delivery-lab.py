#!/usr/bin/env python3
"""Queue delivery lab: one job, one queue, four ways in which workers handle it, what they leave.

Run it with `demo` to watch the four cases, with `test` to check what the lesson says of them.
Read on from here: the queue, apply() and run_case() are the lesson; all that follows (observer,
demo, tests, command line) only shows and checks what they do.
"""

import sys

if sys.version_info < (3, 11):
    found = ".".join(str(number) for number in sys.version_info[:3])
    print("This lab needs Python 3.11 or later; this is Python " + found + ".", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # import nothing from here: a copy of this file may be named copy.py

import heapq
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

CASES = ("normal", "duplicate-effect", "reuse-effect", "early-ack")
TENANT = "north"
LEASE = 5  # ticks
Database = str | os.PathLike[str]


# == 1. The queue: it delivers messages, and knows nothing of what a worker does with them =========
class StaleReceipt(Exception):
    """An acknowledgement named a delivery that is not its message's current one."""


class Delivery(NamedTuple):
    """One handing-over of a message to a worker."""

    receipt: str  # the delivery receipt: new for every delivery, needed to acknowledge it
    message_id: int  # the same for every delivery of one message
    body: str
    attempt: int  # 1 for the first delivery of the message, then 2, 3, ...
    expires_at: int  # the first tick at which the message may be delivered again


class Queue:
    """A teaching queue in memory. Time is the tick that the caller names; nothing sleeps.

    A delivered message is leased to its worker for `lease` ticks. Acknowledged in time, it is
    settled for good. Otherwise the lease lapses by itself and the message is ready again: from
    a worker's silence a queue cannot tell whether the work was done.

    Ticks given to one queue must never run back. `lease` under 1 tick raises ValueError.
    """

    def __init__(self, lease: int = LEASE) -> None:
        if lease < 1:
            raise ValueError(f"lease must be at least 1 tick, not {lease}")
        self._lease = lease
        self._newest: dict[int, Delivery] = {}  # by message id; attempt 0: none yet
        self._delivered: dict[str, Delivery] = {}  # by delivery receipt
        self._settled: set[int] = set()
        self._available: list[tuple[int, int]] = []  # heap of (available from tick, message id)

    def send(self, body: str, *, now: int = 0) -> int:
        """Take in a message, ready from tick `now`. Returns its message id."""
        message_id = len(self._newest) + 1
        self._newest[message_id] = Delivery("", message_id, body, 0, now)
        heapq.heappush(self._available, (now, message_id))
        return message_id

    def receive(self, *, now: int) -> Delivery | None:
        """Deliver the message that has been ready longest (of equals, the one sent first).

        It is in flight until tick `now + lease`. Returns None when no message is ready.
        """
        while self._available and self._available[0][0] <= now:
            _, message_id = heapq.heappop(self._available)
            if message_id in self._settled:  # acknowledged while it was in flight
                continue
            last = self._newest[message_id]
            receipt, expires_at = f"delivery-{len(self._delivered) + 1}", now + self._lease
            delivery = Delivery(receipt, message_id, last.body, last.attempt + 1, expires_at)
            self._newest[message_id] = self._delivered[receipt] = delivery
            heapq.heappush(self._available, (expires_at, message_id))
            return delivery
        return None

    def ack(self, receipt: str, *, now: int) -> None:
        """Acknowledge a delivery: its message is settled and never delivered again.

        Raises StaleReceipt, and changes nothing, unless `receipt` names the message's current
        delivery at tick `now`: its newest one, under a lease that still runs, not settled.
        """
        delivery = self._delivered.get(receipt)
        if (
            delivery is None  # unknown
            or delivery != self._newest[delivery.message_id]  # superseded by a newer one
            or self.state(delivery.message_id, now=now) != "in_flight"  # lapsed, or settled
        ):
            raise StaleReceipt(f"stale_receipt: {receipt!r} is no current delivery at tick {now}")
        self._settled.add(delivery.message_id)

    def state(self, message_id: int, *, now: int) -> str:
        """Returns "ready", "in_flight" or "settled" as of tick `now`. Unknown id: KeyError."""
        newest = self._newest[message_id]
        if message_id in self._settled:
            return "settled"
        return "ready" if newest.expires_at <= now else "in_flight"


# == 2. The database: where the work itself is kept, and the effect receipt that proves it =========
class OperationConflict(Exception):
    """A used operation key came with different work. Nothing was written."""


class Applied(NamedTuple):
    """What apply() did: "created" a draft, or "reused" the one recorded before."""

    status: str
    draft_id: int


@contextmanager
def connect(database: Database) -> Iterator[sqlite3.Connection]:
    """A connection that waits for other writers (30 seconds) and begins no transaction by itself.

    Closing it rolls back what was not committed.
    """
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
                id INTEGER PRIMARY KEY,
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

        worker                     database                      queue
          |                           |                            |
          |-- draft, effect receipt ->|                            |
          |-- COMMIT ---------------->|  1. DATABASE COMMIT        |
          |                           |     both rows, or neither  |
          X  stops here: the work is done, and the queue cannot know
          |                           |                            |
          |-- ack(delivery receipt) ------------------------------>|  2. ACKNOWLEDGEMENT

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
                    key = f"{tenant} / {operation}"
                    raise OperationConflict(f"operation_conflict: {key} stands for other work")
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
        db.execute("COMMIT")  # all or nothing: an error above skips it, and closing undoes all
        return Applied("created", draft_id)


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
    """Play one of CASES (else: ValueError) over the file `database`; an Event after each step.

    A conflict at the second delivery is an event; other errors of apply() and queue come through.
    """
    if case not in CASES:
        raise ValueError(f"unknown case {case!r}: choose from {', '.join(CASES)}")
    safe = case in ("normal", "reuse-effect")
    create_database(database)
    queue = Queue()

    # The producer asks for one draft, and its message names the operation. What the workers make
    # of the message is spelled out in the two calls of apply(), so that you can change it.
    now = 0
    body = f"{TENANT} / J-12:draft:v1"
    message_id = queue.send(body, now=now)
    observe = Observer(case, database, queue, message_id).observe
    yield observe(now, "producer", "sends a message", body)

    # First delivery.
    delivery = queue.receive(now=now)
    yield observe(now, "worker A", "asks the queue for work", delivery)
    if delivery is None:
        return
    now = 1
    if case == "early-ack":  # worker A acknowledges first, and stops before it writes
        queue.ack(delivery.receipt, now=now)
        yield observe(now, "worker A", "acknowledges", delivery)
        now = 2
        yield observe(now, "worker A", "stops")
        now = 5
        yield observe(now, "worker B", "asks the queue for work", queue.receive(now=now))
        return
    applied = apply(
        database,
        tenant=TENANT,
        operation="J-12:draft:v1",
        payload="replace the pump seal",
        reuse=safe,
    )
    yield observe(now, "worker A", "calls apply()", applied)
    now = 2
    if case == "normal":
        queue.ack(delivery.receipt, now=now)
        yield observe(now, "worker A", "acknowledges", delivery)
        return

    # Worker A stops after its database commit and before its acknowledgement. All that the
    # queue notices is silence, until the lease lapses.
    yield observe(now, "worker A", "stops")
    now = 4
    yield observe(now, "worker B", "asks the queue for work", queue.receive(now=now))
    now = 5
    yield observe(now, "time", "passes")

    # Second delivery. Worker B knows nothing of worker A; what it makes of the message is below.
    delivery = queue.receive(now=now)
    yield observe(now, "worker B", "asks the queue for work", delivery)
    if delivery is None:
        return
    now = 6
    try:
        applied = apply(
            database,
            tenant=TENANT,
            operation="J-12:draft:v1",  # EDIT POINT 1: "J-12:draft:v2", a key made anew
            payload="replace the pump seal",  # EDIT POINT 2: "different draft", a changed order
            reuse=safe,
        )
    except OperationConflict as conflict:  # not to be acknowledged: the work is not done
        yield observe(now, "worker B", "calls apply()", conflict)
        return
    yield observe(now, "worker B", "calls apply()", applied)
    now = 7
    queue.ack(delivery.receipt, now=now)
    yield observe(now, "worker B", "acknowledges", delivery)


# == 4. The observer: numbers the steps, reads both sides back, finds the words ====================
Row = tuple[int, str, str, str]  # draft id, tenant, operation, payload


class Event(NamedTuple):
    """One step of a case, and what anybody could read right after it."""

    case: str
    step: int  # 1, 2, ...
    tick: int
    actor: str
    tried: str  # what the actor does, whatever comes of it
    action: str  # send, deliver, refuse, lapse, commit, reuse, conflict, stop or ack
    detail: str  # what came of it
    message: str  # the message's state: ready, in_flight or settled
    deliveries: int  # of the message so far
    drafts: int  # rows committed so far
    receipts: int  # effect receipts (never delivery receipts): rows committed so far


def committed(database: Database) -> tuple[list[Row], list[Row]]:
    """Drafts and effect receipts, read through a new connection: what anybody could see by now."""
    with connect(database) as db:
        drafts = db.execute("SELECT id, tenant, operation, payload FROM drafts")
        receipts = db.execute("SELECT draft_id, tenant, operation, payload FROM receipts")
        return sorted(drafts), sorted(receipts)


class Observer:
    """Turns what an actor tried, and what came of it, into an Event."""

    def __init__(self, case: str, database: Database, queue: Queue, message_id: int) -> None:
        self.case, self.database, self.queue, self.message_id = case, database, queue, message_id
        self.step = self.deliveries = self.leased_until = 0

    def observe(self, now: int, actor: str, tried: str, result: object = None) -> Event:
        """The Event after `actor` tried something at tick `now` and got `result` back."""
        state = self.queue.state(self.message_id, now=now)
        drafts, receipts = committed(self.database)
        self.step += 1
        if isinstance(result, Delivery):
            self.deliveries, self.leased_until = result.attempt, result.expires_at
        lease = f"leased until tick {self.leased_until}"

        if tried == "sends a message":
            action, detail = "send", f"sends message {self.message_id}: {result}"
        elif tried == "acknowledges" and isinstance(result, Delivery) and state == "settled":
            action, detail = "ack", f"ACKNOWLEDGES {result.receipt}"
        elif tried == "stops":
            missing = "writes" if state == "settled" or not drafts else "acknowledges"
            action, detail = "stop", f"STOPS before it {missing}"
        elif tried == "passes":
            action, detail = "lapse", f"passes: the message is {state.replace('_', ' ')}"
        elif isinstance(result, Delivery):
            action, detail = "deliver", f"gets {result.receipt}, {lease}"
        elif isinstance(result, OperationConflict):
            action, detail = "conflict", "is REFUSED: operation_conflict"
        elif isinstance(result, Applied) and result.status == "reused":
            action, detail = "reuse", f"REPLAYS draft {result.draft_id}: effect receipt found"
        elif isinstance(result, Applied):
            proof = "with its" if result.draft_id in [row[0] for row in receipts] else "and no"
            action, detail = "commit", f"COMMITS draft {result.draft_id} {proof} effect receipt"
        elif tried == "asks the queue for work" and result is None:
            nothing = "the message is settled" if state == "settled" else lease
            action, detail = "refuse", f"gets nothing: {nothing}"
        else:
            raise ValueError(f"{actor} {tried}: but the message is {state}, the result {result!r}")
        counts = self.deliveries, len(drafts), len(receipts)
        return Event(self.case, self.step, now, actor, tried, action, detail, state, *counts)


# == 5. The demo: all cases run first; then their events are shown, asked about, reported ==========
import argparse
import io
import json
import re
from errno import EINVAL
from functools import partial
from tempfile import TemporaryDirectory, gettempdir
from textwrap import wrap
from traceback import extract_tb

PYTHON = sys.version.split()[0]
VERSIONS = f"fde-queue-delivery-lab 1.0, Python {PYTHON}, SQLite {sqlite3.sqlite_version}"
TWICE = (
    "Worker A takes the message, writes {how}, and stops before it acknowledges. Worker B asks for"
    " work before and after the lease ends; given the message, it writes {how}, then acknowledges."
)
PLOTS = {  # what the workers do, and nothing of what comes of it
    "normal": "Worker A takes the message, writes draft and effect receipt, and acknowledges.",
    "duplicate-effect": TWICE.format(how="without looking for an effect receipt"),
    "reuse-effect": TWICE.format(how="draft and effect receipt unless it finds that receipt"),
    "early-ack": "Worker A acknowledges at once, then stops before it writes. Worker B asks later.",
}
QUESTIONS = (
    "Which component recognised the repeated delivery, and from what evidence? Name the row.",
    "Between which two moments did the worker stop? What could the queue know of each?",
    "If the effect were an e-mail through another company's API, and asking for it timed out: what"
    " is unknown, how would you reconcile the ORIGINAL operation, and when must a human decide?",
)
COUNTS = {str(count): str(count) for count in range(100)}
STATES = {key: state for state in ("ready", "in flight", "settled") for key in (state[0], state)}


class LabError(Exception):
    """What could not be done, and the way out, in one line."""


def plain(text: str, width: int = sys.maxsize) -> str:
    """One line of printable ASCII, cut to `width`; any other character as a backslash escape."""
    text = re.sub(r"[^ -~]", lambda found: ascii(found[0])[1:-1], text)
    return text if len(text) <= width else text[: width - 3] + "..."


def coded(text: str, prefix: str) -> str:
    """The text with all possible markup as character codes: "&#" for Markdown, "#" for Mermaid."""
    safe = plain(text, 120)
    return re.sub(r"[^A-Za-z0-9 .,:/()-]", lambda found: f"{prefix}{ord(found[0])};", safe)


def say(*lines: str, end: str = "\n", err: bool = False) -> None:
    """Write to the console; BrokenPipeError: nobody reads on; LabError: it cannot be written."""
    stream = sys.stderr if err else sys.stdout
    try:
        print(*map(plain, lines), sep="\n", end=end, file=stream or io.StringIO(), flush=not end)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError, AttributeError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())  # for what is buffered still
        if isinstance(error, BrokenPipeError) or os.name == "nt" and error.args[:1] == (EINVAL,):
            raise BrokenPipeError from None
        raise LabError(f"the output cannot be written: {error}") from None


class Quiz:
    """Asks, compares and counts. Enter skips a question; the end of input skips the rest."""

    def __init__(self) -> None:
        self.answered, self.right, self.more = 0, 0, True  # more: input to come
        with suppress(AttributeError, ValueError):  # none, closed, or read from before
            sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]

    def ask(self, question: str, answers: dict[str, str]) -> str:
        """Ask until the answer is one of `answers`. Returns its value, "" when skipped."""
        prompt = f"  {question}? "
        while self.more:
            say(prompt, end="")
            try:
                line = sys.stdin.readline()
            except (AttributeError, OSError, ValueError):  # no standard input, or a closed one
                line = ""
            self.more = bool(line)
            ends = sys.stdin, sys.stdout
            if not line or not all(getattr(end, "isatty", bool)() for end in ends):
                say()  # the answer's own line end does not show
            given = line.strip().lower().replace("_", " ")
            if not given or given in answers:
                return answers.get(given, "")
            wanted = "a number from 0 to 99" if answers is COUNTS else "r, i or s"
            prompt = f"  That is not {wanted}. {question}? "
        return ""

    def check(self, what: str, answer: str, observed: object, where: str) -> None:
        """Compare an answer with what was observed, and say so; a skipped one is not scored."""
        if answer:
            right = answer == str(observed)
            say(f"  {what} {answer}: {'right' if right else f'no, {observed}; see {where}'}")
            self.answered, self.right = self.answered + 1, self.right + right


class Outcome(NamedTuple):
    """One case after its run: a row of the closing table, and what stands behind it."""

    case: str
    deliveries: int
    effects: int
    message: str
    conclusion: str  # once, duplicated, lost, two actions, pending or conflict
    sentence: str
    decisive: Event
    events: list[Event]
    rows: tuple[list[Row], list[Row]]  # drafts, effect receipts

    def trace(self) -> Iterator[tuple[str, int, str, str, int, int]]:
        """Mark, tick, event, message state, drafts and effect receipts of each event."""
        for event in self.events:
            mark, state = ">" if event is self.decisive else " ", event.message.replace("_", " ")
            what = f"{event.actor} {event.detail}"
            yield mark, event.tick, what, state, event.drafts, event.receipts

    def evidence(self) -> list[str]:
        """What is committed now, a row of the database on each line."""
        lines = []
        for what, rows in zip(("draft", "effect receipt of draft"), self.rows, strict=True):
            for number, tenant, operation, payload in rows:
                key = plain(f"{tenant} / {operation}", 24)
                lines.append(f"  {f'{what} {number}':<25} {key:<24} {plain(ascii(payload), 26)}")
        return lines or ["  no draft, and no effect receipt"]

    def diagram(self) -> list[str]:
        """The events that happened, as a Mermaid sequence diagram."""
        actors = list(dict.fromkeys(e.actor for e in self.events if e.action != "lapse"))
        lines = [f"participant A{n} as {coded(actor, '#')}" for n, actor in enumerate(actors)]
        lines = [*lines[:1], "participant Q as queue", *lines[1:], "participant D as database"]
        for event in self.events:
            me = f"A{actors.index(event.actor)}" if event.actor in actors else "Q"
            arrow = {
                "send": f"{me}->>Q",
                "deliver": f"Q->>{me}",
                "refuse": f"Q--x{me}",
                "lapse": "Note over Q",
                "commit": f"{me}->>D",
                "reuse": f"D-->>{me}",
                "conflict": f"D--x{me}",
                "stop": f"Note over {me},{'D' if event.message == 'settled' else 'Q'}",
                "ack": f"{me}->>Q",
            }[event.action]
            text = coded(f"tick {event.tick}: {event.actor} {event.detail}", "#")
            rows = f"Note over D: drafts {event.drafts}, effect receipts {event.receipts}"
            lines += [f"{arrow}: {text}", rows] if "D" in arrow else [f"{arrow}: {text}"]
        return ["```mermaid", "sequenceDiagram", *(f"    {line}" for line in lines), "```"]


def conclude(events: list[Event], drafts: list[Row]) -> tuple[str, str, Event]:
    """The conclusion in a word and in a sentence, and the event that decided it."""
    last = events[-1]
    write = [last, *(event for event in events if event.action in ("commit", "reuse"))][-1]
    refused = [event for event in events if event.action == "conflict"]
    settled = [event for event in events if event.message == "settled"]
    keys = {draft[1:3] for draft in drafts}
    told = f"The message is {last.message.replace('_', ' ')}, and"
    if refused:
        return "conflict", f"{told} somebody must decide which work was meant.", refused[0]
    if not settled:
        return "pending", f"{told} no acknowledgement was seen.", last
    if not drafts:
        return "lost", f"{told} no draft exists: nobody will be asked again.", settled[0]
    if len(keys) < len(drafts):
        return "duplicated", f"{told} {len(drafts)} drafts share {len(keys)} operation key.", write
    if len(drafts) > 1:
        return "two actions", f"{told} {len(drafts)} operation keys have a draft each.", write
    how = f": {write.actor} found its effect receipt" if write.action == "reuse" else ""
    return "once", f"{told} one draft exists{how}.", write


def play(case: str, folder: str) -> Outcome:
    """Run one case on a database of its own in `folder`. LabError says where an edit went wrong."""
    database = os.path.join(folder, f"{case}.sqlite3")
    try:
        events = list(run_case(case, database))
        last, rows = events[-1], committed(database)
        end = last.deliveries, len(rows[0]), last.message.replace("_", " ")
        return Outcome(case, *end, *conclude(events, rows[0]), events, rows)
    except (Exception, SystemExit) as error:
        lines = [str(c.lineno) for c in extract_tb(error.__traceback__) if c.name == "run_case"]
        where = f"{', line '.join(['run_case', *lines])}; temporary folder {gettempdir()}"
        raise LabError(f"{case}: {type(error).__name__}: {error} ({where})") from error


def write_new(path: str, content: bytes) -> None:
    """Create the file with that content, or leave nothing; a file that is there is not touched."""
    with ExitStack() as undo, open(path, "xb") as file:
        undo.callback(os.unlink, path)
        file.write(content)
        file.flush()
        undo.pop_all()


def play_all(cases: Sequence[str], keep: str | None, report_to: str | None) -> list[Outcome]:
    """Run the cases in a temporary folder. Keeps all their databases, or after a failure none."""
    kept = [os.path.join(keep, f"{case}.sqlite3") for case in cases] if keep else []
    for path in [*kept, *([report_to] if report_to else [])]:
        if os.path.lexists(path) or (path == report_to and path in kept):
            raise LabError(f"{path} is taken already and stays as it is: name another one")
    if report_to and not os.access(os.path.dirname(report_to) or ".", os.W_OK):
        raise LabError(f"{report_to}: its folder is missing, or closed to you: name another one")
    # Two folders: the outer one still goes if Ctrl-C interrupts the removal of the inner one.
    with TemporaryDirectory() as outer, TemporaryDirectory(dir=outer) as scratch:
        outcomes = [play(case, scratch) for case in cases]
        with ExitStack() as undo:
            os.makedirs(keep or scratch, exist_ok=True)
            for path in kept:
                with open(os.path.join(scratch, os.path.basename(path)), "rb") as file:
                    write_new(path, file.read())
                undo.callback(os.unlink, path)
            undo.pop_all()
    return outcomes


def tell(outcome: Outcome, quiz: Quiz, step: bool, predicted: tuple[str, str]) -> None:
    """One case: its trace (step by step: each row is asked about first), evidence, conclusion."""
    say(*wrap(PLOTS[outcome.case], 78), "", f"{'':53}message    saved   effect")
    say(f"{'tick event':53}state     drafts receipts")
    for event, (mark, tick, text, *counts) in zip(outcome.events, outcome.trace(), strict=True):
        if step:
            say(plain(f"  tick {tick}: {event.actor} {event.tried}", 79))
            state = quiz.ask("Message r(eady), i(n flight) or s(ettled)", STATES)
            drafts = quiz.ask("Saved drafts", COUNTS)
            quiz.check("message", state, counts[0], "the next row")
            quiz.check("saved drafts", drafts, counts[1], "the next row")
        row = plain(f"{mark}{tick:>3} {text}", 53)
        say("{:<53} {:<9} {:>6} {:>8}".format(row, *counts))
    found = f"{outcome.case}: {outcome.conclusion.upper()}. {outcome.sentence}"
    say("", "committed in the database now:", *outcome.evidence(), *wrap(found, 78))
    ticks = " and ".join(str(event.tick) for event in outcome.events if event.action == "deliver")
    quiz.check("predicted deliveries", predicted[0], outcome.deliveries, f"tick {ticks}")
    where = f"the row marked > at tick {outcome.decisive.tick}"
    quiz.check("predicted saved drafts", predicted[1], outcome.effects, where)


def table(head: str, rows: Iterable[tuple[object, ...]]) -> list[str]:
    """A Markdown table whose cells show what they hold, whatever it is."""
    cells = [" | ".join(coded(str(cell), "&#") for cell in row) for row in rows]
    return ["", f"| {head} |", "|---" * (head.count("|") + 1) + "|", *(f"| {c} |" for c in cells)]


def report(outcomes: list[Outcome], predictions: dict[str, tuple[str, str]], quiz: Quiz) -> str:
    """The Markdown document for the engineer who takes over."""
    parts = ["# Queue delivery lab report", "", f"{VERSIONS}, {sys.platform}"]
    head = "case | deliveries | saved effects | predicted deliveries | predicted effects"
    results = [(*done[:3], *predictions[done.case], *done[3:5]) for done in outcomes]
    parts += table(f"{head} | message | conclusion", results)
    parts += ["", f"{quiz.right} of {quiz.answered} predictions right."] if quiz.answered else []
    for done in outcomes:
        parts += ["", f"## {done.case}: {done.conclusion}", "", PLOTS[done.case]]
        parts += table(" | tick | event | message | drafts | effect receipts", done.trace())
        parts += ["", "Committed in the database:", "", "```text", *done.evidence(), "```", ""]
        parts += [*done.diagram(), "", coded(done.sentence, "&#")]
    parts += ["", "## Questions for you", *(f"\n{text}\n\nAnswer:\n" for text in QUESTIONS)]
    return "\n".join(parts)


def demo(options: argparse.Namespace) -> None:
    """Run the cases, then show them: nothing is printed or asked before all have run."""
    cases = list(dict.fromkeys(options.cases or CASES))
    outcomes = play_all(cases, options.keep, options.report)
    quiz, note = Quiz(), partial(say, err=options.json)
    predictions = dict.fromkeys(cases, ("", ""))
    if options.json:
        say(*(json.dumps(event._asdict()) for outcome in outcomes for event in outcome.events))
    else:
        say("The row marked > is the one that decides what its case comes to.", "")
        for number, case in enumerate(cases if options.predict else [], start=1):
            say(*wrap(f"Story {number} of {len(cases)}. {PLOTS[case]}", 78))
            deliveries = quiz.ask("How often is the message delivered", COUNTS)
            predictions[case] = deliveries, quiz.ask("How many drafts are saved in the end", COUNTS)
            say()
        for number, outcome in enumerate(outcomes, start=1):
            title = f"case {number} of {len(outcomes)}" if options.step else outcome.case
            say(f"--- {title} ".ljust(79, "-"))
            tell(outcome, quiz, options.step, predictions[outcome.case])
            say()
        head = ("case", "deliveries", "saved effects", "message", "conclusion")
        rows = [head, *(outcome[:5] for outcome in outcomes)]
        say(*("{:<17} {:>10} {:>13}  {:<9}  {}".format(*row) for row in rows))
        if options.predict or options.step:
            say(f"{quiz.right} of {quiz.answered} predictions right")
    if options.keep:
        fullest = max(outcomes, key=lambda outcome: sum(map(len, outcome.rows)))
        path = os.path.join(options.keep, f"{fullest.case}.sqlite3").replace(os.sep, "/")
        # Other characters as escapes, which every shell leaves alone and Python's literal undoes.
        path = re.sub(r"[^A-Za-z0-9/._: -]", lambda found: f"\\U{ord(found[0]):08x}", path)
        code = f"import sqlite3; print(*sqlite3.connect('{path}').iterdump(), sep='\\n')"
        note(f"the databases are kept in {options.keep}; look inside with, for example:")
        note(f'  {"py" if os.name == "nt" else "python3"} -c "{code}"')
    if options.report:
        write_new(options.report, report(outcomes, predictions, quiz).encode("ascii"))
        note(f"report written to {options.report}")


# == 6. The command line ===========================================================================
class Parser(argparse.ArgumentParser):
    """argparse with one line for a usage error, and help of the same width everywhere."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.color = False  # which Python 3.14 would use
        self.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=79)

    def error(self, message: str) -> NoReturn:
        say(f"error: {message} (see {self.prog} -h)", err=True)
        raise SystemExit(2)


def parse(arguments: list[str]) -> argparse.Namespace:
    about = "A queue delivers messages: see what a delivery proves, and what it does not."
    parser = Parser(prog=plain(os.path.basename(__file__), 40), description=about)
    parser.add_argument("--version", action="version", version=VERSIONS)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("test", help="check the lab; takes the options of unittest")
    demo_parser = commands.add_parser("demo", help="run the cases and show what happened")
    add = demo_parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; none: all of them")
    add("--json", action="store_true", help="print the events as JSON Lines, and nothing else")
    add("--predict", action="store_true", help="ask me first what will come of each case")
    add("--step", action="store_true", help="ask me about each event before it is shown")
    add("--report", type=os.path.normpath, metavar="FILE", help="write a report with diagrams")
    add("--keep", type=os.path.normpath, metavar="DIR", help="keep the databases in DIR")
    if arguments[:1] != ["demo"]:
        return parser.parse_args(arguments)
    options = demo_parser.parse_intermixed_args(arguments[1:])
    for case in options.cases:
        if case not in CASES:
            demo_parser.error(f"unknown case {case!r}")
    if options.json and (options.predict or options.step):
        demo_parser.error("--json asks nothing: leave out --predict and --step")
    return options


def test(options: list[str]) -> int:
    """Run the built-in tests with unittest's `options`. Returns the exit status."""
    os.environ["PYTHON_COLORS"] = "0"  # newer Pythons would colour the results
    with TemporaryDirectory() as folder:  # none, or a full one: one line, not thirty
        write_new(os.path.join(folder, "room"), bytes(1 << 17))
    module = type(sys)("lab")  # of the test cases alone
    vars(module).update({case.__name__: case for case in LabTest.__subclasses__()})
    result = unittest.main(module=module, argv=["test", *options], exit=False).result
    if not result.testsRun:
        raise LabError("no test has such a name: test -v lists them all")
    return int(not result.wasSuccessful())


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status; argparse's own exits stay SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with suppress(AttributeError, ValueError):  # not for any stream; Windows would write \r\n
        sys.stdout.reconfigure(newline="\n")  # type: ignore[union-attr]
    try:
        try:
            if arguments[:1] == ["test"]:
                return test(arguments[1:])
            demo(parse(arguments))
            return 0
        finally:
            say(end="")  # what is still buffered must fail here, not at the interpreter's exit
    except KeyboardInterrupt:
        complaint, status = ["", "interrupted"], 130  # not on the line of a prompt
    except BrokenPipeError:  # nobody reads on
        return 1
    except (LabError, OSError, ValueError) as error:
        complaint, status = [f"error: {error}"], 1
    with suppress(LabError, BrokenPipeError):
        say(*complaint, err=True)
    return status


if __name__ == "__main__" and sys.argv[1:2] != ["test"]:
    sys.exit(main())  # before the tests: their imports would slow down the start of every demo


# == 7. The tests: what the lesson says, sentence by sentence ======================================
import copy
import inspect
import tempfile
import unittest
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from functools import lru_cache
from multiprocessing.pool import ThreadPool
from pathlib import Path
from subprocess import PIPE, Popen

WORK: Any = {"tenant": "north", "operation": "J-12:draft:v1", "payload": "a draft"}
START = "0 sends message 1: north / J-12:draft:v1; 0 gets delivery-1, leased until tick 5; 1"
AGAIN = (
    "2 STOPS before it acknowledges; 4 gets nothing: leased until tick 5; 5 passes: the message"
    " is ready; 5 gets delivery-2, leased until tick 10; 6"
)
SAFE, BARE = "COMMITS draft 1 with its effect receipt", "COMMITS draft {} and no effect receipt"
DRAFT = "north / J-12:draft:v1 / replace the pump seal"
PUBLISHED = {  # what README and lesson tell: tick and detail of each event, and the drafts
    "normal": f"{START} {SAFE}; 2 ACKNOWLEDGES delivery-1; {[DRAFT]}",
    "duplicate-effect": f"{START} {BARE.format(1)}; {AGAIN} {BARE.format(2)};"
    f" 7 ACKNOWLEDGES delivery-2; {[DRAFT] * 2}",
    "reuse-effect": f"{START} {SAFE}; {AGAIN} REPLAYS draft 1: effect receipt found;"
    f" 7 ACKNOWLEDGES delivery-2; {[DRAFT]}",
    "early-ack": f"{START} ACKNOWLEDGES delivery-1; 2 STOPS before it writes;"
    " 5 gets nothing: the message is settled; []",
}


@lru_cache(maxsize=None)
def deviation(story: Any) -> str:
    """Where a story leaves the published table, and how; empty when it does not."""
    for case, published in PUBLISHED.items():
        with TemporaryDirectory() as folder:
            try:
                events = [f"{e.tick} {e.detail}" for e in story(case, Path(folder, "lab"))]
                drafts = [" / ".join(row[1:]) for row in committed(Path(folder, "lab"))[0]]
                seen = "; ".join([*events, str(drafts)])
            except (Exception, SystemExit) as error:
                seen = f"{type(error).__name__}: {error}"
        if seen != published:
            pairs = zip(published.split("; "), seen.split("; "), strict=False)
            old, new = next((pair for pair in pairs if pair[0] != pair[1]), (published, seen))
            return f"run_case() is edited, first seen in {case}\npublished: {old}\nseen: {new:.300}"
    return ""


class LabTest(unittest.TestCase):
    def setUp(self) -> None:
        if type(self) is Lesson4Demo and deviation(run_case):
            self.skipTest("run_case() is edited")
        self.folder = Path(self.enterContext(TemporaryDirectory()))
        self.database = self.folder / "work.sqlite3"
        create_database(self.database)
        self.apply = partial(apply, self.database, **WORK)

    @contextmanager
    def edited(self, name: str, literal: str, number: int = 1) -> Iterator[None]:
        """run_case() with a literal changed: in its second call of apply(), or where asked for."""
        source, published, names = inspect.getsource(run_case), run_case, dict(globals())
        found = dict(enumerate(re.finditer(rf"\b{name}( ?= ?)(\d+|(['\"]).*?\3)", source)))
        at = found.get(number) or self.skipTest("run_case() is edited")
        exec(f"{source[: at.start()]}{name}{at[1]}{literal}{source[at.end() :]}", names)
        globals()["run_case"] = names["run_case"]
        try:
            yield
        finally:
            globals()["run_case"] = published

    def lab(self, line: str, *paths: object, typed: str = "") -> Any:  # status, output, errors
        self.addCleanup(setattr, sys, "stdin", sys.stdin)
        sys.stdin = io.StringIO(typed)
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            try:
                status: Any = main([*line.split(), *map(str, paths)])
            except SystemExit as leaving:
                status = leaving.code
        if status == 130:
            raise KeyboardInterrupt  # Ctrl-C is meant for the test run, not for one test
        return status, out.getvalue(), err.getvalue()

    def start(self, *arguments: str) -> Any:
        command = [sys.executable, *arguments]
        return self.enterContext(Popen(command, stdout=PIPE, stderr=PIPE, encoding="utf-8"))


class Lesson1Queue(LabTest):
    def test_lease_boundary_nothing_at_tick_4_and_a_second_delivery_at_tick_5(self) -> None:
        queue = Queue()
        message_id = queue.send("job")
        self.assertEqual(queue.receive(now=0), ("delivery-1", message_id, "job", 1, 5))
        self.assertIsNone(queue.receive(now=4))
        states = [queue.state(message_id, now=now) for now in (4, 5)]
        self.assertEqual(states, ["in_flight", "ready"])
        self.assertEqual(queue.receive(now=5), ("delivery-2", message_id, "job", 2, 10))

    def test_late_acknowledgement_by_a_slow_worker_settles_nothing(self) -> None:
        queue: Any = Queue()
        queue.send("job")
        slow = queue.receive(now=0).receipt
        for now, receipt in ((0, "unknown"), (5, slow), (6, slow), (9, "delivery-2")):
            self.assertRaisesRegex(StaleReceipt, "^stale_receipt", queue.ack, receipt, now=now)
            queue.receive(now=now)  # at tick 5 this is the second delivery: nothing was settled
            if now == 6:
                queue.ack("delivery-2", now=9)
        self.assertEqual((queue.receive(now=99), queue.state(1, now=99)), (None, "settled"))

    def test_message_that_waits_longest_comes_first_and_none_is_lost(self) -> None:
        queue: Any = Queue(lease=3)
        ids = [queue.send("job", now=tick) for tick in (2, 0, 0, 1, 4)]
        given = [queue.receive(now=now) for now in (1, 1, 1, 1, 4, 4, 4, 4, 4, 4)]
        self.assertEqual([one and one.message_id for one in given], [*ids[1:4], None, *ids, None])
        self.assertRaises(KeyError, queue.state, 6, now=4)

    def test_longer_lease_delays_the_second_delivery_and_does_not_prevent_it(self) -> None:
        for lease in (1, 5, 500):
            queue = Queue(lease)
            queue.send("job")
            given = [bool(queue.receive(now=tick)) for tick in (0, lease - 1, lease)]
            self.assertEqual(given, [True, False, True])
        self.assertRaises(ValueError, Queue, lease=0)


class Lesson2Effect(LabTest):
    WORKER = """if True:  # a process with the lesson's part of this file, mortal if told so
        import functools, os, signal, sqlite3, sys
        source, database, dies_after = sys.argv[1:]
        class Mortal(sqlite3.Connection):
            def execute(self, sql, *values):
                result = super().execute(sql, *values)
                if sql.startswith(dies_after): os.kill(os.getpid(), signal.SIGTERM)
                return result
        sqlite3.connect = functools.partial(sqlite3.connect, factory=Mortal)
        lab = {"__name__": "lab"}
        exec(open(source, "rb").read().split(b"class Event(")[0], lab)
        print("ready", flush=True)
        print(*lab["apply"](database, tenant="north", operation="J-12:draft:v1", payload="a draft"))
    """
    PROGRAM = "-ISc", WORKER, __file__

    def test_receipt_rolls_back_with_effect(self) -> None:
        for action in ("ABORT", "ROLLBACK"):  # with ROLLBACK, SQLite ends the transaction itself
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

    def test_same_key_means_the_same_work_to_the_letter_or_a_conflict(self) -> None:
        texts = "caf\u00e9", "cafe\u0301", "CAF\u00c9", "caf\u00e9 ", "caf\u00e9\0", "caf\u00e9\0x"
        keys: Any = [{name: text} for name in ("tenant", "operation") for text in texts]
        for status in ("created", "reused"):
            made = [self.apply(payload=texts[0], **key) for key in keys]
            self.assertEqual(made, [(status, number) for number in range(1, 13)])
        before = committed(self.database)
        for text in texts[1:]:
            with self.assertRaisesRegex(OperationConflict, "^operation_conflict"):
                self.apply(payload=text, **keys[0])
        self.assertEqual(committed(self.database), before)
        self.assertEqual(self.apply(payload=texts[1], reuse=False, **keys[0]).status, "created")

    def test_what_is_no_text_is_refused_before_the_database_is_touched(self) -> None:
        work_nowhere = partial(apply, self.folder / "nowhere.sqlite3", **WORK)
        for name in WORK:
            for value in (7, None, b"x", "", "\ud800"):
                error = ValueError if isinstance(value, str) else TypeError
                self.assertRaisesRegex(error, f"^{name} ", work_nowhere, **{name: value})
        self.assertRaises(FileNotFoundError, work_nowhere)

    def test_schema_forbids_a_second_receipt_and_one_without_its_draft_and_gaps(self) -> None:
        self.apply()
        self.apply(reuse=False)  # a second draft, for a second effect receipt to name
        create_database(self.database)  # once more: changes nothing
        before = committed(self.database)
        receipt: Any = {**WORK, "tenant": "south", "draft_id": before[0][0][0]}
        bad = [{**receipt, **WORK, "draft_id": 2}, {**receipt, "draft_id": 3}]
        bad += [{**good, name: None} for good in (WORK, receipt) for name in good]
        for row in bad:
            table = "receipts" if "draft_id" in row else "drafts"
            with self.assertRaises(sqlite3.IntegrityError), connect(self.database) as db:
                names, marks = ", ".join(row), ", ".join("?" * len(row))
                db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [*row.values()])
        self.assertEqual(committed(self.database), before)

    def test_plain_begin_lets_both_look_and_then_refuses_one_at_once(self) -> None:
        with connect(self.database) as one, connect(self.database) as other:
            for db in (one, other):
                db.execute("BEGIN")
                self.assertEqual(db.execute("SELECT * FROM receipts").fetchall(), [])
            write = "INSERT INTO drafts (tenant, operation, payload) VALUES ('n', 'o', 'p')"
            one.execute(write)
            self.assertRaisesRegex(sqlite3.OperationalError, "locked", other.execute, write)

    def test_of_many_processes_at_once_one_creates_and_the_others_reuse(self) -> None:
        with connect(self.database) as db:
            db.execute("BEGIN IMMEDIATE")  # all of them find the database locked, and wait
            workers = [self.start(*self.PROGRAM, str(self.database), "-") for _ in range(3)]
            self.assertEqual([worker.stdout.readline() for worker in workers], ["ready\n"] * 3)
        said = sorted(worker.stdout.read() for worker in workers)
        self.assertEqual(said, ["created 1\n", "reused 1\n", "reused 1\n"])

    def test_of_many_threads_at_once_one_creates_and_other_keys_are_not_disturbed(self) -> None:
        def work(changed: Any) -> str:
            with suppress(OperationConflict):
                return self.apply(**changed).status
            return "conflict"

        works = [{}, {}, {"payload": "other"}, {"tenant": "south"}, {"operation": "other"}] * 2
        with ThreadPool(len(works)) as pool:
            said = pool.map(work, works)
        drafts, receipts = committed(self.database)
        self.assertEqual((said.count("created"), len(drafts), drafts), (3, 3, receipts))
        self.assertIn(said.count("conflict"), (2, 4))  # whichever payload came first

    def test_worker_killed_after_any_statement_leaves_both_rows_or_neither(self) -> None:
        statements = ["BEGIN", "SELECT p", "INSERT INTO drafts", "INSERT INTO receipts", "COMMIT"]
        files = [self.folder / statement for statement in statements]
        for file in files:
            create_database(file)
        workers = [self.start(*self.PROGRAM, str(file), file.name) for file in files]
        for worker, file in zip(workers, files, strict=True):
            self.assertEqual((worker.stdout.read(), worker.wait() == 0), ("ready\n", False))
            drafts, receipts = committed(file)
            self.assertEqual((len(drafts), drafts), (int(file.name == "COMMIT"), receipts))
            self.assertEqual(apply(file, **WORK), ("reused" if drafts else "created", 1))


class Lesson3Cases(LabTest):
    def test_run_case_gives_the_published_table(self) -> None:
        if deviation(run_case):
            self.fail(deviation(run_case))
        self.assertRaisesRegex(ValueError, "'nope'", next, run_case("nope", self.database))

    def walk(self, program: list[str], most: int, reuse: bool, steps: int = 99) -> Iterator[Any]:
        """Every order in which up to `most` workers, each doing `program`, can treat one message.

        Yields (schedule, message state, drafts, receipts) after every single step of each; as
        every schedule may end there, any worker may never come back, at any point.
        """

        def go(done: list[str], queue: Any, now: int, workers: list[Any], rows: Any) -> Any:
            state = queue.state(1, now=now)
            yield (done, state, *rows)
            saved = self.database.read_bytes()
            moves = [step for _, *todo in workers for step in todo[:1]]
            for verb, n in [*moves, ("lapse", 0), ("deliver", 0)] if len(done) < steps else []:
                fork, tick, read = copy.deepcopy(queue), now, rows
                crew = [[part for part in todo if part != (verb, n)] for todo in workers]
                if verb == "lapse" and state == "in_flight":
                    tick += LEASE
                elif verb == "deliver" and state == "ready" and len(crew) < most:
                    crew.append([fork.receive(now=now), *((todo, len(crew)) for todo in program)])
                elif verb == "commit":
                    self.apply(reuse=reuse)
                    read = committed(self.database)
                elif verb == "ack":
                    current = n == len(crew) - 1 and state == "in_flight"
                    with nullcontext() if current else self.assertRaises(StaleReceipt):
                        fork.ack(crew[n][0].receipt, now=now)
                else:
                    continue
                yield from go([*done, verb], fork, tick, crew, read)
                if verb == "commit":
                    self.database.write_bytes(saved)

        queue = Queue()
        queue.send("job")
        yield from go([], queue, 0, [], ([], []))

    def test_safe_path_gives_one_draft_in_every_order_of_two_and_three_deliveries(self) -> None:
        for most, steps, schedules in ((2, 99, 160), (3, 9, 1244)):
            walked = list(self.walk(["commit", "ack"], most, True, steps))
            self.assertEqual(len(walked), schedules)
            for schedule, state, drafts, receipts in walked:
                self.assertEqual((len(drafts), drafts), (int("commit" in schedule), receipts))
                self.assertTrue(drafts or state != "settled", schedule)

    def test_unprotected_path_gives_a_draft_for_every_write_and_the_lessons_duplicate(self) -> None:
        walked = list(self.walk(["commit", "ack"], 2, False))
        for schedule, _, drafts, receipts in walked:
            self.assertEqual((len(drafts), receipts), (schedule.count("commit"), []), schedule)
        twice = [done for done, state, drafts, _ in walked if state == "settled" and drafts[1:]]
        lesson = ["deliver", "commit", "lapse", "deliver", "commit", "ack"]
        self.assertEqual(min(twice, key=len), lesson)

    def test_acknowledging_first_loses_the_work_and_the_lessons_way_is_the_shortest(self) -> None:
        walked = list(self.walk(["ack", "commit"], 2, True))
        lost = [done for done, state, drafts, _ in walked if state == "settled" and not drafts]
        self.assertEqual((len(walked), min(lost, key=len)), (84, ["deliver", "ack"]))


class Lesson4Demo(LabTest):
    def test_queues_side_is_the_same_whether_or_not_the_worker_had_committed(self) -> None:
        after_commit = list(run_case("reuse-effect", self.database))[:7]
        self.addCleanup(globals().update, apply=apply)
        globals()["apply"] = lambda *_, **__: Applied("created", 1)  # stops before it commits
        before_commit = list(run_case("reuse-effect", self.folder / "other.sqlite3"))[:7]
        for one, other in zip(after_commit, before_commit, strict=True):
            self.assertEqual(
                one._replace(drafts=0, receipts=0, detail=""), other._replace(detail="")
            )
        self.assertEqual((one.deliveries, one.drafts, other.drafts), (2, 1, 0))

    def test_experiment_1_a_new_key_makes_the_repeat_another_action(self) -> None:
        with self.edited("operation", '"J-12:draft:v2"'):
            normal, duplicate, reuse, early = play_all(CASES, None, None)
        self.assertEqual((normal[4], early[4], early.decisive.action), ("once", "lost", "ack"))
        self.assertEqual([duplicate[1:5], reuse[1:5]], [(2, 2, "settled", "two actions")] * 2)

    def test_experiment_2_other_work_under_the_same_key_is_refused(self) -> None:
        with self.edited("payload", '"different draft"'):
            _, duplicate, reuse, _ = play_all(CASES, None, None)
        self.assertEqual(duplicate[1:5], (2, 2, "settled", "duplicated"))
        self.assertEqual(reuse[1:5], (2, 1, "in flight", "conflict"))
        with self.edited("now", "4", 6):  # worker B asks a second time while the lease lasts
            self.assertEqual(play_all(CASES, None, None)[2][1:5], (1, 1, "in flight", "pending"))

    def test_any_other_edit_gives_an_intact_trace_or_one_error_line(self) -> None:
        texts = "'\"\n\r\t\x1b[31m|`<b>;#", "\U0001f600" * 9, "x" * 5000, "\ud800", "", None, 7
        edits = [(name, ascii(text), 1) for name in ("operation", "payload") for text in texts]
        edits += [("payload", "nonsense", 0), ("operation", "'', nonsense=1", 1)]
        edits += [("now", "3", number) for number in range(2, 9)]
        for edit in edits:
            with self.edited(*edit), self.subTest(edit=edit):
                status, out, err = self.lab("demo duplicate-effect")
                self.assertRegex(out + err, r"\A([ -~]{0,79}\n)+\Z|\Aerror: [ -~]+line[ -~]+\n\Z")
                self.assertEqual((status, err == ""), (0, True) if out else (1, False))

    def test_after_an_edit_exactly_one_test_fails_and_says_where(self) -> None:
        tests = unittest.defaultTestLoader.loadTestsFromTestCase(Lesson4Demo)
        tests.addTest(Lesson3Cases("test_run_case_gives_the_published_table"))
        with self.edited("operation", '"J-12:draft:v2"'):
            result = unittest.TextTestRunner(io.StringIO()).run(tests)
        self.assertEqual((len(result.failures), len(result.errors)), (1, 0))
        self.assertRegex(result.failures[0][1], r"(?s)duplicate-effect.*v1.*seen.*v2")
        self.assertEqual(len(result.skipped), result.testsRun - 1)

    def test_bad_usage_is_one_line_and_status_2(self) -> None:
        for line in ("", "nope", "demo nope", "demo --nope", "demo --rep x", "demo --json --step"):
            self.assertRegex("{}{}{}".format(*self.lab(line)), r"\A2error: .* -h\)\n\Z")
        self.assertEqual([self.lab(f"test -k {name}")[0] for name in ("late", "nope")], [0, 1])

    def test_output_is_ascii_in_80_columns_and_no_file_is_left(self) -> None:
        self.addCleanup(setattr, tempfile, "tempdir", tempfile.tempdir)
        tempfile.tempdir = str(self.folder)
        for line in ("demo", "-h", "demo -h", "--version", "demo --step --predict"):
            status, out, err = self.lab(line)
            self.assertRegex(f"{status}{err}\n{out}", r"\A0\n([ -~]{0,79}\n)+\Z")
        self.assertNotRegex(self.lab("demo normal")[1], r"\? |predictions")
        self.assertEqual(os.listdir(self.folder), [self.database.name])
        tempfile.tempdir = str(self.folder / "missing")
        self.assertRegex("{}{}{}".format(*self.lab("demo")), r"\A1error: .*missing.*\n\Z")

    def test_unwritable_output_ends_in_one_line_and_a_reader_that_goes_away_in_none(self) -> None:
        err = io.StringIO()
        with open(os.devnull, encoding="ascii") as out, redirect_stdout(out), redirect_stderr(err):
            self.assertEqual(main(["demo"]), 1)
        self.assertRegex(err.getvalue(), r"\Aerror: the output cannot be written.*\n\Z")
        with self.edited("payload", "exec('raise KeyboardInterrupt')"):
            self.assertRaises(KeyboardInterrupt, self.lab, "demo")
        process = self.start("-E", __file__, "demo", "normal")
        process.stdout.close()
        self.assertEqual(process.stderr.read(), "")

    def rows(self, out: str) -> list[str]:
        return re.findall("^[ >] +[0-9]+ [a-z].*", out, re.MULTILINE)

    def test_predict_asks_before_it_shows_and_never_names_the_case(self) -> None:
        out = self.lab("demo --predict", typed="1\n1\n1\n1\n\n 1 \r\n\n0\n")[1]
        asked, shown = out.split("---", 1)
        self.assertEqual((asked.count("? "), [case for case in CASES if case in asked]), (8, []))
        self.assertRegex(asked, r"(?s)\nStory 1 of 4\. .*\n\nStory 4 of 4\. .*\n\n\Z")
        where = "\n  predicted saved drafts 1: no, 2; see the row marked > at tick 6\n"
        self.assertIn(f"\n  predicted deliveries 1: no, 2; see tick 0 and 5{where}", shown)
        table = r"\nreuse-effect +2 +1  settled +once\n.*\n4 of 6 predictions right\n\Z"
        self.assertRegex(shown, rf"(?s)\A normal -.*  effect\ntick .*\n--- reuse-effect -.*{table}")

    def test_step_announces_what_is_tried_and_then_shows_the_same_rows(self) -> None:
        out = self.lab("demo --step reuse-effect", typed="R\n0\nin_flight\n1\n")[1]
        self.assertEqual(self.rows(out), self.rows(self.lab("demo reuse-effect")[1]))
        for row, event in zip(self.rows(out), run_case("reuse-effect", self.database), strict=True):
            self.assertIn(f"\n  tick {event.tick}: {event.actor} {event.tried}\n", out)
            what = f"{'>' * (event.step == 8)} {event.tick} {event.actor} {event.detail}"
            counts = event.message.replace("_", " "), event.drafts, event.receipts
            self.assertEqual(row.split(), "{} {} {} {}".format(what, *counts).split())
        shown = r"--- case 1 of 1 -.*saved drafts 1: no, 0; see the next row\n.*  effect receipt of"
        end = r"found its effect receipt\..*\n3 of 4 predictions right\n\Z"
        self.assertRegex(out, rf"(?s)\AThe row.*\n{shown} draft 1 .*{end}")

    def test_nonsense_is_asked_again_and_the_end_of_input_skips_the_rest(self) -> None:
        nonsense = "\n".join(("x", "-1", "1.5", "\u0661", "9" * 5000, "1"))
        status, out, _ = self.lab("demo --predict --step normal", typed=nonsense)
        self.assertEqual((status, out.count("  That is not a number"), out.count("? ")), (0, 5, 7))
        self.assertEqual((len(self.rows(out)), out[-25:]), (4, "1 of 1 predictions right\n"))

    def test_report_draws_what_happened_beside_what_was_predicted(self) -> None:
        file = self.folder / "report.md"
        out = self.lab("demo --predict --report", file, typed="1\n2\n")[1]
        self.assertEqual(out.splitlines()[-1], f"report written to {file}")
        text = file.read_text(encoding="ascii")
        table = r"\n\| normal \| 1 \| 1 \| 1 \| 2 \| settled \| once \|.*\n1 of 2 predictions right"
        case = r"\n## normal: once\n.*\n\| &#62; \| 1 \| worker A COMMITS.*\n  draft 1 .*\nsequence"
        self.assertRegex(text, rf"(?s)\A# Q.*{table}.*{case}.*\n## Questions.*\nAnswer:\n\Z")
        drawn = re.findall("```mermaid\nsequenceDiagram\n(.*?)```", text, re.DOTALL)
        self.assertEqual([picture.count(": tick 6: ") for picture in drawn], [0, 1, 1, 0])
        self.assertEqual([picture.count("Note over D: ") for picture in drawn], [1, 2, 2, 1])
        line = r"    (participant \w+ as|Note over [\w,]+:|\w+-(>>|->>|-x)\w+:) [^;#<>`|\n]+\n"
        self.assertRegex("".join(drawn), rf"\A({line})+\Z")
        steps = r"A0 as.* Q as.* A1 as.* A2 as.* D as.*A1,Q: tick 2.*A1,D: tick 2.*D: drafts 0"
        self.assertRegex("".join(drawn), f"(?s){steps}")
        self.assertEqual(self.lab("demo --report", file)[:2], (1, ""))
        self.assertEqual(file.read_text(encoding="ascii"), text)
        self.assertEqual(coded("a|`<b>;#\n_", "#"), "a#124;#96;#60;b#62;#59;#35;#92;n#95;")

    def test_keep_keeps_the_evidence_and_never_touches_a_file_that_is_there(self) -> None:
        folder = self.folder / "new" / "it's $50"
        status, out, err = self.lab("demo reuse-effect --json reuse-effect --keep", folder)
        history = [event._asdict() for event in run_case("reuse-effect", self.database)]
        self.assertEqual([json.loads(line) for line in out.splitlines()], history)
        kept = Path(err.split("connect('")[1].split("'")[0].encode().decode("unicode_escape"))
        self.assertEqual((kept, len(committed(kept)[1])), (folder / "reuse-effect.sqlite3", 1))
        before = [path.read_bytes() for path in sorted(folder.iterdir())]
        self.assertEqual(self.lab("demo --keep", folder)[:2], (1, ""))
        self.assertEqual([path.read_bytes() for path in sorted(folder.iterdir())], before)

    def test_refused_or_failed_run_leaves_no_file_and_no_folder(self) -> None:
        new, file = self.folder / "new", self.folder / "report.md"
        failing = ((new, self.folder), (new, new / "in.md"), (self.database, file), (new, file))
        for keep, report_to in failing:
            with self.edited("payload", "None" if (keep, report_to) == failing[-1] else '"text"'):
                status, out, err = self.lab("demo", f"--keep={keep}", f"--report={report_to}")
            self.assertEqual((status, out, err.count("\n")), (1, "", 1))
        self.assertEqual(os.listdir(self.folder), [self.database.name])


if __name__ == "__main__":
    sys.exit(main())
