"""The side that makes first contact: it moves marked pages, and looks, or asks the target of its push to."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import kvreshard as kvr
from kvreshard.probe import ProbeError, WriterMismatch

from .contact import Expected, FirstContact, Read, Write, compare, mark
from .control import Marked, Message
from .errors import DeadlinePassed, Unsupported
from .events import Direction, Event, Failed, Finished
from .leases import RESEND, RESEND_MOST
from .meetings import Meetings, told_blocks
from .order import Order
from .peer import Peer


class Say(Protocol):
    """Sends a control message, and introduces this rank where it must."""

    def __call__(self, peer: Peer, message: Message, *, again: bool = False) -> None:
        """`again` when it was sent before without an answer."""


PAUSE = 0.0002
"""Seconds between two looks."""


@dataclass(frozen=True)
class Meeting:
    """One first contact, with what the connector lends it."""

    layout: kvr.RankLayout
    peer: Peer
    contact: FirstContact
    edge: kvr.Edge | None
    issue: Callable[[Order, Sequence[tuple[Peer, kvr.Request]]], None]
    events: list[Event]
    progress: Callable[[], None]
    say: Say
    meetings: Meetings

    def hold(self, direction: Direction | None, *, owned: bool) -> None:
        """Raises `WriterMismatch` unless the reading side finds the marks; `owned`: the agent's notices are ours."""
        contact, id = self.contact, f"first-contact/{uuid.uuid4().hex}"
        ends = time.monotonic() + contact.deadline
        read, write = self._sides(direction, owned)
        if write is not None:
            mark(self.layout, contact.request.local, write, contact.seed, contact.sources)
        how = "direct" if contact.strategy == "auto" and not owned else contact.strategy
        moved: Direction = "write" if read is None else "read"
        order = Order(id, moved, notify=False, deadline=contact.deadline, strategy=how, fence=False)
        self.issue(order, [(self.peer, contact.request)])
        self._await_end(id)
        takes, request = None if self.edge is None else [*self.edge.takes], contact.request
        if read is not None:
            expected = Expected(request.local, request.tokens, contact.seed, contact.sources)
            compare(self.layout, self.peer.layout, takes, expected, read)
        else:
            self._ask(Marked(id, contact.seed, request.tokens, told_blocks(request.remote), takes), ends)

    def _sides(self, direction: Direction | None, owned: bool) -> tuple[Read | None, Write | None]:
        """The reader of a read, or the writer of a write."""
        if direction == "read" and self.contact.read is not None:
            return self.contact.read, None
        if direction == "write" and self.contact.write is not None:
            name = self.peer.name
            if not owned:
                raise Unsupported("first contact of a push needs an agent of our own: the answer is a notice")
            if not self.peer.answers_contacts:
                raise Unsupported(f"peer {name} did not announce that it answers first contacts", peer=name)
            return None, self.contact.write
        raise Unsupported("first contact goes with direction 'read' and a reader, or with 'write' and a writer")

    def _await_end(self, id: str) -> None:
        """Makes progress until the transfer has ended, and takes its event out; raises why it failed."""
        while True:
            for event in self.events:
                if isinstance(event, Finished | Failed) and event.id == id:
                    self.events.remove(event)
                    if isinstance(event, Failed):
                        raise event.reason
                    return
            self.progress()
            time.sleep(PAUSE)

    def _ask(self, marked: Marked, ends: float) -> None:
        """Asks the target what its reader finds, until it says so."""
        peer, sent, at = self.peer, 0, 0.0
        self.meetings.ask(marked.id)
        try:
            while (found := self.meetings.answered(marked.id)) is None:
                peer.require_connected(marked.id)
                now = time.monotonic()
                if now >= ends:
                    raise DeadlinePassed(
                        f"first contact: {peer.name} did not say what its reader finds (does it poll?)", peer=peer.name
                    )
                if now >= at:
                    self.say(peer, marked, again=sent > 0)
                    sent, at = sent + 1, now + min(RESEND * 2**sent, RESEND_MOST)
                self.progress()
                time.sleep(PAUSE)
        finally:
            self.meetings.forget(marked.id)
        if found.text:
            text = f"first contact: {peer.name} says: {found.text}"
            raise WriterMismatch(text) if found.wrong else Unsupported(text, peer=peer.name)
        if not found.elements:
            raise ProbeError(f"first contact: {peer.name} looked at nothing")
