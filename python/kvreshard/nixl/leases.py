"""A reader's side of leases: it keeps a producer's pages held while it reads, and asks at the end whether they were.

    reader                                     producer
      | -- ask(id, 10 s) ---------------------->  |   expect(id, lease=..) was called: the lease is prolonged
      | <- held(id, hold 7, 10 s) --------------  |
      | ============ reads =====================  |
      | -- ask, now and then, while it reads -->  |
      | -- done(id, hold 7) ------------------->  |   still held as 7: counts the reader
      | <- confirmed(id) -----------------------  |   or gone(id): the lease had ended, what was read may be another's

The answer is given after the last byte was read, by the side that knows: no clock has to be right, and a process that
was stopped in between is not fooled. A producer that dies says nothing; the request then fails at its deadline, or when
NIXL sees the connection end. `ask` and `done` are sent again until they are answered.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .control import Ask, Confirmed, Done, Gone, Held, Message
from .peer import Peer

LEASE = 10.0
"""Seconds that a reader asks for at a time."""

RENEW = 0.4
"""Share of a lease after which it is asked for anew."""

RESEND = 0.25
"""Seconds after which an unanswered message is sent again; each time it takes twice as long, up to `RESEND_MOST`."""

RESEND_MOST = 2.0

# No two reads of any process share one.
_tokens = itertools.count(time.time_ns())

Verdict = Literal["asking", "held", "confirmed", "gone"]


class Speaker(Protocol):
    """What sends control messages, introducing this rank first where it must."""

    def say(self, peer: Peer, message: Message, *, again: bool = False) -> None:
        """Sends a message; `again` when it was sent before without an answer."""


@dataclass
class Lease:
    """One request's pages at one producer."""

    peer: Peer
    id: str
    speaker: Speaker
    token: int = field(default_factory=lambda: next(_tokens))
    hold: int = 0
    verdict: Verdict = "asking"
    _next: float = field(default=0.0)
    _sent: int = 0
    _done: bool = False

    def keep(self, now: float) -> None:
        """Asks for the pages, and again in time."""
        if self.verdict in ("asking", "held") and not self._done and now >= self._next:
            self._say(Ask(self.id, int(LEASE * 1000), self.peer.generation), now)

    def end(self, now: float) -> None:
        """All bytes are here: asks whether the pages were held."""
        if self.verdict in ("confirmed", "gone"):
            return
        if not self._done or now >= self._next:
            if not self._done:
                self._done, self._sent = True, 0
            done = Done(self.id, self.hold, self.token, self.peer.senders, self.peer.generation)
            self._say(done, now)

    def _say(self, message: Message, now: float) -> None:
        self.speaker.say(self.peer, message, again=self._sent > 0)
        self._next = now + min(RESEND * 2**self._sent, RESEND_MOST)
        self._sent = min(self._sent + 1, 8)

    def hear(self, message: Held | Gone | Confirmed, now: float) -> None:
        """Takes in the producer's answer."""
        if self.verdict in ("confirmed", "gone"):
            return
        match message:
            case Held(hold=hold, milliseconds=milliseconds):
                if self.hold not in (0, hold):
                    # Promised anew in between: for a time nobody held them.
                    self.verdict = "gone"
                elif not self._done:
                    self.hold, self.verdict = hold, "held"
                    self._next, self._sent = now + RENEW * milliseconds / 1000, 0
            case Confirmed():
                self.verdict = "confirmed" if self._done else self.verdict
            case Gone():
                self.verdict = "gone"


class Leases:
    """The leases of one connector, by producer and request."""

    def __init__(self) -> None:
        self._leases: dict[tuple[str, str], Lease] = {}

    def open(self, lease: Lease) -> Lease:
        """Takes note of one that answers may come for."""
        self._leases[lease.peer.name, lease.id] = lease
        return lease

    def close(self, leases: Iterable[Lease]) -> None:
        """Forgets them."""
        for lease in leases:
            self._leases.pop((lease.peer.name, lease.id), None)

    def clear(self) -> None:
        """Forgets all."""
        self._leases.clear()

    def hear(self, sender: str, message: Held | Gone | Confirmed, now: float) -> None:
        """Passes an answer on."""
        lease = self._leases.get((sender, message.id))
        if lease is not None:
            lease.hear(message, now)
